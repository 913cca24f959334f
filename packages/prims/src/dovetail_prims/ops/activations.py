"""Activations. Half types are computed in float32 and rounded once, as eager's kernels do."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from dovetail_prims.fake_tensor import FakeTensor
from dovetail_prims.ops.card import composed, decomposed
from dovetail_prims.ops.common import Number, aten, cast, constant, contiguous, is_one, wide, wrap
from dovetail_prims.ops.common import where as where_of_tensors
from dovetail_prims.ops.values import (
    Value,
    erf,
    exp,
    expm1,
    float_formula,
    formula,
    log,
    log1p,
    maximum,
    minimum,
    relu,
    sigmoid,
    tanh,
    unrounded,
    where,
)
from dovetail_prims.shape_rules.argument_checks import requirement
from dovetail_prims.shape_rules.copies import clone, of_cpu
from dovetail_prims.shape_rules.layout import fresh, insisted, pointwise_out, wrap_dim
from dovetail_prims.shape_rules.parts import slice_
from dovetail_prims.shape_rules.pointwise import binary, float_result, like_operand, same_dtype
from dovetail_prims.shape_rules.promotion import of_one_kind

SQRT_HALF = math.sqrt(0.5)
SQRT_2_OVER_PI = math.sqrt(2.0 / math.pi)
GELU_CUBIC = 0.044715


def scaled(x: Value, factor: Number) -> Value:
    """factor x: x itself for the number 1; what a symbolic number is, is not asked."""
    return x if is_one(factor) else x * factor


@formula
def gelu(x: Value, *, approximate: str = "none") -> Value:
    """x Φ(x), or its tanh approximation."""
    if approximate == "none":
        bell = erf(x * SQRT_HALF)
    else:
        bell = tanh((x + x * x * x * GELU_CUBIC) * SQRT_2_OVER_PI)
    return x * 0.5 * (bell + 1.0)


@formula
def silu(x: Value) -> Value:
    """x σ(x)"""
    return x * sigmoid(x)


@formula
def mish(x: Value) -> Value:
    """x tanh(log(1 + eˣ)), which is x n / (n + 2) of n = eˣ (eˣ + 2); x itself beyond 20"""
    power = exp(x)
    n = power * (power + 2.0)
    return where(x > 20.0, x, x * (n / (n + 2.0)))


def _ramp6(x: Value) -> Value:
    """min(max(x + 3, 0), 6)"""
    return minimum(relu(x + 3.0), 6.0)


@formula
def hardswish(x: Value) -> Value:
    """x clamp(x + 3, 0, 6) / 6"""
    return x * _ramp6(x) / 6.0


@formula
def hardsigmoid(x: Value) -> Value:
    """clamp(x + 3, 0, 6) / 6"""
    return _ramp6(x) / 6.0


@unrounded
def hardtanh(x: Value, min_val: Number = -1, max_val: Number = 1) -> Value:
    """clamp(x, min_val, max_val); as there, a zero keeps its sign"""
    return minimum(max_val, maximum(min_val, x))


@unrounded
def leaky_relu(x: Value, negative_slope: Number = 0.01) -> Value:
    """x where positive, else slope x"""
    return where(x > 0, x, x * negative_slope)


@unrounded
def prelu_kernel(x: Value, weight: Value) -> Value:
    """x where positive, else w x (w already broadcasts)"""
    return where(x > 0, x, x * weight)


@formula
def elu(x: Value, alpha: Number = 1, scale: Number = 1, input_scale: Number = 1) -> Value:
    """scale x where positive, else scale alpha (exp(input_scale x) - 1)"""
    curve = scaled(expm1(scaled(x, input_scale)), alpha * scale)
    line = scaled(x, scale)
    return where(x <= 0, curve, line)


def celu(self: Tensor, alpha: Number = 1.0) -> Any:
    """elu with the input scaled by 1 / alpha"""
    return elu(self, alpha, 1, 1.0 / alpha)


@formula
def softplus(x: Value, beta: Number = 1, threshold: Number = 20) -> Value:
    """log(1 + exp(beta x)) / beta; x itself where beta x passes the threshold"""
    steep = scaled(x, beta)
    soft = log1p(exp(steep))
    if steep is not x:
        soft = soft / beta
    return where(steep > threshold, x, soft)


@formula
def softshrink(x: Value, lambd: Number = 0.5) -> Value:
    """x moved towards 0 by lambd; 0 within it, NaN stays NaN"""
    inside = x * 0.0
    below = where(x < -lambd, x + lambd, inside)
    return where(x > lambd, x - lambd, below)


@unrounded
def hardshrink(x: Value, lambd: Number = 0.5) -> Value:
    """0 where |x| ≤ lambd, else x"""
    return where(abs(x) <= lambd, 0, x)


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


@unrounded
def threshold(x: Value, threshold: Number, value: Number) -> Value:
    """value where x ≤ threshold, else x"""
    return where(x <= threshold, value, x)


@float_formula
def logit(x: Value, eps: float | None = None) -> Value:
    """log(x / (1 - x)), x clamped to [eps, 1 - eps] first; the lower bound wins where they cross"""
    if eps is not None:
        below = x < eps
        x = where(below, eps, minimum(x, 1 - eps))
    return log(x / (1 - x))


def glu_shape(x: FakeTensor, dim: int = -1) -> FakeTensor:
    """As one half times the other."""
    if not x._sizes:
        raise RuntimeError("glu does not support 0-dimensional tensors")
    dim = wrap_dim(dim, len(x._sizes))
    size = x._sizes[dim]
    if not insisted(size % 2 == 0):
        raise RuntimeError(f"Halving dimension must be even, but dimension {dim} is size {size}")
    half = size // 2
    return binary(slice_(x, dim, 0, half), slice_(x, dim, half, size))


def fits_prelu(x: FakeTensor, weight: FakeTensor) -> bool:
    return of_one_kind(x, weight) and len(x._sizes) == len(weight._sizes)


def prelu_shape(x: FakeTensor, weight: FakeTensor) -> FakeTensor:
    """`_prelu_kernel`, whose weight broadcasts."""
    if not fits_prelu(x, weight):
        return NotImplemented  # type: ignore[no-any-return]
    return pointwise_out((x, weight), x._dtype)


def log_sigmoid_shape(x: FakeTensor) -> tuple[FakeTensor, FakeTensor]:
    """`log_sigmoid_forward` and its buffer: row-major."""
    return fresh(x._sizes, x._dtype, x._device), fresh(x._sizes, x._dtype, x._device)


def rrelu_shape(x: FakeTensor, noise: FakeTensor, *rest: Any, **options: Any) -> FakeTensor:
    """`rrelu_with_noise`: row-major."""
    return fresh(x._sizes, x._dtype, x._device)


def rrelu_and_noise(
    x: FakeTensor, noise: FakeTensor, *rest: Any, **options: Any
) -> tuple[FakeTensor, FakeTensor]:
    """Its functional form, which gives the noise, too: laid as what it is of."""
    return same_dtype(x), clone(noise)


def rrelu(
    self: Tensor,
    noise: Tensor,
    lower: Number = 0.125,
    upper: Number = 1 / 3,
    training: bool = False,
    generator: Any = None,
) -> Any:
    """Slopes drawn for what is not above 0; without training, the mean slope; row-major, as what
    `rrelu` calls is. (On a CPU eager draws for those elements alone: as many as the data say, one
    after the other. To draw them takes as long as the library's whole kernel.)"""
    if training:
        drawn_alone = self.device.type == "cpu"
        if (
            drawn_alone and not self.is_contiguous()
        ):  # (of which the library's function is row-major)
            own = aten.rrelu_with_noise_functional.default
            return own(contiguous(self), noise, lower, upper, training, generator)
        if drawn_alone or self.dtype not in (torch.float32, torch.float64):
            return NotImplemented
        drawn = cast(aten.uniform.default(noise, 0.0, 1.0, generator=generator), torch.float64)
        drawn = aten.add.Tensor(aten.mul.Tensor(drawn, upper - lower), lower)
        held = where_of_tensors(aten.le.Scalar(self, 0), cast(drawn, noise.dtype), 1.0)
        return aten.mul.Tensor(contiguous(self), held), held
    mean = aten.leaky_relu.default(contiguous(self), (lower + upper) / 2)
    return mean, aten.clone.default(noise)


_APPROXIMATION = requirement.is_one_of(
    "approximate", ("none", "tanh"), "approximate argument must be either none or tanh."
)
_WIDTH = requirement.Requirement(
    lambda given: given["lambd"] >= 0, "lambda must not be negative, but found {lambd}"
)
_REPLACED = requirement.fit_dtype_of_self("threshold", "value")

CARDS = (
    decomposed("gelu", gelu, same_dtype, requires=(_APPROXIMATION,)),
    decomposed("silu", silu, same_dtype),
    decomposed("mish", mish, same_dtype),
    decomposed("hardswish", hardswish, same_dtype),
    decomposed("hardsigmoid", hardsigmoid, same_dtype),
    decomposed("hardtanh", hardtanh, like_operand),
    decomposed("relu6", None, like_operand),
    decomposed("leaky_relu", leaky_relu, same_dtype),
    decomposed("_prelu_kernel", prelu_kernel, prelu_shape, arity=2, in_place=()),
    decomposed("elu", elu, same_dtype),
    decomposed("celu", celu, same_dtype),
    decomposed("softplus", softplus, same_dtype),
    decomposed("softshrink", softshrink, same_dtype, requires=(_WIDTH,)),
    decomposed("hardshrink", hardshrink, same_dtype),
    decomposed("log_sigmoid", None, same_dtype),
    decomposed("log_sigmoid_forward", log_sigmoid_forward, of_cpu(log_sigmoid_shape), in_place=()),
    decomposed("glu", glu, glu_shape, in_place=()),
    decomposed("threshold", threshold, same_dtype, requires=(_REPLACED,)),
    decomposed("logit", logit, float_result),
    composed("rrelu_with_noise", of_cpu(rrelu_shape)),
    composed("rrelu_with_noise_functional", of_cpu(rrelu_and_noise), rrelu),
)
