"""Instructions that move values between the stack, local slots, cells and constants."""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn

from dovetail_capture.interpreter.machine.decoding import (
    ALWAYS,
    FROM_312,
    FROM_313,
    UNTIL_312,
    Instruction,
    Row,
)
from dovetail_capture.interpreter.values.base import Constant, Lazy, Value
from dovetail_capture.interpreter.values.containers import TupleValue
from dovetail_capture.interpreter.values.functions import CellValue

if TYPE_CHECKING:
    from dovetail_capture.interpreter.machine.frame import Frame


def nothing(frame: Frame, inst: Instruction) -> None:
    """NOP, RESUME, EXTENDED_ARG (folded into its successor) and the like."""


def pop_top(frame: Frame, inst: Instruction) -> None:
    frame.stack.pop()


def push_null(frame: Frame, inst: Instruction) -> None:
    frame.stack.append(None)


def copy(frame: Frame, inst: Instruction) -> None:
    frame.stack.append(frame.stack[-inst.arg])


def swap(frame: Frame, inst: Instruction) -> None:
    stack, depth = frame.stack, inst.arg
    stack[-1], stack[-depth] = stack[-depth], stack[-1]


def load_const(frame: Frame, inst: Instruction) -> None:
    value = inst.cached
    if value is None:
        value = inst.cached = constant_value(inst.argval)
    frame.stack.append(value)


def constant_value(real: object) -> Value:
    """A constant of a code object; tuples are values of their own."""
    if type(real) is tuple:
        return TupleValue([constant_value(item) for item in real])
    return Constant(real)


def _load(frame: Frame, slot: int, name: str) -> Value:
    value = frame.slots[slot]
    if value is None:
        frame.vm.raise_error(
            UnboundLocalError,
            f"cannot access local variable '{name}' where it is not associated with a value",
        )
    if value.__class__ is Lazy:
        value = frame.slots[slot] = frame.vm.wrap(value.real, value.source)
    return value  # type: ignore[no-any-return]


def load_fast(frame: Frame, inst: Instruction) -> None:
    value = frame.slots[inst.arg]
    if value is None or value.__class__ is Lazy:
        value = _load(frame, inst.arg, inst.argval)
    frame.stack.append(value)


def load_fast_and_clear(frame: Frame, inst: Instruction) -> None:
    value = frame.slots[inst.arg]
    if value.__class__ is Lazy:
        value = _load(frame, inst.arg, inst.argval)
    if isinstance(value, CellValue):
        value.set_aside = frame.steps
    frame.stack.append(value)
    frame.slots[inst.arg] = None


def load_fast_load_fast(frame: Frame, inst: Instruction) -> None:
    frame.stack.append(_load(frame, inst.arg >> 4, inst.argval[0]))
    frame.stack.append(_load(frame, inst.arg & 15, inst.argval[1]))


def store_fast(frame: Frame, inst: Instruction) -> None:
    frame.slots[inst.arg] = frame.stack.pop()


def store_fast_load_fast(frame: Frame, inst: Instruction) -> None:
    frame.slots[inst.arg >> 4] = frame.stack.pop()
    frame.stack.append(_load(frame, inst.arg & 15, inst.argval[1]))


def store_fast_store_fast(frame: Frame, inst: Instruction) -> None:
    frame.slots[inst.arg >> 4] = frame.stack.pop()
    frame.slots[inst.arg & 15] = frame.stack.pop()


def delete_fast(frame: Frame, inst: Instruction) -> None:
    if frame.slots[inst.arg] is None:
        _load(frame, inst.arg, inst.argval)  # raises
    frame.slots[inst.arg] = None


def make_cell(frame: Frame, inst: Instruction) -> None:
    frame.slots[inst.arg] = CellValue(frame.slots[inst.arg])


def copy_free_vars(frame: Frame, inst: Instruction) -> None:
    frame.slots[len(frame.slots) - inst.arg :] = frame.closure


def load_closure(frame: Frame, inst: Instruction) -> None:
    frame.stack.append(frame.slots[inst.arg])


def _unbound(frame: Frame, name: str) -> NoReturn:
    if name in frame.code.co_cellvars:
        text = f"cannot access local variable '{name}' where it is not associated with a value"
        frame.vm.raise_error(UnboundLocalError, text)
    text = f"cannot access free variable '{name}' where it is not associated with a value in"
    frame.vm.raise_error(NameError, f"{text} enclosing scope", name=name)


def load_deref(frame: Frame, inst: Instruction) -> None:
    cell = frame.slots[inst.arg]
    if cell.content is None:
        _unbound(frame, inst.argval)
    frame.stack.append(frame.vm.resolve_cell(cell))


def store_deref(frame: Frame, inst: Instruction) -> None:
    cell = frame.slots[inst.arg]
    cell.content = frame.stack.pop()
    cell.mutated = True


def delete_deref(frame: Frame, inst: Instruction) -> None:
    cell = frame.slots[inst.arg]
    if cell.content is None:
        _unbound(frame, inst.argval)
    cell.content = None
    cell.mutated = True


ROWS = (
    Row("CACHE", ALWAYS, nothing),
    Row("NOP", ALWAYS, nothing),
    Row("RESUME", ALWAYS, nothing),
    Row("EXTENDED_ARG", ALWAYS, nothing),
    Row("PRECALL", ((3, 11), (3, 11)), nothing),
    Row("POP_TOP", ALWAYS, pop_top),
    Row("PUSH_NULL", ALWAYS, push_null),
    Row("COPY", ALWAYS, copy),
    Row("SWAP", ALWAYS, swap),
    Row("LOAD_CONST", ALWAYS, load_const),
    Row("LOAD_FAST", ALWAYS, load_fast),
    Row("LOAD_FAST_CHECK", FROM_312, load_fast),
    Row("LOAD_FAST_AND_CLEAR", FROM_312, load_fast_and_clear),
    Row("LOAD_FAST_LOAD_FAST", FROM_313, load_fast_load_fast),
    Row("STORE_FAST", ALWAYS, store_fast),
    Row("STORE_FAST_LOAD_FAST", FROM_313, store_fast_load_fast),
    Row("STORE_FAST_STORE_FAST", FROM_313, store_fast_store_fast),
    Row("DELETE_FAST", ALWAYS, delete_fast),
    Row("MAKE_CELL", ALWAYS, make_cell),
    Row("COPY_FREE_VARS", ALWAYS, copy_free_vars),
    Row("LOAD_CLOSURE", UNTIL_312, load_closure),
    Row("LOAD_DEREF", ALWAYS, load_deref),
    Row("STORE_DEREF", ALWAYS, store_deref),
    Row("DELETE_DEREF", ALWAYS, delete_deref),
)
