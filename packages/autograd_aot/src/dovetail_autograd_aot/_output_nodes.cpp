// The outputs of a compiled call as nodes of autograd's graph.
//
// A compiled graph is one node of autograd's graph. Of two outputs of which one is computed from the
// other, autograd would know nothing: a hook on the other, `retain_grad()`, `torch.autograd.grad`
// would miss what it gets by way of the first. So each output gets a node of its own above the
// compiled one, with edges to the outputs that it is computed from. It gives its gradient on to the
// compiled node as it is, and nothing to the others: the compiled backward goes the whole way. Only
// if somebody asks for the gradient of one of the others is it taken apart (by Python's `by_way`).

#include "_nodes.h"

#include <torch/csrc/Exceptions.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/csrc/autograd/python_cpp_function.h>
#include <torch/csrc/autograd/python_function.h>
#include <torch/csrc/autograd/python_hook.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/autograd/variable.h>

#include <memory>
#include <string_view>
#include <typeinfo>
#include <utility>
#include <vector>

namespace dovetail {
namespace {

using at::Tensor;
using torch::autograd::Edge;
using torch::autograd::edge_list;
using torch::autograd::Node;
using torch::autograd::variable_list;

// Where the gradient of a point arrives. Those that a node is computed from live as long as it does.
// Through an input that is a view, and written to, it goes on to the one that the view is of.
struct Place {
  Node* node = nullptr;
  uint32_t position = 0;
  Node* base = nullptr;
  uint32_t base_position = 0;
};

enum class Source { RESULT, INPUT, OUTPUT };

// What is known of a point when compiling.
struct Point {
  long forward = -1; // the result that gets the node; none if negative: the tensor has one
  long stage = 0; // when: 0 before inputs are written and outputs made of results, or 1 after
  Source source = Source::RESULT; // where the tensor is whose gradient may be asked for
  size_t index = 0;
  std::vector<size_t> direct; // the points that it is computed from with no other in between
  std::vector<size_t> below; // all that it is computed from
};

struct Plan {
  std::vector<Point> points;
  std::vector<size_t> order; // each after those that it is computed from
};

// The points of one call.
struct Call {
  std::shared_ptr<const Plan> plan;
  std::vector<Place> places;
};

// Whether somebody asks for the gradient that arrives at a node, in the pass that runs.
bool is_asked_for(Node* node, uint32_t position) {
  if (node == nullptr) {
    return false;
  }
  for (const auto& hook : node->tensor_pre_hooks()) {
    // (By the name of its type: the type information of these classes is not exported.)
    const std::string_view name = typeid(*hook).name();
    if (name.find("23PyFunctionTensorPreHookE") == std::string_view::npos ||
        static_cast<torch::autograd::PyFunctionTensorPreHook*>(hook.get())->value_idx == position) {
      return true;
    }
  }
  const auto& retained = node->retains_grad_hooks();
  if (retained.find(position) != retained.end() || !node->pre_hooks().empty() ||
      !node->post_hooks().empty()) {
    return true;
  }
  const auto* executed = torch::autograd::get_current_graph_task_exec_info();
  if (executed == nullptr) {
    return false;
  }
  const auto found = executed->find(node);
  if (found == executed->end() || !found->second.captures_) {
    return false;
  }
  for (const auto& capture : *found->second.captures_) {
    if (capture.input_idx_ == static_cast<int>(position)) {
      return true;
    }
  }
  return false;
}

bool runs(Node* node) {
  const auto* executed = torch::autograd::get_current_graph_task_exec_info();
  if (executed == nullptr || executed->empty()) {
    return true;
  }
  const auto found = executed->find(node);
  return found != executed->end() && found->second.should_execute();
}

struct OutputNode : Node {
  OutputNode(edge_list&& next, std::shared_ptr<const Call> call_, size_t number_)
      : Node(std::move(next)), call(std::move(call_)), number(number_) {}

  std::string name() const override {
    return "CompiledOutput";
  }

  variable_list apply(variable_list&& gradients) override {
    variable_list given(num_outputs());
    if (!gradients[0].defined()) {
      return given;
    }
    for (const size_t other : call->plan->points[number].below) {
      const Place& place = call->places[other];
      if (is_asked_for(place.node, place.position) || is_asked_for(place.base, place.base_position)) {
        take_apart(gradients[0], given);
        return given;
      }
    }
    given[0] = std::move(gradients[0]);
    return given;
  }

