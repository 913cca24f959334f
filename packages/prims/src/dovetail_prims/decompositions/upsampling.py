"""Resizing: nearest, linear and cubic, over one to three dimensions, with their gradients.

Each output position along a dimension reads a few input positions ("taps") with weights that sum
to 1; dimensions are independent. Forward: for each dimension, gather each tap, weigh, add.
Backward: at each input position, the gradients of the outputs that read it, weighed and added.
Antialiased resizing differs in that a shrinking kernel reaches more positions.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

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
    made_for,
    of_known_sizes,
    suggested_format,
    where,
    wide,
    zeros,
)  # fmt: skip

Tap = tuple[Tensor, Tensor | None]  # positions read, and weights (None: all 1)
Taps = Callable[[Tensor, int, int, float | None], list[Tap]]
CUBIC = -0.75  # the free coefficient of ATen's cubic kernel


def _ratio(size: int, wanted: int, scale: float | None) -> float:
    """Input positions for each output position"""
    return 1.0 / scale if scale is not None and scale > 0 else size / wanted


def _clamped(place: Tensor, size: int) -> Tensor:
    """A position held inside the input"""
    return aten.minimum.default(aten.relu.default(place), constant(size - 1, place))


def _nearest(like: Tensor, size: int, wanted: int, scale: float | None) -> list[Tap]:
    """floor(i ratio), in float32 as eager computes it; on a CPU, as many and twice as many places
    are taken exactly, whatever the scale"""
    if scale is not None and like.device.type == "cpu" and wanted in (size, 2 * size):
        scale = None
    i = iota(wanted, like, torch.float32)
    place = aten.mul.Tensor(i, _ratio(size, wanted, scale))
    return [(_clamped(cast(aten.floor.default(place), torch.int64), size), None)]


def _nearest_exact(like: Tensor, size: int, wanted: int, scale: float | None) -> list[Tap]:
    """floor((i + 1/2) ratio): the pixel whose area holds the centre"""
    i = aten.add.Tensor(iota(wanted, like, torch.float32), 0.5)
    place = aten.mul.Tensor(i, _ratio(size, wanted, scale))
    return [(_clamped(cast(aten.floor.default(place), torch.int64), size), None)]


def _position(
    like: Tensor, size: int, wanted: int, scale: float | None, align_corners: bool
) -> Tensor:
    """Where each output position falls in the input, fractional, in the compute dtype"""
    i = iota(wanted, like, like.dtype)
    if align_corners:
        return aten.mul.Tensor(i, (size - 1) / (wanted - 1) if wanted > 1 else 0.0)
    ratio = _ratio(size, wanted, scale)
    return aten.sub.Tensor(aten.mul.Tensor(aten.add.Tensor(i, 0.5), ratio), 0.5)


def _linear(align_corners: bool) -> Taps:
    """The two neighbours, by distance"""

    def taps(like: Tensor, size: int, wanted: int, scale: float | None) -> list[Tap]:
        place = aten.relu.default(_position(like, size, wanted, scale, align_corners))
        low = _clamped(cast(place, torch.int64), size)
        high = _clamped(aten.add.Tensor(low, 1), size)
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


def _cubic(align_corners: bool) -> Taps:
    """The four neighbours, by the cubic kernel of their distances"""

    def taps(like: Tensor, size: int, wanted: int, scale: float | None) -> list[Tap]:
        place = _position(like, size, wanted, scale, align_corners)
        whole = aten.floor.default(place)
        t = aten.sub.Tensor(place, whole)
        weights = cubic_weights(t)
        start = cast(whole, torch.int64)
        places = [_clamped(aten.add.Tensor(start, k), size) for k in (-1, 0, 1, 2)]
        return list(zip(places, weights, strict=True))

    return taps


def _triangle(x: Tensor) -> Tensor:
    """1 - |x| within one position"""
    return aten.relu.default(aten.sub.Tensor(1.0, aten.abs.default(x)))


def _bell(x: Tensor) -> Tensor:
    """The cubic kernel, with the coefficient -1/2 that eager's antialiased resizing takes"""
    x = aten.abs.default(x)
    near, far = cubic_near(x, -0.5), cubic_far(x, -0.5)
    return where(aten.lt.Scalar(x, 1.0), near, where(aten.lt.Scalar(x, 2.0), far, 0.0))


def _antialiased(kernel: Callable[[Tensor], Tensor], reach: float) -> Callable[[bool], Taps]:
    """All positions within the kernel's reach, which is widened where the output is smaller"""

    def aligned(align_corners: bool) -> Taps:
        def taps(like: Tensor, size: int, wanted: int, scale: float | None) -> list[Tap]:
            if align_corners:
                ratio = (size - 1) / (wanted - 1) if wanted > 1 else 0.0
            else:
                ratio = _ratio(size, wanted, scale)
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
                found.append((_clamped(place, size), weight))
            total = found[0][1]
            for _, weight in found[1:]:
                total = aten.add.Tensor(total, weight)
            return [(place, aten.div.Tensor(weight, total)) for place, weight in found]

        return taps

    return aligned


