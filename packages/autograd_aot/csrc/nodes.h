// Nodes of autograd's graph: how torch holds them, and what Python calls (see `output_nodes.cpp`,
// `training_calls.h`, `gradient_places.cpp`, `version_counters.cpp`).
#pragma once

#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/python_cpp_function.h>
#include <torch/csrc/autograd/python_function.h>

#include <memory>
#include <type_traits>
#include <utility>

namespace dovetail {

using torch::autograd::Node;
using NodePointer = decltype(torch::autograd::Edge::function); // shared in torch 2.11, intrusive in 2.15

// What differs between the two kinds of pointers.
template <typename Pointer>
struct Pointers;

template <typename T>
struct Pointers<std::shared_ptr<T>> {
  static std::shared_ptr<T> to(T* alive) {
    return alive->getptr();
  }

  template <typename Made, typename... Arguments>
  static std::shared_ptr<T> make(Arguments&&... arguments) {
    // Torch's own deleter (found by its argument) lets go of long chains without recursion.
    return {new Made(std::forward<Arguments>(arguments)...), [](auto* node) { deleteNode(node); }};
  }
};

template <typename T, typename Null>
struct Pointers<c10::intrusive_ptr<T, Null>> {
  static c10::intrusive_ptr<T, Null> to(T* alive) {
    return c10::intrusive_ptr<T, Null>::reclaim_copy(alive);
  }

  template <typename Made, typename... Arguments>
  static c10::intrusive_ptr<T, Null> make(Arguments&&... arguments) {
    return c10::make_intrusive<Made>(std::forward<Arguments>(arguments)...);
  }
};

// What the context of a Python function holds of its node: a weak pointer in torch 2.11.
template <typename Pointer>
NodePointer owned(const Pointer& pointer) {
  if constexpr (requires { pointer.lock(); }) {
    return pointer.lock();
  } else {
    return pointer;
  }
}

// The node behind a Python object.
inline NodePointer pointer_to(PyObject* object) {
  NodePointer found;
  if (THPFunction_Check(object)) {
    found = owned(reinterpret_cast<THPFunction*>(object)->cdata);
    TORCH_CHECK(found, "the node of this context is gone");
  } else if (torch::autograd::THPCppFunction_Check(object)) {
    found = reinterpret_cast<torch::autograd::THPCppFunction*>(object)->cdata;
  }
  TORCH_CHECK_TYPE(found, "expected a node of autograd's graph");
  return found;
}

// Python's functions; what they do and take is told where they are defined.
PyObject* shares_counter(PyObject*, PyObject* args);
PyObject* give_counter(PyObject*, PyObject* args);
PyObject* dependencies(PyObject*, PyObject* tensors);
PyObject* output_plan(PyObject*, PyObject* points);
PyObject* give_nodes(PyObject*, PyObject* args);
PyObject* open_gates(PyObject*, PyObject* args);
PyObject* is_output_node(PyObject*, PyObject* object);
PyObject* arrival(PyObject*, PyObject* args);
PyObject* put_above(PyObject*, PyObject* args);
PyObject* redirect(PyObject*, PyObject* args);
PyObject* as_method(PyObject*, PyObject* callable);
bool add_training_calls(PyObject* module);

} // namespace dovetail
