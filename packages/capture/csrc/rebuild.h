/* What replacement code does most often when it puts objects together, without Python frames. */
#pragma once

#include "versions.h"

/* The slot that a write of this name goes to (borrowed), or NULL: the nearest in the class's MRO,
 * also where a plain class attribute hides it; of exceptions also what C keeps in the object. */
static PyObject *
slot_of(PyTypeObject *type, PyObject *name)
{
    PyObject *mro = type->tp_mro;
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(mro); i++) {
        PyTypeObject *klass = (PyTypeObject *)PyTuple_GET_ITEM(mro, i);
#if PY_VERSION_HEX >= 0x030C0000
        PyObject *dict = PyType_GetDict(klass);
        PyObject *found = PyDict_GetItemWithError(dict, name);
        Py_DECREF(dict);
#else
        PyObject *found = PyDict_GetItemWithError(klass->tp_dict, name);
#endif
        if (found == NULL) {
            continue;
        }
        if (Py_IS_TYPE(found, &PyMemberDescr_Type)) {
            return found;
        }
        if (Py_IS_TYPE(found, &PyGetSetDescr_Type)
            && PyType_IsSubtype(klass, (PyTypeObject *)PyExc_BaseException)) {
            return PyUnicode_CompareWithASCIIString(name, "__dict__") == 0 ? NULL : found;
        }
    }
    return NULL;
}

static int
set_in_dict(PyObject *target, PyObject *name, PyObject *value)
{
    PyObject *on_class = _PyType_Lookup(Py_TYPE(target), name);
    if (on_class == NULL || Py_TYPE(on_class)->tp_descr_set == NULL) {
        return PyObject_GenericSetAttr(target, name, value);
    }
    PyObject *dict = PyObject_GenericGetDict(target, NULL);
    if (dict == NULL) {
        return -1;
    }
    int answer = PyDict_SetItem(dict, name, value);
    Py_DECREF(dict);
    return answer;
}

static PyObject *
rebuild_set_attribute(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t n)
{
    if (n != 3 || !PyUnicode_CheckExact(args[1])) {
        PyErr_SetString(PyExc_TypeError, "set_attribute(target, name, value)");
        return NULL;
    }
    PyObject *target = args[0], *name = args[1], *value = args[2];
    PyObject *slot = slot_of(Py_TYPE(target), name);
    int answer;
    if (slot != NULL) {
        Py_INCREF(slot);
        answer = Py_TYPE(slot)->tp_descr_set(slot, target, value);
        Py_DECREF(slot);
    }
    else if (PyType_Check(target)) {
        answer = PyType_Type.tp_setattro(target, name, value);
    }
    else {
        answer = set_in_dict(target, name, value);
    }
    if (answer < 0) {
        return NULL;
    }
    Py_RETURN_NONE;
}

static PyObject *
rebuild_get_item(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t n)
{
    if (n != 2) {
        PyErr_SetString(PyExc_TypeError, "get_item(base, key)");
        return NULL;
    }
    PyTypeObject *base = PyDict_Check(args[0])    ? &PyDict_Type
                         : PyList_Check(args[0])  ? &PyList_Type
                         : PyTuple_Check(args[0]) ? &PyTuple_Type
                                                  : NULL;
    return base == NULL ? PyObject_GetItem(args[0], args[1])
                        : base->tp_as_mapping->mp_subscript(args[0], args[1]);
}

static int
clear_ordered(PyObject *dict)
{
    PyObject *done = PyObject_CallMethod((PyObject *)&PyODict_Type, "clear", "O", dict);
    Py_XDECREF(done);
    return done == NULL ? -1 : 0;
}

/* Are these one key, for all that can be told without running anybody's `__eq__`? */
static int
is_one_key(PyObject *left, PyObject *right)
{
    if (left == right) {
        return 1;
    }
    if (PyUnicode_CheckExact(left) && PyUnicode_CheckExact(right)) {
        return PyUnicode_Compare(left, right) == 0;
    }
    return PyLong_CheckExact(left) && PyLong_CheckExact(right)
           && PyObject_RichCompareBool(left, right, Py_EQ) == 1;
}

/* Delete what is not among the first of the new items, in their order. What stays keeps its place:
 * iterators over the dict may be under way. */
static int
drop_others(PyObject *dict, PyObject *items)
{
    PyObject *others = PyList_New(0), *key, *value;
    Py_ssize_t place = 0, at = 0;
    if (others == NULL) {
        return -1;
    }
    int failed = 0;
    while (!failed && PyDict_Next(dict, &place, &key, &value)) {
        PyObject *pair = at < PyList_GET_SIZE(items) ? PyList_GET_ITEM(items, at) : NULL;
        if (pair != NULL && PyTuple_Check(pair) && PyTuple_GET_SIZE(pair) == 2
            && is_one_key(key, PyTuple_GET_ITEM(pair, 0))) {
            at++;
        }
        else {
            failed = PyList_Append(others, key) < 0;
        }
    }
    for (Py_ssize_t i = 0; !failed && i < PyList_GET_SIZE(others); i++) {
        failed = PyDict_DelItem(dict, PyList_GET_ITEM(others, i)) < 0;
    }
    Py_DECREF(others);
    return failed ? -1 : 0;
}

/* Has an ordered dict exactly the keys of the first of the new items, in their order? Then none is
 * to leave, which iterators over it would see. */
static int
begins_with_ordered(PyObject *dict, PyObject *items)
{
    PyObject *iterator = PyODict_Type.tp_iter(dict), *key;
    Py_ssize_t at = 0;
    int same = 1;
    if (iterator == NULL) {
        return -1;
    }
    while (same && (key = PyIter_Next(iterator)) != NULL) {
        PyObject *pair = at < PyList_GET_SIZE(items) ? PyList_GET_ITEM(items, at) : NULL;
        same = pair != NULL && PyTuple_Check(pair) && PyTuple_GET_SIZE(pair) == 2
               && is_one_key(key, PyTuple_GET_ITEM(pair, 0));
        at++;
        Py_DECREF(key);
    }
    Py_DECREF(iterator);
    return PyErr_Occurred() ? -1 : same;
}

static int
make_room_ordered(PyObject *dict, PyObject *items)
{
    int same = begins_with_ordered(dict, items);
    return same != 0 ? same : clear_ordered(dict);
}

static PyObject *
rebuild_replace_dict(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t n)
{
    if (n != 2 || !PyDict_Check(args[0]) || !PyList_Check(args[1])) {
        PyErr_SetString(PyExc_TypeError, "replace_dict(target, [(key, value), ...])");
        return NULL;
    }
    PyObject *dict = args[0], *items = args[1];
    int ordered = PyODict_Check(dict);
    int failed = (ordered ? make_room_ordered(dict, items) : drop_others(dict, items)) < 0;
    for (Py_ssize_t i = 0; !failed && i < PyList_GET_SIZE(items); i++) {
        PyObject *pair = Py_NewRef(PyList_GET_ITEM(items, i));
        if (!PyTuple_Check(pair) || PyTuple_GET_SIZE(pair) != 2) {
            PyErr_SetString(PyExc_TypeError, "replace_dict needs pairs");
            failed = 1;
        }
        else {
            PyObject *key = PyTuple_GET_ITEM(pair, 0), *value = PyTuple_GET_ITEM(pair, 1);
            failed = (ordered ? PyODict_SetItem(dict, key, value)
                              : PyDict_SetItem(dict, key, value))
                     < 0;
        }
        Py_DECREF(pair);
    }
    if (failed) {
        return NULL;
    }
    Py_RETURN_NONE;
}
