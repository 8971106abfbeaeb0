#include <cmath>
#include <cstdint>
#include <cstring>

#include "dispatch.h"
#include "layer_stats.h"

#define LAYERTRACER_KERNELS "layer_stats_kernels.inc"
#include "each_target.inc"

namespace layertracer {

Stats chunk_stats_cpu(const Chunk& chunk) {
  return LAYERTRACER_DISPATCH(chunk_stats, chunk).weighted(chunk.weight);
}

}  // namespace layertracer
