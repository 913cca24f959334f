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

from dovetail_prims.fake_tensor import FakeTensor, Size, make
from dovetail_prims.ops import common
from dovetail_prims.ops.card import Card, composed
from dovetail_prims.ops.common import aten
from dovetail_prims.ops.taps import (
    Tap,
    Taps,
    antialiased,
    bell,
    clamped,
    cubic_taps,
    linear_taps,
    nearest,
    nearest_exact,
    ratio_of,
    triangle,
)
from dovetail_prims.shape_rules.layout import channels_last as channels_last_strides
from dovetail_prims.shape_rules.layout import contiguous as row_major
from dovetail_prims.shape_rules.layout import insisted, suggests_channels_last

# --- shapes ---------------------------------------------------------------------------------------


def upsample(x: FakeTensor, output_size: Sequence[Size], *rest: Any) -> FakeTensor:
    """The resizing of a row, an image or a volume."""
    sizes = (*x._sizes[:2], *output_size)
    if len(sizes) != len(x._sizes):
        return NotImplemented  # type: ignore[no-any-return]
    for size in (*sizes[1:], *x._sizes[2:]):
        if not insisted(size > 0):
            raise RuntimeError(f"Input and output sizes should be greater than 0: {sizes}")
    strides = channels_last_strides(sizes) if suggests_channels_last(x) else row_major(sizes)
    return make(sizes, strides, x._dtype, x._device)


# --- decompositions -------------------------------------------------------------------------------


def _resize(self: Tensor, size: Sequence[int], taps: Taps, scales: Sequence[float | None]) -> Any:
    """Each spatial dimension in turn: gather each tap, weigh, add"""
    rank = self.dim()
    out = common.wide(self)
    for k, (wanted, scale) in enumerate(zip(size, scales, strict=True)):
        dim = rank - len(size) + k
        parts = []
        for place, weight in taps(out, self.shape[dim], wanted, scale):
            part = aten.index.Tensor(out, [*[None] * dim, place])
            if weight is not None:
                if not self.dtype.is_floating_point:
                    return NotImplemented  # bytes are weighed in a fixed point of the library's
                part = aten.mul.Tensor(part, common.along(weight, dim, rank))
            parts.append(part)
        out = parts[0]
        for part in parts[1:]:
            out = aten.add.Tensor(out, part)
        out = common.formatted(out, common.suggested_format(self))
    return common.cast(out, self.dtype)


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
            {ratio_of(size, wanted, s) for s in (scale, None)},
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
    scaled = aten.add.Tensor(aten.mul.Tensor(common.iota(size, like), factor), shift)
    return aten.div.Tensor_mode(scaled, by, rounding_mode="floor")


def _read_back(
    grad: Tensor, dim: int, size: int, taps: Sequence[Tap], readers: tuple[int, int], middle: Tensor
) -> Tensor:
    """Along one dimension, at each position: the gradients of the outputs that read it, weighed"""
    wanted, own = grad.shape[dim], common.iota(size, grad)
    total: Tensor | None = None
    for gap in range(readers[0], readers[1] + 1):
        reader = aten.add.Tensor(middle, gap)
        at = clamped(reader, wanted)
        there = aten.eq.Tensor(at, reader)
        weight: Tensor | None = None
        reads: Tensor | None = None
        for place, tap_weight in taps:
            hit = aten.eq.Tensor(aten.index.Tensor(place, [at]), own)
            hit = aten.bitwise_and.Tensor(hit, there)
            reads = hit if reads is None else aten.bitwise_or.Tensor(reads, hit)
            if tap_weight is not None:
                part = common.where(hit, aten.index.Tensor(tap_weight, [at]), 0.0)
                weight = part if weight is None else aten.add.Tensor(weight, part)
        assert reads is not None
        value = aten.index.Tensor(grad, [*[None] * dim, at])
        if weight is not None:
            value = aten.mul.Tensor(value, common.along(weight, dim, grad.dim()))
        value = common.where(common.along(reads, dim, grad.dim()), value, 0.0)
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
        ratio = _float32(ratio_of(size, wanted, s))
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
    out = common.wide(grad)
    first = rank - len(scales)
    if kind is _NEAREST:
        copies = [
            _copies(*n) for n in zip(input_size[first:], grad.shape[first:], scales, strict=True)
        ]
        if all(copies) and 1 < math.prod(n or 0 for n in copies) <= 2 * MOST_READERS:
            out = _sum_of_copies(out, first, [n or 0 for n in copies])
            return common.formatted(common.cast(out, grad.dtype), kind.format_of_gradient(grad))
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
            out = common.formatted(out, common.suggested_format(grad))
            continue
        total = common.zeros(size, out)
        for place, weight in taps:
            part = out if weight is None else aten.mul.Tensor(out, common.along(weight, dim, rank))
            total = aten.index_put.default(total, [*[None] * dim, place], part, True)
        out = total
    return common.formatted(common.cast(out, grad.dtype), kind.format_of_gradient(grad))


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
        return common.suggested_format(grad) if keeps else torch.contiguous_format


def _pair(name: str, kind: _Kind, rank: int) -> tuple[Card, Card]:
    """Forward and backward of an op of (tensor, sizes, align_corners if it has one, scales)"""

    def forward(self: Tensor, output_size: Sequence[int], *rest: Any) -> Any:
        """A weighted gather along each dimension"""
        return _resize(self, output_size, kind.taps(rest[0] is True), rest[-rank:])

    def backward(
        grad_output: Tensor, output_size: Sequence[int], input_size: Sequence[int], *rest: Any
    ) -> Tensor:
        """A weighted add along each dimension"""
        return _resize_backward(grad_output, input_size, kind, rest[0] is True, rest[-rank:])

    there = common.made_for(f"{name}.default", forward)
    back = common.made_for(f"{name}_backward.default", backward)
    if name.endswith("_aa"):
        there, back = common.of_known_sizes(there), common.of_known_sizes(back)
    return composed(name, upsample, there), composed(f"{name}_backward", None, back)


_NEAREST = _Kind(lambda align: nearest, Reach(0, 0), 4)

_NEAREST_EXACT = _Kind(lambda align: nearest_exact, Reach(0, 0, 0.5), 4)

_LINEAR = _Kind(linear_taps, Reach(0, 1, 0.5, 0.5))

_KINDS: tuple[tuple[str, _Kind, int], ...] = (
    *((f"upsample_nearest{n}d", _NEAREST, n) for n in (1, 2, 3)),
    *((f"_upsample_nearest_exact{n}d", _NEAREST_EXACT, n) for n in (1, 2, 3)),
    ("upsample_linear1d", _LINEAR, 1),
    ("upsample_bilinear2d", _LINEAR, 2),
    ("upsample_trilinear3d", _LINEAR, 3),
    ("upsample_bicubic2d", _Kind(cubic_taps, Reach(1, 2, 0.5, 0.5), 0), 2),
    ("_upsample_bilinear2d_aa", _Kind(antialiased(triangle, 1.0), None), 2),
    ("_upsample_bicubic2d_aa", _Kind(antialiased(bell, 2.0), None, 0), 2),
)


# --- cards ----------------------------------------------------------------------------------------

CARDS = (*(card for kind in _KINDS for card in _pair(*kind)),)
