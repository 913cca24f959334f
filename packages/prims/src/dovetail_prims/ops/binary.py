"""Operators of two operands: arithmetic, bits, comparisons, and functions that loop."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from dovetail_prims.ops.card import (
    Card,
    Dialect,
    Form,
    Result,
    also,
    binary,
    composed,
    decomposed,
    with_numbers,
)
from dovetail_prims.ops.common import (
    Number,
    aten,
    cast,
    constant,
    floating,
    promoted,
    promoted_together,
    where,
)
from dovetail_prims.ops.operands import ordered, truth_of
from dovetail_prims.shape_rules import pointwise as rules
from dovetail_prims.shape_rules.argument_checks.requirement import is_one_of


def add_scalar(self: Tensor, other: Number, alpha: Number = 1) -> Tensor:
    """x + alpha n"""
    return aten.add.Tensor(self, other, alpha=alpha)


def sub_scalar(self: Tensor, other: Number, alpha: Number = 1) -> Tensor:
    """x - alpha n"""
    return aten.sub.Tensor(self, other, alpha=alpha)


def mul_scalar(self: Tensor, other: Number) -> Tensor:
    """x n"""
    return aten.mul.Tensor(self, other)


def div_scalar(self: Tensor, other: Number) -> Tensor:
    """x / n"""
    return aten.div.Tensor(self, other)


def div_scalar_mode(self: Tensor, other: Number, *, rounding_mode: str | None) -> Tensor:
    """x / n, rounded"""
    return aten.div.Tensor_mode(self, other, rounding_mode=rounding_mode)


def floor_divide(self: Tensor, other: Tensor | Number) -> Tensor:
    """floor(x / y)"""
    return aten.div.Tensor_mode(self, other, rounding_mode="floor")


def rsub(self: Tensor, other: Tensor | Number, *, alpha: Number = 1) -> Tensor:
    """y - alpha x"""
    return aten.sub.Tensor(other, self, alpha=alpha)


def rsub_scalar(self: Tensor, other: Number, alpha: Number = 1) -> Tensor:
    """n - alpha x"""
    return aten.sub.Tensor(other, self, alpha=alpha)


def remainder_scalar_base(self: Number, other: Tensor) -> Tensor:
    """n modulo a tensor"""
    base = constant(self, other, promoted(other, self))
    return aten.remainder.Tensor(base, other)


def heaviside(self: Tensor, values: Tensor) -> Tensor:
    """0 below 0, 1 above, `values` at 0"""
    step = cast(aten.gt.Scalar(self, 0), self.dtype)
    return where(aten.eq.Scalar(self, 0), values, step)


def fmax(self: Tensor, other: Tensor) -> Tensor:
    """The larger; a NaN loses to a number"""
    out = aten.maximum.default(self, other)
    if not out.is_floating_point():
        return out
    out = where(aten.isnan.default(self), other, out)
    return where(aten.isnan.default(other), self, out)


def fmin(self: Tensor, other: Tensor) -> Tensor:
    """The smaller; a NaN loses to a number"""
    out = aten.minimum.default(self, other)
    if not out.is_floating_point():
        return out
    out = where(aten.isnan.default(self), other, out)
    return where(aten.isnan.default(other), self, out)


def copysign_number(self: Tensor, other: Number) -> Tensor:
    """|x| with a number's sign"""
    return aten.copysign.Tensor(self, constant(other, self, promoted(self, other)))


def shift_left(self: Tensor, other: Tensor) -> Tensor:
    """x << y"""
    return aten.bitwise_left_shift.Tensor(self, other)


def shift_right(self: Tensor, other: Tensor) -> Tensor:
    """x >> y"""
    return aten.bitwise_right_shift.Tensor(self, other)


def shift_left_number(self: Tensor, other: Number) -> Tensor:
    """x << n"""
    return aten.bitwise_left_shift.Tensor(self, constant(other, self, promoted(self, other)))


def shift_right_number(self: Tensor, other: Number) -> Tensor:
    """x >> n"""
    return aten.bitwise_right_shift.Tensor(self, constant(other, self, promoted(self, other)))


