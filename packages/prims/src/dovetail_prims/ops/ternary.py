"""Operators of three operands: fused arithmetic, interpolation, clamps, choices."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from dovetail_prims.ops.card import Card, Dialect, Form, also, decomposed
from dovetail_prims.ops.common import (
    Number,
    aten,
    cast,
    constant,
    promoted,
    promoted_together,
    times,
    where,
    wide,
)
from dovetail_prims.ops.operands import ordered_where
from dovetail_prims.shape_rules import pointwise as rules
from dovetail_prims.shape_rules.argument_checks.requirement import Requirement

# Whether this torch clamps unsigned numbers to negative bounds modulo their range, as torch 2.11
# does. (torch 2.15 takes such a bound for none.)
BOUNDS_WRAP_AROUND = bool(torch.zeros((), dtype=torch.uint8, device="cpu").clamp(min=-1))


def addcmul(self: Tensor, tensor1: Tensor, tensor2: Tensor, *, value: Number = 1) -> Tensor:
    """x + value a b"""
    dtype = promoted_together(self, tensor1, tensor2)
    a, b = wide(cast(tensor1, dtype)), wide(cast(tensor2, dtype))
    product = aten.mul.Tensor(times(a, value), b)
    return cast(aten.add.Tensor(wide(self), product), dtype)


def addcdiv(self: Tensor, tensor1: Tensor, tensor2: Tensor, *, value: Number = 1) -> Tensor:
    """x + value a / b"""
    dtype = promoted_together(self, tensor1, tensor2)
    a, b = wide(cast(tensor1, dtype)), wide(cast(tensor2, dtype))
    quotient = aten.div.Tensor(times(a, value), b)
    return cast(aten.add.Tensor(wide(self), quotient), dtype)


def lerp_scalar(self: Tensor, end: Tensor, weight: Number) -> Tensor:
    """x + w (end - x), from the nearer end"""
    x, y = wide(self), wide(end)
    step = aten.sub.Tensor(y, x)
    if abs(weight) < 0.5:
        out = aten.add.Tensor(x, aten.mul.Tensor(step, weight))
    else:
        out = aten.sub.Tensor(y, aten.mul.Tensor(step, 1 - weight))
    return cast(out, self.dtype)


def lerp_tensor(self: Tensor, end: Tensor, weight: Tensor) -> Tensor:
    """x + w (end - x), from the nearer end"""
    x, y, w = wide(self), wide(end), wide(weight)
    step = aten.sub.Tensor(y, x)
    low = aten.add.Tensor(x, aten.mul.Tensor(w, step))
    high = aten.sub.Tensor(y, aten.mul.Tensor(step, aten.sub.Tensor(1, w)))
    return cast(where(aten.lt.Scalar(aten.abs.default(w), 0.5), low, high), self.dtype)


def _bound(x: Tensor, value: Number) -> Tensor:
    """A number as the bound of a clamp: it promotes x as a number does"""
    return constant(value, x, promoted(x, value))


def _wrapped(bound: Number | None, held: torch.iinfo) -> Number | None:
    """The bound that a number becomes where bounds wrap around. RuntimeError if there is none."""
    if type(bound) is not int:
        return bound
    if bound > held.max or bound < (held.min if held.min < 0 else -held.max):
        raise RuntimeError(f"value cannot be converted to {held.dtype} without overflow")
    return bound % (held.max + 1) if held.min == 0 else bound


def clamp(self: Tensor, min: Number | None = None, max: Number | None = None) -> Tensor:
    """min(max(x, low), high); the upper bound wins where they cross. A zero keeps its sign: of two
    that are equal, kernels take the second operand."""
    if not self.is_floating_point() and self.dtype is not torch.bool:
        held = torch.iinfo(self.dtype)
        if BOUNDS_WRAP_AROUND and type(min) is not float and type(max) is not float:
            min, max = (_wrapped(bound, held) for bound in (min, max))
        # A bound beyond the dtype's range bounds nothing.
        if (type(min) is int and min > held.max) or (type(max) is int and max < held.min):
            raise RuntimeError(f"clamp to [{min}, {max}] is outside the range of {self.dtype}")
        min = None if type(min) is int and min < held.min else min
        max = None if type(max) is int and max > held.max else max
    if min is not None:
        self = aten.maximum.default(_bound(self, min), self)
    if max is not None:
        self = aten.minimum.default(_bound(self, max), self)
    return self


def clamp_tensor(self: Tensor, min: Tensor | None = None, max: Tensor | None = None) -> Tensor:
    """The same with tensors"""
    if min is not None:
        self = aten.maximum.default(self, min)
    if max is not None:
        self = aten.minimum.default(self, max)
    return self


def clamp_min(self: Tensor, min: Number) -> Tensor:
    """max(x, low)"""
    return clamp(self, min)


def clamp_min_tensor(self: Tensor, min: Tensor) -> Tensor:
    """max(x, low)"""
    return aten.maximum.default(self, min)


def clamp_max(self: Tensor, max: Number) -> Tensor:
    """min(x, high)"""
    return clamp(self, None, max)


def clamp_max_tensor(self: Tensor, max: Tensor) -> Tensor:
    """min(x, high)"""
    return aten.minimum.default(self, max)


_BOUNDS = Requirement(
    lambda given: given["min"] is not None or given["max"] is not None,
    "torch.clamp: At least one of 'min' or 'max' must not be None",
)
_CLAMPED = ("default", "Tensor")


def _clamping(name: str, arity: int, number: Any, tensor: Any, *requires: Requirement) -> Card:
    """A clamp with numbers as bounds, or tensors."""
    forms = tuple(
        Form(overload, Dialect.ATEN, rules.clamp, function, requires=requires)
        for overload, function in zip(_CLAMPED, (number, tensor), strict=True)
    )
    return Card(name, arity, number.__doc__.partition("\n")[0], forms, in_place=_CLAMPED)


CARDS = (
    Card("where", 3, "a where the condition holds, else b", (
        Form("self", Dialect.PRIMS, rules.where, to_prims=ordered_where),
        *(also(overload, rules.where) for overload in ("ScalarSelf", "ScalarOther", "Scalar")),
    )),
    decomposed("addcmul", addcmul, rules.ternary, arity=3),
    decomposed("addcdiv", addcdiv, rules.ternary, arity=3),
    Card("lerp", 3, "x + w (end - x), from the nearer end", (
        also("Scalar", rules.lerp_scalar, lerp_scalar),
        also("Tensor", rules.ternary, lerp_tensor),
    ), in_place=("Scalar",)),
    _clamping("clamp", 3, clamp, clamp_tensor, _BOUNDS),
    _clamping("clamp_min", 2, clamp_min, clamp_min_tensor),
    _clamping("clamp_max", 2, clamp_max, clamp_max_tensor),
)  # fmt: skip
