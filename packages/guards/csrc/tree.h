// The guard as a tree of sources: each is evaluated once, and the clauses about it are tested
// there.
//
// A node that reads a dict (its own items, or its instance `__dict__`) remembers, after its whole
// subtree has passed, a `Stamp` of that dict. While the stamp holds, the same keys still lead to
// the same objects: lookups, checks about the dict's keys, and children that cannot change
// (constants, identities, types of a fixed class) are skipped; the others ("live" children) are
// evaluated from their remembered addresses. Each memory is local to one dict, so it is right
// whatever the rest of the guard found.
#pragma once

#include "accumulator.h"
#include "common.h"
#include "dict_version.h"
#include "relation.h"
#include "tensor_view.h"

#include <memory>
#include <vector>

namespace dovetail {

// How a node's value is found from its parent's; the numbers are those of `native.py`.
enum class Step : int {
  Argument,
  Closure,
  Globals,
  Builtins,
  Object,
  Attr,
  InstanceAttr,
  Item,
  DictKey,
  Type,
  Cell,
  Size,
  Flatten,
  Call,
};

enum class CheckKind : int {
  TypeIs,
  IdIs,
  ConstantIs,
  LengthIs,
  DictKeysAre,
  HasKey,
  HasInstanceAttr,
  TensorIs,
  ClassAttrs,
  FunctionIs,
  SlotEmpty,
  NoAccumulatorHooks,
  NoOwnAttrs,
};

struct Check {
  CheckKind kind;
  Ref object;      // type, identity or a weak reference to it, constant, keys, key or name
  int64_t number;  // length; or presence
  PyObject* identity = nullptr;  // IdIs: the object; without `object`, only its address
  unsigned version = 0;  // ClassAttrs: the class's version tag when they were last compared
  const TensorSpec* tensor = nullptr;  // TensorIs: the guard's, which tensors of one kind share
};

struct Node;

// What a node reads from one dict, and its memory of it.
struct Facet {
  std::vector<Node*> live;  // the children that must be evaluated even if the dict is unchanged
  Stamp stamp;
  PyObject* last = nullptr;  // address of the last dict seen; only ever compared
  int breaks = 0;            // how often a trace was dropped because this dict was another
  std::vector<Check> checks;
  std::vector<Node*> children;

