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
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#if PY_VERSION_HEX < 0x030B0000 || PY_VERSION_HEX >= 0x030E0000
#error "dovetail_capture's frame hook supports CPython 3.11, 3.12 and 3.13 only"
#endif
#ifdef Py_GIL_DISABLED
#error "dovetail_capture's frame hook needs the GIL: free-threaded builds are not supported"
#endif

#define Py_BUILD_CORE 1
#if PY_VERSION_HEX >= 0x030C0000
#undef _PyGC_FINALIZED
#endif
#include <internal/pycore_frame.h>
#include <opcode.h>
#include <structmember.h>

/* ---- what differs between versions ---------------------------------------------------------- */

#if PY_VERSION_HEX < 0x030C0000
#define PyUnstable_Eval_RequestCodeExtraIndex _PyEval_RequestCodeExtraIndex
#define PyUnstable_Code_GetExtra _PyCode_GetExtra
#define PyUnstable_Code_SetExtra _PyCode_SetExtra
#define FRAME_FUNCTION(f) ((PyObject *)(f)->f_func)
#define FRAME_SIZE(co) ((co)->co_nlocalsplus + (co)->co_stacksize + (int)FRAME_SPECIALS_SIZE)
#else
#define FRAME_FUNCTION(f) ((f)->f_funcobj)
#define FRAME_SIZE(co) ((co)->co_framesize)
#endif

#if PY_VERSION_HEX < 0x030D0000
#define FRAME_CODE(f) ((f)->f_code)
#define SET_FRAME_CODE(f, co) ((f)->f_code = (co))
#define AT_START(f, co) ((f)->prev_instr == _PyCode_CODE(co) - 1)
#define GO_TO_START(f, co) ((f)->prev_instr = _PyCode_CODE(co) - 1)
#else
#define FRAME_CODE(f) ((PyCodeObject *)(f)->f_executable)
#define SET_FRAME_CODE(f, co) ((f)->f_executable = (PyObject *)(co))
#define AT_START(f, co) ((f)->instr_ptr == _PyCode_CODE(co))
#define GO_TO_START(f, co) ((f)->instr_ptr = _PyCode_CODE(co))
#endif

/* 3.12 counts C recursion from 1500 and a hooked Python call costs two of it: without more room,
 * Python recursion would die at a depth of about 750 instead of at sys.getrecursionlimit(). */
#if PY_VERSION_HEX >= 0x030C0000 && PY_VERSION_HEX < 0x030D0000
#define EXTRA_C_RECURSION 3000
#else
#define EXTRA_C_RECURSION 0
#endif

#define NOT_ORDINARY (CO_GENERATOR | CO_COROUTINE | CO_ASYNC_GENERATOR | CO_ITERABLE_COROUTINE)
#define MAX_STACK_ARGS 64

/* ---- types ---------------------------------------------------------------------------------- */

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
static int in_chain;          /* our hook is installed, maybe below another tool's */
static _PyFrameEvalFunction previous_eval;
static Py_ssize_t extra_index = -1;
static PyCodeObject *return_code; /* one RETURN_VALUE */
static PyObject *skip_mark, *off_mark;

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

/* ---- nodes ---------------------------------------------------------------------------------- */

static void
unlink_from_context(Node *node)
{
    if (node->previous_of_context != NULL) {
        node->previous_of_context->next_of_context = node->next_of_context;
    }
    else {
        node->context->nodes = node->next_of_context;
    }
    if (node->next_of_context != NULL) {
        node->next_of_context->previous_of_context = node->previous_of_context;
    }
}

static void
unlink_from_state(Node *node)
{
    Node **place = &node->state->nodes;
    while (*place != node) {
        place = &(*place)->next_of_state;
    }
    *place = node->next_of_state;
}

static void
free_node(Node *node)
{
    PyObject *entries = node->entries;
    unlink_from_context(node);
    unlink_from_state(node);
    PyMem_Free(node);
    Py_XDECREF(entries); /* last: it may run any code */
}

/* Called when a code object dies, and with NULL for codes that only other tools marked. */
static void
free_state(void *extra)
{
    CodeState *state = extra;
    if (state == NULL) {
        return;
    }
    while (state->nodes != NULL) {
        free_node(state->nodes);
    }
    PyMem_Free(state);
}

