"""Containers, views and iterators that a frame was given, as values."""

from __future__ import annotations

import collections
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

from dovetail_guards import clauses as c
from dovetail_guards import iterators
from dovetail_guards.source import ObjectSource, Source

from dovetail_capture.interpreter.session.session import Session
from dovetail_capture.interpreter.values import containers
from dovetail_capture.interpreter.values.base import Constant, Lazy, Value, is_fixed_member
from dovetail_capture.interpreter.values.functions import HeldIterator
from dovetail_capture.interpreter.values.objects import ObjectValue

Wrapper = Callable[[Session, Any, Source], Value]
"""Makes the value of an object that its source gives."""
V = TypeVar("V", bound=Value)


def known(session: Session, real: Any, source: Source) -> Value | None:
    """The value already made for this object, reached now by another source."""
    known = session.objects.known.get(id(real))
    if known is not None and known.source is not None:
        session.guards.same(known.source, source)
    return known


def remember(session: Session, real: Any, value: V) -> V:
    """Let `value` stand for the object from now on."""
    return session.objects.bind(real, value)


def guard_type(session: Session, real: Any, source: Source) -> None:
    """Guard the class of what `source` gives."""
    if type(source) is not ObjectSource:
        session.guards.add(c.TypeIs, source, type(real))


def tuple_value(wrap: Wrapper, session: Session, real: Any, source: Source) -> Value:
    """A tuple, with its length."""
    if type(source) is not ObjectSource:
        session.guards.add(c.TypeIs, source, type(real))
        session.guards.add(c.LengthIs, source, len(real))
    seen = known(session, real, source) if real else None
    if seen is not None:
        return seen
    children = _members(wrap, session, real, source)
    return remember(session, real, containers.TupleValue(children, type(real), source))


def _members(wrap: Wrapper, session: Session, real: tuple[Any, ...], source: Source) -> list[Lazy]:
    look, item = partial(wrap, session), session.sources.item
    return [Lazy(m, item(source, n), look) for n, m in enumerate(tuple.__iter__(real))]


def list_value(session: Session, real: Any, source: Source) -> Value:
    """A list or a deque; its length is guarded where it is looked at."""
    seen = known(session, real, source)
    if seen is not None:
        return seen
    guard_type(session, real, source)

    def read() -> list[Any]:
        session.guards.add(c.LengthIs, source, len(real))
        item = session.sources.item
        return [Lazy(child, item(source, index)) for index, child in enumerate(real)]

    if type(real) is list:
        value = containers.ListValue((), list, source, read)
    else:
        value = containers.ListValue(read(), type(real), source)
        value.maxlen = real.maxlen
        session.guards.add(c.ConstantIs, session.sources.attr(source, "maxlen"), real.maxlen)
    return remember(session, real, value)


def dict_value(
    wrap: Wrapper, as_object: Wrapper, session: Session, real: Any, source: Source
) -> Value:
    """A dictionary of one of Python's classes."""
    fields = session.objects.instance_dicts.get(id(real))
    if fields is not None:
        assert fields.holder is not None and fields.holder.source is not None
        session.guards.same(session.sources.attr(fields.holder.source, "__dict__"), source)
        return fields
    seen = known(session, real, source)
    if seen is not None:
        return seen
    if type(real) is collections.OrderedDict and vars(real):  # a module's `state_dict`, say
        return as_object(session, real, source)
    guard_type(session, real, source)
    value = containers.DictValue(type(real), source, real)
    if type(real) is collections.defaultdict:
        value.default_factory = wrap(
            session, real.default_factory, session.sources.attr(source, "default_factory")
        )
    return remember(session, real, value)


def set_value(as_object: Wrapper, session: Session, real: Any, source: Source) -> Value:
    """A set or a frozenset."""
    seen = known(session, real, source)
    if seen is not None:
        return seen
    if not all(is_fixed_member(item) for item in real):
        return as_object(session, real, source)  # what is done with it breaks the graph
    if type(source) is not ObjectSource:
        session.guards.add(c.TypeIs, source, type(real))
        _guard_order(session, real, source)
    members = [Constant(item) for item in real]
    value = containers.SetValue(members, type(real), source, copied=frozenset(real))
    return remember(session, real, value)


def _guard_order(session: Session, real: Any, source: Source) -> None:
    """Guard the members of a set, in the order in which it gives them."""
    place = session.sources.iterator_part(source, "order")
    session.guards.add(c.ConstantIs, place, iterators.order(real))


def slice_value(wrap: Wrapper, session: Session, real: Any, source: Source) -> Value:
    """A slice."""
    guard_type(session, real, source)
    parts = [
        wrap(session, getattr(real, name), session.sources.attr(source, name))
        for name in ("start", "stop", "step")
    ]
    return containers.SliceValue(*parts)


def mapping_proxy_value(session: Session, real: Any, source: Source) -> Value:
    """Its identity says which mapping it shows; what is read of that is guarded there."""
    session.guards.pin(source, real)
    known = session.objects.known.get(id(real))
    if known is None:
        known = remember(session, real, ObjectValue(type(real), real, source))
        known.pinned = True
        known.fields.origin = None
    return known


def iterator_value(session: Session, real: Any, source: Source) -> Value:
    """An iterator that the frame was given, at its place."""
    seen = known(session, real, source)
    if seen is not None:
        return seen
    guard_type(session, real, source)
    return remember(session, real, HeldIterator(real, source))


def view_value(wrap: Wrapper, session: Session, real: Any, source: Source) -> Value:
    """A view of a dictionary: what it shows is guarded there."""
    seen = known(session, real, source)
    if seen is not None:
        return seen
    guard_type(session, real, source)
    place = session.sources.iterator_part(source, "viewed")
    value = containers.DictView(
        wrap(session, iterators.viewed(real), place), iterators.VIEWS[type(real)]
    )
    value.source = source
    return remember(session, real, value)


def native_part(
    wrap: Wrapper, session: Session, real: Any, source: Source, base: type
) -> Value | None:
    """The list, dict, tuple or set inside an instance of a subclass of one; None for a set whose
    members are not constants."""
    if base in (list, tuple, collections.deque):
        length = base.__len__(real)
        session.guards.add(c.LengthIs, source, length)
        if base is tuple:
            return containers.TupleValue(_members(wrap, session, real, source), tuple, source)
        item = session.sources.item
        children = [
            Lazy(child, item(source, index)) for index, child in enumerate(base.__iter__(real))
        ]
        return containers.ListValue(children, base, source)
    if base is dict:
        kinds = (collections.OrderedDict, collections.defaultdict, dict)
        kind = next(kind for kind in kinds if isinstance(real, kind))
        return containers.DictValue(kind, source, real)
    members = iterators.order(real)
    if not all(map(is_fixed_member, members)):
        return None
    _guard_order(session, real, source)
    items = [Constant(item) for item in members]
    return containers.SetValue(items, base, source, copied=iterators.members(real))
