"""The slow evaluator: what every source and clause *means*.

It is the oracle of the native check and the explainer of its failures. Nothing here raises for a
value of an unexpected shape: a source that cannot be evaluated gives `MISSING`, and a clause
about it fails.
"""

from __future__ import annotations

import abc
import math
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from types import CodeType, FunctionType, GetSetDescriptorType, MemberDescriptorType
from typing import Any

import torch

from dovetail_guards import clauses as c
from dovetail_guards import source as s
from dovetail_guards.computed import ComputedSource, as_symbol
from dovetail_guards.iterators import READERS as ITERATOR_READERS
from dovetail_guards.torch_state import READERS


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


_TYPE_DICT: Any = type.__dict__["__dict__"]


def instance_dict(value: Any) -> Any:
    """`value.__dict__` without running user code: a dict (a mapping proxy for a class) or None."""
    if isinstance(value, type):
        return _TYPE_DICT.__get__(value)
    for klass in type(value).__mro__:
        descriptor = _TYPE_DICT.__get__(klass).get("__dict__")
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


def _instance_attr(base: Any, name: str) -> Any:
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
            return _instance_attr(base, name)
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


def tensor_mismatch(clause: c.TensorIs, value: Any) -> tuple[str, Any, Any] | None:
    """The first property of `value` that differs: (name, expected, seen); None if all hold."""
    if type(value) is not clause.type_:
        return "type", clause.type_, type(value)
    with torch._C.DisableTorchFunctionSubclass():  # its class may have a method for these
        return _metadata_mismatch(clause, value)


def _metadata_mismatch(clause: c.TensorIs, value: Any) -> tuple[str, Any, Any] | None:
    tensor: Any = value
    try:
        for name in ("dtype", "device", "requires_grad", "layout"):
            expected, seen = getattr(clause, name), getattr(tensor, name)
            if expected != seen:
                return name, expected, seen
        if tensor.is_conj() != clause.is_conj:
            return "is_conj", clause.is_conj, tensor.is_conj()
        if tensor.is_neg() != clause.is_neg:
            return "is_neg", clause.is_neg, tensor.is_neg()
        sizes = tuple(tensor.size())
        if not _dims_match(clause.sizes, sizes):
            return "sizes", clause.sizes, sizes
        if clause.strides is not None:
            strides = tuple(tensor.stride())
            if not _dims_match(clause.strides, strides):
                return "strides", clause.strides, strides
    except Exception as error:  # e.g. strides of a tensor that has none
        return "metadata", "readable", str(error)
    return None


def _dims_match(expected: tuple[int | None, ...], seen: tuple[Any, ...]) -> bool:
    return len(expected) == len(seen) and all(
        e is None or e == v for e, v in zip(expected, seen, strict=True)
    )


def _length(value: Any) -> int | None:
    for base in (list, tuple, dict, set, frozenset):
        if isinstance(value, base):
            size: Any = base.__len__
            return int(size(value))
    try:
        return len(value)
    except Exception:
        return None


def _storage_address(value: Any) -> int | None:
    if not isinstance(value, torch.Tensor):
        return None
    try:
        return int(value.untyped_storage()._cdata)
    except Exception:
        return None


def _pairwise_different(keys: list[int | None]) -> bool:
    return None not in keys and len(set(keys)) == len(keys)


def _has_key(value: Any, clause: c.HasKey) -> bool:
    if not isinstance(value, dict):
        return False
    try:
        return dict.__contains__(value, clause.key) == clause.present
    except Exception:
        return False


def _relation(clause: c.ShapeRelation, frame: FrameView) -> bool:
    values: dict[str, int] = {}
    for name, source in clause.symbols:
        value = as_symbol(evaluate(source, frame))
        if type(value) is not int:
            return False
        values[name] = value
    try:
        return bool(clause.expr.evaluate(values))
    except (ArithmeticError, ValueError):
        return False


_TYPE_MRO: Any = type.__dict__["__mro__"]


