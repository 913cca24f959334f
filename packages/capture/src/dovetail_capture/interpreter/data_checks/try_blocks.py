"""What the `try` and `with` blocks of a program do with an exception that is raised in them.

Told by their code, for each frame under interpretation: nothing of the program's runs. An exception
is "caught" by an `except` clause, or by a block that may keep it, and the frame goes on; a
`finally` has "noticed" it and lets it pass. Clauses that are for other exceptions than operations
raise for their data are met "perhaps": any operation may raise, for want of memory, say.
"""

from __future__ import annotations

import builtins
import contextlib
import dis
import types
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from dovetail_capture.interpreter.machine.frame import GeneratorValue
from dovetail_capture.interpreter.protocols.constants import UNKNOWN
from dovetail_capture.interpreter.protocols.global_variables import global_value
from dovetail_capture.interpreter.values.containers import ListValue
from dovetail_capture.interpreter.values.functions import BoundMethod, FunctionValue
from dovetail_capture.skip import is_skipped

if TYPE_CHECKING:
    from dovetail_capture.interpreter.machine import Interpreter
    from dovetail_capture.interpreter.machine.decoding import DecodedCode, Instruction
    from dovetail_capture.interpreter.machine.frame import Frame
    from dovetail_capture.interpreter.values.base import Value

GRADES = ("", "perhaps", "noticed", "caught")
"""What becomes of an exception, from none of the program's code to that which may stop it."""

# What operations raise for what is in their arguments.
_DATA_ERRORS = (RuntimeError, IndexError, torch.linalg.LinAlgError)  # type: ignore[attr-defined]


def worst(*grades: str) -> str:
    """The last of several grades."""
    return max(grades, key=GRADES.index)


def handles(frame: Frame) -> bool:
    """Is an exception that is raised here handled in the frame, which then goes on? (A `with` block
    and a `finally` let it pass; functions of the standard library give it on, or what they make of
    it.)"""
    if is_skipped(frame.code):
        return False
    decoded = frame.decoded
    for target, _ in handlers_of(decoded, frame.current.index):
        if not _is_with(decoded, target):
            if _has_clauses(decoded.instructions, target + 1) or not _passes(decoded, target):
                return True
    return False


def any_around(vm: Interpreter) -> bool:
    """Might code of the program's see an exception that is raised here?"""
    return any(handlers_of(frame.decoded, frame.current.index) for frame in vm.frames)


def handler_around(vm: Interpreter) -> str:
    """What becomes of an exception that an operation raises here for its data."""
    return worst("", *(_grade(vm, frame, frame.current.index) for frame in vm.frames))


def row_around(vm: Interpreter) -> tuple[tuple[Frame, int], ...]:
    """The `finally` blocks that an exception comes by which is raised here."""
    return tuple(
        (frame, target)
        for frame in vm.frames
        for target, depth in handlers_of(frame.decoded, frame.current.index)
        if _grade_at(vm, frame, target, depth) == "noticed"
    )


def _grade(vm: Interpreter, frame: Frame, index: int) -> str:
    found = ""
    for target, depth in handlers_of(frame.decoded, index):
        found = worst(found, _grade_at(vm, frame, target, depth))
        if found == "caught":
            break
    return found


def _grade_at(vm: Interpreter, frame: Frame, handler: int, depth: int) -> str:
    """That of a handler of a frame. (A `finally` that it begins in is left by other code.)"""
    if not _is_with(frame.decoded, handler):
        grade = _grade_of_try(vm, frame.decoded, frame.globals_, handler)
    else:
        grade = _grade_of_with(vm, frame.stack[depth - 1]) if depth <= len(frame.stack) else ""
    return "" if grade == "noticed" and handler in frame.begun_in else grade


def _is_with(decoded: DecodedCode, handler: int) -> bool:
    return decoded.instructions[handler + 1].opname == "WITH_EXCEPT_START"


