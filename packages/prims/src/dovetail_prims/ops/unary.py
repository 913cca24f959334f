"""Operators of one operand: elementary functions, signs, rounding, tests."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from dovetail_prims.ops.card import Result, also, composed, decomposed, unary
from dovetail_prims.ops.common import aten, cast, constant, floating, kind, where, wide
from dovetail_prims.ops.operands import filled_like
from dovetail_prims.ops.values import Value, float_formula, formula, log, sin, trunc, unrounded
from dovetail_prims.ops.values import where as choose
from dovetail_prims.shape_rules import pointwise
from dovetail_prims.shape_rules.copies import angle as angle_shape
from dovetail_prims.shape_rules.copies import of_cpu

# --- what PRIMS expresses by others ---------------------------------------------------------------


def _float(x: Tensor) -> Tensor:
    """Floats in the compute dtype"""
    return wide(x) if kind(x.dtype) >= 2 else cast(x, torch.get_default_dtype())


def _back(x: Tensor, like: Tensor) -> Tensor:
    """Half types rounded back"""
    return cast(x, like.dtype) if kind(like.dtype) >= 2 else x


def sigmoid(self: Tensor) -> Tensor:
    """1 / (1 + exp(-x))"""
    x = _float(self)
    one = filled_like(x, 1)
    return _back(
        aten.div.Tensor(one, aten.add.Tensor(one, aten.exp.default(aten.neg.default(x)))), self
    )


def rsqrt(self: Tensor) -> Tensor:
    """1 / sqrt(x)"""
    x = _float(self)
    return _back(aten.div.Tensor(filled_like(x, 1), aten.sqrt.default(x)), self)


def reciprocal(self: Tensor) -> Tensor:
    """1 / x"""
    x = _float(self)
    return _back(aten.div.Tensor(filled_like(x, 1), x), self)


def logical_not(self: Tensor) -> Tensor:
    """x is 0"""
    return aten.eq.Tensor(self, filled_like(self, 0))


def isnan(self: Tensor) -> Tensor:
    """x differs from itself"""
    return aten.ne.Tensor(self, self)


def isinf(self: Tensor) -> Tensor:
    """|x| is infinite"""
    if kind(self.dtype) < 2:
        return aten.ne.Tensor(self, self)
    return aten.eq.Tensor(aten.abs.default(self), filled_like(self, math.inf))


# --- what CORE_ATEN expresses by others -----------------------------------------------------------


def deg2rad(self: Tensor) -> Tensor:
    """x π / 180"""
    return aten.mul.Tensor(floating(self), math.pi / 180.0)


def rad2deg(self: Tensor) -> Tensor:
    """x 180 / π"""
    return aten.mul.Tensor(floating(self), 180.0 / math.pi)


def sgn(self: Tensor) -> Tensor:
    """The sign of a real number"""
    if self.is_complex():
        raise NotImplementedError("sgn of a complex tensor")
    return aten.sign.default(self)


def signbit(self: Tensor) -> Tensor:
    """Whether the sign bit is set: -0.0 counts"""
    if not self.is_floating_point():
        return aten.lt.Scalar(self, 0)
    return aten.lt.Scalar(aten.copysign.Tensor(constant(1, self), self), 0)


def nan_to_num(
    self: Tensor, nan: float | None = None, posinf: float | None = None, neginf: float | None = None
) -> Tensor:
    """NaN and infinities replaced: 0 and the largest finite numbers unless given"""
    if not self.is_floating_point():
        return aten.clone.default(self)
    limits = torch.finfo(self.dtype)
    out = where(aten.isnan.default(self), 0.0 if nan is None else nan, self)
    top = limits.max if posinf is None else posinf
    bottom = limits.min if neginf is None else neginf
    out = where(aten.eq.Scalar(self, math.inf), top, out)
    return where(aten.eq.Scalar(self, -math.inf), bottom, out)


def isposinf(self: Tensor) -> Tensor:
    """x is +inf"""
    return _equals(self, math.inf)


def isneginf(self: Tensor) -> Tensor:
    """x is -inf"""
    return _equals(self, -math.inf)


def _equals(x: Tensor, infinity: float) -> Tensor:
    if not x.is_floating_point():
        return aten.full_like.default(x, False, dtype=torch.bool)
    return aten.eq.Scalar(x, infinity)


@float_formula
def sinc(x: Value) -> Value:
    """sin(πx) / (πx), 1 at 0"""
    angle = x * math.pi
    ratio = sin(angle) / angle
    return choose(angle == 0, 1.0, ratio)


@unrounded
def frac(x: Value) -> Value:
    """x - trunc(x)"""
    return x - trunc(x)


def round_decimals(self: Tensor, *, decimals: int) -> Any:
    """Half to even, after so many decimal places"""
    if decimals == 0:
        return aten.round.default(self)
    return _round_after(self, 10.0 ** abs(decimals), decimals > 0)


@formula
def _round_after(x: Value, scale: float, places: bool) -> Value:
    rounded = aten.round.default((x * scale if places else x / scale).tensor)
    return Value(rounded) / scale if places else Value(rounded) * scale


def angle(self: Tensor) -> Tensor:
    """0 or π for a real number"""
    if self.is_complex():
        raise NotImplementedError("angle of a complex tensor")
    x = floating(self)
    out = where(aten.lt.Scalar(x, 0), constant(math.pi, x), constant(0.0, x))
    return where(aten.isnan.default(x), x, out)


@float_formula
def entr(x: Value) -> Value:
    """-x log x; 0 at 0, -inf below"""
    out = -(x * log(x))
    out = choose(x == 0, 0.0, out)
    return choose(x < 0, -math.inf, out)


_FLOAT, _BOOL = Result.FLOAT, Result.BOOL
_DECIMALS = also("decimals", pointwise.same_dtype, round_decimals)

# (PyTorch's meta kernels of most of these import its compiler.)
_OF_LIBRARY = (
    "i0", "special_i0e", "special_i1", "special_i1e", "special_ndtri", "special_log_ndtr",
    "special_erfcx", "special_bessel_j0", "special_bessel_j1", "special_spherical_bessel_j0",
    "digamma",
)  # fmt: skip

CARDS = (
    unary("abs", "\\|x\\|", shape=pointwise.real_result, numpy="absolute"),
    unary("neg", "-x", numpy="negative"),
    unary("exp", "e^x", _FLOAT, cost=12, numpy="exp"),
    unary("exp2", "2^x", _FLOAT, cost=12, numpy="exp2"),
    unary("expm1", "e^x - 1, exact near 0", _FLOAT, cost=20, numpy="expm1"),
    unary("log", "natural logarithm", _FLOAT, cost=15, numpy="log"),
    unary("log2", "logarithm to base 2", _FLOAT, cost=15, numpy="log2"),
    unary("log10", "logarithm to base 10", _FLOAT, cost=15, numpy="log10"),
    unary("log1p", "log(1 + x), exact near 0", _FLOAT, cost=20, numpy="log1p"),
    unary("sqrt", "square root", _FLOAT, cost=5, numpy="sqrt"),
    unary("rsqrt", "1 / sqrt(x)", _FLOAT, to_prims=rsqrt, cost=8),
    unary("reciprocal", "1 / x", _FLOAT, to_prims=reciprocal, cost=4, numpy="reciprocal"),
    unary("sin", "sine", _FLOAT, cost=20, numpy="sin"),
    unary("cos", "cosine", _FLOAT, cost=20, numpy="cos"),
    unary("tan", "tangent", _FLOAT, cost=40, numpy="tan"),
    unary("asin", "inverse sine", _FLOAT, cost=40, numpy="arcsin"),
    unary("acos", "inverse cosine", _FLOAT, cost=40, numpy="arccos"),
    unary("atan", "inverse tangent", _FLOAT, cost=40, numpy="arctan"),
    unary("sinh", "(e^x - e^-x) / 2", _FLOAT, cost=40, numpy="sinh"),
    unary("cosh", "(e^x + e^-x) / 2", _FLOAT, cost=40, numpy="cosh"),
    unary("tanh", "sinh x / cosh x", _FLOAT, cost=20, numpy="tanh"),
    unary("asinh", "inverse of sinh", _FLOAT, cost=40),
    unary("acosh", "inverse of cosh", _FLOAT, cost=40),
    unary("atanh", "inverse of tanh", _FLOAT, cost=40),
    unary("erf", "2/√π ∫₀ˣ e^(-t²) dt", _FLOAT, cost=25),
    unary("erfc", "1 - erf x", _FLOAT, cost=40),
    unary("erfinv", "inverse of erf", _FLOAT, cost=60),
    unary("lgamma", "log \\|Γ(x)\\|", _FLOAT, cost=100),
    unary("sigmoid", "1 / (1 + exp(-x))", _FLOAT, to_prims=sigmoid, cost=16),
    unary("relu", "max(x, 0)", to_prims=lambda x: aten.maximum.default(x, filled_like(x, 0))),
    unary("floor", "largest integer ≤ x", numpy="floor"),
    unary("ceil", "smallest integer ≥ x", numpy="ceil"),
    unary("round", "nearest integer, half to even", forms=(_DECIMALS,)),
    unary("trunc", "towards zero to an integer", numpy="trunc"),
    unary("sign", "-1, 0 or 1", cost=2),
    unary("bitwise_not", "all bits flipped"),
    unary("logical_not", "x is 0", _BOOL, to_prims=logical_not, numpy="logical_not"),
    unary("isnan", "x differs from itself", _BOOL, to_prims=isnan, numpy="isnan"),
    unary("isinf", "\\|x\\| is infinite", _BOOL, to_prims=isinf, numpy="isinf"),
    decomposed("isfinite", None, pointwise.bool_result, in_place=(), numpy="isfinite"),
    decomposed("square", None, pointwise.same_dtype, numpy="square"),
    decomposed("conj_physical", None, pointwise.itself_if_real),
    decomposed("positive", None, pointwise.itself, in_place=(), numpy="positive"),
    decomposed("deg2rad", deg2rad, pointwise.float_function, in_place=()),
    decomposed("rad2deg", rad2deg, pointwise.float_function, in_place=()),
    decomposed("sgn", sgn, pointwise.same_dtype),
    decomposed("signbit", signbit, pointwise.bool_result, in_place=()),
    decomposed("nan_to_num", nan_to_num, pointwise.like_operand),
    decomposed("isposinf", isposinf, pointwise.bool_result, in_place=()),
    decomposed("isneginf", isneginf, pointwise.bool_result, in_place=()),
    decomposed("sinc", sinc, pointwise.float_result),
    decomposed("frac", frac, pointwise.same_dtype),
    decomposed("angle", angle, of_cpu(angle_shape), in_place=()),
    decomposed("special_entr", entr, pointwise.float_function, in_place=()),
    *(composed(name, pointwise.float_function) for name in _OF_LIBRARY),
    composed("polygamma", lambda n, x: pointwise.float_function(x)),
    composed("mvlgamma", lambda x, p: pointwise.float_function(x)),
)
