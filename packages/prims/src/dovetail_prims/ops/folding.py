"""Windows of images as columns, and columns added up to images."""

from __future__ import annotations

import math
from collections.abc import Sequence

from torch import Tensor

from dovetail_prims.fake_tensor import FakeTensor, Size
from dovetail_prims.ops.card import composed, library
from dovetail_prims.ops.common import along, aten, iota, reshape
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


# --- cards --------------------------------------------------------------------------------------

CARDS = (
    library("col2im", col2im_shape),
    composed("im2col", im2col_shape, im2col),
)
