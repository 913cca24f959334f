"""Does a stretch of interpretation change anything that was there before it?"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from dovetail_capture.interpreter.signals import GraphBreakSignal
from dovetail_capture.interpreter.values.base import Value
from dovetail_capture.interpreter.values.containers import (
    DictValue,
    ListValue,
    SetValue,
    TupleValue,
)
from dovetail_capture.interpreter.values.functions import BoundMethod, CellValue, FunctionValue
from dovetail_capture.interpreter.values.objects import ObjectValue
from dovetail_capture.interpreter.values.tensors import TensorValue

if TYPE_CHECKING:
    from dovetail_capture.interpreter.machine import Interpreter

_MARKED = (ListValue, DictValue, SetValue, CellValue)


def _parts(value: Any) -> Iterator[Any]:
    """The values that a value made in the frame holds."""
    if isinstance(value, (ListValue, TupleValue)):
        yield from value.items
    elif isinstance(value, DictValue):
        yield from (item for _, item in value.entries.values())
    elif isinstance(value, CellValue):
        yield value.content
    elif isinstance(value, FunctionValue):
        yield from (*value.closure, *value.defaults, value.kwdefaults)
    elif isinstance(value, BoundMethod):
        yield from (value.function, value.receiver)
    elif isinstance(value, ObjectValue):
        yield from (value.fields, value.native, *value.slots.values())


def _reachable(roots: Iterable[Value]) -> dict[int, Any]:
    found: dict[int, Any] = {}
    pending: list[Any] = list(roots)
    while pending:
        value = pending.pop()
        if isinstance(value, Value) and id(value) not in found:
            found[id(value)] = value
            pending.extend(_parts(value))
    return found


def _state(value: Any) -> Any:
    """Something that a change makes another."""
    if isinstance(value, _MARKED):
        return value.mutated
    if isinstance(value, ObjectValue):
        slots = {name: id(value.slots[name]) for name in value.slots_mutated if name in value.slots}
        return slots, len(value.slots_mutated)
    if isinstance(value, TensorValue):
        return {name: id(item) for name, item in value.attributes.items()}
    return None


def _written(vm: Interpreter) -> Any:
    """What was written, and what is to be called for its effect."""
    session = vm.session
    return (
        dict(session.effects.global_writes),
        {key: id(write.value) for key, write in session.effects.context_writes.items()},
        {
            key: dict(fields.entries)
            for key, (_, fields) in session.effects.attribute_writes.items()
        },
        list(session.iterators.steps),
        session.effects.kernel_settings.now(),
        (len(session.effects.calls), len(session.draws.calls), len(session.modes.locks)),
    )


@contextmanager
def no_changes(vm: Interpreter, roots: Iterable[Value], what: str) -> Iterator[None]:
    """A block that breaks the graph, for `what`, if it changes what existed before the frame, or
    what can be reached from `roots`."""
    values = _reachable([*vm.session.objects.known.values(), *roots])
    marked = [value for value in values.values() if isinstance(value, _MARKED) and value.mutated]
    for value in marked:
        value.mutated = False
    before = {key: _state(value) for key, value in values.items()}
    written = _written(vm)
    yield
    found = _reachable(v for v in vm.session.objects.known.values() if id(v) not in values)
    changed = any(_state(value) != before[key] for key, value in values.items())
    changed |= any(map(_is_changed, found.values()))
    if changed or _written(vm) != written:
        raise GraphBreakSignal(what)
    for value in marked:
        value.mutated = True


def _is_changed(value: Any) -> bool:
    if isinstance(value, _MARKED):
        return value.mutated
    return _state(value) not in (None, {}, ({}, 0))
