"""Activations. Half types are computed in float32 and rounded once, as eager's kernels do."""

from __future__ import annotations

import math

from torch import Tensor

from ._common import (
    Family,
    Number,
    aten,
    cast,
    constant,
    contiguous,
    floating,
    times,
    where,
    wide,
    wrap,
)

SQRT_HALF = math.sqrt(0.5)
SQRT_2_OVER_PI = math.sqrt(2.0 / math.pi)
GELU_CUBIC = 0.044715


def gelu(self: Tensor, *, approximate: str = "none") -> Tensor:
    """x Φ(x), or its tanh approximation."""
    x = wide(self)
    if approximate == "none":
        bell = aten.erf.default(aten.mul.Tensor(x, SQRT_HALF))
    else:
        cube = aten.mul.Tensor(aten.mul.Tensor(x, x), x)
        inner = aten.add.Tensor(x, aten.mul.Tensor(cube, GELU_CUBIC))
        bell = aten.tanh.default(aten.mul.Tensor(inner, SQRT_2_OVER_PI))
    half = aten.mul.Tensor(x, 0.5)
    return cast(aten.mul.Tensor(half, aten.add.Tensor(bell, 1.0)), self.dtype)


def silu(self: Tensor) -> Tensor:
    """x σ(x)"""
    x = wide(self)
    return cast(aten.mul.Tensor(x, aten.sigmoid.default(x)), self.dtype)


def mish(self: Tensor) -> Tensor:
    """x tanh(log(1 + eˣ))"""
    x = wide(self)
    soft = aten.log1p.default(aten.exp.default(x))
    return cast(aten.mul.Tensor(x, aten.tanh.default(soft)), self.dtype)


def _ramp6(x: Tensor) -> Tensor:
    """min(max(x + 3, 0), 6)"""
    shifted = aten.relu.default(aten.add.Tensor(x, 3.0))
    return aten.minimum.default(shifted, constant(6.0, x))


def hardswish(self: Tensor) -> Tensor:
    """x clamp(x + 3, 0, 6) / 6"""
    x = wide(self)
    return cast(aten.div.Tensor(aten.mul.Tensor(x, _ramp6(x)), 6.0), self.dtype)


def hardsigmoid(self: Tensor) -> Tensor:
    """clamp(x + 3, 0, 6) / 6"""
    return cast(aten.div.Tensor(_ramp6(wide(self)), 6.0), self.dtype)


def hardtanh(self: Tensor, min_val: Number = -1, max_val: Number = 1) -> Tensor:
    """clamp(x, min_val, max_val); as there, a zero keeps its sign"""
    low = aten.maximum.default(constant(min_val, self), self)
    return aten.minimum.default(constant(max_val, self), low)


def leaky_relu(self: Tensor, negative_slope: Number = 0.01) -> Tensor:
    """x where positive, else slope x"""
    return where(aten.gt.Scalar(self, 0), self, aten.mul.Tensor(self, negative_slope))


def prelu_kernel(self: Tensor, weight: Tensor) -> Tensor:
    """x where positive, else w x (w already broadcasts)"""
    return where(aten.gt.Scalar(self, 0), self, aten.mul.Tensor(self, weight))


def elu(self: Tensor, alpha: Number = 1, scale: Number = 1, input_scale: Number = 1) -> Tensor:
    """scale x where positive, else scale alpha (exp(input_scale x) - 1)"""
    x = wide(self)
    curve = times(aten.expm1.default(times(x, input_scale)), alpha * scale)
    line = times(x, scale)
    return cast(where(aten.le.Scalar(x, 0), curve, line), self.dtype)


def celu(self: Tensor, alpha: Number = 1.0) -> Tensor:
    """elu with the input scaled by 1 / alpha"""
    return elu(self, alpha, 1, 1.0 / alpha)


def softplus(self: Tensor, beta: Number = 1, threshold: Number = 20) -> Tensor:
    """log(1 + exp(beta x)) / beta; x itself where beta x passes the threshold"""
    x = wide(self)
    scaled = times(x, beta)
    soft = aten.log1p.default(aten.exp.default(scaled))
    if scaled is not x:
        soft = aten.div.Tensor(soft, beta)
    return cast(where(aten.gt.Scalar(scaled, threshold), x, soft), self.dtype)


def softshrink(self: Tensor, lambd: Number = 0.5) -> Tensor:
    """x moved towards 0 by lambd; 0 within it, NaN stays NaN"""
    x = wide(self)
    inside = aten.mul.Tensor(x, 0.0)
    below = where(aten.lt.Scalar(x, -lambd), aten.add.Tensor(x, lambd), inside)
    out = where(aten.gt.Scalar(x, lambd), aten.sub.Tensor(x, lambd), below)
    return cast(out, self.dtype)


def hardshrink(self: Tensor, lambd: Number = 0.5) -> Tensor:
    """0 where |x| ≤ lambd, else x"""
    return where(aten.le.Scalar(aten.abs.default(self), lambd), 0, self)


def log_sigmoid_forward(self: Tensor) -> tuple[Tensor, Tensor]:
    """min(x, 0) - log(1 + exp(-|x|)), and the exponential (which only the CPU kernel keeps)"""
    x = wide(self)
    z = aten.exp.default(aten.neg.default(aten.abs.default(x)))
    low = aten.minimum.default(x, constant(0, x))
    out = cast(aten.sub.Tensor(low, aten.log1p.default(z)), self.dtype)
    if self.device.type == "cpu":
        return contiguous(out), contiguous(cast(z, self.dtype))
    return out, aten.empty.memory_format([0], dtype=self.dtype, device=self.device)


def glu(self: Tensor, dim: int = -1) -> Tensor:
    """first half times σ(second half)"""
    dim = wrap(dim, self.dim())
    half = self.shape[dim] // 2
    a = wide(aten.slice.Tensor(self, dim, 0, half))
    b = wide(aten.slice.Tensor(self, dim, half, half * 2))
    return cast(aten.mul.Tensor(a, aten.sigmoid.default(b)), self.dtype)


def threshold(self: Tensor, threshold: Number, value: Number) -> Tensor:
    """value where x ≤ threshold, else x"""
    return where(aten.le.Scalar(self, threshold), value, self)


def logit(self: Tensor, eps: float | None = None) -> Tensor:
    """log(x / (1 - x)), x clamped to [eps, 1 - eps] first; the lower bound wins where they cross"""
    self = floating(self)
    x = wide(self)
    if eps is not None:
        below = aten.lt.Scalar(x, eps)
        x = aten.minimum.default(x, constant(1 - eps, x))
        x = where(below, eps, x)
    out = aten.log.default(aten.div.Tensor(x, aten.sub.Tensor(1, x)))
    return cast(out, self.dtype)


TABLE: Family = {
    "gelu.default": gelu,
    "silu.default": silu,
    "mish.default": mish,
    "hardswish.default": hardswish,
    "hardsigmoid.default": hardsigmoid,
    "hardtanh.default": hardtanh,
    "leaky_relu.default": leaky_relu,
    "_prelu_kernel.default": prelu_kernel,
    "elu.default": elu,
    "celu.default": celu,
    "softplus.default": softplus,
    "softshrink.default": softshrink,
    "hardshrink.default": hardshrink,
    "log_sigmoid_forward.default": log_sigmoid_forward,
    "glu.default": glu,
    "threshold.default": threshold,
    "logit.default": logit,
}
