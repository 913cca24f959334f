"""segment_reduce and its gradient: neighbours along a dimension combined, segment by segment.

Each element's segment is how many segments begin up to it; its value is scattered there. The
library goes along each segment once: on a CPU that is faster but for rows of elements and short
segments; on a GPU, for products, for long segments, and for extremes of rows (whose gradients it
computes slower).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from dovetail_prims.ops.common import (
    Family,
    Number,
    aten,
    cast,
    constant,
    contiguous,
    measured,
    of_known_sizes,
    where,
    wide,
    zeros,
)

_NOTHING: dict[str, float] = {
    "sum": 0.0, "mean": 0.0, "prod": 1.0, "max": -math.inf, "min": math.inf,
}  # fmt: skip
# Elements side by side in a segment, elements one after the other (on a GPU).
LEAST_SIDE_BY_SIDE = 16
MOST_IN_A_SEGMENT = 4
MOST_IN_A_SEGMENT_ON_GPU = 200
_SCATTERS = {"sum": "sum", "mean": "sum", "prod": "prod", "max": "amax", "min": "amin"}


def _along(x: Tensor, shape: Sequence[int]) -> Tensor:
    """A tensor over the first dimensions of a shape, expanded to it."""
    for _ in range(len(shape) - x.dim()):
        x = aten.unsqueeze.default(x, -1)
    return aten.expand.default(x, list(shape))


@dataclass(frozen=True)
class _Segments:
    """`count` segments along `axis`: how long each is, and for each element of the data (along the
    data's dimensions) its segment, and whether it is in one (one that is not is said to be in
    segment `count`)."""

    axis: int
    count: int
    lengths: Tensor
    segment: Tensor
    inside: Tensor

    def over(self, data: Tensor) -> Tensor:
        """The lengths, in the shape of what the data becomes."""
        shape = list(data.shape)
        shape[self.axis] = self.count
        return _along(self.lengths, shape)

    def gathered(self, x: Tensor) -> Tensor:
        """What each element's segment has (of one outside of all: anything that is there)."""
        safe = aten.minimum.default(self.segment, constant(self.count - 1, self.segment))
        return aten.gather.default(x, self.axis, safe)

    def combined(self, x: Tensor, how: str, start: Number) -> Tensor:
        """Each segment's elements, combined with each other and with `start`."""
        shape = list(x.shape)
        shape[self.axis] = self.count + 1  # the last is for what is outside
        base = aten.full.default(shape, start, dtype=x.dtype, device=x.device)
        if how == "sum":
            found = aten.scatter_add.default(base, self.axis, self.segment, x)
        else:
            found = aten.scatter_reduce.two(base, self.axis, self.segment, x, how)
        return aten.slice.Tensor(found, self.axis, 0, self.count)


def _lengths_and_offsets(lengths: Tensor | None, offsets: Tensor | None) -> tuple[Tensor, Tensor]:
    """Both how long segments are, and where each begins (and the last ends)."""
    if offsets is None:
        assert lengths is not None
        axis = lengths.dim() - 1
        lengths = cast(lengths, torch.int64)
        ends = aten.cumsum.default(lengths, axis)
        return lengths, aten.cat.default([zeros([*ends.shape[:-1], 1], ends), ends], axis)
    axis = offsets.dim() - 1
    offsets = cast(offsets, torch.int64)
    later = aten.slice.Tensor(offsets, axis, 1, offsets.shape[axis])
    return aten.sub.Tensor(later, aten.slice.Tensor(offsets, axis, 0, -1)), offsets


def _segments(data: Tensor, lengths: Tensor, offsets: Tensor) -> _Segments:
    """Which segment each element is in."""
    axis = lengths.dim() - 1
    count, size = lengths.shape[axis], data.shape[axis]
    begins = zeros([*data.shape[:axis], size + 1], offsets)
    begins = aten.scatter_add.default(begins, axis, offsets, aten.full_like.default(offsets, 1))
    begun = aten.cumsum.default(aten.slice.Tensor(begins, axis, 0, size), axis)
    segment = aten.sub.Tensor(begun, 1)
    inside = aten.logical_and.default(aten.ge.Scalar(segment, 0), aten.lt.Scalar(segment, count))
    segment = _along(where(inside, segment, count), data.shape)
    return _Segments(axis, count, lengths, segment, _along(inside, data.shape))


def _check_lengths(data: Tensor, lengths: Tensor, sums_up: bool) -> None:
    """The program ends with eager's error if a segment is shorter than nothing, or if they do not
    make up the data."""
    no_less = aten.all.default(aten.ge.Scalar(lengths, 0))
    aten._assert_async.msg(no_less, "lengths contains negative value!")
    if sums_up:
        axis = lengths.dim() - 1
        total = aten.sum.dim_IntList(lengths, [axis])
        message = (
            "segment_reduce(): Expected all rows of lengths along axis to sum to "
            "data.size(lengths.dim()-1) when !unsafe."
        )
        fits = aten.all.default(aten.eq.Scalar(total, data.shape[axis]))
        aten._assert_async.msg(fits, message)


def _is_regular(data: Tensor, given: Tensor | None, axis: int, of_offsets: bool) -> bool:
    """Whether eager would take segments of this shape; it refuses others by itself."""
    if given is None or data.dim() == 0 or data.dtype not in (
        torch.float32, torch.float64, torch.float16, torch.bfloat16,
    ):  # fmt: skip
        return False
    if given.dtype not in (torch.int32, torch.int64) or given.dim() > data.dim():
        return False
    axis = axis % data.dim()
    if axis != given.dim() - 1 or list(given.shape[:axis]) != list(data.shape[:axis]):
        return False
    return int(given.shape[axis]) > of_offsets and data.numel() > 0


