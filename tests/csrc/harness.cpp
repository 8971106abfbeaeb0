// The kernels, compiled for the CPU, with plain C entries: of the CPU ops and of the emulated GPU
// ops, which take the same arguments.
#include "dispatch.h"
#include "drift.cu"
#include "layer_stats.cu"
#include "lens.cu"

using namespace layertracer;

namespace {

template <typename S>
void reduce(const std::vector<Chunk>& chunks, int64_t num_layers, double* out,
            S (*reduce_chunk)(const Chunk&)) {
  std::vector<S> sums(num_layers);
  for (const Chunk& chunk : chunks) sums[chunk.layer].merge(reduce_chunk(chunk));
  for (int64_t layer = 0; layer < num_layers; ++layer) sums[layer].write(out + S::kFields * layer);
}

template <typename S, typename Launch>
void reduce_emulated(const std::vector<Chunk>& chunks, int64_t num_layers, double* out,
                     Launch launch) {
  const std::vector<int64_t> first = first_chunks(chunks, num_layers);
  std::vector<S> partial(chunks.size());
  launch(chunks.data(), static_cast<int64_t>(chunks.size()), first.data(), num_layers,
         partial.data(), out, nullptr);
}

}  // namespace

extern "C" {

// Makes the CPU ops use an instruction set, 0 to 2; returns 0 if this machine does not have it.
int set_target(int wanted) {
#ifdef LAYERTRACER_TARGETS
  if (wanted > static_cast<int>(find_target())) return 0;
  target = static_cast<Target>(wanted);
  return 1;
#else
  return wanted == 0;
#endif
}

void set_reverse(int reverse) { emulator::reverse = reverse != 0; }

void layer_stats(const Chunk* tensors, int64_t count, int64_t num_layers, double* out) {
  reduce(cut({tensors, tensors + count}), num_layers, out, chunk_stats_cpu);
}

void layer_stats_emulated(const Chunk* tensors, int64_t count, int64_t num_layers, double* out) {
  reduce_emulated<Stats>(cut({tensors, tensors + count}), num_layers, out, layer_stats_cuda);
}

void drift(const Chunk* tensors, int64_t count, int64_t num_layers, double* out) {
  reduce(cut({tensors, tensors + count}), num_layers, out, chunk_drift_cpu);
}

void drift_emulated(const Chunk* tensors, int64_t count, int64_t num_layers, double* out) {
  reduce_emulated<Drift>(cut({tensors, tensors + count}), num_layers, out, drift_cuda);
}

void lens(const Logits* logits, const int64_t* targets, int64_t first_column, LensState* state) {
  for (int64_t row = 0; row < logits->rows; ++row) {
    lens_update_row_cpu(*logits, row, targets[row] - first_column, state[row]);
  }
}

void lens_emulated(const Logits* logits, const int64_t* targets, int64_t first_column,
                   LensState* state) {
  lens_update_cuda(*logits, targets, first_column, state, nullptr);
}

void divergence(const Logits* p, const Logits* q, const double* p_sums, const double* q_sums,
                double* out) {
  for (int64_t row = 0; row < p->rows; ++row) {
    out[row] = js_row_cpu(*p, *q, row, p_sums[row], q_sums[row]);
  }
}

void divergence_emulated(const Logits* p, const Logits* q, const double* p_sums,
                         const double* q_sums, double* out) {
  js_cuda(*p, *q, p_sums, q_sums, out, nullptr);
}
}
