// Steps that give tensors their memory, and what is known of where tensors lie.
#pragma once

#include "run.h"

namespace dovetail {

// The tensor of a slot, made now if only its place in memory was known.
inline c10::TensorImpl* Runner::materialize(SlotIndex index) {
  Slot& slot = frame_.slots[index];
  if (slot.impl != nullptr) return slot.impl;
  const SlotInfo& info = program_.slots[index];
  TORCH_CHECK(info.spec != nullptr, "tensor '", info.name, "' is undefined");
  if (info.root >= 0) {
    c10::TensorImpl* base = materialize(info.root);
    c10::Storage storage = base->storage();
    int64_t moved = moved_bytes(info.root) / info.spec->itemsize;
    set_owned(slot, over_storage(std::move(storage), *info.spec, moved));
    if (!base->is_inference() && !slot.impl->is_inference()) {
      slot.impl->set_version_counter(base->version_counter());
    }
    return slot.impl;
  }
  const Spec& spec = *info.spec;
  int64_t offset = values()[spec.offset];
  char* start = static_cast<char*>(slot.data) - offset * spec.itemsize;
  c10::Storage storage(c10::make_intrusive<c10::StorageImpl>(
      c10::StorageImpl::use_byte_size_t(), c10::SymInt(storage_bytes(spec)),
      c10::DataPtr(start, spec.device), nullptr, /*resizable=*/false));
  set_owned(slot, over_storage(std::move(storage), spec));
  return slot.impl;
}

inline int64_t Runner::storage_bytes(const Spec& spec) {
  int64_t last = 0;
  for (size_t d = 0; d < spec.shape.size(); ++d) {
    int64_t extent = values()[spec.shape[d]];
    if (extent == 0) return 0;
    last += (extent - 1) * values()[spec.stride[d]];
  }
  return (values()[spec.offset] + last + 1) * spec.itemsize;
}

// By how many bytes a tensor begins further on in its storage than the compiler took it to: an
// input may be another piece of a larger tensor than the first call's, a call's result the piece
// that its argument was of another storage; and their views are where they are.
inline int64_t Runner::moved_bytes(SlotIndex index) {
  const SlotInfo& info = program_.slots[index];
  const Spec* seen = info.input != nullptr ? info.input : info.root >= 0 ? info.spec : nullptr;
  c10::TensorImpl* impl = frame_.slots[index].impl;
  if (impl == nullptr) return 0;
  if (info.result) return impl->storage_offset() * static_cast<int64_t>(impl->itemsize());
  if (seen == nullptr) return 0;
  return (impl->storage_offset() - values()[seen->offset]) * seen->itemsize;
}

inline at::Tensor Runner::over_storage(c10::Storage&& storage, const Spec& spec, int64_t moved) {
  Ints shape, stride;
  gather(spec.shape, shape);
  gather(spec.stride, stride);
  c10::DispatchKeySet keys(spec.device.is_cuda() ? c10::DispatchKey::CUDA : c10::DispatchKey::CPU);
  at::Tensor tensor = at::detail::make_tensor<c10::TensorImpl>(
      std::move(storage), keys, c10::scalarTypeToTypeMeta(spec.dtype));
  tensor.unsafeGetTensorImpl()->set_sizes_and_strides(
      shape, stride, values()[spec.offset] + moved);
  return tensor;
}

// Memory for a slab: when the first tensor in it is due, and not beside what steps before that
// take for themselves.
inline void Runner::take_slab(size_t number) {
  const SlabInfo& slab = program_.slabs[number];
  size_t bytes = static_cast<size_t>(values()[slab.bytes]);
  frame_.slab_taken[number] = true;
  if (slab.device.is_cpu()) {
    frame_.blocks[number] = slab_pool().take(bytes);
    frame_.slab_data[number] = static_cast<char*>(frame_.blocks[number].data);
  } else {
    frame_.device_slabs[number] = c10::GetAllocator(slab.device.type())->allocate(bytes);
    frame_.slab_data[number] = static_cast<char*>(frame_.device_slabs[number].get());
  }
}

inline void Runner::execute(AllocateSlab& step) {
  int64_t offset = values()[step.offset];
  if (program_.check_inputs) {
    int64_t end = offset + storage_bytes(step.spec), slab = values()[program_.slabs[step.slab].bytes];
    TORCH_CHECK(offset >= 0 && offset % 64 == 0 && end <= slab, "'",
                program_.slots[step.slot].name, "' takes bytes ", offset, " to ", end,
                " of a slab of ", slab, "; a slab offset must be a multiple of 64");
  }
  if (!frame_.slab_taken[step.slab]) take_slab(step.slab);
  if (frame_.slab_data[step.slab] != nullptr) {
    frame_.slots[step.slot].data =
        frame_.slab_data[step.slab] + offset + values()[step.spec.offset] * step.spec.itemsize;
  }
}

// Gives a tensor the memory of an input that dies in the next step, if the call owns that input,
// nobody else holds it or its storage, and it is memory of the usual kind.
inline bool Runner::take_over(AllocateOwn& step) {
  const at::Tensor& given = frame_.slots[step.over].owned;
  if (!given.defined()) return false;
  const c10::Storage& storage = given.storage();
  if (!storage.unique() || !is_plain_memory(storage) || storage.device() != step.spec.device ||
      given.scalar_type() != step.spec.dtype ||
      given.storage_offset() != values()[step.spec.offset] ||
      static_cast<int64_t>(storage.nbytes()) != storage_bytes(step.spec)) {
    return false;
  }
  Slot& slot = frame_.slots[step.slot];
  set_owned(slot, over_storage(c10::Storage(storage), step.spec));
  slot.data = slot.impl->mutable_data();
  return true;
}

inline void Runner::execute(AllocateOwn& step) {
  if (consuming_ && step.over >= 0 && take_over(step)) return;
  Ints shape, stride;
  gather(step.spec.shape, shape);
  gather(step.spec.stride, stride);
  c10::Allocator* allocator = step.spec.device.is_cpu()
                                  ? tensor_memory()
                                  : c10::GetAllocator(step.spec.device.type());
  c10::DispatchKeySet keys(
      step.spec.device.is_cuda() ? c10::DispatchKey::CUDA : c10::DispatchKey::CPU);
  Slot& slot = frame_.slots[step.slot];
  int64_t offset = values()[step.spec.offset];
  if (offset == 0) {
    set_owned(slot, at::Tensor(at::detail::empty_strided_generic(
                        shape, stride, allocator, keys, step.spec.dtype)));
  } else {
    c10::Storage storage(c10::make_intrusive<c10::StorageImpl>(
        c10::StorageImpl::use_byte_size_t(), c10::SymInt(storage_bytes(step.spec)), allocator,
        /*resizable=*/true));
    set_owned(slot, over_storage(std::move(storage), step.spec));
  }
  slot.data = slot.impl->mutable_data();
}

inline void Runner::execute(ViewOf& step) {
  Slot& root = frame_.slots[step.root];
  int64_t bytes = values()[step.spec.offset] * step.spec.itemsize;
  const SlotInfo& info = program_.slots[step.root];
  char* start = nullptr;
  if (info.in_slab) {
    if (root.data == nullptr) return;
    start = static_cast<char*>(root.data) - values()[info.spec->offset] * info.spec->itemsize;
  } else {
    TORCH_CHECK(root.impl != nullptr, "a view of the undefined tensor '", info.name, "'");
    start = static_cast<char*>(root.impl->storage().mutable_data());
    if (start == nullptr) return;
    start += moved_bytes(step.root);
  }
  frame_.slots[step.slot].data = start + bytes;
}

inline void Runner::drop(const std::vector<SlotIndex>& slots) {
  for (SlotIndex index : slots) {
    Slot& slot = frame_.slots[index];
    slot.owned.reset();
    slot.impl = nullptr;
    slot.data = nullptr;
  }
}

}  // namespace dovetail
