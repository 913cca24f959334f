"""How the objects that a frame was given lie to one another: guards that different ones stay
different, where a change to one would be a change to another."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from types import CodeType, FunctionType
from typing import Any, TypeGuard

from dovetail_guards import clauses as c
from dovetail_guards.iterators import over
from dovetail_guards.source import (
    ClosureCellSource,
    ClosureSource,
    LocalSource,
    ObjectSource,
    Source,
)

from dovetail_capture.captured_frame import GraphInput
from dovetail_capture.interpreter.session.session import Session
from dovetail_capture.interpreter.values.base import Value
from dovetail_capture.interpreter.values.computed_sources import PlainSource
from dovetail_capture.interpreter.values.containers import DictValue, ListValue, SetValue
from dovetail_capture.interpreter.values.objects import ObjectValue
from dovetail_capture.interpreter.values.tensors import ArraySource, TensorValue


def relate_inputs(session: Session, inputs: list[GraphInput]) -> None:
    """Guard that different inputs stay different tensors."""
    if len(inputs) > 1:
        sources = [
            i.source.base if isinstance(i.source, (ArraySource, PlainSource)) else i.source
            for i in inputs
        ]
        session.guards.append(c.DistinctObjects(tuple(sources)))
    changed = [value for value in session.objects.known.values() if _is_changed(value)]
    _relate_iterators(session)
    _relate_dictionaries(session)
    _relate_keys(session)
    _relate_namespaces(session)
    for cls in {value.python_type() for value in changed}:
        # A change to one of them must not be a change to another.
        sources = [
            value.source
            for value in session.objects.known.values()
            if value.python_type() is cls
            and value.source is not None
            and not isinstance(value.source, (ObjectSource, ClosureCellSource))
            and not getattr(value, "pinned", False)
        ]
        if len(sources) > 1:
            session.guards.append(c.DistinctObjects(tuple(sources)))


def _relate_iterators(session: Session) -> None:
    """What iterators go through is none of what the frame changes, unless it is now: only then
    do they still give what they were seen to have left."""
    for iterator in session.iterators.stepped.values():
        container = over(iterator.real)
        if container is None:
            continue
        place = session.sources.iterator_part(iterator.origin, "over")
        for changed, source in _changed_places(session, isinstance(container, dict)):
            if changed != id(container):
                session.guards.distinct(place, source)


def _relate_dictionaries(session: Session) -> None:
    """A dictionary that was passed is no object's `__dict__`, unless it is now: a change to
    one of both would be a change to the other."""
    holders = [fields.holder for fields in session.objects.instance_dicts.values()]
    for value in session.objects.known.values():
        if not _is_passed_dict(value) or is_of_keywords(value.source, session.code):
            continue
        others: list[Source] = []
        for holder in holders:
            assert isinstance(holder, ObjectValue) and holder.source is not None
            if not (value.mutated or holder.fields.mutated):
                continue
            if holder.pinned:
                attributes = object.__getattribute__(holder.real, "__dict__")
                others.append(session.sources.held(attributes))
            else:
                session.guards.distinct(
                    value.source, session.sources.attr(holder.source, "__dict__")
                )
        if others and value.source is not None:
            session.guards.append(c.DistinctObjects((value.source, *others)))


def _relate_namespaces(session: Session) -> None:
    """Objects of a class that looks after `__dict__` itself may have one in common: those of which
    the frame changes attributes have not, unless they have now."""
    by_class: dict[type, list[ObjectValue]] = {}
    for fields in session.objects.instance_dicts.values():
        if isinstance(fields.holder, ObjectValue):
            by_class.setdefault(fields.holder.cls, []).append(fields.holder)
    for cls, holders in by_class.items():
        changed = any(holder.fields.mutated for holder in holders)
        if (
            len(holders) > 1
            and changed
            and not all(h.pinned for h in holders)
            and _names_namespaces(cls)
        ):
            places = [_namespace(session, holder) for holder in holders]
            session.guards.append(c.DistinctObjects(tuple(places)))


def _names_namespaces(cls: type) -> bool:
    """Does a function of a class of the program's speak of `__dict__`?"""
    return any(
        isinstance(found, FunctionType) and "__dict__" in found.__code__.co_names
        for base in cls.__mro__
        if base.__module__.partition(".")[0] not in ("builtins", "torch")
        for found in vars(base).values()
    )


def _namespace(session: Session, holder: ObjectValue) -> Source:
    assert holder.source is not None
    if holder.pinned:
        return session.sources.held(object.__getattribute__(holder.real, "__dict__"))
    return session.sources.attr(holder.source, "__dict__")


def _relate_keys(session: Session) -> None:
    """Guard that objects which a dictionary or set took for different ones stay different."""
    keys: dict[type, list[Value]] = {}
    for value in session.objects.known.values():
        if getattr(value, "hashed", False) and session.guards.can_relate(
            value.source, value.source
        ):
            keys.setdefault(value.python_type(), []).append(value)
    for values in keys.values():
        if all(getattr(value, "pinned", False) for value in values):
            continue  # each is a very object
        sources = tuple(value.source for value in values if value.source is not None)
        if len(sources) > 1:
            session.guards.append(c.DistinctObjects(sources))


def is_of_keywords(source: Source | None, code: CodeType) -> bool:
    """Is it the dictionary that Python makes, for each call, of keyword arguments?"""
    if not (code.co_flags & inspect.CO_VARKEYWORDS and isinstance(source, LocalSource)):
        return False
    place = code.co_argcount + code.co_kwonlyargcount
    place += bool(code.co_flags & inspect.CO_VARARGS)
    return source.name == code.co_varnames[place]


def _changed_places(session: Session, namespaces: bool) -> Iterator[tuple[int, Source | None]]:
    """The ids and sources of what existed before and has changed: containers, and with
    `namespaces` what holds attributes and globals."""
    for key, value in session.objects.known.items():
        if not _is_changed(value):
            continue
        yield key, value.source
        if namespaces and _attributes_changed(value):
            assert value.source is not None
            held = object.__getattribute__(value.real, "__dict__")
            yield id(held), session.sources.attr(value.source, "__dict__")
    if namespaces:
        for globals_ in session.effects.global_dicts.values():
            yield id(globals_), session.sources.held(globals_)


def _is_changed(value: Value) -> bool:
    """Has the frame written to this pre-existing object?"""
    if isinstance(value, (ListValue, DictValue, SetValue)):
        return value.mutated
    if isinstance(value, TensorValue):
        return value.data is not None
    if isinstance(value, ObjectValue):
        native = value.native
        return bool(
            value.fields.mutated
            or value.slots_mutated
            or (native is not None and _is_changed(native))
        )
    return False


def _is_passed_dict(value: Value) -> TypeGuard[DictValue]:
    return isinstance(value, DictValue) and isinstance(value.source, (LocalSource, ClosureSource))


def _attributes_changed(value: Value) -> TypeGuard[ObjectValue]:
    if not isinstance(value, ObjectValue):
        return False
    return value.fields.mutated and value.fields.is_instance_dict


def changed_container(session: Session, container: Any) -> bool:
    """Has the frame changed this container, which existed before?"""
    known = session.objects.known.get(id(container))
    if known is not None and _is_changed(known):
        return True
    if not isinstance(container, dict):
        return False
    if session.effects.attribute_writes or any(
        globals_ is container for globals_ in session.effects.global_dicts.values()
    ):
        return True
    return any(
        _attributes_changed(value) and object.__getattribute__(value.real, "__dict__") is container
        for value in session.objects.known.values()
    )
