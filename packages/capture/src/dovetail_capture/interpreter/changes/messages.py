"""Messages of `logging` and `warnings`: written after the graph, and what they show till then."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from dovetail_capture.interpreter.changes.late_reads import state_of
from dovetail_capture.interpreter.session.ledgers import CallForEffect, Message
from dovetail_capture.interpreter.signals import CannotRebuild, GraphBreakSignal
from dovetail_capture.interpreter.values import containers
from dovetail_capture.interpreter.values.base import Constant, Lazy, Value
from dovetail_capture.interpreter.values.objects import ObjectValue
from dovetail_capture.interpreter.values.tensors import ArrayValue, TensorValue
from dovetail_capture.reporting.program_warnings import WarnAbove, WarnAt, action

if TYPE_CHECKING:
    from dovetail_capture.interpreter.machine import Interpreter
    from dovetail_capture.interpreter.session.session import Session

_OF_LOGGING = (logging.Filterer, logging.Formatter, logging.Manager)
FILTERS_CHANGED: Any = getattr(warnings, "_filters_mutated", None)  # forgets what was decided


def check_message(session: Session, message: Message) -> None:
    """Let the capture end before the call if it would show another state of anything."""
    for key, (value, state) in _seen_by(session, message.call).items():
        if key in message.shown:
            changed = state != message.shown[key][1]
        else:
            changed = _is_changed(value)  # it was looked at since
        if changed:
            text = f"a message with {value.describe()}, as it was before a change,"
            raise CannotRebuild(text, message.born)


def defer(vm: Interpreter, function: Any, args: list[Value], kwargs: dict[str, Value]) -> None:
    """Let a call whose only effect is a message be made after the graph, in order."""
    session = vm.session
    call: CallForEffect = (function, list(args), dict(kwargs))
    session.effects.calls.append(call)
    session.effects.messages.append(Message(call, vm.frames[0].steps, _seen_by(session, call)))


def defer_warning(vm: Interpreter, args: list[Value], kwargs: dict[str, Value]) -> None:
    """Let `warnings.warn` be called after the graph, for the line that it is for in the program."""
    names = ("message", "category", "stacklevel", "source")
    given = {**dict(zip(names, args, strict=False)), **kwargs}
    level, prefixes = (
        vm.as_python(given.pop(name)) if name in given else default
        for name, default in (("stacklevel", 1), ("skip_file_prefixes", ()))
    )
    if type(level) is not int or type(prefixes) is not tuple or len(args) > len(names):
        defer(vm, warnings.warn, args, kwargs)  # (what eager refuses, too)
        return
    if prefixes:
        level = max(level, 2)
    place = len(vm.frames) - 1
    for _ in range(level - 1):
        place, level = place - 1, level - 1
        while place >= 0 and vm.frames[place].code.co_filename.startswith(prefixes or ("\0",)):
            place -= 1
        if place < 0:
            break
    if place < 0:
        say: Any = WarnAbove(level, prefixes)
    else:
        frame = vm.frames[place]
        file, line, module = frame.place()
        _check_is_no_error(vm, given, module, line)
        say = WarnAt(file, line, module, here=place == 0)
    defer(vm, say, [], given)


def _check_is_no_error(vm: Interpreter, given: dict[str, Value], module: str, line: int) -> None:
    """Break the graph at a warning that the filters make an error: the program may handle it."""
    message, category = (
        vm.as_python(given[name]) if name in given else None for name in ("message", "category")
    )
    category = UserWarning if category is None else category
    if not isinstance(message, str) or not isinstance(category, type):
        return
    if issubclass(category, Warning) and action(message, category, module, line) == "error":
        what = f"a {category.__name__}, which the filters for warnings make an error"
        raise GraphBreakSignal(what, "", category(message))


def is_warning(function: Any) -> bool:
    """Is this what is called for a warning after the graph?"""
    return function is warnings.warn or isinstance(function, (WarnAt, WarnAbove))


def is_said_first(session: Session, call: CallForEffect) -> bool:
    """Is a call made before what the frame has changed is changed? A warning, where the filters for
    warnings are changed behind it."""
    function, args, kwargs = call
    plain = all(isinstance(value, Constant) for value in (*args, *kwargs.values()))
    if not is_warning(function) or not plain:
        return False
    return any(other is FILTERS_CHANGED for other, _, _ in session.effects.calls)


def _seen_by(session: Session, call: CallForEffect) -> dict[int, tuple[Value, Any]]:
    """All that a call may look at, by its id, each with its state."""
    function, args, kwargs = call
    pending: list[Any] = [*args, *kwargs.values()]
    if not is_warning(function):
        known = session.objects.known.values()
        pending += [
            v for v in known if isinstance(v, ObjectValue) and issubclass(v.cls, _OF_LOGGING)
        ]
    found: dict[int, tuple[Value, Any]] = {}
    while pending:
        value = pending.pop()
        if not isinstance(value, Value) or id(value) in found:
            continue
        found[id(value)] = value, _state(value)
        pending += _parts(value)
    return found


def _state(value: Value) -> Any:
    if isinstance(value, TensorValue):
        return value.fake._version, id(value.data)
    if isinstance(value, containers.DictValue):
        return state_of(value), set(value.deleted)
    if isinstance(value, ObjectValue):  # its fields are a value of their own
        return _written(value.fields) if issubclass(value.cls, logging.Logger) else None
    return state_of(value)


def _written(fields: containers.DictValue) -> dict[str, int]:
    """What was written to a logger, but for what it remembers of levels."""
    return {
        name: id(item)
        for name, (_, item) in fields.entries.items()
        if name != "_cache" and not isinstance(item, Lazy) and fields.read.get(name) is not item
    }


def _is_changed(value: Any) -> bool:
    """Has the frame changed what was there before?"""
    if isinstance(value, TensorValue):
        return bool(value.fake._version) or value.data is not None
    if isinstance(value, ObjectValue):
        written = issubclass(value.cls, logging.Logger) and _written(value.fields)
        return bool(value.slots_mutated or written)
    return bool(getattr(value, "mutated", False))


def _parts(value: Any) -> Iterator[Any]:
    if isinstance(value, (containers.ListValue, containers.TupleValue)):
        yield from value.items
    elif isinstance(value, containers.SetValue):
        yield from value.items.values()
    elif isinstance(value, containers.DictValue):
        yield from (item for _, item in value.entries.values())
        yield from value.read.values()
    elif isinstance(value, ArrayValue):
        yield value.tensor
    elif isinstance(value, ObjectValue):
        yield from (value.native, *value.slots.values())
        if not issubclass(value.cls, logging.Logger):
            yield value.fields
        else:
            fields = {**value.fields.read, **{k: v for k, (_, v) in value.fields.entries.items()}}
            yield from (item for name, item in fields.items() if name != "_cache")
