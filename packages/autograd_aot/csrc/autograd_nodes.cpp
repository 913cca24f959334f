// What autograd's graph does not tell in Python: the hooks and streams of its nodes, what the pass
// that runs asks for, which tensors share a version counter; and letting go of what nodes saved.

#include "nodes.h"

#include <torch/csrc/autograd/functions/accumulate_grad.h>
#include <torch/csrc/autograd/functions/tensor.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/csrc/autograd/python_hook.h>
#include <torch/csrc/autograd/variable.h>

#include <string>
#include <string_view>
#include <typeinfo>
#include <unordered_set>
#include <vector>

namespace dovetail {
namespace {

using torch::autograd::AccumulateGrad;

// A hook as one of torch's classes for Python hooks; null for another. (By the name of its type:
// the type information of these classes is not exported.)
template <typename Wanted, typename Hook>
Wanted* as_python(Hook* hook, std::string_view name) {
  const std::string_view found = typeid(*hook).name();
  return found.find(name) == std::string_view::npos ? nullptr : static_cast<Wanted*>(hook);
}

// The hooks of a node: (kind, position, dictionary), which is None for a hook of C++.
py::list hooks(py::handle object) {
  const NodePointer node = pointer_to(object);
  py::list found;
  const auto append = [&](const char* kind, auto* hook, Py_ssize_t position) {
    py::object dict = py::none();
    if (hook != nullptr) {
      dict = py::reinterpret_borrow<py::object>(hook->dict);
    }
    found.append(py::make_tuple(kind, position, dict));
  };
  for (const auto& hook : node->tensor_pre_hooks()) {
    auto* ours = as_python<torch::autograd::PyFunctionTensorPreHook>(hook.get(), "23PyFunctionTensorPreHookE");
    append("tensor", ours, ours == nullptr ? 0 : static_cast<Py_ssize_t>(ours->value_idx));
  }
  for (const auto& hook : node->pre_hooks()) {
    append("pre", as_python<torch::autograd::PyFunctionPreHook>(hook.get(), "17PyFunctionPreHookE"), 0);
  }
  for (const auto& hook : node->post_hooks()) {
    append("post", as_python<torch::autograd::PyFunctionPostHook>(hook.get(), "18PyFunctionPostHookE"), 0);
  }
  for (size_t i = node->retains_grad_hooks().size(); i > 0; --i) {
    found.append(py::make_tuple("retain", 0, py::none()));
  }
  if (auto* leaf = dynamic_cast<AccumulateGrad*>(node.get())) {
    auto& hook = torch::autograd::impl::post_acc_grad_hooks(leaf->variable);
    if (hook) {
      using Accumulated = torch::autograd::PyFunctionTensorPostAccGradHooks;
      append("accumulated", as_python<Accumulated>(hook.get(), "32PyFunctionTensorPostAccGradHooksE"), 0);
    }
  }
  return found;
}

// Of nodes, and the nodes below them, those that have hooks.
py::list hooked_below(const py::list& nodes) {
  std::vector<NodePointer> stack;
  for (const py::handle node : nodes) {
    stack.push_back(pointer_to(node));
  }
  py::list found;
  std::unordered_set<Node*> seen;
  while (!stack.empty()) {
    const NodePointer node = stack.back();
    stack.pop_back();
    if (!seen.insert(node.get()).second) {
      continue;
    }
    auto* leaf = dynamic_cast<AccumulateGrad*>(node.get());
    if (!node->tensor_pre_hooks().empty() || !node->pre_hooks().empty() || !node->post_hooks().empty() ||
        (leaf != nullptr && torch::autograd::impl::post_acc_grad_hooks(leaf->variable) != nullptr)) {
      found.append(in_python(node));
    }
    for (const Edge& edge : node->next_edges()) {
      if (edge.is_valid()) {
        stack.push_back(edge.function);
      }
    }
  }
  return found;
}

void release(py::handle object) {
  const NodePointer node = pointer_to(object);
  node->will_release_variables();
  node->release_variables();
}

// Of a running node whose edges are those of the tensors among its inputs: the inputs whose
// gradients the pass asks for, as a bit set; -1 if it asks for all.
py::object asked_inputs(py::handle object, const std::string& is_tensor) {
  const auto* info = torch::autograd::get_current_graph_task_exec_info();
  if (info == nullptr || info->empty()) {
    return py::int_(-1);
  }
  const NodePointer node = pointer_to(object);
  std::string bits((is_tensor.size() + 7) / 8, '\0');
  size_t edge = 0;
  for (size_t i = 0; i < is_tensor.size(); ++i) {
    if (is_tensor[i]) {
      const auto at = info->find(node->next_edges().at(edge++).function.get());
      if (at != info->end() && at->second.should_execute()) {
        bits[i / 8] |= static_cast<char>(1 << i % 8);
      }
    }
  }
  return py::handle(reinterpret_cast<PyObject*>(&PyLong_Type)).attr("from_bytes")(py::bytes(bits), "little");
}

py::object stream(py::handle object) {
  const auto found = pointer_to(object)->stream();
  if (!found.has_value()) {
    return py::none();
  }
  return py::make_tuple(static_cast<int>(found->device_index()), static_cast<long long>(found->id()));
}

py::tuple numbers(c10::SymIntArrayRef values) {
  py::tuple found(values.size());
  for (size_t i = 0; i < values.size(); ++i) {
    found[i] = py::int_(values[i].expect_int());
  }
  return found;
}

// Of the backward of a write to a view: the node of the operator that wrote, and where base and
// view lie. None for other nodes, and where the view is not made by strides.
py::object written_view(py::handle object) {
  const NodePointer node = pointer_to(object);
  auto* copy = dynamic_cast<torch::autograd::CopySlices*>(node.get());
  if (copy == nullptr || copy->view_fn != nullptr) {
    return py::none();
  }
  const auto &base = copy->base, &view = copy->view;
  return py::make_tuple(in_python(copy->fn), numbers(base.sym_sizes()), numbers(base.sym_strides()),
                        base.sym_storage_offset().expect_int(), numbers(view.sym_sizes()),
                        numbers(view.sym_strides()), view.sym_storage_offset().expect_int());
}

bool is_wrapped_number(const Tensor& tensor) {
  return tensor.unsafeGetTensorImpl()->is_wrapped_number();
}

// Whether a write to one tensor is counted for the other: one is, and is taken back.
bool shares_counter(const Tensor& one, const Tensor& other) {
  if (one.is_inference() || other.is_inference()) {
    return false; // (they have none)
  }
  const auto version = static_cast<int64_t>(one._version());
  const auto before = other._version();
  torch::autograd::impl::bump_version(one);
  const bool shared = other._version() != before;
  c10::VariableVersion counter = torch::autograd::impl::version_counter(one);
  counter.set_version(version);
  return shared;
}

// Let a tensor, of which no views were taken yet, have the version counter of another.
void give_counter(const Tensor& tensor, const Tensor& other) {
  torch::autograd::impl::set_version_counter(tensor, torch::autograd::impl::version_counter(other));
}

// A callable as a method of the class it is put in: called on an instance, it gets that first.
py::object as_method(py::handle callable) {
  return made(PyInstanceMethod_New(callable.ptr()));
}

} // namespace

void add_graph_functions(py::module& module) {
  const auto add = [&](const char* name, auto function, const char* doc) {
    module.def(name, torch::wrap_pybind_function(function), doc);
  };
  add("hooks", hooks, "The hooks of a node: a list of (kind, position, dictionary).");
  add("hooked_below", hooked_below, "Of nodes, and those below them, the ones with hooks.");
  add("release", release, "Let a node go of what it saved.");
  add("asked_inputs", asked_inputs, "The inputs that the pass asks for (running node, which are tensors).");
  add("stream", stream, "(device, stream) that a node runs on; None on the CPU.");
  add("written_view", written_view, "(node, sizes, strides, offset of the base, and of the view) of a write to a view.");
  add("is_wrapped_number", is_wrapped_number, "Whether a tensor stands for a number.");
  add("shares_counter", shares_counter, "Whether a write to one tensor is counted for another.");
  add("give_counter", give_counter, "Let a tensor have the version counter of another.");
  add("as_method", as_method, "A callable as a method of the class it is put in.");
}

} // namespace dovetail
