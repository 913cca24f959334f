/* Entries: a guard and the code that replaces the frame's when it holds. */
#pragma once

#include "nodes.h"

static int
argument_count(PyCodeObject *code)
{
    return code->co_argcount + code->co_kwonlyargcount + ((code->co_flags & CO_VARARGS) != 0)
           + ((code->co_flags & CO_VARKEYWORDS) != 0);
}

static int
check_replacement(PyCodeObject *code, PyCodeObject *new_code)
{
    const int shape = CO_VARARGS | CO_VARKEYWORDS | NOT_ORDINARY | CO_OPTIMIZED;
    if (code->co_argcount != new_code->co_argcount
        || code->co_posonlyargcount != new_code->co_posonlyargcount
        || code->co_kwonlyargcount != new_code->co_kwonlyargcount
        || (code->co_flags & shape) != (new_code->co_flags & shape)) {
        PyErr_Format(PyExc_ValueError, "replacement of %U has another signature",
                     code->co_qualname);
        return -1;
    }
    if (new_code->co_nfreevars == 0) {
        return 0;
    }
    /* COPY_FREE_VARS trusts the closure: a wrong count or order would read past it. */
    PyObject *old_names = PyCode_GetFreevars(code);
    PyObject *new_names = PyCode_GetFreevars(new_code);
    int equal = -1;
    if (old_names != NULL && new_names != NULL) {
        equal = PyObject_RichCompareBool(old_names, new_names, Py_EQ);
    }
    Py_XDECREF(old_names);
    Py_XDECREF(new_names);
    if (equal == 0) {
        PyErr_Format(PyExc_ValueError, "replacement of %U has other free variables",
                     code->co_qualname);
    }
    return equal == 1 ? 0 : -1;
}

/* The native guard inside a capsule; NULL for a Python callable. */
static int
read_guard(PyObject *guard, DovetailGuard **native)
{
    *native = NULL;
    if (PyCapsule_CheckExact(guard)) {
        *native = PyCapsule_GetPointer(guard, "dovetail.guard.v1");
        if (*native != NULL && (*native)->abi != 1) {
            PyErr_Format(PyExc_ValueError, "guard capsule of ABI %llu, but this hook reads ABI 1",
                         (unsigned long long)(*native)->abi);
            return -1;
        }
        return *native == NULL ? -1 : 0;
    }
    if (!PyCallable_Check(guard)) {
        PyErr_SetString(PyExc_TypeError, "a guard is a dovetail.guard.v1 capsule or a callable");
        return -1;
    }
    return 0;
}

static PyObject *
new_entry(PyCodeObject *code, PyObject *guard, PyObject *new_code)
{
    if (!PyCode_Check(new_code)) {
        PyErr_SetString(PyExc_TypeError, "the replacement of a frame's code must be a code object");
        return NULL;
    }
    if (check_replacement(code, (PyCodeObject *)new_code) < 0) {
        return NULL;
    }
    DovetailGuard *native;
    if (read_guard(guard, &native) < 0) {
        return NULL;
    }
    Entry *entry = PyObject_GC_New(Entry, &EntryType);
    if (entry == NULL) {
        return NULL;
    }
    entry->guard = Py_NewRef(guard);
    entry->native = native;
    entry->code = (PyCodeObject *)Py_NewRef(new_code);
    entry->positional = NULL;
    entry->weakrefs = NULL;
    PyObject_GC_Track(entry);
    return (PyObject *)entry;
}

/* Makes an entry and puts it behind those of the code in this context; a new reference. */
static PyObject *
add_entry(PyCodeObject *code, Context *context, PyObject *guard, PyObject *new_code)
{
    PyObject *entry = new_entry(code, guard, new_code);
    Node *node = entry == NULL ? NULL : make_node(code, context);
    while (node != NULL) {
        Py_ssize_t count = PyTuple_GET_SIZE(node->entries);
        PyObject *entries = PyTuple_New(count + 1); /* may collect garbage, which runs any code */
        node = entries == NULL ? NULL : make_node(code, context);
        if (node == NULL || PyTuple_GET_SIZE(node->entries) != count) {
            Py_XDECREF(entries);
            continue;
        }
        for (Py_ssize_t i = 0; i < count; i++) {
            PyTuple_SET_ITEM(entries, i, Py_NewRef(PyTuple_GET_ITEM(node->entries, i)));
        }
        PyTuple_SET_ITEM(entries, count, Py_NewRef(entry));
        Py_SETREF(node->entries, entries);
        return entry;
    }
    Py_XDECREF(entry);
    return NULL;
}

