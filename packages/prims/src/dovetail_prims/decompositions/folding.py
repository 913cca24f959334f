"""Columns of windows added up into images: col2im, which is also the gradient of im2col.

(On a CPU a loop that adds up an element's copies, where there are any, is two to five times as
fast as this, and col2im stays whole for a compiler to make one of it.)
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import product
from typing import Any

import torch
from torch import Tensor

from dovetail_prims.ops.common import (
    Family,
    along,
    aten,
    cast,
    iota,
    of_known_sizes,
    reshape,
    where,
    wide,
)

# Windows that an element may lie in; beyond, the library adds column by column.
MOST = 36

# Of one dimension: which element of the windows, which windows, and where there are such.
_Part = tuple[Tensor, Tensor, Tensor]


def _pair(x: Sequence[int]) -> tuple[int, int]:
    return x[0], x[-1]


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
        return where(held, element, 0), where(held, window, 0), held

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


TABLE: Family = {"col2im.default": of_known_sizes(col2im)}
