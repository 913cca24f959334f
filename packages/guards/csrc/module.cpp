// The extension module `dovetail_guards._native`: builds guards from the tables that `native.py`
// makes, and hands them to the frame hook through a capsule.

#include "guard.h"

#include <new>
#include <stdexcept>

namespace dovetail {
namespace {

// What the capsule "dovetail.guard.v1" points to. The frame hook declares the same struct.
typedef struct {
  uint64_t abi;
  int (*check)(void* ctx, PyObject* const* args, PyObject* func);
  void* ctx;
} DovetailGuard;

constexpr const char* kCapsuleName = "dovetail.guard.v1";

struct NativeGuard {
  PyObject_HEAD
  Guard* guard;
  DovetailGuard abi;
  Py_ssize_t argument_count;
};

int check_entry(void* ctx, PyObject* const* args, PyObject* func) {
  return check_guard(*static_cast<NativeGuard*>(ctx)->guard, args, func);
}

// --- building --------------------------------------------------------------------------------

struct BuildError : std::runtime_error {
  using std::runtime_error::runtime_error;
};
struct PythonError {};

PyObject* item(PyObject* tuple, Py_ssize_t i) {
  if (!PyTuple_Check(tuple) || i >= PyTuple_GET_SIZE(tuple)) throw BuildError("malformed table");
  return PyTuple_GET_ITEM(tuple, i);
}

int64_t number(PyObject* object) {
  int64_t value = PyLong_AsLongLong(object);
  if (value == -1 && PyErr_Occurred()) throw PythonError();
  return value;
}

void fill_dims(std::vector<int64_t>& dims, PyObject* tuple) {
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(tuple); i++) {
    PyObject* dim = PyTuple_GET_ITEM(tuple, i);
    dims.push_back(dim == Py_None ? kAnySize : number(dim));
  }
}

template <class T>
const T& view(PyObject* object, PyTypeObject* type) {
  if (Py_TYPE(object) != type) throw BuildError("not an object of torch's type");
  return *reinterpret_cast<T*>(object);
}

// (type, dtype, device, layout, requires_grad, conj, neg, sizes, strides or None)
TensorSpec tensor_spec(PyObject* table) {
  const Helpers& torch = helpers();
  TensorSpec spec;
  spec.type = reinterpret_cast<PyTypeObject*>(item(table, 0));
  if (!PyType_Check(item(table, 0)) || !PyType_IsSubtype(spec.type, torch.tensor_base)) {
    throw BuildError("TensorIs names a type that is no tensor type");
  }
  spec.dtype = view<DtypeObject>(item(table, 1), torch.dtype).scalar_type;
  spec.device = view<DeviceObject>(item(table, 2), torch.device).device;
  spec.layout = view<LayoutObject>(item(table, 3), torch.layout).layout;
  spec.requires_grad = item(table, 4) == Py_True;
  spec.conj = item(table, 5) == Py_True;
  spec.neg = item(table, 6) == Py_True;
  fill_dims(spec.sizes, item(table, 7));
  spec.has_strides = item(table, 8) != Py_None;
  if (spec.has_strides) fill_dims(spec.strides, item(table, 8));
  return spec;
}

// One spec for all tensors of a kind: a check then finds it in the cache.
const TensorSpec* shared_spec(Guard& guard, TensorSpec&& spec) {
  for (const TensorSpec& known : guard.specs) {
    if (known == spec) return &known;
  }
  return &guard.specs.emplace_back(std::move(spec));
}

// Must a child be evaluated although the dict it is read from is unchanged?
bool is_live(const Node& node) {
  if (node.slot >= 0 || node.attributes.used() || node.items.used() || !node.others.empty()) {
    return true;
  }
  for (const Check& check : node.checks) {
    // Constants: in pure mode only immutable ones compare equal, or the very same object.
    if (check.kind == CheckKind::TensorIs || check.kind == CheckKind::ClassAttrs ||
        check.kind == CheckKind::FunctionIs || check.kind == CheckKind::SlotEmpty ||
        check.kind == CheckKind::NoAccumulatorHooks || check.kind == CheckKind::NoOwnAttrs) {
      return true;
    }
    if (check.kind == CheckKind::TypeIs && class_can_change(check.object.get())) return true;
  }
  return false;
}

// (step, parent or -1, key or None, index)
void add_node(Guard& guard, PyObject* row) {
  auto node = std::make_unique<Node>();
  node->step = static_cast<Step>(number(item(row, 0)));
  int64_t parent = number(item(row, 1));
  PyObject* key = item(row, 2);
  node->key = Ref::copy(key);
  if (PyUnicode_CheckExact(key)) {
    node->hash = PyObject_Hash(key);
    if (node->hash == -1) throw PythonError();
  }
  node->index = number(item(row, 3));
  if (parent < 0) {
    guard.roots.push_back(node.get());
    guard.manners.emplace_back();
  } else {
    Node& above = *guard.nodes.at(static_cast<size_t>(parent));
    switch (node->step) {
      case Step::InstanceAttr:
        above.attributes.children.push_back(node.get());
        break;
      case Step::Item:
      case Step::DictKey:
        above.items.children.push_back(node.get());
        break;
      default:
        above.others.push_back(node.get());
    }
  }
  guard.nodes.push_back(std::move(node));
}

// --- the callback of weak references ---------------------------------------------------------

PyTypeObject* expiry_type = nullptr;

PyObject* expiry_call(PyObject* object, PyObject*, PyObject*) {
  reinterpret_cast<Expiry*>(object)->expired = true;
  Py_RETURN_NONE;
}

void expiry_dealloc(PyObject* object) {
  PyTypeObject* type = Py_TYPE(object);
  type->tp_free(object);
  Py_DECREF(type);
}

PyType_Slot expiry_slots[] = {
    {Py_tp_doc, const_cast<char*>("Called when an object dies that a guard wants.")},
    {Py_tp_dealloc, reinterpret_cast<void*>(expiry_dealloc)},
    {Py_tp_call, reinterpret_cast<void*>(expiry_call)},
    {0, nullptr}};

PyType_Spec expiry_spec = {
    "dovetail_guards._native.Expiry", sizeof(Expiry), 0,
    Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION, expiry_slots};

// How an object is compared by its identity: kept alive, referred to weakly, or by its address.
enum Identity : long { kStrong = 0, kWeak = 1, kAddress = 2 };

void add_identity(Guard& guard, Check& check, long how) {
  if (how == kAddress) {
    check.identity = static_cast<PyObject*>(PyLong_AsVoidPtr(check.object.get()));
    if (!check.identity) throw PythonError();
    check.object = Ref();
    return;
  }
  check.identity = check.object.get();
  if (how == kStrong) return;
  if (!guard.expiry.get()) {
    guard.expiry = Ref::steal(expiry_type->tp_alloc(expiry_type, 0));
    if (!guard.expiry.get()) throw PythonError();
  }
  Ref reference = Ref::steal(PyWeakref_NewRef(check.identity, guard.expiry.get()));
  if (!reference.get()) throw PythonError();
  check.object = std::move(reference);
}

// (node, kind, object, number)
void add_check(Guard& guard, PyObject* row) {
  Node& node = *guard.nodes.at(static_cast<size_t>(number(item(row, 0))));
  Check check;
  check.kind = static_cast<CheckKind>(number(item(row, 1)));
  check.object = Ref::copy(item(row, 2));
  check.number = number(item(row, 3));
  switch (check.kind) {
    case CheckKind::ClassAttrs:
    case CheckKind::FunctionIs: {
      bool is_class = check.kind == CheckKind::ClassAttrs;
      PyObject* table = check.object.get();
      if (!PyTuple_Check(table)) throw BuildError("the check needs a tuple");
      if (!is_class && PyTuple_GET_SIZE(table) != 3) throw BuildError("a function has three parts");
      for (Py_ssize_t i = 0; is_class && i < PyTuple_GET_SIZE(table); i++) {
        if (!PyTuple_Check(item(table, i)) || PyTuple_GET_SIZE(item(table, i)) != 3 ||
            !PyUnicode_CheckExact(item(item(table, i), 0))) {
          throw BuildError("a class attribute is (name, object, present)");
        }
      }
      node.checks.push_back(std::move(check));
      break;
    }
    case CheckKind::IdIs:
      add_identity(guard, check, static_cast<long>(check.number));
      node.checks.push_back(std::move(check));
      break;
    case CheckKind::TensorIs:
      check.tensor = shared_spec(guard, tensor_spec(check.object.get()));
      node.checks.push_back(std::move(check));
      break;
    case CheckKind::LengthIs:
    case CheckKind::DictKeysAre:
    case CheckKind::HasKey:
      node.items.checks.push_back(std::move(check));
      break;
    case CheckKind::HasInstanceAttr:
      node.attributes.checks.push_back(std::move(check));
      break;
    case CheckKind::SlotEmpty:
      if (!PyUnicode_CheckExact(check.object.get())) throw BuildError("a slot has a name");
      node.checks.push_back(std::move(check));
      break;
    default:
      node.checks.push_back(std::move(check));
  }
}

// (state or -1, expected or None, exact, reader, value)
void add_state(Guard& guard, PyObject* row) {
  StateCheck check;
  check.state = static_cast<int>(number(item(row, 0)));
  PyObject* expected = item(row, 1);
  check.expected = expected == Py_None ? kUnreadable : number(expected);
  check.exact = item(row, 2) == Py_True;
  check.reader = Ref::copy(item(row, 3));
  check.value = Ref::copy(item(row, 4));
  guard.states.push_back(std::move(check));
}

int slot_of(Guard& guard, int64_t index) {
  Node& node = *guard.nodes.at(static_cast<size_t>(index));
  if (node.slot < 0) node.slot = guard.slot_count++;
  return node.slot;
}

// The form of the tables that a guard is made of: another number wherever it changes.
constexpr int kTables = 5;

// (kind, ((node, dim or None) ...), ((op, argument) ...) or a function, stack depth)
void add_relation(Guard& guard, PyObject* row) {
  Relation relation;
  relation.kind = static_cast<RelationKind>(number(item(row, 0)));
  PyObject* operands = item(row, 1);
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(operands); i++) {
    PyObject* operand = PyTuple_GET_ITEM(operands, i);
    PyObject* dim = item(operand, 1);
    int64_t node = number(item(operand, 0));
    int slot = slot_of(guard, node);
    relation.operands.push_back(
        {guard.nodes[static_cast<size_t>(node)].get(), slot, dim == Py_None ? kAnySize : number(dim)});
  }
  PyObject* code = item(row, 2);
  if (relation.kind == RelationKind::Computed) {
    relation.check = Ref::copy(code);
    guard.relations.push_back(std::move(relation));
    return;
  }
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(code); i++) {
    PyObject* in = PyTuple_GET_ITEM(code, i);
    relation.program.code.push_back({static_cast<Op>(number(item(in, 0))), number(item(in, 1))});
  }
  relation.program.depth = number(item(row, 3));
  guard.relations.push_back(std::move(relation));
}

