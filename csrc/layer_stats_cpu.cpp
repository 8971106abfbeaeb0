#include <cmath>
#include <cstring>

#include "layer_stats.h"

// One function a data type, compiled for several instruction sets and chosen when loaded: the
// package then runs on any x86-64 and still reads at the speed of memory.
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && \
    !defined(__SANITIZE_ADDRESS__)
#define LAYERTRACER_CLONES \
  __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define LAYERTRACER_CLONES
#endif
#define LAYERTRACER_INLINE inline __attribute__((always_inline))

namespace layertracer {
namespace {

constexpr int kLanes = 16;

LAYERTRACER_INLINE float from_bits(uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

struct Float32 {
  using Storage = float;
  static LAYERTRACER_INLINE float load(float value) { return value; }
};

struct BFloat16 {
  using Storage = uint16_t;
  static LAYERTRACER_INLINE float load(uint16_t bits) {
    return from_bits(static_cast<uint32_t>(bits) << 16);
  }
};

struct Float16 {
  using Storage = uint16_t;
  // Moves exponent and fraction into float32's place and corrects the bias by a product, which is
  // right for subnormal numbers too; infinities and NaNs get float32's exponent.
  static LAYERTRACER_INLINE float load(uint16_t bits) {
    const uint32_t magnitude = static_cast<uint32_t>(bits & 0x7fff) << 13;
    const float scaled = from_bits(magnitude) * 0x1p112f;
    return (bits & 0x7c00) == 0x7c00 ? from_bits(magnitude | 0x7f800000) : scaled;
  }
};

struct Lanes {
  double squares[kLanes] = {};
  float largest[kLanes] = {};
  int32_t nonfinite[kLanes] = {};
};

template <typename T>
LAYERTRACER_INLINE void add(Lanes& lanes, int lane, typename T::Storage stored) {
  const float value = T::load(stored);
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
    for (int lane = 0; lane < kLanes; ++lane) add<T>(lanes, lane, elements[i + lane]);
  }
  for (int lane = 0; i < count; ++i, ++lane) add<T>(lanes, lane, elements[i]);
  Stats stats{0.0, 0.0, 0.0};
  for (int lane = 0; lane < kLanes; ++lane) {
    stats.sum_of_squares += lanes.squares[lane];
    stats.max_abs = std::fmax(stats.max_abs, static_cast<double>(lanes.largest[lane]));
    stats.nonfinite += lanes.nonfinite[lane];
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

}  // namespace

Stats chunk_stats_cpu(const Chunk& chunk) {
  switch (chunk.dtype) {
    case DType::kBFloat16:
      return reduce_bfloat16(chunk.data, chunk.count);
    case DType::kFloat16:
      return reduce_float16(chunk.data, chunk.count);
    default:
      return reduce_float32(chunk.data, chunk.count);
  }
}

}  // namespace layertracer
