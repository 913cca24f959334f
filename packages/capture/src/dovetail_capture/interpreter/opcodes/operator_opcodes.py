"""Operators, comparisons, subscripts."""

from __future__ import annotations

import dis
from typing import TYPE_CHECKING

from dovetail_capture.interpreter.data_checks.value_checks import opposite
from dovetail_capture.interpreter.machine.decoding import (
    ALWAYS,
    FROM_312,
    UNTIL_311,
    VERSION,
    Handler,
    Instruction,
    Row,
)
from dovetail_capture.interpreter.opcodes.jumps import COMPARE_SHIFT, branch_truth
from dovetail_capture.interpreter.protocols import (
    comparison,
    containment,
    identity,
    operators,
    subscripts,
)
from dovetail_capture.interpreter.values.base import NONE, boolean
from dovetail_capture.interpreter.values.containers import SliceValue

if TYPE_CHECKING:
    from dovetail_capture.interpreter.machine.frame import Frame

# Operator numbers of BINARY_OP, in the order of CPython's headers (same on all versions).
_SYMBOLS = ("+", "&", "//", "<<", "@", "*", "%", "|", "**", ">>", "-", "/", "^")


def binary_op(frame: Frame, inst: Instruction) -> None:
    stack = frame.stack
    right = stack.pop()
    number = inst.arg
    count = len(_SYMBOLS)
    stack[-1] = operators.binary(
        frame.vm, _SYMBOLS[number % count], stack[-1], right, number >= count
    )


def unary(symbol: str) -> Handler:
    """UNARY_NEGATIVE and its like."""

    def handler(frame: Frame, inst: Instruction) -> None:
        frame.stack.append(operators.unary(frame.vm, symbol, frame.stack.pop()))

    return handler


def unary_not(frame: Frame, inst: Instruction) -> None:
    value = frame.stack.pop()
    truth = frame.vm.truth_of(value)
    frame.stack.append(boolean(not frame.vm.truth(value)) if truth is None else opposite(truth))


def compare_op(frame: Frame, inst: Instruction) -> None:
    right = frame.stack.pop()
    left = frame.stack.pop()
    symbol = dis.cmp_op[inst.arg >> COMPARE_SHIFT]
    result = comparison.compare(frame.vm, symbol, left, right)
    if VERSION >= (3, 13) and inst.arg & 16:
        result = boolean(branch_truth(frame, result))
    frame.stack.append(result)


def is_op(frame: Frame, inst: Instruction) -> None:
    right = frame.stack.pop()
    left = frame.stack.pop()
    frame.stack.append(boolean(identity.is_object(frame.vm, left, right) != bool(inst.arg)))


def contains_op(frame: Frame, inst: Instruction) -> None:
    container = frame.stack.pop()
    item = frame.stack.pop()
    found = containment.contains(frame.vm, container, item)
    frame.stack.append(boolean(found != bool(inst.arg)))


def binary_subscr(frame: Frame, inst: Instruction) -> None:
    key = frame.stack.pop()
    frame.stack.append(subscripts.getitem(frame.vm, frame.stack.pop(), key))


def store_subscr(frame: Frame, inst: Instruction) -> None:
    key = frame.stack.pop()
    obj = frame.stack.pop()
    subscripts.setitem(frame.vm, obj, key, frame.stack.pop())


def delete_subscr(frame: Frame, inst: Instruction) -> None:
    key = frame.stack.pop()
    subscripts.delitem(frame.vm, frame.stack.pop(), key)


def binary_slice(frame: Frame, inst: Instruction) -> None:
    stop = frame.stack.pop()
    start = frame.stack.pop()
    key = SliceValue(start, stop, NONE)
    frame.stack.append(subscripts.getitem(frame.vm, frame.stack.pop(), key))


def store_slice(frame: Frame, inst: Instruction) -> None:
    stop = frame.stack.pop()
    start = frame.stack.pop()
    obj = frame.stack.pop()
    key = SliceValue(start, stop, NONE)
    subscripts.setitem(frame.vm, obj, key, frame.stack.pop())


ROWS = (
    Row("BINARY_OP", ALWAYS, binary_op),
    Row("UNARY_NEGATIVE", ALWAYS, unary("-")),
    Row("UNARY_POSITIVE", UNTIL_311, unary("+")),
    Row("UNARY_INVERT", ALWAYS, unary("~")),
    Row("UNARY_NOT", ALWAYS, unary_not),
    Row("COMPARE_OP", ALWAYS, compare_op),
    Row("IS_OP", ALWAYS, is_op),
    Row("CONTAINS_OP", ALWAYS, contains_op),
    Row("BINARY_SUBSCR", ALWAYS, binary_subscr),
    Row("STORE_SUBSCR", ALWAYS, store_subscr),
    Row("DELETE_SUBSCR", ALWAYS, delete_subscr),
    Row("BINARY_SLICE", FROM_312, binary_slice),
    Row("STORE_SLICE", FROM_312, store_slice),
)
