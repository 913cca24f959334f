// Forward and backward of a compiled graph in training, called as they mostly are.
//
// A call of a small graph costs less than the bookkeeping around it would in Python. So what is
// known when compiling is a plan here, and the common call runs no Python between autograd and the
// compiled code (`training_steps.cpp`). Everything else (gradients that are missing, or not asked
// for; `create_graph`, anomaly mode; a backward after another one of other outputs; gradients of
// `vmap`) goes to the functions of `calls/autograd_function.py`, which do all of it. Both leave the same
// on the context.

#include "training_calls.h"

#include <torch/csrc/Device.h>
#include <torch/csrc/Dtype.h>
#include <torch/csrc/Exceptions.h>

#include <memory>
#include <string_view>
#include <utility>
#include <vector>

namespace dovetail {
namespace training {
namespace {

PyObject* optional_reference(PyObject* object) {
  return object == Py_None ? nullptr : Py_NewRef(object);
}

template <typename Number>
std::vector<Number> integers(PyObject* tuple) {
  TORCH_CHECK_TYPE(PyTuple_Check(tuple), "expected a tuple of integers");
  std::vector<Number> found;
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(tuple); ++i) {
    const long long number = PyLong_AsLongLong(PyTuple_GET_ITEM(tuple, i));
    if (number == -1 && PyErr_Occurred()) {
      rethrow();
    }
    found.push_back(static_cast<Number>(number));
  }
  return found;
}

// See the table of methods.
PyObject* learn(PyObject* object, PyObject* args) {
  HANDLE_TH_ERRORS
  auto* self = reinterpret_cast<TrainingCalls*>(object);
  PyObject *run = nullptr, *consume = nullptr, *rest = nullptr, *tangents = nullptr;
  if (!PyArg_ParseTuple(args, "OOOO!", &run, &consume, &rest, &PyTuple_Type, &tangents)) {
    return nullptr;
  }
  if (self->run != nullptr) { // (another thread may be about to call it)
    Py_RETURN_NONE;
  }
  std::vector<Tangent> known;
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(tangents); ++i) {
    Tangent tangent;
    PyObject *sizes = nullptr, *layout = nullptr, *dtype = nullptr, *device = nullptr;
    if (!PyArg_ParseTuple(PyTuple_GET_ITEM(tangents, i), "nOOO!O!", &tangent.output, &sizes, &layout,
                          &THPDtypeType, &dtype, &THPDeviceType, &device)) {
      return nullptr;
    }
    TORCH_CHECK(tangent.output < self->plan->outputs, "a gradient of no output");
    tangent.known = sizes != Py_None;
    if (tangent.known) {
      tangent.sizes = integers<int64_t>(sizes);
      tangent.strides = integers<int64_t>(layout);
    } else {
      tangent.order = integers<size_t>(layout);
    }
    tangent.dtype = reinterpret_cast<THPDtype*>(dtype)->scalar_type;
    tangent.device = reinterpret_cast<THPDevice*>(device)->device;
    known.push_back(std::move(tangent));
  }
  self->plan->tangents = std::move(known);
  self->rest = Py_NewRef(rest);
  self->consume = optional_reference(consume);
  self->run = Py_NewRef(run);
  Py_RETURN_NONE;
  END_HANDLE_TH_ERRORS
}

int traverse(PyObject* object, visitproc visit, void* arg) {
  auto* self = reinterpret_cast<TrainingCalls*>(object);
  Py_VISIT(Py_TYPE(object));
  for (PyObject* held : {self->forward, self->backward, self->compiled, self->remember, self->replay,
                         self->pending, self->consume, self->run, self->rest}) {
    Py_VISIT(held);
  }
  return 0;
}

int clear(PyObject* object) {
  auto* self = reinterpret_cast<TrainingCalls*>(object);
  for (PyObject** held : {&self->forward, &self->backward, &self->compiled, &self->remember, &self->replay,
                          &self->pending, &self->consume, &self->run, &self->rest}) {
    Py_CLEAR(*held);
  }
  return 0;
}

void deallocate(PyObject* object) {
  PyTypeObject* type = Py_TYPE(object);
  PyObject_GC_UnTrack(object);
  clear(object);
  delete reinterpret_cast<TrainingCalls*>(object)->plan;
  type->tp_free(object);
  Py_DECREF(type);
}

PyObject* create(PyTypeObject* type, PyObject* args, PyObject* keywords) {
  HANDLE_TH_ERRORS
  static const char* arguments[] = {"forward", "backward", "compiled", "remember", "replay", "pending",
                                    "outputs", "inputs", "primals", "constant", "beside", "aliases",
                                    "autocast", "minds_hooks", nullptr};
  PyObject *forward = nullptr, *backward = nullptr, *compiled = nullptr, *remember = nullptr, *replay = nullptr,
           *pending = nullptr, *inputs = nullptr, *primals = nullptr, *constant = nullptr, *beside = nullptr,
           *aliases = nullptr;
  int autocast = 0, minds_hooks = 0;
  auto plan = std::make_unique<Plan>();
  if (!PyArg_ParseTupleAndKeywords(args, keywords, "$OOOOO!OnSOOSO!pp", const_cast<char**>(arguments), &forward,
                                   &backward, &compiled, &remember, &PyType_Type, &replay, &pending,
                                   &plan->outputs, &inputs, &primals, &constant, &beside, &PyTuple_Type,
                                   &aliases, &autocast, &minds_hooks)) {
    return nullptr;
  }
  TORCH_CHECK_TYPE(PyType_IsSubtype(reinterpret_cast<PyTypeObject*>(replay), &PyTuple_Type), "expected a named tuple");
  const std::string_view kinds(PyBytes_AS_STRING(inputs), PyBytes_GET_SIZE(inputs));
  plan->inputs.assign(kinds.begin(), kinds.end());
  const std::string_view flags(PyBytes_AS_STRING(beside), PyBytes_GET_SIZE(beside));
  plan->beside.assign(flags.begin(), flags.end());
  plan->primals = integers<size_t>(primals);
  plan->constant = integers<size_t>(constant);
  for (const size_t i : plan->primals) {
    TORCH_CHECK(i < plan->inputs.size(), "no such input");
  }
  for (const size_t i : plan->constant) {
    TORCH_CHECK(i < plan->outputs, "no such output");
  }
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(aliases); ++i) {
    Alias alias;
    PyObject *sizes = nullptr, *strides = nullptr;
    long long offset = 0;
    if (!PyArg_ParseTuple(PyTuple_GET_ITEM(aliases, i), "nnOOL", &alias.output, &alias.saved, &sizes, &strides,
                          &offset)) {
      return nullptr;
    }
    const size_t values = plan->beside.size() - plan->primals.size();
    TORCH_CHECK(alias.output < plan->outputs && alias.saved < values, "no such output, or saved value");
    alias.known = sizes != Py_None;
    if (alias.known) {
      alias.sizes = integers<int64_t>(sizes);
      alias.strides = integers<int64_t>(strides);
      alias.offset = offset;
    }
    plan->aliases.push_back(std::move(alias));
  }
  plan->autocast = autocast != 0;
  plan->minds_hooks = minds_hooks != 0;
  PyObject* object = checked(type->tp_alloc(type, 0));
  auto* self = reinterpret_cast<TrainingCalls*>(object);
  self->forward = Py_NewRef(forward);
  self->backward = Py_NewRef(backward);
  self->compiled = Py_NewRef(compiled);
  self->remember = optional_reference(remember);
  self->replay = Py_NewRef(replay);
  self->pending = optional_reference(pending);
  self->plan = plan.release();
  return object;
  END_HANDLE_TH_ERRORS
}

