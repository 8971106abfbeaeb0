// Chooses, for the processor it runs on, among what each_target.inc compiled.
#pragma once

#ifdef __x86_64__
#include <immintrin.h>
#endif

#define LAYERTRACER_INLINE inline __attribute__((always_inline))
// The warning is about passing vectors between functions; ours are all inlined.
#pragma GCC diagnostic ignored "-Wpsabi"

namespace layertracer {

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#define LAYERTRACER_TARGETS
#endif

enum class Target { kBaseline, kAvx2, kAvx512 };

#ifdef LAYERTRACER_TARGETS
inline Target find_target() {
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
                    __builtin_cpu_supports("f16c");
  const bool avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
  return avx2 && avx512 ? Target::kAvx512 : avx2 ? Target::kAvx2 : Target::kBaseline;
}

inline Target target = find_target();  // tests set it

#define LAYERTRACER_DISPATCH(function, ...)                  \
  (target == Target::kAvx512 ? avx512::function(__VA_ARGS__) \
   : target == Target::kAvx2 ? avx2::function(__VA_ARGS__)   \
                             : baseline::function(__VA_ARGS__))
#else
#define LAYERTRACER_DISPATCH(function, ...) baseline::function(__VA_ARGS__)
#endif

}  // namespace layertracer
