// What a replayed CUDA graph's calls need natively: whether inputs lie where the graph reads them,
// and results handed out over the graph's own memory.
#pragma once

#include <c10/core/TensorImpl.h>

#include "program.h"

namespace dovetail {

// Another tensor over the same memory, with a version counter of its own.
inline at::Tensor share(const at::Tensor& tensor) {
  at::Tensor made = at::detail::make_tensor<c10::TensorImpl>(
      c10::Storage(tensor.storage()), tensor.key_set(), tensor.dtype());
  made.unsafeGetTensorImpl()->set_sizes_and_strides(tensor.sizes(), tensor.strides(),
                                                    tensor.storage_offset());
  return made;
}

}  // namespace dovetail
