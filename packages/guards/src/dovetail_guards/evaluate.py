"""The slow evaluator: what every source *means* (`check_clauses`: what every clause does).

It is the oracle of the native check and the explainer of its failures. Nothing here raises for a
value of an unexpected shape: a source that cannot be evaluated gives `MISSING`.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from types import CellType, CodeType, FunctionType, GetSetDescriptorType, MemberDescriptorType
from typing import Any

import torch

from dovetail_guards import source as s
from dovetail_guards.float_expr import ComputedSource
from dovetail_guards.iterators import READERS as ITERATOR_READERS


class _Missing:
    """The type of `MISSING`."""

    def __repr__(self) -> str:
        return "<missing>"


MISSING = _Missing()
"""What a source that cannot be evaluated gives."""


@dataclass(frozen=True, eq=False)
class FrameView:
    """What a guard sees of a call: the raw arguments in `co_varnames` order, and the function."""

    args: tuple[Any, ...]
    func: FunctionType


def argument_names(code: CodeType) -> tuple[str, ...]:
    """Names of the frame's raw arguments, `*args` and `**kwargs` included, in slot order."""
    count = code.co_argcount + code.co_kwonlyargcount
    count += bool(code.co_flags & 0x04) + bool(code.co_flags & 0x08)
    return code.co_varnames[:count]


def constants_equal(seen: Any, value: Any) -> bool:
    """Same type and same value, all the way down; nan equals nan, 0.0 differs from -0.0."""
    if type(seen) is not type(value):
        return False
    if seen is value:
        return True
    if isinstance(value, float):
        if math.isnan(value) or math.isnan(seen):
            return math.isnan(value) and math.isnan(seen)
        return value == seen and math.copysign(1.0, value) == math.copysign(1.0, seen)
    if isinstance(value, complex):
        return constants_equal(seen.real, value.real) and constants_equal(seen.imag, value.imag)
    if isinstance(value, tuple):
        return len(value) == len(seen) and all(
            constants_equal(a, b) for a, b in zip(seen, value, strict=True)
        )
    if type(value) in (set, frozenset):
        return {constant_key(e) for e in seen} == {constant_key(e) for e in value}
    if type(value) is slice or type(value) is range:
        return all(
            constants_equal(getattr(seen, part), getattr(value, part))
            for part in ("start", "stop", "step")
        )
    if type(value).__module__ == "numpy" and getattr(value, "shape", None) == ():  # a scalar
        number = value.item()
        if type(number) in (float, complex):
            return constants_equal(seen.item(), number)
    try:
        return bool(seen == value)
    except Exception:
        return False


def constant_key(value: Any) -> Any:
    """A hashable key; equal keys mean `constants_equal` (1, 1.0 and True have different ones)."""
    if isinstance(value, (float, complex)):
        return (type(value), repr(value))
    if isinstance(value, tuple):
        return (type(value), tuple(constant_key(e) for e in value))
    if type(value) is frozenset:
        return (frozenset, frozenset(constant_key(e) for e in value))
    if type(value) is slice or type(value) is range:
        return (type(value), repr(value))
    try:
        hash(value)
    except Exception:
        return (type(value), id(value))
    return (type(value), value)


def keys_equal(seen: Any, key: Any) -> bool:
    """Dict keys as guards compare them: the same object, or one that is equal as constants are."""
    return seen is key or constants_equal(seen, key)


TYPE_DICT: Any = type.__dict__["__dict__"]


def instance_dict(value: Any) -> Any:
    """`value.__dict__` without running user code: a dict (a mapping proxy for a class) or None."""
    if isinstance(value, type):
        return TYPE_DICT.__get__(value)
    for klass in type(value).__mro__:
        descriptor = TYPE_DICT.__get__(klass).get("__dict__")
        if isinstance(descriptor, (GetSetDescriptorType, MemberDescriptorType)):
            found = descriptor.__get__(value)
            return found if isinstance(found, dict) else None
    return None


def ordered_keys(value: dict[Any, Any]) -> list[Any]:
    """The keys in iteration order, by the base class's own iterator."""
    if isinstance(value, OrderedDict):
        return list(OrderedDict.__iter__(value))
    return list(dict.__iter__(value))


def instance_attr(base: Any, name: str) -> Any:
    """An attribute of the instance itself, or `MISSING`."""
    held = instance_dict(base)
    return MISSING if held is None else held.get(name, MISSING)


def _item(base: Any, key: Any) -> Any:
    if isinstance(base, dict):
        return dict.get(base, key, MISSING)
    if isinstance(base, list):
        return list.__getitem__(base, key)
    if isinstance(base, tuple):
        return tuple.__getitem__(base, key)
    if isinstance(base, torch.Tensor):
        return MISSING  # a container was in its place: its own items are read by no guard
    return base[key]


def _closure_cell(source: s.ClosureSource, frame: FrameView) -> Any:
    cells = frame.func.__closure__ or ()
    return cells[frame.func.__code__.co_freevars.index(source.name)].cell_contents


def _computed(source: ComputedSource, frame: FrameView) -> Any:
    found = [evaluate(part, frame) for _, part in source.symbols]
    return MISSING if MISSING in found else source.of(*found)


# What gives the value of a source: of the frame, or of what its base gave.
_OF_FRAME: dict[type[s.Source], Callable[[Any, Any], Any]] = {
    s.LocalSource: lambda source, frame: frame.args[
        argument_names(frame.func.__code__).index(source.name)
    ],
    s.ClosureSource: _closure_cell,
    s.GlobalSource: lambda source, frame: dict.get(frame.func.__globals__, source.name, MISSING),
    s.BuiltinSource: lambda source, frame: dict.get(frame.func.__builtins__, source.name, MISSING),
    s.ObjectSource: lambda source, frame: source.obj,
    ComputedSource: _computed,
}
_CONTENTS: Any = CellType.__dict__["cell_contents"]
_OF_BASE: dict[type[s.Source], Callable[[Any, Any], Any]] = {
    s.AttrSource: lambda source, base: getattr(base, source.name),
    s.InstanceAttrSource: lambda source, base: instance_attr(base, source.name),
    s.ItemSource: lambda source, base: _item(base, source.key),
    s.DictKeySource: lambda source, base: ordered_keys(base)[source.index],
    s.TypeSource: lambda source, base: type(base),
    s.CellContentsSource: lambda source, base: _CONTENTS.__get__(base),
    s.SizeSource: lambda source, base: torch._C.TensorBase.size(base, source.dim),
    s.StrideSource: lambda source, base: torch._C.TensorBase.stride(base, source.dim),
    s.FlattenSource: lambda source, base: base.__tensor_flatten__(),
    s.IteratorSource: lambda source, base: ITERATOR_READERS[source.part](base),
}


def evaluate(source: s.Source, frame: FrameView) -> Any:
    """The value of a source in a frame, or `MISSING`."""
    given: Any = frame
    read = _OF_FRAME.get(type(source))
    if read is None:
        read, given = _OF_BASE[type(source)], evaluate(source.base, frame)  # type: ignore[attr-defined]
    try:
        return MISSING if given is MISSING else read(source, given)
    except Exception:
        return MISSING