def changed_class_attr(clause: c.ClassAttrsAre, value: Any) -> str | None:
    """The first name that a class no longer answers as the clause says; "" for no class."""
    if not isinstance(value, type):
        return ""
    for name, attr, present in clause.attrs:
        if name == c.MRO:
            if _TYPE_MRO.__get__(value) is not attr:
                return "__mro__"
            continue
        held = [_TYPE_DICT.__get__(owner) for owner in _TYPE_MRO.__get__(value)]
        found = next((attributes[name] for attributes in held if name in attributes), MISSING)
        if found is not (attr if present else MISSING):
            return name
    return None


def counts_as(cls: type, abstract: abc.ABCMeta) -> bool:
    """What `ABCMeta` says, whatever a metaclass derived from it would do."""
    return abc.ABCMeta.__subclasscheck__(abstract, cls)


def answers_hold(clause: c.AbstractAnswers) -> bool:
    """Whether classes still count as subclasses of what they did."""
    return all(counts_as(cls, other) == answer for cls, other, answer in clause.answers)


def check(clause: c.Clause, frame: FrameView) -> bool:
    """Does this clause hold in this frame?"""
    if isinstance(clause, c.TorchState):
        return constants_equal(READERS[clause.name](), clause.value)
    if isinstance(clause, c.AbstractAnswers):
        return answers_hold(clause)
    if isinstance(clause, c.GlobalPresent):
        return dict.__contains__(frame.func.__globals__, clause.name) == clause.present
    if isinstance(clause, c.ShapeRelation):
        return _relation(clause, frame)
    if isinstance(clause, (c.SameObject, c.DistinctObjects, c.DistinctStorage)):
        values = [evaluate(source, frame) for source in clause.sources]
        if any(value is MISSING for value in values):
            return False
        if isinstance(clause, c.SameObject):
            return all(value is values[0] for value in values)
        if isinstance(clause, c.DistinctObjects):
            return _pairwise_different([id(value) for value in values])
        return _pairwise_different([_storage_address(value) for value in values])
    value = evaluate(clause.source, frame)  # type: ignore[attr-defined]
    return value is not MISSING and _VALUE_CHECKS[type(clause)](clause, value)


def accumulator_has_hooks(tensor: torch.Tensor) -> bool:
    """Are there hooks on the node of autograd that accumulates the gradient of this tensor? (Only
    the native part sees those of C++.)"""
    native = import_module("dovetail_guards.native")
    return bool(native.accumulator_has_hooks(tensor))


def _slot_is_empty(value: Any, name: str) -> bool:
    for klass in type(value).__mro__:
        descriptor = _TYPE_DICT.__get__(klass).get(name, MISSING)
        if descriptor is not MISSING:
            if not isinstance(descriptor, MemberDescriptorType):
                return False
            try:
                descriptor.__get__(value)
            except AttributeError:
                return True
            return False
    return False


_VALUE_CHECKS: dict[type[c.Clause], Callable[[Any, Any], bool]] = {
    c.TypeIs: lambda clause, value: type(value) is clause.type_,
    c.IdIs: lambda clause, value: clause.is_met_by(value),
    c.ConstantIs: lambda clause, value: constants_equal(value, clause.value),
    c.LengthIs: lambda clause, value: _length(value) == clause.length,
    c.DictKeysAre: lambda clause, value: (
        isinstance(value, dict)
        and len(keys := ordered_keys(value)) == len(clause.keys)
        and all(keys_equal(a, b) for a, b in zip(keys, clause.keys, strict=True))
    ),
    c.HasKey: lambda clause, value: _has_key(value, clause),
    c.HasInstanceAttr: lambda clause, value: (
        (_instance_attr(value, clause.name) is not MISSING) == clause.present
    ),
    c.SlotIsEmpty: lambda clause, value: _slot_is_empty(value, clause.name),
    c.NoAccumulatorHooks: lambda clause, value: (
        isinstance(value, torch.Tensor) and not accumulator_has_hooks(value)
    ),
    c.ClassAttrsAre: lambda clause, value: changed_class_attr(clause, value) is None,
    c.FunctionIs: lambda clause, value: (
        type(value) is FunctionType
        and value.__code__ is clause.code
        and value.__defaults__ is clause.defaults
        and value.__kwdefaults__ is clause.kwdefaults
    ),
    c.TensorIs: lambda clause, value: tensor_mismatch(clause, value) is None,
}
