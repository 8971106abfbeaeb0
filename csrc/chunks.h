// The work list of the ops that reduce many tensors by layer.
//
// Tensors are cut into chunks of a size that depends on nothing but their sizes. Each chunk is
// reduced on its own and the chunks of a layer are added in their order, so the result is the same,
// bit by bit, for any number of threads or blocks.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#ifdef __CUDACC__
#define LAYERTRACER_BOTH __host__ __device__
#else
#define LAYERTRACER_BOTH
#endif

namespace layertracer {

enum class DType : int32_t { kFloat32, kBFloat16, kFloat16 };

// A piece of one tensor, or of a tensor and the reference it is compared with. `weight` multiplies
// its sums and counts: 0 for a replica that another rank counts.
struct Chunk {
  const void* data;
  const void* reference;
  int64_t count;
  int32_t layer;
  DType dtype;
  DType reference_dtype;
  double weight;
};

constexpr int64_t kChunkElements = 1 << 16;

inline int64_t size_of(DType dtype) { return dtype == DType::kFloat32 ? 4 : 2; }

// Cuts whole tensors into chunks, those of a layer next to each other in the order of the tensors.
inline std::vector<Chunk> cut(std::vector<Chunk> tensors) {
  std::stable_sort(tensors.begin(), tensors.end(),
                   [](const Chunk& a, const Chunk& b) { return a.layer < b.layer; });
  std::vector<Chunk> chunks;
  for (const Chunk& tensor : tensors) {
    for (int64_t begin = 0; begin < tensor.count; begin += kChunkElements) {
      Chunk chunk = tensor;
      chunk.data = static_cast<const char*>(tensor.data) + begin * size_of(tensor.dtype);
      if (tensor.reference != nullptr) {
        chunk.reference =
            static_cast<const char*>(tensor.reference) + begin * size_of(tensor.reference_dtype);
      }
      chunk.count = std::min(kChunkElements, tensor.count - begin);
      chunks.push_back(chunk);
    }
  }
  return chunks;
}

// Where each layer's chunks begin: those of layer l are `first[l]` up to `first[l + 1]`.
inline std::vector<int64_t> first_chunks(const std::vector<Chunk>& chunks, int64_t num_layers) {
  std::vector<int64_t> first(num_layers + 1, 0);
  for (const Chunk& chunk : chunks) ++first[chunk.layer + 1];
  for (int64_t layer = 0; layer < num_layers; ++layer) first[layer + 1] += first[layer];
  return first;
}

}  // namespace layertracer
