// Walks through autograd's graph, and where gradients arrive when it is cut (see `calls/cross_output_gradients.py`).

#include "nodes.h"

#include <torch/csrc/Exceptions.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/tensor.h>
#include <torch/csrc/autograd/python_cpp_function.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/autograd/variable.h>

#include <map>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

namespace dovetail {
namespace {

using at::Tensor;
using torch::autograd::Edge;
using torch::autograd::edge_list;
using torch::autograd::variable_list;

// Gives its gradient on: a place in autograd's graph beside that of what made a tensor.
struct Arrival : Node {
  using Node::Node;

  std::string name() const override {
    return "OutputArrival";
  }

  variable_list apply(variable_list&& gradients) override {
    // What a backward saved of a point leads to the point's own backward, from where a gradient of
    // third order would not come to who asks for it at the point.
    TORCH_CHECK(
        !at::GradMode::is_enabled(),
        "create_graph=True twice, for the gradient of one output of a compiled graph by way of "
        "another: call torch.autograd.grad in the compiled function, or leave it uncompiled");
    gradients.resize(num_outputs());
    return std::move(gradients);
  }
};

// For each node, which points are reached with no other in between, as a bit set.
class Reach {
 public:
  explicit Reach(const std::vector<Edge>& points_) : words((points_.size() + 63) / 64) {
    for (size_t i = 0; i < points_.size(); ++i) {
      points.emplace(std::pair(points_[i].function.get(), points_[i].input_nr), i);
    }
  }

  const std::vector<uint64_t>& of(Node* root) {
    std::vector<Node*> stack{root};
    while (!stack.empty()) {
      Node* node = stack.back();
      if (known.count(node) != 0) {
        stack.pop_back();
        continue;
      }
      const size_t height = stack.size();
      for (const Edge& edge : node->next_edges()) {
        if (edge.is_valid() && !point(edge) && known.count(edge.function.get()) == 0) {
          stack.push_back(edge.function.get());
        }
      }
      if (stack.size() != height) {
        continue;
      }
      std::vector<uint64_t> bits(words);
      for (const Edge& edge : node->next_edges()) {
        if (!edge.is_valid()) {
          continue;
        }
        if (const size_t* number = point(edge)) {
          bits[*number / 64] |= uint64_t(1) << (*number % 64);
        } else {
          const auto& others = known.at(edge.function.get());
          for (size_t i = 0; i < words; ++i) {
            bits[i] |= others[i];
          }
        }
      }
      known.emplace(node, std::move(bits));
      stack.pop_back();
    }
    return known.at(root);
  }

 private:
  const size_t* point(const Edge& edge) const {
    const auto found = points.find(std::pair(edge.function.get(), edge.input_nr));
    return found == points.end() ? nullptr : &found->second;
  }

