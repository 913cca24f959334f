"""Windows of images gathered by computed positions: im2col, unpooling."""

from __future__ import annotations

import math
from collections.abc import Sequence

from torch import Tensor

from dovetail_prims.ops.common import (
    Family,
    along,
    aten,
    formatted,
    iota,
    reshape,
    suggested_format,
    zeros,
)


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


TABLE: Family = {
    "im2col.default": im2col,
    "max_unpool2d.default": max_unpool2d,
    "max_unpool3d.default": max_unpool3d,
}
