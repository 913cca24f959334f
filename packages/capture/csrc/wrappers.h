/* Switched: a function run with a context on, or with capture off. Bound: a compiled graph
 * with its static inputs filled in, run with capture off. */
#pragma once

#include "context_type.h"
#include "switches.h"

static PyObject *
call_here(PyObject *callable, PyObject *const *args, size_t nargsf, PyObject *kwnames)
{
    Switched *self = (Switched *)callable;
    Context *context = eager_forced ? NULL : self->context;
    PyObject *function = Py_NewRef(self->function);
    Py_XINCREF(context);
    Activation before = switch_to(context);
    PyObject *result = PyObject_Vectorcall(function, args, nargsf, kwnames);
    switch_back(context, before);
    Py_XDECREF(context);
    Py_DECREF(function);
    return result;
}

/* foreign_call(switched, *args, **kwargs), which calls `call_here` with the same in turn. */
static Py_NO_INLINE PyObject *
call_foreign(PyObject *callable, PyObject *const *args, size_t nargsf, PyObject *kwnames)
{
    Py_ssize_t n = PyVectorcall_NARGS(nargsf);
    Py_ssize_t total = n + (kwnames == NULL ? 0 : PyTuple_GET_SIZE(kwnames));
    PyObject **all = PyMem_Malloc((total + 1) * sizeof(PyObject *));
    if (all == NULL) {
        return PyErr_NoMemory();
    }
    all[0] = callable;
    memcpy(all + 1, args, total * sizeof(PyObject *));
    PyObject *function = Py_NewRef(foreign_call);
    PyObject *result = PyObject_Vectorcall(function, all, n + 1, kwnames);
    Py_DECREF(function);
    PyMem_Free(all);
    return result;
}

/* Does the other tool's hook capture in this thread? One that a failed compilation left behind does
 * not. */
static int
foreign_captures(void)
{
    PyObject *callback = foreign_callback == NULL ? NULL : PyObject_CallNoArgs(foreign_callback);
    if (callback == NULL) {
        PyErr_Clear();
        return 1;
    }
    Py_DECREF(callback);
    return callback != Py_None;
}

static PyObject *
switched_call(PyObject *callable, PyObject *const *args, size_t nargsf, PyObject *kwnames)
{
    if (look_at_watched() < 0) {
        return NULL;
    }
    if (foreign_call != NULL && is_foreign() && foreign_captures()) {
        return call_foreign(callable, args, nargsf, kwnames);
    }
    return call_here(callable, args, nargsf, kwnames);
}

/* call_here(switched, *args, **kwargs) */
static PyObject *
hook_call_here(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t n, PyObject *kwnames)
{
    if (n < 1 || !PyObject_TypeCheck(args[0], &SwitchedType)) {
        PyErr_SetString(PyExc_TypeError, "call_here takes a Switched, and what to call it with");
        return NULL;
    }
    return call_here(args[0], args + 1, n - 1, kwnames);
}

/* on_foreign_hook(function, callback) */
static PyObject *
hook_on_foreign_hook(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *function, *callback;
    if (!PyArg_ParseTuple(args, "OO:on_foreign_hook", &function, &callback)) {
        return NULL;
    }
    Py_XSETREF(foreign_call, Py_NewRef(function));
    Py_XSETREF(foreign_callback, callback == Py_None ? NULL : Py_NewRef(callback));
    Py_RETURN_NONE;
}

static PyObject *
switched_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"function", "context", NULL};
    PyObject *function, *context;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OO:Switched", names, &function, &context)) {
        return NULL;
    }
    if (context != Py_None && !PyObject_TypeCheck(context, &ContextType)) {
        PyErr_SetString(PyExc_TypeError, "Switched needs a Context, or None for capture off");
        return NULL;
    }
    Switched *self = (Switched *)type->tp_alloc(type, 0);
    if (self != NULL) {
        self->vectorcall = switched_call;
        self->function = Py_NewRef(function);
        self->context = context == Py_None ? NULL : (Context *)Py_NewRef(context);
    }
    return (PyObject *)self;
}

static int
switched_traverse(Switched *self, visitproc visit, void *arg)
{
    Py_VISIT(self->function);
    Py_VISIT(self->context);
    Py_VISIT(self->dict);
    return 0;
}

static int
switched_clear(Switched *self)
{
    PyObject *function = self->function;
    self->function = Py_NewRef(Py_None);
    Py_XDECREF(function);
    Py_CLEAR(self->context);
    Py_CLEAR(self->dict);
    return 0;
}

static void
switched_dealloc(Switched *self)
{
    PyObject_GC_UnTrack(self);
    if (self->weakrefs != NULL) {
        PyObject_ClearWeakRefs((PyObject *)self);
    }
    Py_XDECREF(self->function);
    Py_XDECREF(self->context);
    Py_XDECREF(self->dict);
    Py_TYPE(self)->tp_free(self);
}