static inline CodeState *
get_state(PyCodeObject *code)
{
    void *extra = NULL;
    if (PyUnstable_Code_GetExtra((PyObject *)code, extra_index, &extra) < 0) {
        PyErr_Clear();
        return NULL;
    }
    return extra;
}

static CodeState *
make_state(PyCodeObject *code)
{
    CodeState *state = get_state(code);
    if (state != NULL) {
        return state;
    }
    state = PyMem_Calloc(1, sizeof(CodeState));
    if (state == NULL) {
        PyErr_NoMemory();
        return NULL;
    }
    state->code = code;
    if (PyUnstable_Code_SetExtra((PyObject *)code, extra_index, state) < 0) {
        PyMem_Free(state);
        return NULL;
    }
    return state;
}

static inline Node *
get_node(CodeState *state, Context *context)
{
    Node *node = state->nodes;
    while (node != NULL && node->context != context) {
        node = node->next_of_state;
    }
    return node;
}

static Node *
make_node(PyCodeObject *code, Context *context)
{
    CodeState *state = make_state(code);
    if (state == NULL) {
        return NULL;
    }
    Node *node = get_node(state, context);
    if (node != NULL) {
        return node;
    }
    PyObject *entries = PyTuple_New(0);
    node = PyMem_Calloc(1, sizeof(Node));
    if (node == NULL || entries == NULL) {
        Py_XDECREF(entries);
        PyMem_Free(node);
        PyErr_NoMemory();
        return NULL;
    }
    node->context = context;
    node->state = state;
    node->entries = entries;
    node->next_of_state = state->nodes;
    state->nodes = node;
    node->next_of_context = context->nodes;
    if (context->nodes != NULL) {
        context->nodes->previous_of_context = node;
    }
    context->nodes = node;
    return node;
}

/* ---- entries -------------------------------------------------------------------------------- */

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
    PyObject_GC_Track(entry);
    return (PyObject *)entry;
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
};

/* ---- running a frame ------------------------------------------------------------------------ */

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
run_entry(PyThreadState *ts, _PyInterpreterFrame *frame, PyCodeObject *code, Entry *entry, int n)
{
    PyCodeObject *new_code = entry->code;
    if (new_code == code) {
        return previous_eval(ts, frame, 0);
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
    PyObject *result = previous_eval(ts, frame, 0);
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
    PyObject *triple[3] = {(PyObject *)code, func, tuple};
    PyObject *answer = PyObject_Vectorcall(context->callback, triple, 3, NULL);
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
        entry = new_entry(code, PyTuple_GET_ITEM(answer, 0), PyTuple_GET_ITEM(answer, 1));
        if (entry != NULL) {
            Py_ssize_t count = PyTuple_GET_SIZE(node->entries);
            PyObject *entries = PyTuple_New(count + 1);
            if (entries == NULL) {
                Py_CLEAR(entry);
            }
            else {
                for (Py_ssize_t i = 0; i < count; i++) {
                    PyTuple_SET_ITEM(entries, i, Py_NewRef(PyTuple_GET_ITEM(node->entries, i)));
                }
                PyTuple_SET_ITEM(entries, count, Py_NewRef(entry));
                Py_SETREF(node->entries, entries);
            }
        }
    }
    else if (node != NULL) {
        PyErr_SetString(PyExc_TypeError,
                        "a frame callback returns (guard, code), an Entry, None, SKIP or OFF");
    }
    Py_DECREF(answer);
    return (Entry *)entry;
}

static PyObject *
run_off(PyThreadState *ts, _PyInterpreterFrame *frame, Context *context)
{
    Py_INCREF(context);
    active = NULL;
    PyObject *result = previous_eval(ts, frame, 0);
    active = context;
    Py_DECREF(context);
    return result;
}