  bool used() const { return !checks.empty() || !children.empty(); }
};

struct Node {
  Step step;
  Ref key;            // attribute name, item key or held object
  Py_hash_t hash = 0; // of `key`, if it is a string
  int64_t index = 0;  // argument, closure cell, position or dimension
  int slot = -1;      // where relations between values find this one
  int changes = 0;    // how often its value was another than a trace's
  bool fixed = false; // the trace holds for one very object here
  std::vector<Check> checks;
  Facet attributes;  // the instance `__dict__`
  Facet items;       // the value's own items, if it is a dict; a list or tuple has no memory
  std::vector<Node*> others;
  PyObject* remembered = nullptr;  // borrowed; valid while the parent's stamp holds
};

// Instances of classes made by `class` statements, and modules, can be given another class.
inline bool class_can_change(PyObject* type) {
  auto* class_ = reinterpret_cast<PyTypeObject*>(type);
  return PyType_HasFeature(class_, Py_TPFLAGS_HEAPTYPE) ||
      PyType_IsSubtype(class_, &PyModule_Type);
}

// Values that relations speak of: owned references, one array per call.
using Slots = Ref*;

Outcome evaluate(Node& node, PyObject* value, Mode mode, Slots slots);

// What `module.cpp` is given once, by `native.py`; held for the life of the process.
struct Helpers {
  PyObject* constants_equal = nullptr;   // dovetail_guards.evaluate.constants_equal
  PyTypeObject* tensor_base = nullptr;   // torch._C.TensorBase
  PyTypeObject* dtype = nullptr;
  PyTypeObject* layout = nullptr;
  PyTypeObject* device = nullptr;
};

inline Helpers& helpers() {
  static Helpers held;
  return held;
}

// `constants_equal` of `evaluate.py` for the exact builtin types; Impure for all others.
inline Outcome constants_equal_pure(PyObject* seen, PyObject* value) {
  PyTypeObject* type = Py_TYPE(value);
  if (Py_TYPE(seen) != type) return Fail;
  if (seen == value) return Pass;
  if (type == &PyBool_Type || value == Py_None) return Fail;
  if (type == &PyUnicode_Type) return PyUnicode_Compare(seen, value) == 0 ? Pass : Fail;
  if (type == &PyLong_Type || type == &PyBytes_Type) {
    return PyObject_RichCompareBool(seen, value, Py_EQ) == 1 ? Pass : Fail;
  }
  if (type == &PyFloat_Type) {
    double a = PyFloat_AS_DOUBLE(seen), b = PyFloat_AS_DOUBLE(value);
    if (a != a || b != b) return a != a && b != b ? Pass : Fail;
    return a == b && __builtin_signbit(a) == __builtin_signbit(b) ? Pass : Fail;
  }
  if (type == &PyTuple_Type) {
    Py_ssize_t size = PyTuple_GET_SIZE(value);
    if (PyTuple_GET_SIZE(seen) != size) return Fail;
    for (Py_ssize_t i = 0; i < size; i++) {
      Outcome each = constants_equal_pure(PyTuple_GET_ITEM(seen, i), PyTuple_GET_ITEM(value, i));
      if (each != Pass) return each;
    }
    return Pass;
  }
  return Impure;
}

inline Outcome constants_equal(PyObject* seen, PyObject* value, Mode mode) {
  Outcome outcome = constants_equal_pure(seen, value);
  if (outcome != Impure || mode == Mode::Pure) return outcome;
  PyObject* arguments[] = {seen, value};
  PyObject* answer = PyObject_Vectorcall(helpers().constants_equal, arguments, 2, nullptr);
  if (!answer) return swallow_exception();
  outcome = answer == Py_True ? Pass : Fail;
  Py_DECREF(answer);
  return outcome;
}

// Dict keys: the same object, or one that is equal as constants are.
inline Outcome keys_equal(PyObject* seen, PyObject* key, Mode mode) {
  return seen == key ? Pass : constants_equal(seen, key, mode);
}

// Finds a key; nullptr with no exception when absent. The reference is borrowed.
inline PyObject* look_up(PyObject* dict, PyObject* key, Py_hash_t hash) {
  if (PyUnicode_CheckExact(key)) return _PyDict_GetItem_KnownHash(dict, key, hash);
  return PyDict_GetItemWithError(dict, key);
}

// Is a lookup of this key certain to run no Python code? (Its hash and comparison might.)
inline bool is_plain_key(PyObject* key) {
  return PyUnicode_CheckExact(key) || PyLong_CheckExact(key) || PyBool_Check(key) ||
      key == Py_None || PyType_CheckExact(key);
}

inline Outcome check_keys(PyObject* dict, PyObject* keys, Mode mode) {
  Py_ssize_t size = PyTuple_GET_SIZE(keys);
  if (PyDict_Size(dict) != size) return Fail;
  if (size > 1 && PyODict_Check(dict)) {  // its order is its own, not that of the underlying table
    if (mode == Mode::Pure) return Impure;
    Ref iterator = Ref::steal(PyODict_Type.tp_iter(dict));
    if (!iterator.get()) return swallow_exception();
    for (Py_ssize_t i = 0; i < size; i++) {
      Ref key = Ref::steal(PyIter_Next(iterator.get()));
      if (!key.get()) return swallow_exception();
      Outcome outcome = keys_equal(key.get(), PyTuple_GET_ITEM(keys, i), mode);
      if (outcome != Pass) return outcome;
    }
    return Pass;
  }
  Py_ssize_t position = 0, i = 0;
  PyObject *key, *value;
  while (i < size && PyDict_Next(dict, &position, &key, &value)) {
    Ref held = Ref::copy(mode == Mode::Careful ? key : nullptr);
    Outcome outcome = keys_equal(key, PyTuple_GET_ITEM(keys, i++), mode);
    if (outcome != Pass) return outcome;
  }
  return i == size ? Pass : Fail;
}

// Checks about a dict's keys. They hold as long as the dict is unchanged.
inline Outcome check_dict(const Check& check, PyObject* dict, Mode mode) {
  switch (check.kind) {
    case CheckKind::LengthIs:
      return PyDict_Size(dict) == check.number ? Pass : Fail;
    case CheckKind::DictKeysAre:
      return check_keys(dict, check.object.get(), mode);
    default: {  // HasKey, HasInstanceAttr
      PyObject* key = check.object.get();
      if (mode == Mode::Pure && !is_plain_key(key)) return Impure;
      int present = PyDict_Contains(dict, key);
      if (present < 0) return swallow_exception();
      return present == check.number ? Pass : Fail;
    }
  }
}

// (name, attribute or None, present) ...: what the class's MRO gives, descriptors not run. CPython
// gives a class another version tag when it or one of its bases changes.
inline Outcome check_class(Check& check, PyObject* value) {
  if (!PyType_Check(value)) return Fail;
  auto* type = reinterpret_cast<PyTypeObject*>(value);
  auto version = [&]() -> unsigned {
    return PyType_HasFeature(type, Py_TPFLAGS_VALID_VERSION_TAG) ? type->tp_version_tag : 0;
  };
  if (check.version && check.version == version()) return Pass;
  PyObject* rows = check.object.get();
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(rows); i++) {
    PyObject* row = PyTuple_GET_ITEM(rows, i);
    PyObject* name = PyTuple_GET_ITEM(row, 0);
    bool is_mro = PyUnicode_CompareWithASCIIString(name, "<mro>") == 0;
    PyObject* found = is_mro ? type->tp_mro : _PyType_Lookup(type, name);
    PyObject* wanted = PyTuple_GET_ITEM(row, 2) == Py_True ? PyTuple_GET_ITEM(row, 1) : nullptr;
    if (found != wanted) return Fail;
  }
  check.version = version();
  return Pass;
}

