"""Pointwise arithmetic: number overloads, fused forms, clamps, fills, powers, special functions."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from dovetail_prims.shape_rules.conversions import always_converts, limits, overflow_message

from ._common import (
    Family,
    Number,
    aten,
    cast,
    constant,
    contiguous,
    floating,
    promote_types,
    promoted,
    times,
    where,
    wide,
)


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


def _scaled(x: Tensor, value: Number) -> Tensor:
    return times(x, value)


def addcmul(self: Tensor, tensor1: Tensor, tensor2: Tensor, *, value: Number = 1) -> Tensor:
    """x + value a b"""
    dtype = _promoted(self, tensor1, tensor2)
    a, b = wide(cast(tensor1, dtype)), wide(cast(tensor2, dtype))
    product = aten.mul.Tensor(_scaled(a, value), b)
    return cast(aten.add.Tensor(wide(self), product), dtype)


def addcdiv(self: Tensor, tensor1: Tensor, tensor2: Tensor, *, value: Number = 1) -> Tensor:
    """x + value a / b"""
    dtype = _promoted(self, tensor1, tensor2)
    a, b = wide(cast(tensor1, dtype)), wide(cast(tensor2, dtype))
    quotient = aten.div.Tensor(_scaled(a, value), b)
    return cast(aten.add.Tensor(wide(self), quotient), dtype)


def _promoted(*tensors: Tensor) -> torch.dtype:
    """ATen's promoted dtype of several tensors; equal dtypes, the usual case, cost nothing"""
    first = tensors[0]
    if all(t.dtype == first.dtype for t in tensors):
        return first.dtype
    dtype = first.dtype
    for t in tensors[1:]:
        dtype = promote_types(dtype, t.dtype)
    return dtype


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


def clamp(self: Tensor, min: Number | None = None, max: Number | None = None) -> Tensor:
    """min(max(x, low), high); the upper bound wins where they cross"""
    if not self.is_floating_point() and self.dtype is not torch.bool:
        held = torch.iinfo(self.dtype)  # a bound beyond the dtype's range bounds nothing
        if (type(min) is int and min > held.max) or (type(max) is int and max < held.min):
            raise RuntimeError(f"clamp to [{min}, {max}] is outside the range of {self.dtype}")
        min = None if type(min) is int and min < held.min else min
        max = None if type(max) is int and max > held.max else max
    if min is not None:
        self = aten.maximum.default(self, _bound(self, min))
    if max is not None:
        self = aten.minimum.default(self, _bound(self, max))
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


def masked_fill(self: Tensor, mask: Tensor, value: Number) -> Tensor:
    """value where the mask holds; row-major, as eager's copy is"""
    return contiguous(where(mask, value, self))


def _converts(value: Tensor, dtype: torch.dtype) -> Tensor:
    """Whether a number is taken as one of a dtype that not all of its own dtype are taken as"""
    if value.is_complex():
        real, imaginary = aten.unbind.int(aten.view_as_real.default(value), -1)
        if dtype.is_complex:
            parts = (_converts(p, dtype.to_real()) for p in (real, imaginary))
            return aten.logical_and.default(*parts)
        fits = aten.eq.Scalar(imaginary, 0)
        if always_converts(real.dtype, dtype):
            return fits
        return aten.logical_and.default(fits, _converts(real, dtype))
    if dtype.is_complex:
        dtype = dtype.to_real()
    low, high = limits(dtype, value.is_floating_point())
    value = cast(value, torch.float64 if value.is_floating_point() else torch.int64)
    above, below = aten.ge.Scalar(value, low), aten.le.Scalar(value, high)
    if value.is_floating_point() and high == 2.0**63:
        below = aten.lt.Scalar(value, high)  # (as which the largest whole number is rounded)
    within = aten.logical_and.default(above, below)
    if dtype.is_floating_point:
        infinite = aten.eq.Scalar(aten.abs.default(value), math.inf)
        within = aten.logical_or.default(within, infinite)
        within = aten.logical_or.default(within, aten.isnan.default(value))
    return within


def masked_fill_tensor(self: Tensor, mask: Tensor, value: Tensor) -> Tensor:
    """value (0-dim) where the mask holds, in x's dtype; on a CPU the program ends with eager's
    error if it is none of the dtype's"""
    if value.device.type == "cpu" and not always_converts(value.dtype, self.dtype):
        aten._assert_async.msg(_converts(value, self.dtype), overflow_message(self.dtype))
    return contiguous(where(mask, cast(value, self.dtype), self))


