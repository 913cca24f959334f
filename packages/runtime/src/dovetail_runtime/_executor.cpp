// dovetail_runtime._executor: plans run natively. `load(tables, ...)` gives a callable.
#include "native/load.h"
#include "native/recorded.h"
#include "native/run.h"

#include <sstream>
#include <structmember.h>

namespace dovetail {
namespace {

struct Executor {
  PyObject_HEAD
  vectorcallfunc vectorcall;
  Program* program;
  PyObject* raw_stream;  // torch's function from a device index to its current stream, or null
  bool gpu_ready;
  PyObject* held;  // what keeps the kernels loaded that `program` has the addresses of
};

std::string ints_text(c10::IntArrayRef values) {
  std::ostringstream out;
  out << values;
  return out.str();
}

void check_input(const Program& program, const Frame& frame, size_t position,
                 const c10::TensorImpl& impl) {
  const InputInfo& info = program.inputs[position];
  auto same = [&](const std::vector<SizeIndex>& wanted, c10::IntArrayRef found) {
    if (wanted.size() != found.size()) return false;
    for (size_t d = 0; d < found.size(); ++d) {
      if (frame.values[wanted[d]] != found[d]) return false;
    }
    return true;
  };
  bool strides_matter = impl.numel() > 1;
  bool stride_ok = info.spec.stride.size() == impl.strides().size();
  for (size_t d = 0; stride_ok && strides_matter && d < impl.strides().size(); ++d) {
    stride_ok = impl.sizes()[d] <= 1 || frame.values[info.spec.stride[d]] == impl.strides()[d];
  }
  if (impl.dtype() == c10::scalarTypeToTypeMeta(info.spec.dtype) &&
      impl.device() == info.spec.device && same(info.spec.shape, impl.sizes()) && stride_ok) {
    return;
  }
  Ints shape, stride;
  for (SizeIndex i : info.spec.shape) shape.push_back(frame.values[i]);
  for (SizeIndex i : info.spec.stride) stride.push_back(frame.values[i]);
  TORCH_CHECK(false, program.name, ": input ", position, " ('", info.name, "') must be ",
              info.spec.dtype, " of shape ", ints_text(shape), " and strides ", ints_text(stride),
              " on ", info.spec.device, "; it is ", c10::typeMetaToScalarType(impl.dtype()),
              " of shape ", ints_text(impl.sizes()), " and strides ", ints_text(impl.strides()),
              " on ", impl.device());
}

// The inputs into the frame, the symbols from them.
void bind_inputs(Program& program, Frame& frame, PyObject* const* args, size_t count) {
  TORCH_CHECK_TYPE(count == program.inputs.size(), program.name, ": ", program.inputs.size(),
                   " inputs expected, ", count, " given");
  for (size_t i = 0; i < count; ++i) {
    const InputInfo& info = program.inputs[i];
    if (info.slot < 0) {
      TORCH_CHECK_TYPE(PyLong_Check(args[i]) || PyFloat_Check(args[i]), program.name, ": input ",
                       i, " ('", info.name, "') must be an int or a float, not ",
                       Py_TYPE(args[i])->tp_name);
      continue;
    }
    TORCH_CHECK_TYPE(is_tensor(args[i]), program.name, ": input ", i, " ('", info.name,
                     "') must be a tensor, not ", Py_TYPE(args[i])->tp_name);
    const at::Tensor& tensor = reinterpret_cast<PythonTensor*>(args[i])->tensor;
    c10::TensorImpl* impl = tensor.unsafeGetTensorImpl();
    c10::DispatchKeySet unusual({c10::DispatchKey::Python, c10::DispatchKey::Conjugate,
                                 c10::DispatchKey::Negative, c10::DispatchKey::ZeroTensor,
                                 c10::DispatchKey::Functionalize});
    // A weight packed for oneDNN is opaque: only its calls take it.
    bool dense = impl->has_storage() || (!info.needs_data && tensor.is_mkldnn());
    TORCH_CHECK(!impl->key_set().has_any(unusual) && dense, program.name, ": input ", i, " ('",
                info.name, "') is not a plain dense tensor: ", impl->key_set());
    Slot& slot = frame.slots[info.slot];
    slot.impl = impl;
    if (info.needs_data) slot.data = impl->mutable_data();
  }
  for (const SymbolBinding& binding : program.bindings) {
    if (binding.dim == -2) {
      TORCH_CHECK_TYPE(PyFloat_Check(args[binding.input]), program.name, ": input ",
                       binding.input, " must be a float");
      frame.values[binding.destination] = as_bits(PyFloat_AS_DOUBLE(args[binding.input]));
      continue;
    }
    if (binding.dim < 0) {
      TORCH_CHECK_TYPE(PyLong_Check(args[binding.input]), program.name, ": input ", binding.input,
                       " must be an int");
      frame.values[binding.destination] = to_int(args[binding.input]);
      continue;
    }
    SlotIndex slot = program.inputs[binding.input].slot;
    c10::TensorImpl* impl = frame.slots[slot].impl;
    TORCH_CHECK(binding.dim < impl->dim(), program.name, ": input ", binding.input, " must have ",
                binding.dim + 1, " dimensions at least, it has ", impl->dim());
    frame.values[binding.destination] = impl->size(binding.dim);
  }
}

PyObject* collect_outputs(const Program& program, Frame& frame, PyObject* const* args) {
  PyObject* result = checked(PyTuple_New(static_cast<Py_ssize_t>(program.outputs.size())));
  for (size_t i = 0; i < program.outputs.size(); ++i) {
    const Output& output = program.outputs[i];
    PyObject* value = nullptr;
    switch (output.kind) {
      case Output::None: value = Py_NewRef(Py_None); break;
      case Output::Input: value = Py_NewRef(args[output.index]); break;
      case Output::Float: value = PyFloat_FromDouble(as_float(frame.values[output.index])); break;
      case Output::Size: value = PyLong_FromLongLong(frame.values[output.index]); break;
      case Output::Tensor: {
        c10::TensorImpl* impl = frame.slots[output.index].impl;
        value = impl == nullptr ? Py_NewRef(Py_None) : THPVariable_Wrap(tensor_of(impl));
        break;
      }
    }
    if (value == nullptr) {
      Py_DECREF(result);
      throw PythonError();
    }
    PyTuple_SET_ITEM(result, static_cast<Py_ssize_t>(i), value);
  }
  return result;
}

std::string step_name(const Step& step) {
  if (auto* cpp = std::get_if<LaunchCpp>(&step)) return "kernel " + cpp->name;
  if (auto* triton = std::get_if<LaunchTriton>(&step)) return "kernel " + triton->name;
  if (auto* aten = std::get_if<CallAten>(&step))
    return aten->line.empty() ? aten->name : aten->name + "\n" + aten->line;
  if (std::get_if<ChooseProgram>(&step) != nullptr) return "a branch of torch.cond";
  if (std::get_if<WhileProgram>(&step) != nullptr) return "a torch.while_loop";
  return "memory";
}

std::string where(const Program& program, const Runner& runner) {
  if (runner.step_ >= program.steps.size()) return "in " + program.name;
  return "in step " + std::to_string(runner.step_) + " of " + program.name + ": " +
         step_name(program.steps[runner.step_]);
}

void run_frame(Executor* self, Frame& frame, bool consuming, const OutputWatch* watch = nullptr) {
  Program& program = *self->program;
  if (program.cuda_device >= 0) {
    PyObject* device = checked(PyLong_FromLong(program.cuda_device));
    PyObject* stream = PyObject_CallOneArg(self->raw_stream, device);
    Py_DECREF(device);
    frame.cuda_stream = PyLong_AsVoidPtr(checked(stream));
    Py_DECREF(stream);
    if (!self->gpu_ready) {
      c10::DeviceGuard guard(
          c10::Device(c10::kCUDA, static_cast<c10::DeviceIndex>(program.cuda_device)));
      program.cuda_context = bind_context(program.cuda_device);
      load_gpu_kernels(program);
      self->gpu_ready = true;
    }
  }
  WithoutGil without_gil;
  Runner runner(program, frame, watch);
  try {
    runner.run(consuming);
    for (const Output& output : program.outputs) {
      bool defined = output.kind == Output::Tensor &&
                     (frame.slots[output.index].impl != nullptr ||
                      program.slots[output.index].spec != nullptr);
      if (defined) runner.materialize(output.index);
    }
  } catch (c10::Error& error) {
    error.add_context(where(program, runner));
    throw;
  } catch (const std::out_of_range& error) {  // a kernel's own check of an index
    TORCH_CHECK_INDEX(false, error.what(), "\n", where(program, runner));
  } catch (const std::runtime_error& error) {
    TORCH_CHECK(false, error.what(), "\n", where(program, runner));
  }
}

void bind_and_check(Program& program, Frame& frame, PyObject* const* args, size_t count) {
  bind_inputs(program, frame, args, count);
  if (!program.check_inputs) return;
  run_sizes(program.size_program, frame.values);
  for (size_t i = 0; i < program.inputs.size(); ++i) {
    SlotIndex slot = program.inputs[i].slot;
    if (slot >= 0) check_input(program, frame, i, *frame.slots[slot].impl);
  }
}

// What `run`, given the program and a frame of it, returns; null, with Python's error set, if it
// throws.
template <typename Run>
PyObject* in_frame(PyObject* callable, const Run& run) {
  Program& program = *reinterpret_cast<Executor*>(callable)->program;
  std::unique_ptr<Frame> frame;
  PyObject* result = nullptr;
  try {
    frame = take_frame(program);
    result = run(program, *frame);
  } catch (const std::exception& error) {
    set_python_error(error);
  }
  if (frame != nullptr) give_frame_back(program, std::move(frame));
  return result;
}

PyObject* call(PyObject* callable, PyObject* const* args, size_t nargsf, PyObject* kwnames) {
  if (kwnames != nullptr && PyTuple_GET_SIZE(kwnames) != 0) {
    PyErr_SetString(PyExc_TypeError, "a loaded plan takes positional arguments only");
    return nullptr;
  }
  return in_frame(callable, [&](Program& program, Frame& frame) {
    bind_and_check(program, frame, args, static_cast<size_t>(PyVectorcall_NARGS(nargsf)));
    run_frame(reinterpret_cast<Executor*>(callable), frame, /*consuming=*/false);
    return collect_outputs(program, frame, args);
  });
}

// A call that takes its inputs out of a list: the frame owns them, and drops each after its last
// use. Inputs that are outputs, too, are kept as the Python objects they are.
PyObject* call_consuming(PyObject* callable, PyObject* list) {
  if (!PyList_CheckExact(list)) {
    PyErr_SetString(PyExc_TypeError, "run_consuming takes the inputs in a list");
    return nullptr;
  }
  std::vector<PyObject*> kept;
  PyObject* result = in_frame(callable, [&](Program& program, Frame& frame) {
    size_t count = static_cast<size_t>(PyList_GET_SIZE(list));
    bind_and_check(program, frame, PySequence_Fast_ITEMS(list), count);
    for (size_t i = 0; i < count; ++i) {
      const InputInfo& input = program.inputs[i];
      if (input.slot < 0) continue;
      Slot& slot = frame.slots[input.slot];
      slot.owned =
          reinterpret_cast<PythonTensor*>(PyList_GET_ITEM(list, static_cast<Py_ssize_t>(i)))->tensor;
      // A tensor that Python knew counts its object for a holder: whether others hold the memory
      // shows once there is a tensor of the frame's own.
      if (input.given_over) {
        slot.owned = at::Tensor(slot.impl->shallow_copy_and_detach(c10::VariableVersion(0), false));
        slot.impl = slot.owned.unsafeGetTensorImpl();
      }
    }
    kept.resize(count, nullptr);
    for (const Output& output : program.outputs) {
      if (output.kind == Output::Input && kept[output.index] == nullptr) {
        kept[output.index] = Py_NewRef(PyList_GET_ITEM(list, output.index));
      }
    }
    if (PyList_SetSlice(list, 0, PyList_GET_SIZE(list), nullptr) != 0) throw PythonError();
    run_frame(reinterpret_cast<Executor*>(callable), frame, /*consuming=*/true);
    return collect_outputs(program, frame, kept.data());
  });
  for (PyObject* object : kept) Py_XDECREF(object);
  return result;
}

// A call that tells `tell(True)` before each step that makes the memory of an output at one of
// `positions`, and `tell(False)` after it.
PyObject* call_watched(PyObject* callable, PyObject* args) {
  PyObject *inputs = nullptr, *positions = nullptr, *tell = nullptr;
  if (!PyArg_ParseTuple(args, "O!O!O", &PyTuple_Type, &inputs, &PyTuple_Type, &positions, &tell)) {
    return nullptr;
  }
  return in_frame(callable, [&](Program& program, Frame& frame) {
    OutputWatch watch{steps_that_make(program, to_indices(positions)), [tell](bool begins) {
                        PyGILState_STATE state = PyGILState_Ensure();
                        PyObject* told = PyObject_CallOneArg(tell, begins ? Py_True : Py_False);
                        bool failed = told == nullptr;
                        Py_XDECREF(told);
                        PyGILState_Release(state);
                        if (failed) throw PythonError();
                      }};
    PyObject* const* items = PySequence_Fast_ITEMS(inputs);
    bind_and_check(program, frame, items, static_cast<size_t>(PyTuple_GET_SIZE(inputs)));
    run_frame(reinterpret_cast<Executor*>(callable), frame, /*consuming=*/false, &watch);
    return collect_outputs(program, frame, items);
  });
}

// The operators that steps call by ATen, or may: a product counts until it was computed without
// it, and again once one was not.
PyObject* aten_operators(PyObject* object, PyObject*) {
  PyObject* names = PySet_New(nullptr);
  for (const Step& step : reinterpret_cast<Executor*>(object)->program->steps) {
    const auto* call = std::get_if<CallAten>(&step);
    if (names == nullptr || call == nullptr) continue;
    if (call->product != nullptr && call->product->always_ran()) continue;
    PyObject* name = PyUnicode_FromString(call->name.c_str());
    if (name == nullptr || PySet_Add(names, name) != 0) Py_CLEAR(names);
    Py_XDECREF(name);
  }
  return names;
}

void executor_dealloc(PyObject* object) {
  auto* self = reinterpret_cast<Executor*>(object);
  PyTypeObject* type = Py_TYPE(object);
  delete self->program;
  Py_XDECREF(self->held);
  Py_XDECREF(self->raw_stream);
  type->tp_free(object);
  Py_DECREF(type);
}

PyMemberDef executor_members[] = {
    {"__vectorcalloffset__", T_PYSSIZET, offsetof(Executor, vectorcall), READONLY, nullptr},
    {nullptr, 0, 0, 0, nullptr}};

PyMethodDef executor_methods[] = {
    {"run_consuming", call_consuming, METH_O,
     "run_consuming(inputs): a call that empties the list `inputs`, and drops each tensor in it\n"
     "after the last step that reads it."},
    {"run_watched", call_watched, METH_VARARGS,
     "run_watched(inputs, positions, tell): a call with the tuple `inputs` that calls tell(True)\n"
     "before each step that makes the memory of an output at one of `positions`, and tell(False)\n"
     "after it."},
    {"aten_operators", aten_operators, METH_NOARGS,
     "aten_operators(): the names of the operators that its steps call by ATen, or may call."},
    {nullptr, nullptr, 0, nullptr}};

PyType_Slot executor_slots[] = {
    {Py_tp_dealloc, reinterpret_cast<void*>(executor_dealloc)},
    {Py_tp_call, reinterpret_cast<void*>(PyVectorcall_Call)},
    {Py_tp_members, executor_members},
    {Py_tp_methods, executor_methods},
    {Py_tp_doc, const_cast<char*>("A loaded plan: call it with the plan's inputs.")},
    {0, nullptr}};

PyType_Spec executor_spec = {
    "dovetail_runtime._executor.Executor", sizeof(Executor), 0,
    Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_VECTORCALL | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    executor_slots};

PyTypeObject* executor_type = nullptr;

PyObject* load(PyObject*, PyObject* args) {
  PyObject *tables = nullptr, *raw_stream = nullptr, *held = nullptr;
  int check_inputs = 0;
  const char* label = nullptr;
  if (!PyArg_ParseTuple(args, "O!psOO", &PyDict_Type, &tables, &check_inputs, &label, &raw_stream,
                        &held)) {
    return nullptr;
  }
  auto program = std::make_unique<Program>();
  try {
    Loader(*program, THPVariableClass).load(tables);
  } catch (const std::exception& error) {
    set_python_error(error);
    return nullptr;
  }
  program->check_inputs = check_inputs != 0;
  program->label = label;
  auto* self = reinterpret_cast<Executor*>(executor_type->tp_alloc(executor_type, 0));
  if (self == nullptr) return nullptr;
  self->vectorcall = call;
  self->program = program.release();
  self->raw_stream = Py_NewRef(raw_stream);
  self->gpu_ready = false;
  self->held = Py_NewRef(held);
  return reinterpret_cast<PyObject*>(self);
}

// (numel, first size) of a tensor, read the way the executor reads it.
PyObject* probe(PyObject*, PyObject* tensor) {
  const at::Tensor& inner = reinterpret_cast<PythonTensor*>(tensor)->tensor;
  return Py_BuildValue("LL", static_cast<long long>(inner.unsafeGetTensorImpl()->numel()),
                       static_cast<long long>(inner.unsafeGetTensorImpl()->size(0)));
}

// Runs a C++ kernel for the Python oracle, which could not let an exception through.
PyObject* call_kernel(PyObject*, PyObject* args) {
  unsigned long long function = 0, pointers = 0, sizes = 0;
  long long begin = 0, end = 0;
  if (!PyArg_ParseTuple(args, "KKKLL", &function, &pointers, &sizes, &begin, &end)) return nullptr;
  try {
    reinterpret_cast<CppFunction>(function)(reinterpret_cast<void* const*>(pointers),
                                            reinterpret_cast<const int64_t*>(sizes), begin, end);
  } catch (const std::exception& error) {
    set_python_error(error);
    return nullptr;
  }
  Py_RETURN_NONE;
}

PyObject* set_slab_limit(PyObject*, PyObject* bytes) {
  size_t limit = PyLong_AsSize_t(bytes);
  if (PyErr_Occurred()) return nullptr;
  slab_pool().set_limit(limit);
  Py_RETURN_NONE;
}

PyObject* allow_direct_products(PyObject*, PyObject* allowed) {
  int truth = PyObject_IsTrue(allowed);
  if (truth < 0) return nullptr;
  direct_products() = truth != 0;
  Py_RETURN_NONE;
}

PyObject* release_idle_slabs(PyObject*, PyObject*) {
  slab_pool().release_idle();
  Py_RETURN_NONE;
}

PyObject* idle_slab_bytes(PyObject*, PyObject*) {
  return PyLong_FromSize_t(slab_pool().idle_bytes());
}

PyMethodDef methods[] = {
    {"load", load, METH_VARARGS, 
     "load(tables, check_inputs, label, raw_stream, held) -> Executor"},
    {"probe", probe, METH_O, "How the executor reads a tensor: (numel, first size)."},
    {"call_kernel", call_kernel, METH_VARARGS,
     "call_kernel(function, pointers, sizes, begin, end): addresses and a range."},
    {"share_memory", share_memory, METH_O, "share_memory(values) -> list, tensors replaced."},
    {"new_stream", new_stream, METH_O, "new_stream(device_index) -> raw_stream."},
    {"copy_into", copy_into, METH_VARARGS, "copy_into(targets, positions, values, raw_stream)."},
    {"copy_of", copy_of, METH_VARARGS, "copy_of(tensor, raw_stream) -> tensor."},
    {"storage_uses", storage_uses, METH_O, "storage_uses(tensors) -> tuple of counts."},
    {"lie_at", lie_at, METH_VARARGS, "lie_at(values, positions, addresses) -> bool."},
    {"set_slab_limit", set_slab_limit, METH_O, "Bytes of idle CPU slabs to keep."},
    {"allow_direct_products", allow_direct_products, METH_O,
     "Whether programs loaded from now on may multiply halves without ATen."},
    {"release_idle_slabs", release_idle_slabs, METH_NOARGS, "Free the idle CPU slabs."},
    {"idle_slab_bytes", idle_slab_bytes, METH_NOARGS, "Bytes of idle CPU slabs kept now."},
    {nullptr, nullptr, 0, nullptr}};

PyModuleDef module = {PyModuleDef_HEAD_INIT, "_executor", "Runs plans natively.", -1, methods,
                      nullptr, nullptr, nullptr, nullptr};

}  // namespace
}  // namespace dovetail

PyMODINIT_FUNC PyInit__executor() {
  using namespace dovetail;
  PyObject* torch = PyImport_ImportModule("torch.nn.parameter");
  if (torch == nullptr) return nullptr;
  parameter_type = reinterpret_cast<PyTypeObject*>(PyObject_GetAttrString(torch, "Parameter"));
  Py_DECREF(torch);
  if (parameter_type == nullptr) return nullptr;
  executor_type = reinterpret_cast<PyTypeObject*>(PyType_FromSpec(&executor_spec));
  if (executor_type == nullptr) return nullptr;
  PyObject* result = PyModule_Create(&module);
  if (result == nullptr) return nullptr;
  if (PyModule_AddStringConstant(result, "torch_version", DOVETAIL_TORCH_VERSION) < 0 ||
      PyModule_AddIntConstant(result, "interface", 7) < 0) {
    Py_DECREF(result);
    return nullptr;
  }
  return result;
}
