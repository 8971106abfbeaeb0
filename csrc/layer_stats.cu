// The statistics on a GPU: one block a chunk, then one block a layer. No atomics, so the order of
// every sum is fixed.
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include "layer_stats.h"

namespace layertracer {
namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / 32;

__device__ __forceinline__ float load(const float* data, int64_t i) { return data[i]; }
__device__ __forceinline__ float load(const __nv_bfloat16* data, int64_t i) {
  return __bfloat162float(data[i]);
}
__device__ __forceinline__ float load(const __half* data, int64_t i) {
  return __half2float(data[i]);
}

__device__ __forceinline__ void add(Stats& stats, float value) {
  const float magnitude = fabsf(value);
  const bool finite = magnitude <= 3.402823466e+38f;  // false for NaN
  const float counted = finite ? magnitude : 0.0f;
  stats.sum_of_squares += static_cast<double>(counted) * static_cast<double>(counted);
  stats.max_abs = fmax(stats.max_abs, static_cast<double>(counted));
  stats.nonfinite += finite ? 0.0 : 1.0;
}

__device__ __forceinline__ void merge(Stats& stats, const Stats& other) {
  stats.sum_of_squares += other.sum_of_squares;
  stats.max_abs = fmax(stats.max_abs, other.max_abs);
  stats.nonfinite += other.nonfinite;
}

// Reads 16 bytes a thread where the address allows, the ends one element at a time.
template <typename T>
__device__ Stats read(const T* data, int64_t count) {
  constexpr int kVector = 16 / sizeof(T);
  Stats stats{0.0, 0.0, 0.0};
  const auto misaligned = static_cast<int64_t>(reinterpret_cast<uintptr_t>(data) % 16);
  const int64_t lead = misaligned ? (16 - misaligned) / static_cast<int64_t>(sizeof(T)) : 0;
  const int64_t head = lead < count ? lead : count;
  for (int64_t i = threadIdx.x; i < head; i += kThreads) add(stats, load(data, i));
  const int64_t vectors = (count - head) / kVector;
  const auto* wide = reinterpret_cast<const uint4*>(data + head);
  for (int64_t i = threadIdx.x; i < vectors; i += kThreads) {
    const uint4 packed = wide[i];
    const T* parts = reinterpret_cast<const T*>(&packed);
#pragma unroll
    for (int j = 0; j < kVector; ++j) add(stats, load(parts, j));
  }
  for (int64_t i = head + vectors * kVector + threadIdx.x; i < count; i += kThreads) {
    add(stats, load(data, i));
  }
  return stats;
}

// Adds over the block in a fixed order; thread 0 holds the sum.
__device__ Stats reduce_block(Stats stats) {
  __shared__ Stats shared[kWarps];
  for (int offset = 16; offset > 0; offset /= 2) {
    Stats other;
    other.sum_of_squares = __shfl_down_sync(0xffffffffu, stats.sum_of_squares, offset);
    other.max_abs = __shfl_down_sync(0xffffffffu, stats.max_abs, offset);
    other.nonfinite = __shfl_down_sync(0xffffffffu, stats.nonfinite, offset);
    merge(stats, other);
  }
  if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = stats;
  __syncthreads();
  if (threadIdx.x == 0) {
    for (int warp = 1; warp < kWarps; ++warp) merge(stats, shared[warp]);
  }
  return stats;
}

__global__ void __launch_bounds__(kThreads) reduce_chunks(const Chunk* chunks, Stats* partial) {
  const Chunk chunk = chunks[blockIdx.x];
  Stats stats{0.0, 0.0, 0.0};
  if (chunk.dtype == DType::kFloat32) {
    stats = read(static_cast<const float*>(chunk.data), chunk.count);
  } else if (chunk.dtype == DType::kBFloat16) {
    stats = read(static_cast<const __nv_bfloat16*>(chunk.data), chunk.count);
  } else {
    stats = read(static_cast<const __half*>(chunk.data), chunk.count);
  }
  stats = reduce_block(stats);
  if (threadIdx.x == 0) {
    stats.sum_of_squares *= chunk.weight;
    stats.max_abs = chunk.weight != 0.0 ? stats.max_abs : 0.0;
    stats.nonfinite *= chunk.weight;
    partial[blockIdx.x] = stats;
  }
}

__global__ void __launch_bounds__(kThreads)
    reduce_layers(const Stats* partial, const int64_t* first, double* out) {
  const int64_t layer = blockIdx.x;
  Stats stats{0.0, 0.0, 0.0};
  for (int64_t i = first[layer] + threadIdx.x; i < first[layer + 1]; i += kThreads) {
    merge(stats, partial[i]);
  }
  stats = reduce_block(stats);
  if (threadIdx.x == 0) {
    out[3 * layer] = stats.sum_of_squares;
    out[3 * layer + 1] = stats.max_abs;
    out[3 * layer + 2] = stats.nonfinite;
  }
}

}  // namespace

void layer_stats_cuda(const Chunk* chunks, int64_t num_chunks, const int64_t* first,
                      int64_t num_layers, Stats* partial, double* out, void* stream) {
  auto* queue = static_cast<cudaStream_t>(stream);
  if (num_chunks > 0) {
    reduce_chunks<<<static_cast<unsigned>(num_chunks), kThreads, 0, queue>>>(chunks, partial);
  }
  if (num_layers > 0) {
    reduce_layers<<<static_cast<unsigned>(num_layers), kThreads, 0, queue>>>(partial, first, out);
  }
}

}  // namespace layertracer
