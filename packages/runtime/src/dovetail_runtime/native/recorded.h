// What a replayed CUDA graph's calls need natively: whether inputs lie where the graph reads them,
// copies of those that move and of results, and results handed out over the graph's own memory.
#pragma once

#include <c10/core/InferenceMode.h>
#include <c10/core/TensorImpl.h>

#include <cstring>

#include "cuda_driver.h"
#include "program.h"
#include "python_values.h"

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

// Copies between tensors of one device, shape and layout on a stream (0 for a CPU): their memory in
// one piece where it is one, which takes a third of the time of ATen's call.
inline void copy_contents(const at::Tensor& to, const at::Tensor& from, void* stream) {
  bool in_one_piece = to.is_non_overlapping_and_dense() && to.sizes() == from.sizes() &&
                      to.strides() == from.strides() && to.dtype() == from.dtype() &&
                      to.device() == from.device() && to.is_conj() == from.is_conj() &&
                      to.is_neg() == from.is_neg();
  if (!in_one_piece) {
    to.copy_(from);
    return;
  }
  size_t bytes = to.nbytes();
  void* target = to.mutable_data_ptr();
  const void* source = from.const_data_ptr();
  if (bytes == 0 || target == source) return;
  if (to.is_cpu()) {
    std::memmove(target, source, bytes);
    return;
  }
  const CudaDriver& driver = CudaDriver::get();
  driver.check(driver.copy(reinterpret_cast<uint64_t>(target), reinterpret_cast<uint64_t>(source),
                           bytes, stream),
               "cuMemcpyDtoDAsync", "a recorded graph's copy");
}

// Makes the device of a tensor current, with its context, and takes autograd out of the way.
struct BesideRecording {
  explicit BesideRecording(const at::Tensor& tensor) {
    if (!tensor.is_cuda()) return;
    device_guard.reset_device(tensor.device());
    bind_context(tensor.device().index());
  }
  c10::OptionalDeviceGuard device_guard;
  c10::impl::ExcludeDispatchKeyGuard below_autograd{
      c10::autograd_dispatch_keyset_with_ADInplaceOrView | c10::autocast_dispatch_keyset};
};

// The address of a new stream of a device, which waits for no other one.
inline PyObject* new_stream(PyObject*, PyObject* device) {
  constexpr unsigned kNonBlocking = 1;
  long index = PyLong_AsLong(device);
  if (PyErr_Occurred()) return nullptr;
  try {
    c10::OptionalDeviceGuard device_guard;
    device_guard.reset_device(c10::Device(c10::kCUDA, static_cast<c10::DeviceIndex>(index)));
    bind_context(static_cast<int>(index));
    void* stream = nullptr;
    const CudaDriver& driver = CudaDriver::get();
    driver.check(driver.new_stream(&stream, kNonBlocking), "cuStreamCreate", "recordings");
    return PyLong_FromVoidPtr(stream);
  } catch (const std::exception& error) {
    set_python_error(error);
    return nullptr;
  }
}

// Each tensor of one tuple takes the contents of the value at its position in another.
inline PyObject* copy_into(PyObject*, PyObject* args) {
  PyObject *targets = nullptr, *positions = nullptr, *values = nullptr;
  unsigned long long stream = 0;
  if (!PyArg_ParseTuple(args, "O!O!O!K", &PyTuple_Type, &targets, &PyTuple_Type, &positions,
                        &PyTuple_Type, &values, &stream)) {
    return nullptr;
  }
  try {
    std::vector<std::pair<at::Tensor, at::Tensor>> pairs;
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(targets); ++i) {
      Py_ssize_t position = PyLong_AsSsize_t(PyTuple_GetItem(positions, i));
      if (PyErr_Occurred()) return nullptr;
      TORCH_CHECK_INDEX(position >= 0 && position < PyTuple_GET_SIZE(values), "position ",
                        position, " of ", PyTuple_GET_SIZE(values), " values");
      pairs.emplace_back(inner_tensor(PyTuple_GET_ITEM(targets, i)),
                         inner_tensor(PyTuple_GET_ITEM(values, position)));
    }
    WithoutGil without_gil;
    for (const auto& [target, source] : pairs) {
      BesideRecording beside(target);
      copy_contents(target, source, reinterpret_cast<void*>(stream));
    }
  } catch (const std::exception& error) {
    set_python_error(error);
    return nullptr;
  }
  Py_RETURN_NONE;
}

// A tensor in memory of its own, with the contents and strides of one without gaps.
inline PyObject* copy_of(PyObject*, PyObject* args) {
  PyObject* value = nullptr;
  unsigned long long stream = 0;
  if (!PyArg_ParseTuple(args, "OK", &value, &stream)) return nullptr;
  try {
    at::Tensor tensor = inner_tensor(value), made;
    TORCH_CHECK_VALUE(tensor.is_non_overlapping_and_dense(), "this tensor's memory has gaps");
    {
      WithoutGil without_gil;
      BesideRecording beside(tensor);
      made = at::Tensor(at::detail::empty_strided_generic(
          tensor.sizes(), tensor.strides(), c10::GetAllocator(tensor.device().type()),
          c10::DispatchKeySet(tensor.is_cuda() ? c10::DispatchKey::CUDA : c10::DispatchKey::CPU),
          tensor.scalar_type()));
      copy_contents(made, tensor, reinterpret_cast<void*>(stream));
    }
    return THPVariable_Wrap(std::move(made));
  } catch (const std::exception& error) {
    set_python_error(error);
    return nullptr;
  }
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
