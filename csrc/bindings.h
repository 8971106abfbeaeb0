// What the files that register the ops with torch share. Arguments are checked there; the kernels
// trust them.
#pragma once

#include <torch/library.h>

#include "chunks.h"

namespace layertracer {

// Names an argument in messages: `tensors[3]`.
inline std::string at_index(const char* name, size_t index) {
  return std::string(name) + "[" + std::to_string(index) + "]";
}

inline DType dtype_of(const at::Tensor& tensor, const std::string& name) {
  switch (tensor.scalar_type()) {
    case at::kFloat:
      return DType::kFloat32;
    case at::kBFloat16:
      return DType::kBFloat16;
    case at::kHalf:
      return DType::kFloat16;
    default:
      TORCH_CHECK_TYPE(false, name, " is ", tensor.scalar_type(),
                       "; it must be float32, bfloat16 or float16");
  }
}

}  // namespace layertracer
