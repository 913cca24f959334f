"""Shape rules of fake quantization."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from dovetail_prims.fake_tensor import (
    FakeTensor,
    FakeTensorError,
    Sizes,
    make,
)
from dovetail_prims.shape_rules.layout import (
    empty_like_strides,
    equal_sizes,
)

_FAKE_QUANTIZED = (
    "fake_quantize_per_tensor_affine_cachemask",
    "_fake_quantize_per_tensor_affine_cachemask_tensor_qparams",
    "fake_quantize_per_channel_affine_cachemask",
)
_OBSERVING = (
    "fused_moving_avg_obs_fake_quant",
    "_fused_moving_avg_obs_fq_helper",
    "_fused_moving_avg_obs_fq_helper_functional",
)
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


def rules() -> dict[str, Callable[..., Any]]:
    """The table of this family."""
    return {
        **{f"{name}.default": fake_quantized for name in _FAKE_QUANTIZED},
        **{f"{name}.default": observed_and_fake_quantized for name in _OBSERVING},
    }
