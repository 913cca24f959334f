"""Operators, comparisons, subscripts; calls and the making of functions."""

from __future__ import annotations

import dis
from typing import TYPE_CHECKING, Any

from dovetail_capture.interpreter.data_checks.value_checks import opposite
from dovetail_capture.interpreter.machine.decoding import (
    ALWAYS,
    FROM_312,
    FROM_313,
    UNTIL_311,
    UNTIL_312,
    VERSION,
    Handler,
    Instruction,
    Row,
)
from dovetail_capture.interpreter.opcodes.container_opcodes import function_text, is_iterable
from dovetail_capture.interpreter.opcodes.jumps import COMPARE_SHIFT, branch_truth
from dovetail_capture.interpreter.protocols import (
    comparison,
    dicts,
    operators,
    raising,
    sequences,
    subscripts,
)
from dovetail_capture.interpreter.signals import GraphBreakSignal
from dovetail_capture.interpreter.values.base import NONE, Constant, Value, boolean
from dovetail_capture.interpreter.values.containers import DictValue, SliceValue, TupleValue
from dovetail_capture.interpreter.values.functions import FunctionValue, IteratorValue

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
    frame.stack.append(boolean(comparison.is_object(frame.vm, left, right) != bool(inst.arg)))


def contains_op(frame: Frame, inst: Instruction) -> None:
    container = frame.stack.pop()
    item = frame.stack.pop()
    found = subscripts.contains(frame.vm, container, item)
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


def kw_names(frame: Frame, inst: Instruction) -> None:
    frame.kw_names = inst.argval


def call(frame: Frame, inst: Instruction) -> None:
    names, frame.kw_names = frame.kw_names, ()
    _call(frame, inst.arg, names)


def call_kw(frame: Frame, inst: Instruction) -> None:
    names = frame.vm.as_python(frame.stack.pop())
    _call(frame, inst.arg, names)


def _call(frame: Frame, count: int, names: tuple[str, ...]) -> None:
    stack = frame.stack
    args: list[Value] = stack[len(stack) - count :]
    del stack[len(stack) - count :]
    second = stack.pop()
    first = stack.pop()
    if VERSION >= (3, 13):  # callable, self or NULL
        fn, receiver = first, second
    elif first is None:  # NULL, callable
        fn, receiver = second, None
    else:  # method, self
        fn, receiver = first, second
    if receiver is not None:
        args = [receiver, *args]
    kwargs: dict[str, Value] = {}
    if names:
        split = len(args) - len(names)
        kwargs = dict(zip(names, args[split:], strict=True))
        args = args[:split]
    result = frame.vm.call(fn, args, kwargs)
    if isinstance(result, IteratorValue) and not result.born:
        result.born = frame.vm.frames[0].steps
    stack.append(result)


def call_function_ex(frame: Frame, inst: Instruction) -> None:
    stack, vm = frame.stack, frame.vm
    kwargs: dict[str, Value] = {}
    if inst.arg & 1:
        mapping = vm.native(stack.pop())
        if not isinstance(mapping, DictValue):
            raise GraphBreakSignal(f"`**` of {mapping.describe()}")
        for key, value in dicts.items(vm, mapping):
            if not isinstance(key, Constant) or not isinstance(key.value, str):
                vm.raise_error(TypeError, "keywords must be strings")
            assert isinstance(key, Constant)
            kwargs[key.value] = value
    given = stack.pop()
    if VERSION >= (3, 13):
        stack.pop()  # NULL
        fn = stack.pop()
    else:
        fn = stack.pop()
        stack.pop()  # NULL
    if not is_iterable(vm, given):
        text = f"argument after * must be an iterable, not {given.python_type().__name__}"
        vm.raise_error(TypeError, f"{function_text(vm, fn)} {text}")
    stack.append(vm.call(fn, list(vm.iterate(given)), kwargs))


def _set_part(frame: Frame, fn: FunctionValue, flag: int, part: Any) -> None:
    vm = frame.vm
    if flag == 1:
        fn.defaults = tuple(vm.iterate(part))
    elif flag == 2:
        fn.kwdefaults = part
    elif flag == 4:
        fn.annotations = part
    elif flag == 8:
        fn.closure = tuple(vm.iterate(part))  # type: ignore[arg-type]


def make_function(frame: Frame, inst: Instruction) -> None:
    code = frame.stack.pop()
    fn = FunctionValue(code.value, frame.globals_)
    if VERSION < (3, 13):
        for flag in (8, 4, 2, 1):
            if inst.arg & flag:
                _set_part(frame, fn, flag, frame.stack.pop())
    frame.stack.append(fn)


def set_function_attribute(frame: Frame, inst: Instruction) -> None:
    fn = frame.stack.pop()
    _set_part(frame, fn, inst.arg, frame.stack.pop())
    frame.stack.append(fn)


def call_intrinsic_1(frame: Frame, inst: Instruction) -> None:
    value = frame.stack.pop()
    if inst.arg == 5:
        frame.stack.append(operators.unary(frame.vm, "+", value))
    elif inst.arg == 6:
        frame.stack.append(TupleValue(sequences.items(frame.vm, value)))
    elif inst.arg == 3:  # an exception leaves a generator; StopIteration becomes RuntimeError
        if issubclass(value.python_type(), StopIteration):
            raising.raise_for_stop(frame.vm, value)
        frame.stack.append(value)
    else:
        raise GraphBreakSignal(f"the intrinsic {inst.arg} (type parameters, async generators)")


def list_to_tuple(frame: Frame, inst: Instruction) -> None:
    frame.stack.append(TupleValue(sequences.items(frame.vm, frame.stack.pop())))


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
    Row("KW_NAMES", UNTIL_312, kw_names),
    Row("CALL", ALWAYS, call),
    Row("CALL_KW", FROM_313, call_kw),
    Row("CALL_FUNCTION_EX", ALWAYS, call_function_ex),
    Row("MAKE_FUNCTION", ALWAYS, make_function),
    Row("SET_FUNCTION_ATTRIBUTE", FROM_313, set_function_attribute),
    Row("CALL_INTRINSIC_1", FROM_312, call_intrinsic_1),
    Row("LIST_TO_TUPLE", ((3, 11), (3, 11)), list_to_tuple),
)
