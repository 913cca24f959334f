"""Histograms: each number's bin is found, and what it counts is added there."""

from __future__ import annotations

import math
from collections.abc import Sequence
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
    made_for,
    measured,
    of_known_sizes,
    reshape,
    where,
    zeros,
)

_COUNTED = (torch.float32, torch.float64)
# Up to so many bins a number's place between the ends is rounded to its own bin or the next one.
MOST_BINS = 2**20


def _reach(x: Tensor, message: str) -> tuple[Tensor, Tensor]:
    """The smallest and the largest number. The program ends with an error if one is not finite."""
    low, high = aten.amin.default(x, []), aten.amax.default(x, [])
    finite = aten.lt.Scalar(aten.abs.default(aten.sub.Tensor(high, low)), math.inf)
    aten._assert_async.msg(finite, message)
    return low, high


def _places(x: Tensor, low: Tensor, high: Tensor, bins: int) -> Tensor:
    """The step that a number is in, rounded as the library rounds it"""
    place = aten.mul.Tensor(aten.sub.Tensor(x, low), bins)
    return aten.div.Tensor(place, aten.sub.Tensor(high, low))


@measured
def histc(
    self: Tensor, bins: int = 100, min: Number = 0, max: Number = 0, everywhere: bool = False
) -> Any:
    """How many numbers lie in each of equal steps from `min` to `max` (or as far as the numbers
    themselves reach, if those are equal); the last has both ends. (On a GPU, whose threads would
    wait for each other at every bin, the library, which counts in shared memory, is a hundred times
    as fast.)"""
    known = min < max < math.inf and min > -math.inf
    pays = self.device.type == "cpu" or everywhere
    if self.dtype not in _COUNTED or not pays or bins < 1:
        return NotImplemented
    if not known and min != max:
        return NotImplemented  # an error
    if not known and self.numel() == 0:
        return zeros([bins], self)
    x = reshape(self, [-1])
    if known:
        low, high = constant(min, x), constant(max, x)
        place = _places(x, low, high, bins)
    else:
        low, high = _reach(x, "torch.histc: the range of the numbers is not finite")
        # A single number lies between what is 1 from it on both sides, if its type tells those.
        single = aten.eq.Tensor(low, high)
        below, above = aten.sub.Tensor(low, 1.0), aten.add.Tensor(high, 1.0)
        told = aten.eq.Scalar(aten.sub.Tensor(above, below), 2.0)
        place = _places(x, where(single, below, low), where(single, above, high), bins)
        lost = aten.logical_and.default(single, aten.logical_not.default(told))
        place = where(lost, float(bins // 2), place)
    inside = aten.logical_and.default(aten.ge.Tensor(x, low), aten.le.Tensor(x, high))
    place = cast(where(inside, place, 0.0), torch.int64)
    place = aten.minimum.default(place, constant(bins - 1, place))
    return aten.index_put.default(zeros([bins], self), [place], cast(inside, self.dtype), True)


# --- histogram and histogramdd --------------------------------------------------------------------


def _edges(column: Tensor, dim: int, bins: int, given: Sequence[float] | None) -> Tensor | None:
    """The edges of equal bins from one number to another, or as far as a column reaches; None where
    eager refuses."""
    kind = {"dtype": column.dtype, "device": column.device}
    if given is not None or column.shape[0] == 0:
        low, high = (0.0, 1.0) if given is None else given
        if not -math.inf < low <= high < math.inf:
            return None
        if low == high:
            low, high = low - 0.5, high + 0.5
        return aten.linspace.default(low, high, bins + 1, **kind)
    message = f"torch.histogramdd: dimension {dim}'s range is not finite"
    ends = [cast(x, torch.float64) for x in _reach(column, message)]
    off = where(aten.eq.Tensor(*ends), constant(0.5, ends[0]), 0.0)
    start, end = aten.sub.Tensor(ends[0], off), aten.add.Tensor(ends[1], off)
    return aten.linspace.Tensor_Tensor(start, end, bins + 1, **kind)


def _equal_bins(x: Tensor, edges: Tensor, inside: Tensor) -> Tensor:
    """The bin of each number: the one that its place between the ends tells, or a neighbour, which
    the edges tell (rounded, they are not quite at equal distances)."""
    bins = edges.shape[0] - 1
    guess = _places(x, aten.select.int(edges, 0, 0), aten.select.int(edges, 0, bins), bins)
    guess = cast(where(inside, guess, 0.0), torch.int64)
    guess = aten.minimum.default(guess, constant(bins - 1, guess))
    start = aten.index.Tensor(edges, [guess])
    end = aten.index.Tensor(edges, [aten.add.Tensor(guess, 1)])
    found = where(aten.ge.Tensor(x, end), aten.add.Tensor(guess, 1), guess)
    found = where(aten.lt.Tensor(x, start), aten.sub.Tensor(guess, 1), found)
    return where(inside, found, 0)


def _counted(
    x: Tensor, edges: Sequence[Tensor], weight: Tensor | None, density: bool, equal: bool
) -> Tensor:
    """How many rows of a matrix (or the sum of their weights) are in each bin; the last bin along
    each dimension has both ends."""
    sizes = [e.shape[0] - 1 for e in edges]
    inside: Tensor | None = None
    place: Tensor | None = None
    for dim, own in enumerate(edges):
        column = aten.select.int(x, 1, dim)
        above = aten.ge.Tensor(column, aten.select.int(own, 0, 0))
        within = aten.logical_and.default(
            above, aten.le.Tensor(column, aten.select.int(own, 0, sizes[dim]))
        )
        if equal:
            at = _equal_bins(column, own, within)
        else:
            contiguous_column = reshape(column, [-1])
            at = aten.searchsorted.Tensor(own, contiguous_column, right=True)
            at = aten.sub.Tensor(at, 1)
        at = aten.minimum.default(at, constant(sizes[dim] - 1, at))
        inside = within if inside is None else aten.logical_and.default(inside, within)
        place = at if place is None else aten.add.Tensor(aten.mul.Tensor(place, sizes[dim]), at)
    assert inside is not None and place is not None
    brought = cast(inside, x.dtype)
    if weight is not None:
        brought = where(inside, reshape(weight, [-1]), 0.0)
    flat = zeros([math.prod(sizes)], x)
    flat = aten.index_put.default(flat, [where(inside, place, 0)], brought, True)
    counts = aten.view.default(flat, sizes)
    if not density:
        return counts
    counts = aten.div.Tensor(counts, aten.sum.dim_IntList(flat, [0]))
    for dim, own in enumerate(edges):
        shape = [1] * len(sizes)
        shape[dim] = sizes[dim]
        ends = aten.slice.Tensor(own, 0, 1, sizes[dim] + 1)
        widths = aten.sub.Tensor(ends, aten.slice.Tensor(own, 0, 0, sizes[dim]))
        counts = aten.div.Tensor(counts, aten.view.default(widths, shape))
    return counts


def _rows(x: Tensor, weight: Tensor | None, dims: int) -> Tensor | None:
    """The numbers as a matrix with a column for each dimension; None where eager refuses."""
    if x.dtype not in _COUNTED or x.device.type != "cpu" or x.dim() < 2 or x.shape[-1] != dims:
        return None
    if weight is not None:
        if weight.dtype != x.dtype or list(weight.shape) != list(x.shape[:-1]):
            return None
    return reshape(x, [math.prod(x.shape[:-1]), dims])


def _in_equal_bins(
    x: Tensor, bins: Sequence[int], range: Sequence[float] | None, weight: Tensor | None
) -> tuple[Tensor, list[Tensor]] | None:
    """The numbers as a matrix, and the edges along each dimension; None where eager refuses."""
    rows = _rows(x, weight, len(bins))
    if rows is None:
        return None
    if not all(1 <= n <= MOST_BINS for n in bins) or (
        range is not None and len(range) != 2 * len(bins)
    ):
        return None
    found: list[Tensor] = []
    for dim, n in enumerate(bins):
        given = None if range is None else range[2 * dim : 2 * dim + 2]
        edges = _edges(aten.select.int(rows, 1, dim), dim, n, given)
        if edges is None:
            return None
        found.append(edges)
    return rows, found


def histogramdd_edges(
    self: Tensor,
    bins: Sequence[int],
    range: Sequence[float] | None = None,
    weight: Tensor | None = None,
    density: bool = False,
) -> Any:
    """Equal bins along each dimension, from the smallest number to the largest or as said"""
    found = _in_equal_bins(self, bins, range, weight)
    return NotImplemented if found is None else found[1]


def histogramdd_counts(
    self: Tensor,
    bins: Sequence[int],
    range: Sequence[float] | None = None,
    weight: Tensor | None = None,
    density: bool = False,
) -> Any:
    """What is in equal bins"""
    found = _in_equal_bins(self, bins, range, weight)
    return NotImplemented if found is None else _counted(*found, weight, density, True)


def histogramdd_in(
    self: Tensor, bins: Sequence[Tensor], weight: Tensor | None = None, density: bool = False
) -> Any:
    """What is in bins of given edges"""
    rows = _rows(self, weight, len(bins))
    if rows is None or not all(_are_edges(edges, rows) for edges in bins):
        return NotImplemented
    return _counted(rows, [reshape(e, [-1]) for e in bins], weight, density, False)


def _are_edges(edges: Tensor, x: Tensor) -> bool:
    """Whether eager takes a tensor for the edges of at least one bin."""
    same = edges.dtype == x.dtype and edges.device == x.device
    return same and edges.dim() == 1 and isinstance(edges.shape[0], int) and edges.shape[0] > 1


def histogram(
    self: Tensor,
    bins: int = 100,
    range: Sequence[float] | None = None,
    weight: Tensor | None = None,
    density: bool = False,
) -> Any:
    """One dimension of any numbers: what is in equal bins, and the bins' edges"""
    x, w = _flat(self, weight)
    edges = histogramdd_edges(x, [bins], range, w)
    if edges is NotImplemented:
        return NotImplemented
    return _counted(x, edges, w, density, True), edges[0]


def histogram_in(
    self: Tensor, bins: Tensor, weight: Tensor | None = None, density: bool = False
) -> Any:
    """One dimension of any numbers: what is in bins of given edges, and those"""
    x, w = _flat(self, weight)
    counts = histogramdd_in(x, [bins], w, density)
    return counts if counts is NotImplemented else (counts, aten.clone.default(bins))


def _flat(x: Tensor, weight: Tensor | None) -> tuple[Tensor, Tensor | None]:
    """All numbers as a column. (Of a weight of another shape the shape is kept, to be refused.)"""
    if weight is not None and list(weight.shape) == list(x.shape):
        weight = reshape(weight, [-1])
    return reshape(x, [x.numel(), 1]), weight


TABLE: Family = {
    "histc.default": histc,
    **made_for("histogram.bin_ct", of_known_sizes(histogram)),
    **made_for("histogram.bins_tensor", of_known_sizes(histogram_in)),
    **made_for("_histogramdd_bin_edges.default", of_known_sizes(histogramdd_edges)),
    **made_for("_histogramdd_from_bin_cts.default", of_known_sizes(histogramdd_counts)),
    **made_for("_histogramdd_from_bin_tensors.default", of_known_sizes(histogramdd_in)),
}
EVERYWHERE: Family = {"histc.default": partial(histc, everywhere=True)}
