/* The evaluator: finds an entry for an un-started frame and runs the frame with its code. */
#pragma once

#include "entries.h"

/* Ends a frame that never started, with `result` (stolen; NULL with an exception set). */
static PyObject *
end_frame(PyThreadState *ts, _PyInterpreterFrame *frame, PyObject *result)
{
#if PY_VERSION_HEX < 0x030C0000
    (void)ts;
    (void)frame;
    return result; /* the caller of an evaluator clears and pops the frame */
#else
    /* Here the evaluator pops the frame: let it run one RETURN_VALUE that is already fed. */
    PyCodeObject *code = FRAME_CODE(frame);
    PyObject *type = NULL, *value = NULL, *traceback = NULL;
    if (result == NULL) {
        PyErr_Fetch(&type, &value, &traceback);
    }
    for (int i = 0; i < code->co_nlocalsplus; i++) {
        Py_CLEAR(frame->localsplus[i]);
    }
    Py_INCREF(return_code);
    SET_FRAME_CODE(frame, return_code);
    Py_DECREF(code);
    GO_TO_START(frame, return_code);
    frame->localsplus[0] = result == NULL ? Py_NewRef(Py_None) : result;
    frame->stacktop = 1;
    PyObject *returned = _PyEval_EvalFrameDefault(ts, frame, 0);
    if (result == NULL) {
        Py_XDECREF(returned);
        PyErr_Restore(type, value, traceback);
        return NULL;
    }
    return returned;
#endif
}

/* The replacement as a plain positional function: for frames that cannot grow in place. */
static PyObject *
call_as_function(Entry *entry, PyObject *const *args, int n, PyFunctionObject *func)
{
    if (entry->positional == NULL) {
        PyCodeObject *code = entry->code;
        PyObject *replace = PyObject_GetAttrString((PyObject *)code, "replace");
        PyObject *none = PyTuple_New(0);
        PyObject *changes = Py_BuildValue(
            "{s:i,s:i,s:i,s:i}", "co_argcount", n, "co_posonlyargcount", 0, "co_kwonlyargcount", 0,
            "co_flags", code->co_flags & ~(CO_VARARGS | CO_VARKEYWORDS));
        PyObject *positional = NULL;
        if (replace != NULL && none != NULL && changes != NULL) {
            positional = PyObject_Call(replace, none, changes);
        }
        Py_XDECREF(replace);
        Py_XDECREF(none);
        Py_XDECREF(changes);
        if (positional == NULL) {
            return NULL;
        }
        CodeState *state = make_state((PyCodeObject *)positional);
        if (state == NULL) {
            Py_DECREF(positional);
            return NULL;
        }
        state->skip = 1;
        Py_XSETREF(entry->positional, positional);
    }
    PyObject *copy = PyFunction_New(entry->positional, func->func_globals);
    if (copy == NULL) {
        return NULL;
    }
    PyObject *result = NULL;
    if (((PyCodeObject *)entry->positional)->co_nfreevars == 0
        || PyFunction_SetClosure(copy, func->func_closure) == 0) {
        result = PyObject_Vectorcall(copy, args, n, NULL);
    }
    Py_DECREF(copy);
    return result;
}

static PyObject *
run_off(PyThreadState *ts, _PyInterpreterFrame *frame, Context *context)
{
    _PyStackChunk *stack = active_stack;
    Py_INCREF(context);
    active = NULL;
    PyObject *result = pass_on(ts, frame, 0);
    activate(ts, context, stack);
    Py_DECREF(context);
    return result;
}

/* A frame that keeps its code has nothing to compile, and so has what it calls. */
static PyObject *
run_entry(PyThreadState *ts, _PyInterpreterFrame *frame, PyCodeObject *code, Entry *entry, int n)
{
    PyCodeObject *new_code = entry->code;
    if (new_code == code) {
        return run_off(ts, frame, active);
    }
    PyObject **base = (PyObject **)frame;
    PyObject **new_top = base + FRAME_SIZE(new_code);
    if (new_top > ts->datastack_top) {
        if (base + FRAME_SIZE(code) != ts->datastack_top || new_top >= ts->datastack_limit) {
            PyObject *func = FRAME_FUNCTION(frame);
            Py_INCREF(entry);
            PyObject *result =
                call_as_function(entry, frame->localsplus, n, (PyFunctionObject *)func);
            Py_DECREF(entry);
            return end_frame(ts, frame, result);
        }
        ts->datastack_top = new_top;
    }
    for (int i = n; i < new_code->co_nlocalsplus; i++) {
        frame->localsplus[i] = NULL;
    }
    Py_INCREF(new_code);
    SET_FRAME_CODE(frame, new_code);
    GO_TO_START(frame, new_code);
    frame->stacktop = new_code->co_nlocalsplus;
    PyObject *result = pass_on(ts, frame, 0);
    Py_DECREF(code); /* the frame's own reference, which the swap left to us */
    return result;
}

