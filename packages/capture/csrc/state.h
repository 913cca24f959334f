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

/* A context that is on, and the stack of Python frames on which it was switched on: a greenlet has
 * one of its own. */
typedef struct {
    Context *context;
    _PyStackChunk *stack;
} Activation;

static __thread Context *active __attribute__((tls_model("initial-exec")));
static __thread _PyStackChunk *active_stack __attribute__((tls_model("initial-exec")));
/* Those of greenlets that are within a call while another one's is `active`. */
static __thread Activation *parked __attribute__((tls_model("initial-exec")));
static __thread int parked_count __attribute__((tls_model("initial-exec")));
static __thread int depth __attribute__((tls_model("initial-exec")));
static int users;             /* threads inside a switched-on call */
static int eager_forced;      /* switched-on calls run as if they were not */
static int in_chain;          /* our hook is installed, maybe below another tool's */
static _PyFrameEvalFunction previous_eval;
static Py_ssize_t extra_index = -1;
static PyCodeObject *return_code; /* one RETURN_VALUE */
static PyObject *skip_mark, *off_mark;
static PyObject *on_miss; /* the name of a method */
static PyObject *foreign_callback; /* tells what that hook captures with, None for nothing; or NULL */
static PyObject *foreign_call; /* what calls a switched function where another tool's hook is on */
static PyObject *nothing; /* a function that does nothing */

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

/* Evaluate a frame as if our hook were not there. A tool that puts its hook on top of ours again,
 * while it is also below (torch.compile, in another thread), has seen the frame already. */
static inline PyObject *
pass_on(PyThreadState *ts, _PyInterpreterFrame *frame, int throwflag)
{
    _PyFrameEvalFunction next = previous_eval;
    if (next != _PyEval_EvalFrameDefault
        && _PyInterpreterState_GetEvalFrameFunc(ts->interp) == next) {
        next = _PyEval_EvalFrameDefault;
    }
    return next(ts, frame, throwflag);
}

/* Would another tool's hook see the frames of this thread? */
static inline int
is_foreign(void)
{
    PyInterpreterState *interp = PyInterpreterState_Get();
    _PyFrameEvalFunction current = _PyInterpreterState_GetEvalFrameFunc(interp);
    if (current == hook_eval) {
        current = previous_eval;
    }
    return current != _PyEval_EvalFrameDefault;
}

/* ---- greenlets ------------------------------------------------------------------------------ */

static Py_NO_INLINE int
is_below(PyThreadState *ts, _PyStackChunk *stack)
{
    _PyStackChunk *chunk = ts->datastack_chunk;
    while (chunk != NULL && chunk != stack) {
        chunk = chunk->previous;
    }
    return chunk == stack;
}

/* Was the active context switched on by the greenlet that runs? */
static inline int
is_own(PyThreadState *ts)
{
    return active_stack == ts->datastack_chunk || is_below(ts, active_stack);
}

/* Set the active context of another greenlet aside. */
static void
park(void)
{
    Activation *more = PyMem_Realloc(parked, (parked_count + 1) * sizeof(Activation));
    if (more != NULL) { /* else its frames run plainly */
        parked = more;
        parked[parked_count++] = (Activation){(Context *)Py_NewRef(active), active_stack};
    }
}

static void
drop_parked(int place)
{
    Context *context = parked[place].context;
    parked[place] = parked[--parked_count];
    if (parked_count == 0) {
        PyMem_Free(parked);
        parked = NULL;
    }
    Py_DECREF(context); /* last: it may run any code */
}

static int
own_parked(PyThreadState *ts)
{
    for (int place = 0; place < parked_count; place++) {
        if (is_below(ts, parked[place].stack)) {
            return place;
        }
    }
    return -1;
}

/* Another greenlet's context is active: find that of the one that runs. */
static Py_NO_INLINE Context *
change_greenlet(PyThreadState *ts)
{
    int place = own_parked(ts);
    if (place < 0) {
        return NULL;
    }
    Activation own = parked[place];
    Context *other = (Context *)Py_NewRef(active);
    parked[place] = (Activation){other, active_stack};
    active = own.context; /* which its call keeps alive */
    active_stack = own.stack;
    Py_DECREF(own.context);
    return active;
}

/* Make a context active again, or none, after a call that greenlets may have been changed in. */
static inline void
activate(PyThreadState *ts, Context *context, _PyStackChunk *stack)
{
    if (active != NULL && !is_own(ts)) {
        park();
    }
    active = context;
    active_stack = stack;
}

static inline Activation
switch_to(Context *context)
{
    PyThreadState *ts = PyThreadState_Get();
    if (ts->datastack_chunk == NULL) { /* a greenlet that has run no Python frame yet */
        Py_XDECREF(PyObject_CallNoArgs(nothing));
    }
    if (active != NULL && !is_own(ts) && change_greenlet(ts) == NULL) {
        park();
        active = NULL;
    }
    Activation before = {active, active_stack};
    if (context != NULL && depth++ == 0) {
        if (users++ == 0) {
            install();
        }
#if EXTRA_C_RECURSION
        PyThreadState_Get()->c_recursion_remaining += EXTRA_C_RECURSION;
#endif
    }
    active = context;
    active_stack = ts->datastack_chunk;
    return before;
}

static inline void
switch_back(Context *context, Activation before)
{
    PyThreadState *ts = PyThreadState_Get();
    if (parked_count == 0) {
        active = before.context;
        active_stack = before.stack;
    }
    else {
        int place = own_parked(ts);
        if (place >= 0) {
            drop_parked(place);
        }
        activate(ts, before.context, before.stack);
        if (active == NULL && parked_count > 0) {
            active = parked[0].context;
            active_stack = parked[0].stack;
            drop_parked(0);
        }
    }
    if (context != NULL && --depth == 0) {
#if EXTRA_C_RECURSION
        PyThreadState_Get()->c_recursion_remaining -= EXTRA_C_RECURSION;
#endif
        active = NULL;
        while (parked_count > 0) {
            drop_parked(0);
        }
        if (--users == 0) {
            uninstall();
        }
    }
}