void for_rows(PyObject* rows, Guard& guard, void (*add)(Guard&, PyObject*)) {
  if (!PyList_Check(rows)) throw BuildError("a table is a list of tuples");
  for (Py_ssize_t i = 0; i < PyList_GET_SIZE(rows); i++) add(guard, PyList_GET_ITEM(rows, i));
}

std::unique_ptr<Guard> build(PyObject* nodes, PyObject* checks, PyObject* states, PyObject* relations) {
  auto guard = std::make_unique<Guard>();
  for_rows(nodes, *guard, add_node);
  for_rows(checks, *guard, add_check);
  for_rows(states, *guard, add_state);
  for_rows(relations, *guard, add_relation);
  for (auto& node : guard->nodes) {
    for (Facet* facet : {&node->attributes, &node->items}) {
      for (Node* child : facet->children) {
        if (is_live(*child)) facet->live.push_back(child);
      }
    }
  }
  return guard;
}

// --- the Python type -------------------------------------------------------------------------

PyObject* guard_new(PyTypeObject* type, PyObject* args, PyObject*) {
  PyObject *nodes, *checks, *states, *relations;
  Py_ssize_t argument_count;
  if (!PyArg_ParseTuple(
          args, "nOOOO", &argument_count, &nodes, &checks, &states, &relations)) {
    return nullptr;
  }
  if (!helpers().tensor_base) {
    PyErr_SetString(PyExc_RuntimeError, "dovetail_guards._native is set up by dovetail_guards.native");
    return nullptr;
  }
  std::unique_ptr<Guard> guard;
  try {
    guard = build(nodes, checks, states, relations);
  } catch (const PythonError&) {
    return nullptr;
  } catch (const std::exception& error) {
    PyErr_SetString(PyExc_TypeError, error.what());
    return nullptr;
  }
  auto* self = reinterpret_cast<NativeGuard*>(type->tp_alloc(type, 0));
  if (!self) return nullptr;
  self->guard = guard.release();
  self->abi = {1, check_entry, self};
  self->argument_count = argument_count;
  return reinterpret_cast<PyObject*>(self);
}

