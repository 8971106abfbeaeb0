// The arithmetic of the lens ops, the same on CPU and GPU: float32, without branches or calls, so
// that compilers vectorise it.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#include "chunks.h"

#ifdef __CUDACC__
#define LAYERTRACER_MATH __host__ __device__ __forceinline__
#else
#define LAYERTRACER_MATH inline __attribute__((always_inline))
#endif

namespace layertracer {

// exp(x) for x <= 0, to 2e-7 of its value; 0 below -87. Powers of two are taken out by rounding
// x / ln 2 with a number whose last digit is 1, the rest is a Taylor polynomial on [-0.35, 0.35].
LAYERTRACER_MATH float exp_negative(float x) {
  constexpr float kRound = 12582912.0f;  // 1.5 * 2^23
  const float shifted = x * 1.44269504f + kRound;
  const float powers = shifted - kRound;
  // ln 2 in two parts, the first so short that its product with `powers` is exact.
  const float r = (x - powers * 0.693359375f) + powers * 2.12194440e-4f;
  float series = 1.0f / 5040.0f;
  series = series * r + 1.0f / 720.0f;
  series = series * r + 1.0f / 120.0f;
  series = series * r + 1.0f / 24.0f;
  series = series * r + 1.0f / 6.0f;
  series = series * r + 0.5f;
  series = series * r + 1.0f;
  series = series * r + 1.0f;
  uint32_t bits;
  memcpy(&bits, &shifted, sizeof bits);
  bits = (bits << 23) + 0x3f800000u;
  float scale;
  memcpy(&scale, &bits, sizeof scale);
  return x < -87.0f ? 0.0f : series * scale;
}

// log(1 + e) for e in [0, 0.61], through the series of artanh(e / (2 + e)).
LAYERTRACER_MATH float log1p_fraction(float e) {
  const float z = e / (2.0f + e);
  const float square = z * z;
  float series = 1.0f / 11.0f;
  series = series * square + 1.0f / 9.0f;
  series = series * square + 1.0f / 7.0f;
  series = series * square + 1.0f / 5.0f;
  series = series * square + 1.0f / 3.0f;
  series = series * square + 1.0f;
  return 2.0f * z * series;
}

// (1 + t) log(1 + t) + (1 - t) log(1 - t) for t = tanh(gap / 2), gap in [0, 0.5], by its series:
// the formula itself has no digits left where two distributions hardly differ.
LAYERTRACER_MATH float entropy_of_close(float gap) {
  const float y = 0.5f * gap;
  const float yy = y * y;
  float tanh = 62.0f / 2835.0f;
  tanh = tanh * yy - 17.0f / 315.0f;
  tanh = tanh * yy + 2.0f / 15.0f;
  tanh = tanh * yy - 1.0f / 3.0f;
  const float t = y + y * yy * tanh;
  const float tt = t * t;
  float series = 1.0f / 45.0f;
  series = series * tt + 1.0f / 28.0f;
  series = series * tt + 1.0f / 15.0f;
  series = series * tt + 1.0f / 6.0f;
  return tt + tt * tt * series;
}

// A number as the sum of two float32.
struct Split {
  float high;
  float low;
};

LAYERTRACER_MATH Split split(double value) {
  const float high = static_cast<float>(value);
  return {high, static_cast<float>(value - static_cast<double>(high))};
}

// The normalisation of two rows of logits, split so that logits of 10^4 lose no digit.
struct RowPair {
  Split log_sum_p;
  Split log_sum_q;
  Split shift;  // log_sum_q - log_sum_p
};

LAYERTRACER_MATH RowPair row_pair(double log_sum_p, double log_sum_q) {
  return {split(log_sum_p), split(log_sum_q), split(log_sum_q - log_sum_p)};
}

// What one column adds to the Jensen-Shannon divergence: (p log(p/m) + q log(q/m)) / 2 with
// m = (p + q) / 2. Never negative; exactly symmetric.
LAYERTRACER_MATH float js_term(const RowPair& row, float logit_p, float logit_q) {
  const float log_p = (logit_p - row.log_sum_p.high) - row.log_sum_p.low;
  const float log_q = (logit_q - row.log_sum_q.high) - row.log_sum_q.low;
  // The difference of the logits with its rounding error (Knuth's TwoSum), then normalised.
  const float difference = logit_q - logit_p;
  const float of_p = difference - logit_q;
  const float rounding = (logit_q - (difference - of_p)) - (logit_p + of_p);
  const float log_ratio = ((difference - row.shift.high) - row.shift.low) + rounding;
  const float magnitude = log_ratio < 0.0f ? -log_ratio : log_ratio;
  const float gap = magnitude < 80.0f ? magnitude : 80.0f;  // also where one is -inf
  const float larger = exp_negative(log_p > log_q ? log_p : log_q);
  const float fraction = exp_negative(-gap);
  const float both = 1.0f + fraction;
  const float close = 0.25f * both * entropy_of_close(gap);
  const float apart = 0.5f * (both * (0.693147181f - log1p_fraction(fraction)) - fraction * gap);
  return larger * (gap < 0.5f ? close : apart);
}

// What is added up for one row of logits: log-sum-exp is `largest + log(sum)`.
struct LensState {
  double largest;  // of the logits so far
  double sum;      // of exp(logit - largest)
  double target;   // the target's logit, -inf where it was not among the columns
};

// Adds to a row's state `sum`, taken over columns whose largest logit is `largest`. Columns that
// are all -inf add nothing; NaN and inf end in NaN.
LAYERTRACER_MATH void add_columns(LensState& state, float largest, double sum) {
  if (largest == -static_cast<float>(__builtin_huge_val())) {
    state.sum += sum;  // 0, or NaN where a logit is
    return;
  }
  const auto exact = static_cast<double>(largest);
  if (exact > state.largest) {
    const bool first = state.sum == 0.0;
    state.sum = first ? sum : state.sum * std::exp(state.largest - exact) + sum;
    state.largest = exact;
  } else {
    state.sum += sum * std::exp(exact - state.largest);
  }
}

}  // namespace layertracer