def lcm(self: Tensor, other: Tensor) -> Tensor:
    """|a / gcd(a, b) b|, 0 where both are 0: of small integers as C has it, which are ints there"""
    dtype = promoted_together(self, other)
    common = aten.gcd.default(self, other)
    nothing = aten.eq.Scalar(common, 0)
    computed = torch.int32 if dtype.itemsize < torch.int32.itemsize else dtype
    safe = where(nothing, 1, cast(common, computed))
    parts = aten.div.Tensor_mode(cast(self, computed), safe, rounding_mode="trunc")
    product = aten.abs.default(aten.mul.Tensor(parts, cast(other, computed)))
    return cast(where(nothing, 0, product), dtype)


# --- what PRIMS expresses by others ---------------------------------------------------------------


def logical_and(self: Tensor, other: Tensor) -> Tensor:
    """The bitwise op on truth values"""
    return aten.bitwise_and.Tensor(truth_of(self), truth_of(other))


def logical_or(self: Tensor, other: Tensor) -> Tensor:
    """The bitwise op on truth values"""
    return aten.bitwise_or.Tensor(truth_of(self), truth_of(other))


def logical_xor(self: Tensor, other: Tensor) -> Tensor:
    """The bitwise op on truth values"""
    return aten.bitwise_xor.Tensor(truth_of(self), truth_of(other))


_rounded = ordered("div.Tensor_mode")


def div_mode(self: Tensor | Number, other: Tensor | Number, *, rounding_mode: str | None) -> Any:
    """Without a mode, plain division"""
    if rounding_mode is None:
        return aten.div.Tensor(self, other)
    return _rounded(self, other, rounding_mode=rounding_mode)


_MODE = is_one_of(
    "rounding_mode",
    (None, "trunc", "floor"),
    "div expected rounding_mode to be one of None, 'trunc', or 'floor' but found '{rounding_mode}'",
)


def _bitwise_number(name: str) -> Callable[..., Any]:
    op: Callable[..., Tensor] = getattr(aten, f"bitwise_{name}").Tensor

    def entry(self: Number, other: Tensor) -> Tensor:
        """A number on the left"""
        return op(constant(self, other, promoted(other, self)), other)

    return entry


def ldexp(self: Tensor, other: Tensor) -> Tensor:
    """x 2^n; for floats and whole n in two steps, as 2^n alone may be too large a number"""
    if other.is_floating_point() or not self.is_floating_point():
        power = other.dtype if other.is_floating_point() else torch.get_default_dtype()
        if self.dtype is other.dtype and power is torch.float32:
            return aten.mul.Tensor(self, aten.pow.Scalar(2.0, other))
        return aten.mul.Tensor(self, aten.exp2.default(other))  # (which lies as the exponents do)
    x = floating(self)
    half = aten.bitwise_right_shift.Tensor_Scalar(cast(other, torch.int64), 1)
    out = cast(x, torch.float64)
    for n in (half, aten.sub.Tensor(cast(other, torch.int64), half)):
        out = aten.mul.Tensor(out, aten.exp2.default(cast(n, torch.float64)))
    return cast(out, x.dtype)


_FLOAT, _BOOL = Result.FLOAT, Result.BOOL
_PRIMS, _ATEN = Dialect.PRIMS, Dialect.ATEN
_DIVISIONS = (
    Form("Tensor_mode", _PRIMS, rules.divide, to_prims=div_mode, requires=(_MODE,),
         says="a / b, rounded down or towards zero"),
    Form("Scalar_mode", _ATEN, rules.divide, div_scalar_mode, requires=(_MODE,)),
)  # fmt: skip