template <class F>
void for_objects(Guard& guard, F visit) {
  for (auto& node : guard.nodes) {
    visit(node->key);
    for (auto* checks : {&node->checks, &node->attributes.checks, &node->items.checks}) {
      for (Check& check : *checks) visit(check.object);
    }
  }
  for (StateCheck& check : guard.states) {
    visit(check.reader);
    visit(check.value);
  }
}

int guard_traverse(PyObject* object, visitproc visit, void* arg) {
  auto* self = reinterpret_cast<NativeGuard*>(object);
  Py_VISIT(Py_TYPE(object));
  int result = 0;
  if (self->guard) {
    for_objects(*self->guard, [&](Ref& ref) {
      if (!result && ref.get()) result = visit(ref.get(), arg);
    });
  }
  return result;
}

int guard_clear(PyObject* object) {
  auto* self = reinterpret_cast<NativeGuard*>(object);
  Guard* guard = self->guard;
  // A guard that was taken apart answers "no" from here on.
  self->guard = new Guard();
  StateCheck never{static_cast<int>(State::GradMode), -1, true, Ref(), Ref()};
  self->guard->states.push_back(std::move(never));
  delete guard;
  return 0;
}

void guard_dealloc(PyObject* object) {
  PyObject_GC_UnTrack(object);
  PyTypeObject* type = Py_TYPE(object);
  delete reinterpret_cast<NativeGuard*>(object)->guard;
  type->tp_free(object);
  Py_DECREF(type);
}

