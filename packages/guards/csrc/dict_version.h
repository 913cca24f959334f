// Has a dict changed since we looked? And: the `__dict__` of an object, without running code.
//
// CPython 3.11 keeps a version in every dict: a number no dict ever had before, renewed at every
// change. Later versions tell watchers of a dict before it changes: there we keep a version of our
// own for each watched dict, and one number for all of them, so that nothing is looked at while
// none changes. But 3.13.0 does not tell watchers of an attribute write through an object whose
// values are stored inline (a probe on load finds out): then a dict that is to be stamped is first
// made to hold its values itself.
#pragma once

#include "common.h"

#if PY_VERSION_HEX >= 0x030C0000
#define DOVETAIL_DICT_WATCHERS 1
#include <unordered_map>
#else
#define DOVETAIL_DICT_WATCHERS 0
#endif

namespace dovetail {

// A place in memory and what it held: a class, a `__dict__`, the version of a dict, ...
struct Word {
  typedef uint64_t __attribute__((may_alias)) Bits;
  const Bits* where;
  Bits expected;

  static Word of(const void* where) {
    auto* bits = static_cast<const Bits*>(where);
    return {bits, *bits};
  }
  bool holds() const { return *where == expected; }
};
static_assert(sizeof(void*) == sizeof(Word::Bits));

#if DOVETAIL_DICT_WATCHERS

struct Watched {
  PyObject* dict;  // nullptr once the dict is gone
  uint64_t version;
  int64_t users;
};

struct WatchTable {
  int watcher_id = -1;
  uint64_t next_version = 1;
  uint64_t events = 1;  // changes of watched dicts so far
  bool inline_writes_are_silent = false;
  std::unordered_map<PyObject*, Watched*> entries;
};

inline WatchTable& watch_table() {
  static WatchTable* table = new WatchTable();  // outlives every dict
  return *table;
}

// Called before each change of a watched dict, and before it is freed.
inline int on_dict_event(PyDict_WatchEvent event, PyObject* dict, PyObject*, PyObject*) {
  WatchTable& table = watch_table();
  auto found = table.entries.find(dict);
  if (found == table.entries.end()) return 0;
  found->second->version = table.next_version++;
  table.events++;
  if (event == PyDict_EVENT_DEALLOCATED) {
    found->second->dict = nullptr;
    table.entries.erase(found);
  }
  return 0;
}

// A number that stays as long as no watched dict changes; 0: there is none.
inline uint64_t dict_events() { return watch_table().events; }

// What the probe on load found out.
inline void set_inline_writes_are_silent(bool silent) {
  watch_table().inline_writes_are_silent = silent;
}

inline bool start_watching() {
  watch_table().watcher_id = PyDict_AddWatcher(on_dict_event);
  if (watch_table().watcher_id < 0) PyErr_Clear();  // all taken: nothing is remembered
  return true;
}

// Moves the values of an instance dict from the object into the dict, as `popitem` does. Putting
// the popped item back leaves keys, values and order as they were; no Python code runs.
inline bool hold_own_values(PyObject* dict) {
  if (!reinterpret_cast<PyDictObject*>(dict)->ma_values) return true;
  PyObject* pair = PyDict_CheckExact(dict) ? PyObject_CallMethod(dict, "popitem", nullptr) : nullptr;
  if (!pair) {  // an empty dict, or of a subclass
    PyErr_Clear();
    return false;
  }
  int stored = PyDict_SetItem(dict, PyTuple_GET_ITEM(pair, 0), PyTuple_GET_ITEM(pair, 1));
  if (stored < 0) {
    Py_FatalError("dovetail_guards: no memory to put back an instance attribute");
  }
  Py_DECREF(pair);
  return !reinterpret_cast<PyDictObject*>(dict)->ma_values;
}

// Proof that a dict has not changed since the stamp was taken.
class Stamp {
 public:
  Stamp() = default;
  static Stamp of(PyObject* dict) {
    Stamp stamp;
    WatchTable& table = watch_table();
    if (table.watcher_id < 0) return stamp;
    if (table.inline_writes_are_silent && !hold_own_values(dict)) return stamp;
    auto [found, added] = table.entries.try_emplace(dict, nullptr);
    if (added) {
      if (PyDict_Watch(table.watcher_id, dict) < 0) {
        PyErr_Clear();
        table.entries.erase(found);
        return stamp;
      }
      found->second = new Watched{dict, table.next_version++, 0};
    }
    stamp.entry_ = found->second;
    stamp.entry_->users++;
    stamp.version_ = stamp.entry_->version;
    return stamp;
  }
  bool holds(PyObject* dict) const {
    return entry_ && entry_->version == version_ && entry_->dict == dict;
  }
  // Of a stamp that holds. The word lives as long as a copy of the stamp: it can always be read.
  Word word() const { return Word::of(&entry_->version); }
  Stamp copy() const {
    Stamp stamp;
    stamp.entry_ = entry_;
    stamp.version_ = version_;
    if (entry_) entry_->users++;
    return stamp;
  }
  Stamp(Stamp&& other) noexcept : entry_(other.entry_), version_(other.version_) {
    other.entry_ = nullptr;
  }
  Stamp& operator=(Stamp&& other) noexcept {
    if (this != &other) {
      release();
      entry_ = other.entry_;
      version_ = other.version_;
      other.entry_ = nullptr;
    }
    return *this;
  }
  ~Stamp() { release(); }
  void release() {
    if (entry_ && --entry_->users == 0) {
      if (entry_->dict) {
        WatchTable& table = watch_table();
        table.entries.erase(entry_->dict);
        if (PyDict_Unwatch(table.watcher_id, entry_->dict) < 0) PyErr_Clear();
      }
      delete entry_;
    }
    entry_ = nullptr;
  }

