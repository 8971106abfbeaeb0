// Statistics of many tensors by layer, in one pass over memory.
#pragma once

#include "chunks.h"

namespace layertracer {

// Of the finite elements: sum of squares and largest absolute value; and how many are not finite.
struct Stats {
  double sum_of_squares = 0.0;
  double max_abs = 0.0;
  double nonfinite = 0.0;

  static constexpr int kFields = 3;

  LAYERTRACER_BOTH void merge(const Stats& other) {
    sum_of_squares += other.sum_of_squares;
    max_abs = other.max_abs > max_abs ? other.max_abs : max_abs;
    nonfinite += other.nonfinite;
  }
  LAYERTRACER_BOTH Stats weighted(double weight) const {
    Stats stats = *this;
    stats.sum_of_squares *= weight;
    stats.max_abs = weight != 0.0 ? max_abs : 0.0;
    stats.nonfinite *= weight;
    return stats;
  }
  LAYERTRACER_BOTH void write(double* row) const {
    row[0] = sum_of_squares;
    row[1] = max_abs;
    row[2] = nonfinite;
  }
};

Stats chunk_stats_cpu(const Chunk& chunk);

// Reduces `num_chunks` chunks (device memory) into `partial` (device, one a chunk), then into
// `out[num_layers][3]` (device), on `stream`; `first` (device) as `first_chunks` gives it.
void layer_stats_cuda(const Chunk* chunks, int64_t num_chunks, const int64_t* first,
                      int64_t num_layers, Stats* partial, double* out, void* stream);

}  // namespace layertracer
