#include <cmath>
#include <cstdint>
#include <cstring>

#include "dispatch.h"
#include "lens.h"

#define LAYERTRACER_KERNELS "lens_kernels.inc"
#include "each_target.inc"

namespace layertracer {

void lens_update_row_cpu(const Logits& logits, int64_t row, int64_t target_column,
                         LensState& state) {
  if (0 <= target_column && target_column < logits.columns) {
    state.target = LAYERTRACER_DISPATCH(logit, logits, row, target_column);
  }
  LAYERTRACER_DISPATCH(update_row, logits, row, state);
}

double js_row_cpu(const Logits& p, const Logits& q, int64_t row, double log_sum_p,
                  double log_sum_q) {
  if (!std::isfinite(log_sum_p) || !std::isfinite(log_sum_q)) return NAN;
  const RowPair pair = row_pair(log_sum_p, log_sum_q);
  return LAYERTRACER_DISPATCH(divergence_of_row, p, q, row, pair);
}

}  // namespace layertracer
