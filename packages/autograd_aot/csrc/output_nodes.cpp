// The outputs of a compiled call as nodes of autograd's graph.
//
// A compiled graph is one node of autograd's graph. Of two outputs of which one is computed from the
// other, autograd would know nothing: a hook on the other, `retain_grad()`, `torch.autograd.grad`
// would miss what it gets by way of the first. So each output gets a node of its own above the
// compiled one, with edges to the outputs that it is computed from. It gives its gradient on to the
// compiled node as it is, and nothing to the others: the compiled backward goes the whole way. Only
// if somebody asks for the gradient of one of the others is it taken apart (by Python's `by_way`).

#include "nodes.h"

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
  long stage = 0; // when it gets the node, or is made after that of its stage
  Source source = Source::RESULT; // where the tensor is whose gradient may be asked for
  size_t index = 0;
  std::vector<size_t> direct; // the points that it is computed from with no other in between
  std::vector<size_t> below; // all that it is computed from
  std::vector<std::pair<size_t, uint32_t>> gates; // (gate, position) that it leads to
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

// Whether a node is run in this pass.
bool runs(Node* node) {
  const auto* executed = torch::autograd::get_current_graph_task_exec_info();
  if (executed == nullptr || executed->empty()) {
    return true;
  }
  const auto found = executed->find(node);
  return found != executed->end() && found->second.should_execute();
}

[[noreturn]] void throw_error() {
  python_error error;
  error.persist();
  throw std::move(error);
}

// Calls a function of the compiled function's class with its node and these arguments (a format of
// `Py_BuildValue`, without brackets): a sequence of gradients, which go to `given` from `first` on.
template <typename... Arguments>
void ask(Node& node, const char* function, variable_list& given, size_t first, Arguments... arguments) {
  THPObjectPtr compiled(torch::autograd::functionToPyObject(Pointers<NodePointer>::to(&node)));
  THPObjectPtr owner(compiled ? PyObject_GetAttrString(compiled.get(), "_forward_cls") : nullptr);
  THPObjectPtr parts(
      owner ? PyObject_CallMethod(owner.get(), function, arguments..., compiled.get()) : nullptr);
  THPObjectPtr items(parts ? PySequence_Fast(parts.get(), "expected a sequence of gradients") : nullptr);
  if (!items) {
    throw_error();
  }
  const auto count = static_cast<size_t>(PySequence_Fast_GET_SIZE(items.get()));
  TORCH_CHECK(first + count <= given.size(), "more gradients than were asked for");
  for (size_t i = 0; i < count; ++i) {
    PyObject* part = PySequence_Fast_GET_ITEM(items.get(), static_cast<Py_ssize_t>(i));
    if (part != Py_None) {
      given[first + i] = THPVariable_Unpack(part);
    }
  }
}

// Leads to inputs that only some of the outputs lead to, from these. The engine, which comes from any
// output to the compiled node, does not come to these inputs from others.
struct GateNode : Node {
  GateNode(uint64_t time, edge_list&& next, NodePointer compiled_, size_t number_)
      : Node(time, std::move(next)), compiled(std::move(compiled_)), number(number_) {}

  std::string name() const override {
    return "CompiledInputs";
  }

  // `through_gate` of the compiled function takes (the number, the gradients that came, its node).
  variable_list apply(variable_list&& gradients) override {
    variable_list given(num_outputs());
    pybind11::gil_scoped_acquire gil;
    THPObjectPtr came(PyTuple_New(static_cast<Py_ssize_t>(gradients.size())));
    for (size_t i = 0; came && i < gradients.size(); ++i) {
      PyObject* wrapped = THPVariable_Wrap(gradients[i]);
      if (wrapped == nullptr) {
        throw_error();
      }
      PyTuple_SET_ITEM(came.get(), static_cast<Py_ssize_t>(i), wrapped);
    }
    if (!came) {
      throw_error();
    }
    ask(*compiled, "through_gate", given, 0, "nOO", static_cast<Py_ssize_t>(number), came.get());
    return given;
  }