// (code, defaults or None, keyword defaults or None) of a function.
inline Outcome check_function(const Check& check, PyObject* value) {
  if (!PyFunction_Check(value)) return Fail;
  auto* function = reinterpret_cast<PyFunctionObject*>(value);
  auto same = [&](PyObject* held, Py_ssize_t i) {
    return (held ? held : Py_None) == PyTuple_GET_ITEM(check.object.get(), i);
  };
  return same(function->func_code, 0) && same(function->func_defaults, 1) &&
          same(function->func_kwdefaults, 2)
      ? Pass
      : Fail;
}

// A member of `__slots__`, read where it lies.
inline Outcome check_empty_slot(const Check& check, PyObject* value) {
  PyObject* found = _PyType_Lookup(Py_TYPE(value), check.object.get());
  if (!found || !Py_IS_TYPE(found, &PyMemberDescr_Type)) return Fail;
  const PyMemberDef* member = reinterpret_cast<PyMemberDescrObject*>(found)->d_member;
  if (member->type != T_OBJECT_EX) return Fail;
  return *reinterpret_cast<PyObject**>(reinterpret_cast<char*>(value) + member->offset) ? Fail : Pass;
}

// A leaf whose gradient is accumulated by a node without hooks.
inline Outcome check_accumulator(PyObject* value) {
  if (!PyObject_TypeCheck(value, helpers().tensor_base)) return Fail;
  c10::TensorImpl* impl = impl_of(value);
  return impl && !accumulator_has_hooks(impl) ? Pass : Fail;
}

// No attribute of these names in the value's own `__dict__`. Of tensors, which rarely have any: so
// that none has to be given a `__dict__` for it.
inline Outcome check_own_attrs(const Check& check, PyObject* value, Mode mode) {
  bool unmade;
  PyObject* dict = peek_dict(value, unmade);
  if (unmade) {
    if (has_no_values(value)) return Pass;
    if (mode == Mode::Pure) return Unmade;
    dict = made_dict(value);
    if (!dict) return Fail;
  }
  if (!dict) return Pass;
  PyObject* names = check.object.get();
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(names); i++) {
    int present = PyDict_Contains(dict, PyTuple_GET_ITEM(names, i));
    if (present < 0) return swallow_exception();
    if (present) return Fail;
  }
  return Pass;
}

// Checks about the value itself.
inline Outcome check_value(Check& check, PyObject* value, Mode mode) {
  switch (check.kind) {
    case CheckKind::TypeIs:
      return reinterpret_cast<PyObject*>(Py_TYPE(value)) == check.object.get() ? Pass : Fail;
    case CheckKind::IdIs:
      return value == check.identity ? Pass : Fail;
    case CheckKind::ConstantIs:
      return constants_equal(value, check.object.get(), mode);
    case CheckKind::TensorIs:
      return check_tensor(*check.tensor, value, mode);
    case CheckKind::ClassAttrs:
      return check_class(check, value);
    case CheckKind::FunctionIs:
      return check_function(check, value);
    case CheckKind::SlotEmpty:
      return check_empty_slot(check, value);
    case CheckKind::NoAccumulatorHooks:
      return check_accumulator(value);
    case CheckKind::NoOwnAttrs:
      return check_own_attrs(check, value, mode);
    default:
      return Fail;
  }
}

