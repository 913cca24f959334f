/* Which entries a code object has in a context: the state in the code's extra slot. */
#pragma once

#include "state.h"

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

/* How CPython keeps the extras of a code object: as PyUnstable_Code_GetExtra, but no call. It is
 * tried on load. */
typedef struct {
    Py_ssize_t count;
    void *slots[];
} Extras;

static inline CodeState *
get_state(PyCodeObject *code)
{
    Extras *extras = code->co_extra;
    return extras == NULL || extras->count <= extra_index ? NULL : extras->slots[extra_index];
}

static int
prove_extras(PyCodeObject *code)
{
    void *extra = NULL;
    int failed = PyUnstable_Code_GetExtra((PyObject *)code, extra_index, &extra) < 0;
    if (!failed && (extra == NULL || get_state(code) != extra)) {
        PyErr_SetString(PyExc_ImportError, "this CPython keeps extras of code objects otherwise");
        failed = 1;
    }
    return failed ? -1 : 0;
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
