// A whole guard: settings, roots, relations between values.
#pragma once

#include <cstring>
#include <deque>

#include "torch_state.h"
#include "trace.h"

namespace dovetail {

struct StateCheck {
  int state;         // a `State`, or -1: only Python can read it
  int64_t expected;  // its small number, or kUnreadable
  bool exact;        // a readable, different number means that the setting differs
  Ref reader;        // the way in Python, and the value it must give
  Ref value;
};

enum class RelationKind : int { SameObject, DistinctObjects, DistinctStorage, Shape, Computed };

struct Operand {
  Node* node;
  int slot;  // the node's
  int64_t dim;  // of a Shape relation: the dimension of the tensor; kAnySize for a plain integer
};

struct Relation {
  RelationKind kind;
  std::vector<Operand> operands;
  Program program;
  Ref check;  // of a Computed relation: a Python function of the operands, which only computes
};

// How a root is evaluated.
struct Manner {
  bool careful = false;  // its evaluation may run Python code: always the careful mode
  int strikes = 0;       // calls in a row that found an instance dict missing

  static constexpr int kMostStrikes = 64;  // then its objects are new at each call
};

// Tells a guard that one of the objects which it compares by identity is dead. The callback of weak
// references to them: it runs before another object can be where they were.
struct Expiry {
  PyObject_HEAD
  bool expired;
};

struct Guard {
  Ref expiry;
  std::vector<StateCheck> states;
  std::deque<TensorSpec> specs;
  std::vector<std::unique_ptr<Node>> nodes;
  std::vector<Node*> roots;
  std::vector<Manner> manners;  // per root
  std::vector<Relation> relations;
  int slot_count = 0;
  Trace trace;
  std::vector<size_t> open;  // the relations that the trace does not decide

