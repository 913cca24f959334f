"""Jumps, loops, returns."""

from __future__ import annotations

import dis
import types
from collections.abc import Callable
from typing import TYPE_CHECKING

from dovetail_capture.interpreter.changes.late_reads import no_changes
from dovetail_capture.interpreter.machine.decoding import (
    ALWAYS,
    FROM_312,
    FROM_313,
    UNTIL_311,
    VERSION,
    Handler,
    Instruction,
    Row,
)
from dovetail_capture.interpreter.machine.frame import RETURN
from dovetail_capture.interpreter.opcodes.names import constant_value, nothing
from dovetail_capture.interpreter.protocols import comparison, resumed_iterators
from dovetail_capture.interpreter.signals import GraphBreakSignal
from dovetail_capture.interpreter.values.base import Constant, Lazy, Value, boolean, is_none
from dovetail_capture.interpreter.values.containers import SliceValue
from dovetail_capture.interpreter.values.functions import HeldIterator, IteratorValue, NativeMethod
from dovetail_capture.interpreter.values.objects import ProgramException
from dovetail_capture.interpreter.values.tensors import ArrayValue, TensorValue, TruthOf

if TYPE_CHECKING:
    from dovetail_capture.interpreter.machine.frame import Frame

# END_FOR (and on 3.13 the POP_TOP behind it) are skipped when a loop ends.
_AFTER_LOOP = {(3, 11): 0, (3, 12): 1, (3, 13): 2}[VERSION]


def jump(frame: Frame, inst: Instruction) -> None:
    frame.next_index = inst.target


def _is_none(frame: Frame, value: Value) -> bool:
    return is_none(value)


def branch_truth(frame: Frame, value: Value) -> bool:
    """The truth of what a jump asks for. Where only data tells it and one way raises, the graph
    checks it."""
    vm = frame.vm
    depends = vm.depends_on_data(value)
    if not depends and not isinstance(value, (TensorValue, TruthOf, ArrayValue)):
        return vm.truth(value)
    if vm.handles_exceptions():
        return vm.truth(value)
    wanted = _must_be(frame)
    if wanted is None:
        return _one_of_several(frame, value)
    if vm.check_later((value, wanted)) or (depends and vm.require(value, wanted)):
        return wanted
    return vm.truth(value)


def _one_of_several(frame: Frame, value: Value) -> bool:
    """The truth of the first of the conditions of which one has to hold, as in `assert a or b`: the
    others are computed, too, which must change nothing, and the graph checks that one does."""
    vm, jump, place = frame.vm, frame.current, frame.next_index
    asks = _asks_on(frame.decoded.instructions, _jump_of(frame))
    if asks is None or not vm.session.checks.allowed:
        return vm.truth(value)
    conditions, satisfied = [(value, not asks)], False
    try:
        held = [item for one in vm.frames for item in (*one.slots, *one.stack, *one.closure)]
        with no_changes(vm, held, _CHANGES):
            start: int | None = _targets(_jump_of(frame))[asks]
            while start is not None and not satisfied:
                condition = _condition_from(frame, start)
                needed = _must_be(frame)
                on = (
                    None
                    if needed is not None
                    else _asks_on(frame.decoded.instructions, frame.current)
                )
                wanted = not on if needed is None else needed
                if isinstance(condition, (TensorValue, TruthOf, ArrayValue)):
                    conditions.append((condition, wanted))
                else:
                    satisfied = vm.truth(condition) is wanted
                start = None if on is None else _targets(frame.current)[on]
    except ProgramException:
        raise GraphBreakSignal(_CHANGES) from None
    finally:
        frame.current, frame.next_index = jump, place
    if satisfied or vm.check_later(*conditions):
        return not asks
    return vm.truth(value)


_CHANGES = "a condition on a tensor's value, with others of which one has to hold"


def _condition_from(frame: Frame, index: int) -> Value:
    """Run the code from here, which only asks something, to its jump, and give what it asks."""
    instructions = frame.decoded.instructions
    while True:
        inst = frame.current = instructions[index]
        frame.next_index = index = index + 1
        if _is_conditional(inst) or inst.opname == "TO_BOOL":
            frame.current = _jump_of(frame)
            return frame.stack.pop()  # type: ignore[no-any-return]
        if inst.opname == "COMPARE_OP":  # from 3.13 on, it may want the truth
            right, left = frame.stack.pop(), frame.stack.pop()
            symbol = dis.cmp_op[inst.arg >> COMPARE_SHIFT]
            frame.stack.append(comparison.compare(frame.vm, symbol, left, right))
            continue
        if inst.opname.startswith("CALL"):
            parts = frame.stack[-inst.arg - 2 :]
            if inst.opname != "CALL" or not all(map(_may_be_called, parts)):
                raise GraphBreakSignal(_CHANGES)
        elif inst.opname == "BINARY_SUBSCR" and not isinstance(
            frame.stack[-1], (Constant, SliceValue)
        ):
            raise GraphBreakSignal(_CHANGES)  # on a GPU, an index that is no place ends the process
        inst.handler(frame, inst)


