#include "device.cuh"
#include "layer_stats.h"

namespace layertracer {
namespace {

// What a thread keeps: float64 for the sum only, which is what the arithmetic units can follow.
struct Running {
  double squares = 0.0;
  float largest = 0.0f;
  int32_t nonfinite = 0;

  __device__ __forceinline__ void add(float value) {
    const float magnitude = fabsf(value);
    const bool finite = magnitude <= 3.402823466e+38f;  // false for NaN
    const float counted = finite ? magnitude : 0.0f;
    squares += static_cast<double>(counted) * static_cast<double>(counted);
    largest = fmaxf(largest, counted);
    nonfinite += finite ? 0 : 1;
  }
};

template <typename T>
__device__ __forceinline__ void add_vector(Running& running, const uint4& packed) {
  T parts[16 / sizeof(T)];
  memcpy(parts, &packed, sizeof packed);
#pragma unroll
  for (int i = 0; i < static_cast<int>(16 / sizeof(T)); ++i) running.add(load(parts, i));
}

// Reads 16 bytes a thread where the address allows, four in flight; the ends one by one.
template <typename T>
__device__ __forceinline__ void read(Running& running, const T* data, int64_t count) {
  constexpr int kVector = 16 / sizeof(T);
  constexpr int kInFlight = 4;
  const auto misaligned = static_cast<int64_t>(reinterpret_cast<uintptr_t>(data) % 16);
  const int64_t lead = misaligned ? (16 - misaligned) / static_cast<int64_t>(sizeof(T)) : 0;
  const int64_t head = lead < count ? lead : count;
  if (threadIdx.x < head) running.add(load(data, threadIdx.x));
  const int64_t vectors = (count - head) / kVector;
  const auto* wide = reinterpret_cast<const uint4*>(data + head);
  int64_t i = threadIdx.x;
  for (; i + (kInFlight - 1) * kThreads < vectors; i += kInFlight * kThreads) {
    uint4 packed[kInFlight];
#pragma unroll
    for (int j = 0; j < kInFlight; ++j) packed[j] = wide[i + j * kThreads];
#pragma unroll
    for (int j = 0; j < kInFlight; ++j) add_vector<T>(running, packed[j]);
  }
  for (; i < vectors; i += kThreads) add_vector<T>(running, wide[i]);
  const int64_t tail = head + vectors * kVector + threadIdx.x;
  if (tail < count) running.add(load(data, tail));
}

__global__ void __launch_bounds__(kThreads) reduce_chunks(const Chunk* chunks, Stats* partial) {
  const Chunk chunk = chunks[blockIdx.x];
  Running running;
  with_type(chunk.data, chunk.dtype, [&](auto* data) { read(running, data, chunk.count); });
  const Stats own{running.squares, static_cast<double>(running.largest),
                  static_cast<double>(running.nonfinite)};
  const Stats sums = reduce_block(own);
  if (threadIdx.x == 0) partial[blockIdx.x] = sums.weighted(chunk.weight);
}

}  // namespace

void layer_stats_cuda(const Chunk* chunks, int64_t num_chunks, const int64_t* first,
                      int64_t num_layers, Stats* partial, double* out, void* stream) {
  if (num_chunks > 0) LAYERTRACER_LAUNCH(reduce_chunks, num_chunks, stream, chunks, partial);
  if (num_layers > 0) {
    LAYERTRACER_LAUNCH(reduce_layers<Stats>, num_layers, stream, partial, first, out);
  }
}

}  // namespace layertracer