template <typename Function>
PyCFunction as_c_function(Function function) {
  return reinterpret_cast<PyCFunction>(reinterpret_cast<void*>(function));
}

PyMethodDef calls_methods[] = {
    {"forward", as_c_function(call_forward), METH_FASTCALL, "(context, *inputs) -> the forward outputs."},
    {"backward", as_c_function(call_backward), METH_FASTCALL, "(context, *gradients) -> those of the inputs."},
    {"learn", learn, METH_VARARGS,
     "(callable, what takes a list, what is left of the graph, tangents): the common backward.\n"
     "Of each tangent: (output, sizes, strides, dtype, device), or None and the order of dimensions\n"
     "from the innermost to the outermost."},
    {nullptr, nullptr, 0, nullptr}};

PyType_Slot calls_slots[] = {
    {Py_tp_new, reinterpret_cast<void*>(create)},
    {Py_tp_dealloc, reinterpret_cast<void*>(deallocate)},
    {Py_tp_traverse, reinterpret_cast<void*>(traverse)},
    {Py_tp_clear, reinterpret_cast<void*>(clear)},
    {Py_tp_methods, calls_methods},
    {Py_tp_doc, const_cast<char*>("Forward and backward of a compiled graph, as they mostly are.")},
    {0, nullptr}};

PyType_Spec calls_spec = {"dovetail_autograd_aot._autograd_nodes.TrainingCalls", sizeof(TrainingCalls), 0,
                          Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC, calls_slots};

} // namespace
} // namespace training

// Adds the type to the module.
bool add_training_calls(PyObject* module) {
  PyObject* type = PyType_FromSpec(&training::calls_spec);
  if (type == nullptr) {
    return false;
  }
  const int failed = PyModule_AddObjectRef(module, "TrainingCalls", type);
  Py_DECREF(type);
  return failed == 0;
}

// (callable) -> a method of it, for a class: called on an instance, it gets that first.
PyObject* as_method(PyObject*, PyObject* callable) {
  return PyInstanceMethod_New(callable);
}

} // namespace dovetail
