/* CPython's headers, and what differs between its versions. */
#pragma once

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
