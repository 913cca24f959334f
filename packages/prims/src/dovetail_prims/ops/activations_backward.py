"""Gradients of the activations, as the closed forms ATen's backward ops compute."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

from torch import Tensor

from dovetail_prims.fake_tensor import FakeTensor
from dovetail_prims.ops.activations import GELU_CUBIC, SQRT_2_OVER_PI, SQRT_HALF
from dovetail_prims.ops.activations import fits_prelu as _fits_prelu
from dovetail_prims.ops.card import composed, decomposed
from dovetail_prims.ops.common import Number, aten, cast, contiguous, wide, wrap
from dovetail_prims.ops.losses import alike, empty_like
from dovetail_prims.ops.values import (
    Value,
    erf,
    exp,
    formula,
    log1p,
    sigmoid,
    tanh,
    unrounded,
    where,
)
from dovetail_prims.shape_rules import pointwise as rules
from dovetail_prims.shape_rules.copies import of_cpu
from dovetail_prims.shape_rules.layout import fresh, pointwise_out
from dovetail_prims.shape_rules.pointwise import backward_two, binary

INV_SQRT_2PI = 1.0 / math.sqrt(2.0 * math.pi)
ONE_SIXTH = 11184811 / 2**26  # the nearest float32, which ATen uses in float64 too


@formula
def gelu_backward(g: Value, x: Value, *, approximate: str = "none") -> Value:
    """Φ(x) + x φ(x), or the derivative of the tanh form"""
    square = x * x
    if approximate == "none":
        cdf = (erf(x * SQRT_HALF) + 1.0) * 0.5
        pdf = exp(square * -0.5) * INV_SQRT_2PI
        return g * (cdf + x * pdf)
    t = tanh((x + square * x * GELU_CUBIC) * SQRT_2_OVER_PI)
    left = (t + 1.0) * 0.5
    d_tanh = 1.0 - t * t
    d_inner = (square * (3 * GELU_CUBIC) + 1.0) * SQRT_2_OVER_PI
    return g * (left + x * 0.5 * d_tanh * d_inner)


@formula
def silu_backward(g: Value, x: Value) -> Value:
    """σ (1 + x (1 - σ))"""
    s = sigmoid(x)
    slope = x * (1.0 - s) + 1.0
    return g * s * slope


@formula
def mish_backward(g: Value, x: Value) -> Value:
    """t + x σ (1 - t²), t = tanh(softplus x)"""
    t = tanh(log1p(exp(x)))
    s = sigmoid(x)
    return g * (t + x * s * (1.0 - t * t))


@formula
def hardswish_backward(g: Value, x: Value) -> Value:
    """0 below -3, 1 above 3, x / 3 + 1/2 between"""
    middle = g * (x / 3.0 + 0.5)
    right = where(x < 3.0, middle, g)
    return where(x <= -3.0, 0.0, right)


@unrounded
def hardsigmoid_backward(g: Value, x: Value) -> Value:
    """1/6 strictly between -3 and 3, else 0"""
    return where(abs(x) < 3.0, g * ONE_SIXTH, 0.0)


@unrounded
def hardtanh_backward(g: Value, x: Value, min_val: Number, max_val: Number) -> Value:
    """The gradient strictly between the bounds, else 0"""
    return where((x <= min_val) | (x >= max_val), 0, g)


@unrounded
def leaky_relu_backward(g: Value, x: Value, negative_slope: Number, self_is_result: bool) -> Value:
    """slope where x ≤ 0; the result has the input's sign, so either serves"""
    return where(x > 0, g, g * negative_slope)


@unrounded
def prelu_kernel_backward(g: Value, x: Value, weight: Value) -> tuple[Value, Value]:
    """Gradients to input and (unreduced) weight"""
    positive = x > 0
    to_input = where(positive, g, weight * g)
    return to_input, where(positive, 0, x * g)


@formula
def elu_backward(
    g: Value,
    alpha: Number,
    scale: Number,
    input_scale: Number,
    is_result: bool,
    self_or_result: Value,
) -> Value:
    """scale where positive; else the exponential, read back from the result where that is given"""
    x = self_or_result
    if is_result:
        slope = (x + alpha * scale) * input_scale
    else:
        slope = exp(x * input_scale) * (input_scale * alpha * scale)
    return where(x <= 0, g * slope, g * scale)


@formula
def softplus_backward(g: Value, x: Value, beta: Number, threshold: Number) -> Value:
    """σ(beta x), or 1 past the threshold"""
    steep = x * beta
    slope = g * sigmoid(steep)
    return where(steep > threshold, g, slope)


@unrounded
def shrink_backward(g: Value, x: Value, lambd: Number) -> Value:
    """0 where |x| ≤ lambd, else the gradient (hard- and softshrink alike)"""
    return where(abs(x) <= lambd, 0, g)


@unrounded
def hardshrink_backward(grad_out: Value, x: Value, lambd: Number) -> Value:
    """As softshrink's; ATen calls the gradient `grad_out` here."""
    return where(abs(x) <= lambd, 0, grad_out)


@formula
def _log_sigmoid_backward(g: Value, x: Value) -> Value:
    return g * sigmoid(-x)