// A value that is no dict has no key, and only the length of what it contains.
inline Outcome check_no_dict(const Check& check, PyObject* value, Mode mode) {
  if (check.kind != CheckKind::LengthIs) return Fail;
  Py_ssize_t length;
  if (PyList_Check(value)) {
    length = PyList_GET_SIZE(value);
  } else if (PyTuple_Check(value)) {
    length = PyTuple_GET_SIZE(value);
  } else if (PyAnySet_Check(value)) {
    length = PySet_GET_SIZE(value);
  } else if (mode == Mode::Pure) {
    return Impure;
  } else {
    length = PyObject_Size(value);
    if (length < 0) return swallow_exception();
  }
  return length == check.number ? Pass : Fail;
}

inline Outcome evaluate_child(Node& child, PyObject* value, Mode mode, Slots slots) {
  if (mode == Mode::Pure) return evaluate(child, value, mode, slots);
  Ref held = Ref::copy(value);
  return evaluate(child, value, mode, slots);
}

// The value of an Item, DictKey or InstanceAttr child in a dict: borrowed, or nullptr and `why`.
inline PyObject* read_dict(const Node& child, PyObject* dict, Mode mode, Outcome& why) {
  why = Fail;
  if (child.step == Step::DictKey) {
    if (PyODict_Check(dict) && PyDict_Size(dict) > 1) {
      why = Impure;
      if (mode == Mode::Pure) return nullptr;
      Ref iterator = Ref::steal(PyODict_Type.tp_iter(dict));
      Ref keys = Ref::steal(iterator.get() ? PySequence_List(iterator.get()) : nullptr);
      why = keys.get() ? Fail : swallow_exception();
      if (!keys.get() || child.index >= PyList_GET_SIZE(keys.get())) return nullptr;
      return PyList_GET_ITEM(keys.get(), child.index);  // the dict still holds it
    }
    Py_ssize_t position = 0;
    PyObject *key, *value;
    for (int64_t i = 0; PyDict_Next(dict, &position, &key, &value); i++) {
      if (i == child.index) return key;
    }
    return nullptr;
  }
  PyObject* key = child.key.get();
  if (mode == Mode::Pure && !is_plain_key(key)) {
    why = Impure;
    return nullptr;
  }
  PyObject* value = look_up(dict, key, child.hash);
  if (!value) why = swallow_exception();
  return value;
}

// All that hangs under one dict.
inline Outcome evaluate_facet(Facet& facet, PyObject* dict, Mode mode, Slots slots) {
  // Pure mode runs no code, so nothing can change between this test and the last live child.
  if (mode == Mode::Pure && facet.stamp.holds(dict)) {
    for (Node* child : facet.live) {
      Outcome outcome = evaluate(*child, child->remembered, mode, slots);
      if (outcome != Pass) return outcome;
    }
    return Pass;
  }
  bool remember = mode == Mode::Pure && facet.last == dict;
  Stamp stamp;
  if (mode == Mode::Pure) facet.stamp.release();  // children's memories are about to change
  if (remember) stamp = Stamp::of(dict);
  Ref held = Ref::copy(mode == Mode::Careful ? dict : nullptr);
  for (const Check& check : facet.checks) {
    Outcome outcome = check_dict(check, dict, mode);
    if (outcome != Pass) return outcome;
  }
  for (Node* child : facet.children) {
    Outcome outcome;
    PyObject* value = read_dict(*child, dict, mode, outcome);
    if (!value) return outcome;
    if (mode == Mode::Pure) child->remembered = value;
    outcome = evaluate_child(*child, value, mode, slots);
    if (outcome != Pass) return outcome;
  }
  if (remember) facet.stamp = std::move(stamp);
  if (mode == Mode::Pure) facet.last = dict;
  return Pass;
}

