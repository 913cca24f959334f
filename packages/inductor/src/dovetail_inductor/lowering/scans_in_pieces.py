"""Scans of few long rows on a GPU: each piece of a row is scanned by itself, and joined by the
running total of the pieces before, which is a scan of a shorter row.

The pieces' totals are reductions of their own, so that elements are read twice and written once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod

import torch

from dovetail_inductor.loop_ir.expr import Expr, mask_loads
from dovetail_inductor.loop_ir.index import Index, Var, variable
from dovetail_inductor.loop_ir.loops import Scan, ScanKind
from dovetail_inductor.loop_ir.ops import arithmetic_dtype
from dovetail_inductor.loop_ir.reduction import MAX, REDUCTIONS, SUM, Reduction
from dovetail_inductor.loop_ir.sizes import hint_of, is_symbolic
from dovetail_inductor.lowering.indexing import both, in_range
from dovetail_inductor.lowering.running_totals import scan_along, totals_dtype
from dovetail_inductor.lowering.values import Context, Indices, Value, contiguous_strides

SHORTEST, LONGEST = 256, 4096  # elements of a piece
ENOUGH = 66  # tasks of a GPU: half of its multiprocessors
AIM = 264
SIDE_BY_SIDE = 64  # rows that are neighbours in memory, of one task

Element = Callable[[Indices], Expr]


def piece_length(value: Value, dim: int) -> int | None:
    """How long pieces of rows are to be; None where whole rows are tasks enough, or their length is
    known at run time only."""
    n = value.shape[dim]
    rows = prod(hint_of(m) for m in (*value.shape[:dim], *value.shape[dim + 1 :]))
    tasks = rows if value.stride[dim] == 1 else -(-rows // SIDE_BY_SIDE)
    if is_symbolic(n) or tasks >= ENOUGH:
        return None
    length = LONGEST
    while length > SHORTEST and tasks * n < length * AIM:
        length //= 2
    if n < 4 * length:
        return None
    # Of pieces of one length nothing hangs over the end.
    near = (m for m in range(length, 2 * length) if n % m == 0)
    return next(near, length)


def scan_in_pieces(
    ctx: Context, value: Value, dim: int, kind: ScanKind, element: Element, length: int
) -> None:
    """Compute `value` from a scan of its pieces of `length` elements along `dim`."""
    b, n = ctx.builder, value.shape[dim]
    dtype = totals_dtype(kind, value.dtype, ctx.target.scans.wide_totals)
    pieces = -(-n // length)
    shape = (*value.shape[:dim], pieces, length, *value.shape[dim + 1 :])
    variables, at = ctx.loop_indices(shape)
    scan = Scan(kind, (variables[dim + 1],), dtype)
    neutral = b.constant(scan.neutral, dtype)

    def guarded(piece: Index, place: Index, rest: Sequence[Index]) -> Expr:
        """An element of a piece, of which the last may be shorter."""
        at = piece * length + place
        expr = b.apply("cast", [element((*rest[:dim], at, *rest[dim:]))], dtype)
        if n % length == 0:
            return expr
        inside = in_range(ctx, at, 0, n)
        return b.apply("where", [inside, mask_loads(b, expr, inside), neutral])

    own = _value(value, "pieces", shape, dtype)
    body = guarded(at[dim], at[dim + 1], (*at[:dim], *at[dim + 2 :]))
    ctx.write(own, ctx.new_buffer(own), variables, (), None, body, scan)

    shorter = (*value.shape[:dim], pieces, *value.shape[dim + 1 :])
    whole = _totals(
        ctx, value, shorter, kind, dtype, length,
        lambda at, place: guarded(at[dim], place, (*at[:dim], *at[dim + 1 :])),
    )  # fmt: skip
    before = _value(value, "before", shorter, dtype)
    scan_along(ctx, before, dim, kind, lambda at: ctx.load(whole, at))

    def result(indices: Indices, mask: Expr | None) -> Expr:
        at = indices[dim]
        piece = at.floordiv(length)
        within = (*indices[:dim], piece, at.mod(length), *indices[dim + 1 :])
        later = in_range(ctx, at, length, n)
        prior = ctx.load(
            before, (*indices[:dim], piece - 1, *indices[dim + 1 :]), both(ctx, later, mask)
        )
        joined = _joined(ctx, kind, ctx.load(own, within, mask), prior)
        chosen = b.apply("where", [later, joined, ctx.load(own, within, mask)])
        return b.apply("cast", [chosen], arithmetic_dtype(value.dtype))

    value.loader = result
    ctx.realize(value)


def _value(like: Value, name: str, shape: tuple[int, ...], dtype: torch.dtype) -> Value:
    origin = f"{like.origin}_{name}"
    return Value(shape, contiguous_strides(shape), dtype, like.device, origin)


def _joined(ctx: Context, kind: ScanKind, x: Expr, y: Expr) -> Expr:
    """Two totals as one."""
    b = ctx.builder
    if kind != "logsumexp":
        return b.apply(REDUCTIONS[kind].combine, [x, y])
    top = b.apply("maximum", [x, y])
    gap = b.apply("sub", [b.apply("minimum", [x, y]), top])
    sum_ = b.apply("add", [top, b.apply("log1p", [b.apply("exp", [gap])])])
    return b.apply("where", [b.apply("isinf", [top]), top, sum_])


def _totals(
    ctx: Context,
    like: Value,
    shape: tuple[int, ...],
    kind: ScanKind,
    dtype: torch.dtype,
    length: int,
    element: Callable[[Indices, Index], Expr],
) -> Value:
    """The total of `length` elements each."""
    b = ctx.builder

    def reduced(name: str, how: Reduction, body: Callable[[Indices, Index], Expr]) -> Value:
        value = _value(like, name, shape, dtype)
        variables, indices = ctx.loop_indices(shape)
        r = Var(len(variables), length)
        expr = body(indices, variable(r))
        ctx.write(value, ctx.new_buffer(value), variables, (r,), how, expr)
        return value

    if kind != "logsumexp":
        return reduced("totals", REDUCTIONS[kind], element)
    # log(sum(exp(x))), from the largest of them
    largest = reduced("largest", MAX, element)

    def finite(indices: Indices) -> tuple[Expr, Expr]:
        top = ctx.load(largest, indices)
        infinite = b.apply("isinf", [top])
        return b.apply("where", [infinite, b.constant(0.0, dtype), top]), infinite

    def share(indices: Indices, r: Index) -> Expr:
        return b.apply("exp", [b.apply("sub", [element(indices, r), finite(indices)[0]])])

    shares = reduced("shares", SUM, share)

    def logarithm(indices: Indices, mask: Expr | None) -> Expr:
        top, infinite = finite(indices)
        log = b.apply("log", [ctx.load(shares, indices)])
        return b.apply("where", [infinite, ctx.load(largest, indices), b.apply("add", [top, log])])

    total = _value(like, "totals", shape, dtype)
    total.loader = logarithm
    return total
