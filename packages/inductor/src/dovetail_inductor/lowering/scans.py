"""Lowering rules of running sums, products, extremes and logarithms of sums of exponentials.

Loops go along each row once (`running_totals`), whose totals a GPU finds for a block of elements at
a time. Where that gives a GPU too little to do side by side, rows go in pieces (`scans_in_pieces`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx

from dovetail_inductor.loop_ir.expr import Expr
from dovetail_inductor.loop_ir.loops import ScanKind
from dovetail_inductor.loop_ir.sizes import hint_of, known_le
from dovetail_inductor.lowering.pointwise import Rule
from dovetail_inductor.lowering.running_totals import converted, running_extreme, scan_along
from dovetail_inductor.lowering.scans_in_pieces import piece_length, scan_in_pieces
from dovetail_inductor.lowering.values import Context, Indices, Value, tensor_of, value_like

# Along fewer neighbours in memory a CPU's library takes logarithms as fast, if there are many rows.
SHORT_ROW, FEW_ELEMENTS = 8, 256


def _scan(
    ctx: Context, value: Value, dim: int, kind: ScanKind, element: Callable[[Indices], Expr]
) -> None:
    """`value` made the running total along a dimension of what `element` gives elements of."""
    length = piece_length(value, dim) if ctx.target.scans.in_pieces else None
    if length is None:
        scan_along(ctx, value, dim, kind, element)
    else:
        scan_in_pieces(ctx, value, dim, kind, element, length)


def _rule(kind: ScanKind) -> Rule:
    def rule(ctx: Context, node: fx.Node, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        value, source = value_like(tensor_of(node), node.name), args[0]
        if value.dtype is torch.bool:
            return NotImplemented  # which eager refuses
        if _is_trivial(source, args[1]):
            value.loader = lambda at, mask: converted(ctx, source, value.dtype, at, mask)
            return value
        dim = args[1] % len(source.shape)
        if _library_is_faster(ctx, value, dim, kind):
            return NotImplemented
        _scan(ctx, value, dim, kind, lambda at: converted(ctx, source, value.dtype, at))
        return value

    return rule


def _library_is_faster(ctx: Context, value: Value, dim: int, kind: ScanKind) -> bool:
    longest = ctx.target.scans.longest_single_row
    if longest is not None:
        single = value.numel == value.shape[dim] and not ctx.everywhere
        return single and not known_le(value.numel, longest - 1)
    return ctx.leaves_to_library and kind == "logsumexp" and _is_short(value, dim)


def _is_short(value: Value, dim: int) -> bool:
    if value.stride[dim] != 1 or hint_of(value.numel) <= FEW_ELEMENTS:
        return False
    return hint_of(value.shape[dim]) < SHORT_ROW


def _is_trivial(source: Value, dim: int) -> bool:
    """True if there is one element at most to add up."""
    return not source.shape or source.shape[dim] == 1 or 0 in source.shape


def _extremes(kind: ScanKind) -> Rule:
    """cummax, cummin: the running extreme, and where it was met last"""

    def rule(ctx: Context, node: fx.Node, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        source, b = args[0], ctx.builder
        value, index = (value_like(v, node.name) for v in node.meta["val"])
        if _is_trivial(source, args[1]):
            value.loader = lambda at, mask: ctx.load(source, at, mask)
            index.loader = lambda at, mask: b.constant(0, torch.int64)
        else:
            running_extreme(ctx, value, index, source, args[1] % len(source.shape), kind, _scan)
        return value, index

    return rule


RULES: dict[str, Rule] = {
    "cumsum.default": _rule("sum"),
    "cumprod.default": _rule("prod"),
    "logcumsumexp.default": _rule("logsumexp"),
    "cummax.default": _extremes("max"),
    "cummin.default": _extremes("min"),
}
