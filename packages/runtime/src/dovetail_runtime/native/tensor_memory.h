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

  // Whether memory with this deleter is from here.
  static bool made(c10::DeleterFnPtr deleter) {
    return deleter == &give_back || deleter == c10::GetCPUAllocator()->raw_deleter();
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

// Whether a storage's allocator made its memory, which nobody else can look at then: NumPy's arrays,
// mapped files and the like have other deleters.
inline bool is_plain_memory(const c10::Storage& storage) {
  c10::Allocator* allocator = storage.allocator();
  c10::DeleterFnPtr deleter = storage.data_ptr().get_deleter();
  if (!storage.resizable() || allocator == nullptr || deleter == nullptr) return false;
  return allocator == tensor_memory() ? TensorMemory::made(deleter)
                                      : deleter == allocator->raw_deleter();
}

}  // namespace dovetail
