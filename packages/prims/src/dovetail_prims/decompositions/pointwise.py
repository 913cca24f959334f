"""Pointwise arithmetic: number overloads, fused forms, clamps, signs, rounding, shifts."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ._common import (
    Family,
    Number,
    aten,
    cast,
    constant,
    floating,
    promoted,
    promoted_together,
    times,
    where,
    wide,
)

# Whether this torch clamps unsigned numbers to negative bounds modulo their range, as torch 2.11
# does. (torch 2.15 takes such a bound for none.)
BOUNDS_WRAP_AROUND = bool(torch.zeros((), dtype=torch.uint8, device="cpu").clamp(min=-1))


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


def remainder_scalar_base(self: Number, other: Tensor) -> Tensor:
    """n modulo a tensor"""
    base = constant(self, other, promoted(other, self))
    return aten.remainder.Tensor(base, other)


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
    "remainder.Scalar_Tensor": remainder_scalar_base,
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
    "__lshift__.Tensor": shift_left,
    "__rshift__.Tensor": shift_right,
    "__lshift__.Scalar": shift_left_number,
    "__rshift__.Scalar": shift_right_number,
    "bitwise_right_shift.Tensor_Scalar": shift_right_number,
}
