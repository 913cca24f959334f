// What C++ throws as the exception that Python raises.
#pragma once

#include <pybind11/pybind11.h>

#include <stdexcept>

#include "python_values.h"

namespace dovetail {

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
