"""Windows of images as columns, and columns added up to images."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import product
from typing import Any

import torch
from torch import Tensor

from dovetail_prims.fake_tensor import FakeTensor, Size
from dovetail_prims.ops.card import composed, library
from dovetail_prims.ops.common import along, aten, cast, iota, of_known_sizes, reshape, where, wide
from dovetail_prims.ops.taps import clamped
from dovetail_prims.shape_rules.layout import fresh, has_zero

# --- shapes ---------------------------------------------------------------------------------------


def _count_of_places(
    sizes: Sequence[Size],
    kernel_size: Sequence[int],
    dilation: Sequence[int],
    padding: Sequence[int],
    stride: Sequence[int],
) -> int | None:
    """How many windows an image has; None where that is no number, or none fits."""
    options = (kernel_size, dilation, padding, stride)
    if len(sizes) != 2 or any(len(option) != 2 for option in options):
        return None
    found = 1
    for size, kernel, gap, pad, step in zip(sizes, *options, strict=True):
        if type(size) is not int or min(kernel, gap, step) < 1 or pad < 0:
            return None
        places = (size + 2 * pad - gap * (kernel - 1) - 1) // step + 1
        if places < 1:
            return None
        found *= places
    return found


def im2col_shape(
    x: FakeTensor,
    kernel_size: Sequence[int],
    dilation: Sequence[int],
    padding: Sequence[int],
    stride: Sequence[int],
) -> FakeTensor:
    """Windows of an image as columns."""
    columns = _count_of_places(x._sizes[2:], kernel_size, dilation, padding, stride)
    if columns is None or len(x._sizes) != 4 or has_zero(x._sizes):
        return NotImplemented  # type: ignore[no-any-return]
    rows = x._sizes[1] * kernel_size[0] * kernel_size[1]
    return fresh((x._sizes[0], rows, columns), x._dtype, x._device)


def col2im_shape(
    x: FakeTensor,
    output_size: Sequence[Size],
    kernel_size: Sequence[int],
    dilation: Sequence[int],
    padding: Sequence[int],
    stride: Sequence[int],
) -> FakeTensor:
    """An image of columns."""
    if len(x._sizes) not in (2, 3):
        return NotImplemented  # type: ignore[no-any-return]
    *batch, rows, columns = x._sizes
    if all(type(n) is int for n in (*output_size, *x._sizes)):
        fits = columns == _count_of_places(output_size, kernel_size, dilation, padding, stride)
        if not fits or has_zero(x._sizes) or rows % (kernel_size[0] * kernel_size[1]) != 0:
            return NotImplemented  # type: ignore[no-any-return]
    channels = rows // (kernel_size[0] * kernel_size[-1])
    return fresh((*batch, channels, *output_size), x._dtype, x._device)


# --- decompositions -------------------------------------------------------------------------------


def _pair(x: Sequence[int]) -> tuple[int, int]:
    return x[0], x[-1]


def im2col(
    self: Tensor,
    kernel_size: Sequence[int],
    dilation: Sequence[int],
    padding: Sequence[int],
    stride: Sequence[int],
) -> Tensor:
    """Each window as a column: element k of the kernel at window w is x[w stride + k dilation]"""
    kernel, spread, pad, step = map(_pair, (kernel_size, dilation, padding, stride))
    lead = [None] * (self.dim() - 2)
    places, counts = [], []
    for d in (0, 1):
        length = self.shape[d - 2] + 2 * pad[d]
        windows = (length - spread[d] * (kernel[d] - 1) - 1) // step[d] + 1
        inside = aten.mul.Tensor(along(iota(kernel[d], self), d, 4), spread[d])
        start = aten.mul.Tensor(along(iota(windows, self), 2 + d, 4), step[d])
        places.append(aten.add.Tensor(inside, start))
        counts.append(windows)
    if any(pad):
        self = aten.constant_pad_nd.default(self, [pad[1], pad[1], pad[0], pad[0]])
    found = aten.index.Tensor(self, [*lead, *places])
    *batch, channels = found.shape[:-4]
    return reshape(found, [*batch, channels * math.prod(kernel), math.prod(counts)])


# Windows that an element may lie in; beyond, the library adds column by column.
MOST = 36

# Of one dimension: which element of the windows, which windows, and where there are such.
_Part = tuple[Tensor, Tensor, Tensor]


def _parts(like: Tensor, size: int, kernel: int, spread: int, pad: int, step: int) -> list[_Part]:
    """The windows that each place of a dimension lies in, by element: the place is
    window step + element spread - pad"""
    windows = (size + 2 * pad - spread * (kernel - 1) - 1) // step + 1
    place = aten.add.Tensor(iota(size, like), pad)
    parts = []

    def floored(x: Tensor) -> Tensor:
        return aten.div.Tensor_mode(x, step, rounding_mode="floor")

    def part(element: Tensor, window: Tensor, some: Tensor | None) -> _Part:
        held = aten.logical_and.default(aten.ge.Scalar(window, 0), aten.lt.Scalar(window, windows))
        held = held if some is None else aten.logical_and.default(held, some)
        return clamped(element, kernel), clamped(window, windows), held

    if spread == 1:  # one element in as many as the windows are apart
        for k in range(-(-kernel // step)):
            element = aten.add.Tensor(aten.remainder.Scalar(place, step), k * step)
            window = aten.sub.Tensor(floored(place), k)
            parts.append(part(element, window, aten.lt.Scalar(element, kernel)))
        return parts
    for k in range(kernel):
        start = aten.sub.Tensor(place, k * spread)
        whole = aten.eq.Scalar(aten.remainder.Scalar(start, step), 0)
        element = aten.full.default([size], k, dtype=torch.int64, device=like.device)
        parts.append(part(element, floored(start), whole))
    return parts


def col2im(
    self: Tensor,
    output_size: Sequence[int],
    kernel_size: Sequence[int],
    dilation: Sequence[int],
    padding: Sequence[int],
    stride: Sequence[int],
) -> Any:
    """Each element of the image is the sum of those of the windows that it lies in"""
    kernel, spread, step = map(_pair, (kernel_size, dilation, stride))
    reach = [-(-kernel[d] // step[d]) if spread[d] == 1 else kernel[d] for d in (0, 1)]
    if self.device.type == "cpu" or math.prod(reach) > MOST or self.numel() == 0:
        return NotImplemented
    return parts_added(self, output_size, kernel_size, dilation, padding, stride)


def parts_added(
    self: Tensor,
    output_size: Sequence[int],
    kernel_size: Sequence[int],
    dilation: Sequence[int],
    padding: Sequence[int],
    stride: Sequence[int],
) -> Tensor:
    """col2im, whatever the windows"""
    kernel, spread, pad, step = map(_pair, (kernel_size, dilation, padding, stride))
    sizes = _pair(output_size)
    windows = [
        (sizes[d] + 2 * pad[d] - spread[d] * (kernel[d] - 1) - 1) // step[d] + 1 for d in (0, 1)
    ]
    batch = self.shape[:-2]
    channels = self.shape[-2] // math.prod(kernel)
    x = reshape(wide(self), [*batch, channels, *kernel, *windows])
    lead = [None] * (len(batch) + 1)
    by_dim = [_parts(x, sizes[d], kernel[d], spread[d], pad[d], step[d]) for d in (0, 1)]
    total: Tensor | None = None
    for (y, row, some), (z, column, others) in product(*by_dim):
        places = [along(y, 0, 2), along(z, 1, 2), along(row, 0, 2), along(column, 1, 2)]
        held = aten.logical_and.default(along(some, 0, 2), along(others, 1, 2))
        read = where(held, aten.index.Tensor(x, [*lead, *places]), 0.0)
        total = read if total is None else aten.add.Tensor(total, read)
    assert total is not None
    return cast(total, self.dtype)


# --- cards --------------------------------------------------------------------------------------

CARDS = (
    library("col2im", col2im_shape, of_known_sizes(col2im)),
    composed("im2col", im2col_shape, im2col),
)
