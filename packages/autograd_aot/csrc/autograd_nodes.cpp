// What the nodes of autograd's graph do not tell in Python: their hooks, their stream; and letting
// go of what they saved. Plain C API; only autograd's own headers.

#include "nodes.h"

#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>
#include <torch/csrc/autograd/functions/tensor.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/csrc/autograd/python_cpp_function.h>
#include <torch/csrc/autograd/python_function.h>
#include <torch/csrc/autograd/python_hook.h>
#include <torch/csrc/autograd/python_variable.h>

#include <string>
#include <string_view>
#include <typeinfo>
#include <unordered_set>
#include <vector>

namespace {

using dovetail::NodePointer;
using dovetail::pointer_to;
using torch::autograd::Node;

// A hook as one of torch's classes for Python hooks; null for another. (By the name of its type:
// the type information of these classes is not exported.)
template <typename Wanted, typename Hook>
Wanted* as_python(Hook* hook, std::string_view name) {
  const std::string_view found = typeid(*hook).name();
  return found.find(name) == std::string_view::npos ? nullptr : static_cast<Wanted*>(hook);
}

// Appends (kind, position, dictionary of hooks); the dictionary is None for a hook of C++.
bool append(PyObject* list, const char* kind, Py_ssize_t position, PyObject* dict) {
  PyObject* item = Py_BuildValue("(snO)", kind, position, dict == nullptr ? Py_None : dict);
  if (item == nullptr) {
    return false;
  }
  const int failed = PyList_Append(list, item);
  Py_DECREF(item);
  return failed == 0;
}

PyObject* hooks(PyObject*, PyObject* object) {
  HANDLE_TH_ERRORS
  const NodePointer held = pointer_to(object);
  Node* node = held.get();
  PyObject* found = PyList_New(0);
  if (found == nullptr) {
    return nullptr;
  }
  bool ok = true;
  for (const auto& hook : node->tensor_pre_hooks()) {
    auto* ours = as_python<torch::autograd::PyFunctionTensorPreHook>(hook.get(), "23PyFunctionTensorPreHookE");
    ok = ok &&
        append(found, "tensor", ours ? static_cast<Py_ssize_t>(ours->value_idx) : 0,
               ours ? ours->dict : nullptr);
  }
  for (const auto& hook : node->pre_hooks()) {
    auto* ours = as_python<torch::autograd::PyFunctionPreHook>(hook.get(), "17PyFunctionPreHookE");
    ok = ok && append(found, "pre", 0, ours ? ours->dict : nullptr);
  }
  for (const auto& hook : node->post_hooks()) {
    auto* ours = as_python<torch::autograd::PyFunctionPostHook>(hook.get(), "18PyFunctionPostHookE");
    ok = ok && append(found, "post", 0, ours ? ours->dict : nullptr);
  }
  for (size_t i = node->retains_grad_hooks().size(); i > 0; --i) {
    ok = ok && append(found, "retain", 0, nullptr);
  }
  if (auto* leaf = dynamic_cast<torch::autograd::AccumulateGrad*>(node)) {
    auto& hook = torch::autograd::impl::post_acc_grad_hooks(leaf->variable);
    if (hook) {
      auto* ours = as_python<torch::autograd::PyFunctionTensorPostAccGradHooks>(hook.get(), "32PyFunctionTensorPostAccGradHooksE");
      ok = ok && append(found, "accumulated", 0, ours ? ours->dict : nullptr);
    }
  }
  if (!ok) {
    Py_DECREF(found);
    return nullptr;
  }
  return found;
  END_HANDLE_TH_ERRORS
}

// (list of nodes) -> those of them, and of the nodes below, that have hooks.
PyObject* hooked_below(PyObject*, PyObject* list) {
  HANDLE_TH_ERRORS
  TORCH_CHECK_TYPE(PyList_Check(list), "expected a list of nodes");
  std::vector<NodePointer> stack;
  for (Py_ssize_t i = 0; i < PyList_GET_SIZE(list); ++i) {
    stack.push_back(pointer_to(PyList_GET_ITEM(list, i)));
  }
  THPObjectPtr found(PyList_New(0));
  std::unordered_set<Node*> seen;
  while (found && !stack.empty()) {
    const NodePointer node = stack.back();
    stack.pop_back();
    if (!seen.insert(node.get()).second) {
      continue;
    }
    auto* leaf = dynamic_cast<torch::autograd::AccumulateGrad*>(node.get());
    if (!node->tensor_pre_hooks().empty() || !node->pre_hooks().empty() || !node->post_hooks().empty() ||
        (leaf != nullptr && torch::autograd::impl::post_acc_grad_hooks(leaf->variable) != nullptr)) {
      THPObjectPtr object(torch::autograd::functionToPyObject(node));
      if (!object || PyList_Append(found.get(), object.get()) < 0) {
        return nullptr;
      }
    }
    for (const auto& edge : node->next_edges()) {
      if (edge.is_valid()) {
        stack.push_back(edge.function);
      }
    }
  }
  return found.release();
  END_HANDLE_TH_ERRORS
}

PyObject* release(PyObject*, PyObject* object) {
  HANDLE_TH_ERRORS
  const NodePointer held = pointer_to(object);
  Node* node = held.get();
  node->will_release_variables();
  node->release_variables();
  Py_RETURN_NONE;
  END_HANDLE_TH_ERRORS
}

// Of a running node whose edges are those of the tensors among its inputs: the inputs whose
// gradients the pass asks for, as a bit set; -1 if it asks for all.
PyObject* asked_inputs(PyObject*, PyObject* args) {
  HANDLE_TH_ERRORS
  PyObject* object;
  PyObject* is_tensor;  // bytes, for each input
  if (!PyArg_ParseTuple(args, "OS", &object, &is_tensor)) {
    return nullptr;
  }
  const auto* info = torch::autograd::get_current_graph_task_exec_info();
  if (info == nullptr || info->empty()) {
    return PyLong_FromLong(-1);
  }
  const NodePointer held = pointer_to(object);
  const auto& edges = held.get()->next_edges();
  const std::string_view tensors(PyBytes_AS_STRING(is_tensor), PyBytes_GET_SIZE(is_tensor));
  std::string bits((tensors.size() + 7) / 8, '\0');
  size_t edge = 0;
  for (size_t i = 0; i < tensors.size(); ++i) {
    if (tensors[i]) {
      const auto at = info->find(edges.at(edge++).function.get());
      if (at != info->end() && at->second.should_execute()) {
        bits[i / 8] |= static_cast<char>(1 << i % 8);
      }
    }
  }
  THPObjectPtr packed(PyBytes_FromStringAndSize(bits.data(), static_cast<Py_ssize_t>(bits.size())));
  auto* number = reinterpret_cast<PyObject*>(&PyLong_Type);
  return packed ? PyObject_CallMethod(number, "from_bytes", "Os", packed.get(), "little") : nullptr;
  END_HANDLE_TH_ERRORS
}

PyObject* stream(PyObject*, PyObject* object) {
  HANDLE_TH_ERRORS
  const NodePointer held = pointer_to(object);
  Node* node = held.get();
  const auto found = node->stream();
  if (!found.has_value()) {
    Py_RETURN_NONE;
  }
  return Py_BuildValue("(iL)", static_cast<int>(found->device_index()),
                       static_cast<long long>(found->id()));
  END_HANDLE_TH_ERRORS
}

PyObject* numbers(c10::SymIntArrayRef values) {
  PyObject* found = PyTuple_New(static_cast<Py_ssize_t>(values.size()));
  for (size_t i = 0; found != nullptr && i < values.size(); ++i) {
    PyObject* number = PyLong_FromLongLong(values[i].expect_int());
    if (number == nullptr) {
      Py_CLEAR(found);
      break;
    }
    PyTuple_SET_ITEM(found, static_cast<Py_ssize_t>(i), number);
  }
  return found;
}

// Of the backward of a write to a view: the node of the operator that wrote, and where base and
// view lie. None for other nodes, and where the view is not made by strides.
PyObject* written_view(PyObject*, PyObject* object) {
  HANDLE_TH_ERRORS
  const NodePointer held = pointer_to(object);
  Node* node = held.get();
  auto* copy = dynamic_cast<torch::autograd::CopySlices*>(node);
  if (copy == nullptr || copy->view_fn != nullptr) {
    Py_RETURN_NONE;
  }
  PyObject* inner = torch::autograd::functionToPyObject(copy->fn);
  if (inner == nullptr) {
    return nullptr;
  }
  return Py_BuildValue("(NNNLNNL)", inner, numbers(copy->base.sym_sizes()),
                       numbers(copy->base.sym_strides()),
                       static_cast<long long>(copy->base.sym_storage_offset().expect_int()),
                       numbers(copy->view.sym_sizes()), numbers(copy->view.sym_strides()),
                       static_cast<long long>(copy->view.sym_storage_offset().expect_int()));
  END_HANDLE_TH_ERRORS
}

PyObject* is_wrapped_number(PyObject*, PyObject* object) {
  if (!THPVariable_Check(object)) {
    PyErr_SetString(PyExc_TypeError, "expected a tensor");
    return nullptr;
  }
  return PyBool_FromLong(THPVariable_Unpack(object).unsafeGetTensorImpl()->is_wrapped_number());
}

PyMethodDef methods[] = {
    {"hooks", hooks, METH_O, "The hooks of a node: a list of (kind, position, dictionary)."},
    {"hooked_below", hooked_below, METH_O, "Of nodes, and those below them, the ones with hooks."},
    {"release", release, METH_O, "Let a node go of what it saved."},
    {"asked_inputs", asked_inputs, METH_VARARGS,
     "(running node, for each input whether it is a tensor): those that the pass asks for."},
    {"stream", stream, METH_O, "(device, stream) that a node runs on; None on the CPU."},
    {"written_view", written_view, METH_O,
     "(node, sizes, strides, offset of the base, and of the view) of a write to a view."},
    {"is_wrapped_number", is_wrapped_number, METH_O, "Whether a tensor stands for a number."},
    {"shares_counter", dovetail::shares_counter, METH_VARARGS,
     "Whether a write to one tensor is counted for another."},
    {"give_counter", dovetail::give_counter, METH_VARARGS,
     "Let a tensor have the version counter of another."},
    {"dependencies", dovetail::dependencies, METH_O,
     "For each tensor of a list, the positions of those that it is directly computed from."},
    {"output_plan", dovetail::output_plan, METH_VARARGS, "A plan for `give_nodes`."},
    {"give_nodes", dovetail::give_nodes, METH_VARARGS,
     "Give the results of a compiled function nodes of their own."},
    {"open_gates", dovetail::open_gates, METH_VARARGS,
     "Nodes that lead to inputs from some of the results."},
    {"is_output_node", dovetail::is_output_node, METH_O, "Whether a node is one of an output."},
    {"arrival", dovetail::arrival, METH_VARARGS, "A node where a tensor's gradient arrives."},
    {"put_above", dovetail::put_above, METH_VARARGS, "Put a tensor above places, for the engine."},
    {"redirect", dovetail::redirect, METH_VARARGS, "Let edges lead to other nodes."},
    {"as_method", dovetail::as_method, METH_O, "A callable as a method of the class it is put in."},
    {nullptr, nullptr, 0, nullptr}};

PyModuleDef definition = {PyModuleDef_HEAD_INIT, "_autograd_nodes", nullptr, -1, methods,
                          nullptr, nullptr, nullptr, nullptr};

} // namespace

PyMODINIT_FUNC PyInit__autograd_nodes() {
  PyObject* module = PyModule_Create(&definition);
  if (module != nullptr &&
      (PyModule_AddStringConstant(module, "TORCH_VERSION", DOVETAIL_TORCH_VERSION) < 0 ||
       !dovetail::add_training_calls(module))) {
    Py_DECREF(module);
    return nullptr;
  }
  return module;
}
