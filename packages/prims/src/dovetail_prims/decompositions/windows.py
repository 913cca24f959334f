"""Windows of images gathered by computed positions: im2col, fractional pooling, unpooling."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from dovetail_prims.ops.common import (
    Family,
    along,
    aten,
    cast,
    constant,
    formatted,
    iota,
    reshape,
    suggested_format,
    where,
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


def _samples(
    samples: Tensor, size: int, window: int, wanted: int, like: Tensor, which: int
) -> Tensor:
    """Where the windows start along one dimension: (N, C, wanted), the last one at the far end"""
    share = (size - window) / (wanted - 1) if wanted > 1 else 0.0
    dtype = samples.dtype
    step = aten.full.default([], share, dtype=dtype, device=like.device)
    drawn = aten.slice.Tensor(samples, 2, which, which + 1)
    i = iota(wanted, like)

    def whole(x: Tensor) -> Tensor:
        return cast(aten.mul.Tensor(x, step), torch.int64)

    start = aten.sub.Tensor(whole(aten.add.Tensor(cast(i, dtype), drawn)), whole(drawn))
    return where(aten.eq.Scalar(i, wanted - 1), constant(size - window, start), start)


def _fractional(
    self: Tensor, kernel: Sequence[int], output: Sequence[int], samples: Tensor
) -> tuple[Tensor, Tensor]:
    """The largest of each window, and its place in the image"""
    rank = len(kernel)
    batched = self.dim() == rank + 2
    x = self if batched else aten.unsqueeze.default(self, 0)
    n, channels, *sizes = x.shape
    samples = aten.slice.Tensor(samples, 0, 0, n)  # more than it takes may be given
    shape = [n, channels, *output, *kernel]
    total = len(shape)
    picks = [along(iota(n, x), 0, total), along(iota(channels, x), 1, total)]
    number: Tensor | None = None
    for d in range(rank):
        which = 1 - d if rank == 2 else d  # (of two samples, the first is the width's)
        start = _samples(samples, sizes[d], kernel[d], output[d], x, which)
        own = [*start.shape[:2], *[1] * (2 * rank)]
        own[2 + d] = output[d]
        start = reshape(start, own)
        place = aten.add.Tensor(start, along(iota(kernel[d], x), 2 + rank + d, total))
        picks.append(place)
        number = (
            place if number is None else aten.add.Tensor(aten.mul.Tensor(number, sizes[d]), place)
        )
    assert number is not None
    flat = [n, channels, *output, math.prod(kernel)]
    window = reshape(aten.index.Tensor(x, picks), flat)
    numbers = reshape(aten.expand.default(number, shape), flat)
    best = aten.amax.default(window, [-1], True)
    # Of equal elements the first is meant, of NaNs the last.
    hit = aten.eq.Tensor(window, best)
    first = aten.amin.default(where(hit, numbers, math.prod(sizes)), [-1])
    last = aten.amax.default(where(aten.isnan.default(window), numbers, -1), [-1])
    index = where(aten.lt.Scalar(last, 0), first, last)
    value = aten.squeeze.dims(best, [-1])
    if not batched:
        value, index = (aten.squeeze.dims(v, [0]) for v in (value, index))
    return value, index


def _fractional_backward(grad: Tensor, self: Tensor, rank: int, indices: Tensor) -> Tensor:
    """Added where each window's largest lay"""
    keep = list(self.shape[: self.dim() - rank])
    flat = zeros([*keep, math.prod(self.shape[self.dim() - rank :])], self)
    count = math.prod(grad.shape[len(keep) :])  # (not -1: the batch may be empty)
    where_to, what = (reshape(v, [*keep, count]) for v in (indices, grad))
    return reshape(aten.scatter_add.default(flat, len(keep), where_to, what), self.shape)


def fractional_max_pool2d(
    self: Tensor, kernel_size: Sequence[int], output_size: Sequence[int], random_samples: Tensor
) -> tuple[Tensor, Tensor]:
    """The largest of windows whose places were drawn"""
    return _fractional(self, kernel_size, output_size, random_samples)


def fractional_max_pool2d_backward(
    grad_output: Tensor,
    self: Tensor,
    kernel_size: Sequence[int],
    output_size: Sequence[int],
    indices: Tensor,
) -> Tensor:
    """Added where the largest lay"""
    return _fractional_backward(grad_output, self, 2, indices)


def fractional_max_pool3d_backward(
    grad_output: Tensor,
    self: Tensor,
    kernel_size: Sequence[int],
    output_size: Sequence[int],
    indices: Tensor,
) -> Tensor:
    """Added where the largest lay"""
    return _fractional_backward(grad_output, self, 3, indices)


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
    "fractional_max_pool2d.default": fractional_max_pool2d,
    "fractional_max_pool2d_backward.default": fractional_max_pool2d_backward,
    "fractional_max_pool3d.default": fractional_max_pool2d,
    "fractional_max_pool3d_backward.default": fractional_max_pool3d_backward,
    "max_unpool2d.default": max_unpool2d,
    "max_unpool3d.default": max_unpool3d,
}
