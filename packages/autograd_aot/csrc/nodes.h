// Nodes of autograd's graph: how torch holds them, and what Python is given of them.
#pragma once

#include <torch/csrc/Exceptions.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/python_cpp_function.h>
#include <torch/csrc/autograd/python_function.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/utils/pybind.h>

#include <pybind11/stl.h>

#include <memory>
#include <type_traits>
#include <utility>

namespace dovetail {

namespace py = pybind11;

using at::Tensor;
using torch::autograd::Edge;
using torch::autograd::edge_list;
using torch::autograd::Node;
using torch::autograd::variable_list;
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
inline NodePointer pointer_to(py::handle object) {
  NodePointer found;
  if (THPFunction_Check(object.ptr())) {
    found = owned(reinterpret_cast<THPFunction*>(object.ptr())->cdata);
    TORCH_CHECK(found, "the node of this context is gone");
  } else if (torch::autograd::THPCppFunction_Check(object.ptr())) {
    found = reinterpret_cast<torch::autograd::THPCppFunction*>(object.ptr())->cdata;
  }
  TORCH_CHECK_TYPE(found, "expected a node of autograd's graph");
  return found;
}

// A Python object that was just made; raises the error of Python's if there is none.
inline py::object made(PyObject* object) {
  if (object == nullptr) {
    throw py::error_already_set();
  }
  return py::reinterpret_steal<py::object>(object);
}

// The Python object of a node.
inline py::object in_python(NodePointer node) {
  return made(torch::autograd::functionToPyObject(std::move(node)));
}

} // namespace dovetail
