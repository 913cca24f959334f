"""Numbers rounded to what a quantized type can hold, for training that knows of it.

Each op gives the rounded numbers, and where nothing was clamped: there the gradient passes.
"""

from __future__ import annotations

import torch
from torch import Tensor

from dovetail_prims.ops.common import Family, aten, cast, constant, reshape, where

# A conversion to int64 gives the least of them from here on.
_INT64_END = 2.0**63


def _steps(x: Tensor, scale: Tensor, zero: Tensor) -> Tensor:
    """The step that each number is nearest to, by the scale's reciprocal in float32."""
    exact = x if x.dtype == torch.float64 else cast(x, torch.float32)
    nearest = aten.round.default(aten.mul.Tensor(exact, aten.reciprocal.default(scale)))
    return aten.add.Tensor(nearest, cast(zero, nearest.dtype))


def _bounded(steps: Tensor, low: int, high: int, above_low: Tensor) -> Tensor:
    """The steps between two; NaN is the lower one."""
    return where(above_low, aten.clamp_max.default(steps, float(high)), float(low))


def _inside(steps: Tensor, low: int, high: int) -> Tensor:
    return aten.logical_and.default(aten.ge.Scalar(steps, low), aten.le.Scalar(steps, high))


def _of_tensor(
    x: Tensor, scale: Tensor, zero: Tensor, quant_min: int, quant_max: int
) -> tuple[Tensor, Tensor]:
    """One scale and zero point for all: the distance from zero is taken in float32."""
    steps = _steps(x, scale, zero)
    bounded = _bounded(steps, quant_min, quant_max, aten.gt.Scalar(steps, quant_min))
    distance = aten.sub.Tensor(cast(bounded, torch.float32), cast(zero, torch.float32))
    out = cast(aten.mul.Tensor(distance, scale), x.dtype)
    return out, _inside(steps, quant_min, quant_max)


def per_tensor(
    self: Tensor, scale: float, zero_point: int, quant_min: int, quant_max: int
) -> tuple[Tensor, Tensor]:
    """x rounded to multiples of a scale between two bounds, and whether it was between them"""
    numbers = constant(scale, self, torch.float32), constant(zero_point, self, torch.int64)
    return _of_tensor(self, *numbers, quant_min, quant_max)


def per_tensor_of_tensors(
    self: Tensor,
    scale: Tensor,
    zero_point: Tensor,
    fake_quant_enabled: Tensor,
    quant_min: int,
    quant_max: int,
) -> tuple[Tensor, Tensor]:
    """The same by numbers in tensors, one of which may turn it off"""
    numbers = cast(reshape(scale, []), torch.float32), cast(reshape(zero_point, []), torch.int64)
    out, mask = _of_tensor(self, *numbers, quant_min, quant_max)
    off = aten.eq.Scalar(reshape(fake_quant_enabled, []), 0)
    return where(off, self, out), aten.logical_or.default(off, mask)


def per_channel(
    self: Tensor, scale: Tensor, zero_point: Tensor, axis: int, quant_min: int, quant_max: int
) -> tuple[Tensor, Tensor]:
    """The same with a scale and a zero point for each index of a dimension"""
    shape = [-1 if d == axis % self.dim() else 1 for d in range(self.dim())]
    if not zero_point.is_floating_point():
        within = aten.all.default(_inside(zero_point, quant_min, quant_max))
        message = "`zero_point` must be between `quant_min` and `quant_max`."
        aten._assert_async.msg(within, message)
    scale, zero = cast(reshape(scale, shape), torch.float32), reshape(zero_point, shape)
    steps = _steps(self, scale, zero)
    above_low = aten.gt.Scalar(steps, quant_min)
    held = aten.logical_and.default(above_low, aten.lt.Scalar(steps, _INT64_END))
    bounded = _bounded(steps, quant_min, quant_max, held)
    distance = aten.sub.Tensor(bounded, cast(zero, bounded.dtype))
    out = cast(aten.mul.Tensor(distance, cast(scale, bounded.dtype)), self.dtype)
    return out, _inside(steps, quant_min, quant_max)


TABLE: Family = {
    "fake_quantize_per_tensor_affine_cachemask.default": per_tensor,
    "_fake_quantize_per_tensor_affine_cachemask_tensor_qparams.default": per_tensor_of_tensors,
    "fake_quantize_per_channel_affine_cachemask.default": per_channel,
}