def _may_be_called(part: Value | None) -> bool:
    """Is it, of what a call takes from the stack, a tensor, a constant or a function that only
    looks at tensors?"""
    if isinstance(part, NativeMethod):
        return isinstance(part.receiver, TensorValue) and part.name in _LOOKS
    if isinstance(part, Constant) and callable(part.value):
        written_in_c = not isinstance(part.value, types.FunctionType)
        return written_in_c and getattr(part.value, "__name__", "") in _LOOKS
    return part is None or isinstance(part, (TensorValue, Constant))


_LOOKS = frozenset(
    {"all", "any", "item", "sum", "min", "max", "amin", "amax", "abs", "isnan", "isinf", "isfinite",
     "isclose", "allclose", "equal", "eq", "ne", "lt", "le", "gt", "ge", "logical_not", "numel",
     "logical_and", "logical_or", "dim", "size", "len", "bool", "isinstance", "is_floating_point"}
)  # fmt: skip


def _is_conditional(inst: Instruction) -> bool:
    return "IF_TRUE" in inst.opname or "IF_FALSE" in inst.opname


def _targets(jump: Instruction) -> dict[bool, int]:
    """Where a conditional jump goes, by the truth of the condition."""
    return {"IF_TRUE" in jump.opname: jump.target, "IF_FALSE" in jump.opname: jump.index + 1}


def _asks_on(instructions: list[Instruction], jump: Instruction) -> bool | None:
    """The truth of a jump's condition for which the program asks for another one, that leads to
    where the opposite leads at once, or to others or an exception; None if it does not."""
    if not _is_conditional(jump):
        return None
    targets = _targets(jump)
    for truth in (True, False):
        index = targets[truth]
        while instructions[index].opname.startswith(_ASKS):
            index += 1
        last = instructions[index]
        if not _is_conditional(last) or last.index < jump.index:  # (a loop asks again)
            continue
        further = _targets(last)
        for then, goal in further.items():
            if _is_same_place(instructions, goal, targets[not truth]):
                if _raises(instructions, further[not then]):
                    return truth
                if _asks_on(instructions, last) is (not then):
                    return truth
    return None


def _is_same_place(instructions: list[Instruction], first: int, second: int) -> bool:
    """Is it one place, or do both return the same constant? (Python copies such ends.)"""
    if first == second:
        return True
    ends = [
        [(inst.opname, inst.arg) for inst in instructions[index : index + 2]]
        for index in (first, second)
    ]
    if ends[0][0][0] == "RETURN_CONST":
        return ends[0][0] == ends[1][0]
    return ends[0] == ends[1] and [name for name, _ in ends[0]] == ["LOAD_CONST", "RETURN_VALUE"]


_ASKS = ("LOAD_", "PUSH_NULL", "PRECALL", "CALL", "KW_NAMES", "BUILD_", "EXTENDED_ARG", "BINARY_",
         "NOP", "COPY", "SWAP", "UNARY_", "COMPARE_OP", "IS_OP", "CONTAINS_OP",
         "TO_BOOL")  # fmt: skip
COMPARE_SHIFT = {(3, 11): 0, (3, 12): 4, (3, 13): 5}[VERSION]
# What may stand between a jump and the `raise` that it leads to: the making of the exception.
_MAKES_VALUES = ("LOAD_", "PUSH_NULL", "PRECALL", "CALL", "KW_NAMES", "BUILD_", "FORMAT_",
                 "CONVERT_", "EXTENDED_ARG", "BINARY_", "NOP", "COPY", "SWAP", "STORE_", "POP_TOP",
                 "MAKE_FUNCTION", "LIST_", "DICT_", "UNARY_", "COMPARE_OP", "IS_OP",
                 "CONTAINS_OP")  # fmt: skip


def _must_be(frame: Frame) -> bool | None:
    """What the condition of the jump at hand has to be for the program not to raise there, as in
    `assert condition`; None if both ways go on."""
    instructions = frame.decoded.instructions
    jump = _jump_of(frame)
    if not _is_conditional(jump):
        return None
    targets = _targets(jump)
    raising = [truth for truth, start in targets.items() if _raises(instructions, start)]
    return not raising[0] if len(raising) == 1 else None


def _jump_of(frame: Frame) -> Instruction:
    """The jump that asks for the truth which the current instruction needs."""
    jump = frame.current
    while jump.opname in ("COMPARE_OP", "TO_BOOL", "EXTENDED_ARG"):
        jump = frame.decoded.instructions[jump.index + 1]
    return jump


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
        item = resumed_iterators.next_item(frame.vm, iterator, lazily=stored)
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
