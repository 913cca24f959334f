"""Calls and the making of functions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dovetail_capture.interpreter.machine.decoding import (
    ALWAYS,
    FROM_312,
    FROM_313,
    UNTIL_312,
    VERSION,
    Instruction,
    Row,
)
from dovetail_capture.interpreter.opcodes.container_opcodes import function_text, is_iterable
from dovetail_capture.interpreter.protocols import dicts, raising, sequences
from dovetail_capture.interpreter.protocols.operators import unary
from dovetail_capture.interpreter.signals import GraphBreakSignal
from dovetail_capture.interpreter.values.base import Constant, Value
from dovetail_capture.interpreter.values.containers import DictValue, TupleValue
from dovetail_capture.interpreter.values.functions import FunctionValue, IteratorValue

if TYPE_CHECKING:
    from dovetail_capture.interpreter.machine.frame import Frame


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
        frame.stack.append(unary(frame.vm, "+", value))
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
    Row("KW_NAMES", UNTIL_312, kw_names),
    Row("CALL", ALWAYS, call),
    Row("CALL_KW", FROM_313, call_kw),
    Row("CALL_FUNCTION_EX", ALWAYS, call_function_ex),
    Row("MAKE_FUNCTION", ALWAYS, make_function),
    Row("SET_FUNCTION_ATTRIBUTE", FROM_313, set_function_attribute),
    Row("CALL_INTRINSIC_1", FROM_312, call_intrinsic_1),
    Row("LIST_TO_TUPLE", ((3, 11), (3, 11)), list_to_tuple),
)