def _pays(data: Tensor, given: Tensor, of_offsets: bool, reduce: str, forward: bool) -> bool:
    """Whether scatters are faster than the library, `forward` or for the gradient."""
    axis = given.dim() - 1
    count, size = given.shape[axis] - of_offsets, data.shape[axis]
    rows = math.prod(data.shape[axis + 1 :]) >= LEAST_SIDE_BY_SIDE
    if data.device.type == "cpu":
        extreme = forward and reduce in ("max", "min")
        return bool(extreme or rows or size <= MOST_IN_A_SEGMENT * count)
    short = size <= MOST_IN_A_SEGMENT_ON_GPU * count
    if reduce in ("sum", "mean"):
        return bool(rows or short)
    return bool(reduce != "prod" and short and not rows)


@measured
def segment_reduce(
    data: Tensor,
    reduce: str,
    *,
    lengths: Tensor | None = None,
    indices: Tensor | None = None,
    offsets: Tensor | None = None,
    axis: int = 0,
    unsafe: bool = False,
    initial: Number | None = None,
    everywhere: bool = False,
) -> Any:
    """Each segment's sum, mean, product or extreme. (An empty one has what the combination begins
    with, or no mean.)"""
    given = lengths if offsets is None else offsets
    both = lengths is not None and offsets is not None
    if indices is not None or both or reduce not in _NOTHING:
        return NotImplemented
    if given is None or not _is_regular(data, given, axis, offsets is not None):
        return NotImplemented
    if not everywhere and not _pays(data, given, offsets is not None, reduce, forward=True):
        return NotImplemented
    sums_up = offsets is None and not unsafe
    lengths, offsets = _lengths_and_offsets(lengths, offsets)
    _check_lengths(data, lengths, sums_up)
    segments = _segments(data, lengths, offsets)
    start = _NOTHING[reduce] if initial is None else initial
    found = segments.combined(wide(data), _SCATTERS[reduce], start)
    if reduce == "mean":
        many = segments.over(data)
        empty = aten.eq.Scalar(many, 0)
        mean = aten.div.Tensor(found, where(empty, 1, many))
        found = where(empty, math.nan, mean) if initial is None else mean
    return contiguous(cast(found, data.dtype))


def _product_slope(
    x: Tensor, grad: Tensor, output: Tensor, segments: _Segments, start: Number
) -> Tensor:
    """The gradient times the product of the others in the segment: by division, but for a zero or
    a NaN, whose others are multiplied."""
    zero, nan = aten.eq.Scalar(x, 0), aten.isnan.default(x)
    odd = aten.logical_or.default(zero, nan)
    whole = segments.gathered(segments.combined(where(odd, 1.0, x), "prod", start))

    def others(which: Tensor) -> Tensor:
        own = cast(which, torch.int64)
        all_ = segments.gathered(segments.combined(own, "sum", 0))
        return aten.gt.Tensor(all_, own)

    excluded = where(others(zero), aten.mul.Tensor(whole, 0.0), whole)
    excluded = where(others(nan), math.nan, excluded)
    slope = aten.div.Tensor(aten.mul.Tensor(grad, output), where(odd, 1.0, x))
    return where(odd, aten.mul.Tensor(grad, excluded), slope)


@measured
def segment_reduce_backward(
    grad: Tensor,
    output: Tensor,
    data: Tensor,
    reduce: str,
    *,
    lengths: Tensor | None = None,
    offsets: Tensor | None = None,
    axis: int = 0,
    initial: Number | None = None,
    everywhere: bool = False,
) -> Any:
    """Of a sum and a mean, the segment's gradient; of a product, times the others; of an extreme,
    for all that attain it. (Eager shares it out among those where it is positive only.)"""
    given = lengths if offsets is None else offsets
    if given is None or not _is_regular(data, given, axis, offsets is not None):
        return NotImplemented
    # (On a GPU the library's gradient is slow, but a product's.)
    pays = everywhere or (data.device.type != "cpu" and reduce != "prod")
    if not pays and not _pays(data, given, offsets is not None, reduce, forward=False):
        return NotImplemented
    segments = _segments(data, *_lengths_and_offsets(lengths, offsets))
    x = wide(data)
    slope = segments.gathered(wide(grad))
    own = segments.gathered(output)
    if reduce == "mean":
        slope = aten.div.Tensor(slope, segments.gathered(segments.over(data)))
    elif reduce == "prod":
        start = 1.0 if initial is None else initial
        slope = _product_slope(x, slope, wide(own), segments, start)
    elif reduce in ("max", "min"):
        hit = aten.logical_or.default(aten.isnan.default(data), aten.eq.Tensor(data, own))
        hits = segments.gathered(segments.combined(cast(hit, torch.int64), "sum", 0))
        share = where(aten.gt.Scalar(slope, 0), aten.div.Tensor(slope, hits), slope)
        slope = where(hit, share, 0.0)
    return cast(contiguous(where(segments.inside, slope, 0.0)), data.dtype)


TABLE: Family = {
    "segment_reduce.default": of_known_sizes(segment_reduce),
    "_segment_reduce_backward.default": of_known_sizes(segment_reduce_backward),
}
EVERYWHERE: Family = {
    name: of_known_sizes(partial(function, everywhere=True))
    for name, function in (
        ("segment_reduce.default", segment_reduce),
        ("_segment_reduce_backward.default", segment_reduce_backward),
    )
}