  // `by_way` of the compiled function takes (its node, the number of this point, the gradient, the
  // node and position of each point, whether the compiled node runs in this pass), and gives the
  // gradients of the points that this one is directly computed from.
  void take_apart(const Tensor& gradient, variable_list& given) {
    pybind11::gil_scoped_acquire gil;
    THPObjectPtr compiled(torch::autograd::functionToPyObject(next_edge(0).function));
    THPObjectPtr function(compiled ? PyObject_GetAttrString(compiled.get(), "_forward_cls") : nullptr);
    THPObjectPtr wrapped(THPVariable_Wrap(gradient));
    THPObjectPtr places(function && wrapped ? places_in_python() : nullptr);
    if (!places) {
      throw_error();
    }
    THPObjectPtr parts(PyObject_CallMethod(
        function.get(), "by_way", "OnOOi", compiled.get(), static_cast<Py_ssize_t>(number),
        wrapped.get(), places.get(), static_cast<int>(runs(next_edge(0).function.get()))));
    if (!parts) {
      throw_error();
    }
    THPObjectPtr items(PySequence_Fast(parts.get(), "expected a sequence of gradients"));
    if (!items || static_cast<size_t>(PySequence_Fast_GET_SIZE(items.get())) + 1 != given.size()) {
      TORCH_CHECK(!PyErr_Occurred() && items, "a gradient was not taken apart as it should be");
    }
    for (size_t i = 1; i < given.size(); ++i) {
      PyObject* part = PySequence_Fast_GET_ITEM(items.get(), static_cast<Py_ssize_t>(i - 1));
      if (part != Py_None) {
        given[i] = THPVariable_Unpack(part);
      }
    }
  }

  // (node, position) of this point and of each that it is computed from, which live as long as it
  // does; None for the others.
  PyObject* places_in_python() const {
    THPObjectPtr found(PyTuple_New(static_cast<Py_ssize_t>(call->places.size())));
    for (size_t i = 0; found && i < call->places.size(); ++i) {
      Py_INCREF(Py_None);
      PyTuple_SET_ITEM(found.get(), static_cast<Py_ssize_t>(i), Py_None);
    }
    std::vector<size_t> alive = call->plan->points[number].below;
    alive.push_back(number);
    for (const size_t other : alive) {
      const Place& place = call->places[other];
      if (!found || place.node == nullptr) {
        continue;
      }
      PyObject* object = torch::autograd::functionToPyObject(Pointers<NodePointer>::to(place.node));
      PyObject* item = object == nullptr ? nullptr : Py_BuildValue("(NI)", object, place.position);
      if (item == nullptr || PyTuple_SetItem(found.get(), static_cast<Py_ssize_t>(other), item) < 0) {
        return nullptr;
      }
    }
    return found.release();
  }

  [[noreturn]] static void throw_error() {
    python_error error;
    error.persist();
    throw std::move(error);
  }

  const std::shared_ptr<const Call> call;
  const size_t number;
};

const Tensor* tensor_at(PyObject* sequence, size_t index) {
  if (sequence == Py_None) {
    return nullptr;
  }
  PyObject* item = PySequence_Fast_GET_ITEM(sequence, static_cast<Py_ssize_t>(index));
  return THPVariable_Check(item) ? &THPVariable_Unpack(item) : nullptr;
}

std::vector<size_t> numbers_in(PyObject* tuple) {
  std::vector<size_t> found;
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(tuple); ++i) {
    found.push_back(PyLong_AsSize_t(PyTuple_GET_ITEM(tuple, i)));
  }
  return found;
}

constexpr const char* PLAN = "dovetail.output_plan";

void free_plan(PyObject* capsule) {
  delete static_cast<std::shared_ptr<const Plan>*>(PyCapsule_GetPointer(capsule, PLAN));
}

} // namespace

