// Shared vocabulary of the native guard check.
#pragma once

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <structmember.h>

#include <cstdint>

namespace dovetail {

// What one evaluation step answers. `Impure` is only given in the pure mode: going on would need
// something that may run Python code (a descriptor, an allocation that collects garbage), which
// must not happen while borrowed references are held. The caller then starts again in the careful
// mode, which holds references and trusts no cache. `Unmade` is the same for an instance dict that
// does not exist yet; the careful mode makes it, so that the pure mode can be tried again.
enum Outcome : int { Error = -1, Fail = 0, Pass = 1, Impure = 2, Unmade = 3 };

enum class Mode { Pure, Careful };

// A Python exception raised while a source is evaluated means "this clause fails"; only
// exceptions that are no `Exception` (KeyboardInterrupt, ...) go up to the caller.
inline Outcome swallow_exception() {
  if (!PyErr_Occurred()) return Fail;
  if (!PyErr_ExceptionMatches(PyExc_Exception)) return Error;
  PyErr_Clear();
  return Fail;
}

// An owned reference.
class Ref {
 public:
  Ref() = default;
  static Ref steal(PyObject* object) {
    Ref ref;
    ref.object_ = object;
    return ref;
  }
  static Ref copy(PyObject* object) {
    Py_XINCREF(object);
    return steal(object);
  }
  Ref(Ref&& other) noexcept : object_(other.object_) { other.object_ = nullptr; }
  Ref& operator=(Ref&& other) noexcept {
    PyObject* old = object_;
    object_ = other.object_;
    other.object_ = nullptr;
    Py_XDECREF(old);
    return *this;
  }
  Ref(const Ref&) = delete;
  Ref& operator=(const Ref&) = delete;
  ~Ref() { Py_XDECREF(object_); }
  PyObject* get() const { return object_; }
  void clear() { Py_CLEAR(object_); }

 private:
  PyObject* object_ = nullptr;
};

}  // namespace dovetail