  bool is_expired() const {
    return expiry.get() && reinterpret_cast<Expiry*>(expiry.get())->expired;
  }
};

// What a check has left to do after its pure part, which nothing can interrupt.
struct Rest {
  Short<size_t> roots;      // to be walked with care
  Short<size_t> relations;  // to be decided
};

// Settings that a number tells. `Impure`: ask Python, at the very end.
inline Outcome check_state(const StateCheck& check) {
  if (check.state < 0) return Impure;
  int64_t seen = read_state(static_cast<State>(check.state));
  if (seen != kUnreadable && seen == check.expected) return Pass;
  return check.exact && seen != kUnreadable ? Fail : Impure;
}

inline Outcome check_state_in_python(const StateCheck& check) {
  Ref seen = Ref::steal(PyObject_CallNoArgs(check.reader.get()));
  if (!seen.get()) return Error;
  return constants_equal(seen.get(), check.value.get(), Mode::Careful);
}

// The value of a root, borrowed; nullptr when it is not there.
inline PyObject* root_value(const Node& root, PyObject* const* args, PyFunctionObject* func) {
  switch (root.step) {
    case Step::Argument:
      return args[root.index];
    case Step::Closure: {
      PyObject* closure = func->func_closure;
      if (!closure || root.index >= PyTuple_GET_SIZE(closure)) return nullptr;
      return PyCell_GET(PyTuple_GET_ITEM(closure, root.index));
    }
    case Step::Globals:
      return func->func_globals;
    case Step::Builtins:
      return func->func_builtins;
    default:
      return root.key.get();
  }
}

// An integer that orders as the floats do (float_expr.py has the same).
inline int64_t float_key(double value) {
  int64_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  return bits >= 0 ? bits : -(bits & INT64_MAX);
}

// A relation that Python computes, of numbers that are rounded from floats.
inline Outcome check_computed(const Relation& relation, const int64_t* symbols) {
  size_t count = relation.operands.size();
  Ref arguments = Ref::steal(PyTuple_New(static_cast<Py_ssize_t>(count)));
  if (!arguments.get()) return swallow_exception();
  for (size_t i = 0; i < count; i++) {
    PyObject* number = PyLong_FromLongLong(symbols[i]);
    if (!number) return swallow_exception();
    PyTuple_SET_ITEM(arguments.get(), static_cast<Py_ssize_t>(i), number);
  }
  Ref answer = Ref::steal(PyObject_CallObject(relation.check.get(), arguments.get()));
  if (!answer.get()) return swallow_exception();
  return answer.get() == Py_True ? Pass : Fail;
}

inline Outcome check_shape(const Relation& relation, Slots slots) {
  constexpr size_t kInline = 16;
  int64_t local[kInline];
  std::vector<int64_t> heap(relation.operands.size() > kInline ? relation.operands.size() : 0);
  int64_t* symbols = heap.empty() ? local : heap.data();
  for (size_t i = 0; i < relation.operands.size(); i++) {
    const Operand& operand = relation.operands[i];
    PyObject* value = slots[operand.slot].get();
    if (operand.dim != kAnySize) {
      if (!PyObject_TypeCheck(value, helpers().tensor_base)) return Fail;
      if (!size_of(value, operand.dim, symbols[i])) return Fail;
    } else if (PyFloat_CheckExact(value)) {
      symbols[i] = float_key(PyFloat_AS_DOUBLE(value));
    } else {
      if (!PyLong_CheckExact(value)) return Fail;
      int overflow;
      symbols[i] = PyLong_AsLongLongAndOverflow(value, &overflow);
      if (overflow) return Fail;
    }
  }
  if (relation.kind == RelationKind::Shape) return relation.program.run(symbols);
  return check_computed(relation, symbols);
}

inline Outcome check_relation(const Relation& relation, Slots slots) {
  if (relation.kind >= RelationKind::Shape) return check_shape(relation, slots);
  size_t count = relation.operands.size();
  auto object = [&](size_t i) { return slots[relation.operands[i].slot].get(); };
  if (relation.kind == RelationKind::SameObject) {
    for (size_t i = 1; i < count; i++) {
      if (object(i) != object(0)) return Fail;
    }
    return Pass;
  }
  const void* local[16];
  std::vector<const void*> heap(count > 16 ? count : 0);
  const void** keys = heap.empty() ? local : heap.data();
  for (size_t i = 0; i < count; i++) {
    keys[i] = object(i);
    if (relation.kind == RelationKind::DistinctStorage) {
      bool is_tensor = PyObject_TypeCheck(object(i), helpers().tensor_base);
      keys[i] = is_tensor ? storage_of(object(i)) : nullptr;
      if (!keys[i]) return Fail;
    }
  }
  if (count <= 16) {
    for (size_t i = 1; i < count; i++) {
      for (size_t j = 0; j < i; j++) {
        if (keys[i] == keys[j]) return Fail;
      }
    }
    return Pass;
  }
  std::sort(heap.begin(), heap.end());
  return std::adjacent_find(heap.begin(), heap.end()) == heap.end() ? Pass : Fail;
}

// A relation between very objects, which the trace proves to be the same ones: decided for good.
inline bool is_decided(const Relation& relation, Slots slots) {
  bool of_objects = relation.kind == RelationKind::SameObject ||
      relation.kind == RelationKind::DistinctObjects;
  for (const Operand& operand : relation.operands) of_objects &= operand.node->fixed;
  return of_objects && check_relation(relation, slots) == Pass;
}

// After a walk of all pure roots that has passed.
inline void make_trace(Guard& guard, PyObject* const* args, PyFunctionObject* func, Slots slots) {
  Trace& trace = guard.trace;
  for (size_t i = 0; i < guard.roots.size(); i++) {
    Node& root = *guard.roots[i];
    if (guard.manners[i].careful) {
      trace.careful.push_back(i);
    } else {
      flatten_root(trace, root, root_value(root, args, func));
    }
  }
  guard.open.clear();
  std::vector<const Node*> wanted;
  for (size_t i = 0; i < guard.relations.size(); i++) {
    const Relation& relation = guard.relations[i];
    if (is_decided(relation, slots)) continue;
    guard.open.push_back(i);
    for (const Operand& operand : relation.operands) wanted.push_back(operand.node);
  }
  std::sort(wanted.begin(), wanted.end());
  std::erase_if(trace.values, [&](const ValueRow& row) {
    return row.kind == ValueKind::Slot &&
        !std::binary_search(wanted.begin(), wanted.end(), row.node);
  });
  trace.made = true;
}

inline void drop_trace(Guard& guard) {
  guard.trace.drop();
  for (auto& node : guard.nodes) node->fixed = false;
}

// The roots that need no Python, walked; the others are left for a walk with care.
inline Outcome walk_pure_roots(
    Guard& guard, PyObject* const* args, PyFunctionObject* func, Slots slots, Rest& rest) {
  bool settled = true;
  for (size_t i = 0; i < guard.roots.size(); i++) {
    Manner& manner = guard.manners[i];
    if (manner.careful) {
      rest.roots.add(i);
      continue;
    }
    Node& root = *guard.roots[i];
    PyObject* value = root_value(root, args, func);
    if (!value) return Fail;
    Outcome outcome = evaluate(root, value, Mode::Pure, slots);
    if (outcome == Pass) {
      manner.strikes = 0;
      continue;
    }
    if (outcome != Impure && outcome != Unmade) return outcome;
    settled = false;
    rest.roots.add(i);
    manner.careful = outcome == Impure || ++manner.strikes > Manner::kMostStrikes;
  }
  if (settled && ++guard.trace.settled >= guard.trace.patience) {
    make_trace(guard, args, func, slots);
  }
  for (size_t i = 0; i < guard.relations.size(); i++) rest.relations.add(i);
  return Pass;
}

// Everything that runs no Python code: while it runs, nothing that it sees can change.
inline Outcome check_pure_roots(
    Guard& guard, PyObject* const* args, PyFunctionObject* func, Slots slots, Rest& rest) {
  if (guard.trace.made) {
    Traced found = check_trace(
        guard.trace, slots, [&](const Node& root) { return root_value(root, args, func); });
    if (found == Traced::Fails) return Fail;
    if (found == Traced::Holds) {
      for (size_t i : guard.trace.careful) rest.roots.add(i);
      for (size_t i : guard.open) rest.relations.add(i);
      return Pass;
    }
    drop_trace(guard);
  }
  return walk_pure_roots(guard, args, func, slots, rest);
}

inline Outcome check_careful_roots(
    Guard& guard, PyObject* const* args, PyFunctionObject* func, Slots slots, const Rest& rest) {
  for (size_t i = 0; i < rest.roots.size(); i++) {
    Node& root = *guard.roots[rest.roots[i]];
    Ref value = Ref::copy(root_value(root, args, func));
    if (!value.get()) return Fail;
    Outcome outcome = evaluate(root, value.get(), Mode::Careful, slots);
    if (outcome != Pass) return outcome;
  }
  return Pass;
}

inline Outcome check_all(Guard& guard, PyObject* const* args, PyFunctionObject* func, Slots slots) {
  bool ask_python = false;
  for (const StateCheck& check : guard.states) {
    Outcome outcome = check_state(check);
    if (outcome == Fail) return Fail;
    ask_python |= outcome == Impure;
  }
  Rest rest;
  Outcome outcome = check_pure_roots(guard, args, func, slots, rest);
  if (outcome == Pass) outcome = check_careful_roots(guard, args, func, slots, rest);
  if (outcome != Pass) return outcome;
  for (size_t i = 0; i < rest.relations.size(); i++) {
    outcome = check_relation(guard.relations[rest.relations[i]], slots);
    if (outcome != Pass) return outcome;
  }
  if (!ask_python) return Pass;
  for (const StateCheck& check : guard.states) {
    outcome = check_state(check);
    if (outcome == Impure) outcome = check_state_in_python(check);
    if (outcome != Pass) return outcome;
  }
  return Pass;
}

inline int check_guard(Guard& guard, PyObject* const* args, PyObject* func) {
  constexpr int kInline = 8;
  auto* function = reinterpret_cast<PyFunctionObject*>(func);
  if (guard.is_expired()) return 0;
  if (guard.slot_count == 0) return check_all(guard, args, function, nullptr);
  if (guard.slot_count <= kInline) {
    Ref slots[kInline];
    return check_all(guard, args, function, slots);
  }
  std::vector<Ref> slots(static_cast<size_t>(guard.slot_count));
  return check_all(guard, args, function, slots.data());
}

}  // namespace dovetail
