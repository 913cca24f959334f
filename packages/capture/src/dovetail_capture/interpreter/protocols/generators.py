"""Interpreted generators: resumed, thrown into, and dropped while they wait."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dovetail_capture.interpreter.machine import decoding
from dovetail_capture.interpreter.machine.frame import (
    MAKE_GENERATOR,
    YIELD,
    Frame,
    GeneratorValue,
    lets_generator_exit_pass,
)
from dovetail_capture.interpreter.protocols import raising
from dovetail_capture.interpreter.signals import CannotRebuild, GraphBreakSignal
from dovetail_capture.interpreter.values.base import NONE, Constant, Value, is_none
from dovetail_capture.interpreter.values.objects import ObjectValue, ProgramException

if TYPE_CHECKING:
    from dovetail_capture.interpreter.machine import Interpreter


def resume(vm: Interpreter, generator: GeneratorValue, sent: Value | None) -> Value | None:
    """Run a generator to its next value; None when it ends (its frame's result is then what
    it returned)."""
    if generator.finished:
        generator.frame.result = NONE
        return None
    if generator.running:
        vm.raise_error(ValueError, "generator already executing")
    if not generator.started and sent is not None and not is_none(sent):
        if not isinstance(sent, Constant) or sent.value is not None:
            text = "can't send non-None value to a just-started generator"
            vm.raise_error(TypeError, text)
    frame = generator.frame
    frame.stack.append(sent or NONE)
    generator.started = generator.running = True
    left = 0
    vm.frames.append(frame)
    try:
        left = _run_generator(vm, frame)
    except GraphBreakSignal as signal:
        vm.note_break(signal)
        raise
    finally:
        vm.frames.pop()
        generator.running = False
        if left != YIELD:
            generator.finished = True
    assert left != MAKE_GENERATOR
    return frame.result if left == YIELD else None


def _run_generator(vm: Interpreter, frame: Frame) -> int:
    if decoding.VERSION >= (3, 12):  # an instruction of the generator's does it
        return frame.run()
    try:
        return frame.run()
    except ProgramException as error:
        if issubclass(error.value.python_type(), StopIteration):
            raising.raise_for_stop(vm, error.value)
        raise


def check_generators(vm: Interpreter) -> None:
    """A generator that is dropped while it waits in a `try` or `with` block runs the end of
    the block at that moment, which only Python knows: let Python make it then. (`except`
    clauses for ordinary errors are no such end.)"""
    for generator in vm.generators:
        if not generator.started or generator.finished:
            continue
        frame = generator.frame
        row = frame.decoded.entry_for(frame.current.index)
        while row is not None:
            handles = frame.decoded.instructions[row.target].opname == "PUSH_EXC_INFO"
            if handles and not lets_generator_exit_pass(frame, row.target):
                raise CannotRebuild(
                    f"the generator {frame.code.co_qualname}, waiting in a `try` or `with`,",
                    generator.born,
                )
            row = frame.decoded.entry_for(row.target)


def throw_into(vm: Interpreter, generator: GeneratorValue, error: ObjectValue) -> Value | None:
    """`generator.throw(error)`."""
    frame = generator.frame
    if generator.finished or not generator.started:
        generator.finished = True
        raise ProgramException(error)
    generator.running = True
    left = 0
    vm.frames.append(frame)
    try:
        unhandled: ObjectValue | None = error
        send = frame.delegation()
        if send is not None:
            try:
                item = _throw_on(vm, frame.stack[-1], error)
            except ProgramException as raised:
                assert isinstance(raised.value, ObjectValue)
                unhandled = raised.value
            else:
                if item is not None:
                    left, frame.result = YIELD, item
                    return item
                if not issubclass(error.cls, GeneratorExit):
                    unhandled = None
                    frame.end_delegation(send)
        if unhandled is not None:
            frame.current = frame.decoded.instructions[frame.next_index - 1]
            if frame.handled is not None:  # by the generator, where it waits
                raising.set_context(vm, unhandled, frame.handled)
            if not frame._unwind(ProgramException(unhandled)):
                if issubclass(unhandled.cls, StopIteration):
                    raising.raise_for_stop(vm, unhandled)
                raise ProgramException(unhandled)
        left = _run_generator(vm, frame)
    finally:
        vm.frames.pop()
        generator.running = False
        if left != YIELD:
            generator.finished = True
    return frame.result if left == YIELD else None


def _throw_on(vm: Interpreter, receiver: Value, error: ObjectValue) -> Value | None:
    """Throw into what a generator delegates to, or close it: its next item, if it goes on."""
    if issubclass(error.cls, GeneratorExit):
        close = vm.find_attr(receiver, "close")
        if close is not None:
            vm.call(close, [], {})
        return None
    if isinstance(receiver, GeneratorValue):
        return throw_into(vm, receiver, error)
    if vm.find_attr(receiver, "throw") is not None:
        raise GraphBreakSignal(f"an exception thrown into {receiver.describe()}")
    raise ProgramException(error)