/* Takes an entry out of those of the code in this context. */
static int
discard_entry(PyCodeObject *code, Context *context, PyObject *entry)
{
    for (;;) {
        CodeState *state = get_state(code);
        Node *node = state == NULL ? NULL : get_node(state, context);
        Py_ssize_t count = node == NULL ? 0 : PyTuple_GET_SIZE(node->entries);
        Py_ssize_t place = 0;
        while (place < count && PyTuple_GET_ITEM(node->entries, place) != entry) {
            place++;
        }
        if (place == count) {
            return 0;
        }
        PyObject *entries = PyTuple_New(count - 1); /* may collect garbage, which runs any code */
        if (entries == NULL) {
            return -1;
        }
        state = get_state(code);
        node = state == NULL ? NULL : get_node(state, context);
        if (node == NULL || PyTuple_GET_SIZE(node->entries) != count
            || PyTuple_GET_ITEM(node->entries, place) != entry) {
            Py_DECREF(entries);
            continue;
        }
        for (Py_ssize_t i = 0; i < count - 1; i++) {
            PyObject *kept = PyTuple_GET_ITEM(node->entries, i < place ? i : i + 1);
            PyTuple_SET_ITEM(entries, i, Py_NewRef(kept));
        }
        Py_SETREF(node->entries, entries);
        return 0;
    }
}

static int
entry_traverse(Entry *self, visitproc visit, void *arg)
{
    Py_VISIT(self->guard);
    Py_VISIT(self->code);
    Py_VISIT(self->positional);
    return 0;
}

static int
entry_clear(Entry *self)
{
    /* The frame hook may be reading an entry that the collector clears only if it was
     * unreachable, and an active context is reachable from its running wrapper. */
    Py_CLEAR(self->positional);
    return 0;
}

static void
entry_dealloc(Entry *self)
{
    PyObject_GC_UnTrack(self);
    if (self->weakrefs != NULL) {
        PyObject_ClearWeakRefs((PyObject *)self);
    }
    Py_XDECREF(self->guard);
    Py_XDECREF(self->code);
    Py_XDECREF(self->positional);
    PyObject_GC_Del(self);
}

static PyObject *
tuple_from(PyObject *const *args, int n)
{
    PyObject *tuple = PyTuple_New(n);
    for (int i = 0; tuple != NULL && i < n; i++) {
        PyTuple_SET_ITEM(tuple, i, Py_NewRef(args[i]));
    }
    return tuple;
}

static int
call_guard(PyObject *guard, PyObject *const *args, int n, PyObject *func)
{
    PyObject *tuple = tuple_from(args, n);
    if (tuple == NULL) {
        return -1;
    }
    PyObject *pair[2] = {tuple, func};
    PyObject *answer = PyObject_Vectorcall(guard, pair, 2, NULL);
    Py_DECREF(tuple);
    if (answer == NULL) {
        return -1;
    }
    int truth = PyObject_IsTrue(answer);
    Py_DECREF(answer);
    return truth;
}

static inline int
guard_accepts(Entry *entry, PyObject *const *args, int n, PyObject *func)
{
    if (entry->native != NULL) {
        return entry->native->check(entry->native->ctx, args, func);
    }
    return call_guard(entry->guard, args, n, func);
}

static PyMemberDef entry_members[] = {
    {"guard", T_OBJECT, offsetof(Entry, guard), READONLY, "the guard: a capsule or a callable"},
    {"code", T_OBJECT, offsetof(Entry, code), READONLY, "the replacement code"},
    {NULL},
};

static PyTypeObject EntryType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "dovetail_capture._frame_hook.Entry",
    .tp_doc = "A guard and the code that replaces the frame's when it holds.",
    .tp_basicsize = sizeof(Entry),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .tp_traverse = (traverseproc)entry_traverse,
    .tp_clear = (inquiry)entry_clear,
    .tp_dealloc = (destructor)entry_dealloc,
    .tp_members = entry_members,
    .tp_weaklistoffset = offsetof(Entry, weakrefs),
};
