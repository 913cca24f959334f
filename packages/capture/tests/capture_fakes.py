"""Fake neighbours: frames captured by hand, and a capture that stops before every instruction."""

from __future__ import annotations

import dis
from types import CodeType, FunctionType
from typing import Any

from dovetail_capture.captured_frame import AfterGraph, CapturedFrame, GraphBreak
from dovetail_capture.frames.context import CaptureContext
from dovetail_capture.options import CaptureOptions
from dovetail_capture.recipe import Fetch, FrameEnd, HandledHere, NewCell, Recipe
from dovetail_guards.evaluate import FrameView, argument_names
from dovetail_guards.guard_set import GuardSet
from dovetail_guards.source import LocalSource


def slow_guard(guards: GuardSet, code: CodeType) -> Any:
    """A guard that the hook calls as a Python function: needs no native part."""
    return lambda args, func: guards.check_slow(FrameView(args, func))


class SingleStepper:
    """Captures nothing and breaks before the next instruction, whatever it is.

    So a function runs one native instruction at a time, each followed by a continuation: whatever
    the steps and continuations get wrong shows as a difference to the plain function.
    """

    def __init__(self) -> None:
        self.stops = 0

    def __call__(
        self, code: CodeType, func: FunctionType, args: Any, *, options: CaptureOptions
    ) -> CapturedFrame:
        self.stops += 1
        end = self.next_end(code)
        break_ = GraphBreak("step", code.co_filename, code.co_firstlineno, "", "none")
        return CapturedFrame(code, None, (), GuardSet(), AfterGraph((), end, break_))

    def next_end(self, code: CodeType) -> FrameEnd:
        instructions = list(dis.get_instructions(code))
        index = next(i for i, ins in enumerate(instructions) if ins.opname == "RESUME") + 1
        names = argument_names(code)
        stack: list[Recipe | None] = []
        if ".k" in "".join(names) or any(n.startswith(".s") for n in names) or _jumps(code):
            stacked = iter([n for n in names if n.startswith(".s")])
            while instructions[index].opname != "JUMP_FORWARD":
                name = instructions[index].opname
                if name == "PUSH_NULL":
                    stack.append(None)
                elif name == "PUSH_EXC_INFO":
                    stack[-1] = HandledHere(stack[-1])
                elif name == "COPY":
                    stack.append(HandledHere(None))
                elif name in ("POP_TOP", "DELETE_FAST"):
                    pass  # follows PUSH_EXC_INFO, or LOAD_FAST
                elif name == "LOAD_FAST":
                    stack.append(Fetch(LocalSource(next(stacked))))
                else:
                    assert name == "EXTENDED_ARG"
                index += 1
            offset = instructions[index].argval
            index = next(i for i, ins in enumerate(instructions) if ins.offset == offset)
        locals_ = tuple(
            (name, Fetch(LocalSource(name)))
            for name in names
            if not name.startswith(".s") and name not in code.co_cellvars
        )
        cells = tuple(
            (name, NewCell(Fetch(LocalSource(name)) if name in names else None))
            for name in code.co_cellvars
        )
        return FrameEnd(break_index=index, stack=tuple(stack), locals_=locals_, cells=cells)


def _jumps(code: CodeType) -> bool:
    """Does the code start with a continuation's prologue without stack values?"""
    names = [ins.opname for ins in dis.get_instructions(code)]
    place = names.index("RESUME")
    while names[place + 1] in ("PUSH_NULL", "EXTENDED_ARG", "COPY"):
        place += 1
    return names[place + 1] == "JUMP_FORWARD"


def context_of(capture: Any, backend: Any = None, **kwargs: Any) -> CaptureContext:
    """A context with the Python guard and a backend that runs graphs as they are."""
    return CaptureContext(
        backend or (lambda gm, inputs: gm.forward), capture, compile_guards=slow_guard, **kwargs
    )
