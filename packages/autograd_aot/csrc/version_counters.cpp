// Which tensors share the counter of the writes to them.

#include "nodes.h"

#include <torch/csrc/Exceptions.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/autograd/variable.h>

namespace dovetail {
namespace {

using at::Tensor;

bool two_tensors(PyObject* args, const Tensor*& one, const Tensor*& other) {
  PyObject* first = nullptr;
  PyObject* second = nullptr;
  if (!PyArg_ParseTuple(args, "OO", &first, &second)) {
    return false;
  }
  TORCH_CHECK_TYPE(THPVariable_Check(first) && THPVariable_Check(second), "expected two tensors");
  one = &THPVariable_Unpack(first);
  other = &THPVariable_Unpack(second);
  return true;
}

} // namespace

// (tensor, other) -> whether a write to one is counted for the other: one is, and is taken back.
PyObject* shares_counter(PyObject*, PyObject* args) {
  HANDLE_TH_ERRORS
  const Tensor* one = nullptr;
  const Tensor* other = nullptr;
  if (!two_tensors(args, one, other)) {
    return nullptr;
  }
  if (one->is_inference() || other->is_inference()) {
    Py_RETURN_FALSE; // (they have none)
  }
  const auto version = static_cast<int64_t>(one->_version());
  const auto before = other->_version();
  torch::autograd::impl::bump_version(*one);
  const bool shared = other->_version() != before;
  c10::VariableVersion counter = torch::autograd::impl::version_counter(*one);
  counter.set_version(version);
  return PyBool_FromLong(shared);
  END_HANDLE_TH_ERRORS
}

// (tensor, other): let a tensor, of which no views were taken yet, have the other's counter.
PyObject* give_counter(PyObject*, PyObject* args) {
  HANDLE_TH_ERRORS
  const Tensor* one = nullptr;
  const Tensor* other = nullptr;
  if (!two_tensors(args, one, other)) {
    return nullptr;
  }
  torch::autograd::impl::set_version_counter(*one, torch::autograd::impl::version_counter(*other));
  Py_RETURN_NONE;
  END_HANDLE_TH_ERRORS
}

} // namespace dovetail
