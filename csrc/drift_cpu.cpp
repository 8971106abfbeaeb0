#include <cmath>
#include <cstdint>
#include <cstring>

#include "dispatch.h"
#include "drift.h"

#define LAYERTRACER_KERNELS "drift_kernels.inc"
#include "each_target.inc"

namespace layertracer {

Drift chunk_drift_cpu(const Chunk& chunk) {
  return LAYERTRACER_DISPATCH(chunk_drift, chunk).weighted(chunk.weight);
}

}  // namespace layertracer
