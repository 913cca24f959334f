// What a replayed CUDA graph's calls need natively: whether inputs lie where the graph reads them,
// and results handed out over the graph's own memory.
#pragma once

#include <c10/core/TensorImpl.h>

#include "program.h"
#include "python_errors.h"

namespace dovetail {

// Another tensor over the same memory, with a version counter of its own.
inline at::Tensor share(const at::Tensor& tensor) {
  at::Tensor made = at::detail::make_tensor<c10::TensorImpl>(
      c10::Storage(tensor.storage()), tensor.key_set(), tensor.dtype());
  made.unsafeGetTensorImpl()->set_sizes_and_strides(tensor.sizes(), tensor.strides(),
                                                    tensor.storage_offset());
  return made;
}

inline const at::Tensor& inner_tensor(PyObject* object) {
  TORCH_CHECK_TYPE(is_tensor(object), "a tensor is wanted, not ", Py_TYPE(object)->tp_name);
  return reinterpret_cast<PythonTensor*>(object)->tensor;
}

// The values of a tuple: each tensor another one over the same memory, the others as they are.
inline PyObject* share_memory(PyObject*, PyObject* values) {
  if (!PyTuple_Check(values)) return PyErr_Format(PyExc_TypeError, "share_memory takes a tuple");
  Py_ssize_t count = PyTuple_GET_SIZE(values);
  PyObject* result = PyList_New(count);
  for (Py_ssize_t i = 0; result != nullptr && i < count; ++i) {
    PyObject* value = PyTuple_GET_ITEM(values, i);
    PyObject* made = nullptr;
    try {
      made = is_tensor(value) ? THPVariable_Wrap(share(inner_tensor(value))) : Py_NewRef(value);
    } catch (const std::exception& error) {
      set_python_error(error);
    }
    if (made == nullptr) {
      Py_CLEAR(result);
    } else {
      PyList_SET_ITEM(result, i, made);
    }
  }
  return result;
}

// How many tensors (and others) hold on to the memory of each tensor of a tuple.
inline PyObject* storage_uses(PyObject*, PyObject* tensors) {
  if (!PyTuple_Check(tensors)) return PyErr_Format(PyExc_TypeError, "storage_uses takes a tuple");
  Py_ssize_t count = PyTuple_GET_SIZE(tensors);
  PyObject* result = PyTuple_New(count);
  for (Py_ssize_t i = 0; result != nullptr && i < count; ++i) {
    PyObject* uses = nullptr;
    try {
      uses = PyLong_FromSize_t(inner_tensor(PyTuple_GET_ITEM(tensors, i)).storage().use_count());
    } catch (const std::exception& error) {
      set_python_error(error);
    }
    if (uses == nullptr) {
      Py_CLEAR(result);
    } else {
      PyTuple_SET_ITEM(result, i, uses);
    }
  }
  return result;
}

// Whether the tensors at some positions of a sequence lie at the given addresses.
inline PyObject* lie_at(PyObject*, PyObject* args) {
  PyObject *values = nullptr, *positions = nullptr, *addresses = nullptr;
  if (!PyArg_ParseTuple(args, "O!O!O!", &PyTuple_Type, &values, &PyTuple_Type, &positions,
                        &PyTuple_Type, &addresses)) {
    return nullptr;
  }
  try {
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(positions); ++i) {
      Py_ssize_t position = PyLong_AsSsize_t(PyTuple_GET_ITEM(positions, i));
      TORCH_CHECK_INDEX(position >= 0 && position < PyTuple_GET_SIZE(values), "position ",
                        position, " of ", PyTuple_GET_SIZE(values), " values");
      const at::Tensor& tensor = inner_tensor(PyTuple_GET_ITEM(values, position));
      void* address = PyLong_AsVoidPtr(PyTuple_GetItem(addresses, i));
      if (PyErr_Occurred()) return nullptr;
      if (tensor.const_data_ptr() != address) Py_RETURN_FALSE;
    }
  } catch (const std::exception& error) {
    set_python_error(error);
    return nullptr;
  }
  Py_RETURN_TRUE;
}

}  // namespace dovetail
