"""Running sums, products, extremes and logarithms of sums of exponentials: loops that go along each
row once, with the total so far in registers.

On a CPU totals are kept as eager's kernels keep them: those of float32 in float64, those of half
types in float32, those of integers in int64 (which wraps to the narrower type's own result). On a
GPU those of float32 are kept in float32, as eager's are there.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch

from dovetail_inductor.loop_ir.expr import Expr
from dovetail_inductor.loop_ir.loops import Scan, ScanKind
from dovetail_inductor.loop_ir.ops import arithmetic_dtype
from dovetail_inductor.lowering.promotion import cast
from dovetail_inductor.lowering.values import Context, Indices, Value

# How `value` becomes the running total along a dimension of what elements are.
ScanAlong = Callable[[Context, Value, int, ScanKind, Callable[[Indices], Expr]], None]


def totals_dtype(kind: ScanKind, stored: torch.dtype, wide: bool) -> torch.dtype:
    """The type in which running totals of elements of type `stored` are kept; with `wide`, more
    digits than those of elements of float32."""
    if kind in ("max", "min"):
        return arithmetic_dtype(stored)
    if wide and (kind == "logsumexp" or stored is torch.float32):
        return torch.float64
    return arithmetic_dtype(stored) if stored.is_floating_point else torch.int64


def scan_along(
    ctx: Context, value: Value, dim: int, kind: ScanKind, element: Callable[[Indices], Expr]
) -> None:
    """Compute `value`, of the same shape as what `element` gives elements of, by a scan along a
    dimension of two elements at least."""
    variables, indices = ctx.loop_indices(value.shape)
    scan = Scan(
        kind, (variables[dim],), totals_dtype(kind, value.dtype, ctx.target.scans.wide_totals)
    )
    ctx.write(value, ctx.new_buffer(value), variables, (), None, element(indices), scan)


def converted(
    ctx: Context, source: Value, dtype: torch.dtype, indices: Indices, mask: Expr | None = None
) -> Expr:
    """An element as one of the type `dtype`, in which it is counted."""
    expr = ctx.load(source, indices, mask)
    return cast(ctx, expr, dtype) if dtype != source.dtype else expr


def running_extreme(
    ctx: Context,
    value: Value,
    index: Value,
    source: Value,
    dim: int,
    kind: ScanKind,
    scan: ScanAlong,
) -> None:
    """`value` made the running extreme of `source`, `index` the place where it was met last."""
    b = ctx.builder
    held = value
    if value.dtype is torch.bool:
        held = replace(value, dtype=torch.uint8, _memo={})
        value.loader = lambda at, mask: cast(ctx, ctx.load(held, at, mask), torch.bool)
    scan(ctx, held, dim, kind, lambda at: converted(ctx, source, held.dtype, at))

    def place(indices: Indices) -> Expr:
        own = converted(ctx, source, held.dtype, indices)
        met = b.apply("eq", [own, ctx.load(held, indices)])
        if value.dtype.is_floating_point:
            met = b.apply("bitwise_or", [met, b.apply("isnan", [own])])
        return b.apply("where", [met, b.index_value(indices[dim]), b.constant(0, torch.int64)])

    scan(ctx, index, dim, "max", place)
