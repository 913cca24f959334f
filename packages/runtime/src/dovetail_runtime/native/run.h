// Runs a loaded plan. Holds no GIL; touches no Python object.
#pragma once

#include "cuda_driver.h"
#include "frame.h"
#include "matmul.h"
#include "program.h"
#include "size_functions.h"

#include <ATen/record_function.h>

#include <functional>
#include <optional>

namespace dovetail {

inline at::Tensor tensor_of(c10::TensorImpl* impl) {
  return at::Tensor(
      c10::intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>::reclaim_copy(impl));
}

// Which steps make the memory of some outputs, by position, and what is told before (true) and
// after (false) each of them.
struct OutputWatch {
  std::vector<bool> steps;
  std::function<void(bool)> tell;
};

// One call: the program's steps in order, on the frame's slots.
class Runner {
 public:
  Runner(Program& program, Frame& frame, const OutputWatch* watch = nullptr)
      : program_(program), frame_(frame), watch_(watch) {}

  // With `consuming`, the frame owns the inputs, and each is dropped after its last use.
  void run(bool consuming) {
    // (One look a call: a profiler that begins while it runs sees the next one.)
    profiled_ = at::getStepCallbacksUnlessEmpty(at::RecordScope::FUNCTION).has_value();
    std::optional<at::RecordFunction> range;
    if (C10_UNLIKELY(profiled_) && !program_.label.empty()) {
      range.emplace(at::RecordScope::USER_SCOPE);
      if (range->isActive()) range->before(program_.label);
    }
    run_sizes(program_.size_program, values());
    c10::OptionalDeviceGuard device_guard;
    if (program_.cuda_device >= 0 && !is_on_device(program_)) {
      device_guard.reset_device(
          c10::Device(c10::kCUDA, static_cast<c10::DeviceIndex>(program_.cuda_device)));
      bind_context(program_.cuda_device);
    }
    // The plan holds casts and gradients already: nothing may add its own.
    c10::impl::ExcludeDispatchKeyGuard below_autograd(
        c10::autograd_dispatch_keyset_with_ADInplaceOrView | c10::autocast_dispatch_keyset);
    consuming_ = consuming;
    if (consuming) {
      run_consuming();
    } else if (watch_ != nullptr) {
      run_watched();
    } else {
      for (step_ = 0; step_ < program_.steps.size(); ++step_) execute_step();
    }
    for (SlotIndex index : program_.mutated) {
      c10::TensorImpl* impl = frame_.slots[index].impl;
      if (impl != nullptr && !impl->is_inference()) impl->bump_version();
    }
  }

  // The tensor of a slot, made now if only its place in memory was known.
  c10::TensorImpl* materialize(SlotIndex index);

  size_t step_ = 0;

 private:
  void execute_step() {
    Step& step = program_.steps[step_];
    const std::string* label = C10_UNLIKELY(profiled_) ? label_of(step) : nullptr;
    if (label != nullptr) {
      at::RecordFunction range(at::RecordScope::FUNCTION);
      if (range.isActive()) range.before(*label);
      std::visit([this](auto& step) { execute(step); }, step);
    } else {
      std::visit([this](auto& step) { execute(step); }, step);
    }
  }

  // What a profile calls a step that nobody else tells it of.
  static const std::string* label_of(const Step& step) {
    if (auto* cpp = std::get_if<LaunchCpp>(&step)) return &cpp->label;
    if (auto* triton = std::get_if<LaunchTriton>(&step)) return &triton->label;
    return nullptr;
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

  void run_watched() {
    for (step_ = 0; step_ < program_.steps.size(); ++step_) {
      if (watch_->steps[step_]) watch_->tell(true);
      execute_step();
      if (watch_->steps[step_]) watch_->tell(false);
    }
  }

  std::vector<int64_t>& values() { return frame_.values; }

  void gather(const std::vector<SizeIndex>& indices, Ints& out) {
    out.clear();
    for (SizeIndex i : indices) out.push_back(values()[i]);
  }

  void set_owned(Slot& slot, at::Tensor tensor) {
    slot.impl = tensor.defined() ? tensor.unsafeGetTensorImpl() : nullptr;
    slot.owned = std::move(tensor);
  }

  // memory: run_memory.h
  int64_t storage_bytes(const Spec& spec);
  int64_t moved_bytes(SlotIndex index);
  at::Tensor over_storage(c10::Storage&& storage, const Spec& spec, int64_t moved = 0);
  void take_slab(size_t number);
  void execute(AllocateSlab& step);
  void execute(AllocateOwn& step);
  bool take_over(AllocateOwn& step);
  void execute(ViewOf& step);
  void drop(const std::vector<SlotIndex>& slots);
  void execute(FreeSlots& step) { drop(step.slots); }
  void execute(FreeSlab& step) { frame_.give_slab_back(static_cast<size_t>(step.slab)); }

  // generated kernels: run_kernels.h
  void execute(LaunchCpp& step);
  void execute(LaunchTriton& step);
  int64_t element_in_memory(SlotIndex index);
  void* aligned_copy(SlotIndex index, bool by_descriptor);
  void copy_back();
  void* scratch_of(size_t bytes);

  // ATen calls: run_calls.h
  void push(const AtenArgument& argument, c10::Stack& stack);
  c10::IValue size_value(const AtenArgument& argument);
  c10::IValue tensor_value(const AtenArgument& argument);
  c10::IValue list_value(const AtenList& list);
  bool matrix_of(const AtenArgument& argument, Matrix& matrix);
  bool multiply(CallAten& step);
  void execute(CallAten& step);
  void keep(CallAten& step, size_t position, at::Tensor tensor);
  at::Tensor as_promised(CallAten& step, size_t position, at::Tensor tensor, const Spec& spec);

  // sizes read from tensors, and programs within: run_control.h
  void execute(BindSize& step);
  int64_t element(at::Tensor tensor);
  void execute(ChooseProgram& step);
  void execute(WhileProgram& step);
  std::vector<at::Tensor> run_inner(Program& program, const std::vector<int32_t>& arguments,
                                    const std::vector<at::Tensor>& first);
  void keep(const std::vector<SlotIndex>& outputs, std::vector<at::Tensor> results);
  void execute(AssertSize& step);

  Program& program_;
  Frame& frame_;
  const OutputWatch* watch_;
  bool consuming_ = false;
  bool profiled_ = false;  // does a profiler look at this call?
};

}  // namespace dovetail

#include "run_calls.h"
#include "run_control.h"
#include "run_kernels.h"
#include "run_memory.h"