def handlers_of(decoded: DecodedCode, index: int) -> list[tuple[int, int]]:
    """Where the handlers begin that an exception of an instruction comes by, the innermost first,
    with the depths of the value stack there. (Ends of handlers, and of generators, are none.)"""
    found: list[tuple[int, int]] = []
    seen: set[int] = set()
    while (entry := decoded.entry_for(index)) is not None and index not in seen:
        seen.add(index)
        index = entry.target
        if decoded.instructions[index].opname == "PUSH_EXC_INFO":
            found.append((index, entry.depth))
    return found


# --- `try` ----------------------------------------------------------------------------------------


def _grade_of_try(
    vm: Interpreter, decoded: DecodedCode, globals_: dict[str, Any], handler: int
) -> str:
    known = vm.session.checks.handlers
    key = (id(decoded), id(globals_), handler)
    if key not in known:
        known[key] = _asked_of_try(vm, decoded, globals_, handler)
    return known[key]


def _asked_of_try(
    vm: Interpreter, decoded: DecodedCode, globals_: dict[str, Any], handler: int
) -> str:
    instructions, at = decoded.instructions, handler + 1
    if not _has_clauses(instructions, at):
        return "noticed" if _passes(decoded, handler) else "caught"
    while at >= 0 and instructions[at].opname != "POP_TOP":  # (a bare `except:` comes last)
        test = _next(instructions, at, ("CHECK_EXC_MATCH", "CHECK_EG_MATCH", "RERAISE"))
        if instructions[test].opname == "RERAISE":  # none of the clauses fits
            return "perhaps"
        classes = _classes(vm, instructions[at:test], globals_)
        if instructions[test].opname != "CHECK_EXC_MATCH" or classes is None:
            break
        if any(issubclass(error, cls) for error in _DATA_ERRORS for cls in classes):
            break
        at = instructions[test + 1].target
    return "caught"


def _has_clauses(instructions: Sequence[Instruction], at: int) -> bool:
    """Does a handler, entered at an instruction, begin with a clause of `except`?"""
    if instructions[at].opname == "POP_TOP":  # a bare one
        return True
    ends = ("CHECK_EXC_MATCH", "CHECK_EG_MATCH", "PUSH_EXC_INFO", "RERAISE")
    end = _next(instructions, at, ends)
    return end > 0 and instructions[end].opname.startswith("CHECK_")


def _next(instructions: Sequence[Instruction], at: int, names: tuple[str, ...]) -> int:
    """The place of the next instruction of one of these names, or -1."""
    return next((i.index for i in instructions[at:] if i.opname in names), -1)


def _passes(decoded: DecodedCode, handler: int) -> bool:
    """Does every way through a `finally` end in raising on? (One that returns, or goes on with a
    loop around it, stops the exception.)"""
    instructions, seen, pending = decoded.instructions, set[int](), [handler + 1]
    while pending:
        at = pending.pop()
        if at in seen or instructions[at].opname in ("RERAISE", "RAISE_VARARGS"):
            continue
        seen.add(at)
        one = instructions[at]
        if one.opname == "POP_EXCEPT" or one.opname.startswith("RETURN_"):
            return False
        if one.target >= 0:
            pending.append(one.target)
        if not (one.opname.startswith("JUMP_") and "IF" not in one.opname):
            pending.append(at + 1)
    return True


def _classes(
    vm: Interpreter, code: Sequence[Instruction], globals_: dict[str, Any]
) -> tuple[type, ...] | None:
    """The classes that a clause is for, where names of the module, of the built-ins, and of modules
    say so; None if others do."""
    stack: list[Any] = []
    for one in code:
        match one.opname:
            case "LOAD_GLOBAL":
                stack.append(_global(vm, one.argval, globals_))
            case "LOAD_ATTR":
                base = vm.as_python(stack.pop())
                if not isinstance(base, types.ModuleType) or one.argval not in vars(base):
                    return None
                stack.append(vm.get_attr(vm.held(base), one.argval))
            case "BUILD_TUPLE":
                start = len(stack) - one.arg
                stack[start:] = [tuple(stack[start:])]
            case "EXTENDED_ARG" | "CACHE" | "NOP":
                continue
            case _:
                return None
        if stack[-1] is None:
            return None
    (found,) = stack
    parts: tuple[Any, ...] = found if isinstance(found, tuple) else (found,)
    reals = [vm.as_python(part) if not isinstance(part, tuple) else UNKNOWN for part in parts]
    flat = [cls for real in reals for cls in (real if isinstance(real, tuple) else (real,))]
    return tuple(flat) if all(isinstance(cls, type) for cls in flat) else None