def fill(self: Tensor, value: Number) -> Tensor:
    """value everywhere"""
    return aten.full_like.default(self, value)


def fill_tensor(self: Tensor, value: Tensor) -> Tensor:
    """value (0-dim) everywhere"""
    return aten.clone.default(aten.expand.default(cast(value, self.dtype), self.shape))


def zero(self: Tensor) -> Tensor:
    """0 everywhere"""
    return aten.full_like.default(self, 0)


def pow_scalar_exponent(self: Tensor, exponent: Number) -> Tensor:
    """Small exponents by multiplication and roots, as eager's kernels; else a general pow"""
    dtype = promoted(self, exponent)
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


def remainder_scalar_base(self: Number, other: Tensor) -> Tensor:
    """n modulo a tensor"""
    base = constant(self, other, promoted(other, self))
    return aten.remainder.Tensor(base, other)


def logaddexp(self: Tensor, other: Tensor) -> Tensor:
    """log(eˣ + eʸ), from the larger of the two"""
    return _log_add(self, other, 1.0)


def logaddexp2(self: Tensor, other: Tensor) -> Tensor:
    """log2(2ˣ + 2ʸ), from the larger of the two"""
    return _log_add(self, other, math.log(2.0))


def _log_add(self: Tensor, other: Tensor, log_base: float) -> Tensor:
    """In base exp(log_base); equal infinities stay"""
    x, y = wide(self), wide(other)
    top = aten.maximum.default(x, y)
    gap = aten.abs.default(aten.sub.Tensor(x, y))
    tail = aten.log1p.default(aten.exp.default(aten.mul.Tensor(gap, -log_base)))
    out = aten.add.Tensor(top, aten.div.Tensor(tail, log_base))
    equal = aten.logical_and.default(aten.isinf.default(x), aten.eq.Tensor(x, y))
    return cast(where(equal, x, out), _promoted(self, other))


def _times(x: Tensor, logarithm: Tensor, y: Tensor) -> Tensor:
    """x log(...), 0 where x is 0, NaN where y is NaN"""
    product = where(aten.eq.Scalar(x, 0), 0.0, aten.mul.Tensor(x, logarithm))
    return where(aten.isnan.default(y), math.nan, product)


def xlogy(self: Tensor, other: Tensor) -> Tensor:
    """x log y"""
    x, y = floating(self), floating(other)
    out = _times(wide(x), aten.log.default(wide(y)), y)
    return cast(out, _promoted(x, y))


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
    x, y = floating(self), floating(other)
    out = _times(wide(x), aten.log1p.default(wide(y)), y)
    return cast(out, _promoted(x, y))


def xlog1py_number(self: Tensor, other: Number) -> Tensor:
    """x log(1 + n)"""
    x = floating(self)
    return xlog1py(x, constant(other, x))


def xlog1py_of_number(self: Number, other: Tensor) -> Tensor:
    """n log(1 + y)"""
    y = floating(other)
    return xlog1py(constant(self, y), y)


def entr(self: Tensor) -> Tensor:
    """-x log x; 0 at 0, -inf below"""
    self = floating(self)
    x = wide(self)
    out = aten.neg.default(aten.mul.Tensor(x, aten.log.default(x)))
    out = where(aten.eq.Scalar(x, 0), 0.0, out)
    return cast(where(aten.lt.Scalar(x, 0), -math.inf, out), self.dtype)


def heaviside(self: Tensor, values: Tensor) -> Tensor:
    """0 below 0, 1 above, `values` at 0"""
    step = cast(aten.gt.Scalar(self, 0), self.dtype)
    return where(aten.eq.Scalar(self, 0), values, step)


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
    self: Tensor,
    nan: float | None = None,
    posinf: float | None = None,
    neginf: float | None = None,
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
    if not self.is_floating_point():
        return aten.full_like.default(self, False, dtype=torch.bool)
    return aten.eq.Scalar(self, math.inf)


def isneginf(self: Tensor) -> Tensor:
    """x is -inf"""
    if not self.is_floating_point():
        return aten.full_like.default(self, False, dtype=torch.bool)
    return aten.eq.Scalar(self, -math.inf)


