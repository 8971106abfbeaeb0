// One block a row of logits.
#include "device.cuh"
#include "lens.h"

namespace layertracer {
namespace {

struct Columns : LensState {
  __device__ void merge(const Columns& other) {
    add_columns(*this, static_cast<float>(other.largest), other.sum);
  }
};

struct Sum {
  double value;
  __device__ void merge(const Sum& other) { value += other.value; }
};

template <typename T>
__device__ __forceinline__ const T* row_of(const T* logits, int64_t columns) {
  return logits + static_cast<int64_t>(blockIdx.x) * columns;
}

// Each thread takes eight columns at a time, so that it rescales its sum rarely.
template <typename T>
__device__ __forceinline__ void update(Columns& own, const T* row, int64_t columns) {
  constexpr int kGroup = 8;
  for (int64_t begin = threadIdx.x; begin < columns; begin += kGroup * kThreads) {
    float group[kGroup];
    float largest = -INFINITY;
#pragma unroll
    for (int i = 0; i < kGroup; ++i) {
      const int64_t column = begin + i * kThreads;
      group[i] = column < columns ? load(row, column) : -INFINITY;
      largest = group[i] > largest ? group[i] : largest;
    }
    const float base = largest == -INFINITY ? 0.0f : largest;
    float sum = 0.0f;
#pragma unroll
    for (int i = 0; i < kGroup; ++i) sum += exp_negative(group[i] - base);
    add_columns(own, largest, static_cast<double>(sum));
  }
}

__global__ void __launch_bounds__(kThreads)
    lens_rows(Logits logits, const int64_t* targets, int64_t first_column, LensState* state) {
  Columns own;
  own.largest = -INFINITY;
  own.sum = 0.0;
  own.target = -INFINITY;
  with_type(logits.data, logits.dtype,
            [&](auto* data) { update(own, row_of(data, logits.columns), logits.columns); });
  own = reduce_block(own);
  if (threadIdx.x != 0) return;
  LensState row = state[blockIdx.x];
  add_columns(row, static_cast<float>(own.largest), own.sum);
  const int64_t target = targets[blockIdx.x] - first_column;
  if (0 <= target && target < logits.columns) {
    with_type(logits.data, logits.dtype,
              [&](auto* data) { row.target = load(row_of(data, logits.columns), target); });
  }
  state[blockIdx.x] = row;
}

__global__ void __launch_bounds__(kThreads)
    js_rows(Logits p, Logits q, const double* log_sum_p, const double* log_sum_q, double* out) {
  const double p_sum = log_sum_p[blockIdx.x];
  const double q_sum = log_sum_q[blockIdx.x];
  const RowPair pair = row_pair(p_sum, q_sum);
  Sum own{0.0};
  with_type(p.data, p.dtype, [&](auto* data) {
    const auto* p_row = row_of(data, p.columns);
    const auto* q_row = row_of(static_cast<decltype(data)>(q.data), q.columns);
    for (int64_t i = threadIdx.x; i < p.columns; i += kThreads) {
      own.value += static_cast<double>(js_term(pair, load(p_row, i), load(q_row, i)));
    }
  });
  const Sum sum = reduce_block(own);
  if (threadIdx.x == 0) {
    out[blockIdx.x] = std::isfinite(p_sum) && std::isfinite(q_sum) ? sum.value : NAN;
  }
}

}  // namespace

void lens_update_cuda(const Logits& logits, const int64_t* targets, int64_t first_column,
                      LensState* state, void* stream) {
  if (logits.rows == 0) return;
  LAYERTRACER_LAUNCH(lens_rows, logits.rows, stream, logits, targets, first_column, state);
}

void js_cuda(const Logits& p, const Logits& q, const double* log_sum_p, const double* log_sum_q,
             double* out, void* stream) {
  if (p.rows == 0) return;
  LAYERTRACER_LAUNCH(js_rows, p.rows, stream, p, q, log_sum_p, log_sum_q, out);
}

}  // namespace layertracer
