/* Names in other modules' dictionaries that tell how compiled functions are to run. Each call of a
 * switched function looks whether they still hold what they held, and tells Python if not. */
#pragma once

#include "state.h"

#define MOST_WATCHED 4

typedef struct {
    PyObject *dict, *name; /* the name is interned */
    PyObject *value;       /* what it held, owned, or NULL for nothing */
} WatchedName;

static WatchedName watched[MOST_WATCHED];
static int watched_count;
static PyObject *on_change; /* called with no argument when one holds something else */

static void
forget_watched(void)
{
    while (watched_count > 0) {
        WatchedName last = watched[--watched_count];
        Py_DECREF(last.dict);
        Py_DECREF(last.name);
        Py_XDECREF(last.value);
    }
    Py_CLEAR(on_change);
}

static Py_NO_INLINE int
tell_change(void)
{
    PyObject *callback = Py_NewRef(on_change);
    PyObject *result = PyObject_CallNoArgs(callback);
    Py_DECREF(callback);
    Py_XDECREF(result);
    return result == NULL ? -1 : 0;
}

/* -1 with an exception where the callback raised. */
static inline int
look_at_watched(void)
{
    for (int i = 0; i < watched_count; i++) {
        if (PyDict_GetItemWithError(watched[i].dict, watched[i].name) != watched[i].value) {
            return PyErr_Occurred() ? -1 : tell_change();
        }
    }
    return 0;
}

/* watch_names(callback, ((dict, name), ...)) */
static PyObject *
hook_watch_names(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *callback, *pairs;
    if (!PyArg_ParseTuple(args, "OO!:watch_names", &callback, &PyTuple_Type, &pairs)) {
        return NULL;
    }
    if (PyTuple_GET_SIZE(pairs) > MOST_WATCHED) {
        PyErr_Format(PyExc_ValueError, "at most %d names can be watched", MOST_WATCHED);
        return NULL;
    }
    forget_watched();
    on_change = Py_NewRef(callback);
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(pairs); i++) {
        PyObject *dict, *name;
        if (!PyArg_ParseTuple(PyTuple_GET_ITEM(pairs, i), "O!U", &PyDict_Type, &dict, &name)) {
            return NULL;
        }
        Py_INCREF(name);
        PyUnicode_InternInPlace(&name);
        PyObject *value = PyDict_GetItemWithError(dict, name);
        watched[watched_count++] = (WatchedName){Py_NewRef(dict), name, Py_XNewRef(value)};
    }
    Py_RETURN_NONE;
}
