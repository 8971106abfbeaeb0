// What the CPU kernels share.
#pragma once

#include <bit>
#include <cstdint>

#include "chunks.h"

// A function is compiled for several instruction sets and the right one is chosen when the library
// is loaded: it then runs on any x86-64 and still reads at the speed of memory. Sanitizers can't
// follow that choice.
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && \
    !defined(__SANITIZE_ADDRESS__)
#define LAYERTRACER_CLONES \
  __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define LAYERTRACER_CLONES
#endif
#define LAYERTRACER_INLINE inline __attribute__((always_inline))

namespace layertracer {

constexpr int kLanes = 16;

struct Float32 {
  using Storage = float;
  static LAYERTRACER_INLINE float load(float value) { return value; }
};

struct BFloat16 {
  using Storage = uint16_t;
  static LAYERTRACER_INLINE float load(uint16_t bits) {
    return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16);
  }
};

struct Float16 {
  using Storage = uint16_t;
  // Moves exponent and fraction into float32's place and corrects the bias by a product, which is
  // right for subnormal numbers too; infinities and NaNs get float32's exponent.
  static LAYERTRACER_INLINE float load(uint16_t bits) {
    const uint32_t sign = static_cast<uint32_t>(bits & 0x8000) << 16;
    const uint32_t magnitude = static_cast<uint32_t>(bits & 0x7fff) << 13;
    const uint32_t scaled = std::bit_cast<uint32_t>(std::bit_cast<float>(magnitude) * 0x1p112f);
    const bool special = (bits & 0x7c00) == 0x7c00;
    return std::bit_cast<float>(sign | (special ? magnitude | 0x7f800000 : scaled));
  }
};

}  // namespace layertracer