  const NodePointer compiled;
  const size_t number;
};

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
    const Point& point = call->plan->points[number];
    for (size_t i = 1 + point.direct.size(); i < given.size(); ++i) {
      given[i] = gradients[0];
    }
    given[0] = std::move(gradients[0]);
    return given;
  }

  // `by_way` of the compiled function takes (the number of this point, the gradient, the node and
  // position of each point, whether the pass comes to inputs, its node), and gives the gradients of
  // the points that this one is directly computed from.
  void take_apart(const Tensor& gradient, variable_list& given) {
    pybind11::gil_scoped_acquire gil;
    THPObjectPtr wrapped(THPVariable_Wrap(gradient));
    THPObjectPtr places(wrapped ? places_in_python() : nullptr);
    if (!places) {
      throw_error();
    }
    const Point& point = call->plan->points[number];
    bool comes_to_inputs = runs(next_edge(0).function.get());
    for (size_t i = 1 + point.direct.size(); i < num_outputs(); ++i) {
      comes_to_inputs = comes_to_inputs || runs(next_edge(i).function.get());
    }
    ask(*next_edge(0).function, "by_way", given, 1, "nOOiO", static_cast<Py_ssize_t>(number),
        wrapped.get(), places.get(), static_cast<int>(comes_to_inputs));
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

// (list of (forward, stage, source, index, direct, below, gates), order) -> a plan, for `give_nodes`;
// gates as a flat tuple of gates and positions.
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
    PyObject* gates = nullptr;
    if (!PyArg_ParseTuple(PyList_GET_ITEM(points, i), "lllnO!O!O!", &point.forward, &point.stage, &source,
                          &index, &PyTuple_Type, &direct, &PyTuple_Type, &below, &PyTuple_Type, &gates)) {
      return nullptr;
    }
    const std::vector<size_t> pairs = numbers_in(gates);
    for (size_t k = 0; k + 1 < pairs.size(); k += 2) {
      point.gates.emplace_back(pairs[k], static_cast<uint32_t>(pairs[k + 1]));
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

// (plan, stage, results, inputs, outputs, gates): give the results whose turn it is nodes of their
// own. Inputs and outputs are None in the first stage.
PyObject* give_nodes(PyObject*, PyObject* args) {
  HANDLE_TH_ERRORS
  PyObject* capsule = nullptr;
  long stage = 0;
  PyObject* given[3] = {nullptr, nullptr, nullptr};
  PyObject* gates = nullptr;
  if (!PyArg_ParseTuple(args, "OlOOOO!", &capsule, &stage, &given[0], &given[1], &given[2], &PyTuple_Type,
                        &gates)) {
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
      next.reserve(point.direct.size() + point.gates.size() + 1);
      next.push_back(torch::autograd::impl::gradient_edge(*made));
      for (const size_t other : point.direct) {
        next.push_back(edges[other]);
      }
      for (const auto& [gate, position] : point.gates) {
        TORCH_CHECK(static_cast<Py_ssize_t>(gate) < PyTuple_GET_SIZE(gates), "a gate is not open");
        next.emplace_back(pointer_to(PyTuple_GET_ITEM(gates, static_cast<Py_ssize_t>(gate))), position);
      }
      NodePointer node = Pointers<NodePointer>::make<OutputNode>(std::move(next), call, number);
      node->add_input_metadata(*made);
      torch::autograd::impl::set_gradient_edge(*made, Edge(std::move(node), 0));
    }
    if (point.source == Source::INPUT && point.stage >= stage) {
      continue; // (it has its old place yet)
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

// (tuple of (inputs, results), inputs, results) -> a gate for each, that leads to such inputs from
// such results.
PyObject* open_gates(PyObject*, PyObject* args) {
  HANDLE_TH_ERRORS
  PyObject* wanted = nullptr;
  PyObject* inputs = nullptr;
  PyObject* results = nullptr;
  if (!PyArg_ParseTuple(args, "O!O!O!", &PyTuple_Type, &wanted, &PyTuple_Type, &inputs, &PyTuple_Type,
                        &results)) {
    return nullptr;
  }
  THPObjectPtr found(PyTuple_New(PyTuple_GET_SIZE(wanted)));
  for (Py_ssize_t i = 0; found && i < PyTuple_GET_SIZE(wanted); ++i) {
    PyObject* own_inputs = nullptr;
    PyObject* own_results = nullptr;
    if (!PyArg_ParseTuple(PyTuple_GET_ITEM(wanted, i), "O!O!", &PyTuple_Type, &own_inputs, &PyTuple_Type,
                          &own_results)) {
      return nullptr;
    }
    edge_list next;
    for (const size_t index : numbers_in(own_inputs)) {
      const Tensor* input = tensor_at(inputs, index);
      const bool leads = input != nullptr && input->requires_grad();
      next.push_back(leads ? torch::autograd::impl::gradient_edge(*input) : Edge());
    }
    NodePointer compiled;
    std::vector<const Tensor*> made;
    for (const size_t index : numbers_in(own_results)) {
      made.push_back(tensor_at(results, index));
      TORCH_CHECK(made.back() != nullptr && made.back()->grad_fn(), "a result without its gradient");
      compiled = made.back()->grad_fn();
    }
    // The engine takes the latest node first of those that are ready: this one after the compiled one.
    const uint64_t time = compiled->sequence_nr();
    NodePointer node = Pointers<NodePointer>::make<GateNode>(
        time == 0 ? 0 : time - 1, std::move(next), compiled, static_cast<size_t>(i));
    for (const Tensor* tensor : made) {
      node->add_input_metadata(*tensor);
    }
    PyObject* object = torch::autograd::functionToPyObject(node);
    if (object == nullptr) {
      return nullptr;
    }
    PyTuple_SET_ITEM(found.get(), i, object);
  }
  return found.release();
  END_HANDLE_TH_ERRORS
}

// (object) -> whether it is a node of an output, or a gate.
PyObject* is_output_node(PyObject*, PyObject* object) {
  if (!torch::autograd::THPCppFunction_Check(object)) {
    Py_RETURN_FALSE;
  }
  Node* node = reinterpret_cast<torch::autograd::THPCppFunction*>(object)->cdata.get();
  return PyBool_FromLong(dynamic_cast<OutputNode*>(node) != nullptr || dynamic_cast<GateNode*>(node) != nullptr);
}

} // namespace dovetail