static PyObject *
switched_get(PyObject *self, PyObject *object, PyObject *Py_UNUSED(type))
{
    return object == NULL || object == Py_None ? Py_NewRef(self) : PyMethod_New(self, object);
}

/* A method that is written in Python, in `dovetail_capture.copies`. */
static PyObject *
call_copies(const char *function, PyObject *self, PyObject *argument)
{
    PyObject *module = PyImport_ImportModule("dovetail_capture.copies");
    if (module == NULL) {
        return NULL;
    }
    PyObject *result = argument == NULL
                           ? PyObject_CallMethod(module, function, "O", self)
                           : PyObject_CallMethod(module, function, "OO", self, argument);
    Py_DECREF(module);
    return result;
}

static PyObject *
switched_copy(PyObject *self, PyObject *Py_UNUSED(ignored))
{
    return Py_NewRef(self); /* as a function is its own copy */
}

static PyObject *
switched_deepcopy(PyObject *self, PyObject *memo)
{
    return call_copies("deepcopy_of", self, memo);
}

static PyObject *
switched_reduce(PyObject *self, PyObject *Py_UNUSED(ignored))
{
    return call_copies("reduced", self, NULL);
}

static PyObject *
switched_function(PyObject *self, PyObject *Py_UNUSED(ignored))
{
    return Py_NewRef(((Switched *)self)->function);
}

static PyObject *
switched_repr(PyObject *self)
{
    Switched *switched = (Switched *)self;
    int entered = Py_ReprEnter(self);
    if (entered != 0) {
        return entered < 0 ? NULL : PyUnicode_FromString("...");
    }
    PyObject *text = switched->context == NULL
                         ? PyUnicode_FromFormat("<disabled %R>", switched->function)
                         : call_copies("described", self, NULL);
    Py_ReprLeave(self);
    return text;
}

static PyMethodDef switched_methods[] = {
    {"__copy__", switched_copy, METH_NOARGS, "The wrapper itself."},
    {"__deepcopy__", switched_deepcopy, METH_O, "The wrapper of a deep copy."},
    {"__reduce__", switched_reduce, METH_NOARGS, "How it is pickled: without compiled code."},
    {"__prepare_scriptable__", switched_function, METH_NOARGS, "What torch.jit.script compiles."},
    {NULL},
};

static PyMemberDef switched_members[] = {
    {"__vectorcalloffset__", T_PYSSIZET, offsetof(Switched, vectorcall), READONLY},
    {"function", T_OBJECT, offsetof(Switched, function), READONLY, "what is called"},
    {"context", T_OBJECT, offsetof(Switched, context), READONLY, "the context, or None"},
    {NULL},
};

/* A wrapper of a function is a function to whoever looks for its source or its signature, and to
 * the tracers that go by that; our own code and the program's tell the two apart. */
static PyObject *
switched_class(PyObject *self, void *Py_UNUSED(closure))
{
    static const char *const askers[] = {"inspect", "torch.fx._symbolic_trace"};
    PyObject *attributes = ((Switched *)self)->dict;
    PyObject *globals = PyEval_GetGlobals(); /* of the Python code that asks */
    if (attributes != NULL && globals != NULL && PyDict_CheckExact(globals)) {
        PyObject *name = PyDict_GetItemString(globals, "__name__");
        for (size_t i = 0; name != NULL && i < Py_ARRAY_LENGTH(askers); i++) {
            if (PyUnicode_Check(name) && PyUnicode_CompareWithASCIIString(name, askers[i]) == 0) {
                int has_code = PyDict_GetItemString(attributes, "__code__") != NULL;
                return Py_NewRef(has_code ? &PyFunction_Type : Py_TYPE(self));
            }
        }
    }
    return Py_NewRef(Py_TYPE(self));
}

static PyGetSetDef switched_getset[] = {
    {"__class__", switched_class, NULL, "A function's class, to inspect and torch.fx."},
    {"__dict__", PyObject_GenericGetDict, PyObject_GenericSetDict},
    {NULL},
};

static PyTypeObject SwitchedType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "dovetail_capture._frame_hook.Switched",
    .tp_doc = "Switched(function, context): the function with capture switched on (or off: None).",
    .tp_basicsize = sizeof(Switched),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL
                | Py_TPFLAGS_METHOD_DESCRIPTOR,
    .tp_new = switched_new,
    .tp_call = PyVectorcall_Call,
    .tp_repr = switched_repr,
    .tp_vectorcall_offset = offsetof(Switched, vectorcall),
    .tp_traverse = (traverseproc)switched_traverse,
    .tp_clear = (inquiry)switched_clear,
    .tp_dealloc = (destructor)switched_dealloc,
    .tp_descr_get = switched_get,
    .tp_methods = switched_methods,
    .tp_members = switched_members,
    .tp_getset = switched_getset,
    .tp_dictoffset = offsetof(Switched, dict),
    .tp_weaklistoffset = offsetof(Switched, weakrefs),
};

