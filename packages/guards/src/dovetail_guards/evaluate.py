"""The slow evaluator: what every source *means* (`check_clauses`: what every clause does).

It is the oracle of the native check and the explainer of its failures. Nothing here raises for a
value of an unexpected shape: a source that cannot be evaluated gives `MISSING`.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from dataclasses import dataclass
from types import CodeType, FunctionType, GetSetDescriptorType, MemberDescriptorType
from typing import Any

import torch

from dovetail_guards import source as s
from dovetail_guards.computed import ComputedSource
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


def _attr(base: Any, name: str) -> Any:
    try:
        return getattr(base, name)
    except Exception:
        return MISSING


def instance_attr(base: Any, name: str) -> Any:
    """An attribute of the instance itself, or `MISSING`."""
    held = instance_dict(base)
    return MISSING if held is None else held.get(name, MISSING)


def _item(base: Any, key: Any) -> Any:
    try:
        if isinstance(base, dict):
            return dict.get(base, key, MISSING)
        if isinstance(base, list):
            return list.__getitem__(base, key)
        if isinstance(base, tuple):
            return tuple.__getitem__(base, key)
        if isinstance(base, torch.Tensor):
            return MISSING  # a container was in its place: its own items are read by no guard
        return base[key]
    except Exception:
        return MISSING


def _dict_key(base: Any, index: int) -> Any:
    if not isinstance(base, dict):
        return MISSING
    keys = ordered_keys(base)
    return keys[index] if 0 <= index < len(keys) else MISSING


def _cell(cell: Any) -> Any:
    try:
        return cell.cell_contents if type(cell) is _CELL else MISSING
    except ValueError:  # an empty cell
        return MISSING


_CELL = type((lambda x: lambda: x)(0).__closure__[0])  # type: ignore[index]


def _closure(name: str, frame: FrameView) -> Any:
    names = frame.func.__code__.co_freevars
    cells = frame.func.__closure__ or ()
    return _cell(cells[names.index(name)]) if name in names else MISSING


def _local(name: str, frame: FrameView) -> Any:
    names = argument_names(frame.func.__code__)
    if name not in names:
        return MISSING
    position = names.index(name)
    return frame.args[position] if position < len(frame.args) else MISSING


def _size(base: Any, dim: int, read: Any = torch._C.TensorBase.size) -> Any:
    if not isinstance(base, torch.Tensor):
        return MISSING
    try:
        return read(base, dim)
    except Exception:
        return MISSING


def evaluate(source: s.Source, frame: FrameView) -> Any:
    """The value of a source in a frame, or `MISSING`."""
    match source:
        case s.LocalSource(name):
            return _local(name, frame)
        case s.ClosureSource(name):
            return _closure(name, frame)
        case s.GlobalSource(name):
            return dict.get(frame.func.__globals__, name, MISSING)
        case s.BuiltinSource(name):
            builtins: Any = frame.func.__builtins__  # type: ignore[attr-defined,unused-ignore]
            return dict.get(builtins, name, MISSING)
        case s.ObjectSource():
            return source.obj
        case ComputedSource(_, _, symbols):
            found = [evaluate(part, frame) for _, part in symbols]
            try:
                return MISSING if MISSING in found else source.of(*found)
            except (ArithmeticError, ValueError, TypeError):
                return MISSING
    base = evaluate(source.base, frame)  # type: ignore[attr-defined]
    if base is MISSING:
        return MISSING
    match source:
        case s.AttrSource(_, name):
            return _attr(base, name)
        case s.InstanceAttrSource(_, name):
            return instance_attr(base, name)
        case s.ItemSource(_, key):
            return _item(base, key)
        case s.DictKeySource(_, index):
            return _dict_key(base, index)
        case s.TypeSource():
            return type(base)
        case s.CellContentsSource():
            return _cell(base)
        case s.SizeSource(_, dim):
            return _size(base, dim)
        case s.StrideSource(_, dim):
            return _size(base, dim, torch._C.TensorBase.stride)
        case s.FlattenSource():
            return _flatten(base)
        case s.IteratorSource(_, part):
            return _iterator_part(base, part)
    raise TypeError(f"no evaluation rule for {type(source).__name__}")


def _flatten(base: Any) -> Any:
    try:
        return base.__tensor_flatten__()
    except Exception:
        return MISSING


def _iterator_part(base: Any, part: str) -> Any:
    try:
        return ITERATOR_READERS[part](base)
    except Exception:
        return MISSING
