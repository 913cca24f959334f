// The outputs of a compiled call as nodes of autograd's graph (see `_output_nodes.cpp`).
#pragma once

#include <Python.h>

namespace dovetail {

// Python's functions; what they do and take is told where they are defined.
PyObject* dependencies(PyObject*, PyObject* tensors);
PyObject* output_plan(PyObject*, PyObject* points);
PyObject* give_nodes(PyObject*, PyObject* args);
PyObject* is_output_node(PyObject*, PyObject* object);
PyObject* arrival(PyObject*, PyObject* args);
PyObject* put_above(PyObject*, PyObject* args);
PyObject* redirect(PyObject*, PyObject* args);

} // namespace dovetail
