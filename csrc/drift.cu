#include "device.cuh"
#include "drift.h"

namespace layertracer {
namespace {

// Sixteen bytes of the wider type a thread and step, if both addresses allow it.
template <typename X, typename R>
__device__ __forceinline__ void read(Drift& sums, const X* x, const R* reference, int64_t count) {
  constexpr int kVector = 4;
  struct alignas(kVector * sizeof(X)) PackedX {
    X parts[kVector];
  };
  struct alignas(kVector * sizeof(R)) PackedR {
    R parts[kVector];
  };
  const bool aligned = reinterpret_cast<uintptr_t>(x) % sizeof(PackedX) == 0 &&
                       reinterpret_cast<uintptr_t>(reference) % sizeof(PackedR) == 0;
  const int64_t vectors = aligned ? count / kVector : 0;
  for (int64_t i = threadIdx.x; i < vectors; i += kThreads) {
    const PackedX of_x = reinterpret_cast<const PackedX*>(x)[i];
    const PackedR of_reference = reinterpret_cast<const PackedR*>(reference)[i];
#pragma unroll
    for (int j = 0; j < kVector; ++j) sums.add(load(of_x.parts, j), load(of_reference.parts, j));
  }
  for (int64_t i = vectors * kVector + threadIdx.x; i < count; i += kThreads) {
    sums.add(load(x, i), load(reference, i));
  }
}

__global__ void __launch_bounds__(kThreads) reduce_pairs(const Chunk* chunks, Drift* partial) {
  const Chunk chunk = chunks[blockIdx.x];
  Drift sums;
  with_type(chunk.data, chunk.dtype, [&](auto* x) {
    with_type(chunk.reference, chunk.reference_dtype,
              [&](auto* reference) { read(sums, x, reference, chunk.count); });
  });
  sums = reduce_block(sums);
  if (threadIdx.x == 0) partial[blockIdx.x] = sums.weighted(chunk.weight);
}

}  // namespace

void drift_cuda(const Chunk* chunks, int64_t num_chunks, const int64_t* first, int64_t num_layers,
                Drift* partial, double* out, void* stream) {
  if (num_chunks > 0) LAYERTRACER_LAUNCH(reduce_pairs, num_chunks, stream, chunks, partial);
  if (num_layers > 0) {
    LAYERTRACER_LAUNCH(reduce_layers<Drift>, num_layers, stream, partial, first, out);
  }
}

}  // namespace layertracer