// Item children of a list, tuple or any other container.
inline Outcome evaluate_sequence(Node& node, PyObject* value, Mode mode, Slots slots) {
  for (const Check& check : node.items.checks) {
    Outcome outcome = check_no_dict(check, value, mode);
    if (outcome != Pass) return outcome;
  }
  bool is_list = PyList_Check(value), is_tuple = PyTuple_Check(value);
  for (Node* child : node.items.children) {
    Outcome outcome;
    if (child->step == Step::DictKey) return Fail;
    PyObject* key = child->key.get();
    if ((is_list || is_tuple) && PyLong_Check(key)) {
      Py_ssize_t size = is_list ? PyList_GET_SIZE(value) : PyTuple_GET_SIZE(value);
      Py_ssize_t i = PyLong_AsSsize_t(key);
      if (i == -1 && PyErr_Occurred()) return swallow_exception();
      if (i < 0) i += size;
      if (i < 0 || i >= size) return Fail;
      PyObject* item = is_list ? PyList_GET_ITEM(value, i) : PyTuple_GET_ITEM(value, i);
      outcome = evaluate_child(*child, item, mode, slots);
    } else if (mode == Mode::Pure) {
      outcome = Impure;
    } else {
      const PyTypeObject& base = is_list ? PyList_Type : is_tuple ? PyTuple_Type : *Py_TYPE(value);
      Ref item = Ref::steal(
          is_list || is_tuple ? base.tp_as_mapping->mp_subscript(value, key)
                              : PyObject_GetItem(value, key));
      outcome = item.get() ? evaluate(*child, item.get(), mode, slots) : swallow_exception();
    }
    if (outcome != Pass) return outcome;
  }
  return Pass;
}

// The names of a class made by a `class` statement. Assigning them does not change its version tag.
inline PyObject** class_name_place(PyObject* value, PyObject* name) {
  PyTypeObject* meta = Py_TYPE(value);
  if (meta->tp_getattro != PyType_Type.tp_getattro) return nullptr;
  if (!PyType_HasFeature(reinterpret_cast<PyTypeObject*>(value), Py_TPFLAGS_HEAPTYPE)) return nullptr;
  auto* class_ = reinterpret_cast<PyHeapTypeObject*>(value);
  PyObject** place = PyUnicode_CompareWithASCIIString(name, "__name__") == 0 ? &class_->ht_name
      : PyUnicode_CompareWithASCIIString(name, "__qualname__") == 0          ? &class_->ht_qualname
                                                                             : nullptr;
  if (!place) return nullptr;
  PyObject* found = _PyType_Lookup(meta, name);  // a metaclass may have its own
  bool usual = found && Py_IS_TYPE(found, &PyGetSetDescr_Type) && PyDescr_TYPE(found) == &PyType_Type;
  return usual ? place : nullptr;
}

// Where `getattr` reads one pointer and does nothing else: a member of `__slots__`, a function's
// code, a class's name. It stays there as long as the value's class does not change. nullptr: not
// such a case.
inline PyObject** attribute_place(PyObject* value, PyObject* name) {
  if (PyType_Check(value)) return class_name_place(value, name);
  PyTypeObject* type = Py_TYPE(value);
  if (type->tp_getattro != PyObject_GenericGetAttr) return nullptr;
  if (PyFunction_Check(value) && PyUnicode_CompareWithASCIIString(name, "__code__") == 0) {
    return &reinterpret_cast<PyFunctionObject*>(value)->func_code;
  }
  PyObject* found = _PyType_Lookup(type, name);
  if (!found || !Py_IS_TYPE(found, &PyMemberDescr_Type)) return nullptr;
  auto* slot = reinterpret_cast<PyMemberDescrObject*>(found);
  if (slot->d_member->type != T_OBJECT_EX && slot->d_member->type != T_OBJECT) return nullptr;
  if (slot->d_member->flags & ~READONLY) return nullptr;
  if (!PyType_IsSubtype(type, PyDescr_TYPE(found))) return nullptr;
  auto* place = reinterpret_cast<PyObject**>(
      reinterpret_cast<char*>(value) + slot->d_member->offset);
  return *place ? place : nullptr;
}

// What code objects tell of themselves never changes (but for constants, which may be anything).
inline bool is_fixed_attribute(PyObject* value, PyObject* name) {
  return PyCode_Check(value) && PyUnicode_Check(name) && PyUnicode_READ_CHAR(name, 0) == 'c' &&
      PyUnicode_CompareWithASCIIString(name, "co_consts") != 0 &&
      PyUnicode_CompareWithASCIIString(name, "co_lnotab") != 0;  // this one warns
}

