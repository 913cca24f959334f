"""Lines of captured code, told to tools that measure coverage.

Where such a tool looks on, replacement code visits the lines that the interpreter went through:
functions of the program's files and names, with nothing in them but these lines. A debugger is told
of none: it would stop in them.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from types import CodeType, FunctionType
from typing import Any

from dovetail_capture._frame_hook import skip_code
from dovetail_capture.recipe import CallFunction, Const, Effect, RunCall
from dovetail_capture.skip import is_skipped_file

# Offsets of instructions, in bytes, by the ids of their codes (whose hashes take long to compute).
Offsets = dict[int, tuple[CodeType, set[int]]]
_TOOLS = ("coverage", "trace")  # modules whose tracers count lines


def is_measured() -> bool:
    """Does a tool that measures coverage look on in this thread?"""
    monitoring: Any = getattr(sys, "monitoring", None)
    if monitoring is not None and monitoring.get_tool(monitoring.COVERAGE_ID) is not None:
        return True
    tracer = sys.gettrace()
    if tracer is None:
        return False
    module = str(type(getattr(tracer, "__self__", tracer)).__module__)
    return module.partition(".")[0] in _TOOLS


def visits(offsets: Offsets) -> list[Effect]:
    """Effects that visit the lines of these instructions."""
    found: list[Effect] = []
    for code, reached in offsets.values():
        lines = {
            line
            for start, end, line in code.co_lines()
            if line is not None and not reached.isdisjoint(range(start, end, 2))
        }
        if lines and not is_skipped_file(code.co_filename):
            found.append(RunCall(CallFunction(Const(_visitor(code, lines)))))
    return found


def _visitor(code: CodeType, lines: Iterable[int]) -> FunctionType:
    """A function of the code's file and name that goes through these lines and does nothing."""
    first = code.co_firstlineno
    body = sorted(line for line in lines if line > first)
    text = ["\n" * (first - 1) + "def visit():" + ("" if body else " pass")]
    text += [" pass" if line in body else "" for line in range(first + 1, max(body, default=0) + 1)]
    # (The standard library's `trace` asks a frame's globals for its file.)
    scope: dict[str, Any] = {"__file__": code.co_filename, "__name__": "visited"}
    exec(compile("\n".join(text), code.co_filename, "exec"), scope)
    visit: FunctionType = scope["visit"]
    visit.__code__ = visit.__code__.replace(co_name=code.co_name, co_qualname=code.co_qualname)
    skip_code(visit.__code__)
    return visit
