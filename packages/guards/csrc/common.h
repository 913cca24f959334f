// Shared vocabulary of the native guard check.
#pragma once

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <structmember.h>

#include <cstdint>
#include <vector>

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

// A short list on the stack. Where Python code runs, another thread may check the same guard: what
// a check goes through afterwards is its own copy.
template <class T>
class Short {
 public:
  void add(T item) {
    if (count_ < kInline) {
      local_[count_] = item;
    } else {
      more_.push_back(item);
    }
    count_++;
  }
  size_t size() const { return count_; }
  T operator[](size_t i) const { return i < kInline ? local_[i] : more_[i - kInline]; }

 private:
  static constexpr size_t kInline = 16;
  T local_[kInline];
  size_t count_ = 0;
  std::vector<T> more_;
};

}  // namespace dovetail
