// Tensor metadata straight from the TensorImpl: no Python, no ATen headers.
#pragma once

#include "common.h"

#include <c10/core/TensorImpl.h>

#include <vector>

namespace dovetail {

// How torch lays out its Python objects, as far as we read them. `prove_layout` checks each on
// load against what Python itself says; a torch that differs is refused there.
struct TensorObject {
  PyObject_HEAD
  c10::TensorImpl* impl;
};
struct DtypeObject {
  PyObject_HEAD
  c10::ScalarType scalar_type;
};
struct LayoutObject {
  PyObject_HEAD
  c10::Layout layout;
};
struct DeviceObject {
  PyObject_HEAD
  c10::Device device;
};

inline c10::TensorImpl* impl_of(PyObject* tensor) {
  return reinterpret_cast<TensorObject*>(tensor)->impl;
}

// Asks for what a check of a living tensor will read.
inline void prefetch_impl(const c10::TensorImpl* impl) {
  const char* start = reinterpret_cast<const char*>(impl);
  for (size_t line = 0; line < sizeof(c10::TensorImpl); line += 64) __builtin_prefetch(start + line);
}

constexpr int64_t kAnySize = INT64_MIN;

struct TensorSpec {
  PyTypeObject* type = nullptr;  // kept alive by the check that owns the spec
  c10::ScalarType dtype = c10::ScalarType::Undefined;
  c10::Device device = c10::Device(c10::DeviceType::CPU);
  c10::Layout layout = c10::Layout::Strided;
  bool requires_grad = false;
  bool conj = false;
  bool neg = false;
  bool has_strides = false;
  std::vector<int64_t> sizes;
  std::vector<int64_t> strides;

  bool operator==(const TensorSpec&) const = default;
};

inline bool dims_match(const std::vector<int64_t>& expected, c10::IntArrayRef seen) {
  if (seen.size() != expected.size()) return false;
  for (size_t i = 0; i < expected.size(); i++) {
    if (expected[i] != seen[i] && expected[i] != kAnySize) return false;
  }
  return true;
}

// What no key of the dispatcher tells.
inline bool numbers_match(const TensorSpec& spec, const c10::TensorImpl* impl) {
  return impl->dtype() == c10::scalarTypeToTypeMeta(spec.dtype) && impl->device() == spec.device &&
      impl->requires_grad() == spec.requires_grad && dims_match(spec.sizes, impl->sizes()) &&
      (!spec.has_strides || dims_match(spec.strides, impl->strides()));
}

inline Outcome check_metadata(const TensorSpec& spec, const c10::TensorImpl* impl) {
  if (impl->layout() != spec.layout) return Fail;
  if (impl->is_conj() != spec.conj || impl->is_neg() != spec.neg) return Fail;
  return numbers_match(spec, impl) ? Pass : Fail;
}

inline Outcome check_tensor(const TensorSpec& spec, PyObject* object, Mode mode) {
  if (Py_TYPE(object) != spec.type) return Fail;
  const c10::TensorImpl* impl = impl_of(object);
  if (!impl) return Fail;
  // Wrapper subclasses may answer for their sizes in Python.
  if (mode == Mode::Pure && impl->key_set().has(c10::DispatchKey::Python)) return Impure;
  try {
    Outcome outcome = check_metadata(spec, impl);
    if (PyErr_Occurred()) return swallow_exception();
    return outcome;
  } catch (const std::exception&) {  // e.g. the strides of a tensor that has none
    PyErr_Clear();
    return Fail;
  }
}

// Dimension numbers from here on mean strides.
constexpr int64_t kStrides = 1 << 16;

// One size (or stride) of a tensor; false when it has no such dimension.
inline bool size_of(PyObject* tensor, int64_t dim, int64_t& size) {
  const c10::TensorImpl* impl = impl_of(tensor);
  if (!impl) return false;
  try {
    bool is_stride = dim >= kStrides;
    c10::IntArrayRef sizes = is_stride ? impl->strides() : impl->sizes();
    if (is_stride) dim -= kStrides;
    int64_t rank = static_cast<int64_t>(sizes.size());
    if (dim < 0) dim += rank;
    if (dim < 0 || dim >= rank) return false;
    size = sizes[dim];
    return true;
  } catch (const std::exception&) {
    PyErr_Clear();
    return false;
  }
}

// What identifies the storage of a tensor; nullptr when it has none to speak of.
inline const void* storage_of(PyObject* tensor) {
  const c10::TensorImpl* impl = impl_of(tensor);
  if (!impl) return nullptr;
  try {
    if (!impl->has_storage()) return nullptr;
    return impl->storage().unsafeGetStorageImpl();
  } catch (const std::exception&) {
    PyErr_Clear();
    return nullptr;
  }
}

}  // namespace dovetail
