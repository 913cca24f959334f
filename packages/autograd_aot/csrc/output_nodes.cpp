// The outputs of a compiled call as nodes of autograd's graph.
//
// A compiled graph is one node of autograd's graph. Of two outputs of which one is computed from the
// other, autograd would know nothing: a hook on the other, `retain_grad()`, `torch.autograd.grad`
// would miss what it gets by way of the first. So each output gets a node of its own above the
// compiled one, with edges to the outputs that it is computed from. It gives its gradient on to the
// compiled node as it is, and nothing to the others: the compiled backward goes the whole way. Only
// if somebody asks for the gradient of one of the others is it taken apart (by Python's `across_outputs`).

#include "nodes.h"

#include <torch/csrc/autograd/graph_task.h>
#include <torch/csrc/autograd/python_hook.h>
#include <torch/csrc/autograd/variable.h>

#include <memory>
#include <string_view>
#include <tuple>
#include <typeinfo>
#include <utility>
#include <vector>

namespace dovetail {
namespace {

using Numbers = std::vector<size_t>;

// Where the gradient of a point arrives. (Those that a node is computed from live as long as it does.)
struct Arrives {
  Node* node = nullptr;
  uint32_t position = 0;

  // Whether somebody asks for that gradient, in the pass that runs.
  bool is_asked_for() const;
};

enum class Source { RESULT, INPUT, OUTPUT };

// What is known of a point (`boundary.GradientPoint`) when compiling.
struct Point {
  long forward; // the result that gets the node; none if negative: the tensor has one
  long stage; // when it gets the node, or is made after that of its stage
  Source source; // where the tensor is whose gradient may be asked for
  size_t index;
  Numbers direct; // the points that it is computed from with no other in between
  Numbers below; // all that it is computed from
  std::vector<std::pair<size_t, uint32_t>> inputs; // (input node, position) that it leads to
};

struct Plan {
  std::vector<Point> points;
  Numbers order; // each after those that it is computed from
};

// The points of one call. Through an input that is a view, and written to, a gradient goes on to the
// one that the view is of: that is what `bases` are.
struct Call {
  std::shared_ptr<const Plan> plan;
  std::vector<Arrives> points;
  std::vector<Arrives> bases;
};

bool Arrives::is_asked_for() const {
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

// Calls a function of the compiled function's class with these arguments and its node: a sequence of
// gradients, which go to `given` from `first` on. The interpreter is locked.
template <typename... Arguments>
void ask(const NodePointer& node, const char* function, variable_list& given, size_t first,
         Arguments&&... arguments) {
  try {
    const py::object compiled = in_python(node);
    const py::sequence found =
        compiled.attr("_forward_cls").attr(function)(std::forward<Arguments>(arguments)..., compiled);
    TORCH_CHECK(first + found.size() <= given.size(), "more gradients than were asked for");
    for (const py::handle gradient : found) {
      if (!gradient.is_none()) {
        given[first] = THPVariable_Unpack(gradient.ptr());
      }
      ++first;
    }
  } catch (py::error_already_set& raised) { // (as the engine takes errors from thread to thread)
    raised.restore();
    python_error error;
    error.persist();
    throw std::move(error);
  }
}

// Leads to inputs that only some of the outputs lead to, from these. The engine, which comes from any
// output to the compiled node, does not come to these inputs from others.
struct InputNode : Node {
  InputNode(uint64_t time, edge_list&& next, NodePointer compiled_, size_t number_)
      : Node(time, std::move(next)), compiled(std::move(compiled_)), number(number_) {}

  std::string name() const override {
    return "CompiledInputs";
  }

  // `to_inputs` of the compiled function takes (the number, the gradients that came, its node).
  variable_list apply(variable_list&& gradients) override {
    variable_list given(num_outputs());
    py::gil_scoped_acquire gil;
    py::tuple came(gradients.size());
    for (size_t i = 0; i < gradients.size(); ++i) {
      came[i] = made(THPVariable_Wrap(gradients[i]));
    }
    ask(compiled, "to_inputs", given, 0, number, came);
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
    const Point& point = call->plan->points[number];
    for (const size_t other : point.below) {
      if (call->points[other].is_asked_for() || call->bases[other].is_asked_for()) {
        take_apart(gradients[0], given);
        return given;
      }
    }
    for (size_t i = 1 + point.direct.size(); i < given.size(); ++i) {
      given[i] = gradients[0];
    }
    given[0] = std::move(gradients[0]);
    return given;
  }

  // `across_outputs` of the compiled function takes (the number of this point, the gradient, the node and
  // position of each point, whether the pass comes to inputs, its node), and gives the gradients of
  // the points that this one is directly computed from.
  void take_apart(const Tensor& gradient, variable_list& given) {
    py::gil_scoped_acquire gil;
    const Point& point = call->plan->points[number];
    // The node and position of this point and of each that it is computed from, which live as long as
    // it does; None for the others.
    py::list edges;
    for (size_t i = 0; i < call->points.size(); ++i) {
      edges.append(py::none());
    }
    Numbers alive = point.below;
    alive.push_back(number);
    for (const size_t other : alive) {
      if (const auto& [node, position] = call->points[other]; node != nullptr) {
        edges[other] = py::make_tuple(in_python(Pointers<NodePointer>::to(node)), position);
      }
    }
    bool comes_to_inputs = runs(next_edge(0).function.get());
    for (size_t i = 1 + point.direct.size(); i < num_outputs(); ++i) {
      comes_to_inputs = comes_to_inputs || runs(next_edge(i).function.get());
    }
    ask(next_edge(0).function, "across_outputs", given, 1, number, made(THPVariable_Wrap(gradient)), edges,
        comes_to_inputs);
  }

  const std::shared_ptr<const Call> call;
  const size_t number;
};

const Tensor* tensor_at(py::handle sequence, size_t index) {
  if (sequence.is_none()) {
    return nullptr;
  }
  TORCH_CHECK_TYPE(PyTuple_Check(sequence.ptr()) || PyList_Check(sequence.ptr()),
                   "expected a tuple or a list of tensors");
  PyObject* item = PySequence_Fast_GET_ITEM(sequence.ptr(), static_cast<Py_ssize_t>(index));
  return THPVariable_Check(item) ? &THPVariable_Unpack(item) : nullptr;
}

bool has_history(const Tensor* tensor) {
  return tensor != nullptr && tensor->requires_grad() && tensor->grad_fn();
}

using PointInPython =
    std::tuple<long, long, int, size_t, Numbers, Numbers, std::vector<std::pair<size_t, uint32_t>>>;

std::shared_ptr<Plan> make_plan(const std::vector<PointInPython>& points, Numbers order) {
  auto plan = std::make_shared<Plan>();
  for (const auto& [forward, stage, source, index, direct, below, inputs] : points) {
    plan->points.push_back({forward, stage, static_cast<Source>(source), index, direct, below, inputs});
  }
  plan->order = std::move(order);
  return plan;
}

// Give the results whose turn it is nodes of their own. Inputs and outputs are None in the first
// stage. `input_nodes` are those of this call.
void give_nodes(const std::shared_ptr<Plan>& plan, long stage, py::handle results, py::handle inputs,
                py::handle outputs, const py::tuple& input_nodes) {
  const py::handle given[] = {results, inputs, outputs};
  auto call = std::make_shared<Call>();
  call->plan = plan;
  call->points.resize(plan->points.size());
  call->bases.resize(plan->points.size());
  std::vector<Edge> edges(plan->points.size());
  for (const size_t number : plan->order) {
    const Point& point = plan->points[number];
    if (point.forward >= 0 && point.stage == stage) {
      const Tensor* result = tensor_at(results, static_cast<size_t>(point.forward));
      if (!has_history(result)) {
        continue; // (called where gradients are off)
      }
      edge_list next;
      next.reserve(point.direct.size() + point.inputs.size() + 1);
      next.push_back(torch::autograd::impl::gradient_edge(*result));
      for (const size_t other : point.direct) {
        next.push_back(edges[other]);
      }
      for (const auto& [other, position] : point.inputs) {
        TORCH_CHECK(other < input_nodes.size(), "a node of inputs is missing");
        next.emplace_back(pointer_to(input_nodes[other]), position);
      }
      NodePointer node = Pointers<NodePointer>::make<OutputNode>(std::move(next), call, number);
      node->add_input_metadata(*result);
      torch::autograd::impl::set_gradient_edge(*result, Edge(std::move(node), 0));
    }
    if (point.source == Source::INPUT && point.stage >= stage) {
      continue; // (it has its old edge yet)
    }
    const Tensor* seen = tensor_at(given[static_cast<size_t>(point.source)], point.index);
    if (!has_history(seen)) {
      continue;
    }
    edges[number] = torch::autograd::impl::gradient_edge(*seen);
    call->points[number] = {edges[number].function.get(), edges[number].input_nr};
    if (point.source == Source::INPUT && seen->is_view()) {
      const Tensor whole(seen->_base());
      if (whole.grad_fn()) {
        const Edge base = torch::autograd::impl::gradient_edge(whole);
        call->bases[number] = {base.function.get(), base.input_nr};
      }
    }
  }
}

// For each of (inputs, results), a node that leads to such inputs from such results.
py::tuple make_input_nodes(const std::vector<std::pair<Numbers, Numbers>>& wanted, py::handle inputs,
                           py::handle results) {
  py::tuple found(wanted.size());
  for (size_t i = 0; i < wanted.size(); ++i) {
    const auto& [own_inputs, own_results] = wanted[i];
    edge_list next;
    for (const size_t index : own_inputs) {
      const Tensor* input = tensor_at(inputs, index);
      const bool leads = input != nullptr && input->requires_grad();
      next.push_back(leads ? torch::autograd::impl::gradient_edge(*input) : Edge());
    }
    NodePointer compiled;
    for (const size_t index : own_results) {
      const Tensor* result = tensor_at(results, index);
      TORCH_CHECK(result != nullptr && result->grad_fn(), "a result without its gradient");
      compiled = result->grad_fn();
    }
    // The engine takes the latest node first of those that are ready: this one after the compiled one.
    const uint64_t time = compiled->sequence_nr();
    NodePointer node =
        Pointers<NodePointer>::make<InputNode>(time == 0 ? 0 : time - 1, std::move(next), compiled, i);
    for (const size_t index : own_results) {
      node->add_input_metadata(*tensor_at(results, index));
    }
    found[i] = in_python(node);
  }
  return found;
}

// Whether an object is the node of an output, or of inputs.
bool is_output_node(py::handle object) {
  if (!torch::autograd::THPCppFunction_Check(object.ptr())) {
    return false;
  }
  const NodePointer node = pointer_to(object);
  return dynamic_cast<OutputNode*>(node.get()) != nullptr || dynamic_cast<InputNode*>(node.get()) != nullptr;
}

} // namespace

void add_output_nodes(py::module& module) {
  py::class_<Plan, std::shared_ptr<Plan>>(module, "OutputNodes", "Gives the results of a call their nodes.")
      .def(py::init(torch::wrap_pybind_function(make_plan)),
           "(list of (forward, stage, source, index, direct, below, (input node, position)s), order)")
      .def("give", torch::wrap_pybind_function(give_nodes),
           "(stage, results, inputs, outputs, input nodes): give the results of a stage their nodes.");
  module.def("make_input_nodes", torch::wrap_pybind_function(make_input_nodes),
             "Nodes that lead to inputs from some of the results.");
  module.def("is_output_node", torch::wrap_pybind_function(is_output_node), "Whether a node is one of an output.");
}

} // namespace dovetail
