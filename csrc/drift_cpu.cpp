#include "drift.h"
#include "simd.h"

namespace layertracer {
namespace {

constexpr int64_t kBlock = 1024;  // elements: both blocks of float32 stay in the first cache

template <typename T>
LAYERTRACER_INLINE void widen(const void* data, int64_t begin, int64_t count, float* block) {
  const auto* elements = static_cast<const typename T::Storage*>(data) + begin;
  for (int64_t i = 0; i < count; ++i) block[i] = T::load(elements[i]);
}

LAYERTRACER_CLONES void widen_bfloat16(const void* data, int64_t begin, int64_t n, float* block) {
  widen<BFloat16>(data, begin, n, block);
}
LAYERTRACER_CLONES void widen_float16(const void* data, int64_t begin, int64_t n, float* block) {
  widen<Float16>(data, begin, n, block);
}

// Returns the elements as float32: in place where they are that, in `block` where not.
const float* widened(const void* data, DType dtype, int64_t begin, int64_t count, float* block) {
  if (dtype == DType::kFloat32) return static_cast<const float*>(data) + begin;
  if (dtype == DType::kBFloat16) {
    widen_bfloat16(data, begin, count, block);
  } else {
    widen_float16(data, begin, count, block);
  }
  return block;
}

struct Lanes {
  double dot[kLanes] = {};
  double x_squares[kLanes] = {};
  double reference_squares[kLanes] = {};
  double difference_squares[kLanes] = {};
};

LAYERTRACER_INLINE void add(Lanes& lanes, int lane, double x, double reference) {
  const double difference = x - reference;
  lanes.dot[lane] += x * reference;
  lanes.x_squares[lane] += x * x;
  lanes.reference_squares[lane] += reference * reference;
  lanes.difference_squares[lane] += difference * difference;
}

LAYERTRACER_CLONES void add_block(const float* x, const float* reference, int64_t count,
                                  Lanes& sums) {
  Lanes lanes = sums;
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
#pragma GCC ivdep
    for (int lane = 0; lane < kLanes; ++lane) add(lanes, lane, x[i + lane], reference[i + lane]);
  }
  for (int lane = 0; i < count; ++i, ++lane) add(lanes, lane, x[i], reference[i]);
  sums = lanes;
}

}  // namespace

Drift chunk_drift_cpu(const Chunk& chunk) {
  float x_block[kBlock];
  float reference_block[kBlock];
  Lanes lanes;
  for (int64_t begin = 0; begin < chunk.count; begin += kBlock) {
    const int64_t count = std::min(kBlock, chunk.count - begin);
    add_block(widened(chunk.data, chunk.dtype, begin, count, x_block),
              widened(chunk.reference, chunk.reference_dtype, begin, count, reference_block), count,
              lanes);
  }
  Drift drift;
  for (int lane = 0; lane < kLanes; ++lane) {
    drift.merge({lanes.dot[lane], lanes.x_squares[lane], lanes.reference_squares[lane],
                 lanes.difference_squares[lane]});
  }
  return drift.weighted(chunk.weight);
}

}  // namespace layertracer
