// Registers the lens ops.
#include "bindings.h"
#ifdef LAYERTRACER_CUDA
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#endif
#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

#include "lens.h"

namespace layertracer {
namespace {

constexpr int64_t kStateFields = sizeof(LensState) / sizeof(double);

Logits checked_logits(const at::Tensor& tensor, const char* name) {
  TORCH_CHECK_VALUE(tensor.dim() == 2, name, " has ", tensor.dim(),
                    " dimensions; it must be [rows, columns]");
  TORCH_CHECK_VALUE(tensor.is_contiguous(), name, " is not contiguous");
  return {tensor.const_data_ptr(), dtype_of(tensor, name), tensor.size(0), tensor.size(1)};
}

void check_per_row(const at::Tensor& tensor, const char* name, at::ScalarType dtype,
                   at::IntArrayRef shape, const at::Tensor& logits, const char* logits_name) {
  TORCH_CHECK_TYPE(tensor.scalar_type() == dtype, name, " is ", tensor.scalar_type(),
                   "; it must be ", dtype);
  TORCH_CHECK_VALUE(tensor.sizes() == shape, name, " has shape ", tensor.sizes(), "; for these ",
                    logits_name, " it must be ", shape);
  TORCH_CHECK_VALUE(tensor.is_contiguous(), name, " is not contiguous");
  TORCH_CHECK_VALUE(tensor.device() == logits.device(), name, " is on ", tensor.device(), ", ",
                    logits_name, " on ", logits.device());
}

Logits check_update(const at::Tensor& logits, const at::Tensor& targets, const at::Tensor& state) {
  const Logits checked = checked_logits(logits, "logits");
  check_per_row(targets, "targets", at::kLong, {checked.rows}, logits, "logits");
  check_per_row(state, "state", at::kDouble, {checked.rows, kStateFields}, logits, "logits");
  return checked;
}

std::pair<Logits, Logits> check_divergence(const at::Tensor& p, const at::Tensor& q,
                                           const at::Tensor& log_sum_p,
                                           const at::Tensor& log_sum_q) {
  const Logits checked_p = checked_logits(p, "logits_p");
  const Logits checked_q = checked_logits(q, "logits_q");
  TORCH_CHECK_VALUE(p.sizes() == q.sizes(), "logits_q has shape ", q.sizes(), ", logits_p has ",
                    p.sizes());
  TORCH_CHECK_TYPE(p.scalar_type() == q.scalar_type(), "logits_q is ", q.scalar_type(),
                   ", logits_p is ", p.scalar_type());
  TORCH_CHECK_VALUE(p.device() == q.device(), "logits_q is on ", q.device(), ", logits_p on ",
                    p.device());
  check_per_row(log_sum_p, "log_sum_p", at::kDouble, {checked_p.rows}, p, "logits_p");
  check_per_row(log_sum_q, "log_sum_q", at::kDouble, {checked_p.rows}, p, "logits_p");
  return {checked_p, checked_q};
}

at::Tensor lens_update_cpu(const at::Tensor& logits, const at::Tensor& targets,
                           const at::Tensor& state, int64_t first_column) {
  const Logits checked = check_update(logits, targets, state);
  at::Tensor updated = state.clone();
  auto* states = static_cast<LensState*>(updated.mutable_data_ptr());
  const auto* target = targets.const_data_ptr<int64_t>();
  at::parallel_for(0, checked.rows, 1, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      lens_update_row_cpu(checked, row, target[row] - first_column, states[row]);
    }
  });
  return updated;
}

at::Tensor js_divergence_cpu(const at::Tensor& logits_p, const at::Tensor& logits_q,
                             const at::Tensor& log_sum_p, const at::Tensor& log_sum_q) {
  const auto [p, q] = check_divergence(logits_p, logits_q, log_sum_p, log_sum_q);
  at::Tensor out = at::empty_like(log_sum_p);
  auto* sums = out.mutable_data_ptr<double>();
  const auto* of_p = log_sum_p.const_data_ptr<double>();
  const auto* of_q = log_sum_q.const_data_ptr<double>();
  at::parallel_for(0, out.numel(), 1, [&, p = p, q = q](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      sums[row] = js_row_cpu(p, q, row, of_p[row], of_q[row]);
    }
  });
  return out;
}

at::Tensor lens_update_meta(const at::Tensor& /*logits*/, const at::Tensor& /*targets*/,
                            const at::Tensor& state, int64_t /*first_column*/) {
  return at::empty_like(state);
}

at::Tensor js_divergence_meta(const at::Tensor& /*logits_p*/, const at::Tensor& /*logits_q*/,
                              const at::Tensor& log_sum_p, const at::Tensor& /*log_sum_q*/) {
  return at::empty_like(log_sum_p);
}

#ifdef LAYERTRACER_CUDA
at::Tensor lens_update_on_gpu(const at::Tensor& logits, const at::Tensor& targets,
                              const at::Tensor& state, int64_t first_column) {
  const Logits checked = check_update(logits, targets, state);
  const c10::cuda::CUDAGuard guard(logits.device());
  at::Tensor updated = state.clone();
  lens_update_cuda(checked, targets.const_data_ptr<int64_t>(), first_column,
                   static_cast<LensState*>(updated.mutable_data_ptr()),
                   c10::cuda::getCurrentCUDAStream().stream());
  C10_CUDA_KERNEL_LAUNCH_CHECK();
  return updated;
}

at::Tensor js_divergence_on_gpu(const at::Tensor& logits_p, const at::Tensor& logits_q,
                                const at::Tensor& log_sum_p, const at::Tensor& log_sum_q) {
  const auto [p, q] = check_divergence(logits_p, logits_q, log_sum_p, log_sum_q);
  const c10::cuda::CUDAGuard guard(logits_p.device());
  at::Tensor out = at::empty_like(log_sum_p);
  js_cuda(p, q, log_sum_p.const_data_ptr<double>(), log_sum_q.const_data_ptr<double>(),
          out.mutable_data_ptr<double>(), c10::cuda::getCurrentCUDAStream().stream());
  C10_CUDA_KERNEL_LAUNCH_CHECK();
  return out;
}
#endif

}  // namespace

TORCH_LIBRARY_FRAGMENT(layertracer, m) {
  m.def("lens_update(Tensor logits, Tensor targets, Tensor state, int first_column) -> Tensor");
  m.def(
      "js_divergence(Tensor logits_p, Tensor logits_q, Tensor log_sum_p, Tensor log_sum_q) -> "
      "Tensor");
}
TORCH_LIBRARY_IMPL(layertracer, CPU, m) {
  m.impl("lens_update", lens_update_cpu);
  m.impl("js_divergence", js_divergence_cpu);
}
TORCH_LIBRARY_IMPL(layertracer, Meta, m) {
  m.impl("lens_update", lens_update_meta);
  m.impl("js_divergence", js_divergence_meta);
}
#ifdef LAYERTRACER_CUDA
TORCH_LIBRARY_IMPL(layertracer, CUDA, m) {
  m.impl("lens_update", lens_update_on_gpu);
  m.impl("js_divergence", js_divergence_on_gpu);
}
#endif

}  // namespace layertracer
