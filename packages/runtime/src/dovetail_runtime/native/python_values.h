// Values of Python read from C++, and what C++ throws as the exception that Python raises.
#pragma once

#include <pybind11/pybind11.h>

#include <stdexcept>

#include "program.h"

// From torch's Python bindings; its own header takes 15 seconds to compile.
extern PyObject* THPVariableClass;
PyObject* THPVariable_Wrap(const at::TensorBase& tensor);

namespace dovetail {

// How torch lays out a Python tensor; checked with a probe when the module is loaded.
struct PythonTensor {
  PyObject_HEAD
  at::Tensor tensor;
};

// A C++ exception that means "a Python error is set".
struct PythonError : std::exception {};

inline PyObject* checked(PyObject* object) {
  if (object == nullptr) throw PythonError();
  return object;
}

inline int64_t to_int(PyObject* object) {
  int64_t value = PyLong_AsLongLong(object);
  if (value == -1 && PyErr_Occurred()) throw PythonError();
  return value;
}

inline std::string to_string(PyObject* object) {
  Py_ssize_t size = 0;
  const char* data = PyUnicode_AsUTF8AndSize(object, &size);
  if (data == nullptr) throw PythonError();
  return std::string(data, static_cast<size_t>(size));
}

// Items of a Python list or tuple, borrowed from it.
class Items {
 public:
  explicit Items(PyObject* sequence) : fast_(checked(PySequence_Fast(sequence, "a sequence"))) {}
  ~Items() { Py_DECREF(fast_); }
  Items(const Items&) = delete;
  Items& operator=(const Items&) = delete;
  Py_ssize_t size() const { return PySequence_Fast_GET_SIZE(fast_); }
  PyObject* operator[](Py_ssize_t i) const { return PySequence_Fast_GET_ITEM(fast_, i); }

 private:
  PyObject* fast_;
};

inline std::vector<int32_t> to_indices(PyObject* sequence) {
  Items items(sequence);
  std::vector<int32_t> out;
  for (Py_ssize_t i = 0; i < items.size(); ++i) {
    out.push_back(static_cast<int32_t>(to_int(items[i])));
  }
  return out;
}

// torch.nn.Parameter: the type of most tensors that are no plain ones.
inline PyTypeObject* parameter_type = nullptr;

inline bool is_tensor(PyObject* object) {
  PyTypeObject* type = Py_TYPE(object);
  auto* tensor_type = reinterpret_cast<PyTypeObject*>(THPVariableClass);
  return type == tensor_type || type == parameter_type || PyType_IsSubtype(type, tensor_type);
}

// Other Python threads may run while one of these lives.
struct WithoutGil {
  PyThreadState* state = PyEval_SaveThread();
  ~WithoutGil() { PyEval_RestoreThread(state); }
};

// An exception type that torch defines: torch._C.`name`, or RuntimeError if this torch has none.
inline PyObject* torch_exception_type(const char* name) {
  PyObject* module = PyImport_ImportModule("torch._C");
  PyObject* type = module != nullptr ? PyObject_GetAttrString(module, name) : nullptr;
  Py_XDECREF(module);
  if (type != nullptr) return type;
  PyErr_Clear();
  return Py_NewRef(PyExc_RuntimeError);
}

// The Python exception that eager raises for what a kernel throws. A new reference.
inline PyObject* exception_type(const std::exception& error) {
  auto is = [&](auto* kind) { return dynamic_cast<decltype(kind)>(&error) != nullptr; };
  if (is(static_cast<const c10::LinAlgError*>(nullptr)))
    return torch_exception_type("_LinAlgError");
  if (is(static_cast<const c10::OutOfMemoryError*>(nullptr)))
    return torch_exception_type("OutOfMemoryError");
  PyObject* type = PyExc_RuntimeError;
  if (is(static_cast<const c10::NotImplementedError*>(nullptr))) type = PyExc_NotImplementedError;
  if (is(static_cast<const c10::TypeError*>(nullptr))) type = PyExc_TypeError;
  if (is(static_cast<const c10::IndexError*>(nullptr))) type = PyExc_IndexError;
  if (is(static_cast<const std::out_of_range*>(nullptr))) type = PyExc_IndexError;
  if (is(static_cast<const c10::ValueError*>(nullptr))) type = PyExc_ValueError;
  if (is(static_cast<const std::bad_alloc*>(nullptr))) type = PyExc_MemoryError;
  return Py_NewRef(type);
}

inline void set_python_error(const std::exception& error) {
  if (PyErr_Occurred() || dynamic_cast<const PythonError*>(&error) != nullptr) return;
  // An operator written in Python has raised: its exception goes on as it is.
  if (auto* raised = dynamic_cast<const pybind11::error_already_set*>(&error)) {
    const_cast<pybind11::error_already_set*>(raised)->restore();
    return;
  }
  PyObject* type = exception_type(error);
  auto* torch_error = dynamic_cast<const c10::Error*>(&error);
  PyErr_SetString(type, torch_error != nullptr ? torch_error->what_without_backtrace()
                                               : error.what());
  Py_DECREF(type);
}

}  // namespace dovetail