  size_t words;
  std::map<std::pair<Node*, uint32_t>, size_t> points;
  std::unordered_map<Node*, std::vector<uint64_t>> known;
};

} // namespace

// (list of tensors with a grad_fn) -> for each, the positions of those that autograd has a way to
// from it, with no other of them in between.
PyObject* dependencies(PyObject*, PyObject* tensors) {
  HANDLE_TH_ERRORS
  TORCH_CHECK_TYPE(PyList_Check(tensors), "expected a list of tensors");
  std::vector<Edge> edges;
  for (Py_ssize_t i = 0; i < PyList_GET_SIZE(tensors); ++i) {
    PyObject* item = PyList_GET_ITEM(tensors, i);
    TORCH_CHECK_TYPE(THPVariable_Check(item), "expected a list of tensors");
    edges.push_back(torch::autograd::impl::gradient_edge(THPVariable_Unpack(item)));
  }
  Reach reach(edges);
  THPObjectPtr found(PyList_New(0));
  for (const Edge& edge : edges) {
    const auto& bits = reach.of(edge.function.get());
    THPObjectPtr numbers(PyList_New(0));
    for (size_t i = 0; numbers && i < edges.size(); ++i) {
      if (bits[i / 64] >> (i % 64) & 1) {
        THPObjectPtr number(PyLong_FromSize_t(i));
        if (!number || PyList_Append(numbers.get(), number.get()) < 0) {
          return nullptr;
        }
      }
    }
    if (!found || !numbers || PyList_Append(found.get(), numbers.get()) < 0) {
      return nullptr;
    }
  }
  return found.release();
  END_HANDLE_TH_ERRORS
}

// A node that gives its gradient on to `next`, where a gradient of such a tensor arrives.
static PyObject* arrival_of(const Tensor& tensor, edge_list&& next, const std::vector<Edge>& below) {
  NodePointer node = Pointers<NodePointer>::make<Arrival>(std::move(next));
  node->add_input_metadata(tensor);
  for (const Edge& edge : below) {
    node->update_topological_nr(edge);
  }
  if (!below.empty()) {
    torch::autograd::impl::set_gradient_edge(tensor, Edge(node, 0));
  }
  return torch::autograd::functionToPyObject(node);
}

// (tensor, node or None, position) -> a new node where a gradient of such a tensor arrives, which
// leads to the one that is given.
PyObject* arrival(PyObject*, PyObject* args) {
  HANDLE_TH_ERRORS
  PyObject* object = nullptr;
  PyObject* target = nullptr;
  unsigned int position = 0;
  if (!PyArg_ParseTuple(args, "OOI", &object, &target, &position)) {
    return nullptr;
  }
  TORCH_CHECK_TYPE(THPVariable_Check(object), "expected a tensor");
  edge_list next;
  if (target != Py_None) {
    next.emplace_back(pointer_to(target), position);
  }
  return arrival_of(THPVariable_Unpack(object), std::move(next), {});
  END_HANDLE_TH_ERRORS
}

// (tensor, list of (node, position)): put the tensor above these, for the engine, which leaves out
// what cannot lead to where it wants to go, by how far up it is. So an edge that led to what is
// computed from the tensor may be led to one of these nodes.
PyObject* put_above(PyObject*, PyObject* args) {
  HANDLE_TH_ERRORS
  PyObject* object = nullptr;
  PyObject* places = nullptr;
  if (!PyArg_ParseTuple(args, "OO!", &object, &PyList_Type, &places)) {
    return nullptr;
  }
  TORCH_CHECK_TYPE(THPVariable_Check(object), "expected a tensor");
  std::vector<Edge> below;
  for (Py_ssize_t i = 0; i < PyList_GET_SIZE(places); ++i) {
    PyObject* node = nullptr;
    unsigned int position = 0;
    if (!PyArg_ParseTuple(PyList_GET_ITEM(places, i), "OI", &node, &position)) {
      return nullptr;
    }
    below.emplace_back(pointer_to(node), position);
  }
  const Tensor& tensor = THPVariable_Unpack(object);
  THPObjectPtr made(arrival_of(tensor, {torch::autograd::impl::gradient_edge(tensor)}, below));
  if (!made) {
    return nullptr;
  }
  Py_RETURN_NONE;
  END_HANDLE_TH_ERRORS
}

// (list of nodes, list of (node, position, new node), list of nodes): let the edges of the graphs below
// the first nodes, down to the last ones, that lead to such a place lead to its new node.
PyObject* redirect(PyObject*, PyObject* args) {
  HANDLE_TH_ERRORS
  PyObject* roots = nullptr;
  PyObject* places = nullptr;
  PyObject* ends = nullptr;
  if (!PyArg_ParseTuple(args, "O!O!O!", &PyList_Type, &roots, &PyList_Type, &places, &PyList_Type, &ends)) {
    return nullptr;
  }
  std::map<std::pair<Node*, uint32_t>, NodePointer> targets;
  for (Py_ssize_t i = 0; i < PyList_GET_SIZE(places); ++i) {
    PyObject* from = nullptr;
    unsigned int position = 0;
    PyObject* to = nullptr;
    if (!PyArg_ParseTuple(PyList_GET_ITEM(places, i), "OIO", &from, &position, &to)) {
      return nullptr;
    }
    targets[std::pair(pointer_to(from).get(), position)] = pointer_to(to);
  }
  std::unordered_set<Node*> seen;
  for (Py_ssize_t i = 0; i < PyList_GET_SIZE(ends); ++i) {
    seen.insert(pointer_to(PyList_GET_ITEM(ends, i)).get());
  }
  std::vector<Node*> stack;
  for (Py_ssize_t i = 0; i < PyList_GET_SIZE(roots); ++i) {
    stack.push_back(pointer_to(PyList_GET_ITEM(roots, i)).get());
  }
  while (!stack.empty()) {
    Node* node = stack.back();
    stack.pop_back();
    if (!seen.insert(node).second || dynamic_cast<Arrival*>(node) != nullptr) {
      continue;
    }
    auto* write = dynamic_cast<torch::autograd::CopySlices*>(node);
    for (size_t i = 0; i < node->num_outputs(); ++i) {
      Edge& edge = node->next_edges()[i];
      if (!edge.is_valid()) {
        continue;
      }
      const auto found = targets.find(std::pair(edge.function.get(), edge.input_nr));
      if (found == targets.end()) {
        stack.push_back(edge.function.get());
        continue;
      }
      // (The engine would not come to it. See `put_above`, which puts inputs there, but not what
      // comes from none.)
      TORCH_CHECK(
          node->topological_nr() > found->second->topological_nr(),
          "create_graph=True, for the gradient of one output of a compiled graph by way of another "
          "that no input leads to: leave it uncompiled");
      edge = Edge(found->second, 0);
      if (write != nullptr && i > 0) {
        write->fn->next_edges()[i] = edge; // (which it compares)
      }
    }
  }
  Py_RETURN_NONE;
  END_HANDLE_TH_ERRORS
}

} // namespace dovetail
