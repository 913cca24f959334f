"""Exceptions of the program: making them, and what they know when they are raised."""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn

from dovetail_guards.torch_state import READERS

from dovetail_capture.interpreter.protocols import attributes, class_attributes
from dovetail_capture.interpreter.signals import GraphBreakSignal
from dovetail_capture.interpreter.values.base import NONE, Constant, Value
from dovetail_capture.interpreter.values.containers import TupleValue
from dovetail_capture.interpreter.values.functions import TracebackValue
from dovetail_capture.interpreter.values.objects import ObjectValue, ProgramException

if TYPE_CHECKING:
    from dovetail_capture.interpreter.machine import Interpreter


def raise_exception(vm: Interpreter, cls: type, args: list[Value]) -> NoReturn:
    """Raise `cls(*args)` in the program."""
    value = ObjectValue(cls)
    value.base_new = cls
    value.slots["args"] = TupleValue(args)
    if issubclass(cls, StopIteration):
        value.slots["value"] = args[0] if args else NONE
    note_context(vm, value)
    raise ProgramException(value)


def raise_error(
    vm: Interpreter, cls: type, text: str, name: str | None = None, obj: Value | None = None
) -> NoReturn:
    """Raise `cls(text)` in the program, with what is set of the fields `name` and `obj`."""
    class_attributes.read_names_in(vm, text)
    try:
        raise_exception(vm, cls, [Constant(text)])
    except ProgramException as error:
        assert isinstance(error.value, ObjectValue)
        if name is not None:
            error.value.slots["name"] = Constant(name)
        if obj is not None:
            error.value.slots["obj"] = obj
        raise


def raise_for_stop(vm: Interpreter, stop: Value) -> NoReturn:
    """Raise what a generator raises that lets a StopIteration out."""
    try:
        raise_error(vm, RuntimeError, "generator raised StopIteration")
    except ProgramException as error:
        assert isinstance(error.value, ObjectValue)
        error.value.slots.update(__cause__=stop, __context__=stop)
        error.value.slots["__suppress_context__"] = Constant(True)
        raise


def as_exception(vm: Interpreter, value: Value, what: str = "exceptions") -> ObjectValue:
    """What `raise value` raises."""
    if isinstance(value, Constant) and isinstance(value.value, type):
        if BaseException in value.value.__mro__:
            value = vm.call(value, [], {})
    if not isinstance(value, ObjectValue) or BaseException not in value.cls.__mro__:
        raise_error(vm, TypeError, f"{what} must derive from BaseException")
    assert isinstance(value, ObjectValue)
    return value


def note_context(vm: Interpreter, error: ObjectValue) -> None:
    """Set what an exception knows when it is raised: the exception being handled, the place."""
    handled = _handled(vm)
    if handled is not None:
        set_context(vm, error, handled)
    if error.real is None:
        places = tuple((frame.code, frame.current.offset) for frame in vm.frames)
        before = error.slots.get("__traceback__")
        if isinstance(before, TracebackValue):  # it is raised once more, by name
            places += before.places[before.first :]
        error.slots["__traceback__"] = TracebackValue(error, places)


def set_context(vm: Interpreter, error: ObjectValue, handled: Value) -> None:
    """Let an exception be one that was raised while another was handled."""
    if handled is not error:
        _cut_context(vm, handled, error)
        error.slots["__context__"] = handled
        if error.real is not None:
            error.slots_mutated.add("__context__")


def _cut_context(vm: Interpreter, handled: Value, error: ObjectValue) -> None:
    """As Python does when it raises, take `error` out of the chain of contexts that it is about
    to head; a chain that goes round elsewhere is left as it is."""
    met: set[int] = set()
    link = handled
    while isinstance(link, ObjectValue) and id(link) not in met:
        met.add(id(link))
        context = attributes.get_attr(vm, link, "__context__")
        if context is error:
            link.slots["__context__"] = NONE
            if link.real is not None:
                link.slots_mutated.add("__context__")
        link = context


def handled_exception(vm: Interpreter) -> Value | None:
    """`sys.exception()`: the innermost exception being handled."""
    handled = _handled(vm)
    if handled is None:
        if READERS["handles_exception"]():
            raise GraphBreakSignal("a question for the exception handled around the frame")
        vm.session.guards.state("handles_exception", False)
    return handled


def _handled(vm: Interpreter) -> Value | None:
    return next((f.handled for f in reversed(vm.frames) if f.handled is not None), None)
