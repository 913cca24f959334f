"""Average pooling and its gradient; and `col2im`, columns of windows added up to images."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import torch
from torch import fx

from dovetail_inductor.loop_ir.expr import Expr
from dovetail_inductor.loop_ir.ops import arithmetic_dtype
from dovetail_inductor.loop_ir.sizes import is_symbolic
from dovetail_inductor.lowering.pooling.windows import (
    MOST_READS,
    Dim,
    Steps,
    filled,
    in_memory_if_costly,
    masked_part,
    places,
    shares_of,
    steps_of,
    summed,
)
from dovetail_inductor.lowering.values import (
    Context,
    Indices,
    Loader,
    Value,
    in_order_of,
    value_like,
)


def _divisor(
    ctx: Context, dims: Sequence[Dim], window: Indices, like: Value, with_padding: bool, given: Any
) -> Expr:
    """What the sum over a window is divided by."""
    b = ctx.builder
    count = b.constant(given or 1, torch.int64)
    for dim, i in () if given else zip(dims, window, strict=True):
        count = b.apply("mul", [dim.extent(ctx, i, with_padding), count])
    return b.apply("cast", [count], arithmetic_dtype(like.dtype))


def _average(
    ctx: Context, node: fx.Node, source: Value, dims: Sequence[Dim] | None, *counting: Any
) -> Any:
    value = value_like(node.meta["val"], node.name)
    if dims is None or not value.dtype.is_floating_point or value.numel == 0:
        return NotImplemented
    rank = len(dims)
    counts = [dim.reads for dim in dims]
    in_memory_if_costly(ctx, source, prod(counts))

    def part(indices: Indices, place: Indices, mask: Expr | None) -> Expr:
        own = zip(dims, indices[-rank:], place, strict=True)
        at, valid = places(ctx, [dim.element(ctx, i, k) for dim, i, k in own])
        return masked_part(ctx, source, (*indices[:-rank], *at), valid, mask)

    wide = Value(
        value.shape, value.stride, arithmetic_dtype(value.dtype), value.device, f"{node.name}_sum"
    )
    total = summed(ctx, wide, counts, part)

    def loader(indices: Indices, mask: Expr | None) -> Expr:
        count = _divisor(ctx, dims, indices[-rank:], value, *counting)
        return ctx.builder.apply("div", [ctx.load(total, indices, mask), count])

    return value.made_by(loader)


def _average_backward(
    ctx: Context, node: fx.Node, gradient: Value, dims: Sequence[Dim] | None, *counting: Any
) -> Any:
    value = value_like(node.meta["val"], node.name)
    if dims is None or not value.dtype.is_floating_point or gradient.numel == 0:
        return NotImplemented
    rank = len(dims)

    def share(indices: Indices, mask: Expr | None) -> Expr:
        count = _divisor(ctx, dims, indices[-rank:], value, *counting)
        return ctx.builder.apply("div", [ctx.load(gradient, indices, mask), count])

    shares = _between(ctx, gradient, gradient.shape, share)
    few = prod(dim.hits for dim in dims) <= MOST_READS and 2 * gradient.numel > value.numel
    if few or ctx.target.costs.memory_bound:
        return _spread(ctx, value, shares, dict(enumerate(dims, -rank)))
    for d, dim in reversed(list(enumerate(dims[1:], 1 - rank))):  # where few elements are made
        ctx.realize(shares)
        shape = (*shares.shape[:d], dim.size, *shares.shape[d:][1:])
        shares = _spread(ctx, _between(ctx, gradient, shape), shares, {d: dim})
    ctx.realize(shares)
    return _spread(ctx, value, shares, {-rank: dims[0]})


def _between(
    ctx: Context, like: Value, shape: tuple[int, ...], loader: Loader | None = None
) -> Value:
    """A value that only loops read, in the order of `like`."""
    dtype, stride = arithmetic_dtype(like.dtype), in_order_of(like.stride, shape)
    return Value(shape, stride, dtype, like.device, f"{like.origin}_shares", loader)


def _spread(ctx: Context, value: Value, shares: Value, dims: dict[int, Dim]) -> Value:
    """The sum, at each element, of the shares of the windows that hold it, along these
    dimensions."""

    def part(indices: Indices, place: Indices, mask: Expr | None) -> Expr:
        own = zip(dims.items(), place, strict=True)
        window, valid = places(ctx, [dim.window(ctx, indices[d], k) for (d, dim), k in own])
        at = list(indices)
        for d, i in zip(dims, window, strict=True):
            at[d] = i
        return masked_part(ctx, shares, tuple(at), valid, mask)

    return summed(ctx, value, [dim.hits for dim in dims.values()], part)


def avg_pool(
    rank: int, ctx: Context, node: fx.Node, args: Sequence[Any], kwargs: dict[str, Any]
) -> Any:
    """The rule of average pooling of images of this rank."""
    if kwargs:
        return NotImplemented
    kernel, stride, pad, _, *counting = filled(args[1:], ((), (), 0, False, True, None))
    pooled = value_like(node.meta["val"], node.name).shape
    dims = steps_of(rank, args[0].shape, pooled, kernel, stride, pad)
    return _average(ctx, node, args[0], dims, *counting)


def avg_pool_backward(
    rank: int, ctx: Context, node: fx.Node, args: Sequence[Any], kwargs: dict[str, Any]
) -> Any:
    """The rule of its gradient."""
    gradient, source, kernel, stride, pad, _, *counting = args
    dims = steps_of(rank, source.shape, gradient.shape, kernel, stride, pad)
    return _average_backward(ctx, node, gradient, dims, *counting)


def adaptive_avg_pool(
    rank: int, ctx: Context, node: fx.Node, args: Sequence[Any], kwargs: dict[str, Any]
) -> Any:
    """The rule of average pooling to a given size."""
    pooled = value_like(node.meta["val"], node.name).shape
    return _average(ctx, node, args[0], shares_of(rank, args[0].shape, pooled), False, None)


def adaptive_avg_pool_backward(
    rank: int, ctx: Context, node: fx.Node, args: Sequence[Any], kwargs: dict[str, Any]
) -> Any:
    """The rule of its gradient."""
    dims = shares_of(rank, args[1].shape, args[0].shape)
    return _average_backward(ctx, node, args[0], dims, False, None)


def col2im(ctx: Context, node: fx.Node, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """The sum of an element's copies: for each element of the kernel, of the window that had it
    there, if there is one."""
    columns, size, kernel, dilation, pad, step = args
    value = value_like(node.meta["val"], node.name)
    parts = [x if len(x) == 2 else list(x) * 2 for x in (size, kernel, step, pad, dilation)]
    if value.numel == 0 or any(map(is_symbolic, (*value.shape[-2:], *columns.shape))):
        return NotImplemented
    dims = []
    for n, k, s, p, d in zip(*parts, strict=True):
        dims.append(Steps(n, (n + 2 * p - d * (k - 1) - 1) // s + 1, k, s, p, d))

    def part(indices: Indices, place: Indices, mask: Expr | None) -> Expr:
        own = list(zip(dims, indices[-2:], place, strict=True))
        (y, x), valid = places(ctx, [dim.window(ctx, i, k) for dim, i, k in own])
        *batch, row = indices[:-2]
        for (dim, i, k), window in zip(own, (y, x), strict=True):  # the element of the kernel
            found = k if dim.dilation != 1 else i + dim.pad - window * dim.step
            row = row * dim.kernel + found
        return masked_part(ctx, columns, (*batch, row, y * dims[1].pooled + x), valid, mask)

    counts = [dim.hits for dim in dims]
    in_memory_if_costly(ctx, columns, prod(counts))
    return summed(ctx, value, counts, part)