def _resize(self: Tensor, size: Sequence[int], taps: Taps, scales: Sequence[float | None]) -> Any:
    """Each spatial dimension in turn: gather each tap, weigh, add"""
    rank = self.dim()
    out = wide(self)
    for k, (wanted, scale) in enumerate(zip(size, scales, strict=True)):
        dim = rank - len(size) + k
        parts = []
        for place, weight in taps(out, self.shape[dim], wanted, scale):
            part = aten.index.Tensor(out, [*[None] * dim, place])
            if weight is not None:
                if not self.dtype.is_floating_point:
                    return NotImplemented  # bytes are weighed in a fixed point of the library's
                part = aten.mul.Tensor(part, along(weight, dim, rank))
            parts.append(part)
        out = parts[0]
        for part in parts[1:]:
            out = aten.add.Tensor(out, part)
    return formatted(cast(out, self.dtype), suggested_format(self))


@dataclass(frozen=True)
class Reach:
    """The positions that an output o reads: floor((o + `centre`) ratio - `back`), with so many
    `below` and `above` it. With align_corners it is floor(o ratio)."""

    below: int
    above: int
    centre: float = 0.0
    back: float = 0.0

    def readers(
        self, size: int, wanted: int, scale: float | None, align_corners: bool
    ) -> tuple[int, int] | None:
        """The outputs that may read a position, counted from `_middle` of it: first and last. None
        where they are many, or sizes are symbolic."""
        if type(size) is not int or type(wanted) is not int or isinstance(scale, torch.SymFloat):
            return None
        ratios, centre, back = (
            {_ratio(size, wanted, s) for s in (scale, None)},
            self.centre,
            self.back,
        )
        if align_corners:
            ratios, centre, back = {(size - 1) / max(wanted - 1, 1)}, 0.0, 0.0
        slack = 1e-3 + 1e-6 * size  # eager computes positions in float32
        gaps = set()
        for o, ratio in product(range(wanted), ratios):
            position = (o + centre) * ratio - back
            low = math.floor(position - slack) - self.below
            high = math.floor(position + slack) + self.above
            for i in range(min(max(low, 0), size - 1), min(max(high, 0), size - 1) + 1):
                gaps.add(o - _middle(i, size, wanted, align_corners))
        many = max(gaps) - min(gaps) >= MOST_READERS
        return None if many else (min(gaps), max(gaps))


# More outputs that read one position are added up where they lie.
MOST_READERS = 12


def _middle(i: Any, size: int, wanted: int, align_corners: bool) -> Any:
    """Of the outputs that read near position i (a number, or a tensor of them), one in the
    middle"""
    if align_corners and size > 1:
        return i * (wanted - 1) // (size - 1)
    return (2 * i + 1) * wanted // (2 * size)


def _middles(like: Tensor, size: int, wanted: int, align_corners: bool) -> Tensor:
    """`_middle` of every position"""
    factor, shift, by = 2 * wanted, wanted, 2 * size
    if align_corners and size > 1:
        factor, shift, by = wanted - 1, 0, size - 1
    scaled = aten.add.Tensor(aten.mul.Tensor(iota(size, like), factor), shift)
    return aten.div.Tensor_mode(scaled, by, rounding_mode="floor")


def _read_back(
    grad: Tensor, dim: int, size: int, taps: Sequence[Tap], readers: tuple[int, int], middle: Tensor
) -> Tensor:
    """Along one dimension, at each position: the gradients of the outputs that read it, weighed"""
    wanted, own = grad.shape[dim], iota(size, grad)
    total: Tensor | None = None
    for gap in range(readers[0], readers[1] + 1):
        reader = aten.add.Tensor(middle, gap)
        at = _clamped(reader, wanted)
        there = aten.eq.Tensor(at, reader)
        weight: Tensor | None = None
        reads: Tensor | None = None
        for place, tap_weight in taps:
            hit = aten.eq.Tensor(aten.index.Tensor(place, [at]), own)
            hit = aten.bitwise_and.Tensor(hit, there)
            reads = hit if reads is None else aten.bitwise_or.Tensor(reads, hit)
            if tap_weight is not None:
                part = where(hit, aten.index.Tensor(tap_weight, [at]), 0.0)
                weight = part if weight is None else aten.add.Tensor(weight, part)
        assert reads is not None
        value = aten.index.Tensor(grad, [*[None] * dim, at])
        if weight is not None:
            value = aten.mul.Tensor(value, along(weight, dim, grad.dim()))
        value = where(along(reads, dim, grad.dim()), value, 0.0)
        total = value if total is None else aten.add.Tensor(total, value)
    assert total is not None
    return total


def _float32(x: float) -> float:
    (rounded,) = struct.unpack("f", struct.pack("f", x))
    return float(rounded)