def sinc(self: Tensor) -> Tensor:
    """sin(πx) / (πx), 1 at 0"""
    self = floating(self)
    x = aten.mul.Tensor(wide(self), math.pi)
    ratio = aten.div.Tensor(aten.sin.default(x), x)
    return cast(where(aten.eq.Scalar(x, 0), 1.0, ratio), self.dtype)


def frac(self: Tensor) -> Tensor:
    """x - trunc(x)"""
    return aten.sub.Tensor(self, aten.trunc.default(self))


def round_decimals(self: Tensor, *, decimals: int) -> Tensor:
    """Half to even, after so many decimal places"""
    if decimals == 0:
        return aten.round.default(self)
    scale = 10.0 ** abs(decimals)
    x = wide(self)
    if decimals > 0:
        out = aten.div.Tensor(aten.round.default(aten.mul.Tensor(x, scale)), scale)
    else:
        out = aten.mul.Tensor(aten.round.default(aten.div.Tensor(x, scale)), scale)
    return cast(out, self.dtype)


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


def angle(self: Tensor) -> Tensor:
    """0 or π for a real number"""
    if self.is_complex():
        raise NotImplementedError("angle of a complex tensor")
    x = floating(self)
    out = where(aten.lt.Scalar(x, 0), constant(math.pi, x), constant(0.0, x))
    return where(aten.isnan.default(x), x, out)


def copysign_number(self: Tensor, other: Number) -> Tensor:
    """|x| with a number's sign"""
    return aten.copysign.Tensor(self, constant(other, self, promoted(self, other)))


def shift_left_number(self: Tensor, other: Number) -> Tensor:
    """x << n"""
    return aten.bitwise_left_shift.Tensor(self, constant(other, self))


def shift_right_number(self: Tensor, other: Number) -> Tensor:
    """x >> n"""
    return aten.bitwise_right_shift.Tensor(self, constant(other, self))


TABLE: Family = {
    "add.Scalar": add_scalar,
    "sub.Scalar": sub_scalar,
    "mul.Scalar": mul_scalar,
    "div.Scalar": div_scalar,
    "div.Scalar_mode": div_scalar_mode,
    "floor_divide.default": floor_divide,
    "floor_divide.Scalar": floor_divide,
    "rsub.Tensor": rsub,
    "rsub.Scalar": rsub_scalar,
    "addcmul.default": addcmul,
    "addcdiv.default": addcdiv,
    "lerp.Scalar": lerp_scalar,
    "lerp.Tensor": lerp_tensor,
    "clamp.default": clamp,
    "clamp.Tensor": clamp_tensor,
    "clamp_min.default": clamp_min,
    "clamp_min.Tensor": clamp_min_tensor,
    "clamp_max.default": clamp_max,
    "clamp_max.Tensor": clamp_max_tensor,
    "masked_fill.Scalar": masked_fill,
    "masked_fill.Tensor": masked_fill_tensor,
    "fill.Scalar": fill,
    "fill.Tensor": fill_tensor,
    "zero.default": zero,
    "pow.Tensor_Scalar": pow_scalar_exponent,
    "pow.Scalar": pow_scalar_base,
    "remainder.Scalar_Tensor": remainder_scalar_base,
    "logaddexp.default": logaddexp,
    "logaddexp2.default": logaddexp2,
    "xlogy.Tensor": xlogy,
    "xlogy.Scalar_Other": xlogy_number,
    "xlogy.Scalar_Self": xlogy_of_number,
    "special_xlog1py.default": xlog1py,
    "special_xlog1py.other_scalar": xlog1py_number,
    "special_xlog1py.self_scalar": xlog1py_of_number,
    "special_entr.default": entr,
    "heaviside.default": heaviside,
    "deg2rad.default": deg2rad,
    "rad2deg.default": rad2deg,
    "sgn.default": sgn,
    "signbit.default": signbit,
    "nan_to_num.default": nan_to_num,
    "isposinf.default": isposinf,
    "isneginf.default": isneginf,
    "sinc.default": sinc,
    "frac.default": frac,
    "round.decimals": round_decimals,
    "fmax.default": fmax,
    "fmin.default": fmin,
    "angle.default": angle,
    "copysign.Scalar": copysign_number,
    "bitwise_left_shift.Tensor_Scalar": shift_left_number,
    "bitwise_right_shift.Tensor_Scalar": shift_right_number,
}
