#include <cmath>

#include "lens.h"
#include "simd.h"

namespace layertracer {
namespace {

constexpr int64_t kBlock = 256;  // columns summed up in float32 before they go to float64

template <typename T>
LAYERTRACER_INLINE const typename T::Storage* row_of(const Logits& logits, int64_t row) {
  return static_cast<const typename T::Storage*>(logits.data) + row * logits.columns;
}

LAYERTRACER_INLINE double total(const float* lanes) {
  double sum = 0.0;
  for (int lane = 0; lane < kLanes; ++lane) sum += static_cast<double>(lanes[lane]);
  return sum;
}

// Widens columns `begin` and on into a block, the rest of which is -inf: probability zero.
template <typename T>
LAYERTRACER_INLINE void fill(const typename T::Storage* row, int64_t begin, int64_t columns,
                             float* block) {
  const int64_t count = std::min(kBlock, columns - begin);
  for (int64_t i = 0; i < count; ++i) block[i] = T::load(row[begin + i]);
  for (int64_t i = count; i < kBlock; ++i) block[i] = -INFINITY;
}

template <typename T>
LAYERTRACER_INLINE void update(const Logits& logits, int64_t row, LensState& state) {
  float block[kBlock];
  for (int64_t begin = 0; begin < logits.columns; begin += kBlock) {
    fill<T>(row_of<T>(logits, row), begin, logits.columns, block);
    float largest[kLanes];
    for (float& lane : largest) lane = -INFINITY;
    for (int64_t i = 0; i < kBlock; i += kLanes) {
      for (int lane = 0; lane < kLanes; ++lane) {
        largest[lane] = block[i + lane] > largest[lane] ? block[i + lane] : largest[lane];
      }
    }
    float top = -INFINITY;
    for (float lane : largest) top = lane > top ? lane : top;
    const float base = top == -INFINITY ? 0.0f : top;
    float sums[kLanes] = {};
    for (int64_t i = 0; i < kBlock; i += kLanes) {
      for (int lane = 0; lane < kLanes; ++lane) sums[lane] += exp_negative(block[i + lane] - base);
    }
    add_columns(state, top, total(sums));
  }
}

template <typename T>
LAYERTRACER_INLINE double divergence(const Logits& p, const Logits& q, int64_t row,
                                     const RowPair& pair) {
  float p_block[kBlock];
  float q_block[kBlock];
  double sum = 0.0;
  for (int64_t begin = 0; begin < p.columns; begin += kBlock) {
    fill<T>(row_of<T>(p, row), begin, p.columns, p_block);
    fill<T>(row_of<T>(q, row), begin, q.columns, q_block);
    float sums[kLanes] = {};
    for (int64_t i = 0; i < kBlock; i += kLanes) {
      for (int lane = 0; lane < kLanes; ++lane) {
        sums[lane] += js_term(pair, p_block[i + lane], q_block[i + lane]);
      }
    }
    sum += total(sums);
  }
  return sum;
}

// clang-format off
#define LAYERTRACER_LENS(T, name)                                                              \
  LAYERTRACER_CLONES void update_##name(const Logits& logits, int64_t row, LensState& state) { \
    update<T>(logits, row, state);                                                             \
  }                                                                                            \
  LAYERTRACER_CLONES double divergence_##name(const Logits& p, const Logits& q, int64_t row,   \
                                              const RowPair& pair) {                           \
    return divergence<T>(p, q, row, pair);                                                     \
  }
// clang-format on
LAYERTRACER_LENS(Float32, float32)
LAYERTRACER_LENS(BFloat16, bfloat16)
LAYERTRACER_LENS(Float16, float16)

double logit(const Logits& logits, int64_t row, int64_t column) {
  switch (logits.dtype) {
    case DType::kBFloat16:
      return BFloat16::load(row_of<BFloat16>(logits, row)[column]);
    case DType::kFloat16:
      return Float16::load(row_of<Float16>(logits, row)[column]);
    default:
      return row_of<Float32>(logits, row)[column];
  }
}

}  // namespace

void lens_update_row_cpu(const Logits& logits, int64_t row, int64_t target_column,
                         LensState& state) {
  if (0 <= target_column && target_column < logits.columns) {
    state.target = logit(logits, row, target_column);
  }
  switch (logits.dtype) {
    case DType::kBFloat16:
      return update_bfloat16(logits, row, state);
    case DType::kFloat16:
      return update_float16(logits, row, state);
    default:
      return update_float32(logits, row, state);
  }
}

double js_row_cpu(const Logits& p, const Logits& q, int64_t row, double log_sum_p,
                  double log_sum_q) {
  if (!std::isfinite(log_sum_p) || !std::isfinite(log_sum_q)) return NAN;
  const RowPair pair = row_pair(log_sum_p, log_sum_q);
  switch (p.dtype) {
    case DType::kBFloat16:
      return divergence_bfloat16(p, q, row, pair);
    case DType::kFloat16:
      return divergence_float16(p, q, row, pair);
    default:
      return divergence_float32(p, q, row, pair);
  }
}

}  // namespace layertracer
