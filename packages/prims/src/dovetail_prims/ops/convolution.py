"""Convolutions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from dovetail_prims.fake_tensor import FakeTensor, Size, Sizes, hint_of, make
from dovetail_prims.ops.card import library
from dovetail_prims.shape_rules import layout
from dovetail_prims.shape_rules.layout import contiguous as row_major


def _expand(values: Sequence[Size], rank: int) -> Sequence[Size]:
    """A parameter given once for all spatial dimensions."""
    return tuple(values) * rank if len(values) == 1 else values


@dataclass(frozen=True)
class Windows:
    """How a convolution's windows lie, as its operators are told behind the tensors."""

    stride: Sequence[Size]
    padding: Sequence[Size]
    dilation: Sequence[Size]
    transposed: bool
    output_padding: Sequence[Size]
    groups: Size


def convolution_sizes(x: Sizes, weight: Sizes, windows: Windows) -> Sizes:
    """The output sizes of a convolution with batch dimension."""
    rank, transposed = len(weight) - 2, windows.transposed
    stride, padding = _expand(windows.stride, rank), _expand(windows.padding, rank)
    dilation = _expand(windows.dilation, rank)
    output_padding = _expand(windows.output_padding, rank)
    out: list[Size] = [x[0], weight[1] * windows.groups if transposed else weight[0]]
    for d in range(rank):
        kernel = dilation[d] * (weight[d + 2] - 1) + 1
        size = x[d + 2]
        if transposed:
            size = (size - 1) * stride[d] - 2 * padding[d] + kernel + output_padding[d]
        else:
            if not layout.insisted(size + 2 * padding[d] >= kernel):
                raise RuntimeError(
                    f"Calculated padded input size per channel: ({size + 2 * padding[d]}). Kernel "
                    f"size: ({kernel}). Kernel size can't be greater than actual input size"
                )
            size = (size + 2 * padding[d] - kernel) // stride[d] + 1
        out.append(size)
    return tuple(out)


def _by_onednn(x: FakeTensor, weight: FakeTensor, windows: Windows) -> bool:
    """Whether a convolution on a CPU is oneDNN's, by PyTorch's conditions: its own kernels know no
    channels-last in three dimensions. (Of symbolic sizes the examples' tell.)"""
    if x._dtype is torch.float64 or not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        return False
    groups, batch = windows.groups, hint_of(x._sizes[0])
    if windows.transposed:
        pairs = zip(windows.output_padding, windows.stride, strict=True)
        if any(more >= step for more, step in pairs):
            return False
    if x._dtype is torch.bfloat16:
        return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
    if x._dtype is torch.float16:
        return bool(torch.ops.mkldnn._is_mkldnn_fp16_supported())
    height, width = weight._sizes[-2:]
    spread = any(n != 1 for n in (*windows.stride, *windows.dilation, height, width))
    if not spread and batch < 16 and torch.get_num_threads() == 1:
        return False
    large = batch > 1 or math.prod(map(hint_of, x._sizes[:4])) > 20480
    return bool(large or groups != 1 or (height > 3 and width > 3))


def _output_channels_last(x: FakeTensor, weight: FakeTensor, windows: Windows) -> bool:
    """Whether a convolution works in channels-last: input or weight is laid out so."""
    if x._device.type == "cpu":
        if len(x._sizes) == 5 and not _by_onednn(x, weight, windows):
            return False
    elif x._dtype is torch.float64:
        return False  # no vendor library
    if len(x._sizes) == 3:  # run as one over images of one row, after the input is in order
        return layout.suggests_channels_last(_as_rows(weight)) or layout.suggests_channels_last(
            _as_rows(make(x._sizes, row_major(x._sizes), x._dtype, x._device))
        )
    return layout.suggests_channels_last(x) or layout.suggests_channels_last(weight)


def _as_rows(x: FakeTensor) -> FakeTensor:
    """Sequences as images of one row: `x.unsqueeze(2)`."""
    (n, c, length), (s0, s1, s2) = x._sizes, x._strides
    return make((n, c, 1, length), (s0, s1, s2 * length, s2), x._dtype, x._device)


def _working_strides(sizes: Sizes) -> Sizes:
    """The strides of a tensor of such sizes in the layout that channels-last convolutions use."""
    if len(sizes) == 3:
        n, c, length = sizes
        s0, s1, _, s2 = layout.channels_last((n, c, 1, length))
        return s0, s1, s2
    return layout.channels_last(sizes)


def convolution(x: FakeTensor, weight: FakeTensor, bias: FakeTensor | None, *given: Any) -> Any:
    """Any convolution, with a batch dimension."""
    if len(x._sizes) != len(weight._sizes):
        return NotImplemented
    windows = Windows(*given)
    groups = windows.groups
    channels = weight._sizes[0] if windows.transposed else weight._sizes[1] * groups
    if x._sizes[1] != channels:
        raise RuntimeError(
            f"Given groups={groups}, weight of size {list(weight._sizes)}, expected input"
            f"{list(x._sizes)} to have {channels} channels, but got {x._sizes[1]} channels instead"
        )
    if x._dtype is not weight._dtype:
        raise RuntimeError(
            f"Input type ({x._dtype}) and weight type ({weight._dtype}) should be the same"
        )
    for what, least in (("stride", 1), ("padding", 0), ("dilation", 1)):
        if not all(layout.insisted(number >= least) for number in getattr(windows, what)):
            sign = "non-positive" if least else "negative"
            raise RuntimeError(f"{sign} {what} is not supported")
    sizes = convolution_sizes(x._sizes, weight._sizes, windows)
    if len(sizes) in (3, 4, 5) and _output_channels_last(x, weight, windows):
        return make(sizes, _working_strides(sizes), x._dtype, x._device)
    return layout.fresh(sizes, x._dtype, x._device)


def convolution_backward(
    grad: FakeTensor, x: FakeTensor, weight: FakeTensor, bias_sizes: Any, *given: Any
) -> tuple[FakeTensor | None, FakeTensor | None, FakeTensor | None]:
    """Gradients of input, weight, bias."""
    windows, output_mask = Windows(*given[:-1]), given[-1]
    last = len(x._sizes) in (3, 4, 5) and _output_channels_last(x, weight, windows)

    # PyTorch's own kernels for two dimensions on a CPU leave the weight's gradient in rows if these
    # are as good as channels-last, as of one pixel.
    either = len(x._sizes) == 4 and layout.is_channels_last(weight._sizes, row_major(weight._sizes))
    own = either and x._device.type == "cpu" and not _by_onednn(x, weight, windows)
    weight_last = layout.suggests_channels_last(weight) if own else last

    def like(t: FakeTensor, last: bool) -> FakeTensor:
        strides = _working_strides(t._sizes) if last else row_major(t._sizes)
        return make(t._sizes, strides, t._dtype, t._device)

    bias = layout.fresh((grad._sizes[1],), grad._dtype, grad._device) if output_mask[2] else None
    return (
        like(x, last) if output_mask[0] else None,
        like(weight, weight_last) if output_mask[1] else None,
        bias,
    )


# --- cards --------------------------------------------------------------------------------------

CARDS = (library("convolution", convolution), library("convolution_backward", convolution_backward))
