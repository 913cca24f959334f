"""The slow check: what every clause *means*. It is the oracle of the native one.

Nothing here raises for a value of an unexpected shape: a clause about it fails.
"""

from __future__ import annotations

import abc
from collections.abc import Callable
from importlib import import_module
from types import FunctionType, MemberDescriptorType
from typing import Any

import torch

from dovetail_guards import clauses as c
from dovetail_guards.evaluate import (
    MISSING,
    TYPE_DICT,
    FrameView,
    constants_equal,
    evaluate,
    instance_attr,
    keys_equal,
    ordered_keys,
)
from dovetail_guards.float_expr import as_symbol
from dovetail_guards.torch_state import READERS


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
        held = [TYPE_DICT.__get__(owner) for owner in _TYPE_MRO.__get__(value)]
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
        descriptor = TYPE_DICT.__get__(klass).get(name, MISSING)
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
        (instance_attr(value, clause.name) is not MISSING) == clause.present
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
