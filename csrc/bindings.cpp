// Registers the ops with torch. Arguments are checked here; the kernels trust them.
#include <Python.h>
#include <torch/library.h>
#ifdef LAYERTRACER_CUDA
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#endif
#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <numeric>
#include <vector>

#include "layer_stats.h"

namespace layertracer {
namespace {

DType dtype_of(const at::Tensor& tensor, size_t index) {
  switch (tensor.scalar_type()) {
    case at::kFloat:
      return DType::kFloat32;
    case at::kBFloat16:
      return DType::kBFloat16;
    case at::kHalf:
      return DType::kFloat16;
    default:
      TORCH_CHECK_TYPE(false, "tensors[", index, "] is ", tensor.scalar_type(),
                       "; it must be float32, bfloat16 or float16");
  }
}

void check_arguments(at::TensorList tensors, at::IntArrayRef layers, at::ArrayRef<double> weights,
                     int64_t num_layers) {
  TORCH_CHECK_VALUE(num_layers >= 0, "num_layers is ", num_layers, "; it must not be negative");
  TORCH_CHECK_VALUE(layers.size() == tensors.size(), "layers has ", layers.size(),
                    " entries, tensors has ", tensors.size());
  TORCH_CHECK_VALUE(weights.empty() || weights.size() == tensors.size(), "weights has ",
                    weights.size(), " entries, tensors has ", tensors.size());
  for (size_t i = 0; i < tensors.size(); ++i) {
    TORCH_CHECK_VALUE(0 <= layers[i] && layers[i] < num_layers, "layers[", i, "] is ", layers[i],
                      "; it must be from 0 to ", num_layers - 1);
    TORCH_CHECK_VALUE(tensors[i].is_contiguous(), "tensors[", i, "] is not contiguous");
    TORCH_CHECK_VALUE(tensors[i].device() == tensors[0].device(), "tensors[", i, "] is on ",
                      tensors[i].device(), ", tensors[0] on ", tensors[0].device());
  }
}

// Cuts the tensors into chunks, those of a layer next to each other in the order of the tensors.
std::vector<Chunk> make_chunks(at::TensorList tensors, at::IntArrayRef layers,
                               at::ArrayRef<double> weights) {
  std::vector<size_t> order(tensors.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return layers[a] < layers[b]; });
  std::vector<Chunk> chunks;
  for (size_t index : order) {
    const at::Tensor& tensor = tensors[index];
    const auto* bytes = static_cast<const char*>(tensor.const_data_ptr());
    const int64_t width = static_cast<int64_t>(tensor.element_size());
    const DType dtype = dtype_of(tensor, index);
    for (int64_t begin = 0; begin < tensor.numel(); begin += kChunkElements) {
      const int64_t count = std::min(kChunkElements, tensor.numel() - begin);
      chunks.push_back({bytes + begin * width, count, static_cast<int32_t>(layers[index]), dtype,
                        weights.empty() ? 1.0 : weights[index]});
    }
  }
  return chunks;
}

at::Tensor layer_grad_stats_cpu(at::TensorList tensors, at::IntArrayRef layers,
                                at::ArrayRef<double> weights, int64_t num_layers) {
  check_arguments(tensors, layers, weights, num_layers);
  const std::vector<Chunk> chunks = make_chunks(tensors, layers, weights);
  std::vector<Stats> partial(chunks.size());
  at::parallel_for(0, static_cast<int64_t>(chunks.size()), 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) partial[i] = chunk_stats_cpu(chunks[i]);
  });
  at::Tensor out = at::zeros({num_layers, 3}, at::kDouble);
  auto* sums = out.mutable_data_ptr<double>();
  for (size_t i = 0; i < chunks.size(); ++i) {
    double* row = sums + 3 * chunks[i].layer;
    if (chunks[i].weight == 0.0) continue;
    row[0] += chunks[i].weight * partial[i].sum_of_squares;
    row[1] = std::max(row[1], partial[i].max_abs);
    row[2] += chunks[i].weight * partial[i].nonfinite;
  }
  return out;
}

at::Tensor layer_grad_stats_meta(at::TensorList tensors, at::IntArrayRef /*layers*/,
                                 at::ArrayRef<double> /*weights*/, int64_t num_layers) {
  const auto device = tensors.empty() ? at::Device(at::kMeta) : tensors[0].device();
  return at::empty({num_layers, 3}, at::TensorOptions().dtype(at::kDouble).device(device));
}

#ifdef LAYERTRACER_CUDA
// Copies a host table to the device without waiting for it: pinned memory, freed by torch's
// caching allocator once the stream has used it.
template <typename T>
at::Tensor to_device(const std::vector<T>& table, const at::Device& device) {
  const auto bytes = static_cast<int64_t>(table.size() * sizeof(T));
  at::Tensor host = at::empty({bytes}, at::TensorOptions().dtype(at::kByte).pinned_memory(true));
  if (bytes > 0) std::memcpy(host.mutable_data_ptr(), table.data(), bytes);
  return host.to(device, /*non_blocking=*/true);
}

at::Tensor layer_grad_stats_cuda(at::TensorList tensors, at::IntArrayRef layers,
                                 at::ArrayRef<double> weights, int64_t num_layers) {
  check_arguments(tensors, layers, weights, num_layers);
  const c10::cuda::CUDAGuard guard(tensors[0].device());
  const std::vector<Chunk> chunks = make_chunks(tensors, layers, weights);
  std::vector<int64_t> first(num_layers + 1, 0);
  for (const Chunk& chunk : chunks) ++first[chunk.layer + 1];
  std::partial_sum(first.begin(), first.end(), first.begin());
  const auto options = tensors[0].options();
  at::Tensor device_chunks = to_device(chunks, tensors[0].device());
  at::Tensor device_first = to_device(first, tensors[0].device());
  at::Tensor partial =
      at::empty({static_cast<int64_t>(chunks.size() * sizeof(Stats))}, options.dtype(at::kByte));
  at::Tensor out = at::empty({num_layers, 3}, options.dtype(at::kDouble));
  layer_stats_cuda(static_cast<const Chunk*>(device_chunks.const_data_ptr()),
                   static_cast<int64_t>(chunks.size()),
                   static_cast<const int64_t*>(device_first.const_data_ptr()), num_layers,
                   static_cast<Stats*>(partial.mutable_data_ptr()), out.mutable_data_ptr<double>(),
                   c10::cuda::getCurrentCUDAStream().stream());
  C10_CUDA_KERNEL_LAUNCH_CHECK();
  return out;
}
#endif

}  // namespace

TORCH_LIBRARY(layertracer, m) {
  m.def(
      "layer_grad_stats(Tensor[] tensors, int[] layers, float[] weights, int num_layers) -> "
      "Tensor");
}
TORCH_LIBRARY_IMPL(layertracer, CPU, m) { m.impl("layer_grad_stats", layer_grad_stats_cpu); }
TORCH_LIBRARY_IMPL(layertracer, Meta, m) { m.impl("layer_grad_stats", layer_grad_stats_meta); }
#ifdef LAYERTRACER_CUDA
TORCH_LIBRARY_IMPL(layertracer, CUDA, m) { m.impl("layer_grad_stats", layer_grad_stats_cuda); }
#endif

}  // namespace layertracer

// Importing the module loads the library, which registers the ops.
extern "C" PyMODINIT_FUNC PyInit__C() {
  static PyModuleDef definition = {PyModuleDef_HEAD_INIT, "_C", nullptr, -1, nullptr};
  return PyModule_Create(&definition);
}
