// What the GPU kernels share. No atomics anywhere, so the order of every sum is fixed.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include "chunks.h"

// The tests run the kernels on a CPU, where these two are defined otherwise.
#ifndef LAYERTRACER_LAUNCH
#define LAYERTRACER_LAUNCH(kernel, blocks, stream, ...)                                      \
  kernel<<<static_cast<unsigned>(blocks), kThreads, 0, static_cast<cudaStream_t>(stream)>>>( \
      __VA_ARGS__)
#define LAYERTRACER_SHARED(type, name, count) __shared__ type name[count]
#endif

namespace layertracer {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / 32;

__device__ __forceinline__ float load(const float* data, int64_t i) { return data[i]; }
__device__ __forceinline__ float load(const __nv_bfloat16* data, int64_t i) {
  return __bfloat162float(data[i]);
}
__device__ __forceinline__ float load(const __half* data, int64_t i) {
  return __half2float(data[i]);
}

// Calls `use(pointer)` with the data as what it is.
template <typename Use>
__device__ __forceinline__ void with_type(const void* data, DType dtype, Use use) {
  if (dtype == DType::kFloat32) {
    use(static_cast<const float*>(data));
  } else if (dtype == DType::kBFloat16) {
    use(static_cast<const __nv_bfloat16*>(data));
  } else {
    use(static_cast<const __half*>(data));
  }
}

// Moves a struct of doubles down the warp by `offset` threads.
template <typename S>
__device__ __forceinline__ S shuffle_down(const S& value, int offset) {
  constexpr int kFields = sizeof(S) / sizeof(double);
  double fields[kFields];
  memcpy(fields, &value, sizeof value);
#pragma unroll
  for (int i = 0; i < kFields; ++i) fields[i] = __shfl_down_sync(0xffffffffu, fields[i], offset);
  S moved;
  memcpy(&moved, fields, sizeof moved);
  return moved;
}

// Merges the threads' values in a fixed order; thread 0 returns the result.
template <typename S>
__device__ S reduce_block(S value) {
  LAYERTRACER_SHARED(double, shared, kWarps * sizeof(S) / sizeof(double));
  auto* of_warps = reinterpret_cast<S*>(shared);
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2) value.merge(shuffle_down(value, offset));
  if (threadIdx.x % 32 == 0) of_warps[threadIdx.x / 32] = value;
  __syncthreads();
  if (threadIdx.x == 0) {
    for (int warp = 1; warp < kWarps; ++warp) value.merge(of_warps[warp]);
  }
  return value;
}

// One block a layer: merges the layer's chunks.
template <typename S>
__global__ void __launch_bounds__(kThreads)
    reduce_layers(const S* partial, const int64_t* first, double* out) {
  const int64_t layer = blockIdx.x;
  S sums{};
  for (int64_t i = first[layer] + threadIdx.x; i < first[layer + 1]; i += kThreads) {
    sums.merge(partial[i]);
  }
  sums = reduce_block(sums);
  if (threadIdx.x == 0) sums.write(out + layer * S::kFields);
}

}  // namespace layertracer
