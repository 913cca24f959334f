"""Numbers rounded to what a quantized type can hold, for training that knows of it.

Each op gives the rounded numbers, and where nothing was clamped: there the gradient passes.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from dovetail_prims.fake_tensor import FakeTensor, FakeTensorError, Sizes, make
from dovetail_prims.ops.card import composed
from dovetail_prims.ops.common import aten, cast, constant, reshape, where
from dovetail_prims.shape_rules.layout import empty_like_strides, equal_sizes

# --- shapes ---------------------------------------------------------------------------------------


_SCALES = (torch.float32, torch.bfloat16)


def fake_quantized(x: FakeTensor, scale: Any, zero_point: Any, *rest: Any) -> Any:
    """Numbers rounded to steps, and a mask, both laid out as x."""
    low, high = rest[-2:]
    if low > high or not x._dtype.is_floating_point:
        return NotImplemented  # the kernel names the argument
    if not isinstance(zero_point, FakeTensor) and not low <= zero_point <= high:
        return NotImplemented
    if isinstance(scale, FakeTensor):
        wanted: Sizes = (1,)
        if type(rest[0]) is int:  # a scale for each index of this dimension
            if not 0 <= rest[0] < len(x._sizes) or scale._dtype not in _SCALES:
                return NotImplemented
            if zero_point._dtype not in (torch.int32, torch.float32, torch.float16):
                return NotImplemented
            wanted = (x._sizes[rest[0]],)
        if not all(equal_sizes(n._sizes or (1,), wanted) for n in (scale, zero_point)):
            return NotImplemented
    strides = empty_like_strides(x)
    out = make(x._sizes, strides, x._dtype, x._device)
    return out, make(x._sizes, strides, torch.bool, x._device)


def observed_and_fake_quantized(
    x: FakeTensor,
    observer_on: FakeTensor,
    fake_quant_on: FakeTensor,
    running_min: FakeTensor,
    running_max: FakeTensor,
    scale: FakeTensor,
    zero_point: FakeTensor,
    averaging: float,
    low: int,
    high: int,
    axis: int,
    by_row: bool = False,
    *rest: Any,
) -> Any:
    """Numbers rounded to steps that follow a moving range: what observes by rows for the first time
    is given its size, as many as there are rows, which is no part of a graph."""
    if by_row and 0 <= axis < len(x._sizes):
        observed = (running_min, running_max, scale, zero_point)
        if not all(equal_sizes(n._sizes, (x._sizes[axis],)) for n in observed):
            raise FakeTensorError("the first call gives the observer its size, a number a row")
    return NotImplemented


# --- decompositions -------------------------------------------------------------------------------


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


# --- cards --------------------------------------------------------------------------------------

CARDS = (
    composed("fake_quantize_per_tensor_affine_cachemask", fake_quantized, per_tensor),
    composed(
        "_fake_quantize_per_tensor_affine_cachemask_tensor_qparams",
        fake_quantized,
        per_tensor_of_tensors,
    ),
    composed("fake_quantize_per_channel_affine_cachemask", fake_quantized, per_channel),
    composed("fused_moving_avg_obs_fake_quant", observed_and_fake_quantized),
    composed("_fused_moving_avg_obs_fq_helper", observed_and_fake_quantized),
    composed("_fused_moving_avg_obs_fq_helper_functional", observed_and_fake_quantized),
)
