"""Gradients of the activations, as the closed forms ATen's backward ops compute."""

from __future__ import annotations

import math

from torch import Tensor

from ._common import Family, Number, aten, cast, contiguous, where, wide, wrap
from .activations import GELU_CUBIC, SQRT_2_OVER_PI, SQRT_HALF

INV_SQRT_2PI = 1.0 / math.sqrt(2.0 * math.pi)
ONE_SIXTH = 11184811 / 2**26  # the nearest float32, which ATen uses in float64 too


def gelu_backward(grad_output: Tensor, self: Tensor, *, approximate: str = "none") -> Tensor:
    """Φ(x) + x φ(x), or the derivative of the tanh form"""
    g, x = wide(grad_output), wide(self)
    square = aten.mul.Tensor(x, x)
    if approximate == "none":
        erf = aten.erf.default(aten.mul.Tensor(x, SQRT_HALF))
        cdf = aten.mul.Tensor(aten.add.Tensor(erf, 1.0), 0.5)
        pdf = aten.mul.Tensor(aten.exp.default(aten.mul.Tensor(square, -0.5)), INV_SQRT_2PI)
        slope = aten.add.Tensor(cdf, aten.mul.Tensor(x, pdf))
        return cast(aten.mul.Tensor(g, slope), grad_output.dtype)
    cubic = aten.mul.Tensor(aten.mul.Tensor(square, x), GELU_CUBIC)
    inner = aten.mul.Tensor(aten.add.Tensor(x, cubic), SQRT_2_OVER_PI)
    t = aten.tanh.default(inner)
    left = aten.mul.Tensor(aten.add.Tensor(t, 1.0), 0.5)
    d_tanh = aten.sub.Tensor(1.0, aten.mul.Tensor(t, t))
    d_inner = aten.mul.Tensor(
        aten.add.Tensor(aten.mul.Tensor(square, 3 * GELU_CUBIC), 1.0), SQRT_2_OVER_PI
    )
    right = aten.mul.Tensor(aten.mul.Tensor(aten.mul.Tensor(x, 0.5), d_tanh), d_inner)
    return cast(aten.mul.Tensor(g, aten.add.Tensor(left, right)), grad_output.dtype)


def silu_backward(grad_output: Tensor, self: Tensor) -> Tensor:
    """σ (1 + x (1 - σ))"""
    g, x = wide(grad_output), wide(self)
    s = aten.sigmoid.default(x)
    slope = aten.add.Tensor(aten.mul.Tensor(x, aten.sub.Tensor(1.0, s)), 1.0)
    return cast(aten.mul.Tensor(aten.mul.Tensor(g, s), slope), grad_output.dtype)


def mish_backward(grad_output: Tensor, self: Tensor) -> Tensor:
    """t + x σ (1 - t²), t = tanh(softplus x)"""
    g, x = wide(grad_output), wide(self)
    t = aten.tanh.default(aten.log1p.default(aten.exp.default(x)))
    s = aten.sigmoid.default(x)
    bend = aten.mul.Tensor(aten.mul.Tensor(x, s), aten.sub.Tensor(1.0, aten.mul.Tensor(t, t)))
    return cast(aten.mul.Tensor(g, aten.add.Tensor(t, bend)), grad_output.dtype)


def hardswish_backward(grad_output: Tensor, self: Tensor) -> Tensor:
    """0 below -3, 1 above 3, x / 3 + 1/2 between"""
    g, x = wide(grad_output), wide(self)
    middle = aten.mul.Tensor(g, aten.add.Tensor(aten.div.Tensor(x, 3.0), 0.5))
    right = where(aten.lt.Scalar(x, 3.0), middle, g)
    return cast(where(aten.le.Scalar(x, -3.0), 0.0, right), grad_output.dtype)


def hardsigmoid_backward(grad_output: Tensor, self: Tensor) -> Tensor:
    """1/6 strictly between -3 and 3, else 0"""
    inside = aten.lt.Scalar(aten.abs.default(self), 3.0)
    return where(inside, aten.mul.Tensor(grad_output, ONE_SIXTH), 0.0)


def hardtanh_backward(
    grad_output: Tensor, self: Tensor, min_val: Number, max_val: Number
) -> Tensor:
    """The gradient strictly between the bounds, else 0"""
    low, high = aten.le.Scalar(self, min_val), aten.ge.Scalar(self, max_val)
    return where(aten.logical_or.default(low, high), 0, grad_output)


def leaky_relu_backward(
    grad_output: Tensor, self: Tensor, negative_slope: Number, self_is_result: bool
) -> Tensor:
    """slope where x ≤ 0; the result has the input's sign, so either serves"""
    return where(aten.gt.Scalar(self, 0), grad_output, aten.mul.Tensor(grad_output, negative_slope))


def prelu_kernel_backward(
    grad_output: Tensor, self: Tensor, weight: Tensor
) -> tuple[Tensor, Tensor]:
    """Gradients to input and (unreduced) weight"""
    positive = aten.gt.Scalar(self, 0)
    to_input = where(positive, grad_output, aten.mul.Tensor(weight, grad_output))
    to_weight = where(positive, 0, aten.mul.Tensor(self, grad_output))
    return to_input, to_weight


