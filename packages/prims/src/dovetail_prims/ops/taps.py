"""Where resized images read along a dimension: places and weights of each element (taps)."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from dovetail_prims.ops.common import aten, cast, constant, iota, where

Tap = tuple[Tensor, Tensor | None]  # positions read, and weights (None: all 1)

Taps = Callable[[Tensor, int, int, float | None], list[Tap]]

CUBIC = -0.75  # the free coefficient of ATen's cubic kernel


def ratio_of(size: int, wanted: int, scale: float | None) -> float:
    """Input positions for each output position"""
    return 1.0 / scale if scale is not None and scale > 0 else size / wanted


def clamped(place: Tensor, size: int) -> Tensor:
    """A position held inside the input"""
    return aten.minimum.default(aten.relu.default(place), constant(size - 1, place))


def nearest(like: Tensor, size: int, wanted: int, scale: float | None) -> list[Tap]:
    """floor(i ratio), in float32 as eager computes it; on a CPU, as many and twice as many places
    are taken exactly, whatever the scale"""
    if scale is not None and like.device.type == "cpu" and wanted in (size, 2 * size):
        scale = None
    i = iota(wanted, like, torch.float32)
    place = aten.mul.Tensor(i, ratio_of(size, wanted, scale))
    return [(clamped(cast(aten.floor.default(place), torch.int64), size), None)]


def nearest_exact(like: Tensor, size: int, wanted: int, scale: float | None) -> list[Tap]:
    """floor((i + 1/2) ratio): the pixel whose area holds the centre"""
    i = aten.add.Tensor(iota(wanted, like, torch.float32), 0.5)
    place = aten.mul.Tensor(i, ratio_of(size, wanted, scale))
    return [(clamped(cast(aten.floor.default(place), torch.int64), size), None)]


def _position(
    like: Tensor, size: int, wanted: int, scale: float | None, align_corners: bool
) -> Tensor:
    """Where each output position falls in the input, fractional, in the compute dtype"""
    i = iota(wanted, like, like.dtype)
    if align_corners:
        return aten.mul.Tensor(i, (size - 1) / (wanted - 1) if wanted > 1 else 0.0)
    ratio = ratio_of(size, wanted, scale)
    return aten.sub.Tensor(aten.mul.Tensor(aten.add.Tensor(i, 0.5), ratio), 0.5)


def linear_taps(align_corners: bool) -> Taps:
    """The two neighbours, by distance"""

    def taps(like: Tensor, size: int, wanted: int, scale: float | None) -> list[Tap]:
        place = aten.relu.default(_position(like, size, wanted, scale, align_corners))
        low = clamped(cast(place, torch.int64), size)
        high = clamped(aten.add.Tensor(low, 1), size)
        far = aten.sub.Tensor(place, cast(low, place.dtype))
        far = aten.minimum.default(far, constant(1.0, far))
        return [(low, aten.sub.Tensor(1.0, far)), (high, far)]

    return taps


def cubic_near(x: Tensor, a: float = CUBIC) -> Tensor:
    """The kernel within one position: ((A + 2) x - (A + 3)) x² + 1"""
    inner = aten.sub.Tensor(aten.mul.Tensor(x, a + 2), a + 3)
    return aten.add.Tensor(aten.mul.Tensor(aten.mul.Tensor(inner, x), x), 1.0)


def cubic_far(x: Tensor, a: float = CUBIC) -> Tensor:
    """The kernel between one and two positions: ((A x - 5 A) x + 8 A) x - 4 A"""
    inner = aten.sub.Tensor(aten.mul.Tensor(x, a), 5 * a)
    inner = aten.add.Tensor(aten.mul.Tensor(inner, x), 8 * a)
    return aten.sub.Tensor(aten.mul.Tensor(inner, x), 4 * a)


def cubic_weights(t: Tensor) -> list[Tensor]:
    """Of the four neighbours of what lies t past the second"""
    rest = aten.sub.Tensor(1.0, t)
    outer = [cubic_far(aten.add.Tensor(x, 1.0)) for x in (t, rest)]
    return [outer[0], cubic_near(t), cubic_near(rest), outer[1]]


def cubic_slopes(t: Tensor) -> list[Tensor]:
    """How those weights grow with t"""
    a, rest = CUBIC, aten.sub.Tensor(1.0, t)

    def quadratic(x: Tensor, square: float, linear: float, number: float) -> Tensor:
        inner = aten.add.Tensor(aten.mul.Tensor(x, square), linear)
        return aten.add.Tensor(aten.mul.Tensor(inner, x), number)

    def near(x: Tensor) -> Tensor:
        return quadratic(x, 3 * (a + 2), -2 * (a + 3), 0.0)

    def far(x: Tensor) -> Tensor:
        return quadratic(aten.add.Tensor(x, 1.0), 3 * a, -10 * a, 8 * a)

    return [far(t), near(t), aten.neg.default(near(rest)), aten.neg.default(far(rest))]


def cubic_taps(align_corners: bool) -> Taps:
    """The four neighbours, by the cubic kernel of their distances"""

    def taps(like: Tensor, size: int, wanted: int, scale: float | None) -> list[Tap]:
        place = _position(like, size, wanted, scale, align_corners)
        whole = aten.floor.default(place)
        t = aten.sub.Tensor(place, whole)
        weights = cubic_weights(t)
        start = cast(whole, torch.int64)
        places = [clamped(aten.add.Tensor(start, k), size) for k in (-1, 0, 1, 2)]
        return list(zip(places, weights, strict=True))

    return taps


def triangle(x: Tensor) -> Tensor:
    """1 - |x| within one position"""
    return aten.relu.default(aten.sub.Tensor(1.0, aten.abs.default(x)))


def bell(x: Tensor) -> Tensor:
    """The cubic kernel, with the coefficient -1/2 that eager's antialiased resizing takes"""
    x = aten.abs.default(x)
    near, far = cubic_near(x, -0.5), cubic_far(x, -0.5)
    return where(aten.lt.Scalar(x, 1.0), near, where(aten.lt.Scalar(x, 2.0), far, 0.0))


