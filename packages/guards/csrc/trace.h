// The guard as flat rows: what a check does once everything that it reads has settled.
//
// The tree of `tree.h` is walked from node to node; most of that walk only proves again that dicts
// have not changed. A trace is made from a walk that passed: the dicts that it went through with
// their stamps, in the order in which they were reached, and apart from them the few things that
// can change while every dict stays as it is (an object's class or `__dict__`, a tensor's
// metadata, a list's items). Checking it reads the same memory as the walk would, but finds every
// address in its own rows instead of at the end of a chain.
//
// A row is only read when the rows before it have held: they prove that the objects that it points
// to are alive, and are those that the walk found. When one does not hold the walk decides; a dict
// that keeps changing becomes a loose one, whose keys are looked up at each call.
#pragma once

#include "tree.h"

namespace dovetail {

constexpr size_t kAhead = 8;  // how many rows ahead memory is asked for

// A dict with a stamp. `object` is whose `__dict__` it is; nullptr for a dict that was found as a
// value, and so cannot be another one.
struct DictRow {
  PyObject* object;
  PyObject* dict;
  Facet* facet;
  int64_t loose;  // 0: the stamp speaks; else the dict's place in `Trace::loose`, from 1
  Stamp stamp;
};

// A dict that changes: its checks and lookups are done at each call.
struct LooseDict {
  PyObject* object;  // as in DictRow
  PyObject* dict;
  Facet* facet;
  std::vector<PyObject*> found;  // what each child was; another object is the walk's business
};

struct TypeRow {
  PyObject* object;
  PyTypeObject* type;
};

enum class ValueKind : int { Check, Slot, Attributes, Sequence, Others };

struct ValueRow {
  ValueKind kind;
  Node* node;
  Check* check;
  PyObject* value;
};

struct TensorRow {
  PyObject* tensor;
  const TensorSpec* spec;
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
  std::vector<DictRow> dicts;
  std::vector<LooseDict> loose;
  std::vector<TypeRow> types;
  std::vector<TensorRow> tensors;
  std::vector<ValueRow> values;
  std::vector<size_t> owners;  // of `dicts`: which can be another dict although no dict changes
  std::vector<size_t> careful; // the roots that it says nothing of
  uint64_t events = 0;         // what `dict_events()` was when the dicts last held
  bool made = false;
  int settled = 0;   // walks that passed since the trace was dropped
  int patience = 2;  // how many it takes to make one; doubled when one was dropped

  static constexpr int kMostPatience = 4096;
  static constexpr int kMostBreaks = 4;  // then a dict is loose, and a root is walked

