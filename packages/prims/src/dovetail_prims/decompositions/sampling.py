"""Images read at fractional places: grid_sampler."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

import torch
from torch import Tensor

from ._common import (
    Family,
    along,
    aten,
    cast,
    constant,
    iota,
    of_known_sizes,
    reshape,
    where,
    wide,
)  # fmt: skip
from .upsampling import cubic_weights

LINEAR, NEAREST, CUBIC = 0, 1, 2
ZEROS, BORDER, REFLECTION = 0, 1, 2


def _placed(x: Tensor, size: int, align_corners: bool) -> Tensor:
    """-1 to 1 as positions: the middles of the first and last pixel, or their outer edges"""
    shifted = aten.add.Tensor(x, 1.0)
    if align_corners:
        return aten.mul.Tensor(shifted, (size - 1) / 2)
    return aten.div.Tensor(aten.sub.Tensor(aten.mul.Tensor(shifted, size), 1.0), 2.0)


def _held(x: Tensor, size: int, padding: int, align_corners: bool) -> Tensor:
    """A position brought into the image, as the padding says"""
    if padding == ZEROS:
        return x
    if padding == REFLECTION:
        low, span = (0.0, size - 1) if align_corners else (-0.5, size)
        if span == 0:
            x = aten.mul.Tensor(x, 0.0)
        else:
            distance = aten.abs.default(aten.sub.Tensor(x, low))
            flips = aten.floor.default(aten.div.Tensor(distance, span))
            rest = aten.fmod.Scalar(distance, float(span))
            odd = aten.ne.Scalar(aten.fmod.Scalar(flips, 2.0), 0)
            x = aten.add.Tensor(where(odd, aten.sub.Tensor(float(span), rest), rest), low)
    return aten.minimum.default(aten.relu.default(x), constant(size - 1, x))


Tap = tuple[Tensor, Tensor, Tensor | None]  # a place, whether it is inside, its weight


def _taps(x: Tensor, size: int, mode: int, padding: int, align_corners: bool) -> list[Tap]:
    """The positions read along one dimension"""
    x = _placed(x, size, align_corners)
    weights: Sequence[Tensor | None] = [None]
    if mode != CUBIC:
        x = _held(x, size, padding, align_corners)
    start = aten.round.default(x) if mode == NEAREST else aten.floor.default(x)
    offsets: tuple[int, ...] = (0,)
    if mode == LINEAR:
        far = aten.sub.Tensor(x, start)
        weights, offsets = [aten.sub.Tensor(1.0, far), far], (0, 1)
    elif mode == CUBIC:
        weights, offsets = [*cubic_weights(aten.sub.Tensor(x, start))], (-1, 0, 1, 2)
    taps: list[Tap] = []
    for offset, weight in zip(offsets, weights, strict=True):
        place = aten.add.Tensor(start, offset) if offset else start
        if mode == CUBIC:
            place = _held(place, size, padding, align_corners)
        inside = aten.logical_and.default(aten.ge.Scalar(place, 0), aten.lt.Scalar(place, size))
        taps.append((cast(where(inside, place, 0.0), torch.int64), inside, weight))
    return taps


def grid_sampler(
    input: Tensor, grid: Tensor, interpolation_mode: int, padding_mode: int, align_corners: bool
) -> Tensor:
    """Each place's neighbours, by distance (all dimensions independent), 0 outside"""
    x, where_to = wide(input), wide(grid)
    rank = x.dim() - 2
    sizes, shape = x.shape[2:], grid.shape[1:-1]
    by_dim = []
    for d, size in enumerate(sizes):  # (the grid names the last dimension first)
        own = aten.select.int(where_to, -1, rank - 1 - d)
        own = reshape(own, [x.shape[0], 1, *shape])
        by_dim.append(_taps(own, size, interpolation_mode, padding_mode, align_corners))
    lead = [along(iota(n, x), d, rank + 2) for d, n in enumerate(x.shape[:2])]
    total: Tensor | None = None
    for taps in product(*by_dim):
        part = aten.index.Tensor(x, [*lead, *(place for place, _, _ in taps)])
        weight: Tensor | None = None
        for _, inside, own_weight in taps:
            part = where(inside, part, 0.0)
            if own_weight is not None:
                weight = own_weight if weight is None else aten.mul.Tensor(weight, own_weight)
        part = part if weight is None else aten.mul.Tensor(part, weight)
        total = part if total is None else aten.add.Tensor(total, part)
    assert total is not None
    return cast(total, input.dtype)


TABLE: Family = {
    "grid_sampler_2d.default": of_known_sizes(grid_sampler),
    "grid_sampler_3d.default": of_known_sizes(grid_sampler),
}
