// Runs a loaded plan. Holds no GIL; touches no Python object.
#pragma once

#include <c10/core/DynamicCast.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "cuda_driver.h"
#include "matmul.h"
#include "program.h"
#include "slab.h"
#include "tensor_memory.h"

namespace dovetail {

struct Slot {
  void* data = nullptr;             // the first element, where a kernel may want it
  c10::TensorImpl* impl = nullptr;  // borrowed from `owned`, the caller or the program
  at::Tensor owned;
};

// The state of one call.
struct Frame {
  std::vector<int64_t> values;
  std::vector<Slot> slots;
  std::vector<Block> blocks;             // CPU slabs
  std::vector<c10::DataPtr> device_slabs;
  std::vector<char*> slab_data;
  std::vector<char> slab_taken;  // whether that of each slab is its memory in this call
  c10::DataPtr scratch;  // of GPU kernels, one after the other
  size_t scratch_bytes = 0;
  std::vector<at::Tensor> copies;  // of inputs that do not begin where kernels expect it
  c10::Stack stack;
  std::vector<void*> pointers;
  std::vector<int64_t> integers;
  void* cuda_stream = nullptr;

  explicit Frame(const Program& program)
      : values(program.values),
        slots(program.slots.size()),
        slab_data(program.slabs.size()),
        slab_taken(program.slabs.size()) {
    for (const auto& [slot, tensor] : program.constants) {
      slots[slot].impl = tensor.unsafeGetTensorImpl();
      slots[slot].data = slots[slot].impl->has_storage() ? slots[slot].impl->mutable_data() : nullptr;
    }
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
    for (Block& block : blocks) slab_pool().give_back(block);
    blocks.clear();
    device_slabs.clear();
    std::fill(slab_taken.begin(), slab_taken.end(), false);
    scratch.clear();
    scratch_bytes = 0;
    copies.clear();
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

inline int64_t floor_div(int64_t a, int64_t b) {
  TORCH_CHECK(b != 0, "a size expression divides by zero");
  int64_t q = a / b;
  return (a % b != 0 && ((a < 0) != (b < 0))) ? q - 1 : q;
}

inline double as_float(int64_t bits) {
  double value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

inline int64_t as_bits(double value) {
  int64_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  return bits;
}

// Python raises where a function of numbers has no finite result.
inline double defined(double result, double a, double b = 0) {
  TORCH_CHECK_VALUE(std::isfinite(result) || !std::isfinite(a) || !std::isfinite(b),
                    "math domain or range error in a float computed from sizes or float inputs");
  return result;
}

inline double float_mod(double a, double b) {
  TORCH_CHECK(b != 0, "float modulo by zero");
  double rest = std::fmod(a, b);
  if (rest == 0) return std::copysign(0.0, b);
  return (b < 0) != (rest < 0) ? rest + b : rest;
}

// As CPython has it: the quotient without the rest, rounded to a whole number.
inline double float_floor_div(double a, double b) {
  TORCH_CHECK(b != 0, "float floor division by zero");
  double rest = std::fmod(a, b);
  double quotient = (a - rest) / b;
  if (rest != 0 && (b < 0) != (rest < 0)) quotient -= 1;
  if (quotient == 0) return std::copysign(0.0, a / b);
  double whole = std::floor(quotient);
  return quotient - whole > 0.5 ? whole + 1 : whole;
}

inline double float_div(double a, double b) {
  TORCH_CHECK(b != 0, "float division by zero");
  return a / b;
}

// The order is that of FLOAT_OPERATIONS in sizes.py, `float` left out.
inline double apply_float(int operation, double a, double b) {
  switch (operation) {
    case 0: return a + b;
    case 1: return a - b;
    case 2: return a * b;
    case 3: return float_div(a, b);
    case 4: return float_floor_div(a, b);
    case 5: return float_mod(a, b);
    case 6: return defined(std::pow(a, b), a, b);
    case 7: return b < a ? b : a;
    case 8: return b > a ? b : a;
    case 9: return -a;
    case 10: return std::fabs(a);
    case 11: return defined(std::sqrt(a), a);
    case 12: return defined(std::cos(a), a);
    case 13: return defined(std::cosh(a), a);
    case 14: return defined(std::sin(a), a);
    case 15: return defined(std::sinh(a), a);
    case 16: return defined(std::tan(a), a);
    case 17: return std::tanh(a);
    case 18: return defined(std::asin(a), a);
    case 19: return defined(std::acos(a), a);
    case 20: return std::atan(a);
    case 21: return defined(std::exp(a), a);
    case 22: return defined(std::log(a), a);
    default: return defined(std::log2(a), a);
  }
}

inline int64_t apply_size(int operation, int64_t a, int64_t b) {
  if (operation >= 15) return as_bits(apply_float(operation - 15, as_float(a), as_float(b)));
  switch (operation) {
    case 0: return a + b;
    case 1: return a - b;
    case 2: return a * b;
    case 3: return floor_div(a, b);
    case 4: return -floor_div(-a, b);
    case 5: return a - floor_div(a, b) * b;
    case 6: return a < b ? a : b;
    case 7: return a < b ? b : a;
    case 8: return -a;
    case 9: return a == b;
    case 10: return a <= b;
    case 11: return a && b;
    case 12: return a || b;
    case 13: return !a;
    default: return as_bits(static_cast<double>(a));
  }
}

inline void run_sizes(const std::vector<SizeInstruction>& program, std::vector<int64_t>& values) {
  for (const SizeInstruction& i : program) {
    values[i.destination] = apply_size(i.operation, values[i.left], values[i.right]);
  }
}

inline at::Tensor tensor_of(c10::TensorImpl* impl) {
  return at::Tensor(
      c10::intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>::reclaim_copy(impl));
}

class Runner {
 public:
  Runner(Program& program, Frame& frame) : program_(program), frame_(frame) {}

  // With `consuming`, the frame owns the inputs, and each is dropped after its last use.
  void run(bool consuming) {
    run_sizes(program_.size_program, values());
    c10::OptionalDeviceGuard device_guard;
    if (program_.cuda_device >= 0) {
      device_guard.reset_device(
          c10::Device(c10::kCUDA, static_cast<c10::DeviceIndex>(program_.cuda_device)));
      bind_context(program_.cuda_device);
    }
    // The plan holds casts and gradients already: nothing may add its own.
    c10::impl::ExcludeDispatchKeyGuard below_autograd(
        c10::autograd_dispatch_keyset_with_ADInplaceOrView | c10::autocast_dispatch_keyset);
    if (consuming) {
      run_consuming();
    } else {
      for (step_ = 0; step_ < program_.steps.size(); ++step_) execute_step();
    }
    for (SlotIndex index : program_.mutated) {
      c10::TensorImpl* impl = frame_.slots[index].impl;
      if (impl != nullptr && !impl->is_inference()) impl->bump_version();
    }
  }

  // The tensor of a slot, made now if only its place in memory was known.
  c10::TensorImpl* materialize(SlotIndex index) {
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

  size_t step_ = 0;

 private:
  void execute_step() {
    std::visit([this](auto& step) { execute(step); }, program_.steps[step_]);
  }

  void run_consuming() {
    auto next = program_.releases.begin();
    auto release = [&](int64_t step) {
      if (next != program_.releases.end() && next->first == step) drop((next++)->second);
    };
    release(-1);
    for (step_ = 0; step_ < program_.steps.size(); ++step_) {
      execute_step();
      release(static_cast<int64_t>(step_));
    }
  }

  std::vector<int64_t>& values() { return frame_.values; }

  void gather(const std::vector<SizeIndex>& indices, Ints& out) {
    out.clear();
    for (SizeIndex i : indices) out.push_back(values()[i]);
  }

  int64_t storage_bytes(const Spec& spec) {
    int64_t last = 0;
    for (size_t d = 0; d < spec.shape.size(); ++d) {
      int64_t extent = values()[spec.shape[d]];
      if (extent == 0) return 0;
      last += (extent - 1) * values()[spec.stride[d]];
    }
    return (values()[spec.offset] + last + 1) * spec.itemsize;
  }

  void set_owned(Slot& slot, at::Tensor tensor) {
    slot.impl = tensor.defined() ? tensor.unsafeGetTensorImpl() : nullptr;
    slot.owned = std::move(tensor);
  }

  // By how many bytes a tensor begins further on in its storage than the compiler saw: an input may
  // be another piece of a larger tensor than the first call's, and its views are where it is.
  int64_t moved_bytes(SlotIndex index) {
    const SlotInfo& info = program_.slots[index];
    const Spec* seen = info.input != nullptr ? info.input : info.root >= 0 ? info.spec : nullptr;
    c10::TensorImpl* impl = frame_.slots[index].impl;
    if (seen == nullptr || impl == nullptr) return 0;
    return (impl->storage_offset() - values()[seen->offset]) * seen->itemsize;
  }

  at::Tensor over_storage(c10::Storage&& storage, const Spec& spec, int64_t moved = 0) {
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
  void take_slab(size_t number) {
    const SlabInfo& slab = program_.slabs[number];
    size_t bytes = static_cast<size_t>(values()[slab.bytes]);
    frame_.slab_taken[number] = true;
    if (slab.device.is_cpu()) {
      frame_.blocks.push_back(slab_pool().take(bytes));
      frame_.slab_data[number] = static_cast<char*>(frame_.blocks.back().data);
    } else {
      frame_.device_slabs.push_back(c10::GetAllocator(slab.device.type())->allocate(bytes));
      frame_.slab_data[number] = static_cast<char*>(frame_.device_slabs.back().get());
    }
  }

  void execute(AllocateSlab& step) {
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

  void execute(AllocateOwn& step) {
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

  void execute(ViewOf& step) {
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

  void execute(LaunchCpp& step) {
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

  void execute(LaunchTriton& step) {
    int64_t grid[3];
    for (int d = 0; d < 3; ++d) {
      grid[d] = values()[step.grid[d]];
      if (grid[d] <= 0) return;
    }
    size_t count = step.arguments.size();
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
          data = aligned_copy(argument.index);
        }
        frame_.integers[i] = reinterpret_cast<int64_t>(data);
      }
      frame_.pointers[i] = &frame_.integers[i];
    }
    for (int i = 0; i < step.scratch_parameters; ++i) {
      frame_.pointers[count + i] = &frame_.integers[count + (i == 0 ? 0 : 1)];
    }
    launch_on_gpu(step, grid, frame_.pointers.data(), frame_.cuda_stream);
  }

  // The one element of a tensor on the CPU, a float as its bits.
  int64_t element_in_memory(SlotIndex index) {
    const Slot& slot = frame_.slots[index];
    const SlotInfo& info = program_.slots[index];
    TORCH_CHECK(slot.data != nullptr, "tensor '", info.name, "' is undefined");
    c10::ScalarType dtype =
        slot.impl != nullptr ? slot.impl->dtype().toScalarType() : info.spec->dtype;
    if (!c10::isFloatingType(dtype)) return c10::fetch_and_cast<int64_t>(dtype, slot.data);
    return as_bits(c10::fetch_and_cast<double>(dtype, slot.data));
  }

  // Kernels are compiled for memory that begins at a multiple of 16 bytes, as that of the first
  // call's tensors did: a row of odd length further on is copied. What is written to cannot be.
  void* aligned_copy(SlotIndex index) {
    const SlotInfo& info = program_.slots[index];
    const std::vector<SlotIndex>& mutated = program_.mutated;
    bool only_read = info.input != nullptr &&
                     std::find(mutated.begin(), mutated.end(), index) == mutated.end();
    at::Tensor tensor = tensor_of(materialize(index));
    for (int64_t d = 0; d < tensor.dim(); ++d) {
      only_read &= tensor.size(d) <= 1 || tensor.stride(d) != 0;  // not expanded
    }
    TORCH_CHECK(only_read, "the memory of '", info.name, "' begins at ",
                reinterpret_cast<uintptr_t>(frame_.slots[index].data),
                ", and not at a multiple of 16 bytes: pass a copy of this tensor (x.clone())");
    c10::DispatchKeySet keys(c10::DispatchKey::CUDA);
    at::Tensor copy(at::detail::empty_strided_generic(
        tensor.sizes(), tensor.strides(), c10::GetAllocator(c10::kCUDA), keys,
        tensor.scalar_type()));
    copy.copy_(tensor);
    frame_.copies.push_back(copy);
    return copy.mutable_data_ptr();
  }

  // Memory that a launch works in: the launches of a call share it, as each begins when the one
  // before has ended; calls do not, as each holds on to its own. The allocator aligns it to 512
  // bytes, and in a recording gives it from the graph's memory.
  void* scratch_of(size_t bytes) {
    if (bytes > frame_.scratch_bytes) {
      frame_.scratch = c10::GetAllocator(c10::kCUDA)->allocate(bytes);
      frame_.scratch_bytes = bytes;
    }
    return frame_.scratch.get();
  }

  void push(const AtenArgument& argument, c10::Stack& stack) {
    switch (argument.kind) {
      case AtenArgument::Literal: stack.push_back(argument.literal); break;
      case AtenArgument::Tensor: stack.push_back(tensor_value(argument)); break;
      case AtenArgument::Size:
      case AtenArgument::Float: stack.push_back(size_value(argument)); break;
      case AtenArgument::List: stack.push_back(list_value(*argument.list)); break;
    }
  }

  c10::IValue size_value(const AtenArgument& argument) {
    int64_t value = values()[argument.index];
    if (argument.kind == AtenArgument::Float || argument.wrapped) {
      c10::IValue number = argument.kind == AtenArgument::Float ? c10::IValue(as_float(value))
                                                                : c10::IValue(value);
      return argument.wrapped ? c10::IValue(wrapped_number(number)) : number;
    }
    return argument.as_double ? c10::IValue(static_cast<double>(value)) : c10::IValue(value);
  }

  // An undefined result of an earlier call (a gradient that was masked out) is None, or an
  // undefined tensor where the schema wants one.
  c10::IValue tensor_value(const AtenArgument& argument) {
    SlotIndex index = argument.index;
    if (frame_.slots[index].impl == nullptr && program_.slots[index].spec == nullptr) {
      return argument.required ? c10::IValue(at::Tensor()) : c10::IValue();
    }
    return tensor_of(materialize(index));
  }

  c10::IValue list_value(const AtenList& list) {
    if (list.element_type->kind() == c10::TypeKind::TensorType) {
      c10::List<at::Tensor> tensors;
      tensors.reserve(list.items.size());
      for (const AtenArgument& item : list.items) {
        tensors.push_back(tensor_of(materialize(item.index)));
      }
      return tensors;
    }
    c10::impl::GenericList values(list.element_type);
    values.reserve(list.items.size());
    for (const AtenArgument& item : list.items) {
      switch (item.kind) {
        case AtenArgument::Literal: values.push_back(item.literal); break;
        case AtenArgument::Tensor: values.push_back(tensor_value(item)); break;
        case AtenArgument::Size:
        case AtenArgument::Float: values.push_back(size_value(item)); break;
        case AtenArgument::List: values.push_back(list_value(*item.list)); break;
      }
    }
    return values;
  }

  // Where a matrix (or a batch, or a row) lies; false if that is not known without its tensor.
  bool matrix_of(const AtenArgument& argument, Matrix& matrix) {
    const Slot& slot = frame_.slots[argument.index];
    const Spec* spec = program_.slots[argument.index].spec;
    if (slot.data == nullptr || (slot.impl == nullptr && spec == nullptr)) return false;
    matrix.data = static_cast<char*>(slot.data);
    int64_t dims = slot.impl != nullptr ? slot.impl->dim() : static_cast<int64_t>(spec->shape.size());
    auto size = [&](int64_t d) {
      return slot.impl != nullptr ? slot.impl->size(d) : values()[spec->shape[d]];
    };
    auto stride = [&](int64_t d) {
      return slot.impl != nullptr ? slot.impl->stride(d) : values()[spec->stride[d]];
    };
    matrix.dtype = slot.impl != nullptr ? slot.impl->dtype().toScalarType() : spec->dtype;
    if (dims < 1 || dims > 3) return false;
    matrix.columns = size(dims - 1);
    matrix.column_stride = stride(dims - 1);
    matrix.rows = dims > 1 ? size(dims - 2) : 1;
    matrix.row_stride = dims > 1 ? stride(dims - 2) : 0;
    matrix.batch = dims > 2 ? size(0) : 1;
    matrix.batch_stride = dims > 2 ? stride(0) : 0;
    return true;
  }

  // Runs a product without ATen; false if ATen is to run it.
  bool multiply(CallAten& step) {
    if (at::globalContext().deterministicAlgorithms()) return false;
    Matrix operands[4];  // a, b, out; and what is added
    size_t found = 0;
    bool adds = step.name == "aten::addmm.out";
    for (const AtenArgument& argument : step.arguments) {
      if (argument.kind != AtenArgument::Tensor) continue;
      size_t place = !adds ? found : found == 0 ? 3 : found - 1;
      if (!matrix_of(argument, operands[place])) return false;
      if (operands[place].dtype != operands[0].dtype && place != 3) return false;
      ++found;
    }
    const auto& [a, b, out, added] = operands;
    if (a.dtype != c10::kHalf && a.dtype != c10::kBFloat16) return false;
    if (a.columns != b.rows || out.rows != a.rows || out.columns != b.columns) return false;
    if (a.batch != out.batch || b.batch != out.batch) return false;
    const char* bias = nullptr;
    const Matrix* addend = nullptr;
    if (adds) {
      if (added.dtype != a.dtype || added.columns != out.columns) return false;
      if (added.column_stride == 1 && (added.rows == 1 || added.row_stride == 0)) {
        bias = added.data;
      } else if (added.rows == out.rows) {
        addend = &added;
      } else {
        return false;
      }
    }
    return step.product->run(a, b, out, bias, addend, program_.cuda_device, frame_.cuda_stream);
  }

  void execute(CallAten& step) {
    if (step.product != nullptr && multiply(step)) return;
    c10::Stack& stack = frame_.stack;
    stack.clear();
    for (const AtenArgument& argument : step.arguments) push(argument, stack);
    step.op.callBoxed(&stack);
    size_t next = 0;
    for (c10::IValue& result : stack) {
      if (next >= step.outputs.size()) break;
      if (result.isTensorList()) {
        for (const at::Tensor& tensor : result.toTensorVector()) keep(step, next++, tensor);
      } else if (result.isTensor()) {
        keep(step, next++, std::move(result).toTensor());
      } else {
        TORCH_CHECK(result.isNone() || step.outputs[next] < 0, step.name, " returns a ",
                    result.tagKind(), ", not a tensor, for '",
                    program_.slots[step.outputs[next]].name, "'");
        ++next;
      }
    }
    TORCH_CHECK(next >= step.outputs.size(), step.name, " returned ", next, " values, ",
                step.outputs.size(), " are named");
    stack.clear();
  }

  void keep(CallAten& step, size_t position, at::Tensor tensor) {
    if (position >= step.outputs.size() || step.outputs[position] < 0) return;
    Slot& slot = frame_.slots[step.outputs[position]];
    if (tensor.defined() && (tensor.is_conj() || tensor.is_neg())) {
      tensor = tensor.resolve_conj().resolve_neg();  // memory holds the values that are meant
    }
    if (!step.expected.empty() && step.expected[position] && tensor.defined()) {
      tensor = as_promised(step, position, std::move(tensor), *step.expected[position]);
    }
    set_owned(slot, std::move(tensor));
    slot.data = slot.impl != nullptr && slot.impl->has_storage() ? slot.impl->mutable_data() : nullptr;
  }

  // Kernels address a result by the strides it was promised to have. Which of several layouts a
  // convolution's library chooses depends on more than its arguments: then the result is laid out
  // again.
  at::Tensor as_promised(CallAten& step, size_t position, at::Tensor tensor, const Spec& spec) {
    bool same = tensor.scalar_type() == spec.dtype &&
                tensor.dim() == static_cast<int64_t>(spec.shape.size());
    bool empty = false, strides = true;
    for (size_t d = 0; same && d < spec.shape.size(); ++d) {
      int64_t size = tensor.size(static_cast<int64_t>(d));
      same = size == values()[spec.shape[d]];
      empty |= size == 0;
      strides &= size <= 1 || tensor.stride(static_cast<int64_t>(d)) == values()[spec.stride[d]];
    }
    if (same && (empty || strides)) return tensor;
    Ints shape, stride;
    gather(spec.shape, shape);
    gather(spec.stride, stride);
    if (same && tensor.storage().use_count() == 1 && tensor.use_count() == 1) {
      c10::Allocator* allocator = spec.device.is_cpu() ? tensor_memory()
                                                       : c10::GetAllocator(spec.device.type());
      c10::DispatchKeySet keys(spec.device.is_cuda() ? c10::DispatchKey::CUDA
                                                     : c10::DispatchKey::CPU);
      at::Tensor made(at::detail::empty_strided_generic(shape, stride, allocator, keys, spec.dtype));
      return made.copy_(tensor);
    }
    TORCH_CHECK(false, step.name, " returned, for '", program_.slots[step.outputs[position]].name,
                "', a ", tensor.scalar_type(), " tensor of shape ", tensor.sizes(),
                " and strides ", tensor.strides(), "; the graph was compiled for ", spec.dtype, ", ",
                c10::IntArrayRef(shape), ", ", c10::IntArrayRef(stride));
  }

  void execute(BindSize& step) {
    c10::TensorImpl* impl = materialize(step.slot);
    values()[step.destination] = step.dim >= 0 ? impl->size(step.dim) : element(tensor_of(impl));
    run_sizes(program_.late_programs[static_cast<size_t>(step.program)], values());
  }

  // The one element of a tensor, a float as its bits.
  int64_t element(at::Tensor tensor) {
    static const c10::OperatorHandle op =
        c10::Dispatcher::singleton().findSchemaOrThrow("aten::_local_scalar_dense", "");
    c10::Stack& stack = frame_.stack;
    stack.clear();
    stack.emplace_back(std::move(tensor));
    op.callBoxed(&stack);
    at::Scalar value = stack.back().toScalar();
    stack.clear();
    TORCH_CHECK(!value.isComplex(), "a complex number as a size");
    if (value.isFloatingPoint()) return as_bits(value.toDouble());
    return value.isBoolean() ? value.toBool() : value.toLong();
  }

  void execute(AssertSize& step) { TORCH_CHECK(values()[step.condition] != 0, step.message); }

  // The branch that the predicate tells, on tensors of this call. What it gives is its own.
  void execute(ChooseProgram& step) {
    bool which = tensor_of(materialize(step.predicate)).item().toBool();
    keep(step.outputs, run_inner(*step.branches[which ? 0 : 1], step.arguments, {}));
  }

  // The body, as often as the condition tells.
  void execute(WhileProgram& step) {
    std::vector<at::Tensor> carried;
    for (size_t i = 0; i < step.outputs.size(); ++i) {
      carried.push_back(tensor_of(materialize(step.arguments[i])));
    }
    bool ran = false;
    while (run_inner(*step.condition, step.arguments, carried)[0].item().toBool()) {
      carried = run_inner(*step.body, step.arguments, carried);
      ran = true;
    }
    if (!ran) {
      for (at::Tensor& tensor : carried) tensor = tensor.clone();
    }
    keep(step.outputs, std::move(carried));
  }

  // What a program within this one gives for arguments (slots and sizes of this frame); `first`
  // are tensors in place of the first of them. Its results are its own.
  std::vector<at::Tensor> run_inner(Program& program, const std::vector<int32_t>& arguments,
                                    const std::vector<at::Tensor>& first) {
    BorrowedFrame borrowed{program};
    Frame& frame = *borrowed.frame;
    for (size_t i = 0; i < program.inputs.size(); ++i) {
      const InputInfo& info = program.inputs[i];
      if (info.slot < 0) continue;
      Slot& slot = frame.slots[info.slot];
      slot.owned = i < first.size() ? first[i] : tensor_of(materialize(arguments[i]));
      slot.impl = slot.owned.unsafeGetTensorImpl();
      if (info.needs_data) slot.data = slot.impl->mutable_data();
    }
    for (const SymbolBinding& binding : program.bindings) {
      SlotIndex slot = program.inputs[binding.input].slot;
      frame.values[binding.destination] = binding.dim < 0
                                              ? values()[arguments[binding.input]]
                                              : frame.slots[slot].impl->size(binding.dim);
    }
    frame.cuda_stream = frame_.cuda_stream;
    Runner runner(program, frame);
    runner.run(/*consuming=*/false);
    std::vector<at::Tensor> results;
    for (const Output& output : program.outputs) {
      results.push_back(output.kind == Output::Input
                            ? frame.slots[program.inputs[output.index].slot].owned.clone()
                            : tensor_of(runner.materialize(output.index)));
    }
    return results;
  }

  // Results of a program within this one, in the slots of this frame.
  void keep(const std::vector<SlotIndex>& outputs, std::vector<at::Tensor> results) {
    for (size_t i = 0; i < outputs.size(); ++i) {
      if (outputs[i] < 0) continue;
      Slot& slot = frame_.slots[outputs[i]];
      set_owned(slot, std::move(results[i]));
      slot.data = slot.impl->has_storage() ? slot.impl->mutable_data() : nullptr;
    }
  }

  void execute(FreeSlots& step) { drop(step.slots); }

  void drop(const std::vector<SlotIndex>& slots) {
    for (SlotIndex index : slots) {
      Slot& slot = frame_.slots[index];
      slot.owned.reset();
      slot.impl = nullptr;
      slot.data = nullptr;
    }
  }

  Program& program_;
  Frame& frame_;
};

}  // namespace dovetail