def _copies(size: int, wanted: int, scale: float | None) -> int | None:
    """How often each position is repeated, where nearest resizing is a repetition; else None"""
    if type(size) is not int or type(wanted) is not int or isinstance(scale, torch.SymFloat):
        return None
    times, rest = divmod(wanted, max(size, 1))
    if rest or times > MOST_READERS:
        return None
    for s in (scale, None):
        ratio = _float32(_ratio(size, wanted, s))
        if any(int(_float32(o * ratio)) != o // times for o in range(wanted)):
            return None
    return times


def _sum_of_copies(grad: Tensor, first: int, times: Sequence[int]) -> Tensor:
    """The sum of what repetitions along the last dimensions made of each element"""
    total: Tensor | None = None
    for starts in product(*(range(n) for n in times)):
        part = grad
        for k, (start, step) in enumerate(zip(starts, times, strict=True)):
            part = aten.slice.Tensor(part, first + k, start, None, step)
        total = part if total is None else aten.add.Tensor(total, part)
    assert total is not None
    return total


def _resize_backward(
    grad: Tensor,
    input_size: Sequence[int],
    kind: _Kind,
    align_corners: bool,
    scales: Sequence[float | None],
) -> Tensor:
    """Each spatial dimension in turn: read the gradient where outputs read the position; where
    they are many, weigh by each tap and add where the tap lay"""
    rank = grad.dim()
    out = wide(grad)
    first = rank - len(scales)
    if kind is _NEAREST:
        copies = [
            _copies(*n) for n in zip(input_size[first:], grad.shape[first:], scales, strict=True)
        ]
        if all(copies) and 1 < math.prod(n or 0 for n in copies) <= 2 * MOST_READERS:
            out = _sum_of_copies(out, first, [n or 0 for n in copies])
            return formatted(cast(out, grad.dtype), kind.format_of_gradient(grad))
    for k, scale in enumerate(scales):
        dim = first + k
        size = list(out.shape)
        wanted, size[dim] = size[dim], input_size[dim]
        taps = kind.taps(align_corners)(out, input_size[dim], wanted, scale)
        readers = None
        if kind.reach is not None:
            readers = kind.reach.readers(size[dim], wanted, scale, align_corners)
        if readers is not None:
            middle = _middles(out, size[dim], wanted, align_corners)
            out = _read_back(out, dim, size[dim], taps, readers, middle)
            continue
        total = zeros(size, out)
        for place, weight in taps:
            part = out if weight is None else aten.mul.Tensor(out, along(weight, dim, rank))
            total = aten.index_put.default(total, [*[None] * dim, place], part, True)
        out = total
    return formatted(cast(out, grad.dtype), kind.format_of_gradient(grad))


@dataclass(frozen=True)
class _Kind:
    """A way of resizing: what each output reads, and within which reach (None: far); of up to how
    many dimensions a gradient has its own gradient's memory format (or is row-major)."""

    taps: Callable[[bool], Taps]
    reach: Reach | None
    keeps_format: int = 5

    def format_of_gradient(self, grad: Tensor) -> torch.memory_format:
        """The memory format of the gradient that is made of `grad`."""
        keeps = grad.dim() <= self.keeps_format
        return suggested_format(grad) if keeps else torch.contiguous_format


def _pair(name: str, kind: _Kind, rank: int) -> Family:
    """Forward and backward of an op of (tensor, sizes, align_corners if it has one, scales)"""

    def forward(self: Tensor, output_size: Sequence[int], *rest: Any) -> Any:
        """A weighted gather along each dimension"""
        return _resize(self, output_size, kind.taps(rest[0] is True), rest[-rank:])

    def backward(
        grad_output: Tensor, output_size: Sequence[int], input_size: Sequence[int], *rest: Any
    ) -> Tensor:
        """A weighted add along each dimension"""
        return _resize_backward(grad_output, input_size, kind, rest[0] is True, rest[-rank:])

    return {
        f"{name}.default": made_for(f"{name}.default", forward),
        f"{name}_backward.default": made_for(f"{name}_backward.default", backward),
    }


_NEAREST = _Kind(lambda align: _nearest, Reach(0, 0), 4)
_NEAREST_EXACT = _Kind(lambda align: _nearest_exact, Reach(0, 0, 0.5), 4)
_LINEAR = _Kind(_linear, Reach(0, 1, 0.5, 0.5))
_KINDS: tuple[tuple[str, _Kind, int], ...] = (
    *((f"upsample_nearest{n}d", _NEAREST, n) for n in (1, 2, 3)),
    *((f"_upsample_nearest_exact{n}d", _NEAREST_EXACT, n) for n in (1, 2, 3)),
    ("upsample_linear1d", _LINEAR, 1),
    ("upsample_bilinear2d", _LINEAR, 2),
    ("upsample_trilinear3d", _LINEAR, 3),
    ("upsample_bicubic2d", _Kind(_cubic, Reach(1, 2, 0.5, 0.5), 0), 2),
    ("_upsample_bilinear2d_aa", _Kind(_antialiased(_triangle, 1.0), None), 2),
    ("_upsample_bicubic2d_aa", _Kind(_antialiased(_bell, 2.0), None, 0), 2),
)
TABLE: Family = {
    op: of_known_sizes(entry) if "_aa" in op else entry
    for kind in _KINDS
    for op, entry in _pair(*kind).items()
}
