"""Lowering rules of views. None of them computes: each is a map of indices (for values not in
memory) together with a map of strides (for those that are)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod
from typing import Any

from torch import fx

from dovetail_inductor.loop_ir.expr import Expr
from dovetail_inductor.loop_ir.index import Index, constant
from dovetail_inductor.loop_ir.loops import Strided
from dovetail_inductor.loop_ir.sizes import (
    UnknownOrder,
    any_symbolic,
    is_multiple,
    is_stretched,
    is_symbolic,
    known_le,
    largest,
    smallest,
)
from dovetail_inductor.lowering.pointwise import Rule
from dovetail_inductor.lowering.reshapes import Reindex, reshape_indices, reshape_strides
from dovetail_inductor.lowering.values import (
    Context,
    Indices,
    Restride,
    UnsupportedGraph,
    Value,
    shape_of,
    tensor_of,
    value_like,
)

_NO_BOUND = 2**63 - 1  # how a slice without an end arrives


def make_view(
    ctx: Context, node: fx.Node, base: Value, reindex: Reindex | None, restride: Restride
) -> Value:
    """The view of `base` whose element i is the base's element `reindex(i)`.

    `reindex` None: only strides can say it, so the base goes to memory.
    """
    value = value_like(tensor_of(node), node.name)
    if base.stored is None and reindex is None:
        ctx.realize(base)

    def lies(stored: Strided) -> Strided | None:
        # (a symbolic size may come out in another form than the one that other rules have it in)
        found = restride(stored)
        if found is None:
            return None
        same = ctx.buffers[found.buffer].dtype is value.dtype
        return replace(found, shape=value.shape, dtype=None if same else value.dtype)

    if base.stored is not None:
        value.stored = lies(base.stored)
    if value.stored is None:
        if reindex is None:
            raise UnsupportedGraph(f"{node.name}: {node.target} of a tensor laid out otherwise")
        value.base = (base, lies)
        map_indices = reindex

        def loader(indices: Indices, mask: Expr | None) -> Expr:
            return ctx.load(base, map_indices(indices), mask)

        value.loader = loader
    return value


# --- reshaping ------------------------------------------------------------------------------------


def view_as(ctx: Context, node: fx.Node, base: Value) -> Value:
    """`base` with the shape of `node`."""
    new = shape_of(tensor_of(node), node.name)

    def restride(s: Strided) -> Strided | None:
        strides = reshape_strides(s.shape, s.stride, new)
        return None if strides is None else Strided(s.buffer, new, strides, s.offset)

    return make_view(ctx, node, base, reshape_indices(base.shape, new), restride)


def _view(ctx: Context, node: fx.Node, args: Sequence[Any], kwargs: dict[str, Any]) -> Value:
    return view_as(ctx, node, args[0])


# --- dimensions -----------------------------------------------------------------------------------


def _permute(ctx: Context, node: fx.Node, args: Sequence[Any], kwargs: dict[str, Any]) -> Value:
    base: Value = args[0]
    rank = len(base.shape)
    dims = tuple(d % rank for d in args[1]) if rank else ()
    inverse = tuple(dims.index(d) for d in range(rank))

    def restride(s: Strided) -> Strided:
        return Strided(
            s.buffer, tuple(s.shape[d] for d in dims), tuple(s.stride[d] for d in dims), s.offset
        )

    return make_view(ctx, node, base, lambda i: tuple(i[d] for d in inverse), restride)


def _expand(ctx: Context, node: fx.Node, args: Sequence[Any], kwargs: dict[str, Any]) -> Value:
    base: Value = args[0]
    shape = shape_of(tensor_of(node), node.name)
    lead = len(shape) - len(base.shape)

    def reindex(i: Indices) -> Indices:
        return tuple(
            constant(0) if is_stretched(n, m) else x
            for n, m, x in zip(base.shape, shape[lead:], i[lead:], strict=True)
        )

    def restride(s: Strided) -> Strided:
        strides = tuple(
            0 if is_stretched(n, m) and m != 1 else x
            for n, m, x in zip(s.shape, shape[lead:], s.stride, strict=True)
        )
        return Strided(s.buffer, shape, (0,) * lead + strides, s.offset)

    return make_view(ctx, node, base, reindex, restride)


# --- pieces ---------------------------------------------------------------------------------------


def slice_bounds(size: int, start: int | None, end: int | None) -> tuple[int, int]:
    """Python's clamping of slice bounds."""
    if any_symbolic((size, start or 0, end or 0)):
        low = _clamped(0 if start is None else start, size)
        high = _clamped(size if end is None else end, size)
        return low, largest(low, high)
    low, high, _ = slice(start, end).indices(size)
    return low, max(low, high)


