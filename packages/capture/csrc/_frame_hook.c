/* The frame hook (PEP 523): swaps the code of a frame that has not started yet.
 *
 * CPython asks the hook to evaluate every Python frame of a thread. When a context is active in
 * that thread, the hook looks for an entry of (frame's code, context) whose guard accepts the raw
 * arguments, points the un-started frame at the entry's replacement code, and lets CPython's own
 * evaluator run and clear it. On a miss it asks the context's callback for a new entry.
 *
 * Who owns what: a code object carries a CodeState in its extra slot; a CodeState has one Node per
 * context; a Context lists its Nodes and, for the garbage collector, owns their entries. Nodes go
 * when either side dies, so neither keeps the other alive.
 */
#include "context_type.h"
#include "frames.h"
#include "rebuild.h"
#include "wrappers.h"

static PyObject *
hook_skip_code(PyObject *Py_UNUSED(module), PyObject *arg)
{
    PyCodeObject *code = as_code(arg);
    CodeState *state = code == NULL ? NULL : make_state(code);
    if (state == NULL) {
        return NULL;
    }
    state->skip = 1;
    Py_RETURN_NONE;
}

static PyObject *
hook_active(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(ignored))
{
    return Py_NewRef(active == NULL ? Py_None : (PyObject *)active);
}

static PyObject *
hook_installed(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(ignored))
{
    return PyBool_FromLong(_PyInterpreterState_GetEvalFrameFunc(PyInterpreterState_Get())
                           == hook_eval);
}

static PyObject *
hook_check_guard(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *guard, *tuple, *func;
    DovetailGuard *native;
    if (!PyArg_ParseTuple(args, "OO!O:check_guard", &guard, &PyTuple_Type, &tuple, &func)
        || read_guard(guard, &native) < 0) {
        return NULL;
    }
    PyObject *const *items = &PyTuple_GET_ITEM(tuple, 0);
    int answer = native != NULL ? native->check(native->ctx, items, func)
                                : call_guard(guard, items, (int)PyTuple_GET_SIZE(tuple), func);
    return answer < 0 ? NULL : PyBool_FromLong(answer);
}

static PyObject *
hook_force_eager(PyObject *Py_UNUSED(module), PyObject *arg)
{
    int on = PyObject_IsTrue(arg);
    if (on < 0) {
        return NULL;
    }
    eager_forced = on;
    Py_RETURN_NONE;
}

static PyMethodDef functions[] = {
    {"force_eager", hook_force_eager, METH_O,
     "force_eager(flag): whether switched-on calls run as if capture did not exist."},
    {"watch_names", hook_watch_names, METH_VARARGS,
     "watch_names(callback, ((dict, name), ...)): call back, before a switched-on call, when a\n"
     "name holds another object than now; replaces what was watched before."},
    {"skip_code", hook_skip_code, METH_O, "skip_code(code): never touch frames of this code."},
    {"active", hook_active, METH_NOARGS, "active(): the context that is on in this thread."},
    {"installed", hook_installed, METH_NOARGS, "installed(): is the hook CPython's evaluator now?"},
    {"set_attribute", (PyCFunction)(void (*)(void))rebuild_set_attribute, METH_FASTCALL,
     "set_attribute(target, name, value): write straight into the instance, its slot or its\n"
     "__dict__; no user code runs."},
    {"get_item", (PyCFunction)(void (*)(void))rebuild_get_item, METH_FASTCALL,
     "get_item(base, key): base[key] by dict, list and tuple themselves; an override must not run."},
    {"replace_dict", (PyCFunction)(void (*)(void))rebuild_replace_dict, METH_FASTCALL,
     "replace_dict(target, [(key, value), ...]): new contents in the given order, by dict itself."},
    {"call_here", (PyCFunction)(void (*)(void))hook_call_here, METH_FASTCALL | METH_KEYWORDS,
     "call_here(switched, *args, **kwargs): call it, whatever other hook there is."},
    {"on_foreign_hook", hook_on_foreign_hook, METH_VARARGS,
     "on_foreign_hook(function, callback): where another tool's hook is on, and callback() is not\n"
     "None, calls of switched functions go through function(switched, *args, **kwargs), which ends\n"
     "in `call_here`."},
    {"check_guard", hook_check_guard, METH_VARARGS, "check_guard(guard, args, func) -> bool"},
    {NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "dovetail_capture._frame_hook",
    "The PEP 523 frame hook; see the head of _frame_hook.c.", -1, functions};

static PyCodeObject *
make_return_code(void)
{
    PyObject *namespace = Py_BuildValue("{s:O,s:i}", "__builtins__", PyEval_GetBuiltins(),
                                        "op", RETURN_VALUE);
    if (namespace == NULL) {
        return NULL;
    }
    PyObject *code = PyRun_String(
        "(lambda: None).__code__.replace(co_code=bytes([op, 0]), co_stacksize=1,"
        " co_linetable=bytes([0xF8]), co_exceptiontable=b'')",
        Py_eval_input, namespace, namespace);
    Py_DECREF(namespace);
    return (PyCodeObject *)code;
}

static PyObject *
make_nothing(void)
{
    PyObject *namespace = Py_BuildValue("{s:O}", "__builtins__", PyEval_GetBuiltins());
    PyObject *function = NULL;
    if (namespace != NULL) {
        function = PyRun_String("lambda: None", Py_eval_input, namespace, namespace);
        Py_DECREF(namespace);
    }
    return function;
}

PyMODINIT_FUNC
PyInit__frame_hook(void)
{
    /* The header version was checked when compiling; the ABI tag of the file name makes CPython
     * refuse another minor version, and this refuses a renamed file. */
    if ((Py_Version >> 16) != (PY_VERSION_HEX >> 16)) {
        PyErr_Format(PyExc_ImportError, "the frame hook was built for CPython %d.%d",
                     PY_MAJOR_VERSION, PY_MINOR_VERSION);
        return NULL;
    }
    PyObject *module = PyModule_Create(&definition);
    if (module == NULL) {
        return NULL;
    }
    extra_index = PyUnstable_Eval_RequestCodeExtraIndex(free_state);
    return_code = make_return_code();
    skip_mark = PyUnicode_FromString("<SKIP>");
    off_mark = PyUnicode_FromString("<OFF>");
    nothing = return_code == NULL ? NULL : make_nothing();
    on_miss = PyUnicode_InternFromString("on_miss");
    if (extra_index < 0 || return_code == NULL || skip_mark == NULL
        || off_mark == NULL || on_miss == NULL || nothing == NULL || make_state(return_code) == NULL || prove_extras(return_code) < 0
        || PyType_Ready(&EntryType) < 0
        || PyModule_AddType(module, &ContextType) < 0
        || PyModule_AddType(module, &SwitchedType) < 0
        || PyModule_AddType(module, &BoundType) < 0
        || PyModule_AddType(module, &EntryType) < 0
        || PyModule_AddObjectRef(module, "SKIP", skip_mark) < 0
        || PyModule_AddObjectRef(module, "OFF", off_mark) < 0) {
        if (extra_index < 0 && !PyErr_Occurred()) {
            PyErr_SetString(PyExc_ImportError, "CPython has no free extra slot for code objects");
        }
        Py_DECREF(module);
        return NULL;
    }
    return module;
}
