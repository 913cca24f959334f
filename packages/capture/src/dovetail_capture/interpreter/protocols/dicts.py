"""Dictionaries: lazy reading of pre-existing ones, an overlay for what the frame writes. Keys may
be symbolic ints (of sets, too)."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from numbers import Number
from types import FunctionType
from typing import TYPE_CHECKING, Any

from dovetail_guards import clauses as c
from dovetail_guards.evaluate import ordered_keys

from dovetail_capture.interpreter.protocols.class_attributes import class_lookup
from dovetail_capture.interpreter.signals import GraphBreakSignal
from dovetail_capture.interpreter.values.base import NONE, Constant, Lazy, Value, is_none
from dovetail_capture.interpreter.values.containers import (
    DictValue,
    IdentityKey,
    SetValue,
    hash_key,
)
from dovetail_capture.interpreter.values.objects import ObjectValue, ProgramException
from dovetail_capture.interpreter.values.symbolic import SymbolicKey

if TYPE_CHECKING:
    from dovetail_capture.interpreter.machine import Interpreter
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


_ABSENT: Any = object()


def _by_identity(key: Any) -> bool:
    """Is the hash key one of an object that is known by its identity (a tensor, say)? The
    dictionary itself has the object, not the key."""
    return isinstance(key, IdentityKey) or (
        isinstance(key, tuple) and any(_by_identity(part) for part in key)
    )


def key_of(vm: Interpreter, dictionary: DictValue, key: Value) -> Any:
    """The hash key of `key` in a dictionary."""
    return key_among(vm.session, key, dictionary.entries, dictionary.deleted)


def _settled(vm: Interpreter, dictionary: DictValue, key: Any) -> Any:
    """A key of which it is known whether a dictionary that existed before has it. Of a symbolic one
    that is so if it is none of the keys, as long as there are few; or else of the number it is."""
    if type(key) is not SymbolicKey or key in dictionary.entries or key in dictionary.deleted:
        return key
    if dictionary.origin is None:
        return known_key(key, dictionary.entries)
    if len(dictionary.origin) > _FEW_KEYS:
        return key.number.concrete()
    return known_key(key, materialise(vm, dictionary))


_FEW_KEYS = 8  # that a symbolic one is compared with


def _resolve(vm: Interpreter, dictionary: DictValue, key: Any) -> Value:
    known_key, item = dictionary.entries[key]
    if isinstance(item, Lazy):
        item = vm.wrap(item.real, item.source)
        dictionary.entries[key] = (known_key, item)
    return item  # type: ignore[no-any-return]


def note_no_attributes(vm: Interpreter, dictionary: DictValue, name: str | None = None) -> None:
    """Guard that an OrderedDict has no attribute, or none of this name: alone of its kind it may
    have some (with which it would be an object here)."""
    if dictionary.attributes and name is None:
        raise GraphBreakSignal("a copy of an OrderedDict with attributes")
    if dictionary.cls is not OrderedDict or dictionary.source is None:
        return
    if name is not None:
        vm.session.guards.add(c.HasInstanceAttr, dictionary.source, name, False)
    else:
        fields = vm.session.sources.attr(dictionary.source, "__dict__")
        vm.session.guards.add(c.LengthIs, fields, 0)


def get(vm: Interpreter, dictionary: DictValue, key: Any) -> Value | None:
    """The value at hash key `key`, or None if the key is absent."""
    if dictionary.origin is not None and _by_identity(key):
        materialise(vm, dictionary)
    key = _settled(vm, dictionary, key)
    if key in dictionary.entries:
        return _resolve(vm, dictionary, key)
    origin = dictionary.origin
    if origin is None or key in dictionary.deleted:
        return None
    known = dictionary.read.get(key)
    if known is not None:
        return known
    source = dictionary.source
    assert source is not None
    session = vm.session
    real = dict.get(origin, key, _ABSENT)  # `__getitem__` of a defaultdict would make one
    of_instance, sources = dictionary.is_instance_dict, session.sources
    if real is _ABSENT:
        session.guards.add(c.HasInstanceAttr if of_instance else c.HasKey, source, key, False)
        return None
    place_of_key = sources.instance_attr if of_instance else sources.item
    value = vm.wrap(real, place_of_key(source, key))
    dictionary.read[key] = value
    return value


def contains(vm: Interpreter, dictionary: DictValue, key: Any) -> bool:
    """Is hash key `key` in the dictionary? Guards presence only, not the value."""
    if dictionary.origin is not None and _by_identity(key):
        materialise(vm, dictionary)
    key = _settled(vm, dictionary, key)
    if key in dictionary.entries:
        return True
    if dictionary.origin is None or key in dictionary.deleted:
        return False
    present = dict.__contains__(dictionary.origin, key)
    assert dictionary.source is not None
    kind = c.HasInstanceAttr if dictionary.is_instance_dict else c.HasKey
    vm.session.guards.add(kind, dictionary.source, key, present)
    return present


def materialise(vm: Interpreter, dictionary: DictValue) -> dict[Any, tuple[Value, Any]]:
    """Read the whole key set of a pre-existing dictionary (its values stay lazy)."""
    origin = dictionary.origin
    if origin is None:
        return dictionary.entries
    source = dictionary.source
    assert source is not None
    session = vm.session
    whole: dict[Any, tuple[Value, Any]] = {}
    real_keys = ordered_keys(origin)
    moved = [key for how, key in dictionary.moves if how != "put"]  # some are back
    left = {SymbolicKey(key) if SymbolicKey.fits(key) else hash_key(key) for key in moved}
    symbolic: list[Any] = []
    if session.objects.symbolic_keys:
        own = (*dictionary.entries, *dictionary.deleted, *left)
        symbolic = [key for key in own if type(key) is SymbolicKey]
    if dictionary.is_instance_dict:
        guarded = session.sources.attr(source, "__dict__")
        session.guards.add(c.DictKeysAre, guarded, tuple(real_keys))
    elif all(_is_plain_key(key) for key in real_keys):
        session.guards.add(c.DictKeysAre, source, tuple(real_keys))
    else:
        session.guards.add(c.LengthIs, source, len(origin))
    for index, real_key in enumerate(real_keys):
        real = dict.__getitem__(origin, real_key)
        if _is_plain_key(real_key):
            key_value: Value = Constant(real_key)
            hashed: Any = real_key
            child = (
                session.sources.instance_attr(source, real_key)
                if dictionary.is_instance_dict
                else session.sources.item(source, real_key)
            )
        else:
            key_value = vm.wrap(real_key, session.sources.key(source, index))
            hashed = hash_key(key_value)
            child = session.sources.item(source, real_key)
        if symbolic:
            hashed = known_key(hashed, symbolic)
        if hashed in dictionary.deleted or hashed in left:
            continue
        read = dictionary.read.get(hashed)
        whole[hashed] = (key_value, read if read is not None else Lazy(real, child))
    for hashed, (put_key, item) in dictionary.entries.items():
        known = whole.get(hashed)
        whole[hashed] = (put_key if known is None else known[0], item)
    dictionary.entries = whole
    dictionary.origin = None
    dictionary.deleted = set()
    return whole


def _is_plain_key(key: Any) -> bool:
    return isinstance(key, (str, int, float, bool, bytes, type(None), type, SymbolicKey)) or (
        isinstance(key, tuple) and all(_is_plain_key(part) for part in key)
    )


def _look_at_keys(vm: Interpreter, dictionary: DictValue, key: Any) -> None:
    """Read the keys of a dictionary that is to be changed, unless the change is the same whatever
    they are: what plain keys are given is an overlay, replayed key by key."""
    if dictionary.origin is None or dictionary.is_instance_dict:
        return
    if not _is_plain_key(key) or key != key:  # (of a NaN, that very object is the key)
        materialise(vm, dictionary)


def put(vm: Interpreter, dictionary: DictValue, key: Value, value: Value) -> None:
    """`dictionary[key] = value`."""
    hashed = key_of(vm, dictionary, key)
    _look_at_keys(vm, dictionary, hashed)
    known = dictionary.entries.get(hashed)
    if known is None and dictionary.source is not None:
        dictionary.moves.append(("put", key))
    dictionary.entries[hashed] = (key if known is None else known[0], value)
    dictionary.deleted.discard(hashed)
    dictionary.mutated = True


def delete(vm: Interpreter, dictionary: DictValue, key: Any, how: str = "pop") -> bool:
    """`del dictionary[key]` by hash key, or what `how` says; False if it is absent."""
    key = _settled(vm, dictionary, key)
    _look_at_keys(vm, dictionary, key)
    present = contains(vm, dictionary, key)
    if not present:
        return False
    known = dictionary.entries.pop(key, None)
    move(dictionary, how, Constant(key) if known is None else known[0])
    origin = dictionary.origin
    if origin is not None and (type(key) is SymbolicKey or key in origin):
        dictionary.deleted.add(key)
    dictionary.mutated = True
    return True


def move(dictionary: DictValue, how: str, key: Value) -> None:
    """Note that a key leaves, or takes another place."""
    dictionary.left += 1
    if dictionary.source is not None:
        dictionary.moves.append((how, key))


def length(vm: Interpreter, dictionary: DictValue) -> int:
    """`len(dictionary)`."""
    origin = dictionary.origin
    if origin is not None and not dictionary.is_instance_dict and not dictionary.mutated:
        assert dictionary.source is not None
        vm.session.guards.add(c.LengthIs, dictionary.source, len(origin))
        return len(origin)
    return len(materialise(vm, dictionary))


def items(vm: Interpreter, dictionary: DictValue) -> list[tuple[Value, Value]]:
    """All (key, value) pairs in order."""
    materialise(vm, dictionary)
    return [
        (dictionary.entries[key][0], _resolve(vm, dictionary, key))
        for key in list(dictionary.entries)
    ]


def keys(vm: Interpreter, dictionary: DictValue) -> list[Value]:
    """All keys in order; values are not looked at."""
    return [key for key, _ in materialise(vm, dictionary).values()]


def lookup(vm: Interpreter, dictionary: DictValue, key: Value) -> Value:
    """`dictionary[key]`, with a defaultdict's factory and KeyError."""
    value = get(vm, dictionary, key_of(vm, dictionary, key))
    if value is not None:
        return value
    factory = dictionary.default_factory
    if factory is not None and not is_none(factory):
        value = vm.call(factory, [], {})
        put(vm, dictionary, key, value)
        return value
    return vm.raise_exception(KeyError, [key])


