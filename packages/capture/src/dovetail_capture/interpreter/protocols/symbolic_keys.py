"""Symbolic ints as keys of dictionaries and members of sets."""

from __future__ import annotations

from collections.abc import Iterable
from numbers import Number
from typing import TYPE_CHECKING, Any

from dovetail_capture.interpreter.values.base import Value
from dovetail_capture.interpreter.values.containers import SetValue, hash_key
from dovetail_capture.interpreter.values.symbolic import SymbolicKey

if TYPE_CHECKING:
    from dovetail_capture.interpreter.session.session import Session


def key_among(session: Session, key: Value, *known: Iterable[Any]) -> Any:
    """The hash key of `key` in a container with the `known` hash keys. That of a symbolic int is
    one of them, or another than each of them, which is guarded."""
    if SymbolicKey.fits(key):
        session.objects.symbolic_keys = True
        hashed: Any = SymbolicKey(key)
        if any(hashed in keys for keys in known):
            return hashed
    else:
        hashed = hash_key(key)
        if not session.objects.symbolic_keys:
            return hashed
    return known_key(hashed, [other for keys in known for other in keys])


def known_key(key: Any, known: Iterable[Any]) -> Any:
    """The one of these keys that is equal to `key`, or `key`. Of two that are compared at least one
    is symbolic."""
    symbolic = type(key) is SymbolicKey
    if not symbolic and not _is_number(key):
        return key
    for other in known:
        if type(other) is SymbolicKey:
            if other.is_number(key):
                return other
        elif symbolic and _is_number(other):
            if type(other) not in _NUMBERS:  # its class may say what it is equal to
                return key.number.concrete()
            if key.is_number(other):
                return other
    return key


_NUMBERS = (bool, int, float)


def _is_number(key: Any) -> bool:
    return isinstance(key, Number) or hasattr(type(key), "__index__")


def member_key(session: Session, container: SetValue, item: Value) -> Any:
    """The hash key of `item` in a set. (In one that existed before, all members are guarded.)"""
    if container.source is not None:
        return hash_key(item)
    return key_among(session, item, container.by_key)


def add_member(session: Session, container: SetValue, item: Value) -> None:
    """`container.add(item)`."""
    key = member_key(session, container, item)
    container.by_key.setdefault(key, item)
    container.is_symbolic |= type(key) is SymbolicKey
    container.mutated = True
