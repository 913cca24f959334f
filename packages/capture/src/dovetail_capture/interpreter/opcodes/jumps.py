"""Jumps, loops, returns."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from dovetail_capture.interpreter.bytecode import VERSION, Instruction
from dovetail_capture.interpreter.frame import RETURN
from dovetail_capture.interpreter.opcodes.rows import (
    ALWAYS,
    FROM_312,
    FROM_313,
    UNTIL_311,
    Handler,
    Row,
)
from dovetail_capture.interpreter.opcodes.stack import constant_value, nothing
from dovetail_capture.interpreter.protocols import held_iterators
from dovetail_capture.interpreter.values.arrays import ArrayValue
from dovetail_capture.interpreter.values.base import Constant, Lazy, Value, boolean
from dovetail_capture.interpreter.values.checks import TruthOf
from dovetail_capture.interpreter.values.functions import HeldIterator, IteratorValue
from dovetail_capture.interpreter.values.tensors import TensorValue

if TYPE_CHECKING:
    from dovetail_capture.interpreter.frame import Frame

# END_FOR (and on 3.13 the POP_TOP behind it) are skipped when a loop ends.
_AFTER_LOOP = {(3, 11): 0, (3, 12): 1, (3, 13): 2}[VERSION]


def jump(frame: Frame, inst: Instruction) -> None:
    frame.next_index = inst.target


def _is_none(frame: Frame, value: Value) -> bool:
    return isinstance(value, Constant) and value.value is None


def branch_truth(frame: Frame, value: Value) -> bool:
    """The truth of what a jump asks for. Where only data tells it and one way raises, the graph
    checks it."""
    vm = frame.vm
    depends = vm.depends_on_data(value)
    if not depends and not isinstance(value, (TensorValue, TruthOf, ArrayValue)):
        return vm.truth(value)
    wanted = _must_be(frame)
    if wanted is None or vm.handles_exceptions():
        return vm.truth(value)
    if vm.check_later(value, wanted) or (vm.depends_on_data(value) and vm.require(value, wanted)):
        return wanted
    return vm.truth(value)


# What may stand between a jump and the `raise` that it leads to: the making of the exception.
_MAKES_VALUES = ("LOAD_", "PUSH_NULL", "PRECALL", "CALL", "KW_NAMES", "BUILD_", "FORMAT_",
                 "CONVERT_", "EXTENDED_ARG", "BINARY_", "NOP", "COPY", "SWAP", "STORE_", "POP_TOP",
                 "MAKE_FUNCTION", "LIST_", "DICT_", "UNARY_", "COMPARE_OP", "IS_OP",
                 "CONTAINS_OP")  # fmt: skip


def _must_be(frame: Frame) -> bool | None:
    """What the condition of the jump at hand has to be for the program not to raise there, as in
    `assert condition`; None if both ways go on."""
    instructions = frame.decoded.instructions
    jump = frame.current
    while jump.opname in ("COMPARE_OP", "TO_BOOL", "EXTENDED_ARG"):
        jump = instructions[jump.index + 1]
    if "IF_TRUE" not in jump.opname and "IF_FALSE" not in jump.opname:
        return None
    ways = {"IF_TRUE" in jump.opname: jump.target, "IF_FALSE" in jump.opname: jump.index + 1}
    raising = [truth for truth, start in ways.items() if _raises(instructions, start)]
    return not raising[0] if len(raising) == 1 else None


def _raises(instructions: list[Instruction], index: int) -> bool:
    """Does the code from here on only make an exception and raise it?"""
    while instructions[index].opname.startswith(_MAKES_VALUES):
        index += 1
    return instructions[index].opname == "RAISE_VARARGS"


def pop_jump_if(test: Callable[[Frame, Value], bool], wanted: bool) -> Handler:
    """Pop a value; jump if the test of it is as wanted."""

    def handler(frame: Frame, inst: Instruction) -> None:
        if test(frame, frame.stack.pop()) is wanted:
            frame.next_index = inst.target

    return handler


def jump_or_pop(wanted: bool) -> Handler:
    """Jump and keep the value if its truth is as wanted, else pop it."""

    def handler(frame: Frame, inst: Instruction) -> None:
        if frame.vm.truth(frame.stack[-1]) is wanted:
            frame.next_index = inst.target
        else:
            frame.stack.pop()

    return handler


def for_iter(frame: Frame, inst: Instruction) -> None:
    iterator = frame.stack[-1]
    item: Value | Lazy | None
    if isinstance(iterator, HeldIterator):
        stored = frame.decoded.instructions[frame.next_index].opname == "STORE_FAST"
        item = held_iterators.next_item(frame.vm, iterator, lazily=stored)
    else:
        item = frame.vm.next_value(iterator)
    if item is None:
        frame.stack.pop()
        frame.next_index = inst.target + _AFTER_LOOP
    else:
        frame.stack.append(item)


def end_for(frame: Frame, inst: Instruction) -> None:
    raise AssertionError("END_FOR is jumped over")


def get_iter(frame: Frame, inst: Instruction) -> None:
    iterator = frame.vm.get_iter(frame.stack.pop())
    if isinstance(iterator, IteratorValue) and not iterator.born:
        iterator.born = frame.vm.frames[0].steps
    frame.stack.append(iterator)


def return_value(frame: Frame, inst: Instruction) -> int:
    frame.result = frame.stack.pop()
    return RETURN


def return_const(frame: Frame, inst: Instruction) -> int:
    frame.result = constant_value(inst.argval)
    return RETURN


def to_bool(frame: Frame, inst: Instruction) -> None:
    value = frame.stack.pop()
    negated = frame.decoded.instructions[inst.index + 1].opname == "UNARY_NOT"
    truth = frame.vm.truth_of(value) if negated else None
    frame.stack.append(boolean(branch_truth(frame, value)) if truth is None else truth)


def _conditional(names: str) -> tuple[Row, ...]:
    rows = []
    for test, suffix, wanted in (
        (branch_truth, "IF_TRUE", True),
        (branch_truth, "IF_FALSE", False),
        (_is_none, "IF_NONE", True),
        (_is_none, "IF_NOT_NONE", False),
    ):
        versions = UNTIL_311 if names != "POP_JUMP" else FROM_312
        rows.append(Row(f"{names}_{suffix}", versions, pop_jump_if(test, wanted)))
    return tuple(rows)


ROWS = (
    Row("JUMP_FORWARD", ALWAYS, jump),
    Row("JUMP_BACKWARD", ALWAYS, jump),
    Row("JUMP_BACKWARD_NO_INTERRUPT", ALWAYS, jump),
    *_conditional("POP_JUMP_FORWARD"),
    *_conditional("POP_JUMP_BACKWARD"),
    *_conditional("POP_JUMP"),
    Row("JUMP_IF_FALSE_OR_POP", UNTIL_311, jump_or_pop(False)),
    Row("JUMP_IF_TRUE_OR_POP", UNTIL_311, jump_or_pop(True)),
    Row("FOR_ITER", ALWAYS, for_iter),
    Row("END_FOR", FROM_312, end_for),
    Row("GET_ITER", ALWAYS, get_iter),
    Row("RETURN_VALUE", ALWAYS, return_value),
    Row("RETURN_CONST", FROM_312, return_const),
    Row("TO_BOOL", FROM_313, to_bool),
    Row("INTERPRETER_EXIT", FROM_312, nothing),
    Row("ENTER_EXECUTOR", FROM_313, nothing),
    Row("EXIT_INIT_CHECK", FROM_313, nothing),
)
