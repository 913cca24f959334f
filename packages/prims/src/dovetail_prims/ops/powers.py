"""Powers, and logarithms: of sums of powers, and times numbers (x log y)."""

from __future__ import annotations

import math
import operator

import torch
from torch import Tensor

from dovetail_prims.ops.card import Card, Dialect, Form, also, decomposed
from dovetail_prims.ops.common import (
    Number,
    aten,
    cast,
    constant,
    contiguous,
    floating,
    floating_dtype,
    promoted,
    promoted_together,
    where,
    wide,
)
from dovetail_prims.shape_rules import pointwise as rules
from dovetail_prims.shape_rules.argument_checks.requirement import Arguments, Requirement


def pow_scalar_exponent(self: Tensor, exponent: Number) -> Tensor:
    """Small exponents by multiplication and roots, as eager's kernels; else a general pow"""
    dtype = promoted(self, exponent)
    if isinstance(exponent, (torch.SymInt, torch.SymFloat)) and exponent.node.hint is None:
        x = wide(cast(self, dtype))  # only the data tells which exponent it is
        return cast(aten.pow.Tensor_Tensor(x, constant(exponent, x)), dtype)
    if exponent == 0:
        return aten.full_like.default(self, 1, dtype=dtype)
    if exponent == 1:
        return aten.clone.default(cast(self, dtype))
    if dtype.is_floating_point:
        x = wide(cast(self, dtype))
        out = _float_power(x, exponent)
    else:
        x = cast(self, dtype)
        whole = type(exponent) is int and exponent > 0 and not dtype.is_complex
        out = aten.mul.Tensor(x, x) if exponent == 2 else None
        out = _integer_power(x, int(exponent)) if whole else out
    if out is None:
        out = aten.pow.Tensor_Tensor(x, constant(exponent, x))
    return cast(out, dtype)


def _integer_power(x: Tensor, exponent: int) -> Tensor:
    """x to a positive exponent, by squaring: it wraps round as integer powers do"""
    product: Tensor | None = None
    while exponent:
        if exponent % 2:
            product = x if product is None else aten.mul.Tensor(product, x)
        exponent //= 2
        if exponent:
            x = aten.mul.Tensor(x, x)
    assert product is not None
    return product


def _float_power(x: Tensor, exponent: Number) -> Tensor | None:
    """x to an exponent that needs no logarithm"""
    if exponent == 2:
        return aten.mul.Tensor(x, x)
    if exponent == 3:
        return aten.mul.Tensor(aten.mul.Tensor(x, x), x)
    if exponent == 0.5:
        return aten.sqrt.default(x)
    if exponent == -0.5:
        return aten.rsqrt.default(x)
    if exponent == -1:
        return aten.reciprocal.default(x)
    if exponent == -2:
        return aten.reciprocal.default(aten.mul.Tensor(x, x))
    return None


def pow_scalar_base(self: Number, exponent: Tensor) -> Tensor:
    """n to a tensor, row-major as eager's"""
    dtype = promoted(exponent, self)
    if self == 1:
        return aten.full.default(exponent.shape, 1, dtype=dtype, device=exponent.device)
    power = aten.pow.Tensor_Tensor(constant(self, exponent, dtype), cast(exponent, dtype))
    return contiguous(power)


def logaddexp(self: Tensor, other: Tensor) -> Tensor:
    """log(eˣ + eʸ), from the larger of the two"""
    return _log_add(self, other, 1.0)


def logaddexp2(self: Tensor, other: Tensor) -> Tensor:
    """log2(2ˣ + 2ʸ), from the larger of the two"""
    return _log_add(self, other, math.log(2.0))


def _log_add(self: Tensor, other: Tensor, log_base: float) -> Tensor:
    """In base exp(log_base); equal infinities stay"""
    dtype = promoted_together(self, other)
    x, y = wide(cast(self, dtype)), wide(cast(other, dtype))
    top = aten.maximum.default(x, y)
    gap = aten.abs.default(aten.sub.Tensor(x, y))
    tail = aten.log1p.default(aten.exp.default(aten.mul.Tensor(gap, -log_base)))
    out = aten.add.Tensor(top, aten.div.Tensor(tail, log_base))
    equal = aten.logical_and.default(aten.isinf.default(x), aten.eq.Tensor(x, y))
    return cast(where(equal, x, out), dtype)


def _times(x: Tensor, logarithm: Tensor, y: Tensor) -> Tensor:
    """x log(...), 0 where x is 0, NaN where y is NaN"""
    product = where(aten.eq.Scalar(x, 0), 0.0, aten.mul.Tensor(x, logarithm))
    return where(aten.isnan.default(y), math.nan, product)


def xlogy(self: Tensor, other: Tensor) -> Tensor:
    """x log y"""
    dtype = floating_dtype(promoted_together(self, other))
    x, y = cast(self, dtype), cast(other, dtype)
    return cast(_times(wide(x), aten.log.default(wide(y)), y), dtype)


def xlogy_number(self: Tensor, other: Number) -> Tensor:
    """x log n"""
    x = floating(self)
    return xlogy(x, constant(other, x))


def xlogy_of_number(self: Number, other: Tensor) -> Tensor:
    """n log y"""
    y = floating(other)
    return xlogy(constant(self, y), y)


def xlog1py(self: Tensor, other: Tensor) -> Tensor:
    """x log(1 + y)"""
    dtype = floating_dtype(promoted_together(self, other))
    x, y = cast(self, dtype), cast(other, dtype)
    return cast(_times(wide(x), aten.log1p.default(wide(y)), y), dtype)


def xlog1py_number(self: Tensor, other: Number) -> Tensor:
    """x log(1 + n)"""
    x = floating(self)
    return xlog1py(x, constant(other, x))


def xlog1py_of_number(self: Number, other: Tensor) -> Tensor:
    """n log(1 + y)"""
    y = floating(other)
    return xlog1py(constant(self, y), y)


def _has_power(given: Arguments) -> bool:
    dtype, exponent = given["self"]._dtype, given["exponent"]
    whole = not dtype.is_floating_point and not dtype.is_complex
    return not (isinstance(exponent, int) and exponent < 0 and whole)


_EXPONENT = Requirement(_has_power, "Integers to negative integer powers are not allowed.")
_POWERS = (
    Form("Tensor_Tensor", Dialect.PRIMS, rules.binary),
    Form(
        "Tensor_Scalar",
        Dialect.ATEN,
        rules.power_scalar,
        pow_scalar_exponent,
        requires=(_EXPONENT,),
    ),
    also("Scalar", rules.power_of_number, pow_scalar_base),
)

CARDS = (
    Card("pow", 2, "a^b", _POWERS, in_place=("Scalar", "Tensor"), meaning=operator.pow, cost=40,
         numpy="power"),
    decomposed("logaddexp", logaddexp, rules.binary, arity=2, in_place=()),
    decomposed("logaddexp2", logaddexp2, rules.binary, arity=2, in_place=()),
    Card("xlogy", 2, "x log y", (
        also("Tensor", rules.binary_float, xlogy),
        also("Scalar_Other", None, xlogy_number),
        also("Scalar_Self", None, xlogy_of_number),
    )),
    Card("special_xlog1py", 2, "x log(1 + y)", (
        also("default", rules.binary_float, xlog1py),
        also("other_scalar", None, xlog1py_number),
        also("self_scalar", None, xlog1py_of_number),
    )),
)  # fmt: skip
