// The guard as flat rows: what a check does once everything that it reads has settled.
//
// The tree of `tree.h` is walked from node to node; most of that walk only proves again that dicts
// have not changed. A trace is made from a walk that passed. Nearly all of it is words of memory
// that must hold what they held: the versions of the dicts that the walk went through, and what can
// change while every dict stays as it is (an object's class or `__dict__`, a slot, a cell, a
// function's code), in the order in which they were reached. Apart from them stand the versions of
// classes, tensors' metadata, and what has to be looked at each time. Checking a trace reads the
// same memory as the walk would, but finds every address in its own rows, not at the end of a chain.
//
// A row is only read when the rows before it have held: they prove that the objects that it points
// to are alive, and are those that the walk found. When one does not hold the walk decides; a dict
// that keeps changing becomes a loose one, whose keys are looked up at each call.
#pragma once

#include "tree.h"

namespace dovetail {

// Words that must hold. `blame`: who counts that one did not; nullptr: nobody.
struct Words {
  std::vector<Word> rows;
  std::vector<int*> blame;

  void add(Word word, int* counter = nullptr) {
    rows.push_back(word);
    blame.push_back(counter);
  }
  bool hold(size_t from, size_t to) const {
    for (size_t i = from; i < to; i++) {
      if (rows[i].holds()) continue;
      if (blame[i]) ++*blame[i];
      return false;
    }
    return true;
  }
  void clear() {
    rows.clear();
    blame.clear();
  }
};

// A dict that changes: its checks and lookups are done at each call.
struct LooseDict {
  size_t before;  // how many words precede it
  PyObject* dict;
  Facet* facet;
  std::vector<PyObject*> found;  // what each child was; another object is the walk's business
};

// A class that may not change. With a check, what the check says of it stays true all the same.
struct ClassRow {
  PyTypeObject* type;
  unsigned version;
  Check* check;
};

// `OtherChild`: the node is a child that is read from the value in a way of its own.
enum class ValueKind : int { Check, Slot, Attributes, Sequence, OtherChild };

struct ValueRow {
  ValueKind kind;
  Node* node;
  Check* check;
  PyObject* value;
};

struct TensorRow {
  const c10::TensorImpl* impl;
  const TensorSpec* spec;
  c10::DispatchKeySet keys;  // the layout, and whether it is conjugate or negative
};

// A root whose value may be another at each call: `value` is what the rows speak of, nullptr when
// they say nothing of it and the root is walked.
struct RootRow {
  Node* root;
  PyObject* value;
};

// What checking a trace found. `Stale`: the walk decides.
enum class Traced { Holds, Fails, Stale };

struct Trace {
  std::vector<RootRow> roots;
  std::vector<Stamp> stamps;   // of dicts with watchers: their words live as long as these do
  Words versions;              // those words; unread while no watched dict changes
  Words words;
  std::vector<LooseDict> loose;
  std::vector<ClassRow> classes;
  std::vector<TensorRow> tensors;
  std::vector<ValueRow> values;
  std::vector<size_t> careful; // the roots that it says nothing of
  uint64_t events = 0;         // what `dict_events()` was when the dicts last held
  bool made = false;
  int settled = 0;   // walks that passed since the trace was dropped
  int patience = 2;  // how many it takes to make one; doubled when one was dropped

  static constexpr int kMostPatience = 4096;
  static constexpr int kMostBreaks = 4;  // then a dict is loose, and a root is walked