def elu_backward(
    grad_output: Tensor,
    alpha: Number,
    scale: Number,
    input_scale: Number,
    is_result: bool,
    self_or_result: Tensor,
) -> Tensor:
    """scale where positive; else the exponential, read back from the result where that is given"""
    g, x = wide(grad_output), wide(self_or_result)
    if is_result:
        slope = aten.mul.Tensor(aten.add.Tensor(x, alpha * scale), input_scale)
    else:
        power = aten.exp.default(aten.mul.Tensor(x, input_scale))
        slope = aten.mul.Tensor(power, input_scale * alpha * scale)
    out = where(aten.le.Scalar(x, 0), aten.mul.Tensor(g, slope), aten.mul.Tensor(g, scale))
    return cast(out, grad_output.dtype)


def softplus_backward(grad_output: Tensor, self: Tensor, beta: Number, threshold: Number) -> Tensor:
    """σ(beta x), or 1 past the threshold"""
    g, x = wide(grad_output), wide(self)
    scaled = aten.mul.Tensor(x, beta)
    slope = aten.mul.Tensor(g, aten.sigmoid.default(scaled))
    return cast(where(aten.gt.Scalar(scaled, threshold), g, slope), grad_output.dtype)


def shrink_backward(grad_output: Tensor, self: Tensor, lambd: Number) -> Tensor:
    """0 where |x| ≤ lambd, else the gradient (hard- and softshrink alike)"""
    return where(aten.le.Scalar(aten.abs.default(self), lambd), 0, grad_output)


def hardshrink_backward(grad_out: Tensor, self: Tensor, lambd: Number) -> Tensor:
    """As softshrink's; ATen calls the gradient `grad_out` here."""
    return shrink_backward(grad_out, self, lambd)


def log_sigmoid_backward(grad_output: Tensor, self: Tensor, buffer: Tensor) -> Tensor:
    """σ(-x); the buffer holds nothing that x does not tell"""
    g, x = wide(grad_output), wide(self)
    slope = aten.sigmoid.default(aten.neg.default(x))
    return cast(aten.mul.Tensor(g, slope), grad_output.dtype)


def glu_backward(grad_output: Tensor, self: Tensor, dim: int) -> Tensor:
    """g σ(b) and g a σ(b) (1 - σ(b)), side by side, row-major as eager's"""
    dim = wrap(dim, self.dim())
    half = self.shape[dim] // 2
    g = wide(grad_output)
    a = wide(aten.slice.Tensor(self, dim, 0, half))
    s = aten.sigmoid.default(wide(aten.slice.Tensor(self, dim, half, half * 2)))
    left = aten.mul.Tensor(g, s)
    right = aten.mul.Tensor(aten.mul.Tensor(left, a), aten.sub.Tensor(1.0, s))
    return contiguous(cast(aten.cat.default([left, right], dim), self.dtype))


def threshold_backward(grad_output: Tensor, self: Tensor, threshold: Number) -> Tensor:
    """0 where x ≤ threshold, else the gradient"""
    return where(aten.le.Scalar(self, threshold), 0, grad_output)


def sigmoid_backward(grad_output: Tensor, output: Tensor) -> Tensor:
    """g s (1 - s)"""
    g, s = wide(grad_output), wide(output)
    slope = aten.mul.Tensor(aten.sub.Tensor(1.0, s), s)
    return cast(aten.mul.Tensor(g, slope), grad_output.dtype)


def tanh_backward(grad_output: Tensor, output: Tensor) -> Tensor:
    """g (1 - t²)"""
    g, t = wide(grad_output), wide(output)
    slope = aten.sub.Tensor(1.0, aten.mul.Tensor(t, t))
    return cast(aten.mul.Tensor(g, slope), grad_output.dtype)


def logit_backward(grad_output: Tensor, self: Tensor, eps: float | None = None) -> Tensor:
    """g / (x (1 - x)) inside the clamp; outside it 0, or NaN where there is no clamp"""
    g, x = wide(grad_output), wide(self)
    slope = aten.div.Tensor(g, aten.mul.Tensor(x, aten.sub.Tensor(1.0, x)))
    low, high = (0.0, 1.0) if eps is None else (eps, 1.0 - eps)
    outside = aten.logical_or.default(aten.lt.Scalar(x, low), aten.gt.Scalar(x, high))
    out = where(outside, math.nan if eps is None else 0.0, slope)
    return cast(out, grad_output.dtype)


def native_dropout_backward(grad_output: Tensor, mask: Tensor, scale: float) -> Tensor:
    """g scale where kept"""
    return aten.mul.Tensor(aten.mul.Tensor(grad_output, mask), scale)


TABLE: Family = {
    "gelu_backward.default": gelu_backward,
    "silu_backward.default": silu_backward,
    "mish_backward.default": mish_backward,
    "hardswish_backward.default": hardswish_backward,
    "hardsigmoid_backward.default": hardsigmoid_backward,
    "hardtanh_backward.default": hardtanh_backward,
    "leaky_relu_backward.default": leaky_relu_backward,
    "_prelu_kernel_backward.default": prelu_kernel_backward,
    "elu_backward.default": elu_backward,
    "softplus_backward.default": softplus_backward,
    "softshrink_backward.default": shrink_backward,
    "hardshrink_backward.default": hardshrink_backward,
    "log_sigmoid_backward.default": log_sigmoid_backward,
    "glu_backward.default": glu_backward,
    "threshold_backward.default": threshold_backward,
    "sigmoid_backward.default": sigmoid_backward,
    "tanh_backward.default": tanh_backward,
    "logit_backward.default": logit_backward,
    "native_dropout_backward.default": native_dropout_backward,
}
