/* The types, the thread's state, and switching the hook on and off. */
#pragma once

#include "versions.h"

/* The content of a guard capsule "dovetail.guard.v1": made by dovetail_guards, read here. */
typedef struct {
    uint64_t abi; /* 1 */
    int (*check)(void *ctx, PyObject *const *args, PyObject *func); /* 1 yes, 0 no, -1 error */
    void *ctx;
} DovetailGuard;

typedef struct {
    PyObject_HEAD
    PyObject *guard;          /* the capsule or a Python callable */
    DovetailGuard *native;    /* borrowed from the capsule, or NULL */
    PyCodeObject *code;       /* the replacement */
    PyObject *positional;     /* the replacement with positional parameters only, made on demand */
    PyObject *weakrefs;
} Entry;

struct Node;

typedef struct {
    PyObject_HEAD
    PyObject *callback;       /* callback(code, func, args) on a miss */
    struct Node *nodes;
    PyObject *weakrefs;
} Context;

typedef struct {
    PyCodeObject *code;       /* borrowed: the state dies with its code */
    int skip;                 /* never touch frames of this code, whatever the context */
    struct Node *nodes;
} CodeState;

typedef struct Node {
    Context *context;         /* borrowed: the context unlinks its nodes when it dies */
    CodeState *state;
    PyObject *entries;        /* tuple of Entry */
    int closed;               /* a miss runs the frame plainly: no more entries */
    int off;                  /* and capture is off for whatever the frame calls */
    struct Node *next_of_state;
    struct Node *next_of_context, *previous_of_context;
} Node;

typedef struct {
    PyObject_HEAD
    vectorcallfunc vectorcall;
    PyObject *function;
    Context *context;         /* NULL: the function runs with capture off */
    PyObject *dict;
    PyObject *weakrefs;
} Switched;

typedef struct {
    PyObject_HEAD
    vectorcallfunc vectorcall;
    PyObject *function;
    PyObject *template_;      /* tuple: all arguments; the dynamic ones are None */
    Py_ssize_t dynamic_count;
    Py_ssize_t *dynamic;      /* their positions */
} Bound;

static PyTypeObject EntryType, ContextType, SwitchedType, BoundType;

static __thread Context *active __attribute__((tls_model("initial-exec")));
static __thread int depth __attribute__((tls_model("initial-exec")));
static int users;             /* threads inside a switched-on call */
static int eager_forced;      /* switched-on calls run as if they were not */
static int in_chain;          /* our hook is installed, maybe below another tool's */
static _PyFrameEvalFunction previous_eval;
static Py_ssize_t extra_index = -1;
static PyCodeObject *return_code; /* one RETURN_VALUE */
static PyObject *skip_mark, *off_mark;
static PyObject *on_miss; /* the name of a method */

static PyObject *hook_eval(PyThreadState *ts, _PyInterpreterFrame *frame, int throwflag);

/* ---- installing ----------------------------------------------------------------------------- */

static void
install(void)
{
    PyInterpreterState *interp = PyInterpreterState_Get();
    _PyFrameEvalFunction current = _PyInterpreterState_GetEvalFrameFunc(interp);
    if (current == hook_eval) {
        return;
    }
    /* Another tool's hook on top of ours calls ours: installing again would make the two call
     * each other for ever. Only CPython's own evaluator on top proves that we are out. */
    if (in_chain && current != _PyEval_EvalFrameDefault) {
        return;
    }
    previous_eval = current;
    in_chain = 1;
    _PyInterpreterState_SetEvalFrameFunc(interp, hook_eval);
}

static void
uninstall(void)
{
    PyInterpreterState *interp = PyInterpreterState_Get();
    if (_PyInterpreterState_GetEvalFrameFunc(interp) == hook_eval) {
        _PyInterpreterState_SetEvalFrameFunc(interp, previous_eval);
        in_chain = 0;
    }
}

static inline Context *
switch_to(Context *context)
{
    Context *before = active;
    if (context != NULL && depth++ == 0) {
        if (users++ == 0) {
            install();
        }
#if EXTRA_C_RECURSION
        PyThreadState_Get()->c_recursion_remaining += EXTRA_C_RECURSION;
#endif
    }
    active = context;
    return before;
}

static inline void
switch_back(Context *context, Context *before)
{
    active = before;
    if (context != NULL && --depth == 0) {
#if EXTRA_C_RECURSION
        PyThreadState_Get()->c_recursion_remaining -= EXTRA_C_RECURSION;
#endif
        if (--users == 0) {
            uninstall();
        }
    }
}
