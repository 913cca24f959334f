"""Calls through `functools.cache`: made once for equal arguments.

What such a call makes lives on in Python's cache, so that later calls find the same object. Where
the arguments are plain, that object is used. Otherwise (sizes that are symbols) the interpreter
makes objects of its own. Nobody can tell while they stay inside the captured stretch and are as
they were made; where one leaves it or is changed, the call is left to Python.
"""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dovetail_capture.interpreter.signals import CannotRebuild
from dovetail_capture.interpreter.values import containers
from dovetail_capture.interpreter.values.base import Constant, Lazy, Value
from dovetail_capture.interpreter.values.functions import CellValue
from dovetail_capture.interpreter.values.objects import ObjectValue
from dovetail_capture.interpreter.values.symbolic import SymbolicNumber
from dovetail_capture.interpreter.values.tensors import TensorValue

if TYPE_CHECKING:
    from dovetail_capture.interpreter.session.session import Session


@dataclass(frozen=True)
class Kept:
    """What a cached function made: `parts` is all of it that has an identity and was made here.
    `born` is the step of the top frame that called it."""

    name: str
    result: Value
    parts: tuple[tuple[Value, tuple[int, ...]], ...]
    born: int


def keep(name: str, result: Value, born: int) -> Kept | None:
    """`result` as it is now; None if it holds what has an identity that cannot be followed."""
    parts = _parts(result)
    return None if parts is None else Kept(name, result, parts, born)


def changes(session: Session) -> list[Any]:
    """What the program has changed so far of what was there before, to be compared with itself."""
    found: list[Any] = [len(session.effects.calls)]
    found += [(place, id(value)) for place, value in session.effects.global_writes.items()]
    for value, fields in session.effects.attribute_writes.values():
        found.append((id(value), *map(id, _members(fields))))
    for value in session.objects.known.values():
        for part in (value, getattr(value, "native", None), getattr(value, "fields", None)):
            if getattr(part, "mutated", False):
                found.append((id(part), *map(id, _members(part))))
        if isinstance(value, ObjectValue):
            slots = sorted(value.slots_mutated)
            found += [(id(value), name, id(value.slots[name])) for name in slots]
        if isinstance(value, TensorValue):
            found += [(id(value), name, id(held)) for name, held in value.attributes.items()]
    return found


def _members(changed: Any) -> list[Any]:
    """What a cell, or a container, that was there before holds now."""
    if isinstance(changed, CellValue):
        return [changed.content]
    if isinstance(changed, containers.DictValue):
        return [*changed.deleted, *(part for entry in changed.entries.values() for part in entry)]
    return list(
        changed.items.values() if isinstance(changed, containers.SetValue) else changed.items
    )


def check(kept: Kept, leaving: Container[int]) -> None:
    """Refuse what has changed since it was made, or leaves (values, by id)."""
    if _parts(kept.result) != kept.parts or any(id(part) in leaving for part, _ in kept.parts):
        text = f"an object that `{kept.name}` made and keeps in its cache"
        raise CannotRebuild(text, kept.born)


def _parts(result: Value) -> tuple[tuple[Value, tuple[int, ...]], ...] | None:
    """The mutable values that a value consists of, each with the ids of what it holds."""
    found: dict[int, tuple[Value, tuple[int, ...]]] = {}
    waiting: list[Any] = [result]
    while waiting:
        value = waiting.pop()
        if id(value) in found:
            continue
        held = _held(value)
        if held is None:
            return None
        if not isinstance(value, containers.TupleValue) and held is not _NOTHING:
            found[id(value)] = value, tuple(map(id, held))
        waiting += held
    return tuple(found.values())


_NOTHING: list[Any] = []


def _held(value: Any) -> list[Any] | None:
    """What a value made in the frame holds."""
    plain = (Constant, Lazy, TensorValue, SymbolicNumber)
    if isinstance(value, plain) or value.source is not None:
        return _NOTHING
    if isinstance(value, (containers.TupleValue, containers.ListValue)):
        return list(value.items)
    if isinstance(value, containers.SetValue):
        return list(value.items.values())
    if isinstance(value, containers.DictValue):
        return [part for entry in value.entries.values() for part in entry]
    if isinstance(value, ObjectValue):
        native = [] if value.native is None else [value.native]
        return [value.fields, *native, *value.slots.values(), *value.new_args]
    return None
