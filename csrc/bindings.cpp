// Registers the ops that reduce many tensors by layer, and the module itself.
#include "bindings.h"

#include <Python.h>
#ifdef LAYERTRACER_CUDA
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#endif
#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include "drift.h"
#include "layer_stats.h"

namespace layertracer {
namespace {

// The arguments of both ops; `references` is null where there is nothing to compare with.
struct Arguments {
  at::TensorList tensors;
  const at::TensorList* references;
  at::IntArrayRef layers;
  at::ArrayRef<double> weights;
  int64_t num_layers;
  const char* name;

  void check() const;
  std::vector<Chunk> chunks() const;
};

void check_tensor(const at::Tensor& tensor, const std::string& name, const at::Tensor& first,
                  const char* first_name) {
  TORCH_CHECK_VALUE(tensor.is_contiguous(), name, " is not contiguous");
  TORCH_CHECK_VALUE(tensor.device() == first.device(), name, " is on ", tensor.device(), ", ",
                    first_name, "[0] on ", first.device());
}

void Arguments::check() const {
  TORCH_CHECK_VALUE(num_layers >= 0, "num_layers is ", num_layers, "; it must not be negative");
  TORCH_CHECK_VALUE(layers.size() == tensors.size(), "layers has ", layers.size(), " entries, ",
                    name, " has ", tensors.size());
  TORCH_CHECK_VALUE(weights.empty() || weights.size() == tensors.size(), "weights has ",
                    weights.size(), " entries, ", name, " has ", tensors.size());
  TORCH_CHECK_VALUE(references == nullptr || references->size() == tensors.size(),
                    "references has ", references == nullptr ? 0 : references->size(), " entries, ",
                    name, " has ", tensors.size());
  for (size_t i = 0; i < tensors.size(); ++i) {
    TORCH_CHECK_VALUE(0 <= layers[i] && layers[i] < num_layers, "layers[", i, "] is ", layers[i],
                      "; it must be from 0 to ", num_layers - 1);
    check_tensor(tensors[i], at_index(name, i), tensors[0], name);
    if (references == nullptr) continue;
    const at::Tensor& reference = (*references)[i];
    check_tensor(reference, at_index("references", i), tensors[0], name);
    TORCH_CHECK_VALUE(reference.sizes() == tensors[i].sizes(), "references[", i, "] has shape ",
                      reference.sizes(), ", ", name, "[", i, "] has ", tensors[i].sizes());
  }
}

std::vector<Chunk> Arguments::chunks() const {
  std::vector<Chunk> whole;
  whole.reserve(tensors.size());
  for (size_t i = 0; i < tensors.size(); ++i) {
    Chunk chunk{};
    chunk.data = tensors[i].const_data_ptr();
    chunk.dtype = dtype_of(tensors[i], at_index(name, i));
    if (references != nullptr) {
      chunk.reference = (*references)[i].const_data_ptr();
      chunk.reference_dtype = dtype_of((*references)[i], at_index("references", i));
    }
    chunk.count = tensors[i].numel();
    chunk.layer = static_cast<int32_t>(layers[i]);
    chunk.weight = weights.empty() ? 1.0 : weights[i];
    whole.push_back(chunk);
  }
  return cut(std::move(whole));
}

template <typename S>
at::Tensor reduce_cpu(const Arguments& arguments, S (*reduce_chunk)(const Chunk&)) {
  arguments.check();
  const std::vector<Chunk> chunks = arguments.chunks();
  std::vector<S> partial(chunks.size());
  at::parallel_for(0, static_cast<int64_t>(chunks.size()), 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) partial[i] = reduce_chunk(chunks[i]);
  });
  std::vector<S> sums(arguments.num_layers);
  for (size_t i = 0; i < chunks.size(); ++i) sums[chunks[i].layer].merge(partial[i]);
  at::Tensor out = at::empty({arguments.num_layers, S::kFields}, at::kDouble);
  auto* rows = out.mutable_data_ptr<double>();
  for (size_t layer = 0; layer < sums.size(); ++layer) sums[layer].write(rows + S::kFields * layer);
  return out;
}

#ifdef LAYERTRACER_CUDA
// Copies a host table to the device without waiting for it: pinned memory, which torch's caching
// allocator keeps until the stream has used it.
template <typename T>
at::Tensor to_device(const std::vector<T>& table, const at::Device& device) {
  const auto bytes = static_cast<int64_t>(table.size() * sizeof(T));
  at::Tensor host = at::empty({bytes}, at::TensorOptions().dtype(at::kByte).pinned_memory(true));
  if (bytes > 0) std::memcpy(host.mutable_data_ptr(), table.data(), bytes);
  return host.to(device, /*non_blocking=*/true);
}

template <typename S>
using Launch = void (*)(const Chunk*, int64_t, const int64_t*, int64_t, S*, double*, void*);