def log_sigmoid_backward(grad_output: Tensor, self: Tensor, buffer: Tensor) -> Any:
    """σ(-x); the buffer holds nothing that x does not tell"""
    return _log_sigmoid_backward(grad_output, self)


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


@unrounded
def threshold_backward(g: Value, x: Value, threshold: Number) -> Value:
    """0 where x ≤ threshold, else the gradient"""
    return where(x <= threshold, 0, g)


@formula
def sigmoid_backward(g: Value, output: Value) -> Value:
    """g s (1 - s)"""
    return g * ((1.0 - output) * output)


@formula
def tanh_backward(g: Value, output: Value) -> Value:
    """g (1 - t²)"""
    return g * (1.0 - output * output)


@formula
def logit_backward(g: Value, x: Value, eps: float | None = None) -> Value:
    """g / (x (1 - x)) inside the clamp; outside it 0, or NaN where there is no clamp"""
    slope = g / (x * (1.0 - x))
    low, high = (0.0, 1.0) if eps is None else (eps, 1.0 - eps)
    return where((x < low) | (x > high), math.nan if eps is None else 0.0, slope)


@unrounded
def native_dropout_backward(g: Value, mask: Value, scale: float) -> Value:
    """g scale where kept"""
    return g * mask * scale


_gradient = partial(decomposed, arity=2, in_place=())


def glu_backward_shape(grad: FakeTensor, x: FakeTensor, dim: int) -> FakeTensor:
    """Row-major, as both halves are written into one tensor."""
    return fresh(x._sizes, x._dtype, x._device)


_Results = tuple[FakeTensor | None, ...]


def prelu_backward_shape(grad: FakeTensor, x: FakeTensor, weight: FakeTensor) -> _Results:
    """Both gradients are as large as the input."""
    if not _fits_prelu(x, weight) or not alike(x, grad):
        return NotImplemented  # type: ignore[no-any-return]
    operands = (x, weight, grad)
    return pointwise_out(operands, x._dtype), pointwise_out(operands, x._dtype)


def log_sigmoid_backward_shape(grad: FakeTensor, x: FakeTensor, buffer: FakeTensor) -> FakeTensor:
    """Laid out as what comes in. On a GPU the buffer is empty."""
    fits = alike(grad, x) if x._device.type != "cpu" else alike(grad, x, buffer)
    return empty_like(grad) if fits else NotImplemented


def rrelu_backward_shape(
    grad: FakeTensor,
    x: FakeTensor,
    noise: FakeTensor,
    lower: Any,
    upper: Any,
    training: bool,
    self_is_result: bool,
) -> FakeTensor:
    """In training a product with the slopes that were drawn."""
    if not training or upper - lower <= 1e-6 or not alike(grad, x, noise):
        return NotImplemented  # type: ignore[no-any-return]
    return pointwise_out((noise, grad), grad._dtype)


def dropout_backward_shape(grad: FakeTensor, mask: FakeTensor, scale: Any) -> FakeTensor:
    """`native_dropout_backward`: a product."""
    return binary(binary(grad, mask), scale)


def rrelu_backward(
    grad_output: Tensor,
    self: Tensor,
    noise: Tensor,
    lower: Number,
    upper: Number,
    training: bool,
    self_is_result: bool,
) -> Tensor:
    """The slopes that were drawn, or the mean one below 0"""
    if training and upper - lower > 1e-6:
        return aten.mul.Tensor(noise, grad_output)
    slope = (lower + upper) / 2
    return aten.leaky_relu_backward.default(grad_output, self, slope, self_is_result)


CARDS = (
    _gradient("gelu_backward", gelu_backward, backward_two),
    _gradient("silu_backward", silu_backward, backward_two),
    _gradient("mish_backward", mish_backward, backward_two),
    _gradient("hardswish_backward", hardswish_backward, backward_two),
    _gradient("hardsigmoid_backward", hardsigmoid_backward, backward_two),
    _gradient("hardtanh_backward", hardtanh_backward, backward_two),
    _gradient("leaky_relu_backward", leaky_relu_backward, backward_two),
    _gradient("softplus_backward", softplus_backward, backward_two),
    _gradient("sigmoid_backward", sigmoid_backward, backward_two),
    _gradient("tanh_backward", tanh_backward, backward_two),
    _gradient("logit_backward", logit_backward, backward_two),
    _gradient("elu_backward", elu_backward, rules.elu_backward),
    _gradient("threshold_backward", threshold_backward, rules.threshold_backward),
    _gradient("_prelu_kernel_backward", prelu_kernel_backward, prelu_backward_shape, arity=3),
    _gradient("softshrink_backward", shrink_backward),
    _gradient("hardshrink_backward", hardshrink_backward),
    _gradient("log_sigmoid_backward", log_sigmoid_backward, log_sigmoid_backward_shape),
    _gradient("glu_backward", glu_backward, glu_backward_shape),
    _gradient("native_dropout_backward", native_dropout_backward, of_cpu(dropout_backward_shape)),
    composed("rrelu_with_noise_backward", rrelu_backward_shape, rrelu_backward),
)
