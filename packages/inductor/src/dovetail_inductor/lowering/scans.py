"""Lowering rules of running sums, products, extremes and logarithms of sums of exponentials.

On a GPU a scan is made of reductions: each position reduces a piece of its row up to itself, and
adds the running total of the pieces before, which is a scan of a shorter row. With pieces of
`PIECE` elements a row of n takes about `PIECE` * n steps, all of them independent of one another,
where one after the other they would be n; a GPU's threads make up for the difference. A CPU's do
not: there loops go along each row once (`sequential_scans`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import fx

from dovetail_inductor.loop_ir.expr import Expr
from dovetail_inductor.loop_ir.index import Index, Var, variable
from dovetail_inductor.loop_ir.loops import ScanKind
from dovetail_inductor.loop_ir.ops import arithmetic_dtype
from dovetail_inductor.loop_ir.sizes import hint_of, is_symbolic, known_le
from dovetail_inductor.lowering.indexing import in_range
from dovetail_inductor.lowering.pointwise import Rule
from dovetail_inductor.lowering.sequential_scans import (
    converted,
    running_extreme,
    running_total,
)
from dovetail_inductor.lowering.values import (
    Context,
    Indices,
    Value,
    contiguous_strides,
    tensor_of,
    value_like,
)

PIECE = 16
# Along fewer neighbours in memory a CPU's library takes logarithms as fast, if there are many rows.
SHORT_ROW, FEW_ELEMENTS = 8, 256
LONG_ROW = 1 << 16  # from so many elements on, a GPU's library adds up a single row faster

Element = Callable[[Indices, Expr | None], Expr]
Body = Callable[[Indices, Index], Expr]


def _reduced(
    ctx: Context,
    like: Value,
    name: str,
    shape: tuple[int, ...],
    reduction: str,
    body: Body,
) -> Value:
    """A row-major value of `shape` in memory: `body(indices, r)` reduced over `PIECE` values r."""
    dtype = arithmetic_dtype(like.dtype)
    value = Value(shape, contiguous_strides(shape), dtype, like.device, f"{like.origin}_{name}")
    variables, indices = ctx.loop_indices(shape)
    r = Var(len(variables), PIECE)
    expr = body(indices, variable(r))
    ctx.write(value, ctx.new_buffer(value), variables, (r,), reduction, expr)
    return value


@dataclass(frozen=True)
class _Kind:
    """One kind of scan: its name, its neutral element (`start`), how two totals combine, and how
    pieces are reduced."""

    name: ScanKind
    start: int | float
    combine: Callable[[Context, Expr, Expr], Expr]
    reduction: str = ""

    def reduced(
        self, ctx: Context, like: Value, name: str, shape: tuple[int, ...], body: Body
    ) -> Element:
        """The total of `PIECE` elements each."""
        if self.reduction:
            total = _reduced(ctx, like, name, shape, self.reduction, body)
            return lambda indices, mask: ctx.load(total, indices, mask)
        # log(sum(exp(x))), from the largest of them
        b, dtype = ctx.builder, arithmetic_dtype(like.dtype)
        largest = _reduced(ctx, like, f"{name}_largest", shape, "max", body)

        def finite(indices: Indices, mask: Expr | None) -> tuple[Expr, Expr]:
            top = ctx.load(largest, indices, mask)
            infinite = b.apply("isinf", [top])
            return b.apply("where", [infinite, b.constant(0.0, dtype), top]), infinite

        def share(indices: Indices, r: Index) -> Expr:
            top, _ = finite(indices, None)
            return b.apply("exp", [b.apply("sub", [body(indices, r), top])])

        shares = _reduced(ctx, like, f"{name}_shares", shape, "sum", share)

        def result(indices: Indices, mask: Expr | None) -> Expr:
            top, infinite = finite(indices, mask)
            log = b.apply("log", [ctx.load(shares, indices, mask)])
            own = ctx.load(largest, indices, mask)
            return b.apply("where", [infinite, own, b.apply("add", [top, log])])

        return result


def _by(op: str) -> Callable[[Context, Expr, Expr], Expr]:
    return lambda ctx, x, y: ctx.builder.apply(op, [x, y])


def _log_add(ctx: Context, x: Expr, y: Expr) -> Expr:
    """log(exp(x) + exp(y))"""
    b = ctx.builder
    top = b.apply("maximum", [x, y])
    gap = b.apply("sub", [b.apply("minimum", [x, y]), top])
    sum_ = b.apply("add", [top, b.apply("log1p", [b.apply("exp", [gap])])])
    return b.apply("where", [b.apply("isinf", [top]), top, sum_])


_SUM, _PRODUCT = _Kind("sum", 0, _by("add"), "sum"), _Kind("prod", 1, _by("mul"), "prod")
_LOGARITHM = _Kind("logsumexp", -torch.inf, _log_add)

_Extreme = Literal["max", "min"]


def _extreme(reduction: _Extreme, dtype: torch.dtype) -> _Kind:
    limits = torch.iinfo(dtype) if not dtype.is_floating_point else None
    start = torch.inf if limits is None else limits.max
    if reduction == "max":
        start = -torch.inf if limits is None else limits.min
    return _Kind(reduction, start, _by(f"{reduction}imum"), reduction)


def _scan(
    ctx: Context,
    like: Value,
    shape: tuple[int, ...],
    dim: int,
    kind: _Kind,
    element: Element,
    level: int = 0,
) -> Element:
    """The running total of `element`, whose indices are of `shape`, along `dim`."""
    b = ctx.builder
    identity = b.constant(kind.start, arithmetic_dtype(like.dtype))
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
    own = kind.reduced(ctx, like, f"own{level}", (*others, pieces, PIECE), up_to)
    before: Element | None = None
    if pieces > 1:

        def whole(indices: Indices, r: Index) -> Expr:
            at = (*indices[:dim], indices[dim] * PIECE + r, *indices[dim + 1 :])
            return guarded(in_range(ctx, at[dim], 0, n), at)

        shorter = (*shape[:dim], pieces, *shape[dim + 1 :])
        totals = kind.reduced(ctx, like, f"total{level}", shorter, whole)
        before = _scan(ctx, like, shorter, dim, kind, totals, level + 1)

    def result(indices: Indices, mask: Expr | None) -> Expr:
        at = indices[dim]
        piece = at.floordiv(PIECE)
        rest = (*indices[:dim], *indices[dim + 1 :])
        expr = own((*rest, piece, at.mod(PIECE)), mask)
        if before is None:
            return expr
        later = in_range(ctx, at, PIECE, n)
        both = later if mask is None else b.apply("bitwise_and", [later, mask])
        prior = before((*indices[:dim], piece - 1, *indices[dim + 1 :]), both)
        return kind.combine(ctx, expr, b.apply("where", [later, prior, identity]))

    return result


def _rule(kind: _Kind) -> Rule:
    def rule(ctx: Context, node: fx.Node, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        value = value_like(tensor_of(node), node.name)
        if not ctx.on_gpu:
            return _in_order(ctx, value, args[0], args[1], kind)
        if not value.dtype.is_floating_point and value.dtype is not torch.int64:
            return NotImplemented  # wraps in its own type, which lanes do not have
        return _scanned(ctx, value, args[0], args[1], kind)

    return rule


def _in_order(ctx: Context, value: Value, source: Value, dim: int, kind: _Kind) -> Any:
    """`value` made the running total of `source` on a CPU"""
    if value.dtype is torch.bool:
        return NotImplemented  # which eager refuses
    if ctx.library_on_cpu and kind is _LOGARITHM and _is_short(value, dim):
        return NotImplemented
    if _is_trivial(source, dim):
        value.loader = lambda at, mask: converted(ctx, source, value.dtype, at, mask)
    else:
        running_total(ctx, value, source, dim % len(source.shape), kind.name)
    return value


def _is_short(value: Value, dim: int) -> bool:
    if not value.shape or value.stride[dim] != 1 or hint_of(value.numel) <= FEW_ELEMENTS:
        return False
    return hint_of(value.shape[dim]) < SHORT_ROW


def _is_trivial(source: Value, dim: int) -> bool:
    """True if there is one element at most to add up."""
    return not source.shape or source.shape[dim] == 1 or 0 in source.shape


def _scanned(ctx: Context, value: Value, source: Value, dim: int, kind: _Kind) -> Any:
    """`value` made the running total of `source`"""

    def element(indices: Indices, mask: Expr | None) -> Expr:
        return converted(ctx, source, value.dtype, indices, mask)

    if source.shape and is_symbolic(source.shape[dim % len(source.shape)]):
        return NotImplemented  # in how many stages it is best done depends on the size
    if not source.shape or 0 in source.shape:
        value.loader = element
        return value
    single = source.numel == source.shape[dim % len(source.shape)] and not ctx.everywhere
    if single and not known_le(source.numel, LONG_ROW - 1) and kind in (_SUM, _PRODUCT, _LOGARITHM):
        return NotImplemented
    if source.stored is None:
        ctx.realize(source)
    value.loader = _scan(ctx, value, source.shape, dim % len(source.shape), kind, element)
    return value


def _extremes(reduction: _Extreme) -> Rule:
    """cummax, cummin: the running extreme, and where it was met last"""

    def rule(ctx: Context, node: fx.Node, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        source, b = args[0], ctx.builder
        value, index = (value_like(v, node.name) for v in node.meta["val"])
        if not ctx.on_gpu:
            if _is_trivial(source, args[1]):
                value.loader = lambda at, mask: ctx.load(source, at, mask)
                index.loader = lambda at, mask: b.constant(0, torch.int64)
            else:
                dim = args[1] % len(source.shape)
                running_extreme(ctx, value, index, source, dim, reduction)
            return value, index
        if value.dtype is torch.bool:
            return NotImplemented
        kind = _extreme(reduction, value.dtype)
        if _scanned(ctx, value, source, args[1], kind) is NotImplemented:
            return NotImplemented
        if not source.shape or 0 in source.shape:
            index.loader = lambda indices, mask: b.constant(0, torch.int64)
            return value, index
        dim = args[1] % len(source.shape)
        ctx.realize(value)

        def record(indices: Indices, mask: Expr | None) -> Expr:
            own = ctx.load(source, indices, mask)
            met = b.apply("eq", [own, ctx.load(value, indices, mask)])
            if value.dtype.is_floating_point:
                met = b.apply("bitwise_or", [met, b.apply("isnan", [own])])
            return b.apply("where", [met, b.index_value(indices[dim]), b.constant(0, torch.int64)])

        index.loader = _scan(ctx, index, source.shape, dim, _extreme("max", torch.int64), record)
        return value, index

    return rule


RULES: dict[str, Rule] = {
    "cumsum.default": _rule(_SUM),
    "cumprod.default": _rule(_PRODUCT),
    "logcumsumexp.default": _rule(_LOGARITHM),
    "cummax.default": _extremes("max"),
    "cummin.default": _extremes("min"),
}