PyObject* guard_call(PyObject* object, PyObject* args, PyObject*) {
  auto* self = reinterpret_cast<NativeGuard*>(object);
  PyObject *values, *func;
  if (!PyArg_ParseTuple(args, "O!O!", &PyTuple_Type, &values, &PyFunction_Type, &func)) {
    return nullptr;
  }
  if (PyTuple_GET_SIZE(values) != self->argument_count) {
    PyErr_Format(
        PyExc_TypeError, "the frame has %zd arguments, not %zd", self->argument_count,
        PyTuple_GET_SIZE(values));
    return nullptr;
  }
  int outcome = check_guard(*self->guard, &PyTuple_GET_ITEM(values, 0), func);
  return outcome < 0 ? nullptr : PyBool_FromLong(outcome);
}

PyObject* guard_repeat(PyObject* object, PyObject* args) {
  auto* self = reinterpret_cast<NativeGuard*>(object);
  PyObject *values, *func;
  Py_ssize_t count;
  if (!PyArg_ParseTuple(args, "O!O!n", &PyTuple_Type, &values, &PyFunction_Type, &func, &count)) {
    return nullptr;
  }
  if (PyTuple_GET_SIZE(values) != self->argument_count) {
    PyErr_SetString(PyExc_TypeError, "wrong number of frame arguments");
    return nullptr;
  }
  Py_ssize_t passed = 0;
  for (Py_ssize_t i = 0; i < count; i++) {
    int outcome = self->abi.check(self->abi.ctx, &PyTuple_GET_ITEM(values, 0), func);
    if (outcome < 0) return nullptr;
    passed += outcome;
  }
  return PyLong_FromSsize_t(passed);
}

void capsule_free(PyObject* capsule) {
  Py_XDECREF(static_cast<PyObject*>(PyCapsule_GetContext(capsule)));
}

PyObject* guard_capsule(PyObject* object, void*) {
  auto* self = reinterpret_cast<NativeGuard*>(object);
  PyObject* capsule = PyCapsule_New(&self->abi, kCapsuleName, capsule_free);
  if (!capsule) return nullptr;
  Py_INCREF(object);
  if (PyCapsule_SetContext(capsule, object) < 0) {
    Py_DECREF(object);
    Py_DECREF(capsule);
    return nullptr;
  }
  return capsule;
}

PyMethodDef guard_methods[] = {
    {"repeat", guard_repeat, METH_VARARGS,
     "repeat(args, func, count): check count times through the C entry; how many passed"},
    {nullptr, nullptr, 0, nullptr}};

PyObject* guard_patience(PyObject* object, void*) {
  return PyLong_FromLong(reinterpret_cast<NativeGuard*>(object)->guard->trace.patience);
}