  void drop() {
    roots.clear();
    dicts.clear();
    loose.clear();
    types.clear();
    tensors.clear();
    values.clear();
    owners.clear();
    careful.clear();
    events = 0;
    made = false;
    settled = 0;
    if (patience < kMostPatience) patience *= 2;
  }
};

// --- making one --------------------------------------------------------------------------------

// `held`: an unchanged dict has held the value all the time since it was found, so that what was
// true of an immutable value is still true.
void flatten(Trace& trace, Node& node, PyObject* value, bool held);

inline bool is_settled(const Facet& facet, PyObject* dict) {
  return facet.breaks < Trace::kMostBreaks && facet.stamp.holds(dict);
}

inline void flatten_facet(Trace& trace, Facet& facet, PyObject* object, PyObject* dict) {
  if (is_settled(facet, dict)) {
    trace.dicts.push_back({object, dict, &facet, 0, facet.stamp.copy()});
    for (Node* child : facet.live) flatten(trace, *child, child->remembered, true);
    return;
  }
  LooseDict loose{object, dict, &facet, {}};
  for (Node* child : facet.children) {
    Outcome why;
    loose.found.push_back(read_dict(*child, dict, Mode::Pure, why));
  }
  std::vector<PyObject*> found = loose.found;
  trace.loose.push_back(std::move(loose));
  int64_t place = static_cast<int64_t>(trace.loose.size());
  trace.dicts.push_back({object, dict, &facet, place, Stamp()});
  for (size_t i = 0; i < found.size(); i++) flatten(trace, *facet.children[i], found[i], false);
}

inline void flatten_checks(Trace& trace, Node& node, PyObject* value, bool held) {
  for (Check& check : node.checks) {
    if (check.kind == CheckKind::TensorIs) {
      trace.tensors.push_back({value, check.tensor.get()});
    } else if (check.kind == CheckKind::TypeIs) {
      if (held && !class_can_change(check.object.get())) continue;
      trace.types.push_back({value, reinterpret_cast<PyTypeObject*>(check.object.get())});
    } else if (check.kind == CheckKind::IdIs) {
      continue;  // `value` was found to be the object, which the check keeps alive
    } else if (!held || check.kind != CheckKind::ConstantIs) {
      trace.values.push_back({ValueKind::Check, &node, &check, value});
    }
  }
}

inline void flatten(Trace& trace, Node& node, PyObject* value, bool held) {
  node.fixed = true;
  flatten_checks(trace, node, value, held);
  if (node.slot >= 0) trace.values.push_back({ValueKind::Slot, &node, nullptr, value});
  if (node.attributes.used()) {
    bool unmade;
    PyObject* dict = peek_dict(value, unmade);
    if (dict) {
      flatten_facet(trace, node.attributes, value, dict);
    } else {
      trace.values.push_back({ValueKind::Attributes, &node, nullptr, value});
    }
  }
  if (node.items.used()) {
    if (PyDict_Check(value)) {
      flatten_facet(trace, node.items, nullptr, value);
    } else {
      trace.values.push_back({ValueKind::Sequence, &node, nullptr, value});
    }
  }
  if (!node.others.empty()) trace.values.push_back({ValueKind::Others, &node, nullptr, value});
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

inline bool same_dict_of(PyObject* object, PyObject* dict) {
  if (!object) return true;
  bool unmade;
  return peek_dict(object, unmade) == dict;
}

inline bool loose_holds(const LooseDict& loose) {
  if (!same_dict_of(loose.object, loose.dict)) return false;
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

// `quiet`: no watched dict has changed since all rows held, so that stamps need not be looked at.
inline bool dict_holds(Trace& trace, const DictRow& row, bool quiet) {
  if (row.loose) return loose_holds(trace.loose[static_cast<size_t>(row.loose - 1)]);
  if (same_dict_of(row.object, row.dict) && (quiet || row.stamp.still_holds())) return true;
  row.facet->breaks++;
  return false;
}

inline bool dicts_hold(Trace& trace) {
  uint64_t events = dict_events();
  if (events && events == trace.events) {
    for (size_t i : trace.owners) {
      if (!dict_holds(trace, trace.dicts[i], true)) return false;
    }
    return true;
  }
  size_t count = trace.dicts.size();
  for (size_t i = 0; i < count; i++) {
    if (i + kAhead < count) trace.dicts[i + kAhead].stamp.prefetch();
    if (!dict_holds(trace, trace.dicts[i], false)) return false;
  }
  trace.events = events;
  return true;
}

inline Outcome check_tensors(const Trace& trace) {
  const std::vector<TensorRow>& rows = trace.tensors;
  size_t count = rows.size();
  for (size_t i = 0; i < count; i++) {
    if (i + 2 * kAhead < count) __builtin_prefetch(rows[i + 2 * kAhead].tensor);
    if (i + kAhead < count) prefetch_impl(rows[i + kAhead].tensor);
    Outcome outcome = check_tensor(*rows[i].spec, rows[i].tensor, Mode::Pure);
    if (outcome != Pass) return outcome;
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
    case ValueKind::Others:
      break;
  }
  for (Node* child : row.node->others) {
    Outcome outcome = evaluate_other(*child, row.value, Mode::Pure, slots);
    if (outcome != Pass) return outcome;
  }
  return Pass;
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
  if (!dicts_hold(trace)) return Traced::Stale;
  for (const TypeRow& row : trace.types) {
    if (Py_TYPE(row.object) != row.type) return Traced::Fails;
  }
  Outcome tensors = check_tensors(trace);
  if (tensors != Pass) return tensors == Fail ? Traced::Fails : Traced::Stale;
  for (const ValueRow& row : trace.values) {
    if (check_row(row, slots) != Pass) return Traced::Stale;
  }
  return Traced::Holds;
}

}  // namespace dovetail
