"""Kernels for tests of the C++ build, and programs that stand for compilers."""

from __future__ import annotations

import ctypes
from pathlib import Path

from dovetail_runtime.cpp_build import CppFunction
from dovetail_runtime.knobs import Knobs
from dovetail_runtime.plan import CppKernel

HEAD = 'extern "C" void {0}(void* const* p, const int64_t* s, int64_t b, int64_t e) '


def constant(symbol: str, value: int, preamble: str = "") -> CppKernel:
    """A kernel that writes `value` into its first int64 pointer."""
    body = "{ static_cast<int64_t*>(p[0])[0] = helper(); }"
    helper = f"static int64_t helper() {{ return {value}; }}\n"
    return CppKernel(symbol, helper + HEAD.format(symbol) + body, preamble)


def knobs(directory: Path, **more: str) -> Knobs:
    return Knobs.from_environment({"DOVETAIL_CACHE_DIR": str(directory), **more})


def call(function: CppFunction) -> int:
    prototype = ctypes.CFUNCTYPE(
        None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64
    )
    out = (ctypes.c_int64 * 1)()
    pointers = (ctypes.c_void_p * 1)(ctypes.addressof(out))
    prototype(function.address)(ctypes.addressof(pointers), None, 0, 1)
    return out[0]


def compiler(path: Path, body: str) -> str:
    """A program that says it is g++, and does `body` with "$@" and the file "$out"."""
    path.write_text(
        f"""#!/bin/bash
[ "$1" = --version ] && exec g++ --version
out="${{@: -1}}"
{body}
"""
    )
    path.chmod(0o755)
    return str(path)