/* ---- Bound: a compiled graph with its static inputs filled in, run with capture off --------- */

static PyObject *
bound_call(PyObject *callable, PyObject *const *args, size_t nargsf, PyObject *kwnames)
{
    Bound *self = (Bound *)callable;
    Py_ssize_t n = PyVectorcall_NARGS(nargsf);
    if (n != self->dynamic_count || kwnames != NULL) {
        PyErr_Format(PyExc_TypeError, "this graph takes %zd positional inputs, got %zd",
                     self->dynamic_count, n);
        return NULL;
    }
    Activation before = {active, active_stack};
    active = NULL;
    PyObject *result;
    Py_ssize_t total = PyTuple_GET_SIZE(self->template_);
    Py_INCREF(self);
    if (total == n) { /* nothing is static: pass the arguments through */
        result = PyObject_Vectorcall(self->function, args, nargsf, NULL);
    }
    else {
        PyObject *small[MAX_STACK_ARGS];
        PyObject **all = small;
        if (total > MAX_STACK_ARGS) {
            all = PyMem_Malloc(total * sizeof(PyObject *));
        }
        if (all == NULL) {
            result = PyErr_NoMemory();
        }
        else {
            memcpy(all, &PyTuple_GET_ITEM(self->template_, 0), total * sizeof(PyObject *));
            for (Py_ssize_t i = 0; i < n; i++) {
                all[self->dynamic[i]] = args[i];
            }
            result = PyObject_Vectorcall(self->function, all, total, NULL);
            if (all != small) {
                PyMem_Free(all);
            }
        }
    }
    activate(PyThreadState_Get(), before.context, before.stack);
    Py_DECREF(self);
    return result;
}

static PyObject *
bound_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"function", "template", "dynamic", NULL};
    PyObject *function, *template_, *dynamic;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OO!O!:Bound", names, &function, &PyTuple_Type,
                                     &template_, &PyTuple_Type, &dynamic)) {
        return NULL;
    }
    Py_ssize_t count = PyTuple_GET_SIZE(dynamic);
    Py_ssize_t *positions = PyMem_Calloc(count + 1, sizeof(Py_ssize_t));
    if (positions == NULL) {
        return PyErr_NoMemory();
    }
    for (Py_ssize_t i = 0; i < count; i++) {
        positions[i] = PyLong_AsSsize_t(PyTuple_GET_ITEM(dynamic, i));
        int wrong = positions[i] < 0 || positions[i] >= PyTuple_GET_SIZE(template_);
        /* In order and distinct, so that an all-dynamic call may pass its arguments through. */
        if (wrong || (i > 0 && positions[i] <= positions[i - 1])) {
            PyMem_Free(positions);
            if (!PyErr_Occurred()) {
                PyErr_SetString(PyExc_ValueError, "dynamic positions must rise within the template");
            }
            return NULL;
        }
    }
    Bound *self = (Bound *)type->tp_alloc(type, 0);
    if (self == NULL) {
        PyMem_Free(positions);
        return NULL;
    }
    self->vectorcall = bound_call;
    self->function = Py_NewRef(function);
    self->template_ = Py_NewRef(template_);
    self->dynamic_count = count;
    self->dynamic = positions;
    return (PyObject *)self;
}

static int
bound_traverse(Bound *self, visitproc visit, void *arg)
{
    Py_VISIT(self->function);
    Py_VISIT(self->template_);
    return 0;
}

static void
bound_dealloc(Bound *self)
{
    PyObject_GC_UnTrack(self);
    Py_XDECREF(self->function);
    Py_XDECREF(self->template_);
    PyMem_Free(self->dynamic);
    Py_TYPE(self)->tp_free(self);
}

static PyMemberDef bound_members[] = {
    {"__vectorcalloffset__", T_PYSSIZET, offsetof(Bound, vectorcall), READONLY},
    {"function", T_OBJECT, offsetof(Bound, function), READONLY, "the compiled graph"},
    {"template", T_OBJECT, offsetof(Bound, template_), READONLY, "the static inputs"},
    {NULL},
};

static PyTypeObject BoundType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "dovetail_capture._frame_hook.Bound",
    .tp_doc = "Bound(function, template, dynamic): the function with all but some inputs filled in.",
    .tp_basicsize = sizeof(Bound),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL,
    .tp_new = bound_new,
    .tp_call = PyVectorcall_Call,
    .tp_vectorcall_offset = offsetof(Bound, vectorcall),
    .tp_traverse = (traverseproc)bound_traverse,
    .tp_dealloc = (destructor)bound_dealloc,
    .tp_members = bound_members,
};
