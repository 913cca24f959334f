// What is known of a compiled graph's calls in training (see `training_calls.cpp`).
#pragma once

#include "nodes.h"

#include <utility>
#include <vector>

namespace dovetail::training {

[[noreturn]] inline void rethrow() {
  python_error error;
  error.persist();
  throw std::move(error);
}

inline PyObject* checked(PyObject* object) {
  if (object == nullptr) {
    rethrow();
  }
  return object;
}

inline void checked(int status) {
  if (status < 0) {
    rethrow();
  }
}

// The gradient that the compiled backward takes for one of the outputs.
struct Tangent {
  size_t output = 0;
  std::vector<int64_t> sizes; // with its strides, if they are known
  std::vector<int64_t> strides;
  std::vector<size_t> order; // else its dimensions, from the innermost to the outermost
  bool known = false;
  at::ScalarType dtype = at::kFloat;
  at::Device device = at::kCPU;
};

// An output that is to be a view of a saved value, with its geometry if that is known.
struct Alias {
  size_t output = 0;
  size_t saved = 0;
  bool known = false;
  std::vector<int64_t> sizes;
  std::vector<int64_t> strides;
  int64_t offset = 0;
};

// How a saved value is kept: with autograd as it is; detached, as the input is about to get another
// shape; with a version counter of its own; on the context, as it is a number; so only where hooks
// pack and unpack what is saved.
enum class Kept : char { AS_IT_IS, DETACHED, RECOUNTED, ON_CONTEXT, ON_CONTEXT_IF_HOOKED };

struct Plan {
  size_t outputs = 0;
  std::vector<size_t> primals; // the inputs that are saved: first of all saved values
  std::vector<Kept> saved;
  std::vector<size_t> constant; // the outputs that have no gradient
  std::vector<size_t> recounted; // the outputs that get version counters of their own
  std::vector<Alias> aliases;
  std::vector<char> inputs; // TENSOR, REACHED or neither
  std::vector<Tangent> tangents;
  bool no_autocast = false; // is it to be switched off in the forward?
  bool minds_hooks = false; // is there more to do where hooks take saved tensors?
  bool always_finishes = false; // is `finish` called without hooks, too?
};

constexpr char TENSOR = 1; // an input that is a tensor: the node has an edge for it
constexpr char REACHED = 2; // one that gets a gradient

struct TrainingCalls {
  PyObject_HEAD
  PyObject* backward; // for all but the common calls
  PyObject* compiled;
  PyObject* remember; // called with the inputs; null if `replay` can be made here
  PyObject* finish; // called with context, inputs, outputs and all results; null if nothing is left
  PyObject* replay;
  PyObject* pending; // not empty while gradients were taken apart; null if they never are
  // Known after the first common backward:
  PyObject* consume; // takes a list; null if there is no such thing
  PyObject* run;
  PyObject* remaining; // what a backward that frees the graph leaves
  Plan* plan;
};

// Methods of the type in Python; what they do and take is told where they are defined.
PyObject* call_forward(PyObject* calls, PyObject* const* args, Py_ssize_t given);
PyObject* call_backward(PyObject* calls, PyObject* const* args, Py_ssize_t given);

} // namespace dovetail::training
