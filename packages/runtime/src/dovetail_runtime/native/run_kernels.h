// Steps that launch generated kernels.
#pragma once

#include <c10/core/DynamicCast.h>

#include <algorithm>

#include "run.h"

namespace dovetail {

inline void Runner::execute(LaunchCpp& step) {
  int64_t work = values()[step.work];
  if (work <= 0) return;
  frame_.pointers.resize(step.tensors.size());
  void** pointers = frame_.pointers.data();
  for (size_t i = 0; i < step.tensors.size(); ++i) {
    pointers[i] = frame_.slots[step.tensors[i]].data;
  }
  frame_.integers.resize(step.sizes.size());
  int64_t* sizes = frame_.integers.data();
  for (size_t i = 0; i < step.sizes.size(); ++i) sizes[i] = values()[step.sizes[i]];
  CppFunction function = step.function;
  if (work <= step.grain) {
    function(pointers, sizes, 0, work);
  } else {
    at::parallel_for(0, work, step.grain, [=](int64_t begin, int64_t end) {
      function(pointers, sizes, begin, end);
    });
  }
}

inline void Runner::execute(LaunchTriton& step) {
  int64_t grid[3];
  for (int d = 0; d < 3; ++d) {
    grid[d] = values()[step.grid[d]];
    if (grid[d] <= 0) return;
  }
  size_t count = step.arguments.size(), copies = frame_.copies.size();
  // Each parameter's value, those of the appended ones (scratch memory, null), then the pointers
  // to them that the driver wants.
  frame_.integers.assign(count + 2, 0);
  if (step.scratch_bytes != 0) {
    void* scratch = scratch_of(static_cast<size_t>(step.scratch_bytes * grid[0] * grid[1] * grid[2]));
    frame_.integers[count] = reinterpret_cast<int64_t>(scratch);
  }
  frame_.pointers.resize(count + step.scratch_parameters);
  for (size_t i = 0; i < count; ++i) {
    const TritonArgument& argument = step.arguments[i];
    if (argument.kind == TritonArgument::Integer) {
      frame_.integers[i] = values()[argument.index];  // little endian: the low half is an i32
    } else if (argument.kind == TritonArgument::Element) {
      frame_.integers[i] = element_in_memory(argument.index);
    } else {
      void* data = frame_.slots[argument.index].data;
      bool checked = argument.kind == TritonArgument::AlignedPointer;
      if (checked && reinterpret_cast<uintptr_t>(data) % 16 != 0) {
        data = aligned_copy(argument.index, step.scratch_bytes != 0);
      }
      frame_.integers[i] = reinterpret_cast<int64_t>(data);
    }
    frame_.pointers[i] = &frame_.integers[i];
  }
  for (int i = 0; i < step.scratch_parameters; ++i) {
    frame_.pointers[count + i] = &frame_.integers[count + (i == 0 ? 0 : 1)];
  }
  // Behind a copy, which need not be a kernel, a launch waits as any other.
  bool early = step.early && copies == frame_.copies.size() && frame_.written_copies.empty();
  launch_on_gpu(step, grid, frame_.pointers.data(), frame_.cuda_stream, early);
  if (!frame_.written_copies.empty()) copy_back();
}

// The one element of a tensor on the CPU, a float as its bits.
inline int64_t Runner::element_in_memory(SlotIndex index) {
  const Slot& slot = frame_.slots[index];
  const SlotInfo& info = program_.slots[index];
  TORCH_CHECK(slot.data != nullptr, "tensor '", info.name, "' is undefined");
  c10::ScalarType dtype =
      slot.impl != nullptr ? slot.impl->dtype().toScalarType() : info.spec->dtype;
  if (!c10::isFloatingType(dtype)) return c10::fetch_and_cast<int64_t>(dtype, slot.data);
  return as_bits(c10::fetch_and_cast<double>(dtype, slot.data));
}

// Kernels are compiled for memory that begins at a multiple of 16 bytes, as that of the first
// call's tensors did: an input that begins elsewhere (a row of odd length further on) is copied, and
// what the launch writes to the copy is copied back after it. What is read element by element (an
// expanded input, a view made in the call) is taken as it lies, but never by descriptors.
inline void* Runner::aligned_copy(SlotIndex index, bool by_descriptor) {
  const SlotInfo& info = program_.slots[index];
  at::Tensor tensor = tensor_of(materialize(index));
  bool may_copy = info.input != nullptr;
  for (int64_t d = 0; d < tensor.dim(); ++d) {
    may_copy &= tensor.size(d) <= 1 || tensor.stride(d) != 0;  // not expanded
  }
  if (!may_copy) {
    TORCH_CHECK(!by_descriptor, "the memory of '", info.name, "' begins at ",
                reinterpret_cast<uintptr_t>(frame_.slots[index].data),
                ", and not at a multiple of 16 bytes: pass a copy of this tensor (x.clone())");
    return frame_.slots[index].data;
  }
  for (const WrittenCopy& written : frame_.written_copies) {
    if (written.slot == index) return written.copy.mutable_data_ptr();
  }
  c10::DispatchKeySet keys(c10::DispatchKey::CUDA);
  at::Tensor copy(at::detail::empty_strided_generic(
      tensor.sizes(), tensor.strides(), c10::GetAllocator(c10::kCUDA), keys,
      tensor.scalar_type()));
  copy.copy_(tensor);
  const std::vector<SlotIndex>& mutated = program_.mutated;
  if (std::find(mutated.begin(), mutated.end(), index) != mutated.end()) {
    frame_.written_copies.push_back({index, tensor, copy});
  } else {
    frame_.copies.push_back(copy);
  }
  return copy.mutable_data_ptr();
}

// Gives what the last launch wrote to copies to the memory that they stand for.
inline void Runner::copy_back() {
  for (const WrittenCopy& written : frame_.written_copies) written.memory.copy_(written.copy);
  frame_.written_copies.clear();
}

// Memory that a launch works in: the launches of a call share it, as each begins when the one
// before has ended; calls do not, as each holds on to its own. The allocator aligns it to 512
// bytes, and in a recording gives it from the graph's memory.
inline void* Runner::scratch_of(size_t bytes) {
  if (bytes > frame_.scratch_bytes) {
    frame_.scratch = c10::GetAllocator(c10::kCUDA)->allocate(bytes);
    frame_.scratch_bytes = bytes;
  }
  return frame_.scratch.get();
}

}  // namespace dovetail
