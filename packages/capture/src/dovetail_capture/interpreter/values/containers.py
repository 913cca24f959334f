"""Lists, tuples, dicts, sets, slices and deques.

A pre-existing container is never touched: its children are read lazily and a change is made to
the value's own copy, to be replayed as an effect.
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Callable, Iterable
from collections.abc import Set as AbstractSet
from typing import Any

from dovetail_guards.source import Source

from dovetail_capture.interpreter.signals import GraphBreakSignal
from dovetail_capture.interpreter.values.base import Constant, Lazy, Value
from dovetail_capture.interpreter.values.symbolic import IdOf, SymbolicNumber


class TupleValue(Value):
    """A tuple, torch.Size or struct sequence (`torch.return_types.max`)."""

    __slots__ = ("cls", "items")

    def __init__(
        self, items: Iterable[Value | Lazy], cls: type = tuple, source: Source | None = None
    ) -> None:
        self.items: list[Any] = list(items)
        self.cls = cls
        self.source = source

    def python_type(self) -> type:
        return self.cls


class ListValue(Value):
    """A list, or a `collections.deque`. `mutated` means it differs from the pre-existing one.
    `left` counts how often items left it, which iterators over a deque look at.

    `read` gives the items of a pre-existing list that nothing has looked at, with the guard that
    this needs: a loop that only appends to a list does not depend on how long it is."""

    __slots__ = ("_items", "cls", "left", "maxlen", "mutated", "read")

    def __init__(
        self,
        items: Iterable[Value | Lazy] = (),
        cls: type = list,
        source: Source | None = None,
        read: Callable[[], list[Any]] | None = None,
    ) -> None:
        self._items: list[Any] = list(items)
        self.read = read
        self.cls = cls
        self.source = source
        self.mutated = False
        self.left = 0
        self.maxlen: int | None = None

    @property
    def items(self) -> list[Any]:
        """All items, in a list that may be changed."""
        if self.read is not None:
            read, self.read = self.read, None
            self._items[:0] = read()
        return self._items

    @items.setter
    def items(self, items: list[Any]) -> None:
        self.read = None
        self._items = items

    @property
    def appended(self) -> list[Any]:
        """What was appended to a list that nothing has looked at."""
        assert self.read is not None
        return self._items

    def append(self, item: Value) -> None:
        """Append without a look at the list."""
        self._items.append(item)
        self.mutated = True  # behind a graph break, the list existed before

    def python_type(self) -> type:
        return self.cls


class SliceValue(Value):
    """A slice object."""

    __slots__ = ("start", "step", "stop")

    def __init__(self, start: Value, stop: Value, step: Value) -> None:
        self.start = start
        self.stop = stop
        self.step = step
        self.source = None

    def python_type(self) -> type:
        return slice


class IdentityKey:
    """Hash key of an object that hashes by identity."""

    __slots__ = ("value",)

    def __init__(self, value: Value) -> None:
        self.value = value
        value.hashed = True

    def __hash__(self) -> int:
        return id(self.value)

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and other.value is self.value


class IdKey(IdentityKey):
    """Hash key of the `id()` of an object that was made in the frame."""

    __slots__ = ()
    __hash__ = IdentityKey.__hash__


def hash_key(value: Value) -> Any:
    """A host object that hashes and compares as the Python object does."""
    if isinstance(value, SymbolicNumber):
        return value.concrete()
    if isinstance(value, Constant):
        try:
            hash(value.value)
        except TypeError as error:
            raise GraphBreakSignal(f"unhashable key {value.describe()}") from error
        return value.value
    if isinstance(value, TupleValue):
        return tuple(
            hash_key(item.looked_at() if isinstance(item, Lazy) else item) for item in value.items
        )
    if isinstance(value, SetValue) and value.cls is frozenset:
        if not any(map(_is_by_identity, value.items)):
            return frozenset(value.items)
    if isinstance(value, (ListValue, DictValue, SetValue)):
        raise GraphBreakSignal(f"unhashable key {value.describe()}")
    if isinstance(value, IdOf):
        if value.of.source is not None:  # it may be a key as the number that it is
            value.refuse()
        return IdKey(value.of)
    cls: Any = value.python_type()
    if cls.__hash__ is object.__hash__ and cls.__eq__ is object.__eq__:
        return IdentityKey(value)
    native = getattr(value, "native", None)
    if isinstance(native, TupleValue):  # a named tuple, say
        if cls.__hash__ is tuple.__hash__ and cls.__eq__ is tuple.__eq__:
            return hash_key(native)
    import torch

    if issubclass(cls, torch.Tensor):
        return IdentityKey(value)
    if _is_frozen_record(cls) and getattr(value, "real", None) is None:
        return _record(value, cls)
    raise GraphBreakSignal(f"a key of type {cls.__name__} with its own __hash__ or __eq__")


def _is_by_identity(key: Any) -> bool:
    """Is a hash key, or a part of it, of an object that hashes by identity?"""
    if isinstance(key, (tuple, frozenset)):
        return any(map(_is_by_identity, key))
    return isinstance(key, IdentityKey)


def _is_frozen_record(cls: type) -> bool:
    """A frozen dataclass whose `__hash__` and `__eq__` are those that `dataclasses` writes."""
    if not dataclasses.is_dataclass(cls) or not cls.__dataclass_params__.frozen:  # type: ignore[attr-defined]
        return False
    own = [cls.__dict__.get(name) for name in ("__hash__", "__eq__")]
    return all(getattr(m, "__code__", None) and m.__code__.co_filename == "<string>" for m in own)  # type: ignore[union-attr]


def _record(value: Any, cls: Any) -> Any:
    """A real one with the fields of a frozen dataclass that was made in the frame."""
    real = object.__new__(cls)
    for field in dataclasses.fields(cls):
        entry = value.fields.entries.get(field.name)
        item = value.slots.get(field.name) if entry is None else entry[1]
        key = hash_key(item) if isinstance(item, Value) else IdentityKey(value)
        if _is_by_identity(key):
            raise GraphBreakSignal(f"a key of type {cls.__name__} with a field that is no constant")
        object.__setattr__(real, field.name, key)
    return real


class DictValue(Value):
    """A dict, OrderedDict, defaultdict, or an instance dictionary.

    `entries` maps hash keys to (key, value). While `origin` is set the entries are an overlay
    over the pre-existing dict: keys not in them are looked up there one by one, each guarded.
    `attributes` are those that an OrderedDict was given in the frame that made it.
    `holder` is the object whose instance dictionary it is. `left` counts how often keys left it,
    or moved: an iterator over it is then no longer where its steps say. `moves` are the changes of
    its keys in their order, of a dict that existed before.
    """

    __slots__ = (
        "attributes", "cls", "default_factory", "deleted", "entries", "holder", "is_instance_dict",
        "left", "moves", "mutated", "origin", "read",
    )  # fmt: skip

    def __init__(self, cls: type = dict, source: Source | None = None, origin: Any = None) -> None:
        self.cls = cls
        self.source = source
        self.origin: dict[Any, Any] | None = origin
        self.entries: dict[Any, tuple[Value, Any]] = {}
        self.read: dict[Any, Value] = {}  # children of the origin that were looked at
        self.deleted: set[Any] = set()  # keys of the origin that the overlay hides
        self.mutated = False
        self.left = 0
        self.moves: list[tuple[str, Value]] = []
        self.is_instance_dict = False
        self.holder: Value | None = None
        self.default_factory: Value | None = None
        self.attributes: dict[str, Value] = {}

    def python_type(self) -> type:
        return self.cls


# What was copied, and its copy, by the id of the former. That is kept: an object made later may
# have the id of one that is no more (a copy would have had the attributes of another object).
Copies = dict[int, tuple[object, Value]]


class MemoValue(DictValue):
    """The dict that a `__deepcopy__` is given, which it may only hand on: its keys are ids, which
    what is made in a graph has none of. `copies` has what was copied so far."""

    __slots__ = ("born", "copies")

    def __init__(self, copies: Copies, born: int) -> None:
        super().__init__()
        self.copies = copies
        self.born = born

    @property
    def entries(self) -> dict[Any, tuple[Value, Any]]:
        raise GraphBreakSignal(f"what is in {self.describe()}")

    @entries.setter
    def entries(self, entries: dict[Any, tuple[Value, Any]]) -> None: ...

    def describe(self) -> str:
        return "the memo of a deep copy"


class SetValue(Value):
    """A set or frozenset. `copied` is a set with a hash table that it had before its latest
    members came and others went: in which order members are iterated depends on that. `left`
    counts how often members left it. `by_key` has the members by their hash keys, among which there
    are symbolic ones if it `is_symbolic`."""

    __slots__ = ("by_key", "cls", "copied", "is_symbolic", "left", "mutated")

    def __init__(
        self,
        items: Iterable[Value],
        cls: type = set,
        source: Source | None = None,
        copied: AbstractSet[Any] | None = None,
    ) -> None:
        self.copied = copied
        self.left = 0
        self.is_symbolic = False
        self.by_key: dict[Any, Value] = {}
        for item in items:
            self.by_key.setdefault(hash_key(item), item)
        self.cls = cls
        self.source = source
        self.mutated = False

    @property
    def items(self) -> dict[Any, Value]:
        """The members by their hash keys; symbolic ints are tied to the numbers that they are."""
        if self.is_symbolic:
            self.is_symbolic = False
            self.by_key = {hash_key(item): item for item in self.by_key.values()}
        return self.by_key

    @items.setter
    def items(self, items: dict[Any, Value]) -> None:
        self.by_key = items

    def python_type(self) -> type:
        return self.cls

    def in_order(self) -> list[tuple[Any, Value]]:
        """Keys and members in the order in which the set is iterated: that of its hash table."""
        if self.source is not None and not self.mutated:
            return list(self.items.items())
        if any(isinstance(key, IdentityKey) for key in self.items):
            return list(self.items.items())  # the order of addresses, which no program can know
        return [(key, self.items[key]) for key in self.table()]

    def table(self) -> set[Any]:
        """The keys, in a hash table like that of the set."""
        table: set[Any] = set() if self.copied is None else set(self.copied)
        for key in [key for key in table if key not in self.items]:
            table.discard(key)
        for key in self.items:  # one by one: all at once, the table would be of another size
            table.add(key)
        return table

    def copy(self) -> SetValue:
        """What its method `copy` gives."""
        made = SetValue([], self.cls)
        made.update((item for _, item in self.in_order()), self)
        return made

    def update(self, items: Iterable[Value], other: Value) -> None:
        """Add the members of `other`, which `items` goes through. How the table grows depends on
        whether that is a set, a dictionary or anything else."""
        table = self.table()
        keys: dict[Any, None] = {}
        for item in items:
            key = hash_key(item)
            keys[key] = None
            self.items.setdefault(key, item)
        if any(isinstance(key, IdentityKey) for key in self.items):
            return
        if isinstance(other, SetValue):
            table.update(other.table())
        elif isinstance(other, Constant) and isinstance(other.value, frozenset):
            table.update(other.value)
        elif isinstance(other, DictValue):
            table.update(keys)
        else:
            return
        self.copied = table


class DictView(Value):
    """`d.keys()`, `d.values()` or `d.items()`."""

    __slots__ = ("dictionary", "kind")

    def __init__(self, dictionary: Value, kind: str) -> None:
        self.dictionary = dictionary
        self.kind = kind
        self.source = None

    def python_type(self) -> type:
        return _VIEW_TYPES[issubclass(self.dictionary.python_type(), _ORDERED), self.kind]


_ORDERED = collections.OrderedDict
_VIEW_TYPES: dict[tuple[bool, str], type] = {
    (issubclass(cls, _ORDERED), kind): type(getattr(cls(), kind)())
    for cls in (dict, _ORDERED)
    for kind in ("keys", "values", "items")
}

DICT_TYPES: tuple[type, ...] = (dict, collections.OrderedDict, collections.defaultdict)
