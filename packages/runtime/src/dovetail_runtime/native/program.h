// What a loaded plan is made of. Everything here is read-only once loaded.
#pragma once

#include <Python.h>

#include <ATen/EmptyTensor.h>
#include <ATen/Parallel.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/DeviceGuard.h>

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <variant>
#include <vector>

namespace dovetail {

// A number in the table of sizes.
using SizeIndex = int32_t;
// A number in the table of tensors.
using SlotIndex = int32_t;
using Ints = c10::SmallVector<int64_t, 6>;

struct SizeInstruction {
  int operation;
  SizeIndex destination, left, right;
};

struct SymbolBinding {
  SizeIndex destination;
  int input;
  int dim;  // -1: the input is an int; -2: a float, whose bits are wanted
};

struct Spec {
  c10::ScalarType dtype;
  c10::Device device{c10::kCPU};
  std::vector<SizeIndex> shape, stride;
  SizeIndex offset = 0;
  int64_t itemsize = 1;
};

struct InputInfo {
  std::string name;
  SlotIndex slot = -1;  // -1: a number
  Spec spec;
  bool needs_data = false;
  bool given_over = false;  // a result may take its memory
};

// How a slot's tensor comes to be, for those that are made only when an ATen call wants them.
struct SlotInfo {
  std::string name;
  SlotIndex root = -1;         // a view: whose storage it looks at
  const Spec* spec = nullptr;  // a view or an allocation in the slab
  bool in_slab = false;
  const Spec* input = nullptr;  // an input as the compiler saw it; a call's may begin elsewhere
  bool result = false;          // of a call: its views count from where it begins
};

using CppFunction = void (*)(void* const*, const int64_t*, int64_t, int64_t);

struct AllocateSlab {
  SlotIndex slot;
  Spec spec;
  int slab;
  SizeIndex offset;
};

struct AllocateOwn {
  SlotIndex slot;
  Spec spec;
  SlotIndex over;  // the input whose memory it may take, or -1
};

struct ViewOf {
  SlotIndex slot, root;
  Spec spec;
};

struct LaunchCpp {
  std::string name;   // of the kernel
  CppFunction function;
  std::vector<SlotIndex> tensors;
  std::vector<SizeIndex> sizes;
  SizeIndex work;
  int64_t grain;
  std::string label;  // for people: in profiles
};

struct TritonArgument {
  // The address of a slot's memory (checked, if it must be aligned), a size, or the one element of
  // a slot on the CPU.
  enum Kind { Pointer, AlignedPointer, Integer, Element } kind;
  int32_t index;
};

struct LaunchTriton {
  std::string name, entry, cubin;
  std::vector<TritonArgument> arguments;
  SizeIndex grid[3];
  int shared_bytes, threads;
  int scratch_parameters;  // appended pointers: the first to scratch memory, the others null
  int64_t scratch_bytes;   // of global memory for each program
  void* function = nullptr;  // CUfunction, once loaded
  bool early = false;        // begins while the launch before it runs: the kernel itself waits
  std::string label;         // for people: in profiles
};

struct AtenArgument;

// A list argument with tensors or sizes in it: built anew for each call.
struct AtenList {
  c10::TypePtr element_type;
  std::vector<AtenArgument> items;
};

struct AtenArgument {
  enum Kind { Literal, Tensor, Size, List, Float } kind = Literal;
  c10::IValue literal;
  int32_t index = 0;
  bool as_double = false;  // Size: the schema wants a float
  std::shared_ptr<AtenList> list;
  bool required = false;  // Tensor: the schema has no None for it
  bool wrapped = false;   // Size, Float: the schema wants a tensor
};

class LtProduct;

struct CallAten {
  std::string name;
  c10::OperatorHandle op;
  std::vector<AtenArgument> arguments;
  std::vector<SlotIndex> outputs;
  std::vector<std::optional<Spec>> expected;  // empty, or one for each output
  std::shared_ptr<LtProduct> product;         // set if it may bypass ATen
  std::string line;                           // of the program, told in errors
};

struct FreeSlots {
  std::vector<SlotIndex> slots;
};

// The memory of a slab goes back: nobody looks at the tensors in it any more.
struct FreeSlab {
  int slab;
};

// A symbol that is known only now: a size of a tensor, or (dim -1) its one element.
struct BindSize {
  SlotIndex slot;
  int dim;
  SizeIndex destination;
  int program;  // of `late_programs`: what can be computed from here on
};

struct AssertSize {
  SizeIndex condition;
  std::vector<std::string> message;  // with one of the numbers after each part but the last
  std::vector<SizeIndex> numbers;
  bool is_index;  // an IndexError, else a RuntimeError
};

struct Program;

// One of two programs is run, the first where the predicate's one element is not zero. An argument
// is a slot, or (for an input that is a number) a size.
struct ChooseProgram {
  SlotIndex predicate;
  std::shared_ptr<Program> branches[2];
  std::vector<int32_t> arguments;
  std::vector<SlotIndex> outputs;
};

// One program is run for as long as the other gives a tensor whose one element is not zero. The
// first arguments, one for each output, are carried: what the body gives takes their place.
struct WhileProgram {
  std::shared_ptr<Program> condition, body;
  std::vector<int32_t> arguments;
  std::vector<SlotIndex> outputs;
};

using Step = std::variant<AllocateSlab, AllocateOwn, ViewOf, LaunchCpp, LaunchTriton, CallAten,
                          FreeSlots, BindSize, AssertSize, ChooseProgram, WhileProgram, FreeSlab>;

struct Output {
  enum Kind { None, Tensor, Size, Input, Float } kind = None;
  int32_t index = 0;
};

struct SlabInfo {
  c10::Device device;
  SizeIndex bytes;
};

// A Python number where a tensor is wanted: a 0-d tensor that does not decide the result's type.
inline at::Tensor wrapped_number(const c10::IValue& number) {
  c10::ScalarType type = number.isBool()     ? c10::kBool
                         : number.isInt()    ? c10::kLong
                         : number.isDouble() ? c10::kDouble
                                             : c10::kComplexDouble;
  at::Tensor tensor(at::detail::empty_cpu({}, type));
  void* data = tensor.unsafeGetTensorImpl()->mutable_data();
  if (number.isBool()) *static_cast<bool*>(data) = number.toBool();
  else if (number.isInt()) *static_cast<int64_t*>(data) = number.toInt();
  else if (number.isDouble()) *static_cast<double*>(data) = number.toDouble();
  else *static_cast<c10::complex<double>*>(data) = number.toComplexDouble();
  tensor.unsafeGetTensorImpl()->set_wrapped_number(true);
  return tensor;
}

struct Frame;

struct Program {
  std::string name;
  std::vector<int64_t> values;
  std::vector<SizeInstruction> size_program;
  std::vector<std::vector<SizeInstruction>> late_programs;
  std::vector<SymbolBinding> bindings;
  std::vector<InputInfo> inputs;
  std::vector<std::pair<SlotIndex, at::Tensor>> constants;
  std::vector<SlabInfo> slabs;
  std::vector<SlotInfo> slots;
  std::vector<Step> steps;
  std::vector<Output> outputs;
  std::vector<SlotIndex> mutated;
  // For calls that give their inputs away: which slots no step after this one looks at (-1: none
  // does), by step.
  std::vector<std::pair<int64_t, std::vector<SlotIndex>>> releases;
  int cuda_device = -1;  // the one CUDA device of the plan, if it has one
  void* cuda_context = nullptr;  // of that device, once kernels are loaded
  bool check_inputs = false;
  std::string label;  // what profiles call a call of it; empty: they see its steps alone

