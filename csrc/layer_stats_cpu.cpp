#include <cmath>

#include "layer_stats.h"
#include "simd.h"

namespace layertracer {
namespace {

struct Lanes {
  double squares[kLanes] = {};
  float largest[kLanes] = {};
  int32_t nonfinite[kLanes] = {};
};

LAYERTRACER_INLINE void add(Lanes& lanes, int lane, float value) {
  const float magnitude = std::fabs(value);
  const bool finite = magnitude <= 0x1.fffffep127f;  // false for NaN
  const float counted = finite ? magnitude : 0.0f;
  lanes.squares[lane] += static_cast<double>(counted) * static_cast<double>(counted);
  lanes.largest[lane] = counted > lanes.largest[lane] ? counted : lanes.largest[lane];
  lanes.nonfinite[lane] += finite ? 0 : 1;
}

template <typename T>
LAYERTRACER_INLINE Stats reduce(const void* data, int64_t count) {
  const auto* elements = static_cast<const typename T::Storage*>(data);
  Lanes lanes;
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
#pragma GCC ivdep
    for (int lane = 0; lane < kLanes; ++lane) add(lanes, lane, T::load(elements[i + lane]));
  }
  for (int lane = 0; i < count; ++i, ++lane) add(lanes, lane, T::load(elements[i]));
  Stats stats;
  for (int lane = 0; lane < kLanes; ++lane) {
    stats.merge({lanes.squares[lane], static_cast<double>(lanes.largest[lane]),
                 static_cast<double>(lanes.nonfinite[lane])});
  }
  return stats;
}

LAYERTRACER_CLONES Stats reduce_float32(const void* data, int64_t count) {
  return reduce<Float32>(data, count);
}
LAYERTRACER_CLONES Stats reduce_bfloat16(const void* data, int64_t count) {
  return reduce<BFloat16>(data, count);
}
LAYERTRACER_CLONES Stats reduce_float16(const void* data, int64_t count) {
  return reduce<Float16>(data, count);
}

Stats reduce_any(const Chunk& chunk) {
  switch (chunk.dtype) {
    case DType::kBFloat16:
      return reduce_bfloat16(chunk.data, chunk.count);
    case DType::kFloat16:
      return reduce_float16(chunk.data, chunk.count);
    default:
      return reduce_float32(chunk.data, chunk.count);
  }
}

}  // namespace

Stats chunk_stats_cpu(const Chunk& chunk) { return reduce_any(chunk).weighted(chunk.weight); }

}  // namespace layertracer
