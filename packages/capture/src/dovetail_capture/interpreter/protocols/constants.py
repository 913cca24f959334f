"""From values to the real objects they stand for, where these are known, and back."""

from __future__ import annotations

import collections
import enum
import types
from typing import TYPE_CHECKING, Any

from dovetail_capture.interpreter.protocols import dicts, sequences
from dovetail_capture.interpreter.values.base import Constant, Value, is_numpy
from dovetail_capture.interpreter.values.containers import (
    DictValue,
    DictView,
    ListValue,
    SetValue,
    SliceValue,
    TupleValue,
)
from dovetail_capture.interpreter.values.functions import IteratorValue
from dovetail_capture.interpreter.values.symbolic import SYMBOLIC_TYPES, IdOf, SymbolicNumber
from dovetail_capture.interpreter.values.texts import LateText
from dovetail_capture.skip import module_of

if TYPE_CHECKING:
    from dovetail_capture.interpreter.machine import Interpreter

UNKNOWN = object()


def as_python(vm: Interpreter, value: Any) -> Any:
    """The object that `value` stands for (a copy, for a container), or UNKNOWN."""
    cls = value.__class__
    if cls is Constant or cls is LateText:
        return value.value
    if isinstance(value, SymbolicNumber):
        return value.concrete()
    if cls is IdOf:
        value.refuse()
    if cls in _CONTAINERS:
        if id(value) in vm.copied:
            return UNKNOWN  # it contains itself
        vm.copied.add(id(value))
        try:
            return _container(vm, value)
        finally:
            vm.copied.discard(id(value))
    return UNKNOWN


_CONTAINERS = frozenset({TupleValue, ListValue, DictValue, SetValue, SliceValue, DictView})


def _container(vm: Interpreter, value: Any) -> Any:
    """A copy of a container, or UNKNOWN."""
    cls = value.__class__
    if cls is TupleValue:
        items = [as_python(vm, item) for item in sequences.items(vm, value)]
        if UNKNOWN in _by_identity(items):
            return UNKNOWN
        return value.cls(items)
    if cls is ListValue:
        items = [as_python(vm, item) for item in sequences.items(vm, value)]
        if UNKNOWN in _by_identity(items):
            return UNKNOWN
        return value.cls(items, value.maxlen) if value.cls is collections.deque else items
    if cls is DictValue:
        result = {}
        for key, item in dicts.items(vm, value):
            real_key, real_item = as_python(vm, key), as_python(vm, item)
            if real_key is UNKNOWN or real_item is UNKNOWN:
                return UNKNOWN
            result[real_key] = real_item
        if value.cls is collections.defaultdict:
            factory = as_python(vm, value.default_factory or Constant(None))
            return UNKNOWN if factory is UNKNOWN else value.cls(factory, result)
        return value.cls(result) if value.cls is not dict else result
    if cls is SetValue:
        items = [as_python(vm, item) for item in value.items.values()]
        return UNKNOWN if UNKNOWN in _by_identity(items) else value.cls(items)
    if cls is SliceValue:
        parts = [as_python(vm, part) for part in (value.start, value.stop, value.step)]
        return UNKNOWN if UNKNOWN in _by_identity(parts) else slice(*parts)
    items = [as_python(vm, item) for item in vm.iterate(value)]  # of a view
    if UNKNOWN in _by_identity(items):
        return UNKNOWN
    ordered = issubclass(value.dictionary.python_type(), collections.OrderedDict)
    table: Any = collections.OrderedDict if ordered else dict
    if value.kind == "values":
        return table(enumerate(items)).values()
    return table.fromkeys(items).keys() if value.kind == "keys" else table(items).items()


class _by_identity:
    """`in` by `is`: members may have odd ideas of equality."""

    def __init__(self, items: list[Any]) -> None:
        self.items = items

    def __contains__(self, wanted: object) -> bool:
        return any(item is wanted for item in self.items)


_PLAIN = (
    bool, int, float, complex, str, bytes, type(None), type, types.FunctionType,
    types.BuiltinFunctionType, types.ModuleType, enum.Enum, types.CodeType,
)  # fmt: skip


def from_python(vm: Interpreter, real: Any) -> Value:
    """The value of an object that a folded call gave: new containers, else a constant."""
    cls = type(real)
    if cls in SYMBOLIC_TYPES:
        return SymbolicNumber(real)
    if cls is list or cls is collections.deque:
        return ListValue([from_python(vm, item) for item in real], cls)
    if cls is tuple:
        return TupleValue([from_python(vm, item) for item in real])
    if module_of(cls).startswith("torch") and issubclass(cls, tuple):
        return TupleValue([from_python(vm, item) for item in real], cls)
    if cls is dict or cls is collections.OrderedDict:
        value = DictValue(cls)
        for key, item in real.items():
            dicts.put(vm, value, from_python(vm, key), from_python(vm, item))
        value.mutated = False
        return value
    if cls is set:
        return SetValue([from_python(vm, item) for item in real], set, copied=frozenset(real))
    if cls is slice:
        return SliceValue(*(from_python(vm, p) for p in (real.start, real.stop, real.step)))
    if cls in (zip, map, enumerate, reversed) or "iterator" in cls.__name__:
        return IteratorValue((from_python(vm, item) for item in real), cls, True)
    if isinstance(real, _PLAIN) or is_numpy(cls, "generic"):
        return Constant(real)
    return vm.held(real)
