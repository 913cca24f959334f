// The state of one call of a plan, lent to it for as long as it lasts.
#pragma once

#include <algorithm>
#include <utility>

#include "program.h"
#include "slab.h"

namespace dovetail {

struct Slot {
  void* data = nullptr;             // the first element, where a kernel may want it
  c10::TensorImpl* impl = nullptr;  // borrowed from `owned`, the caller or the program
  at::Tensor owned;
};

// A copy of an input that a launch may write to, in whose stead it is given to the kernel.
struct WrittenCopy {
  SlotIndex slot;
  at::Tensor memory;
  at::Tensor copy;
};

// The state of one call.
struct Frame {
  std::vector<int64_t> values;
  std::vector<Slot> slots;
  // By the number of the slab:
  std::vector<Block> blocks;  // on the CPU
  std::vector<c10::DataPtr> device_slabs;
  std::vector<char*> slab_data;
  std::vector<char> slab_taken;  // whether that of each slab is its memory in this call
  c10::DataPtr scratch;  // of GPU kernels, one after the other
  size_t scratch_bytes = 0;
  // Of inputs that do not begin where kernels expect it: of those read, and in one launch written.
  std::vector<at::Tensor> copies;
  std::vector<WrittenCopy> written_copies;
  c10::Stack stack;
  std::vector<void*> pointers;
  std::vector<int64_t> integers;
  void* cuda_stream = nullptr;

  explicit Frame(const Program& program)
      : values(program.values),
        slots(program.slots.size()),
        blocks(program.slabs.size()),
        device_slabs(program.slabs.size()),
        slab_data(program.slabs.size()),
        slab_taken(program.slabs.size()) {
    for (const auto& [slot, tensor] : program.constants) {
      slots[slot].impl = tensor.unsafeGetTensorImpl();
      slots[slot].data = slots[slot].impl->has_storage() ? slots[slot].impl->mutable_data() : nullptr;
    }
  }

  void give_slab_back(size_t slab) {
    slab_pool().give_back(std::exchange(blocks[slab], {}));
    device_slabs[slab].clear();
    slab_taken[slab] = false;
  }

  void release(const Program& program) {
    for (Slot& slot : slots) {
      slot.owned.reset();
      slot.impl = nullptr;
      slot.data = nullptr;
    }
    for (const auto& [slot, tensor] : program.constants) {
      slots[slot].impl = tensor.unsafeGetTensorImpl();
      slots[slot].data = slots[slot].impl->has_storage() ? slots[slot].impl->mutable_data() : nullptr;
    }
    stack.clear();
    for (size_t slab = 0; slab < slab_taken.size(); ++slab) {
      if (slab_taken[slab]) give_slab_back(slab);
    }
    scratch.clear();
    scratch_bytes = 0;
    copies.clear();
    written_copies.clear();
  }
};

inline std::unique_ptr<Frame> take_frame(Program& program) {
  {
    std::lock_guard<std::mutex> lock(program.mutex);
    if (!program.idle_frames.empty()) {
      std::unique_ptr<Frame> frame = std::move(program.idle_frames.back());
      program.idle_frames.pop_back();
      return frame;
    }
  }
  return std::make_unique<Frame>(program);
}

inline void give_frame_back(Program& program, std::unique_ptr<Frame> frame) {
  frame->release(program);
  std::lock_guard<std::mutex> lock(program.mutex);
  program.idle_frames.push_back(std::move(frame));
}

// A frame for as long as a scope lasts.
struct BorrowedFrame {
  Program& program;
  std::unique_ptr<Frame> frame = take_frame(program);
  ~BorrowedFrame() { give_frame_back(program, std::move(frame)); }
};

}  // namespace dovetail
