"""Poolings, and maxima put back where they stood."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from dovetail_prims.fake.fake_fallback import run_on_meta
from dovetail_prims.fake_tensor import FakeTensor, Size, make
from dovetail_prims.ops.card import composed, library
from dovetail_prims.ops.common import aten, formatted, reshape, suggested_format, zeros
from dovetail_prims.shape_rules.layout import channels_last as channels_last_strides
from dovetail_prims.shape_rules.layout import (
    fresh,
    is_channels_last,
    is_contiguous,
    suggests_channels_last,
)
from dovetail_prims.shape_rules.views import unsqueeze

# --- shapes ---------------------------------------------------------------------------------------


def _pooled(
    size: Size, kernel: Size, stride: Size, padding: Size, dilation: Size, ceil_mode: bool
) -> Size:
    span = size + 2 * padding - dilation * (kernel - 1) - 1
    if not ceil_mode:
        out = span // stride + 1
    else:
        out = (span + stride - 1) // stride + 1
        # The last window must start inside the input or its left padding.
        if (out - 1) * stride >= size + padding:
            out = out - 1
    if out < 1:
        raise RuntimeError(
            f"Given input size {size}, the calculated output size {out} is too small"
        )
    return out


def _pool_output(x: FakeTensor, spatial: Sequence[Size], dtype: torch.dtype) -> FakeTensor:
    sizes = (*x._sizes[: len(x._sizes) - len(spatial)], *spatial)
    if suggests_channels_last(x):
        return make(sizes, channels_last_strides(sizes), dtype, x._device)
    return fresh(sizes, dtype, x._device)


def _pair(values: Sequence[Size]) -> tuple[Size, Size]:
    return (values[0], values[0]) if len(values) == 1 else (values[0], values[1])


def max_pool2d(
    x: FakeTensor,
    kernel_size: Sequence[Size],
    stride: Sequence[Size] = (),
    padding: Sequence[Size] = (0, 0),
    dilation: Sequence[Size] = (1, 1),
    ceil_mode: bool = False,
) -> tuple[FakeTensor, FakeTensor]:
    """`max_pool2d_with_indices`."""
    _check_pool_input(x)
    spatial = _pool_sizes(x, kernel_size, stride, padding, dilation, ceil_mode)
    return _pool_output(x, spatial, x._dtype), _pool_output(x, spatial, torch.int64)


def max_pool3d(
    x: FakeTensor,
    kernel_size: Sequence[Size],
    stride: Sequence[Size] = (),
    padding: Sequence[Size] = (0,),
    dilation: Sequence[Size] = (1,),
    ceil_mode: bool = False,
) -> Any:
    """`max_pool3d_with_indices` of a volume without a batch, which is laid as one of a batch."""
    if len(x._sizes) != 4 or is_contiguous(x._sizes, x._strides):
        return NotImplemented
    last = _volume_channels_last(x)
    plain = fresh(x._sizes, x._dtype, x._device)
    results = run_on_meta(
        torch.ops.aten.max_pool3d_with_indices.default,
        (plain, kernel_size, stride, padding, dilation, ceil_mode),
        {},
    )
    return tuple(
        make(r._sizes, channels_last_strides((1, *r._sizes))[1:], r._dtype, r._device)
        if last
        else r
        for r in results
    )


def _volume_channels_last(x: FakeTensor) -> bool:
    many = unsqueeze(x, 0)
    return is_channels_last(many._sizes, many._strides) and not is_contiguous(x._sizes, x._strides)


def max_pool3d_backward(grad: FakeTensor, x: FakeTensor, *rest: Any) -> Any:
    """Gradient of a volume without a batch."""
    if len(x._sizes) != 4 or not _volume_channels_last(x):
        return NotImplemented
    return make(x._sizes, channels_last_strides((1, *x._sizes))[1:], x._dtype, x._device)


def _pool_sizes(
    x: FakeTensor,
    kernel_size: Sequence[Size],
    stride: Sequence[Size],
    padding: Sequence[Size],
    dilation: Sequence[Size],
    ceil_mode: bool,
) -> list[Size]:
    kernel = _pair(kernel_size)
    step = _pair(stride) if len(stride) else kernel
    pad, dil = _pair(padding), _pair(dilation)
    for k, p in zip(kernel, pad, strict=True):
        if p * 2 > k:
            raise RuntimeError(
                f"pad should be at most half of effective kernel size, but got pad={p}, "
                f"kernel_size={k}"
            )
    return [
        _pooled(x._sizes[d - 2], kernel[d], step[d], pad[d], dil[d], ceil_mode) for d in range(2)
    ]


def _check_pool_input(x: FakeTensor) -> None:
    if len(x._sizes) not in (3, 4):
        raise RuntimeError("Expected 3D or 4D input to a 2d pooling op")
    for size in x._sizes[-3:]:
        if type(size) is int and size == 0:
            raise RuntimeError("Expected non-zero sizes of the non-batch dimensions of the input")


def _like_suggested(x: FakeTensor) -> FakeTensor:
    return _pool_output(x, x._sizes[-2:], x._dtype)


def max_pool2d_backward(grad: FakeTensor, x: FakeTensor, *rest: Any) -> FakeTensor:
    """Gradient of the input."""
    return _like_suggested(x)


def avg_pool2d(
    x: FakeTensor,
    kernel_size: Sequence[Size],
    stride: Sequence[Size] = (),
    padding: Sequence[Size] = (0, 0),
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> FakeTensor:
    """`avg_pool2d`."""
    _check_pool_input(x)
    spatial = _pool_sizes(x, kernel_size, stride, padding, (1, 1), ceil_mode)
    return _pool_output(x, spatial, x._dtype)


def adaptive_avg_pool2d(x: FakeTensor, output_size: Sequence[Size]) -> FakeTensor:
    """`_adaptive_avg_pool2d`."""
    _check_pool_input(x)
    return _pool_output(x, list(output_size), x._dtype)


def adaptive_avg_pool2d_backward(grad: FakeTensor, x: FakeTensor) -> FakeTensor:
    """Gradient of the input."""
    return _like_suggested(x)


def fractional_pool_backward(grad: FakeTensor, x: FakeTensor, *rest: Any) -> FakeTensor:
    """Backward of the fractional poolings."""
    return fresh(x._sizes, grad._dtype, grad._device)


def max_unpool2d_shape(
    x: FakeTensor, indices: FakeTensor, output_size: Sequence[Size]
) -> FakeTensor:
    """The maxima put back where they stood, in the input's memory format."""
    sizes = (*x._sizes[:-2], *output_size)
    if len(sizes) == 4 and suggests_channels_last(x):
        return make(sizes, channels_last_strides(sizes), x._dtype, x._device)
    return fresh(sizes, x._dtype, x._device)


