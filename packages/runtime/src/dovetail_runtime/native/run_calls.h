// Steps that call ATen operators.
#pragma once

#include "run.h"

namespace dovetail {

inline void Runner::push(const AtenArgument& argument, c10::Stack& stack) {
  switch (argument.kind) {
    case AtenArgument::Literal: stack.push_back(argument.literal); break;
    case AtenArgument::Tensor: stack.push_back(tensor_value(argument)); break;
    case AtenArgument::Size:
    case AtenArgument::Float: stack.push_back(size_value(argument)); break;
    case AtenArgument::List: stack.push_back(list_value(*argument.list)); break;
  }
}

inline c10::IValue Runner::size_value(const AtenArgument& argument) {
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
inline c10::IValue Runner::tensor_value(const AtenArgument& argument) {
  SlotIndex index = argument.index;
  if (frame_.slots[index].impl == nullptr && program_.slots[index].spec == nullptr) {
    return argument.required ? c10::IValue(at::Tensor()) : c10::IValue();
  }
  return tensor_of(materialize(index));
}

inline c10::IValue Runner::list_value(const AtenList& list) {
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
inline bool Runner::matrix_of(const AtenArgument& argument, Matrix& matrix) {
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
inline bool Runner::multiply(CallAten& step) {
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
  std::optional<at::RecordFunction> range;  // ATen, which is passed by, would tell a profiler
  if (C10_UNLIKELY(profiled_)) {
    range.emplace(at::RecordScope::FUNCTION);
    if (range->isActive()) range->before(step.name);
  }
  return step.product->run(a, b, out, bias, addend, program_.cuda_device, frame_.cuda_stream);
}

inline void Runner::execute(CallAten& step) {
  if (step.product != nullptr) {
    bool multiplied = multiply(step);
    step.product->note(multiplied);
    if (multiplied) return;
  }
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

inline void Runner::keep(CallAten& step, size_t position, at::Tensor tensor) {
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
inline at::Tensor Runner::as_promised(CallAten& step, size_t position, at::Tensor tensor, const Spec& spec) {
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

}  // namespace dovetail
