"""Lowering rules of ops that write to computed places: index_put, scatter and their like.

Each is one nest over what is written, over memory that another nest has initialised. What a
library does in one order for several elements at one place, a GPU does in any: sums of floats may
differ in their last digits from call to call. So `torch.use_deterministic_algorithms` leaves these
ops to the library there.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from dovetail_prims.fake_tensor import FakeTensor
from torch import fx

from dovetail_inductor.loop_ir.expr import Expr
from dovetail_inductor.loop_ir.index import ZERO, Index, constant
from dovetail_inductor.loop_ir.loops import Strided
from dovetail_inductor.loop_ir.ops import arithmetic_dtype
from dovetail_inductor.loop_ir.reduction import SUM, Reduction
from dovetail_inductor.loop_ir.sizes import any_symbolic
from dovetail_inductor.lowering.indexing import broadcast_shape, picked_indices
from dovetail_inductor.lowering.pointwise import Rule
from dovetail_inductor.lowering.promotion import broadcast_load
from dovetail_inductor.lowering.scatter_target import (
    LARGER_IF_ADDED,
    LARGER_IF_SORTED,
    Target,
    element_of,
    is_ours,
    make_cheap,
    of_values,
    points_along,
)
from dovetail_inductor.lowering.values import (
    Context,
    Indices,
    Value,
    is_dense,
    static_shape,
    tensor_of,
    value_like,
)


def _index_put(ctx: Context, node: fx.Node, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    base: Value = args[0]
    picks: list[Value | None] = list(args[1])
    source: Value = args[2]
    accumulate = args[3] if len(args) > 3 else kwargs.get("accumulate", False)
    value = value_like(tensor_of(node), node.name)
    used = [p for p in picks if p is not None]
    if any(p.dtype in (torch.bool, torch.uint8) for p in used) or not used:
        return _put_where(ctx, value, base, picks, source, accumulate)
    reduction = of_values(SUM, value.dtype) if accumulate else None
    picks += [None] * (len(base.shape) - len(picks))
    shape = broadcast_shape([p.shape for p in used])
    dims = [d for d, p in enumerate(picks) if p is not None]
    lead = dims[0] if dims == list(range(dims[0], dims[-1] + 1)) else 0
    others = [base.shape[d] for d, p in enumerate(picks) if p is None]
    whole = (*others[:lead], *shape, *others[lead:])
    if not is_ours(ctx, value, reduction, whole, LARGER_IF_SORTED):
        return NotImplemented
    make_cheap(ctx, base, source, *used)

    def point(indices: Indices) -> tuple[Sequence[Index], Expr]:
        own = picked_indices(ctx, node, picks, base.shape, (lead, shape), indices, None)
        return own, broadcast_load(ctx, source, whole, indices, None)

    target = Target(ctx, value, reduction)
    target.begin_as(base, node)
    target.put(whole, reduction, point)
    return target.result()


def _put_where(
    ctx: Context,
    value: Value,
    base: Value,
    picks: Sequence[Value | None],
    source: Value,
    accumulate: bool,
) -> Any:
    """One element put wherever a mask holds; anything else that a mask says depends on how many of
    its elements hold."""
    places = [(d, p) for d, p in enumerate(picks) if p is not None]
    if len(places) != 1 or any(n != 1 for n in source.shape):
        return NotImplemented
    ((dim, mask),) = places
    b = ctx.builder

    def loader(indices: Indices, may: Expr | None) -> Expr:
        holds = ctx.load(mask, indices[dim : dim + len(mask.shape)], may)
        if mask.dtype is not torch.bool:
            holds = b.apply("cast", [holds], torch.bool)
        new = ctx.load(source, (ZERO,) * len(source.shape), may)
        old = ctx.load(base, indices, may)
        if accumulate:
            is_bool = value.dtype is torch.bool
            new = b.apply("bitwise_or" if is_bool else "add", [old, new])
        return b.apply("where", [holds, new, old])

    return value.made_by(loader)


def _scatter(reduction: Reduction | None) -> Rule:
    def rule(ctx: Context, node: fx.Node, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        base, dim, index, source = args[:4]
        value = value_like(tensor_of(node), node.name)
        how = of_values(reduction, value.dtype)
        if kwargs or len(args) > 4 or not is_ours(ctx, value, how, index.shape, LARGER_IF_ADDED):
            return NotImplemented
        target = Target(ctx, value, how)
        target.begin_as(base, node)
        shape, point = points_along(ctx, node, base, dim, index, source, value.dtype)
        target.put(shape, how, point)
        return target.result()

    return rule


def _as_strided_scatter(
    ctx: Context, node: fx.Node, args: Sequence[Any], kwargs: dict[str, Any]
) -> Any:
    base, source, shape, stride = args[:4]
    fake: Any = node.args[0].meta["val"]  # type: ignore[union-attr]
    value = value_like(tensor_of(node), node.name)
    own = fake._offset if isinstance(fake, FakeTensor) else fake.storage_offset()
    own = static_shape([own], node.name)[0]
    offset = args[4] if len(args) > 4 else kwargs.get("storage_offset")
    start = 0 if offset is None else offset - own
    sizes = (*shape, *stride, *value.shape, *value.stride, start)
    if any_symbolic(sizes) or value.stride != base.stride:
        return NotImplemented
    if 0 in value.shape or 0 in shape:
        return NotImplemented
    last = start + sum((n - 1) * s for n, s in zip(shape, stride, strict=True))
    if not is_dense(value.shape, value.stride) or not 0 <= start <= last < value.numel:
        view = (tuple(shape), tuple(stride), start)
        return _through_memory(ctx, value, base, source, view, last)
    target = Target(ctx, value, None)
    target.begin_as(base, node)

    def point(indices: Indices) -> tuple[Sequence[Index], Expr]:
        return (*indices, constant(start)), element_of(ctx, source, indices, value.dtype)

    target.put(tuple(shape), None, point, (*stride, 1))
    return target.result()


def with_gaps(ctx: Context, value: Value, stride: tuple[int, ...]) -> Strided | None:
    """The elements in memory with these strides, which leave gaps between them; None if some would
    lie at one place, or if the strides are known at run time only."""
    if any_symbolic((*value.shape, *stride)) or 0 in value.shape:
        return None
    last = 0
    for step, size in sorted((s, n) for s, n in zip(stride, value.shape, strict=True) if n != 1):
        if step <= last:
            return None
        last += (size - 1) * step
    row = Value((last + 1,), (1,), value.dtype, value.device, value.origin)
    memory = Target(ctx, row, None)
    nothing = ctx.builder.constant(0, arithmetic_dtype(memory.dtype))
    memory.begin(lambda indices: nothing)
    memory.put(value.shape, None, lambda at: (at, ctx.load(value, at)), stride)
    stored = memory.result().stored
    assert stored is not None
    return Strided(stored.buffer, value.shape, stride, stored.offset)


def _through_memory(
    ctx: Context,
    value: Value,
    base: Value,
    source: Value,
    view: tuple[tuple[int, ...], tuple[int, ...], int],
    last: int,
) -> Value:
    """What a strided view of memory replaces, where that has gaps between the elements, or reaches
    beyond them: the memory as one row, with the base in it, then what is seen through the view."""
    shape, stride, start = view
    before = max(0, -start)
    end = sum((n - 1) * s for n, s in zip(value.shape, value.stride, strict=True))
    length = before + max(end, last) + 1
    row = Value((length,), (1,), value.dtype, value.device, value.origin)
    memory = Target(ctx, row, None)
    nothing = ctx.builder.constant(0, arithmetic_dtype(memory.dtype))
    memory.begin(lambda indices: nothing)

    def base_point(indices: Indices) -> tuple[Sequence[Index], Expr]:
        return (*indices, constant(before)), element_of(ctx, base, indices, value.dtype)

    def point(indices: Indices) -> tuple[Sequence[Index], Expr]:
        return (*indices, constant(before + start)), element_of(ctx, source, indices, value.dtype)

    memory.put(value.shape, None, base_point, (*value.stride, 1))
    memory.put(shape, None, point, (*stride, 1))
    stored = memory.result().stored
    assert stored is not None
    value.stored = Strided(stored.buffer, value.shape, value.stride, stored.offset + before)
    return value


RULES: dict[str, Rule] = {
    "index_put.default": _index_put,
    "scatter.src": _scatter(None),
    "scatter.value": _scatter(None),
    "scatter_add.default": _scatter(SUM),
    "as_strided_scatter.default": _as_strided_scatter,
}
