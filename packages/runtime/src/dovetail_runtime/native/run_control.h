// Steps that read sizes from tensors, and those that run programs within this one.
#pragma once

#include "run.h"

namespace dovetail {

inline void Runner::execute(BindSize& step) {
  c10::TensorImpl* impl = materialize(step.slot);
  values()[step.destination] = step.dim >= 0 ? impl->size(step.dim) : element(tensor_of(impl));
  run_sizes(program_.late_programs[static_cast<size_t>(step.program)], values());
}

inline void Runner::execute(AssertSize& step) {
  if (values()[step.condition] != 0) return;
  std::string message = step.message[0];
  for (size_t i = 0; i < step.numbers.size(); ++i)
    message += std::to_string(values()[step.numbers[i]]) + step.message[i + 1];
  TORCH_CHECK_INDEX(!step.is_index, message);
  TORCH_CHECK(false, message);
}

// The one element of a tensor, a float as its bits.
inline int64_t Runner::element(at::Tensor tensor) {
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

// The branch that the predicate tells, on tensors of this call. What it gives is its own.
inline void Runner::execute(ChooseProgram& step) {
  bool which = tensor_of(materialize(step.predicate)).item().toBool();
  keep(step.outputs, run_inner(*step.branches[which ? 0 : 1], step.arguments, {}));
}

// The body, as often as the condition tells.
inline void Runner::execute(WhileProgram& step) {
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
inline std::vector<at::Tensor> Runner::run_inner(Program& program, const std::vector<int32_t>& arguments,
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
inline void Runner::keep(const std::vector<SlotIndex>& outputs, std::vector<at::Tensor> results) {
  for (size_t i = 0; i < outputs.size(); ++i) {
    if (outputs[i] < 0) continue;
    Slot& slot = frame_.slots[outputs[i]];
    set_owned(slot, std::move(results[i]));
    slot.data = slot.impl->has_storage() ? slot.impl->mutable_data() : nullptr;
  }
}

}  // namespace dovetail
