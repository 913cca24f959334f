"""Average pooling and its gradient; and `col2im`, columns of windows added up to images."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import torch
from torch import fx

from dovetail_inductor.loop_ir.expr import Expr
from dovetail_inductor.loop_ir.ops import arithmetic_dtype
from dovetail_inductor.loop_ir.sizes import hint_of, is_symbolic
from dovetail_inductor.lowering.indexing import both, in_range
from dovetail_inductor.lowering.pooling.windows import (
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
from dovetail_inductor.lowering.values import Context, Indices, Value, value_like

# On a CPU, of an average, for its gradient: along rows, and with channels beside one another.
_MOST_SPREAD = 9
_MOST_SPREAD_BESIDE = 121
# Of columns, the elements of a window, and all that are read.
_MOST_COLUMNS, _FEW_COLUMNS = 49, 1 << 14


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
    counts = [dim.hits for dim in dims]
    sizes = [dim.kernel for dim in dims if isinstance(dim, Steps)]
    most = _MOST_SPREAD if value.stride[-1] == 1 else _MOST_SPREAD_BESIDE
    if ctx.leaves_to_library and sizes and prod(sizes) > most:
        return NotImplemented
    b = ctx.builder

    def part(indices: Indices, place: Indices, mask: Expr | None) -> Expr:
        own = zip(dims, indices[-rank:], place, strict=True)
        window, valid = places(ctx, [dim.window(ctx, i, k) for dim, i, k in own])
        given = masked_part(ctx, gradient, (*indices[:-rank], *window), valid, mask)
        count = _divisor(ctx, dims, window, value, *counting)
        one = b.constant(1, count.dtype)  # (a window that does not exist may hold nothing)
        return b.apply("div", [given, b.apply("where", [valid, count, one])])

    return summed(ctx, value, counts, part)


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
    count = prod(dim.kernel for dim in dims)
    apart = any(dim.step != 1 for dim in dims) and hint_of(value.numel) * count > _FEW_COLUMNS
    if ctx.leaves_to_library and (count > _MOST_COLUMNS or apart):
        return NotImplemented
    b = ctx.builder

    def part(indices: Indices, place: Indices, mask: Expr | None) -> Expr:
        found = []
        for dim, i, k in zip(dims, indices[-2:], place, strict=True):
            start = i + dim.pad - k * dim.dilation
            window = start.floordiv(dim.step)
            valid = in_range(ctx, window, 0, dim.pooled)
            if dim.step != 1:
                phase = b.index_value(start.mod(dim.step))
                valid = both(ctx, b.apply("eq", [phase, b.constant(0, torch.int64)]), valid)
            found.append((window, valid))
        (y, x), valid = places(ctx, found)
        *batch, channel = indices[:-2]
        row = (channel * dims[0].kernel + place[0]) * dims[1].kernel + place[1]
        return masked_part(ctx, columns, (*batch, row, y * dims[1].pooled + x), valid, mask)

    in_memory_if_costly(ctx, columns, count)
    return summed(ctx, value, [dim.kernel for dim in dims], part)
