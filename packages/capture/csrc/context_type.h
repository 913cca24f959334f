/* The Python type Context. */
#pragma once

#include "entries.h"

static PyObject *
context_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"callback", NULL};
    PyObject *callback = Py_None;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "|O:Context", names, &callback)) {
        return NULL;
    }
    Context *self = (Context *)type->tp_alloc(type, 0);
    if (self != NULL) {
        self->callback = Py_NewRef(callback);
    }
    return (PyObject *)self;
}

static int
context_traverse(Context *self, visitproc visit, void *arg)
{
    Py_VISIT(self->callback);
    for (Node *node = self->nodes; node != NULL; node = node->next_of_context) {
        Py_VISIT(node->entries);
    }
    return 0;
}

static void
drop_nodes(Context *self)
{
    while (self->nodes != NULL) {
        free_node(self->nodes);
    }
}

static int
context_clear(Context *self)
{
    drop_nodes(self);
    PyObject *callback = self->callback;
    self->callback = Py_NewRef(Py_None);
    Py_XDECREF(callback);
    return 0;
}

static void
context_dealloc(Context *self)
{
    PyObject_GC_UnTrack(self);
    if (self->weakrefs != NULL) {
        PyObject_ClearWeakRefs((PyObject *)self);
    }
    drop_nodes(self);
    Py_XDECREF(self->callback);
    Py_TYPE(self)->tp_free(self);
}

static PyCodeObject *
as_code(PyObject *arg)
{
    if (!PyCode_Check(arg)) {
        PyErr_Format(PyExc_TypeError, "expected a code object, got %s", Py_TYPE(arg)->tp_name);
        return NULL;
    }
    return (PyCodeObject *)arg;
}

static PyObject *
context_entries(Context *self, PyObject *arg)
{
    PyCodeObject *code = as_code(arg);
    if (code == NULL) {
        return NULL;
    }
    CodeState *state = get_state(code);
    Node *node = state == NULL ? NULL : get_node(state, self);
    return node == NULL ? PyTuple_New(0) : Py_NewRef(node->entries);
}

static PyObject *
context_add(Context *self, PyObject *args)
{
    PyObject *code, *guard, *new_code;
    if (!PyArg_ParseTuple(args, "O!OO:add", &PyCode_Type, &code, &guard, &new_code)) {
        return NULL;
    }
    return add_entry((PyCodeObject *)code, self, guard, new_code);
}

static PyObject *
context_close(Context *self, PyObject *arg)
{
    PyCodeObject *code = as_code(arg);
    Node *node = code == NULL ? NULL : make_node(code, self);
    if (node == NULL) {
        return NULL;
    }
    node->closed = 1;
    Py_RETURN_NONE;
}

static PyObject *
context_is_closed(Context *self, PyObject *arg)
{
    PyCodeObject *code = as_code(arg);
    if (code == NULL) {
        return NULL;
    }
    CodeState *state = get_state(code);
    Node *node = state == NULL ? NULL : get_node(state, self);
    return PyBool_FromLong(node != NULL && node->closed);
}

static PyObject *
context_reset(Context *self, PyObject *Py_UNUSED(ignored))
{
    drop_nodes(self);
    Py_RETURN_NONE;
}

static PyObject *
context_codes(Context *self, PyObject *Py_UNUSED(ignored))
{
    PyObject *list = PyList_New(0);
    for (Node *node = self->nodes; list != NULL && node != NULL; node = node->next_of_context) {
        if (PyList_Append(list, (PyObject *)node->state->code) < 0) {
            Py_CLEAR(list);
        }
    }
    return list;
}

static PyObject *
context_discard(Context *self, PyObject *args)
{
    PyObject *code, *entry;
    if (!PyArg_ParseTuple(args, "O!O!:discard", &PyCode_Type, &code, &EntryType, &entry)
        || discard_entry((PyCodeObject *)code, self, entry) < 0) {
        return NULL;
    }
    Py_RETURN_NONE;
}

static PyMethodDef context_methods[] = {
    {"entries", (PyCFunction)context_entries, METH_O, "entries(code): this context's entries."},
    {"add", (PyCFunction)context_add, METH_VARARGS,
     "add(code, guard, new_code): a new entry, there for every thread at once."},
    {"discard", (PyCFunction)context_discard, METH_VARARGS,
     "discard(code, entry): forget an entry, if it is one of the code's."},
    {"close", (PyCFunction)context_close, METH_O,
     "close(code): from now on a miss of this code runs plainly; its entries stay."},
    {"is_closed", (PyCFunction)context_is_closed, METH_O, "is_closed(code)"},
    {"reset", (PyCFunction)context_reset, METH_NOARGS, "Forget all entries and marks."},
    {"codes", (PyCFunction)context_codes, METH_NOARGS, "The codes with entries or marks."},
    {NULL},
};

static PyTypeObject ContextType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "dovetail_capture._frame_hook.Context",
    .tp_doc = "Context(callback): entries per code object, and who is asked on a miss. Without a\n"
              "callback it is the method `on_miss` of a subclass.",
    .tp_basicsize = sizeof(Context),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_BASETYPE,
    .tp_new = context_new,
    .tp_traverse = (traverseproc)context_traverse,
    .tp_clear = (inquiry)context_clear,
    .tp_dealloc = (destructor)context_dealloc,
    .tp_methods = context_methods,
    .tp_weaklistoffset = offsetof(Context, weakrefs),
};
