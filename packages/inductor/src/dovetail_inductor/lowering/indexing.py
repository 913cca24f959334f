"""Lowering rules of ops that move elements: concatenation, padding, flips, gathers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import torch
from torch import fx

from dovetail_inductor.fx_nodes import line_of
from dovetail_inductor.loop_ir.expr import Apply, Constant, Expr, IndexCheck, IndexValue
from dovetail_inductor.loop_ir.index import ZERO, Index, constant, indirect
from dovetail_inductor.loop_ir.ranges import value_range
from dovetail_inductor.loop_ir.sizes import any_symbolic, hint_of, known_le, known_within
from dovetail_inductor.lowering.pointwise import Rule
from dovetail_inductor.lowering.promotion import broadcast_load, cast, number
from dovetail_inductor.lowering.values import Context, Indices, Value, tensor_of, value_like
from dovetail_inductor.lowering.views import slice_bounds

# Of a concatenation that kernels for a GPU make, if it is large.
MOST_PARTS, LARGE = 64, 1 << 16

IndexKind = Literal["plain", "wrapped", "scattered"]
"""How an operator takes an index: of rows; counted from the end where it is negative; or along one
dimension of a gather or scatter (eager raises RuntimeError)."""


def in_range(ctx: Context, index: Index, low: int, high: int) -> Expr:
    """`low <= index < high` as a bool."""
    b = ctx.builder
    at = b.index_value(index)
    above = b.apply("ge", [at, b.constant(low, torch.int64)])
    below = b.apply("lt", [at, b.constant(high, torch.int64)])
    if isinstance(at, Constant):
        return b.constant(low <= index.const < high, torch.bool)
    return b.apply("bitwise_and", [above, below])


def broadcast_shape(shapes: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
    """The shape that all broadcast to."""
    rank = max(map(len, shapes))
    aligned = [(1,) * (rank - len(s)) + s for s in shapes]
    return tuple(next((n for n in sizes if n != 1), 1) for sizes in zip(*aligned, strict=True))


def both(ctx: Context, a: Expr, b: Expr | None) -> Expr:
    """`a and b`."""
    return a if b is None else ctx.builder.apply("bitwise_and", [a, b])


def masked_load(ctx: Context, value: Value, indices: Indices, mask: Expr) -> Expr | None:
    """An element where the mask holds (anything elsewhere); None if it never does."""
    if isinstance(mask, Constant):
        return ctx.load(value, indices) if mask.value else None
    return ctx.load(value, indices, mask)


def _cat(ctx: Context, node: fx.Node, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    value = value_like(tensor_of(node), node.name)
    # ATen skips the legacy empty 1-d tensors
    parts = [v for v in args[0] if v.shape != (0,) or len(value.shape) == 1]
    many = len(parts) > MOST_PARTS and hint_of(value.numel) >= LARGE
    if many and ctx.target.costs.memory_bound:
        return NotImplemented
    dim = (args[1] if len(args) > 1 else kwargs.get("dim", 0)) % max(len(value.shape), 1)
    starts = [0]
    for part in parts:
        starts.append(starts[-1] + part.shape[dim])

    def loader(indices: Indices, mask: Expr | None) -> Expr:
        at = indices[dim]
        result: Expr | None = None
        known = None if at.terms or any_symbolic((at.const, *starts)) else at.const
        for part, start, end in reversed(list(zip(parts, starts, starts[1:], strict=False))):
            if start == end or (known is not None and not start <= known < end):
                continue
            inside = in_range(ctx, at, start, end)
            own = (*indices[:dim], at - start, *indices[dim + 1 :])
            expr = masked_load(ctx, part, own, both(ctx, inside, mask))
            if expr is None:
                continue
            if part.dtype != value.dtype:
                expr = cast(ctx, expr, value.dtype)
            if result is None:
                result = expr
            else:
                below = ctx.builder.apply(
                    "lt", [ctx.builder.index_value(at), ctx.builder.constant(end, torch.int64)]
                )
                result = ctx.builder.apply("where", [below, expr, result])
        return number(ctx, 0, value.dtype, False) if result is None else result

    return value.made_by(loader)


def _pad(ctx: Context, node: fx.Node, args: Sequence[Any], kwargs: dict[str, Any]) -> Value:
    source: Value = args[0]
    pads: list[int] = list(args[1])
    fill = args[2] if len(args) > 2 else kwargs.get("value", 0)
    value = value_like(tensor_of(node), node.name)
    rank = len(source.shape)
    before = {rank - 1 - k: pads[2 * k] for k in range(len(pads) // 2)}

    def loader(indices: Indices, mask: Expr | None) -> Expr:
        inside = ctx.builder.constant(True, torch.bool)
        own = list(indices)
        for d, shift in before.items():
            own[d] = indices[d] - shift
            inside = both(ctx, in_range(ctx, own[d], 0, source.shape[d]), inside)
        filler = number(ctx, fill, value.dtype, False)
        expr = masked_load(ctx, source, tuple(own), both(ctx, inside, mask))
        return filler if expr is None else ctx.builder.apply("where", [inside, expr, filler])

    return value.made_by(loader)


def _flip(ctx: Context, node: fx.Node, args: Sequence[Any], kwargs: dict[str, Any]) -> Value:
    source: Value = args[0]
    dims = {d % len(source.shape) for d in args[1]} if source.shape else set()

    def loader(indices: Indices, mask: Expr | None) -> Expr:
        own = tuple(
            constant(source.shape[d] - 1) - i if d in dims else i for d, i in enumerate(indices)
        )
        return ctx.load(source, own, mask)

    return value_like(tensor_of(node), node.name).made_by(loader)


def checked_index(
    ctx: Context,
    node: fx.Node,
    position: Expr,
    size: int,
    mask: Expr | None,
    dim: int,
    kind: IndexKind,
) -> Index:
    """The index into dimension `dim` that `position` holds, checked against its `size` for `node`;
    one that is negative counts from the end if its `kind` is "wrapped"."""
    b = ctx.builder
    wrap = kind == "wrapped"
    if wrap and (unsigned := _unsigned(ctx, position, size)) is not None:
        position, wrap = unsigned, False
    if isinstance(position, Constant):
        at = int(position.value)
        if wrap and at < 0 and known_le(-size, at):
            at += size
        if known_within(at, at, size):
            return constant(at)
    if isinstance(position, IndexValue) and known_within(*position.index.bounds, size):
        return position.index
    low, high = value_range(ctx.builder, position, ctx.nodes)
    position = b.apply("cast", [position], torch.int64)
    if known_within(int(low), int(high), size):
        return indirect(position, size)
    wrap = wrap and low < 0
    if mask is not None:
        position = b.apply("where", [mask, position, b.constant(0, torch.int64)])
    if wrap:
        negative = b.apply("lt", [position, b.constant(0, torch.int64)])
        wrapped = b.apply("add", [position, b.constant(size, torch.int64)])
        position = b.apply("where", [negative, wrapped, position])
    error: Literal["IndexError", "RuntimeError"]
    error = "RuntimeError" if kind == "scattered" else "IndexError"
    check = IndexCheck(size, dim, error, wrap, line_of(node))
    return indirect(b.apply("check_index", [position], check=check), size)


def _unsigned(ctx: Context, position: Expr, size: int) -> Expr | None:
    """The index of which `position` puts the negative ones beyond the end (decompositions do where
    no index may be negative), to be checked as it is; None if it is none such."""
    if not isinstance(position, Apply) or position.op != "where":
        return None
    negative, beyond, index = position.args
    zero, end = (ctx.builder.constant(n, index.dtype) for n in (0, size))
    known = beyond is end and negative is ctx.builder.apply("lt", [index, zero])
    return index if known else None


def picked_indices(
    ctx: Context,
    node: fx.Node,
    picks: Sequence[Value | None],
    sizes: Sequence[int],
    picked: tuple[int, tuple[int, ...]],
    indices: Indices,
    mask: Expr | None,
) -> Indices:
    """Where `x[picks]` has its element at `indices` from. `x` has these sizes; `picked` is where in
    the result the dimensions that were picked begin, and the shape that the picks broadcast to."""
    lead, shape = picked
    at = indices[lead : lead + len(shape)]
    rest = iter(indices[:lead] + indices[lead + len(shape) :])
    own = []
    for d, pick in enumerate(picks):
        if pick is None:
            own.append(next(rest))
        else:
            position = broadcast_load(ctx, pick, shape, at, mask)
            own.append(checked_index(ctx, node, position, sizes[d], mask, d, "wrapped"))
    return tuple(own)


def _index(ctx: Context, node: fx.Node, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    source: Value = args[0]
    picks: list[Value | None] = list(args[1]) + [None] * (len(source.shape) - len(args[1]))
    used = [p for p in picks if p is not None]
    if any(p.dtype in (torch.bool, torch.uint8) for p in used):
        return NotImplemented  # a mask: the result's size depends on data
    shape = broadcast_shape([p.shape for p in used])
    dims = [d for d, p in enumerate(picks) if p is not None]
    together = dims == list(range(dims[0], dims[-1] + 1))
    lead = dims[0] if together else 0  # where the picked dimensions come to stand

    def loader(indices: Indices, mask: Expr | None) -> Expr:
        own = picked_indices(ctx, node, picks, source.shape, (lead, shape), indices, mask)
        return ctx.load(source, own, mask)

    return value_like(tensor_of(node), node.name).made_by(loader)


def _gather(ctx: Context, node: fx.Node, args: Sequence[Any], kwargs: dict[str, Any]) -> Value:
    source, dim, pick = args[0], args[1], args[2]
    value = value_like(tensor_of(node), node.name)
    if not source.shape or len(pick.shape) != len(source.shape):
        # (Ranks differ only where there is no index, and so nothing to take.)
        value.loader = lambda i, m: ctx.load(source, (ZERO,) * len(source.shape), m)
        return value
    dim %= len(source.shape)

    def loader(indices: Indices, mask: Expr | None) -> Expr:
        position = ctx.load(pick, indices, mask)
        at = checked_index(ctx, node, position, source.shape[dim], mask, dim, "scattered")
        return ctx.load(source, (*indices[:dim], at, *indices[dim + 1 :]), mask)

    return value.made_by(loader)


def _embedding(ctx: Context, node: fx.Node, args: Sequence[Any], kwargs: dict[str, Any]) -> Value:
    weight, pick = args[0], args[1]

    def loader(indices: Indices, mask: Expr | None) -> Expr:
        position = ctx.load(pick, indices[:-1], mask)
        at = checked_index(ctx, node, position, weight.shape[0], mask, 0, "plain")
        return ctx.load(weight, (at, indices[-1]), mask)

    return value_like(tensor_of(node), node.name).made_by(loader)


def _written_over(
    ctx: Context,
    base: Value,
    indices: Indices,
    mask: Expr | None,
    source: Value,
    own: Indices,
    inside: Expr,
) -> Expr:
    """The element of `base` at `indices`, or where `inside` holds that of `source` at `own`."""
    new = masked_load(ctx, source, own, both(ctx, inside, mask))
    old = ctx.load(base, indices, mask)
    if new is None:
        return old
    if source.dtype != base.dtype:
        new = cast(ctx, new, base.dtype)
    return ctx.builder.apply("where", [inside, new, old])


def _slice_scatter(ctx: Context, node: fx.Node, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """A part written over; `select_scatter`, if the source has a dimension less."""
    base, source, *rest = args
    filled: list[Any] = [*rest, *(0, None, None, 1)[len(rest) :]]
    dim, start, end, step = filled[0] % len(base.shape), *filled[1:]
    low, high = slice_bounds(base.shape[dim], start, end)
    selects = len(source.shape) < len(base.shape)
    if selects:
        low, high = start % base.shape[dim], start % base.shape[dim] + 1
    b = ctx.builder

    def loader(indices: Indices, mask: Expr | None) -> Expr:
        at = indices[dim]
        inside = in_range(ctx, at, low, high)
        if step != 1:
            phase = b.index_value((at - low).mod(step))
            inside = both(ctx, b.apply("eq", [phase, b.constant(0, torch.int64)]), inside)
        along = () if selects else ((at - low).floordiv(step),)
        own = (*indices[:dim], *along, *indices[dim + 1 :])
        return _written_over(ctx, base, indices, mask, source, own, inside)

    return value_like(tensor_of(node), node.name).made_by(loader)


def _diagonal_scatter(
    ctx: Context, node: fx.Node, args: Sequence[Any], kwargs: dict[str, Any]
) -> Value:
    base, source = args[0], args[1]
    rank = len(base.shape)
    shift = args[2] if len(args) > 2 else kwargs.get("offset", 0)
    first = (args[3] if len(args) > 3 else kwargs.get("dim1", 0)) % rank
    second = (args[4] if len(args) > 4 else kwargs.get("dim2", 1)) % rank

    def loader(indices: Indices, mask: Expr | None) -> Expr:
        # how far from the diagonal: element k of it is at (k, k + shift), counted from its start
        off = indices[second] - indices[first] - shift
        inside = in_range(ctx, off, 0, 1)
        along = indices[first] if shift >= 0 else indices[second]
        rest = (i for d, i in enumerate(indices) if d not in (first, second))
        return _written_over(ctx, base, indices, mask, source, (*rest, along), inside)

    return value_like(tensor_of(node), node.name).made_by(loader)


RULES: dict[str, Rule] = {
    "cat.default": _cat,
    "constant_pad_nd.default": _pad,
    "flip.default": _flip,
    "index.Tensor": _index,
    "gather.default": _gather,
    "embedding.default": _embedding,
    "slice_scatter.default": _slice_scatter,
    "select_scatter.default": _slice_scatter,
    "diagonal_scatter.default": _diagonal_scatter,
}
