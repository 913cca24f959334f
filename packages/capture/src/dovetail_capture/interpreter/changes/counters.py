"""Ints that a frame both reads and writes: the next call finds others there.

A guard on the value that was read would fail in the next call, because of what this one wrote: a
module that counts its calls, the class of hooks' handles, which numbers them. So such a frame is
captured again, with these ints symbolic from the start.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from dovetail_guards import iterators
from dovetail_guards.source import ClosureCellSource, Source

from dovetail_capture.interpreter.values.base import Constant
from dovetail_capture.interpreter.values.containers import DictValue, ListValue
from dovetail_capture.interpreter.values.functions import CellValue
from dovetail_capture.interpreter.values.objects import ObjectValue

if TYPE_CHECKING:
    from dovetail_capture.interpreter.session.session import Session


def counters(session: Session) -> frozenset[str]:
    """The places (`str` of their sources) of ints that the frame wrote where it read others that
    guards tie to their values."""
    if session.exports:
        return frozenset()
    guarded = session.guards.ints()
    if not guarded:
        return frozenset()
    found = set[str]()
    for place, written in _written(session):
        before = guarded.get(id(place))
        if before is None or type(written) is not Constant or type(written.example) is not int:
            continue
        if written.example != before:
            found.add(str(place))
    return frozenset(found)


def _written(session: Session) -> Iterator[tuple[Source, Any]]:
    """What the frame wrote to places that existed before, and these places."""
    sources = session.sources
    for value in session.objects.known.values():
        if isinstance(value, ObjectValue):
            if value.fields.mutated and value.source is not None:
                yield from _in_dict(session, value.fields)
            for name in value.slots_mutated:
                if value.source is not None:
                    yield sources.attr(value.source, name), value.slots[name]
            if value.native is not None:
                yield from _in_container(session, value.native)
        elif isinstance(value, CellValue):
            place = value.source
            if value.mutated and isinstance(place, ClosureCellSource):
                yield sources.root("closure", place.name), value.content
            elif value.mutated and place is not None:
                yield sources.cell(place), value.content
        else:
            yield from _in_container(session, value)
    for iterator in session.iterators.stepped.values():
        if type(iterator.real) is itertools.count:
            parts = sources.iterator_part(iterator.origin, "parts")
            yield sources.item(parts, 0), Constant(iterators.parts(iterator.real)[0] + 1)
    for obj, fields in session.effects.attribute_writes.values():
        holder = sources.held(obj.value)  # type: ignore[attr-defined]
        for name, (_, written) in fields.entries.items():
            yield sources.attr(holder, name), written
            yield sources.instance_attr(holder, name), written
    for (of, name), written in session.effects.global_writes.items():
        if session.effects.global_dicts[of] is session.globals_:
            yield sources.root("global", name), written
        yield sources.item(sources.held(session.effects.global_dicts[of]), name), written


def _in_container(session: Session, value: Any) -> Iterator[tuple[Source, Any]]:
    """What was written to a list or a dictionary."""
    if not getattr(value, "mutated", False) or value.source is None:
        return
    if isinstance(value, DictValue):
        yield from _in_dict(session, value)
    elif isinstance(value, ListValue) and value.read is None:
        for index, item in enumerate(value.items):
            yield session.sources.item(value.source, index), item


def _in_dict(session: Session, value: DictValue) -> Iterator[tuple[Source, Any]]:
    sources = session.sources
    place = sources.instance_attr if value.is_instance_dict else sources.item
    if value.source is not None:
        for key, (_, item) in value.entries.items():
            yield place(value.source, key), item