// `getattr` where it certainly runs no code: of a module, of a class, and where it only reads a
// pointer. Borrowed; nullptr when it is not such a case.
inline PyObject* plain_attribute(PyObject* value, PyObject* name, Py_hash_t hash) {
  if (PyObject** place = attribute_place(value, name)) return *place;
  if (PyModule_CheckExact(value)) {
    if (_PyType_Lookup(&PyModule_Type, name)) return nullptr;
    return _PyDict_GetItem_KnownHash(PyModule_GetDict(value), name, hash);
  }
  if (PyType_CheckExact(value)) {
    if (_PyType_Lookup(&PyType_Type, name)) return nullptr;
    PyObject* found = _PyType_Lookup(reinterpret_cast<PyTypeObject*>(value), name);
    if (!found) return nullptr;
    bool plain = PyFunction_Check(found) || !Py_TYPE(found)->tp_descr_get;
    return plain ? found : nullptr;
  }
  return nullptr;
}

inline Outcome evaluate_other(Node& child, PyObject* value, Mode mode, Slots slots) {
  switch (child.step) {
    case Step::Type:
      return evaluate_child(child, reinterpret_cast<PyObject*>(Py_TYPE(value)), mode, slots);
    case Step::Cell: {
      PyObject* content = PyCell_Check(value) ? PyCell_GET(value) : nullptr;
      return content ? evaluate_child(child, content, mode, slots) : Fail;
    }
    case Step::Size: {
      int64_t size;
      if (!PyObject_TypeCheck(value, helpers().tensor_base)) return Fail;
      if (mode == Mode::Pure && impl_of(value)->key_set().has(c10::DispatchKey::Python)) {
        return Impure;
      }
      if (!size_of(value, child.index, size)) return Fail;
      Ref number = Ref::steal(PyLong_FromLongLong(size));
      return number.get() ? evaluate(child, number.get(), mode, slots) : Error;
    }
    case Step::Flatten: {
      if (mode == Mode::Pure) return Impure;
      Ref found = Ref::steal(PyObject_CallMethod(value, "__tensor_flatten__", nullptr));
      return found.get() ? evaluate(child, found.get(), mode, slots) : swallow_exception();
    }
    case Step::Call: {  // of a Python function, the node's key
      if (mode == Mode::Pure) return Impure;
      Ref found = Ref::steal(PyObject_CallOneArg(child.key.get(), value));
      return found.get() ? evaluate(child, found.get(), mode, slots) : swallow_exception();
    }
    default: {  // Attr
      PyObject* plain = plain_attribute(value, child.key.get(), child.hash);
      if (plain) return evaluate_child(child, plain, mode, slots);
      PyErr_Clear();
      bool fixed = is_fixed_attribute(value, child.key.get());
      if (mode == Mode::Pure && !fixed) return Impure;
      int collects = fixed && PyGC_Disable();  // nothing is to run when it makes a tuple
      Ref found = Ref::steal(PyObject_GetAttr(value, child.key.get()));
      if (collects) PyGC_Enable();
      return found.get() ? evaluate(child, found.get(), mode, slots) : swallow_exception();
    }
  }
}

inline Outcome evaluate_attributes(Node& node, PyObject* value, Mode mode, Slots slots) {
  bool unmade = false;
  PyObject* dict = mode == Mode::Pure ? peek_dict(value, unmade) : made_dict(value);
  if (unmade) return Unmade;
  if (dict) return evaluate_facet(node.attributes, dict, mode, slots);
  if (!node.attributes.children.empty()) return Fail;
  for (const Check& check : node.attributes.checks) {
    if (check.number) return Fail;  // it had to be present, and there is no dict at all
  }
  return Pass;
}

// Everything that is said about one value and what is read from it.
inline Outcome evaluate(Node& node, PyObject* value, Mode mode, Slots slots) {
  for (Check& check : node.checks) {
    Outcome outcome = check_value(check, value, mode);
    if (outcome != Pass) return outcome;
  }
  if (node.slot >= 0) slots[node.slot] = Ref::copy(value);
  if (node.attributes.used()) {
    Outcome outcome = evaluate_attributes(node, value, mode, slots);
    if (outcome != Pass) return outcome;
  }
  if (node.items.used()) {
    Outcome outcome = PyDict_Check(value) ? evaluate_facet(node.items, value, mode, slots)
                                          : evaluate_sequence(node, value, mode, slots);
    if (outcome != Pass) return outcome;
  }
  for (Node* child : node.others) {
    Outcome outcome = evaluate_other(*child, value, mode, slots);
    if (outcome != Pass) return outcome;
  }
  return Pass;
}

}  // namespace dovetail
