"""Reads what built-in iterators have still to give, without moving them, what views show, what sets
hold, which classes are derived from one, what a context variable holds, and of the storage of a
tensor: itself, its size, and where the tensor begins in it.

`__reduce__` of an iterator tells what it goes through and where it is; `gc.get_referents` tells the
dictionary or set of an iterator that has only copies of its items to show. Each reader raises
TypeError for an iterator that it cannot read, and what the iterator itself would raise.
"""

from __future__ import annotations

import gc
import itertools
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import torch

MOST_READ = 64
"""How many items ahead are read at most."""

MOST_COPIED = 1000
"""The size of the largest dictionary or set that is read: all of it is copied for that."""

Reader = Callable[[Any], Any]


def _forwards(base: Any) -> Reader:
    read = base.__getitem__  # a subclass may have another, which its iterator does not call

    def rest(iterator: Any) -> tuple[Any, ...]:
        _, (sequence, *_), *place = iterator.__reduce__()
        if not place:  # it has ended, and let go of the sequence
            return ()
        start = place[0] or 0
        return tuple(read(sequence, slice(start, start + MOST_READ)))

    return rest


def _backwards(base: Any) -> Reader:
    read = base.__getitem__

    def rest(iterator: Any) -> tuple[Any, ...]:
        _, (sequence, *_), *place = iterator.__reduce__()
        if not place or not 0 <= place[0] < len(sequence):  # it has ended, or will at its next step
            return ()
        if not isinstance(sequence, base):
            raise TypeError(f"an iterator over a {type(sequence).__name__}")
        last = place[0] - MOST_READ
        return tuple(read(sequence, slice(place[0], last if last >= 0 else None, -1)))

    return rest


def _copied(iterator: Any) -> tuple[Any, ...]:
    container = over(iterator)
    if container is None:
        return ()
    if len(container) > MOST_COPIED:
        raise TypeError("too large to be copied")
    _, (items,) = iterator.__reduce__()
    return tuple(items[:MOST_READ])


def _repeated(iterator: Any) -> tuple[Any, ...]:
    try:
        count = min(iterator.__length_hint__(), MOST_READ)
    except TypeError:  # without end
        count = MOST_READ
    return tuple(itertools.islice(itertools.repeat(gc.get_referents(iterator)[-1]), count))


_TABLES: tuple[dict[Any, Any], ...] = ({}, OrderedDict())
# Iterators over what may change meanwhile.
_OVER_CHANGING: dict[type, Reader] = {
    type(iter([])): _forwards(list),
    type(reversed([])): _backwards(list),
    type(iter(set())): _copied,
    **{
        type(step(view)): _copied
        for table in _TABLES
        for view in (table, table.values(), table.items())
        for step in (iter, reversed)
    },
}
_RESTS: dict[type, Reader] = {
    **_OVER_CHANGING,
    type(iter(())): _forwards(tuple),
    type(iter(range(0))): _forwards(range),
    type(iter("")): _forwards(str),
    type(iter("\u00e9")): _forwards(str),
    type(iter(b"")): _forwards(bytes),
    reversed: _backwards(tuple),
    itertools.repeat: _repeated,
}
_PARTS: frozenset[type] = frozenset({enumerate, zip, map, filter, itertools.count})
READABLE: frozenset[type] = frozenset({*_RESTS, *_PARTS})
"""The types of iterators that can be read."""


def rest(iterator: Any) -> tuple[Any, ...]:
    """The next items that an iterator over a container gives, `MOST_READ` at most."""
    reader = _RESTS.get(type(iterator))
    if reader is None:
        raise TypeError(f"a {type(iterator).__name__} does not go through a container")
    found: tuple[Any, ...] = reader(iterator)
    return found


def over(iterator: Any) -> Any:
    """The list, dictionary or set that an iterator goes through; None where there is none, or it
    has let go of it at its end."""
    found = gc.get_referents(iterator) if type(iterator) in _OVER_CHANGING else ()
    return next((held for held in found if isinstance(held, (list, dict, set, frozenset))), None)


def parts(iterator: Any) -> tuple[Any, ...]:
    """What an iterator takes its items from: iterator and next number of an `enumerate`, whether it
    is strict and the iterators of a `zip`, function and iterators of a `map` or `filter`, next
    number and step of a `count` of ints."""
    if type(iterator) not in _PARTS:
        raise TypeError(f"a {type(iterator).__name__} has no parts")
    if type(iterator) is itertools.count:
        return _counting(iterator)
    _, held, *strict = iterator.__reduce__()
    if type(iterator) is zip:
        return (bool(strict and strict[0]), *held)
    return tuple(held)


def _counting(iterator: itertools.count[Any]) -> tuple[int, int]:
    # (That its `__reduce__` tells, Python warns of.)
    number, _, step = repr(iterator).removeprefix("count(").removesuffix(")").partition(", ")
    try:
        return int(number), int(step or "1")
    except ValueError:
        raise TypeError("a count of other numbers than ints") from None


VIEWS: dict[type, str] = {
    type(getattr(table, kind)()): kind for table in _TABLES for kind in ("keys", "values", "items")
}
"""The types of views of dictionaries, and what each shows."""


def viewed(view: Any) -> Any:
    """The dictionary of a view."""
    if type(view) not in VIEWS:
        raise TypeError(f"a {type(view).__name__} is no view of a dictionary")
    (dictionary,) = (held for held in gc.get_referents(view) if isinstance(held, dict))
    return dictionary


def members(container: Any) -> frozenset[Any]:
    """The members of a set, or of an instance of a class of sets, which is not asked."""
    base = set if isinstance(container, set) else frozenset
    return frozenset(base.__iter__(container))


def order(container: Any) -> tuple[Any, ...]:
    """The members of a set in the order in which it is iterated: equal sets may differ in it."""
    base = set if isinstance(container, set) else frozenset
    return tuple(base.__iter__(container))


def subclasses(cls: Any) -> tuple[type, ...]:
    """The classes that are derived from a class now."""
    return tuple(type.__subclasses__(cls))


def context(variable: Any) -> tuple[Any, ...]:
    """What a context variable holds, apart from its default: one object, or none."""
    found = variable.get(_NOT_SET)
    return () if found is _NOT_SET else (found,)


_NOT_SET: Any = object()


def storage(tensor: Any) -> torch.UntypedStorage:
    """The storage of a tensor."""
    with torch._C.DisableTorchFunction():
        found: torch.UntypedStorage = torch.Tensor.untyped_storage(tensor)
    return found


def storage_bytes(tensor: Any) -> int:
    """How large the storage of a tensor is."""
    return storage(tensor).nbytes()


def number(scalar: Any) -> Any:
    """The Python number that a scalar of NumPy's is; an array, or a dtype, is none."""
    return scalar.item() if getattr(scalar, "shape", None) == () else scalar


def storage_offset(tensor: Any) -> int:
    """Where a tensor begins in its storage."""
    with torch._C.DisableTorchFunction():
        return int(torch.Tensor.storage_offset(tensor))


_READERS: tuple[Callable[..., Any], ...] = (
    rest, over, parts, viewed, members, order, subclasses, context, storage, storage_bytes,
    storage_offset, number,
)  # fmt: skip
READERS: dict[str, Reader] = {reader.__name__: reader for reader in _READERS}
"""The parts that an `IteratorSource` names."""