int guard_set_patience(PyObject* object, PyObject* value, void*) {
  long patience = value ? PyLong_AsLong(value) : 0;
  if (patience < 1 || patience > Trace::kMostPatience) {
    if (!PyErr_Occurred()) PyErr_SetString(PyExc_ValueError, "patience is a small positive number");
    return -1;
  }
  reinterpret_cast<NativeGuard*>(object)->guard->trace.patience = static_cast<int>(patience);
  return 0;
}

PyObject* guard_is_traced(PyObject* object, void*) {
  return PyBool_FromLong(reinterpret_cast<NativeGuard*>(object)->guard->trace.made);
}

PyObject* guard_is_expired(PyObject* object, void*) {
  return PyBool_FromLong(reinterpret_cast<NativeGuard*>(object)->guard->is_expired());
}

PyGetSetDef guard_getset[] = {
    {"patience", guard_patience, guard_set_patience,
     "how many checks in a row must find everything as it was before they are remembered flat",
     nullptr},
    {"is_expired", guard_is_expired, nullptr,
     "has an object died that it compares by identity? It never holds again", nullptr},
    {"is_traced", guard_is_traced, nullptr, "is what the checks found remembered flat?", nullptr},
    {"capsule", guard_capsule, nullptr, "the check for C callers, named dovetail.guard.v1", nullptr},
    {nullptr, nullptr, nullptr, nullptr, nullptr}};

PyType_Slot guard_slots[] = {
    {Py_tp_doc, const_cast<char*>("A compiled guard: called as guard(args, func) -> bool.")},
    {Py_tp_new, reinterpret_cast<void*>(guard_new)},
    {Py_tp_dealloc, reinterpret_cast<void*>(guard_dealloc)},
    {Py_tp_traverse, reinterpret_cast<void*>(guard_traverse)},
    {Py_tp_clear, reinterpret_cast<void*>(guard_clear)},
    {Py_tp_call, reinterpret_cast<void*>(guard_call)},
    {Py_tp_methods, guard_methods},
    {Py_tp_getset, guard_getset},
    {0, nullptr}};

PyType_Spec guard_spec = {
    "dovetail_guards._native.NativeGuard", sizeof(NativeGuard), 0,
    Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC, guard_slots};

// --- proofs on load, and set-up --------------------------------------------------------------

// What our view of a tensor says: (impl address, dtype object's number, the tensor's number,
// device type, device index, layout number), for Python to compare with what torch says.
PyObject* probe_tensor(PyObject*, PyObject* tensor) {
  const c10::TensorImpl* impl = impl_of(tensor);
  return Py_BuildValue(
      "nii", reinterpret_cast<Py_ssize_t>(impl), static_cast<int>(impl->dtype().toScalarType()),
      static_cast<int>(impl->layout()));
}

PyObject* probe_address(PyObject*, PyObject* tensor) {
  return PyLong_FromVoidPtr(impl_of(tensor));
}

PyObject* probe_constants(PyObject*, PyObject* args) {
  PyObject *dtype, *layout, *device;
  if (!PyArg_ParseTuple(args, "OOO", &dtype, &layout, &device)) return nullptr;
  c10::Device seen = reinterpret_cast<DeviceObject*>(device)->device;
  return Py_BuildValue(
      "iiii", static_cast<int>(reinterpret_cast<DtypeObject*>(dtype)->scalar_type),
      static_cast<int>(reinterpret_cast<LayoutObject*>(layout)->layout),
      static_cast<int>(seen.type()), static_cast<int>(seen.index()));
}

PyObject* probe_dict(PyObject*, PyObject* object) {
  bool unmade;
  PyObject* dict = peek_dict(object, unmade);
  if (!dict) Py_RETURN_NONE;
  return Py_NewRef(dict);
}

// Has an object no attribute of its own? None: it has a dict, or that is not known.
PyObject* probe_values(PyObject*, PyObject* object) {
  bool unmade;
  peek_dict(object, unmade);
  if (!unmade) Py_RETURN_NONE;
  return PyBool_FromLong(has_no_values(object));
}

PyObject* set_values_known(PyObject*, PyObject* known) {
  inline_values_are_known() = known == Py_True;
  Py_RETURN_NONE;
}

PyObject* has_accumulator_hooks(PyObject*, PyObject* tensor) {
  if (!PyObject_TypeCheck(tensor, helpers().tensor_base) || !impl_of(tensor)) {
    PyErr_SetString(PyExc_TypeError, "expected a tensor");
    return nullptr;
  }
  return PyBool_FromLong(accumulator_has_hooks(impl_of(tensor)));
}