# --- decompositions -------------------------------------------------------------------------------


def _unpool(self: Tensor, indices: Tensor, output_size: Sequence[int]) -> Tensor:
    """Each element put back where it came from, zeros elsewhere"""
    keep = list(self.shape[: self.dim() - len(output_size)])
    flat = zeros([*keep, math.prod(output_size)], self)
    count = math.prod(self.shape[len(keep) :])
    places, values = (reshape(v, [*keep, count]) for v in (indices, self))
    made = aten.scatter.src(flat, len(keep), places, values)
    return aten.view.default(made, [*keep, *output_size])


def max_unpool2d(self: Tensor, indices: Tensor, output_size: Sequence[int]) -> Tensor:
    """Back where it came from, in the layout of what comes"""
    return formatted(_unpool(self, indices, output_size), suggested_format(self))


def max_unpool3d(
    self: Tensor,
    indices: Tensor,
    output_size: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
) -> Tensor:
    """Back where it came from"""
    return _unpool(self, indices, output_size)


# --- cards --------------------------------------------------------------------------------------

CARDS = (
    library("max_pool2d_with_indices", max_pool2d),
    library("max_pool3d_with_indices", max_pool3d),
    library("max_pool3d_with_indices_backward", max_pool3d_backward),
    library("max_pool2d_with_indices_backward", max_pool2d_backward),
    library("avg_pool2d", avg_pool2d),
    library("avg_pool2d_backward", max_pool2d_backward),
    library("_adaptive_avg_pool2d", adaptive_avg_pool2d),
    library("_adaptive_avg_pool2d_backward", adaptive_avg_pool2d_backward),
    *(
        library(f"{name}{backward}")
        for name in (
            "avg_pool3d",
            "adaptive_max_pool2d",
            "adaptive_max_pool3d",
            "_adaptive_avg_pool3d",
        )
        for backward in ("", "_backward")
    ),
    composed("max_unpool2d", max_unpool2d_shape, max_unpool2d),
    composed("fractional_max_pool2d_backward", fractional_pool_backward),
    composed("fractional_max_pool3d_backward", fractional_pool_backward),
    composed("max_unpool3d", None, max_unpool3d),
)