def _global(vm: Interpreter, name: str, globals_: dict[str, Any]) -> Value | None:
    """The value of a global name; None where there is none."""
    written = vm.session.effects.global_writes.get((id(globals_), name))
    if written is None and name not in globals_ and not hasattr(builtins, name):
        return None
    return global_value(vm, globals_, name)


# --- `with` ---------------------------------------------------------------------------------------


def _grade_of_with(vm: Interpreter, leave: Any) -> str:
    """That of a block with this `__exit__`. (One that lets all pass is left by the way.)"""
    if not isinstance(leave, BoundMethod):
        return ""
    if isinstance(leave.function, FunctionValue):
        return "caught" if _gives_truth(leave.function.code) else ""
    real = vm.as_python(leave.function)
    if real is contextlib._GeneratorContextManager.__exit__:
        grade = _grade_of_generator(vm, vm.get_attr(leave.receiver, "gen"))
        return "" if grade == "noticed" else grade
    if real is contextlib.ExitStack.__exit__:
        return _grade_of_stack(vm, vm.get_attr(leave.receiver, "_exit_callbacks"))
    keeps = isinstance(real, types.FunctionType) and _gives_truth(real.__code__)
    return "caught" if keeps else ""


def _grade_of_stack(vm: Interpreter, callbacks: Value) -> str:
    """That of a `contextlib.ExitStack`, which leaves these blocks, and calls what is to be called
    then, as a `finally` does."""
    if not isinstance(callbacks, ListValue) or callbacks.source is not None:
        return "caught"
    rows = [list(vm.iterate(row)) for row in callbacks.items]
    return worst("", *(_grade_of_call(vm, leave) for _, leave in rows))


def _grade_of_call(vm: Interpreter, leave: Value) -> str:
    """That of what a stack is to call when it is left: a function, or the `__exit__` of a block."""
    if isinstance(leave, BoundMethod):
        return _grade_of_with(vm, leave)
    real = vm.as_python(leave)
    code = leave.code if isinstance(leave, FunctionValue) else getattr(real, "__code__", None)
    return "noticed" if code is not None and not _gives_truth(code) else "caught"


def _grade_of_generator(vm: Interpreter, generator: Value) -> str:
    """What becomes of an exception that is thrown into a generator where it waits."""
    if isinstance(generator, GeneratorValue):
        frame = generator.frame
        grade = _grade(vm, frame, frame.current.index)
        inner = "" if frame.delegation() is None else _grade_of_generator(vm, frame.stack[-1])
        return worst(grade, inner)
    real = getattr(generator, "real", None)
    if not isinstance(real, types.GeneratorType) or generator.source is None:
        return "caught"
    code, sources = real.gi_code, vm.session.sources
    vm.session.guards.pin(sources.attr(generator.source, "gi_code"), code)
    decoded, globals_ = vm.decode(code), real.gi_frame.f_globals if real.gi_frame else {}
    found = ""
    for one in decoded.instructions:  # (another one of this code may wait at another `yield`)
        if one.opname == "SEND":
            return "caught"
        for target, _ in handlers_of(decoded, one.index) if one.opname == "YIELD_VALUE" else ():
            if _is_with(decoded, target):
                return "caught"  # the block that it waits in is not to be seen
            found = worst(found, _grade_of_try(vm, decoded, globals_, target))
    return found


def _gives_truth(code: types.CodeType) -> bool:
    """May a function return anything but None and False?"""
    before = ""
    for instruction in dis.get_instructions(code):
        if instruction.opname == "RETURN_VALUE" and before != "LOAD_CONST None or False":
            return True
        if instruction.opname == "RETURN_CONST" and instruction.argval not in (None, False):
            return True
        given = instruction.opname == "LOAD_CONST" and instruction.argval in (None, False)
        before = "LOAD_CONST None or False" if given else instruction.opname
    return False
