"""What a scatter writes to: memory begun by one nest, in the type that is combined in."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import torch
from torch import fx
from torch.utils import _pytree as pytree

from dovetail_inductor.loop_ir.expr import Expr
from dovetail_inductor.loop_ir.index import ZERO, Index, linear
from dovetail_inductor.loop_ir.loops import LoopNest, Scatter, Strided
from dovetail_inductor.loop_ir.ops import arithmetic_dtype
from dovetail_inductor.loop_ir.reduction import MAX, SUM, Reduction
from dovetail_inductor.loop_ir.sizes import hint_of
from dovetail_inductor.lowering.indexing import checked_index
from dovetail_inductor.lowering.promotion import cast, number
from dovetail_inductor.lowering.values import Context, Indices, Value

# A source element that costs more is computed before, where loops run in parallel.
SOURCE_COST = 12

# A target of narrow elements is left to the library if it is so many times as large as the source:
# a library that sorts what it adds (by rows) takes several times as long as one that adds at once.
LARGER_TARGET, LARGER_IF_SORTED, LARGER_IF_ADDED = 4, 16, 1

# At a point of the source: where it goes in the target, and what it brings.
Point = Callable[[Indices], tuple[Sequence[Index], Expr]]


def accumulated_dtype(dtype: torch.dtype, reduction: Reduction | None) -> torch.dtype:
    """The type that elements are combined in: narrow ones are rounded once, at the end. (It is one
    that a GPU has atomics of.)"""
    if reduction is None:
        return dtype
    if dtype.is_floating_point:
        return torch.float32 if dtype.itemsize == 2 else dtype
    return torch.int32 if dtype.itemsize < 4 else dtype


def of_values(reduction: Reduction | None, dtype: torch.dtype) -> Reduction | None:
    """How values of a dtype are combined: the sum of truth values is their maximum."""
    return MAX if reduction is SUM and dtype is torch.bool else reduction


def is_ours(
    ctx: Context,
    value: Value,
    reduction: Reduction | None,
    shape: Sequence[int],
    larger: int = LARGER_TARGET,
) -> bool:
    """Whether to combine elements of a source of this shape by a kernel of ours: on a GPU not where
    what several elements make of one place must not depend on their order, nor where a target of
    narrow elements, `larger` than the source by this factor, would have to lie in wider ones."""
    if not ctx.target.scatters.parallel:
        return True
    if torch.are_deterministic_algorithms_enabled():
        return False
    wider = accumulated_dtype(value.dtype, reduction).itemsize > value.dtype.itemsize
    return not wider or hint_of(value.numel) <= larger * hint_of(prod(shape))


class Target:
    """Memory that scatters write to, begun as a tensor of the caller's choice."""

    def __init__(self, ctx: Context, value: Value, reduction: Reduction | None) -> None:
        self.ctx, self.value = ctx, value
        self.dtype = accumulated_dtype(value.dtype, reduction)
        self.held = Value(value.shape, value.stride, self.dtype, value.device, value.origin)

    def begin_as(self, base: Value, node: fx.Node) -> None:
        """Begin as `base`, the first argument of `node`."""
        ctx, stored = self.ctx, base.stored
        reads = pytree.tree_leaves((node.args, node.kwargs))
        made = reads[0]
        if stored is not None and len(made.users) == 1 and reads.count(made) == 1:
            # What another scatter has written, and nobody else reads, needs no copy.
            scattered = {
                n.buffer
                for n in ctx.nodes
                if isinstance(n, LoopNest) and n.scatter and n.origin == made.name
            }
            buffer = ctx.buffers[stored.buffer]
            same = (buffer.dtype, buffer.stride) == (self.dtype, self.value.stride)
            if buffer.name in scattered and same and stored.covers(buffer):
                self.held.stored = stored
                return
        self.begin(lambda indices: ctx.load(base, indices))

    def begin(self, loader: Callable[[Indices], Expr]) -> None:
        """Write the elements that are there before."""
        held = self.held
        b = self.ctx.builder
        kind = arithmetic_dtype(self.dtype)
        held.loader = lambda indices, mask: b.apply("cast", [loader(indices)], kind)
        self.ctx.realize(held)

    def put(
        self,
        shape: tuple[int, ...],
        reduction: Reduction | None,
        point: Point,
        stride: tuple[int, ...] | None = None,
    ) -> None:
        """Combine the elements of a source of this shape. Places are counted by the target's
        strides, if no others are given."""
        ctx, before = self.ctx, self.held.stored
        assert before is not None
        if 0 in shape:
            return
        variables, indices = ctx.loop_indices(shape)
        at, brought = point(indices)
        body = ctx.builder.apply("cast", [brought], arithmetic_dtype(self.dtype))
        buffer = ctx.new_buffer(self.held)
        nest = LoopNest(
            buffer.name,
            tuple(v for v in variables if v.size != 1),
            (),
            None,
            body,
            linear(at, buffer.stride if stride is None else stride),
            self.value.origin,
            scatter=Scatter(reduction, before.buffer),
        )
        ctx.nodes.append(nest)
        self.held.stored = Strided(buffer.name, buffer.shape, buffer.stride, 0)

    def result(self) -> Value:
        """The tensor."""
        ctx, value, held = self.ctx, self.value, self.held
        if held.dtype == value.dtype:
            value.stored = held.stored
        else:
            value.loader = lambda indices, mask: cast(
                ctx, ctx.load(held, indices, mask), value.dtype
            )
        return value


def make_cheap(ctx: Context, base: Value | None, *values: Any) -> None:
    """Compute before what a scatter over `base` would compute one element after another, where
    loops run in parallel; and what it would read of a larger `base` itself, which then need not be
    kept as it was."""
    own = base.stored.buffer if base is not None and base.stored is not None else None
    for value in values:
        if not isinstance(value, Value) or value.stored is not None:
            continue
        cost = ctx.cost(value)
        smaller = base is not None and hint_of(value.numel) < hint_of(base.numel)
        if (own in cost.buffers and smaller) or (
            not ctx.target.scatters.parallel and cost.cost > SOURCE_COST
        ):
            ctx.realize(value)


def element_of(ctx: Context, source: Any, indices: Indices, dtype: torch.dtype) -> Expr:
    """An element of what is written, in the type of the target."""
    if not isinstance(source, Value):
        return number(ctx, source, dtype, True)
    expr = ctx.load(source, indices)
    return expr if source.dtype == dtype else cast(ctx, expr, dtype)


def points_along(
    ctx: Context,
    node: fx.Node,
    base: Value,
    dim: int,
    index: Value,
    source: Any,
    dtype: torch.dtype,
) -> tuple[tuple[int, ...], Point]:
    """The points of a scatter along one dimension."""
    if not base.shape or not index.shape:
        # One element, wherever it comes from.
        def only(indices: Indices) -> tuple[Sequence[Index], Expr]:
            own = indices if index.shape else ()
            position = ctx.load(index, own)
            size = base.shape[0] if base.shape else 1
            at = checked_index(ctx, node, position, size, None, 0, "scattered")
            where = (ZERO,) * len(source.shape) if isinstance(source, Value) else ()
            return (at,) * len(base.shape), element_of(ctx, source, where, dtype)

        return index.shape, only
    dim %= len(base.shape)
    make_cheap(ctx, base, source, index)

    def point(indices: Indices) -> tuple[Sequence[Index], Expr]:
        position = ctx.load(index, indices)
        at = checked_index(ctx, node, position, base.shape[dim], None, dim, "scattered")
        own = (*indices[:dim], at, *indices[dim + 1 :])
        return own, element_of(ctx, source, indices, dtype)

    return index.shape, point
