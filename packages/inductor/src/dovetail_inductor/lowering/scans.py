"""Lowering rules of running sums and products.

A scan is made of reductions: each position reduces a piece of its row up to itself, and adds the
running total of the pieces before, which is a scan of a shorter row. With pieces of `PIECE`
elements a row of n takes about `PIECE` * n steps, all of them independent of one another, where one
after the other they would be n; vectors and threads make up for the difference.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx

from dovetail_inductor.loop_ir.expr import Expr
from dovetail_inductor.loop_ir.index import Index, Var, variable
from dovetail_inductor.loop_ir.ops import arithmetic_dtype
from dovetail_inductor.loop_ir.sizes import is_symbolic
from dovetail_inductor.lowering.indexing import in_range
from dovetail_inductor.lowering.pointwise import Rule
from dovetail_inductor.lowering.promotion import cast
from dovetail_inductor.lowering.values import (
    Context,
    Indices,
    Value,
    contiguous_strides,
    tensor_of,
    value_like,
)

PIECE = 16

_COMBINE = {"sum": ("add", 0), "prod": ("mul", 1)}

Element = Callable[[Indices, Expr | None], Expr]


def _reduced(
    ctx: Context,
    like: Value,
    name: str,
    shape: tuple[int, ...],
    reduction: str,
    body: Callable[[Indices, Index], Expr],
) -> Value:
    """A row-major value of `shape` in memory: `body(indices, r)` reduced over `PIECE` values r."""
    dtype = arithmetic_dtype(like.dtype)
    value = Value(shape, contiguous_strides(shape), dtype, like.device, f"{like.origin}_{name}")
    variables, indices = ctx.loop_indices(shape)
    r = Var(len(variables), PIECE)
    expr = body(indices, variable(r))
    ctx.write(value, ctx.new_buffer(value), variables, (r,), reduction, expr)
    return value


def _scan(
    ctx: Context,
    like: Value,
    shape: tuple[int, ...],
    dim: int,
    reduction: str,
    element: Element,
    level: int = 0,
) -> Element:
    """The running reduction of `element`, whose indices are of `shape`, along `dim`."""
    b = ctx.builder
    dtype = arithmetic_dtype(like.dtype)
    combine, start = _COMBINE[reduction]
    identity = b.constant(start, dtype)
    n = shape[dim]
    pieces = -(-n // PIECE)

    def guarded(inside: Expr, at: Indices) -> Expr:
        return b.apply("where", [inside, element(at, inside), identity])

    def up_to(indices: Indices, r: Index) -> Expr:
        *rest, piece, last = indices  # the dimensions but `dim`, then piece and place in it
        at = (*rest[:dim], piece * PIECE + r, *rest[dim:])
        reached = b.apply("le", [b.index_value(r), b.index_value(last)])
        inside = b.apply("bitwise_and", [reached, in_range(ctx, at[dim], 0, n)])
        return guarded(inside, at)

    others = (*shape[:dim], *shape[dim + 1 :])
    own = _reduced(ctx, like, f"own{level}", (*others, pieces, PIECE), reduction, up_to)
    before: Element | None = None
    if pieces > 1:

        def whole(indices: Indices, r: Index) -> Expr:
            at = (*indices[:dim], indices[dim] * PIECE + r, *indices[dim + 1 :])
            return guarded(in_range(ctx, at[dim], 0, n), at)

        shorter = (*shape[:dim], pieces, *shape[dim + 1 :])
        totals = _reduced(ctx, like, f"total{level}", shorter, reduction, whole)
        before = _scan(
            ctx, like, shorter, dim, reduction, lambda i, m: ctx.load(totals, i, m), level + 1
        )

    def result(indices: Indices, mask: Expr | None) -> Expr:
        at = indices[dim]
        piece = at.floordiv(PIECE)
        rest = (*indices[:dim], *indices[dim + 1 :])
        expr = ctx.load(own, (*rest, piece, at.mod(PIECE)), mask)
        if before is None:
            return expr
        later = in_range(ctx, at, PIECE, n)
        both = later if mask is None else b.apply("bitwise_and", [later, mask])
        prior = before((*indices[:dim], piece - 1, *indices[dim + 1 :]), both)
        return b.apply(combine, [expr, b.apply("where", [later, prior, identity])])

    return result


def _rule(reduction: str) -> Rule:
    def rule(ctx: Context, node: fx.Node, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        source: Value = args[0]
        value = value_like(tensor_of(node), node.name)
        if not value.dtype.is_floating_point and value.dtype is not torch.int64:
            return NotImplemented  # wraps in its own type, which lanes do not have

        def element(indices: Indices, mask: Expr | None) -> Expr:
            expr = ctx.load(source, indices, mask)
            if value.dtype != source.dtype:
                expr = cast(ctx, expr, value.dtype)
            return ctx.builder.apply("cast", [expr], arithmetic_dtype(value.dtype))

        if source.shape and is_symbolic(source.shape[args[1] % len(source.shape)]):
            return NotImplemented  # in how many stages it is best done depends on the size
        if not source.shape or 0 in source.shape:
            value.loader = element
            return value
        if source.stored is None:
            ctx.realize(source)
        value.loader = _scan(
            ctx, value, source.shape, args[1] % len(source.shape), reduction, element
        )
        return value

    return rule


RULES: dict[str, Rule] = {
    "cumsum.default": _rule("sum"),
    "cumprod.default": _rule("prod"),
}
