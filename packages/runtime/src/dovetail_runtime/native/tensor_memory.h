// Memory of tensors that CPU plans make outside of their slabs, results included: large ones come
// from the pool of slabs, and go back to it when the last tensor over them dies.
#pragma once

#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>

#include <cstring>
#include <memory>

#include "slab.h"

namespace dovetail {

class TensorMemory final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    if (bytes < kLarge) return c10::GetCPUAllocator()->allocate(bytes);
    auto block = std::make_unique<Block>(slab_pool().take(bytes));
    void* data = block->data;
    return {data, block.release(), &give_back, c10::Device(c10::kCPU)};
  }

  void copy_data(void* target, const void* source, size_t bytes) const override {
    std::memcpy(target, source, bytes);
  }

 private:
  // What malloc takes from its heap is warm anyway.
  static constexpr size_t kLarge = size_t(1) << 18;

  static void give_back(void* context) {
    std::unique_ptr<Block> block(static_cast<Block*>(context));
    slab_pool().give_back(*block);
  }
};

inline c10::Allocator* tensor_memory() {
  static TensorMemory* memory = new TensorMemory();  // never destroyed: tensors may outlive us
  return memory;
}

}  // namespace dovetail
