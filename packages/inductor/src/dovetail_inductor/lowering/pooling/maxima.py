"""Max pooling with indices, and its gradient."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial, reduce
from itertools import product
from math import prod
from typing import Any

import torch
from torch import fx

from dovetail_inductor.loop_ir.expr import Expr
from dovetail_inductor.loop_ir.index import constant
from dovetail_inductor.loop_ir.ops import arithmetic_dtype
from dovetail_inductor.loop_ir.reduction import MAX, MIN
from dovetail_inductor.lowering.indexing import both, masked_load
from dovetail_inductor.lowering.pooling.windows import (
    FAR,
    MOST_READS,
    Dim,
    Shares,
    element_number,
    filled,
    in_memory_if_costly,
    places,
    reduced,
    shares_of,
    steps_of,
    summed,
)
from dovetail_inductor.lowering.promotion import number
from dovetail_inductor.lowering.values import Context, Indices, Value, value_like

# On a CPU, of a maximum, and of its gradient.
_MOST_COMPARED = 9
_MOST_HITS = 3


@dataclass(frozen=True)
class _Windows:
    """The windows of `source` that the elements of a maximum, of type `dtype`, are the largest
    of."""

    ctx: Context
    source: Value
    dims: Sequence[Dim]
    dtype: torch.dtype

    @property
    def counts(self) -> list[int]:
        """How many elements a window has along each dimension, at the most."""
        return [dim.reads for dim in self.dims]

    def _places(self) -> Iterator[Indices]:
        """Those of the elements of a window, in order."""
        for place in product(*(range(n) for n in self.counts)):
            yield tuple(map(constant, place))

    def _lowest(self) -> Expr:
        floating = self.dtype.is_floating_point
        lowest = -torch.inf if floating else torch.iinfo(self.dtype).min
        return number(self.ctx, lowest, self.dtype, False)

    def element(
        self, indices: Indices, place: Indices, mask: Expr | None
    ) -> tuple[Indices, Expr, Expr | None]:
        """Where an element of a window lies, whether that is inside, and the element (None: it is
        nowhere inside)."""
        rank = len(self.dims)
        own = zip(self.dims, indices[-rank:], place, strict=True)
        at, inside = places(self.ctx, [dim.element(self.ctx, i, k) for dim, i, k in own])
        may = both(self.ctx, inside, mask)
        return at, inside, masked_load(self.ctx, self.source, (*indices[:-rank], *at), may)

    def candidate(self, indices: Indices, place: Indices, mask: Expr | None) -> Expr:
        """An element of a window, or nothing larger than what is inside."""
        nothing = self._lowest()
        _, inside, found = self.element(indices, place, mask)
        return nothing if found is None else self._where(inside, found, nothing)

    def largest(self, indices: Indices, mask: Expr | None) -> Expr:
        """The largest element, by itself."""
        elements = [self.candidate(indices, place, mask) for place in self._places()]
        return reduce(lambda x, y: self.ctx.builder.apply("maximum", [x, y]), elements)

    def largest_and_number(self, indices: Indices, mask: Expr | None) -> tuple[Expr, Expr]:
        """(From last to first, so that even -inf is found where nothing is larger.)"""
        b = self.ctx.builder
        largest = self._lowest()
        which: Expr = b.constant(0, torch.int64)
        for place in reversed(list(self._places())):
            at, inside, found = self.element(indices, place, mask)
            if found is None:
                continue
            better = b.apply("ge", [found, largest])
            if self.dtype.is_floating_point:
                first_nan = [b.apply("isnan", [found]), b.apply("eq", [largest, largest])]
                better = b.apply("bitwise_or", [better, b.apply("bitwise_and", first_nan)])
            better = both(self.ctx, better, inside)
            largest = self._where(better, found, largest)
            which = self._where(better, element_number(self.ctx, self.dims, at), which)
        return largest, which

    def hit(self, largest: Value, indices: Indices, place: Indices, mask: Expr | None) -> Expr:
        """The number of what equals the largest; of NaN, less the number, as the last one is
        meant."""
        b = self.ctx.builder
        at, inside, found = self.element(indices, place, mask)
        far = b.constant(FAR, torch.int64)
        if found is None:
            return far
        own = element_number(self.ctx, self.dims, at)
        wanted = self.ctx.load(largest, indices, mask)
        equal = self._where(b.apply("eq", [found, wanted]), own, far)
        if self.dtype.is_floating_point:
            equal = self._where(b.apply("isnan", [found]), b.apply("neg", [own]), equal)
        return self._where(inside, equal, far)

    def _where(self, condition: Expr, a: Expr, b: Expr) -> Expr:
        return self.ctx.builder.apply("where", [condition, a, b])


def _maximum(ctx: Context, node: fx.Node, source: Value, dims: Sequence[Dim] | None) -> Any:
    """The largest element of a window and its number: the first of equal ones, the last NaN if
    there is one."""
    best, chosen = node.meta["val"]
    value, index = value_like(best, node.name), value_like(chosen, node.name)
    if dims is None or value.numel == 0:
        return NotImplemented
    windows = _Windows(ctx, source, dims, value.dtype)
    reads = prod(windows.counts)
    if ctx.leaves_to_library and (reads > _MOST_COMPARED or isinstance(dims[0], Shares)):
        return NotImplemented
    numbered = any(n.args[1] == 1 and n.users for n in node.users)
    if reads <= MOST_READS:
        in_memory_if_costly(ctx, source, reads)
        value.loader = windows.largest
        if numbered:
            value.loader = lambda indices, mask: windows.largest_and_number(indices, mask)[0]
        index.loader = lambda indices, mask: windows.largest_and_number(indices, mask)[1]
    else:
        ctx.realize(source)
        reduced(ctx, value, windows.counts, MAX, windows.candidate)
        signed = Value(index.shape, index.stride, index.dtype, index.device, index.origin)
        reduced(ctx, signed, windows.counts, MIN, partial(windows.hit, value))
        index.loader = lambda indices, mask: ctx.builder.apply(
            "abs", [ctx.load(signed, indices, mask)]
        )
    if numbered:
        # One kernel makes both.
        ctx.realize(value)
        ctx.realize(index)
    elif sum(len(n.users) for n in node.users) > 1:
        ctx.realize(value)  # windows are gone through once
    return value, index


def _maximum_backward(
    ctx: Context, node: fx.Node, gradient: Value, chosen: Value, dims: Sequence[Dim] | None
) -> Any:
    value = value_like(node.meta["val"], node.name)
    if dims is None or chosen.shape != gradient.shape or gradient.numel == 0:
        return NotImplemented
    rank, counts = len(dims), [dim.hits for dim in dims]
    if ctx.leaves_to_library and (prod(counts) > _MOST_HITS or value.stride[-1] == 1):
        return NotImplemented
    b = ctx.builder

    def part(indices: Indices, place: Indices, mask: Expr | None) -> Expr:
        own = zip(dims, indices[-rank:], place, strict=True)
        window, exists = places(ctx, [dim.window(ctx, i, k) for dim, i, k in own])
        at, may = (*indices[:-rank], *window), both(ctx, exists, mask)
        nothing = b.constant(0, arithmetic_dtype(value.dtype))
        choice, given = masked_load(ctx, chosen, at, may), masked_load(ctx, gradient, at, may)
        if choice is None or given is None:
            return nothing
        mine = b.apply("eq", [choice, element_number(ctx, dims, indices[-rank:])])
        return b.apply("where", [both(ctx, mine, exists), given, nothing])

    return summed(ctx, value, counts, part)


def max_pool(
    rank: int, ctx: Context, node: fx.Node, args: Sequence[Any], kwargs: dict[str, Any]
) -> Any:
    """The rule of max pooling, with indices, of images of this rank."""
    if kwargs:
        return NotImplemented
    kernel, stride, pad, dilation, _ = filled(args[1:], ((), (), 0, 1, False))
    pooled = value_like(node.meta["val"][0], node.name).shape
    dims = steps_of(rank, args[0].shape, pooled, kernel, stride, pad, dilation)
    return _maximum(ctx, node, args[0], dims)


def max_pool_backward(
    rank: int, ctx: Context, node: fx.Node, args: Sequence[Any], kwargs: dict[str, Any]
) -> Any:
    """The rule of its gradient."""
    gradient, source, kernel, stride, pad, dilation, _, chosen = args
    dims = steps_of(rank, source.shape, gradient.shape, kernel, stride, pad, dilation)
    return _maximum_backward(ctx, node, gradient, chosen, dims)


def adaptive_max_pool(
    rank: int, ctx: Context, node: fx.Node, args: Sequence[Any], kwargs: dict[str, Any]
) -> Any:
    """The rule of max pooling, with indices, to a given size."""
    pooled = value_like(node.meta["val"][0], node.name).shape
    return _maximum(ctx, node, args[0], shares_of(rank, args[0].shape, pooled))


def adaptive_max_pool_backward(
    rank: int, ctx: Context, node: fx.Node, args: Sequence[Any], kwargs: dict[str, Any]
) -> Any:
    """The rule of its gradient."""
    dims = shares_of(rank, args[1].shape, args[0].shape)
    return _maximum_backward(ctx, node, args[0], args[2], dims)