CARDS = (
    with_numbers("add", "a + b", number=add_scalar, meaning=operator.add, numpy="add"),
    with_numbers("sub", "a - b", number=sub_scalar, meaning=operator.sub, numpy="subtract"),
    with_numbers("mul", "a b", number=mul_scalar, meaning=operator.mul, numpy="multiply"),
    with_numbers("div", "a / b", _FLOAT, number=div_scalar, shape=rules.divide, forms=_DIVISIONS,
                 in_place=("Tensor", "Scalar", "Tensor_mode", "Scalar_mode"), cost=4,
                 numpy="true_divide"),
    with_numbers("remainder", "a - b floor(a / b)", cost=8, meaning=operator.mod,
                 forms=(also("Scalar_Tensor", None, remainder_scalar_base),)),
    with_numbers("fmod", "a - b trunc(a / b)", cost=8),
    binary("atan2", "angle of the point (b, a)", _FLOAT, cost=50, numpy="arctan2"),
    binary("hypot", "√(a² + b²)", _FLOAT, shape=rules.binary, cost=10, numpy="hypot"),
    with_numbers("copysign", "\\|a\\| with the sign of b", _FLOAT, number=copysign_number,
                 in_place=()),
    binary("nextafter", "the number next to a towards b", cost=6),
    binary("maximum", "the larger; NaN if one is", cost=2, numpy="maximum"),
    binary("minimum", "the smaller; NaN if one is", cost=2, numpy="minimum"),
    with_numbers("bitwise_and", "and of bits", meaning=operator.and_,
                 forms=(also("Scalar_Tensor", None, _bitwise_number("and")),)),
    with_numbers("bitwise_or", "or of bits", meaning=operator.or_,
                 forms=(also("Scalar_Tensor", None, _bitwise_number("or")),)),
    with_numbers("bitwise_xor", "exclusive or of bits", meaning=operator.xor,
                 forms=(also("Scalar_Tensor", None, _bitwise_number("xor")),)),
    Card("bitwise_left_shift", 2, "a 2^b of integers", (
        Form("Tensor", _PRIMS, rules.binary), also("Tensor_Scalar", None, shift_left_number),
        also("Scalar_Tensor", None, _bitwise_number("left_shift")),
    ), in_place=("Tensor",)),
    Card("bitwise_right_shift", 2, "floor(a / 2^b) of integers", (
        Form("Tensor", _PRIMS, rules.binary), also("Tensor_Scalar", None, shift_right_number),
        also("Scalar_Tensor", None, _bitwise_number("right_shift")),
    ), in_place=("Tensor",)),
    binary("logical_and", "The bitwise op on truth values", _BOOL, to_prims=logical_and,
           numpy="logical_and"),
    binary("logical_or", "The bitwise op on truth values", _BOOL, to_prims=logical_or,
           numpy="logical_or"),
    binary("logical_xor", "The bitwise op on truth values", _BOOL, to_prims=logical_xor,
           numpy="logical_xor"),
    with_numbers("eq", "a = b", _BOOL, in_place=(), meaning=operator.eq, numpy="equal"),
    with_numbers("ne", "a ≠ b", _BOOL, in_place=(), meaning=operator.ne, numpy="not_equal"),
    with_numbers("lt", "a < b", _BOOL, in_place=(), meaning=operator.lt, numpy="less"),
    with_numbers("le", "a ≤ b", _BOOL, in_place=(), meaning=operator.le, numpy="less_equal"),
    with_numbers("gt", "a > b", _BOOL, in_place=(), meaning=operator.gt, numpy="greater"),
    with_numbers("ge", "a ≥ b", _BOOL, in_place=(), meaning=operator.ge, numpy="greater_equal"),
    binary("gcd", "the greatest common divisor", cost=100),
    decomposed("floor_divide", floor_divide, rules.binary, arity=2, in_place=(),
               forms=(also("Scalar", None, floor_divide),), numpy="floor_divide"),
    Card("rsub", 2, "y - alpha x", (also("Tensor", rules.subtract_from, rsub),
                                    also("Scalar", rules.subtract_from, rsub_scalar))),
    Card("__lshift__", 2, "x << y", (also("Tensor", rules.binary, shift_left),
                                     also("Scalar", rules.binary, shift_left_number))),
    Card("__rshift__", 2, "x >> y", (also("Tensor", rules.binary, shift_right),
                                     also("Scalar", rules.binary, shift_right_number))),
    Card("ldexp", 2, "x 2^y", (also("Tensor", rules.times_power_of_two, ldexp),),
         in_place=("default",)),
    decomposed("heaviside", heaviside, rules.binary, arity=2, in_place=()),
    decomposed("fmax", fmax, rules.binary, arity=2, in_place=()),
    decomposed("fmin", fmin, rules.binary, arity=2, in_place=()),
    decomposed("lcm", lcm, rules.binary, arity=2, in_place=()),
    composed("igamma", rules.binary_float),  # (see unary: PyTorch's own would import its compiler)
    composed("igammac", rules.binary_float),
    composed("special_zeta", rules.binary_float, None, also("self_scalar", rules.binary_float),
             also("other_scalar", rules.binary_float)),
    decomposed("complex", None, rules.complex_of, arity=2, in_place=()),
    decomposed("polar", None, rules.complex_of, arity=2, in_place=()),
)  # fmt: skip