// (list of (forward, stage, source, index, direct, below), order) -> a plan, for `give_nodes`.
PyObject* output_plan(PyObject*, PyObject* args) {
  HANDLE_TH_ERRORS
  PyObject* points = nullptr;
  PyObject* order = nullptr;
  if (!PyArg_ParseTuple(args, "O!O!", &PyList_Type, &points, &PyTuple_Type, &order)) {
    return nullptr;
  }
  auto plan = std::make_shared<Plan>();
  for (Py_ssize_t i = 0; i < PyList_GET_SIZE(points); ++i) {
    Point point;
    long source = 0;
    Py_ssize_t index = 0;
    PyObject* direct = nullptr;
    PyObject* below = nullptr;
    if (!PyArg_ParseTuple(PyList_GET_ITEM(points, i), "lllnO!O!", &point.forward, &point.stage, &source,
                          &index, &PyTuple_Type, &direct, &PyTuple_Type, &below)) {
      return nullptr;
    }
    point.source = static_cast<Source>(source);
    point.index = static_cast<size_t>(index);
    point.direct = numbers_in(direct);
    point.below = numbers_in(below);
    plan->points.push_back(std::move(point));
  }
  plan->order = numbers_in(order);
  if (PyErr_Occurred()) {
    return nullptr;
  }
  return PyCapsule_New(new std::shared_ptr<const Plan>(std::move(plan)), PLAN, free_plan);
  END_HANDLE_TH_ERRORS
}

// (plan, stage, results, inputs, outputs): give the results whose turn it is nodes of their own. The
// last two are None in the first stage.
PyObject* give_nodes(PyObject*, PyObject* args) {
  HANDLE_TH_ERRORS
  PyObject* capsule = nullptr;
  long stage = 0;
  PyObject* given[3] = {nullptr, nullptr, nullptr};
  if (!PyArg_ParseTuple(args, "OlOOO", &capsule, &stage, &given[0], &given[1], &given[2])) {
    return nullptr;
  }
  const auto* pointer = static_cast<std::shared_ptr<const Plan>*>(PyCapsule_GetPointer(capsule, PLAN));
  if (pointer == nullptr) {
    return nullptr;
  }
  for (int i = 0; i < 3; ++i) {
    const bool is_sequence = PyTuple_Check(given[i]) || PyList_Check(given[i]);
    TORCH_CHECK_TYPE(is_sequence || given[i] == Py_None, "expected a tuple or a list of tensors");
  }
  const Plan& plan = **pointer;
  auto call = std::make_shared<Call>();
  call->plan = *pointer;
  call->places.resize(plan.points.size());
  std::vector<Edge> edges(plan.points.size());
  for (const size_t number : plan.order) {
    const Point& point = plan.points[number];
    if (point.forward >= 0 && point.stage == stage) {
      const Tensor* made = tensor_at(given[0], static_cast<size_t>(point.forward));
      if (made == nullptr || !made->requires_grad() || !made->grad_fn()) {
        continue; // (called where gradients are off)
      }
      edge_list next;
      next.reserve(point.direct.size() + 1);
      next.push_back(torch::autograd::impl::gradient_edge(*made));
      for (const size_t other : point.direct) {
        next.push_back(edges[other]);
      }
      NodePointer node = Pointers<NodePointer>::make<OutputNode>(std::move(next), call, number);
      node->add_input_metadata(*made);
      torch::autograd::impl::set_gradient_edge(*made, Edge(std::move(node), 0));
    }
    const Tensor* seen = tensor_at(given[static_cast<size_t>(point.source)], point.index);
    if (seen == nullptr || !seen->requires_grad() || !seen->grad_fn()) {
      continue;
    }
    edges[number] = torch::autograd::impl::gradient_edge(*seen);
    Place& place = call->places[number];
    place.node = edges[number].function.get();
    place.position = edges[number].input_nr;
    if (point.source == Source::INPUT && seen->is_view()) {
      const Tensor whole(seen->_base());
      if (whole.grad_fn()) {
        const Edge base = torch::autograd::impl::gradient_edge(whole);
        place.base = base.function.get();
        place.base_position = base.input_nr;
      }
    }
  }
  Py_RETURN_NONE;
  END_HANDLE_TH_ERRORS
}

// (object) -> whether it is a node of an output.
PyObject* is_output_node(PyObject*, PyObject* object) {
  if (!torch::autograd::THPCppFunction_Check(object)) {
    Py_RETURN_FALSE;
  }
  Node* node = reinterpret_cast<torch::autograd::THPCppFunction*>(object)->cdata.get();
  return PyBool_FromLong(dynamic_cast<OutputNode*>(node) != nullptr);
}

} // namespace dovetail
