// The forward and the common backward of a compiled graph in training (see `training_calls.cpp`).

#include "training_calls.h"

#include <ATen/SavedTensorHooks.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_strided.h>
#include <c10/core/GradMode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/csrc/autograd/anomaly_mode.h>
#include <torch/csrc/autograd/graph_task.h>

#include <algorithm>
#include <tuple>
#include <vector>

namespace dovetail::training {
namespace {

struct Names {
  PyObject* replay = PyUnicode_InternFromString("replay");
  PyObject* beside = PyUnicode_InternFromString("beside");
  PyObject* remaining = PyUnicode_InternFromString("remaining");
  PyObject* to_save = PyUnicode_InternFromString("to_save");
  PyObject* materialize_grads = PyUnicode_InternFromString("materialize_grads");
  PyObject* non_differentiable = PyUnicode_InternFromString("non_differentiable");
  PyObject* saved_tensors = PyUnicode_InternFromString("saved_tensors");
  PyObject* clear = PyUnicode_InternFromString("maybe_clear_saved_tensors");
};

const Names& names() {
  static const Names* found = new Names;
  return *found;
}

// As `unrecorded` in Python: below autograd and its tracking of views, with gradients switched on.
struct Unrecorded {
  explicit Unrecorded(bool no_autocast)
      : autocast(no_autocast ? c10::autocast_dispatch_keyset : c10::DispatchKeySet()) {}

