"""Max pooling with indices, and its gradient."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from itertools import product
from math import prod
from typing import Any

import torch
from torch import fx

from dovetail_inductor.loop_ir.expr import Expr
from dovetail_inductor.loop_ir.index import constant
from dovetail_inductor.loop_ir.ops import arithmetic_dtype
from dovetail_inductor.lowering.indexing import both, masked_load
from dovetail_inductor.lowering.pointwise import Rule
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


def _maximum(ctx: Context, node: fx.Node, source: Value, dims: Sequence[Dim] | None) -> Any:
    """The largest element of a window and its number: the first of equal ones, the last NaN if
    there is one."""
    best, chosen = node.meta["val"]
    value, index = value_like(best, node.name), value_like(chosen, node.name)
    if dims is None or value.numel == 0:
        return NotImplemented
    rank, counts = len(dims), [dim.reads for dim in dims]
    if ctx.library_on_cpu and (prod(counts) > _MOST_COMPARED or isinstance(dims[0], Shares)):
        return NotImplemented
    numbered = any(n.args[1] == 1 and n.users for n in node.users)
    lowest = -torch.inf if value.dtype.is_floating_point else torch.iinfo(value.dtype).min
    b = ctx.builder

    def element(
        indices: Indices, place: Indices, mask: Expr | None
    ) -> tuple[Indices, Expr, Expr | None]:
        own = zip(dims, indices[-rank:], place, strict=True)
        at, inside = places(ctx, [dim.element(ctx, i, k) for dim, i, k in own])
        found = masked_load(ctx, source, (*indices[:-rank], *at), both(ctx, inside, mask))
        return at, inside, found

    def candidate(indices: Indices, place: Indices, mask: Expr | None) -> Expr:
        nothing = number(ctx, lowest, value.dtype, False)
        _, inside, found = element(indices, place, mask)
        return nothing if found is None else b.apply("where", [inside, found, nothing])

    def largest_alone(indices: Indices, mask: Expr | None) -> Expr:
        elements = [
            candidate(indices, tuple(map(constant, place)), mask)
            for place in product(*(range(n) for n in counts))
        ]
        return reduce(lambda x, y: b.apply("maximum", [x, y]), elements)

    def folded(indices: Indices, mask: Expr | None) -> tuple[Expr, Expr]:
        """(From last to first, so that even -inf is found where nothing is larger.)"""
        largest = number(ctx, lowest, value.dtype, False)
        which: Expr = b.constant(0, torch.int64)
        for place in reversed(list(product(*(range(n) for n in counts)))):
            at, inside, found = element(indices, tuple(map(constant, place)), mask)
            if found is None:
                continue
            better = b.apply("ge", [found, largest])
            if value.dtype.is_floating_point:
                first_nan = [b.apply("isnan", [found]), b.apply("eq", [largest, largest])]
                better = b.apply("bitwise_or", [better, b.apply("bitwise_and", first_nan)])
            better = both(ctx, better, inside)
            largest = b.apply("where", [better, found, largest])
            which = b.apply("where", [better, element_number(ctx, dims, at), which])
        return largest, which

    if prod(counts) <= MOST_READS:
        in_memory_if_costly(ctx, source, prod(counts))
        value.loader = largest_alone
        if numbered:
            value.loader = lambda indices, mask: folded(indices, mask)[0]
        index.loader = lambda indices, mask: folded(indices, mask)[1]
    else:
        ctx.realize(source)

        def hit(indices: Indices, place: Indices, mask: Expr | None) -> Expr:
            """The number of what equals the largest; of NaN, less the number, as the last one is
            meant."""
            at, inside, found = element(indices, place, mask)
            far = b.constant(FAR, torch.int64)
            if found is None:
                return far
            own, largest = element_number(ctx, dims, at), ctx.load(value, indices, mask)
            equal = b.apply("where", [b.apply("eq", [found, largest]), own, far])
            if value.dtype.is_floating_point:
                is_nan = b.apply("isnan", [found])
                equal = b.apply("where", [is_nan, b.apply("neg", [own]), equal])
            return b.apply("where", [inside, equal, far])

        reduced(ctx, value, counts, "max", candidate)
        signed = Value(index.shape, index.stride, index.dtype, index.device, index.origin)
        reduced(ctx, signed, counts, "min", hit)
        index.loader = lambda indices, mask: b.apply("abs", [ctx.load(signed, indices, mask)])
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
    if ctx.library_on_cpu and (prod(counts) > _MOST_HITS or value.stride[-1] == 1):
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


def max_pool(rank: int) -> Rule:
    """The rule of max pooling, with indices, of images of this rank."""

    def rule(ctx: Context, node: fx.Node, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        if kwargs:
            return NotImplemented
        kernel, stride, pad, dilation, _ = filled(args[1:], ((), (), 0, 1, False))
        pooled = value_like(node.meta["val"][0], node.name).shape
        dims = steps_of(rank, args[0].shape, pooled, kernel, stride, pad, dilation)
        return _maximum(ctx, node, args[0], dims)

    return rule


def max_pool_backward(rank: int) -> Rule:
    """The rule of its gradient."""

    def rule(ctx: Context, node: fx.Node, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        gradient, source, kernel, stride, pad, dilation, _, chosen = args
        dims = steps_of(rank, source.shape, gradient.shape, kernel, stride, pad, dilation)
        return _maximum_backward(ctx, node, gradient, chosen, dims)

    return rule


def adaptive_max_pool(rank: int) -> Rule:
    """The rule of max pooling, with indices, to a given size."""

    def rule(ctx: Context, node: fx.Node, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        pooled = value_like(node.meta["val"][0], node.name).shape
        return _maximum(ctx, node, args[0], shares_of(rank, args[0].shape, pooled))

    return rule


def adaptive_max_pool_backward(rank: int) -> Rule:
    """The rule of its gradient."""

    def rule(ctx: Context, node: fx.Node, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        dims = shares_of(rank, args[1].shape, args[0].shape)
        return _maximum_backward(ctx, node, args[0], args[2], dims)

    return rule
