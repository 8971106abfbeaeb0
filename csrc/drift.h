// How far activations are from reference activations, by layer, in one read of each.
#pragma once

#include "chunks.h"

namespace layertracer {

// Sums over the elements of x and its reference r: x r, x^2, r^2, (x - r)^2.
struct Drift {
  double dot = 0.0;
  double x_squares = 0.0;
  double reference_squares = 0.0;
  double difference_squares = 0.0;

  static constexpr int kFields = 4;

  LAYERTRACER_BOTH void add(double x, double reference) {
    const double difference = x - reference;
    dot += x * reference;
    x_squares += x * x;
    reference_squares += reference * reference;
    difference_squares += difference * difference;
  }
  LAYERTRACER_BOTH void merge(const Drift& other) {
    dot += other.dot;
    x_squares += other.x_squares;
    reference_squares += other.reference_squares;
    difference_squares += other.difference_squares;
  }
  LAYERTRACER_BOTH Drift weighted(double weight) const {
    if (weight == 0.0) return Drift{};  // a NaN there is another rank's to report
    Drift drift = *this;
    drift.dot *= weight;
    drift.x_squares *= weight;
    drift.reference_squares *= weight;
    drift.difference_squares *= weight;
    return drift;
  }
  LAYERTRACER_BOTH void write(double* row) const {
    row[0] = dot;
    row[1] = x_squares;
    row[2] = reference_squares;
    row[3] = difference_squares;
  }
};

Drift chunk_drift_cpu(const Chunk& chunk);

// As `layer_stats_cuda`; `out` is `[num_layers][4]`.
void drift_cuda(const Chunk* chunks, int64_t num_chunks, const int64_t* first, int64_t num_layers,
                Drift* partial, double* out, void* stream);

}  // namespace layertracer