/* Asks the context for an entry; returns a new reference, or NULL: an error or nothing. */
static Entry *
miss(Context *context, PyCodeObject *code, PyObject *func, PyObject *const *args, int n)
{
    PyObject *tuple = tuple_from(args, n);
    if (tuple == NULL) {
        return NULL;
    }
    PyObject *all[4] = {(PyObject *)context, (PyObject *)code, func, tuple};
    PyObject *answer = context->callback == Py_None
                           ? PyObject_VectorcallMethod(on_miss, all, 4, NULL)
                           : PyObject_Vectorcall(context->callback, all + 1, 3, NULL);
    Py_DECREF(tuple);
    if (answer == NULL || answer == Py_None) {
        Py_XDECREF(answer);
        return NULL;
    }
    PyObject *entry = NULL;
    Node *node = make_node(code, context);
    if (node != NULL && (answer == skip_mark || answer == off_mark)) {
        node->closed = 1;
        node->off = answer == off_mark;
    }
    else if (node != NULL && Py_IS_TYPE(answer, &EntryType)) {
        entry = Py_NewRef(answer); /* another thread made it meanwhile */
    }
    else if (node != NULL && PyTuple_CheckExact(answer) && PyTuple_GET_SIZE(answer) == 2) {
        entry = add_entry(code, context, PyTuple_GET_ITEM(answer, 0),
                          PyTuple_GET_ITEM(answer, 1));
    }
    else if (node != NULL) {
        PyErr_SetString(PyExc_TypeError,
                        "a frame callback returns (guard, code), an Entry, None, SKIP or OFF");
    }
    Py_DECREF(answer);
    return (Entry *)entry;
}

/* An un-started frame, or one that is none of our business, with `context` on. */
static Py_NO_INLINE PyObject *
eval_captured(PyThreadState *ts, _PyInterpreterFrame *frame, Context *context, CodeState *state)
{
    if (ts->tracing) { /* a profiler's or debugger's own function, called within the user's */
        return run_off(ts, frame, context);
    }
    PyCodeObject *code = FRAME_CODE(frame);
    if ((code->co_flags & (NOT_ORDINARY | CO_OPTIMIZED)) != CO_OPTIMIZED || !AT_START(frame, code)) {
        return pass_on(ts, frame, 0);
    }
    Node *node = state == NULL ? NULL : get_node(state, context);
    if (node != NULL && node->closed && PyTuple_GET_SIZE(node->entries) == 0) {
        return node->off ? run_off(ts, frame, context) : pass_on(ts, frame, 0);
    }
    PyObject *func = FRAME_FUNCTION(frame);
    int n = argument_count(code);
    Entry *found = NULL;
    int closed = 0;
    _PyStackChunk *stack = active_stack;
    Py_INCREF(context);
    active = NULL; /* guards and the callback are not captured */
    if (node != NULL) {
        closed = node->closed;
        /* Guards may run code that changes the node: iterate over our own reference. */
        PyObject *entries = Py_NewRef(node->entries);
        for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(entries); i++) {
            Entry *entry = (Entry *)PyTuple_GET_ITEM(entries, i);
            int answer = guard_accepts(entry, frame->localsplus, n, func);
            if (answer != 0) {
                if (answer > 0) {
                    found = (Entry *)Py_NewRef(entry);
                }
                break;
            }
        }
        Py_DECREF(entries);
    }
    if (found == NULL && !closed && !PyErr_Occurred()) {
        found = miss(context, code, func, frame->localsplus, n);
    }
    activate(ts, context, stack);
    PyObject *result;
    if (found != NULL) {
        result = run_entry(ts, frame, code, found, n);
        Py_DECREF(found);
    }
    else if (PyErr_Occurred()) {
        result = end_frame(ts, frame, NULL);
    }
    else {
        state = get_state(code);
        node = state == NULL ? NULL : get_node(state, context);
        int off = node != NULL && node->off;
        result = off ? run_off(ts, frame, context) : pass_on(ts, frame, 0);
    }
    Py_DECREF(context);
    return result;
}

/* Most calls are none of our business. They are found out with as little as possible. */
static PyObject *
hook_eval(PyThreadState *ts, _PyInterpreterFrame *frame, int throwflag)
{
    Context *context = active;
    if (context != NULL && !throwflag && frame->owner == FRAME_OWNED_BY_THREAD) {
        CodeState *state = get_state(FRAME_CODE(frame));
        Node *node = state == NULL ? NULL : state->nodes;
        int plain = state != NULL && state->skip;
        if (node != NULL && node->context == context && node->closed && !node->off) {
            plain |= PyTuple_GET_SIZE(node->entries) == 0;
        }
        if (!plain && !is_own(ts)) {
            context = change_greenlet(ts);
            plain = context == NULL;
        }
        if (context != NULL && (!plain || ts->tracing)) {
            return eval_captured(ts, frame, context, state);
        }
    }
    return pass_on(ts, frame, throwflag);
}
