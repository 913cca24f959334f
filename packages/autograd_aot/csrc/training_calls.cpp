// Forward and backward of a compiled graph in training.
//
// A call of a small graph costs less than the bookkeeping around it would in Python. So what is
// known when compiling is a plan here, and the common call runs no Python between autograd and the
// compiled code (`training_steps.cpp`). All other backwards (gradients that are missing, or not asked
// for; `create_graph`, anomaly mode; a backward after another one of other outputs; gradients of
// `vmap`) go to the function of `calls/autograd_function.py`, which does all of it.

#include "training_calls.h"

#include <torch/csrc/Device.h>
#include <torch/csrc/Dtype.h>

#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

namespace dovetail::training {
namespace {

using Sizes = std::vector<int64_t>;

template <typename Value>
Value cast(py::handle object) {
  return object.cast<Value>();
}

PyObject* optional_reference(PyObject* object) {
  return object == Py_None ? nullptr : Py_NewRef(object);
}

// (callable, what takes a list or None, what is left of the graph, tangents): the common backward.
PyObject* learn(PyObject* object, PyObject* args) {
  HANDLE_TH_ERRORS
  auto* self = reinterpret_cast<TrainingCalls*>(object);
  PyObject *run = nullptr, *consume = nullptr, *remaining = nullptr, *tangents = nullptr;
  if (!PyArg_ParseTuple(args, "OOOO!", &run, &consume, &remaining, &PyTuple_Type, &tangents)) {
    return nullptr;
  }
  if (self->run != nullptr) { // (another thread may be about to call it)
    Py_RETURN_NONE;
  }
  using InPython = std::tuple<size_t, std::optional<Sizes>, Sizes, py::object, py::object>;
  std::vector<Tangent> known;
  for (auto& [output, sizes, layout, dtype, device] : cast<std::vector<InPython>>(tangents)) {
    TORCH_CHECK(output < self->plan->outputs, "a gradient of no output");
    TORCH_CHECK_TYPE(THPDtype_Check(dtype.ptr()) && THPDevice_Check(device.ptr()), "expected a dtype and a device");
    Tangent& tangent = known.emplace_back();
    tangent.output = output;
    tangent.known = sizes.has_value();
    if (tangent.known) {
      tangent.sizes = std::move(*sizes);
      tangent.strides = std::move(layout);
    } else {
      tangent.order.assign(layout.begin(), layout.end());
    }
    tangent.dtype = reinterpret_cast<THPDtype*>(dtype.ptr())->scalar_type;
    tangent.device = reinterpret_cast<THPDevice*>(device.ptr())->device;
  }
  self->plan->tangents = std::move(known);
  self->remaining = Py_NewRef(remaining);
  self->consume = optional_reference(consume);
  self->run = Py_NewRef(run);
  Py_RETURN_NONE;
  END_HANDLE_TH_ERRORS
}

int traverse(PyObject* object, visitproc visit, void* arg) {
  auto* self = reinterpret_cast<TrainingCalls*>(object);
  Py_VISIT(Py_TYPE(object));
  for (PyObject* held : {self->backward, self->compiled, self->remember, self->finish, self->replay,
                         self->pending, self->consume, self->run, self->remaining}) {
    Py_VISIT(held);
  }
  return 0;
}

int clear(PyObject* object) {
  auto* self = reinterpret_cast<TrainingCalls*>(object);
  for (PyObject** held : {&self->backward, &self->compiled, &self->remember, &self->finish, &self->replay,
                          &self->pending, &self->consume, &self->run, &self->remaining}) {
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

std::unique_ptr<Plan> plan_of(const py::dict& given) {
  auto plan = std::make_unique<Plan>();
  plan->outputs = cast<size_t>(given["outputs"]);
  plan->primals = cast<std::vector<size_t>>(given["primals"]);
  plan->constant = cast<std::vector<size_t>>(given["constant"]);
  plan->recounted = cast<std::vector<size_t>>(given["recounted"]);
  const auto inputs = cast<std::string>(given["inputs"]);
  plan->inputs.assign(inputs.begin(), inputs.end());
  for (const char kept : cast<std::string>(given["saved"])) {
    plan->saved.push_back(static_cast<Kept>(kept));
  }
  plan->no_autocast = cast<bool>(given["no_autocast"]);
  plan->minds_hooks = cast<bool>(given["minds_hooks"]);
  plan->always_finishes = cast<bool>(given["always_finishes"]);
  for (const size_t i : plan->primals) {
    TORCH_CHECK(i < plan->inputs.size(), "no such input");
  }
  for (const auto& outputs : {plan->constant, plan->recounted}) {
    for (const size_t i : outputs) {
      TORCH_CHECK(i < plan->outputs, "no such output");
    }
  }
  using InPython = std::tuple<size_t, size_t, std::optional<std::tuple<Sizes, Sizes, int64_t>>>;
  for (const auto& [output, saved, geometry] : cast<std::vector<InPython>>(given["aliases"])) {
    const size_t values = plan->saved.size() - plan->primals.size();
    TORCH_CHECK(output < plan->outputs && saved < values, "no such output, or saved value");
    Alias& alias = plan->aliases.emplace_back();
    alias.output = output;
    alias.saved = saved;
    alias.known = geometry.has_value();
    if (alias.known) {
      std::tie(alias.sizes, alias.strides, alias.offset) = *geometry;
    }
  }
  return plan;
}

PyObject* create(PyTypeObject* type, PyObject* args, PyObject* keywords) {
  HANDLE_TH_ERRORS
  TORCH_CHECK_TYPE(PyTuple_GET_SIZE(args) == 0 && keywords != nullptr, "TrainingCalls takes keyword arguments");
  const auto given = py::reinterpret_borrow<py::dict>(keywords);
  const auto taken = [&](const char* name) { return py::object(given[name]).release().ptr(); };
  const py::object replay = given["replay"];
  TORCH_CHECK_TYPE(PyType_Check(replay.ptr()) &&
                       PyType_IsSubtype(reinterpret_cast<PyTypeObject*>(replay.ptr()), &PyTuple_Type),
                   "expected a named tuple");
  std::unique_ptr<Plan> plan = plan_of(given);
  const py::object object = made(type->tp_alloc(type, 0));
  auto* self = reinterpret_cast<TrainingCalls*>(object.ptr());
  self->plan = plan.release();
  self->replay = taken("replay");
  self->backward = taken("backward");
  self->compiled = taken("compiled");
  self->remember = optional_reference(py::object(given["remember"]).ptr());
  self->finish = optional_reference(py::object(given["finish"]).ptr());
  self->pending = optional_reference(py::object(given["pending"]).ptr());
  return Py_NewRef(object.ptr());
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
    {Py_tp_doc, const_cast<char*>("Forward and backward of a compiled graph.")},
    {0, nullptr}};

PyType_Spec calls_spec = {"dovetail_autograd_aot._autograd_nodes.TrainingCalls", sizeof(TrainingCalls), 0,
                          Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC, calls_slots};

} // namespace

void add_training_calls(py::module& module) {
  module.attr("TrainingCalls") = made(PyType_FromSpec(&calls_spec));
}

} // namespace dovetail::training