  // (Each restores, when it goes, all that it found: they go in the opposite order.)
  c10::impl::ExcludeDispatchKeyGuard autocast;
  at::AutoDispatchBelowADInplaceOrView below;
  c10::AutoGradMode recorded{true};
};

// --- forward ---------------------------------------------------------------------------------------

THPObjectPtr tuple_of(PyObject* const* items, size_t count) {
  THPObjectPtr made(checked(PyTuple_New(static_cast<Py_ssize_t>(count))));
  for (size_t i = 0; i < count; ++i) {
    PyTuple_SET_ITEM(made.get(), static_cast<Py_ssize_t>(i), Py_NewRef(items[i]));
  }
  return made;
}

// What a differentiable backward would need: (inputs, their versions, no state of random numbers).
THPObjectPtr remembered(TrainingCalls* self, PyObject* const* inputs, size_t count) {
  THPObjectPtr all = tuple_of(inputs, count);
  if (self->remember != nullptr) {
    return THPObjectPtr(checked(PyObject_CallOneArg(self->remember, all.get())));
  }
  const auto tensors = std::count_if(inputs, inputs + count, [](PyObject* i) { return THPVariable_Check(i); });
  THPObjectPtr versions(checked(PyTuple_New(tensors)));
  Py_ssize_t next = 0;
  for (size_t i = 0; i < count; ++i) {
    if (THPVariable_Check(inputs[i])) {
      const Tensor& tensor = THPVariable_Unpack(inputs[i]);
      PyObject* version = tensor.is_inference() ? Py_NewRef(Py_None)
                                                : PyLong_FromLongLong(static_cast<long long>(tensor._version()));
      PyTuple_SET_ITEM(versions.get(), next++, checked(version));
    }
  }
  auto* type = reinterpret_cast<PyTypeObject*>(self->replay);
  THPObjectPtr made(checked(type->tp_alloc(type, 4))); // (a named tuple)
  PyTuple_SET_ITEM(made.get(), 0, all.release());
  PyTuple_SET_ITEM(made.get(), 1, versions.release());
  PyTuple_SET_ITEM(made.get(), 2, Py_NewRef(Py_None));
  PyTuple_SET_ITEM(made.get(), 3, Py_NewRef(Py_None));
  return made;
}

// The saved value, in the place of an output: with a version counter that both share.
PyObject* alias_of(const Alias& alias, PyObject* value, PyObject* output) {
  TORCH_CHECK_TYPE(THPVariable_Check(value) && THPVariable_Check(output), "a compiled forward gave no tensor");
  const Tensor& saved = THPVariable_Unpack(value);
  const Tensor& like = THPVariable_Unpack(output);
  const at::IntArrayRef sizes = alias.known ? at::IntArrayRef(alias.sizes) : like.sizes();
  const at::IntArrayRef strides = alias.known ? at::IntArrayRef(alias.strides) : like.strides();
  const int64_t offset = alias.known ? alias.offset : like.storage_offset();
  const bool same =
      sizes == saved.sizes() && strides == saved.strides() && offset == saved.storage_offset();
  return THPVariable_Wrap(same ? saved.detach() : saved.as_strided(sizes, strides, offset).detach());
}

// A saved value, as it is kept.
PyObject* as_kept(Kept kept, PyObject* value) {
  const bool changed = kept == Kept::DETACHED || kept == Kept::RECOUNTED;
  TORCH_CHECK_TYPE(!changed || THPVariable_Check(value), "a compiled forward gave no tensor");
  switch (kept) {
    case Kept::DETACHED:
      return checked(THPVariable_Wrap(THPVariable_Unpack(value).detach()));
    case Kept::RECOUNTED:
      return checked(THPVariable_Wrap(THPVariable_Unpack(value).variable_data()));
    default:
      return Py_NewRef(value);
  }
}

// Leaves on the context what the backward reads. `hooked`: hooks take what is saved.
void save(const Plan& plan, PyObject* context, PyObject* const* inputs, PyObject* const* values,
          size_t count, bool hooked) {
  const size_t primals = plan.primals.size();
  TORCH_CHECK(primals + count == plan.saved.size(), "a compiled forward gave other values than expected");
  const auto on_context = [&](Kept how) {
    return how == Kept::ON_CONTEXT || (hooked && how == Kept::ON_CONTEXT_IF_HOOKED);
  };
  THPObjectPtr beside;
  const auto others = std::count_if(plan.saved.begin(), plan.saved.end(), on_context);
  THPObjectPtr kept(checked(PyTuple_New(static_cast<Py_ssize_t>(plan.saved.size()) - others)));
  Py_ssize_t next = 0;
  for (size_t i = 0; i < plan.saved.size(); ++i) {
    PyObject* value = i < primals ? inputs[plan.primals[i]] : values[i - primals];
    if (on_context(plan.saved[i])) {
      if (!beside) {
        beside = checked(PyDict_New());
      }
      THPObjectPtr number(checked(PyLong_FromSize_t(i)));
      checked(PyDict_SetItem(beside.get(), number.get(), value));
    } else {
      PyTuple_SET_ITEM(kept.get(), next++, as_kept(plan.saved[i], value));
    }
  }
  if (beside) {
    checked(PyObject_SetAttr(context, names().beside, beside.get()));
  }
  checked(PyObject_SetAttr(context, names().to_save, kept.get()));
}

void replace(PyObject* tuple, size_t index, PyObject* item) {
  PyObject* before = PyTuple_GET_ITEM(tuple, static_cast<Py_ssize_t>(index));
  PyTuple_SET_ITEM(tuple, static_cast<Py_ssize_t>(index), checked(item));
  Py_DECREF(before);
}

} // namespace

// (context, *inputs) -> the forward outputs.
PyObject* call_forward(PyObject* object, PyObject* const* args, Py_ssize_t given) {
  HANDLE_TH_ERRORS
  auto* self = reinterpret_cast<TrainingCalls*>(object);
  const Plan& plan = *self->plan;
  const auto count = static_cast<size_t>(given) - 1;
  TORCH_CHECK_TYPE(given > 0 && count == plan.inputs.size(), "a compiled graph is given other inputs than it takes");
  const bool hooked = plan.minds_hooks && at::SavedTensorDefaultHooks::get_hooks(true).has_value();
  PyObject* context = args[0];
  PyObject* const* inputs = args + 1;
  THPObjectPtr replay = remembered(self, inputs, count);
  checked(PyObject_SetAttr(context, names().replay, replay.get()));
  THPObjectPtr results;
  {
    const Unrecorded below(plan.no_autocast);
    results = checked(PyObject_Vectorcall(self->compiled, inputs, count, nullptr));
  }
  THPObjectPtr items(checked(PySequence_Fast(results.get(), "a compiled forward gives a sequence")));
  const auto found = static_cast<size_t>(PySequence_Fast_GET_SIZE(items.get()));
  TORCH_CHECK(found >= plan.outputs, "a compiled forward gave fewer values than it has outputs");
  PyObject* const* values = PySequence_Fast_ITEMS(items.get());
  THPObjectPtr outputs = tuple_of(values, plan.outputs);
  for (const Alias& alias : plan.aliases) {
    replace(outputs.get(), alias.output, alias_of(alias, values[plan.outputs + alias.saved], values[alias.output]));
  }
  for (const size_t i : plan.recounted) {
    replace(outputs.get(), i, as_kept(Kept::RECOUNTED, PyTuple_GET_ITEM(outputs.get(), static_cast<Py_ssize_t>(i))));
  }
  save(plan, context, inputs, values + plan.outputs, found - plan.outputs, hooked);
  if (!plan.constant.empty()) {
    THPObjectPtr constant(checked(PyList_New(0)));
    for (const size_t i : plan.constant) {
      PyObject* output = PyTuple_GET_ITEM(outputs.get(), static_cast<Py_ssize_t>(i));
      if (THPVariable_Check(output)) {
        checked(PyList_Append(constant.get(), output));
      }
    }
    THPObjectPtr tuple(checked(PyList_AsTuple(constant.get())));
    checked(PyObject_SetAttr(context, names().non_differentiable, tuple.get()));
  }
  checked(PyObject_SetAttr(context, names().materialize_grads, Py_False));
  if (self->finish != nullptr && (plan.always_finishes || hooked)) {
    THPObjectPtr given_inputs = tuple_of(inputs, count);
    THPObjectPtr none(checked(PyObject_CallFunctionObjArgs(
        self->finish, context, given_inputs.get(), outputs.get(), items.get(), nullptr)));
  }
  return outputs.release();
  END_HANDLE_TH_ERRORS
}

namespace {

// --- backward --------------------------------------------------------------------------------------

// A gradient that compiled code can be given as it is, or a copy of it.
bool is_dense(const Tensor& gradient) {
  constexpr c10::DispatchKeySet unusual{
      c10::DispatchKey::Conjugate, c10::DispatchKey::Negative, c10::DispatchKey::ZeroTensor,
      c10::DispatchKey::Batched, c10::DispatchKey::FuncTorchBatched, c10::DispatchKey::FuncTorchGradWrapper,
      c10::DispatchKey::Functionalize, c10::DispatchKey::Python};
  const c10::TensorImpl* impl = gradient.unsafeGetTensorImpl();
  return !impl->key_set().has_any(unusual) && impl->layout() == at::kStrided &&
      !impl->has_symbolic_sizes_strides();
}

// Whether the pass asks for the gradients of all inputs that get one.
bool asks_for_all(const Plan& plan, PyObject* context) {
  const auto* info = torch::autograd::get_current_graph_task_exec_info();
  if (info == nullptr || info->empty()) {
    return true;
  }
  const NodePointer held = pointer_to(context);
  const auto& edges = held.get()->next_edges();
  size_t edge = 0;
  for (const char input : plan.inputs) {
    if (input == 0) {
      continue;
    }
    if (edge >= edges.size()) {
      return false;
    }
    const auto at = info->find(edges[edge++].function.get());
    if (input == REACHED && (at == info->end() || !at->second.should_execute())) {
      return false;
    }
  }
  return true;
}

bool is_common(TrainingCalls* self, PyObject* const* args, size_t given) {
  const Plan& plan = *self->plan;
  if (self->run == nullptr || given != plan.outputs + 1 || c10::GradMode::is_enabled() ||
      torch::autograd::AnomalyMode::is_enabled()) {
    return false;
  }
  for (const Tangent& tangent : plan.tangents) {
    PyObject* gradient = args[1 + tangent.output];
    if (!THPVariable_Check(gradient) || !is_dense(THPVariable_Unpack(gradient))) {
      return false;
    }
    const at::IntArrayRef strides(tangent.strides); // (if it repeats elements, no copy can have these)
    if (std::count(strides.begin(), strides.end(), 0) > 0 && THPVariable_Unpack(gradient).strides() != strides) {
      return false;
    }
  }
  THPObjectPtr remaining(checked(PyObject_GetAttr(args[0], names().remaining)));
  if (remaining.get() != Py_None || !asks_for_all(plan, args[0])) {
    return false;
  }
  if (self->pending == nullptr) {
    return true;
  }
  const int some = PyObject_IsTrue(self->pending);
  checked(some);
  return some == 0;
}

// The gradient in the layout that the backward was compiled for.
PyObject* laid_out(const Tangent& tangent, PyObject* given) {
  const Tensor& gradient = THPVariable_Unpack(given);
  std::vector<int64_t> wanted;
  if (!tangent.known) {
    TORCH_CHECK(static_cast<size_t>(gradient.dim()) == tangent.order.size(), "a gradient of other dimensions");
    wanted.resize(tangent.order.size());
    int64_t expected = 1;
    for (const size_t d : tangent.order) {
      wanted[d] = expected;
      expected *= std::max<int64_t>(1, gradient.sizes()[d]);
    }
  }
  const at::IntArrayRef strides(tangent.known ? tangent.strides : wanted);
  if (gradient.strides() == strides) {
    return Py_NewRef(given);
  }
  const at::IntArrayRef sizes = tangent.known ? at::IntArrayRef(tangent.sizes) : gradient.sizes();
  Tensor dense;
  {
    const pybind11::gil_scoped_release without_gil;
    dense = at::empty_strided(sizes, strides, at::TensorOptions(tangent.device).dtype(tangent.dtype));
    dense.copy_(gradient);
  }
  return THPVariable_Wrap(dense);
}

// From this size on a gradient from outside is freed after its last use. (Less is not worth the time.)
constexpr size_t LARGE_BYTES = 1 << 20;

// Whether torch's nodes of Python hold no gradients of their own while they run.
template <typename Function>
constexpr bool lets_go_of_gradients = requires(Function function) { function.boxed_grads_call; };

// Whether nobody has a gradient but the arguments that the engine calls a node of Python's with and,
// in older versions of torch, a list of the engine's own.
bool is_the_engines(PyObject* gradient) {
  const auto references = [](PyObject* object) {
    const Tensor& tensor = THPVariable_Unpack(object);
    return std::tuple(Py_REFCNT(object), tensor.use_count(), tensor.weak_use_count());
  };
  const auto found = references(gradient);
  if (found == std::tuple(1, 1, 1)) {
    return true;
  }
  if constexpr (lets_go_of_gradients<THPFunction>) {
    return false;
  }
  static const auto of_both = [&] { // (counts differ: either object may hold the other)
    const Tensor held = at::empty({0});
    THPObjectPtr argument(checked(THPVariable_Wrap(held)));
    return references(argument.get());
  }();
  return found == of_both;
}

// A gradient that nobody has but the engine, which holds it until the backward is over but does not
// look at it again: its memory in another tensor, which can be freed before, as eager does between
// two nodes. Any other gradient as it is.
PyObject* taken_over(PyObject* given) {
  const Tensor& gradient = THPVariable_Unpack(given);
  if (!gradient.has_storage() || gradient.storage().nbytes() < LARGE_BYTES ||
      !is_the_engines(given)) {
    return Py_NewRef(given);
  }
  const Tensor own = gradient.variable_data();
  gradient.set_data(at::empty({0}, gradient.options()));
  return THPVariable_Wrap(own);
}

// Saved values, and gradients from outside, in the order in which the compiled backward takes them.
// With `consumed`, it frees them.
THPObjectPtr arguments_of(const Plan& plan, PyObject* const* args, bool consumed) {
  THPObjectPtr saved(checked(PyObject_GetAttr(args[0], names().saved_tensors)));
  THPObjectPtr beside(checked(PyObject_GetAttr(args[0], names().beside)));
  TORCH_CHECK_TYPE(PyTuple_Check(saved.get()) && PyDict_Check(beside.get()), "a context of other make");
  const Py_ssize_t others = PyDict_GET_SIZE(beside.get());
  const Py_ssize_t values = PyTuple_GET_SIZE(saved.get()) + others;
  THPObjectPtr list(checked(PyList_New(values + static_cast<Py_ssize_t>(plan.tangents.size()))));
  Py_ssize_t next = 0;
  for (Py_ssize_t i = 0; i < values; ++i) {
    PyObject* value = nullptr;
    if (others != 0) {
      THPObjectPtr number(checked(PyLong_FromSsize_t(i)));
      value = PyDict_GetItemWithError(beside.get(), number.get());
      if (value == nullptr && PyErr_Occurred()) {
        rethrow();
      }
    }
    if (value == nullptr) {
      TORCH_CHECK(next < PyTuple_GET_SIZE(saved.get()), "a context of other make");
      value = PyTuple_GET_ITEM(saved.get(), next++);
    }
    PyList_SET_ITEM(list.get(), i, Py_NewRef(value));
  }
  for (size_t i = 0; i < plan.tangents.size(); ++i) {
    const Tangent& tangent = plan.tangents[i];
    PyObject* given = args[1 + tangent.output];
    THPObjectPtr gradient(checked(laid_out(tangent, given)));
    if (consumed && gradient.get() == given) {
      gradient = nullptr; // (which would be one more reference)
      gradient = checked(taken_over(given));
    }
    PyList_SET_ITEM(list.get(), values + static_cast<Py_ssize_t>(i), gradient.release());
  }
  return list;
}

} // namespace

// (context, *gradients) -> those of the inputs.
PyObject* call_backward(PyObject* object, PyObject* const* args, Py_ssize_t given) {
  HANDLE_TH_ERRORS
  auto* self = reinterpret_cast<TrainingCalls*>(object);
  if (!is_common(self, args, static_cast<size_t>(given))) {
    return PyObject_Vectorcall(self->backward, args, static_cast<size_t>(given), nullptr);
  }
  THPObjectPtr arguments = arguments_of(*self->plan, args, self->consume != nullptr);
  if (!torch::autograd::get_current_graph_task_keep_graph()) {
    // As eager does node by node: the list holds the saved tensors from here on.
    checked(PyObject_SetAttr(args[0], names().remaining, self->remaining));
    checked(PyObject_SetAttr(args[0], names().replay, Py_None));
    THPObjectPtr none(checked(PyObject_CallMethodNoArgs(args[0], names().clear)));
  }
  THPObjectPtr results;
  {
    const Unrecorded below(true);
    results = checked(
        self->consume != nullptr
            ? PyObject_CallOneArg(self->consume, arguments.get())
            : PyObject_Vectorcall(self->run, PySequence_Fast_ITEMS(arguments.get()),
                                  static_cast<size_t>(PyList_GET_SIZE(arguments.get())), nullptr));
  }
  return PySequence_Tuple(results.get());
  END_HANDLE_TH_ERRORS
}

} // namespace dovetail::training