  // Frames between calls, so that a call allocates none.
  std::mutex mutex;
  std::vector<std::unique_ptr<Frame>> idle_frames;
};

// Which steps make the memory of the outputs at some positions.
inline std::vector<bool> steps_that_make(const Program& program,
                                         const std::vector<int32_t>& positions) {
  std::vector<bool> wanted(program.slots.size(), false);
  for (int32_t position : positions) {
    TORCH_CHECK_INDEX(position >= 0 && static_cast<size_t>(position) < program.outputs.size(),
                      "output ", position, " of ", program.outputs.size());
    const Output& output = program.outputs[static_cast<size_t>(position)];
    if (output.kind != Output::Tensor) continue;
    SlotIndex slot = output.index;
    while (program.slots[slot].root >= 0) slot = program.slots[slot].root;
    wanted[slot] = true;
  }
  std::vector<bool> found(program.steps.size(), false);
  for (size_t i = 0; i < program.steps.size(); ++i) {
    const Step& step = program.steps[i];
    if (auto* own = std::get_if<AllocateOwn>(&step)) found[i] = wanted[own->slot];
    if (auto* call = std::get_if<CallAten>(&step)) {
      for (SlotIndex slot : call->outputs) found[i] = found[i] || (slot >= 0 && wanted[slot]);
    }
  }
  return found;
}

}  // namespace dovetail