static PyObject *
hook_eval(PyThreadState *ts, _PyInterpreterFrame *frame, int throwflag)
{
    Context *context = active;
    if (context == NULL || throwflag || frame->owner != FRAME_OWNED_BY_THREAD) {
        return previous_eval(ts, frame, throwflag);
    }
    PyCodeObject *code = FRAME_CODE(frame);
    if ((code->co_flags & (NOT_ORDINARY | CO_OPTIMIZED)) != CO_OPTIMIZED || !AT_START(frame, code)) {
        return previous_eval(ts, frame, throwflag);
    }
    CodeState *state = get_state(code);
    Node *node = NULL;
    if (state != NULL) {
        if (state->skip) {
            return previous_eval(ts, frame, throwflag);
        }
        node = get_node(state, context);
        if (node != NULL && node->closed && PyTuple_GET_SIZE(node->entries) == 0) {
            return node->off ? run_off(ts, frame, context) : previous_eval(ts, frame, 0);
        }
    }
    PyObject *func = FRAME_FUNCTION(frame);
    int n = argument_count(code);
    Entry *found = NULL;
    int closed = 0;
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
    active = context;
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
        result = off ? run_off(ts, frame, context) : previous_eval(ts, frame, 0);
    }
    Py_DECREF(context);
    return result;
}

/* ---- Context -------------------------------------------------------------------------------- */

static PyObject *
context_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"callback", NULL};
    PyObject *callback;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O:Context", names, &callback)) {
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

static PyMethodDef context_methods[] = {
    {"entries", (PyCFunction)context_entries, METH_O, "entries(code): this context's entries."},
    {"close", (PyCFunction)context_close, METH_O,
     "close(code): from now on a miss of this code runs plainly; its entries stay."},
    {"is_closed", (PyCFunction)context_is_closed, METH_O, "is_closed(code)"},
    {"reset", (PyCFunction)context_reset, METH_NOARGS, "Forget all entries and marks."},
    {"codes", (PyCFunction)context_codes, METH_NOARGS, "The codes with entries or marks."},
    {NULL},
};

static PyTypeObject ContextType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "dovetail_capture._frame_hook.Context",
    .tp_doc = "Context(callback): entries per code object, and who is asked on a miss.",
    .tp_basicsize = sizeof(Context),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .tp_new = context_new,
    .tp_traverse = (traverseproc)context_traverse,
    .tp_clear = (inquiry)context_clear,
    .tp_dealloc = (destructor)context_dealloc,
    .tp_methods = context_methods,
    .tp_weaklistoffset = offsetof(Context, weakrefs),
};

/* ---- Switched: a function that runs with a context on, or with capture off ------------------ */

static PyObject *
switched_call(PyObject *callable, PyObject *const *args, size_t nargsf, PyObject *kwnames)
{
    Switched *self = (Switched *)callable;
    Context *context = self->context;
    PyObject *function = Py_NewRef(self->function);
    Py_XINCREF(context);
    Context *before = switch_to(context);
    PyObject *result = PyObject_Vectorcall(function, args, nargsf, kwnames);
    switch_back(context, before);
    Py_XDECREF(context);
    Py_DECREF(function);
    return result;
}

static PyObject *
switched_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"function", "context", NULL};
    PyObject *function, *context;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OO:Switched", names, &function, &context)) {
        return NULL;
    }
    if (context != Py_None && !Py_IS_TYPE(context, &ContextType)) {
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

static PyMemberDef switched_members[] = {
    {"__vectorcalloffset__", T_PYSSIZET, offsetof(Switched, vectorcall), READONLY},
    {"function", T_OBJECT, offsetof(Switched, function), READONLY, "what is called"},
    {"context", T_OBJECT, offsetof(Switched, context), READONLY, "the context, or None"},
    {NULL},
};

static PyGetSetDef switched_getset[] = {
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
    .tp_vectorcall_offset = offsetof(Switched, vectorcall),
    .tp_traverse = (traverseproc)switched_traverse,
    .tp_clear = (inquiry)switched_clear,
    .tp_dealloc = (destructor)switched_dealloc,
    .tp_descr_get = switched_get,
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
    Context *before = active;
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
    active = before;
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

/* ---- module --------------------------------------------------------------------------------- */

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

static PyMethodDef functions[] = {
    {"skip_code", hook_skip_code, METH_O, "skip_code(code): never touch frames of this code."},
    {"active", hook_active, METH_NOARGS, "active(): the context that is on in this thread."},
    {"installed", hook_installed, METH_NOARGS, "installed(): is the hook CPython's evaluator now?"},
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
    if (extra_index < 0 || return_code == NULL || skip_mark == NULL
        || off_mark == NULL || PyType_Ready(&EntryType) < 0
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
