// Log-sum-exp, the target's logit and the Jensen-Shannon divergence of rows of logits, over pieces
// of the vocabulary: no probabilities are kept.
#pragma once

#include "lens_math.h"

namespace layertracer {

// `[rows, columns]`, contiguous: columns `first_column` and on of the whole vocabulary.
struct Logits {
  const void* data;
  DType dtype;
  int64_t rows;
  int64_t columns;
};

// Adds the columns to the row's state.
void lens_update_row_cpu(const Logits& logits, int64_t row, int64_t target_column,
                         LensState& state);

// Returns what the columns add to the divergence of the row; NaN where a log-sum-exp is not finite.
double js_row_cpu(const Logits& p, const Logits& q, int64_t row, double log_sum_p,
                  double log_sum_q);

// The same for all rows, everything in device memory, on `stream`. `state` is updated in place.
void lens_update_cuda(const Logits& logits, const int64_t* targets, int64_t first_column,
                      LensState* state, void* stream);
void js_cuda(const Logits& p, const Logits& q, const double* log_sum_p, const double* log_sum_q,
             double* out, void* stream);

}  // namespace layertracer