def antialiased(kernel: Callable[[Tensor], Tensor], reach: float) -> Callable[[bool], Taps]:
    """All positions within the kernel's reach, which is widened where the output is smaller"""

    def aligned(align_corners: bool) -> Taps:
        def taps(like: Tensor, size: int, wanted: int, scale: float | None) -> list[Tap]:
            if align_corners:
                ratio = (size - 1) / (wanted - 1) if wanted > 1 else 0.0
            else:
                ratio = ratio_of(size, wanted, scale)
            wide_by = max(ratio, 1.0)
            support = reach * wide_by
            i = iota(wanted, like, like.dtype)
            centre = aten.mul.Tensor(aten.add.Tensor(i, 0.5), ratio)
            low = aten.relu.default(
                cast(aten.add.Tensor(aten.sub.Tensor(centre, support), 0.5), torch.int64)
            )
            high = cast(aten.add.Tensor(aten.add.Tensor(centre, support), 0.5), torch.int64)
            high = aten.minimum.default(high, constant(size, high))
            found = []
            for k in range(min(2 * math.ceil(support) + 1, size)):
                place = aten.add.Tensor(low, k)
                gap = aten.sub.Tensor(cast(place, like.dtype), centre)
                weight = kernel(aten.mul.Tensor(aten.add.Tensor(gap, 0.5), 1.0 / wide_by))
                weight = where(aten.lt.Tensor(place, high), weight, 0.0)
                found.append((clamped(place, size), weight))
            total = found[0][1]
            for _, weight in found[1:]:
                total = aten.add.Tensor(total, weight)
            return [(place, aten.div.Tensor(weight, total)) for place, weight in found]

        return taps

    return aligned
