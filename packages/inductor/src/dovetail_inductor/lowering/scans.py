"""Lowering rules of scans: running sums, products, extremes and logarithms of sums of exponentials.

Loops go along each row once, with the total so far in registers (`scan_along`). Where a GPU would
have too few rows to work on side by side, long rows are cut into pieces (`scan_in_pieces`): each is
scanned by itself and joined by the running total of the pieces before, a scan of a shorter row. The
pieces' totals are reductions of their own, so that elements are read twice and written once.

On a CPU totals are kept as eager's kernels keep them: those of float32 in float64, those of half
types in float32, those of integers in int64 (which wraps to the narrower type's own result). On a
GPU those of float32 are kept in float32, as eager's are there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from math import prod
from typing import Any

import torch
from torch import fx

from dovetail_inductor.loop_ir.expr import Expr, mask_loads
from dovetail_inductor.loop_ir.index import Index, Var, variable
from dovetail_inductor.loop_ir.loops import Scan
from dovetail_inductor.loop_ir.ops import arithmetic_dtype
from dovetail_inductor.loop_ir.reduction import LOGSUMEXP, MAX, MIN, PROD, SUM, Reduction
from dovetail_inductor.loop_ir.sizes import hint_of, is_symbolic, known_le
from dovetail_inductor.lowering.indexing import both, in_range
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

# Along fewer neighbours in memory a CPU's library takes logarithms as fast, if there are many rows.
SHORT_ROW, FEW_ELEMENTS = 8, 256
SHORTEST, LONGEST = 256, 4096  # elements of a piece
ENOUGH = 66  # tasks of a GPU: half of its multiprocessors
AIM = 264
SIDE_BY_SIDE = 64  # rows that are neighbours in memory, of one task

Element = Callable[[Indices], Expr]


def _rule(reduction: Reduction) -> Rule:
    def rule(ctx: Context, node: fx.Node, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        value, source = value_like(tensor_of(node), node.name), args[0]
        if value.dtype is torch.bool:
            return NotImplemented  # which eager refuses
        if _is_trivial(source, args[1]):
            value.loader = lambda at, mask: converted(ctx, source, value.dtype, at, mask)
            return value
        dim = args[1] % len(source.shape)
        if _library_is_faster(ctx, value, dim, reduction):
            return NotImplemented
        _scan(ctx, value, dim, reduction, lambda at: converted(ctx, source, value.dtype, at))
        return value

    return rule


def _library_is_faster(ctx: Context, value: Value, dim: int, reduction: Reduction) -> bool:
    longest = ctx.target.scans.longest_single_row
    if longest is not None:
        single = value.numel == value.shape[dim] and not ctx.everywhere
        return single and not known_le(value.numel, longest - 1)
    return ctx.leaves_to_library and reduction.adds_logarithms and _is_short(value, dim)


def _is_short(value: Value, dim: int) -> bool:
    if value.stride[dim] != 1 or hint_of(value.numel) <= FEW_ELEMENTS:
        return False
    return hint_of(value.shape[dim]) < SHORT_ROW


def _is_trivial(source: Value, dim: int) -> bool:
    """True if there is one element at most to add up."""
    return not source.shape or source.shape[dim] == 1 or 0 in source.shape


def _extremes(reduction: Reduction) -> Rule:
    """cummax, cummin: the running extreme, and where it was met last"""

    def rule(ctx: Context, node: fx.Node, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        source, b = args[0], ctx.builder
        value, index = (value_like(v, node.name) for v in node.meta["val"])
        if _is_trivial(source, args[1]):
            value.loader = lambda at, mask: ctx.load(source, at, mask)
            index.loader = lambda at, mask: b.constant(0, torch.int64)
        else:
            dim = args[1] % len(source.shape)
            running_extreme(ctx, value, index, source, dim, reduction)
        return value, index

    return rule


def _scan(ctx: Context, value: Value, dim: int, reduction: Reduction, element: Element) -> None:
    """`value` made the running total along a dimension of what `element` gives elements of."""
    length = piece_length(value, dim) if ctx.target.scans.in_pieces else None
    if length is None:
        scan_along(ctx, value, dim, reduction, element)
    else:
        scan_in_pieces(ctx, value, dim, reduction, element, length)


def totals_dtype(reduction: Reduction, stored: torch.dtype, wide: bool) -> torch.dtype:
    """The type in which running totals of elements of type `stored` are kept; with `wide`, more
    digits than those of elements of float32."""
    if reduction.is_extreme:
        return arithmetic_dtype(stored)
    if wide and (reduction.adds_logarithms or stored is torch.float32):
        return torch.float64
    return arithmetic_dtype(stored) if stored.is_floating_point else torch.int64


def scan_along(
    ctx: Context, value: Value, dim: int, reduction: Reduction, element: Element
) -> None:
    """Compute `value`, of the same shape as what `element` gives elements of, by a scan along a
    dimension of two elements at least."""
    variables, indices = ctx.loop_indices(value.shape)
    scan = Scan(
        reduction,
        (variables[dim],),
        totals_dtype(reduction, value.dtype, ctx.target.scans.wide_totals),
    )
    ctx.write(value, ctx.new_buffer(value), variables, (), None, element(indices), scan)


def converted(
    ctx: Context, source: Value, dtype: torch.dtype, indices: Indices, mask: Expr | None = None
) -> Expr:
    """An element as one of the type `dtype`, in which it is counted."""
    expr = ctx.load(source, indices, mask)
    return cast(ctx, expr, dtype) if dtype != source.dtype else expr


def running_extreme(
    ctx: Context, value: Value, index: Value, source: Value, dim: int, reduction: Reduction
) -> None:
    """`value` made the running extreme of `source`, `index` the place where it was met last."""
    b = ctx.builder
    held = value
    if value.dtype is torch.bool:
        held = replace(value, dtype=torch.uint8, _memo={})
        value.loader = lambda at, mask: cast(ctx, ctx.load(held, at, mask), torch.bool)
    _scan(ctx, held, dim, reduction, lambda at: converted(ctx, source, held.dtype, at))

    def place(indices: Indices) -> Expr:
        own = converted(ctx, source, held.dtype, indices)
        met = b.apply("eq", [own, ctx.load(held, indices)])
        if value.dtype.is_floating_point:
            met = b.apply("bitwise_or", [met, b.apply("isnan", [own])])
        return b.apply("where", [met, b.index_value(indices[dim]), b.constant(0, torch.int64)])

    _scan(ctx, index, dim, MAX, place)


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
    ctx: Context, value: Value, dim: int, reduction: Reduction, element: Element, length: int
) -> None:
    """Compute `value` from a scan of its pieces of `length` elements along `dim`."""
    b, n = ctx.builder, value.shape[dim]
    dtype = totals_dtype(reduction, value.dtype, ctx.target.scans.wide_totals)
    pieces = -(-n // length)
    shape = (*value.shape[:dim], pieces, length, *value.shape[dim + 1 :])
    variables, at = ctx.loop_indices(shape)
    scan = Scan(reduction, (variables[dim + 1],), dtype)
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
        ctx, value, shorter, reduction, dtype, length,
        lambda at, place: guarded(at[dim], place, (*at[:dim], *at[dim + 1 :])),
    )  # fmt: skip
    before = _value(value, "before", shorter, dtype)
    scan_along(ctx, before, dim, reduction, lambda at: ctx.load(whole, at))

    def result(indices: Indices, mask: Expr | None) -> Expr:
        at = indices[dim]
        piece = at.floordiv(length)
        within = (*indices[:dim], piece, at.mod(length), *indices[dim + 1 :])
        later = in_range(ctx, at, length, n)
        prior = ctx.load(
            before, (*indices[:dim], piece - 1, *indices[dim + 1 :]), both(ctx, later, mask)
        )
        joined = _joined(ctx, reduction, ctx.load(own, within, mask), prior)
        chosen = b.apply("where", [later, joined, ctx.load(own, within, mask)])
        return b.apply("cast", [chosen], arithmetic_dtype(value.dtype))

    value.loader = result
    ctx.realize(value)


def _value(like: Value, name: str, shape: tuple[int, ...], dtype: torch.dtype) -> Value:
    origin = f"{like.origin}_{name}"
    return Value(shape, contiguous_strides(shape), dtype, like.device, origin)


def _joined(ctx: Context, reduction: Reduction, x: Expr, y: Expr) -> Expr:
    """Two totals as one."""
    b = ctx.builder
    if not reduction.adds_logarithms:
        return b.apply(reduction.combine, [x, y])
    top = b.apply("maximum", [x, y])
    gap = b.apply("sub", [b.apply("minimum", [x, y]), top])
    sum_ = b.apply("add", [top, b.apply("log1p", [b.apply("exp", [gap])])])
    return b.apply("where", [b.apply("isinf", [top]), top, sum_])


def _totals(
    ctx: Context,
    like: Value,
    shape: tuple[int, ...],
    reduction: Reduction,
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

    if not reduction.adds_logarithms:
        return reduced("totals", reduction, element)
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
    return total.made_by(logarithm)


RULES: dict[str, Rule] = {
    "cumsum.default": _rule(SUM),
    "cumprod.default": _rule(PROD),
    "logcumsumexp.default": _rule(LOGSUMEXP),
    "cummax.default": _extremes(MAX),
    "cummin.default": _extremes(MIN),
}