template <typename S>
at::Tensor reduce_cuda(const Arguments& arguments, Launch<S> launch) {
  arguments.check();
  const at::Device device = arguments.tensors[0].device();
  const c10::cuda::CUDAGuard guard(device);
  const std::vector<Chunk> chunks = arguments.chunks();
  const at::Tensor table = to_device(chunks, device);
  const at::Tensor first = to_device(first_chunks(chunks, arguments.num_layers), device);
  const auto options = at::TensorOptions().dtype(at::kDouble).device(device);
  const auto num_chunks = static_cast<int64_t>(chunks.size());
  at::Tensor partial = at::empty({num_chunks, S::kFields}, options);
  at::Tensor out = at::empty({arguments.num_layers, S::kFields}, options);
  launch(static_cast<const Chunk*>(table.const_data_ptr()), num_chunks,
         static_cast<const int64_t*>(first.const_data_ptr()), arguments.num_layers,
         reinterpret_cast<S*>(partial.mutable_data_ptr()), out.mutable_data_ptr<double>(),
         c10::cuda::getCurrentCUDAStream().stream());
  C10_CUDA_KERNEL_LAUNCH_CHECK();
  return out;
}
#endif

at::Tensor layer_grad_stats_cpu(at::TensorList tensors, at::IntArrayRef layers,
                                at::ArrayRef<double> weights, int64_t num_layers) {
  return reduce_cpu({tensors, nullptr, layers, weights, num_layers, "tensors"}, chunk_stats_cpu);
}

at::Tensor activation_drift_cpu(at::TensorList tensors, at::TensorList references,
                                at::IntArrayRef layers, at::ArrayRef<double> weights,
                                int64_t num_layers) {
  return reduce_cpu({tensors, &references, layers, weights, num_layers, "tensors"},
                    chunk_drift_cpu);
}

at::Tensor empty_like_result(at::TensorList tensors, int64_t num_layers, int64_t fields) {
  const auto device = tensors.empty() ? at::Device(at::kMeta) : tensors[0].device();
  return at::empty({num_layers, fields}, at::TensorOptions().dtype(at::kDouble).device(device));
}

at::Tensor layer_grad_stats_meta(at::TensorList tensors, at::IntArrayRef /*layers*/,
                                 at::ArrayRef<double> /*weights*/, int64_t num_layers) {
  return empty_like_result(tensors, num_layers, Stats::kFields);
}

at::Tensor activation_drift_meta(at::TensorList tensors, at::TensorList /*references*/,
                                 at::IntArrayRef /*layers*/, at::ArrayRef<double> /*weights*/,
                                 int64_t num_layers) {
  return empty_like_result(tensors, num_layers, Drift::kFields);
}

#ifdef LAYERTRACER_CUDA
at::Tensor layer_grad_stats_cuda(at::TensorList tensors, at::IntArrayRef layers,
                                 at::ArrayRef<double> weights, int64_t num_layers) {
  return reduce_cuda<Stats>({tensors, nullptr, layers, weights, num_layers, "tensors"},
                            layer_stats_cuda);
}

at::Tensor activation_drift_cuda(at::TensorList tensors, at::TensorList references,
                                 at::IntArrayRef layers, at::ArrayRef<double> weights,
                                 int64_t num_layers) {
  return reduce_cuda<Drift>({tensors, &references, layers, weights, num_layers, "tensors"},
                            drift_cuda);
}
#endif

}  // namespace

TORCH_LIBRARY(layertracer, m) {
  m.def(
      "layer_grad_stats(Tensor[] tensors, int[] layers, float[] weights, int num_layers) -> "
      "Tensor");
  m.def(
      "activation_drift(Tensor[] tensors, Tensor[] references, int[] layers, float[] weights, "
      "int num_layers) -> Tensor");
}
TORCH_LIBRARY_IMPL(layertracer, CPU, m) {
  m.impl("layer_grad_stats", layer_grad_stats_cpu);
  m.impl("activation_drift", activation_drift_cpu);
}
TORCH_LIBRARY_IMPL(layertracer, Meta, m) {
  m.impl("layer_grad_stats", layer_grad_stats_meta);
  m.impl("activation_drift", activation_drift_meta);
}
#ifdef LAYERTRACER_CUDA
TORCH_LIBRARY_IMPL(layertracer, CUDA, m) {
  m.impl("layer_grad_stats", layer_grad_stats_cuda);
  m.impl("activation_drift", activation_drift_cuda);
}
#endif

}  // namespace layertracer

// Importing the module loads the library, which registers the ops.
extern "C" PyMODINIT_FUNC PyInit__C() {
  static PyModuleDef definition = {PyModuleDef_HEAD_INIT, "_C", nullptr, -1, nullptr};
  return PyModule_Create(&definition);
}