// Does a stamp of this dict survive calling `change`?
PyObject* probe_stamp(PyObject*, PyObject* args) {
  PyObject *dict, *change;
  if (!PyArg_ParseTuple(args, "O!O", &PyDict_Type, &dict, &change)) return nullptr;
  Stamp stamp = Stamp::of(dict);
  PyObject* result = PyObject_CallNoArgs(change);
  if (!result) return nullptr;
  Py_DECREF(result);
  return PyBool_FromLong(stamp.holds(dict));
}

PyObject* set_silent(PyObject*, PyObject* silent) {
  set_inline_writes_are_silent(silent == Py_True);
  Py_RETURN_NONE;
}

PyObject* state_number(PyObject*, PyObject* arg) {
  long state = PyLong_AsLong(arg);
  if (state == -1 && PyErr_Occurred()) return nullptr;
  int64_t seen = read_state(static_cast<State>(state));
  if (seen == kUnreadable) Py_RETURN_NONE;
  return PyLong_FromLongLong(seen);
}

PyObject* set_up(PyObject*, PyObject* args) {
  PyObject *equal, *base, *dtype, *layout, *device;
  if (!PyArg_ParseTuple(
          args, "OO!O!O!O!", &equal, &PyType_Type, &base, &PyType_Type, &dtype, &PyType_Type,
          &layout, &PyType_Type, &device)) {
    return nullptr;
  }
  for (PyObject* held : {equal, base, dtype, layout, device}) Py_INCREF(held);
  helpers() = {
      equal, reinterpret_cast<PyTypeObject*>(base), reinterpret_cast<PyTypeObject*>(dtype),
      reinterpret_cast<PyTypeObject*>(layout), reinterpret_cast<PyTypeObject*>(device)};
  Py_RETURN_NONE;
}

PyMethodDef module_methods[] = {
    {"set_up", set_up, METH_VARARGS, "Hand over the types and helpers the checks need."},
    {"probe_address", probe_address, METH_O, "Our view of a tensor's TensorImpl address."},
    {"probe_tensor", probe_tensor, METH_O, "Our view of a tensor: (address, dtype, layout)."},
    {"probe_constants", probe_constants, METH_VARARGS,
     "Our view of a dtype, a layout and a device: (dtype, layout, device type, device index)."},
    {"probe_dict", probe_dict, METH_O, "Our view of an object's instance dict, or None."},
    {"probe_values", probe_values, METH_O, "Has an object without a dict no attribute?"},
    {"set_inline_values_are_known", set_values_known, METH_O,
     "Tell whether the number of inline values is read rightly."},
    {"probe_stamp", probe_stamp, METH_VARARGS, "Does a dict's stamp survive a call?"},
    {"accumulator_has_hooks", has_accumulator_hooks, METH_O,
     "Does the node that accumulates this tensor's gradient have hooks?"},
    {"set_inline_writes_are_silent", set_silent, METH_O,
     "Tell whether attribute writes go unnoticed while values are stored inline."},
    {"state_number", state_number, METH_O, "A torch setting as a number, or None."},
    {nullptr, nullptr, 0, nullptr}};

PyModuleDef module_def = {
    PyModuleDef_HEAD_INIT, "dovetail_guards._native", "Native guard evaluation.", -1,
    module_methods, nullptr, nullptr, nullptr, nullptr};

}  // namespace
}  // namespace dovetail

PyMODINIT_FUNC PyInit__native() {
  using namespace dovetail;
  PyObject* module = PyModule_Create(&module_def);
  if (!module) return nullptr;
  expiry_type = reinterpret_cast<PyTypeObject*>(PyType_FromSpec(&expiry_spec));
  PyObject* type = PyType_FromSpec(&guard_spec);
  if (!expiry_type || !type || PyModule_AddObjectRef(module, "NativeGuard", type) < 0 ||
      PyModule_AddStringConstant(module, "TORCH_VERSION", DOVETAIL_TORCH_VERSION) < 0 ||
      PyModule_AddIntConstant(module, "TABLES", kTables) < 0 ||
      PyModule_AddIntConstant(module, "STATE_COUNT", static_cast<int>(State::Count)) < 0 ||
      !start_watching()) {
    Py_XDECREF(type);
    Py_DECREF(module);
    return nullptr;
  }
  Py_DECREF(type);
  return module;
}