 private:
  Watched* entry_ = nullptr;
  uint64_t version_ = 0;
};

#else

inline bool start_watching() { return true; }

inline uint64_t dict_events() { return 0; }

inline void set_inline_writes_are_silent(bool) {}

inline const uint64_t* version_of(PyObject* dict) {
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"
  return &reinterpret_cast<PyDictObject*>(dict)->ma_version_tag;
#pragma GCC diagnostic pop
}

// Proof that a dict has not changed since the stamp was taken. The address alone would not do (a
// freed dict's address is used again), but no two dicts ever have the same version.
class Stamp {
 public:
  static Stamp of(PyObject* dict) {
    Stamp stamp;
    stamp.dict_ = dict;
    stamp.version_ = *version_of(dict);
    return stamp;
  }
  bool holds(PyObject* dict) const { return dict == dict_ && *version_of(dict) == version_; }
  // Of a stamp that holds. The word lies in the dict.
  Word word() const { return Word::of(version_of(dict_)); }
  Stamp copy() const { return *this; }
  void release() { dict_ = nullptr; }

 private:
  PyObject* dict_ = nullptr;
  uint64_t version_ = 0;
};

#endif

// The dict of a class, borrowed from it.
inline PyObject* class_dict(PyTypeObject* type) {
#if PY_VERSION_HEX >= 0x030C0000
  PyObject* dict = PyType_GetDict(type);
  Py_XDECREF(dict);  // the class still holds it
  return dict;
#else
  return type->tp_dict;
#endif
}

inline bool has_managed_dict(PyObject* object) {
  return PyType_HasFeature(Py_TYPE(object), Py_TPFLAGS_MANAGED_DICT);
}

// Where an object that is no class keeps its instance dict; nullptr: nowhere.
inline PyObject** dict_place(PyObject* object) {
  if (has_managed_dict(object)) return reinterpret_cast<PyObject**>(object) - 3;
  Py_ssize_t offset = Py_TYPE(object)->tp_dictoffset;
  if (offset <= 0) return offset ? _PyObject_GetDictPtr(object) : nullptr;
  return reinterpret_cast<PyObject**>(reinterpret_cast<char*>(object) + offset);
}

// The instance dict of `object`, borrowed; nullptr if it has none *or* has not been made yet (then
// `unmade` is set). Runs nothing and allocates nothing. The layout is proved on load.
inline PyObject* peek_dict(PyObject* object, bool& unmade) {
  unmade = false;
  if (PyType_Check(object)) return class_dict(reinterpret_cast<PyTypeObject*>(object));
  PyObject** place = dict_place(object);
  if (!place) return nullptr;
  PyObject* dict = *place;
  if (has_managed_dict(object)) {
#if PY_VERSION_HEX >= 0x030C0000 && PY_VERSION_HEX < 0x030D0000
    if (reinterpret_cast<uintptr_t>(dict) & 1) dict = nullptr;  // inline values, no dict
#endif
    unmade = dict == nullptr;
    return dict;
  }
  return dict && PyDict_Check(dict) ? dict : nullptr;
}

// Set on load, once it is proved that we read the number of inline values rightly.
inline bool& inline_values_are_known() {
  static bool known = false;
  return known;
}

// Has an object whose instance dict has not been made no attribute of its own? (False: not known.)
// CPython counts the values that an object stores inline.
inline bool has_no_values(PyObject* object) {
  if (!inline_values_are_known()) return false;
#if PY_VERSION_HEX >= 0x030D0000
  constexpr unsigned long kInlineValues = 1UL << 2;  // Py_TPFLAGS_INLINE_VALUES
  if (!PyType_HasFeature(Py_TYPE(object), kInlineValues)) return false;
  auto* values = reinterpret_cast<const uint8_t*>(object) + Py_TYPE(object)->tp_basicsize;
  return values[3] && values[1] == 0;  // they are valid, and there is none
#elif PY_VERSION_HEX >= 0x030C0000
  auto tagged = reinterpret_cast<const uintptr_t*>(object)[-3];
  if (!(tagged & 1)) return tagged == 0;
  return reinterpret_cast<const uint8_t*>(tagged + 1)[-2] == 0;
#else
  auto* values = reinterpret_cast<const uint8_t* const*>(object)[-4];
  return !values || values[-2] == 0;
#endif
}

// As `peek_dict`, but makes the dict if need be.
inline PyObject* made_dict(PyObject* object) {
  bool unmade;
  PyObject* dict = peek_dict(object, unmade);
  if (!unmade) return dict;
  PyObject* made = PyObject_GenericGetDict(object, nullptr);
  if (!made) {
    PyErr_Clear();
    return nullptr;
  }
  Py_DECREF(made);
  return peek_dict(object, unmade);
}

}  // namespace dovetail
