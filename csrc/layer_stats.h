// Statistics of many tensors by layer, in one pass over memory: what the kernels share.
//
// The tensors are cut into chunks of a size that depends on nothing but their sizes. Each chunk is
// reduced on its own and the chunks of a layer are added in their order, so the result is the same,
// bit by bit, for any number of threads or blocks.
#pragma once

#include <cstdint>

namespace layertracer {

enum class DType : int32_t { kFloat32, kBFloat16, kFloat16 };

// A piece of one tensor. `weight` multiplies its sum and count: 0 for a replica that another rank
// counts.
struct Chunk {
  const void* data;
  int64_t count;
  int32_t layer;
  DType dtype;
  double weight;
};

// Of the finite elements: sum of squares and largest absolute value; and how many are not finite.
struct Stats {
  double sum_of_squares;
  double max_abs;
  double nonfinite;
};

constexpr int64_t kChunkElements = 1 << 16;

Stats chunk_stats_cpu(const Chunk& chunk);

#ifdef LAYERTRACER_CUDA
// Reduces `num_chunks` chunks (device memory) into `partial` (device, one a chunk), then into
// `out[num_layers][3]` (device), on `stream`. `first[l] .. first[l + 1]` are the chunks of layer l.
void layer_stats_cuda(const Chunk* chunks, int64_t num_chunks, const int64_t* first,
                      int64_t num_layers, Stats* partial, double* out, void* stream);
#endif

}  // namespace layertracer