def update(vm: Interpreter, target: DictValue, mapping: Value) -> None:
    """`target.update(mapping)`."""
    native = vm.native(mapping)
    if isinstance(native, DictValue) and not _iterates_by_itself(vm, mapping):
        for key, value in items(vm, native):
            put(vm, target, key, value)
        return
    own_keys = vm.find_attr(mapping, "keys") if isinstance(mapping, ObjectValue) else None
    if own_keys is not None:
        for key in vm.iterate(vm.call(own_keys, [], {})):
            put(vm, target, key, vm.getitem(mapping, key))
        return
    if isinstance(mapping, Constant) and hasattr(mapping.value, "items"):
        for real_key, real in mapping.value.items():
            put(vm, target, vm.held(real_key), vm.held(real))
        return
    for place, pair in enumerate(vm.iterate(mapping)):
        try:
            parts = list(vm.iterate(pair))
        except ProgramException as error:
            if not issubclass(error.value.python_type(), TypeError):
                raise
            text = f"cannot convert dictionary update sequence element #{place} to a sequence"
            vm.raise_error(TypeError, text)
        if len(parts) != 2:
            vm.raise_error(
                ValueError,
                f"dictionary update sequence element #{place} has length {len(parts)}; "
                "2 is required",
            )
        put(vm, target, *parts)


def _iterates_by_itself(vm: Interpreter, mapping: Value) -> bool:
    """Has its class an `__iter__` of Python's? Such a dictionary is asked for its keys."""
    if mapping.__class__ is not ObjectValue:
        return False
    _, found = class_lookup(vm, mapping.python_type(), "__iter__")
    return isinstance(found, FunctionType)


def clear(vm: Interpreter, dictionary: DictValue) -> None:
    """`dictionary.clear()`."""
    if dictionary.is_instance_dict and dictionary.origin is not None:
        materialise(vm, dictionary)
    dictionary.origin = None
    dictionary.entries = {}
    move(dictionary, "clear", NONE)
    dictionary.mutated = True


def copy_entries(vm: Interpreter, dictionary: DictValue) -> DictValue:
    """A shallow copy as a new dict of the same class, without what attributes it may have."""
    new = DictValue(dictionary.cls)
    new.entries = dict(materialise(vm, dictionary))
    new.default_factory = dictionary.default_factory
    return new
