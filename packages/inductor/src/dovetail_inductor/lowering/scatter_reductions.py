"""Lowering rules of writes that combine what meets at a place: scatter_reduce, index_reduce, the
gradient of an embedding.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import fx

from dovetail_inductor.loop_ir.expr import Expr
from dovetail_inductor.loop_ir.index import Index
from dovetail_inductor.loop_ir.ops import arithmetic_dtype
from dovetail_inductor.loop_ir.reduction import MAX, MIN, PROD, SUM, Reduction
from dovetail_inductor.lowering.indexing import checked_index
from dovetail_inductor.lowering.pointwise import Rule
from dovetail_inductor.lowering.promotion import cast
from dovetail_inductor.lowering.scatter_target import (
    LARGER_IF_SORTED,
    Point,
    Target,
    accumulated_dtype,
    is_ours,
    make_cheap,
    points_along,
)
from dovetail_inductor.lowering.values import Context, Indices, Value, tensor_of, value_like

_REDUCTIONS = {"sum": SUM, "mean": SUM, "prod": PROD, "amax": MAX, "amin": MIN}


class _Combined:
    """How a GPU combines: its atomics compare floats by their bits, which puts NaN above all
    numbers if its sign is +, and knows one zero only. So the least is sought as the greatest of
    what has the other sign."""

    def __init__(self, ctx: Context, name: str, dtype: torch.dtype) -> None:
        self.ctx = ctx
        self.reduction: Reduction = _REDUCTIONS[name]
        self.dtype = accumulated_dtype(dtype, self.reduction)
        by_bits = (
            ctx.target.scatters.compares_bits
            and dtype.is_floating_point
            and self.reduction.is_extreme
        )
        self.negated = by_bits and not self.reduction.finds_largest
        self.by_bits = by_bits
        if self.negated:
            self.reduction = MAX

    def held(self, expr: Expr) -> Expr:
        """An element as it is combined."""
        b = self.ctx.builder
        kind = arithmetic_dtype(self.dtype)
        expr = b.apply("cast", [expr], kind)
        if self.negated:
            expr = b.apply("neg", [expr])
        if self.by_bits:
            expr = b.apply("add", [expr, b.constant(0, kind)])
            nan = b.constant(float("nan"), kind)
            expr = b.apply("where", [b.apply("isnan", [expr]), nan, expr])
        return expr

    def given(self, expr: Expr) -> Expr:
        """What was combined, as an element."""
        return self.ctx.builder.apply("neg", [expr]) if self.negated else expr

    def nothing(self) -> Expr:
        """What changes nothing when it is combined."""
        kind = arithmetic_dtype(self.dtype)
        return self.ctx.builder.constant(self.reduction.identity(kind), kind)


def _reduce(
    ctx: Context,
    node: fx.Node,
    base: Value,
    points: tuple[tuple[int, ...], Point],
    name: str,
    include_self: bool,
) -> Any:
    value = value_like(tensor_of(node), node.name)
    combined = _Combined(ctx, name, value.dtype)
    if value.dtype is torch.bool or not is_ours(ctx, value, combined.reduction, points[0]):
        return NotImplemented
    if combined.reduction not in ctx.target.scatters.combines:
        return NotImplemented
    b = ctx.builder
    shape, point = points
    target = Target(ctx, value, combined.reduction)
    if combined.by_bits:
        target.begin(lambda indices: combined.held(ctx.load(base, indices)))
    else:
        target.begin_as(base, node)
    if not include_self:
        target.put(shape, None, lambda indices: (point(indices)[0], combined.nothing()))

    def held(indices: Indices) -> tuple[Sequence[Index], Expr]:
        at, brought = point(indices)
        return at, combined.held(brought)

    target.put(shape, combined.reduction, held)
    total = target.held
    if name != "mean" and not combined.negated:
        return target.result()
    if name != "mean":

        def reduced(indices: Indices, mask: Expr | None) -> Expr:
            return cast(ctx, combined.given(ctx.load(total, indices, mask)), value.dtype)

        return value.made_by(reduced)
    number_of = Value(value.shape, value.stride, torch.int32, value.device, value.origin)
    counted = Target(ctx, number_of, SUM)
    one = b.constant(1, torch.int32)
    counted.begin(lambda indices: b.constant(int(include_self), torch.int32))
    counted.put(shape, SUM, lambda indices: (point(indices)[0], one))
    count = counted.result()

    def mean(indices: Indices, mask: Expr | None) -> Expr:
        sum_, divisor = ctx.load(total, indices, mask), ctx.load(count, indices, mask)
        if value.dtype.is_floating_point:
            most = b.apply("maximum", [divisor, one])
            quotient = b.apply("div", [sum_, b.apply("cast", [most], sum_.dtype)])
            return cast(ctx, quotient, value.dtype)
        # Both wrap in the type of the result, as eager's do.
        sum_, divisor = cast(ctx, sum_, value.dtype), cast(ctx, divisor, value.dtype)
        nothing, unit = (b.constant(n, value.dtype) for n in (0, 1))
        divisor = b.apply("where", [b.apply("eq", [divisor, nothing]), unit, divisor])
        return b.apply("floordiv", [sum_, divisor])

    return value.made_by(mean)


def _scatter_reduce(
    ctx: Context, node: fx.Node, args: Sequence[Any], kwargs: dict[str, Any]
) -> Any:
    base, dim, index, source, name = args[:5]
    include_self = args[5] if len(args) > 5 else kwargs.get("include_self", True)
    points = points_along(ctx, node, base, dim, index, source, base.dtype)
    return _reduce(ctx, node, base, points, name, include_self)


def _index_reduce(ctx: Context, node: fx.Node, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    base, dim, index, source, name = args[:5]
    include_self = args[5] if len(args) > 5 else kwargs.get("include_self", True)
    if not base.shape or not index.shape:
        points = points_along(ctx, node, base, dim, index, source, base.dtype)
        return _reduce(ctx, node, base, points, name, include_self)
    dim %= len(base.shape)
    make_cheap(ctx, base, source, index)

    def point(indices: Indices) -> tuple[Sequence[Index], Expr]:
        position = ctx.load(index, (indices[dim],))
        at = checked_index(ctx, node, position, base.shape[dim], None, dim, "plain")
        return (*indices[:dim], at, *indices[dim + 1 :]), ctx.load(source, indices)

    return _reduce(ctx, node, base, (source.shape, point), name, include_self)


def _embedding_backward(
    ctx: Context, node: fx.Node, args: Sequence[Any], kwargs: dict[str, Any]
) -> Any:
    gradient, index, rows, padding, by_frequency = args
    value = value_like(tensor_of(node), node.name)
    if by_frequency or not is_ours(ctx, value, SUM, gradient.shape, LARGER_IF_SORTED):
        return NotImplemented
    b = ctx.builder
    make_cheap(ctx, None, gradient, index)

    def point(indices: Indices) -> tuple[Sequence[Index], Expr]:
        position = ctx.load(index, indices[:-1])
        at = checked_index(ctx, node, position, rows, None, 0, "plain")
        brought = ctx.load(gradient, indices)
        if padding is not None and padding >= 0:
            skipped = b.apply("eq", [position, b.constant(padding, position.dtype)])
            nothing = b.constant(0, brought.dtype)
            brought = b.apply("where", [skipped, nothing, brought])
        return (at, indices[-1]), brought

    target = Target(ctx, value, SUM)
    zero = b.constant(0, arithmetic_dtype(target.dtype))
    target.begin(lambda indices: zero)
    target.put(gradient.shape, SUM, point)
    return target.result()


RULES: dict[str, Rule] = {
    "scatter_reduce.two": _scatter_reduce,
    "index_reduce.default": _index_reduce,
    "embedding_dense_backward.default": _embedding_backward,
}