def _clamped(bound: int, size: int) -> int:
    """A slice's bound as a position from 0 to `size`."""
    if not is_symbolic(bound) and bound >= _NO_BOUND:
        return size
    return largest(0, smallest(size, _from_front(bound, size)))


def _from_front(index: int, size: int) -> int:
    """An index that counts from the end where it is negative, as one from the beginning."""
    negative = known_le(index, -1)
    if negative is None:  # (1 for a negative one, otherwise 0)
        return index + size * smallest(1, largest(0, -index))
    return index + size if negative else index


def _slice(ctx: Context, node: fx.Node, args: Sequence[Any], kwargs: dict[str, Any]) -> Value:
    base: Value = args[0]
    dim = (args[1] if len(args) > 1 else 0) % len(base.shape)
    start = args[2] if len(args) > 2 else None
    end = args[3] if len(args) > 3 else None
    step = args[4] if len(args) > 4 else 1
    low, high = slice_bounds(base.shape[dim], start, end)
    length = -((low - high) // step)

    def reindex(i: Indices) -> Indices:
        return (*i[:dim], i[dim] * step + low, *i[dim + 1 :])

    def restride(s: Strided) -> Strided:
        return Strided(
            s.buffer,
            (*s.shape[:dim], length, *s.shape[dim + 1 :]),
            (*s.stride[:dim], s.stride[dim] * step, *s.stride[dim + 1 :]),
            s.offset + low * s.stride[dim],
        )

    return make_view(ctx, node, base, reindex, restride)


def _select(ctx: Context, node: fx.Node, args: Sequence[Any], kwargs: dict[str, Any]) -> Value:
    base: Value = args[0]
    dim = args[1] % len(base.shape)
    at = args[2] % base.shape[dim]

    def reindex(i: Indices) -> Indices:
        return (*i[:dim], constant(at), *i[dim:])

    def restride(s: Strided) -> Strided:
        return Strided(
            s.buffer,
            (*s.shape[:dim], *s.shape[dim + 1 :]),
            (*s.stride[:dim], *s.stride[dim + 1 :]),
            s.offset + at * s.stride[dim],
        )

    return make_view(ctx, node, base, reindex, restride)


def _diagonal(ctx: Context, node: fx.Node, args: Sequence[Any], kwargs: dict[str, Any]) -> Value:
    base: Value = args[0]
    rank = len(base.shape)
    shift = args[1] if len(args) > 1 else 0
    a = (args[2] if len(args) > 2 else 0) % rank
    b = (args[3] if len(args) > 3 else 1) % rank
    rows, columns = max(-shift, 0), max(shift, 0)
    length = max(min(base.shape[a] - rows, base.shape[b] - columns), 0)
    rest = tuple(d for d in range(rank) if d not in (a, b))

    def reindex(i: Indices) -> Indices:
        result: list[Index] = [constant(0)] * rank
        for d, x in zip(rest, i[:-1], strict=True):
            result[d] = x
        result[a], result[b] = i[-1] + rows, i[-1] + columns
        return tuple(result)

    def restride(s: Strided) -> Strided:
        start = rows * s.stride[a] + columns * s.stride[b] if length else 0
        return Strided(
            s.buffer,
            (*(s.shape[d] for d in rest), length),
            (*(s.stride[d] for d in rest), s.stride[a] + s.stride[b]),
            s.offset + start,
        )

    return make_view(ctx, node, base, reindex, restride)


def _unfold(ctx: Context, node: fx.Node, args: Sequence[Any], kwargs: dict[str, Any]) -> Value:
    base: Value = args[0]
    dim = args[1] % len(base.shape) if base.shape else 0
    size, step = args[2], args[3]
    if not base.shape:
        return view_as(ctx, node, base)
    count = (base.shape[dim] - size) // step + 1

    def reindex(i: Indices) -> Indices:
        return (*i[:dim], i[dim] * step + i[-1], *i[dim + 1 : -1])

    def restride(s: Strided) -> Strided:
        return Strided(
            s.buffer,
            (*s.shape[:dim], count, *s.shape[dim + 1 :], size),
            (*s.stride[:dim], s.stride[dim] * step, *s.stride[dim + 1 :], s.stride[dim]),
            s.offset,
        )

    return make_view(ctx, node, base, reindex, restride)


def _view_as_real(
    ctx: Context, node: fx.Node, args: Sequence[Any], kwargs: dict[str, Any]
) -> Value:
    def restride(s: Strided) -> Strided:
        strides = (*(2 * n for n in s.stride), 1)
        return Strided(s.buffer, (*s.shape, 2), strides, 2 * s.offset)

    return make_view(ctx, node, args[0], None, restride)


def _view_as_complex(
    ctx: Context, node: fx.Node, args: Sequence[Any], kwargs: dict[str, Any]
) -> Any:
    base: Value = args[0]

    def restride(s: Strided) -> Strided:
        strides = tuple(n // 2 for n in s.stride[:-1])
        return Strided(s.buffer, s.shape[:-1], strides, s.offset // 2)

    s = ctx.realize(base)
    begin = ctx.buffers[s.buffer].offset
    if s.stride[-1] != 1 or not all(is_multiple(n, 2) for n in (*s.stride[:-1], s.offset, begin)):
        return NotImplemented  # it lies otherwise than the program says; a copy will not
    return make_view(ctx, node, base, None, restride)


def _as_strided(ctx: Context, node: fx.Node, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    base: Value = args[0]
    if base.stored is not None and base.stored.dtype is not None:
        return NotImplemented  # (its memory counts in other elements)
    size, stride = tuple(args[1]), tuple(args[2])
    offset = args[3] if len(args) > 3 else None

    def restride(s: Strided) -> Strided | None:
        buffer = ctx.buffers[s.buffer]
        start = s.offset if offset is None else offset - buffer.offset
        if prod(size):
            last = start + sum((n - 1) * x for n, x in zip(size, stride, strict=True))
            # Inputs may be windows of larger storages; memory of ours ends with the buffer.
            if buffer.name.startswith("buf") and not 0 <= start <= last < buffer.extent:
                return None
        return Strided(s.buffer, size, stride, start)

    try:
        return make_view(ctx, node, base, None, restride)
    except UnknownOrder:
        return NotImplemented  # (only the data tells whether it ends within the buffer)


RULES: dict[str, Rule] = {
    "view.default": _view,
    "view_as_real.default": _view_as_real,
    "view_as_complex.default": _view_as_complex,
    "_unsafe_view.default": _view,
    "permute.default": _permute,
    "expand.default": _expand,
    "unsqueeze.default": _view,
    "squeeze.dims": _view,
    "alias.default": (
        lambda ctx, node, args, kwargs: make_view(ctx, node, args[0], lambda i: i, lambda s: s)
    ),
    "slice.Tensor": _slice,
    "select.int": _select,
    "diagonal.default": _diagonal,
    "unfold.default": _unfold,
    "as_strided.default": _as_strided,
}