  void drop() {
    int next = patience < kMostPatience ? 2 * patience : patience;
    *this = Trace();
    patience = next;
  }
};

// --- making one --------------------------------------------------------------------------------

// `held`: the value has been alive all the time since it was found (an unchanged dict has held it),
// so that what was true of an immutable value is still true.
void flatten(Trace& trace, Node& node, PyObject* value, bool held);

inline bool is_settled(const Facet& facet, PyObject* dict) {
  return facet.breaks < Trace::kMostBreaks && facet.stamp.holds(dict);
}

inline void flatten_facet(Trace& trace, Facet& facet, PyObject* dict) {
  if (is_settled(facet, dict)) {
#if DOVETAIL_DICT_WATCHERS
    trace.versions.add(facet.stamp.word(), &facet.breaks);
    trace.stamps.push_back(facet.stamp.copy());
#else
    trace.words.add(facet.stamp.word(), &facet.breaks);
#endif
    for (Node* child : facet.live) flatten(trace, *child, child->remembered, true);
    return;
  }
  LooseDict loose{trace.words.rows.size(), dict, &facet, {}};
  for (Node* child : facet.children) {
    Outcome why;
    loose.found.push_back(read_dict(*child, dict, Mode::Pure, why));
  }
  std::vector<PyObject*> found = loose.found;
  trace.loose.push_back(std::move(loose));
  for (size_t i = 0; i < found.size(); i++) flatten(trace, *facet.children[i], found[i], false);
}

// A class with the version that its last lookup gave it; false if it has none.
inline bool flatten_class(Trace& trace, PyTypeObject* type, Check* check) {
  unsigned version =
      PyType_HasFeature(type, Py_TPFLAGS_VALID_VERSION_TAG) ? type->tp_version_tag : 0;
  if (!version) return false;
  if (!check && !trace.classes.empty() && trace.classes.back().type == type) return true;
  trace.classes.push_back({type, version, check});
  return true;
}

inline void flatten_function(Trace& trace, PyObject* value) {
  auto* function = reinterpret_cast<PyFunctionObject*>(value);
  trace.words.add(Word::of(&function->func_code));
  trace.words.add(Word::of(&function->func_defaults));
  trace.words.add(Word::of(&function->func_kwdefaults));
}

inline void flatten_checks(Trace& trace, Node& node, PyObject* value, bool held) {
  for (Check& check : node.checks) {
    bool is_object = value == check.object.get();  // which the check keeps alive
    switch (check.kind) {
      case CheckKind::TensorIs:
        trace.words.add(Word::of(&reinterpret_cast<TensorObject*>(value)->impl));
        trace.tensors.push_back({impl_of(value), check.tensor, impl_of(value)->key_set()});
        continue;
      case CheckKind::ClassAttrs:
        if (flatten_class(trace, reinterpret_cast<PyTypeObject*>(value), &check)) continue;
        break;
      case CheckKind::FunctionIs:
        flatten_function(trace, value);
        continue;
      case CheckKind::TypeIs:  // `flatten` has seen to it
      case CheckKind::IdIs:
        continue;
      case CheckKind::ConstantIs:
        if (held || is_object) continue;
        break;
      default:
        break;
    }
    trace.values.push_back({ValueKind::Check, &node, &check, value});
  }
}

inline void flatten_attributes(Trace& trace, Node& node, PyObject* value) {
  bool unmade;
  PyObject* dict = peek_dict(value, unmade);
  if (!dict) {
    trace.values.push_back({ValueKind::Attributes, &node, nullptr, value});
    return;
  }
  if (!PyType_Check(value)) trace.words.add(Word::of(dict_place(value)), &node.attributes.breaks);
  flatten_facet(trace, node.attributes, dict);
}

// The items of a tuple that has been alive all the time are what they were.
inline void flatten_sequence(Trace& trace, Node& node, PyObject* value, bool held) {
  const std::vector<Node*>& children = node.items.children;
  auto by_number = [](const Node* child) { return PyLong_CheckExact(child->key.get()); };
  bool known = std::all_of(children.begin(), children.end(), by_number);
  if (!known || !held || !PyTuple_Check(value)) {
    trace.values.push_back({ValueKind::Sequence, &node, nullptr, value});
    return;
  }
  for (Node* child : children) {
    Py_ssize_t i = PyLong_AsSsize_t(child->key.get());
    if (i < 0) i += PyTuple_GET_SIZE(value);
    flatten(trace, *child, PyTuple_GET_ITEM(value, i), true);
  }
}

inline bool has_slots(const Node& node) {
  auto any = [](const std::vector<Node*>& nodes) {
    return std::any_of(nodes.begin(), nodes.end(), [](const Node* each) { return has_slots(*each); });
  };
  return node.slot >= 0 || any(node.attributes.children) || any(node.items.children) ||
      any(node.others);
}

inline void flatten_other(Trace& trace, Node& child, PyObject* value, bool held) {
  bool is_attribute = child.step == Step::Attr;
  bool is_fixed = is_attribute && held && is_fixed_attribute(value, child.key.get());
  if (is_fixed && !has_slots(child)) return;
  PyObject** place = nullptr;
  if (child.step == Step::Cell) {
    place = &reinterpret_cast<PyCellObject*>(value)->ob_ref;
  } else if (is_attribute) {
    place = attribute_place(value, child.key.get());
    if (place && !flatten_class(trace, Py_TYPE(value), nullptr)) place = nullptr;
  }
  if (!place || child.changes >= Trace::kMostBreaks) {
    trace.values.push_back({ValueKind::OtherChild, &child, nullptr, value});
    return;
  }
  trace.words.add(Word::of(place), &child.changes);
  flatten(trace, child, *place, false);
}

inline bool must_keep_class(const Node& node, PyObject* value, bool held) {
  if (!held) return true;  // another object may be found there that only has the same address
  auto named = [](const Check& check) {
    return check.kind == CheckKind::TypeIs || check.kind == CheckKind::TensorIs;
  };
  bool matters = !node.others.empty() ||
      std::any_of(node.checks.begin(), node.checks.end(), named);
  return matters && class_can_change(reinterpret_cast<PyObject*>(Py_TYPE(value)));
}

inline void flatten(Trace& trace, Node& node, PyObject* value, bool held) {
  node.fixed = true;
  // (An object that is compared by identity lives as long as the guard has not expired, but for one
  // of which only the address is known.)
  auto keeps = [](const Check& check) {
    return check.kind == CheckKind::IdIs && check.object.get();
  };
  held |= std::any_of(node.checks.begin(), node.checks.end(), keeps);
  if (must_keep_class(node, value, held)) trace.words.add(Word::of(&value->ob_type));
  flatten_checks(trace, node, value, held);
  if (node.slot >= 0) trace.values.push_back({ValueKind::Slot, &node, nullptr, value});
  if (node.attributes.used()) flatten_attributes(trace, node, value);
  if (node.items.used()) {
    if (PyDict_Check(value)) {
      flatten_facet(trace, node.items, value);
    } else {
      flatten_sequence(trace, node, value, held);
    }
  }
  for (Node* child : node.others) flatten_other(trace, *child, value, held);
}

inline bool has_parts(const Node& node) {
  return node.attributes.used() || node.items.used() || !node.others.empty();
}

// The root of a pure walk that has just passed, with its value.
inline void flatten_root(Trace& trace, Node& root, PyObject* value) {
  if (root.step == Step::Object) {
    flatten(trace, root, value, true);  // the key of the node keeps it alive
    return;
  }
  bool flat = has_parts(root) && root.changes < Trace::kMostBreaks;
  trace.roots.push_back({&root, flat ? value : nullptr});
  if (flat) flatten(trace, root, value, false);
}

// --- checking it -------------------------------------------------------------------------------

inline bool loose_holds(const LooseDict& loose) {
  for (const Check& check : loose.facet->checks) {
    if (check_dict(check, loose.dict, Mode::Pure) != Pass) return false;
  }
  for (size_t i = 0; i < loose.found.size(); i++) {
    Outcome why;
    if (read_dict(*loose.facet->children[i], loose.dict, Mode::Pure, why) != loose.found[i]) {
      return false;
    }
  }
  return true;
}

inline bool words_hold(Trace& trace) {
  uint64_t events = dict_events();
  if (!events || events != trace.events) {
    if (!trace.versions.hold(0, trace.versions.rows.size())) return false;
    trace.events = events;
  }
  size_t from = 0;
  for (const LooseDict& loose : trace.loose) {
    if (!trace.words.hold(from, loose.before) || !loose_holds(loose)) return false;
    from = loose.before;
  }
  return trace.words.hold(from, trace.words.rows.size());
}

inline bool classes_hold(const Trace& trace) {
  for (const ClassRow& row : trace.classes) {
    bool same = row.type->tp_version_tag == row.version &&
        PyType_HasFeature(row.type, Py_TPFLAGS_VALID_VERSION_TAG);
    if (same) continue;
    auto* value = reinterpret_cast<PyObject*>(row.type);
    if (!row.check || check_value(*row.check, value, Mode::Pure) != Pass) return false;
  }
  return true;
}

inline Outcome check_tensors(const Trace& trace) {
  constexpr size_t kAhead = 8;  // how many rows ahead memory is asked for
  const std::vector<TensorRow>& rows = trace.tensors;
  size_t count = rows.size();
  try {
    for (size_t i = 0; i < count; i++) {
      if (i + kAhead < count) prefetch_impl(rows[i + kAhead].impl);
      const TensorRow& row = rows[i];
      if (row.impl->key_set() != row.keys) return Impure;
      if (!numbers_match(*row.spec, row.impl)) return Fail;
    }
  } catch (const std::exception&) {
    return Impure;
  }
  return Pass;
}

inline Outcome check_row(const ValueRow& row, Slots slots) {
  switch (row.kind) {
    case ValueKind::Check:
      return check_value(*row.check, row.value, Mode::Pure);
    case ValueKind::Slot:
      slots[row.node->slot] = Ref::copy(row.value);
      return Pass;
    case ValueKind::Attributes:
      return evaluate_attributes(*row.node, row.value, Mode::Pure, slots);
    case ValueKind::Sequence:
      return evaluate_sequence(*row.node, row.value, Mode::Pure, slots);
    case ValueKind::OtherChild:
      break;
  }
  return evaluate_other(*row.node, row.value, Mode::Pure, slots);
}

// A root with another value than the trace's. It may be one that this guard is not about at all.
inline Traced check_other_root(Node& root, PyObject* value) {
  for (Check& check : root.checks) {
    if (check_value(check, value, Mode::Pure) == Fail) return Traced::Fails;
  }
  root.changes++;
  return Traced::Stale;
}

// Runs no Python code. `value_of(root)` gives the present value of a root.
template <class ValueOf>
inline Traced check_trace(Trace& trace, Slots slots, ValueOf value_of) {
  for (const RootRow& row : trace.roots) {
    PyObject* value = value_of(*row.root);
    if (!value) return Traced::Fails;
    if (row.value) {
      if (value != row.value) return check_other_root(*row.root, value);
    } else {
      Outcome outcome = evaluate(*row.root, value, Mode::Pure, slots);
      if (outcome == Fail) return Traced::Fails;
      if (outcome != Pass) return Traced::Stale;
    }
  }
  if (!words_hold(trace) || !classes_hold(trace)) return Traced::Stale;
  Outcome tensors = check_tensors(trace);
  if (tensors != Pass) return tensors == Fail ? Traced::Fails : Traced::Stale;
  for (const ValueRow& row : trace.values) {
    if (check_row(row, slots) != Pass) return Traced::Stale;
  }
  return Traced::Holds;
}

}  // namespace dovetail
