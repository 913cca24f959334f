// Autograd's graph cut at some of its tensors, so that the gradient of each is that of the others
// which it is directly computed from (see `calls/cross_output_gradients.py`).

#include "nodes.h"

#include <torch/csrc/autograd/functions/tensor.h>
#include <torch/csrc/autograd/variable.h>

#include <map>
#include <optional>
#include <tuple>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

namespace dovetail {
namespace {

using EdgeKey = std::pair<Node*, uint32_t>;

EdgeKey key_of(const Edge& edge) {
  return {edge.function.get(), edge.input_nr};
}

// Gives its gradient on: an edge beside that of what made a tensor.
struct Arrival : Node {
  using Node::Node;

  std::string name() const override {
    return "OutputArrival";
  }

  variable_list apply(variable_list&& gradients) override {
    // What a backward saved of a tensor leads to the tensor's own backward, from where a gradient of
    // third order would not come to who asks for it at the tensor.
    TORCH_CHECK(
        !at::GradMode::is_enabled(),
        "create_graph=True twice, for the gradient of one output of a compiled graph by way of "
        "another: call torch.autograd.grad in the compiled function, or leave it uncompiled");
    gradients.resize(num_outputs());
    return std::move(gradients);
  }
};

// For each node, which of some edges are reached with no other in between, as a bit set.
class Reach {
 public:
  explicit Reach(const std::vector<Edge>& edges) : words((edges.size() + 63) / 64) {
    for (size_t i = 0; i < edges.size(); ++i) {
      numbers.emplace(key_of(edges[i]), i);
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
      std::vector<uint64_t> bits(words);
      for (const Edge& edge : node->next_edges()) {
        if (!edge.is_valid()) {
          continue;
        }
        if (const auto at = numbers.find(key_of(edge)); at != numbers.end()) {
          bits[at->second / 64] |= uint64_t(1) << (at->second % 64);
        } else if (const auto below = known.find(edge.function.get()); below != known.end()) {
          for (size_t i = 0; i < words; ++i) {
            bits[i] |= below->second[i];
          }
        } else {
          stack.push_back(edge.function.get());
        }
      }
      if (stack.size() == height) { // (all below it are known)
        known.emplace(node, std::move(bits));
        stack.pop_back();
      }
    }
    return known.at(root);
  }

 private:
  size_t words;
  std::map<EdgeKey, size_t> numbers;
  std::unordered_map<Node*, std::vector<uint64_t>> known;
};

// For each of some tensors with a grad_fn, the positions of those that autograd has a way to from
// it, with no other of them in between.
std::vector<std::vector<size_t>> dependencies(const std::vector<Tensor>& tensors) {
  std::vector<Edge> edges;
  for (const Tensor& tensor : tensors) {
    edges.push_back(torch::autograd::impl::gradient_edge(tensor));
  }
  Reach reach(edges);
  std::vector<std::vector<size_t>> found;
  for (const Edge& edge : edges) {
    const auto& bits = reach.of(edge.function.get());
    auto& numbers = found.emplace_back();
    for (size_t i = 0; i < edges.size(); ++i) {
      if (bits[i / 64] >> (i % 64) & 1) {
        numbers.push_back(i);
      }
    }
  }
  return found;
}

using EdgeInPython = std::pair<py::object, uint32_t>; // node and position

// A new node where a gradient of a tensor arrives, which leads to the edge that is given.
py::object arrival(const Tensor& tensor, const std::optional<EdgeInPython>& target) {
  edge_list next;
  if (target.has_value()) {
    next.emplace_back(pointer_to(target->first), target->second);
  }
  NodePointer node = Pointers<NodePointer>::make<Arrival>(std::move(next));
  node->add_input_metadata(tensor);
  return in_python(node);
}

// Put a tensor above some nodes, for the engine, which leaves out what cannot lead to where it wants
// to go, by how far up it is. So an edge that led to what is computed from the tensor may be led to
// one of these nodes.
void put_above(const Tensor& tensor, const std::vector<EdgeInPython>& below) {
  NodePointer node =
      Pointers<NodePointer>::make<Arrival>(edge_list{torch::autograd::impl::gradient_edge(tensor)});
  node->add_input_metadata(tensor);
  for (const auto& [target, position] : below) {
    node->update_topological_nr(Edge(pointer_to(target), position));
  }
  torch::autograd::impl::set_gradient_edge(tensor, Edge(node, 0));
}

// Let the edges of the graphs below some nodes, down to the `ends`, that lead to one of the edges
// changed (node, position, new node) lead to its new node.
void redirect(const std::vector<py::object>& roots,
              const std::vector<std::tuple<py::object, uint32_t, py::object>>& changed,
              const std::vector<py::object>& ends) {
  std::map<EdgeKey, NodePointer> targets;
  for (const auto& [from, position, to] : changed) {
    targets[{pointer_to(from).get(), position}] = pointer_to(to);
  }
  std::unordered_set<Node*> seen;
  for (const py::object& end : ends) {
    seen.insert(pointer_to(end).get());
  }
  std::vector<Node*> stack;
  for (const py::object& root : roots) {
    stack.push_back(pointer_to(root).get());
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
      const auto found = targets.find(key_of(edge));
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
}

} // namespace

void add_cut_functions(py::module& module) {
  module.def("dependencies", torch::wrap_pybind_function(dependencies),
             "For each tensor of a list, the positions of those that it is directly computed from.");
  module.def("arrival", torch::wrap_pybind_function(arrival), "A node where a tensor's gradient arrives.");
  module.def("put_above", torch::wrap_pybind_function(put_above), "Put a tensor above edges, for the engine.");
  module.def("redirect", torch::wrap_pybind_function(redirect), "Let edges lead to other nodes.");
}

} // namespace dovetail
