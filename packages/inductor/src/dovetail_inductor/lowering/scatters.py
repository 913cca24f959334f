"""Lowering rules of ops that write to computed places: index_put, scatter and their like.

Each is one nest over what is written, over memory that another nest has initialised. What a
library does in one order for several elements at one place, a GPU does in any: sums of floats may
differ in their last digits from call to call. So `torch.use_deterministic_algorithms` leaves these
ops to the library there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import torch
from dovetail_prims.fake_tensor import FakeTensor
from torch import fx
from torch.utils import _pytree as pytree

from dovetail_inductor.loop_ir.expr import Expr
from dovetail_inductor.loop_ir.index import ZERO, Index, constant, linear
from dovetail_inductor.loop_ir.loops import Combine, LoopNest, Scatter, Strided
from dovetail_inductor.loop_ir.ops import arithmetic_dtype
from dovetail_inductor.loop_ir.sizes import any_symbolic, hint_of
from dovetail_inductor.lowering.indexing import broadcast_shape, checked_index
from dovetail_inductor.lowering.pointwise import Rule
from dovetail_inductor.lowering.promotion import broadcast_load, cast, number
from dovetail_inductor.lowering.values import (
    Context,
    Indices,
    Value,
    is_dense,
    static_shape,
    tensor_of,
    value_like,
)

# A source element that costs more is computed before, where loops run in parallel.
SOURCE_COST = 12

# A target of narrow elements is left to the library if it is so many times as large as the source.
LARGER_TARGET = 4

# At a point of the source: where it goes in the target, and what it brings.
Point = Callable[[Indices], tuple[Sequence[Index], Expr]]


def _accumulated(dtype: torch.dtype, combine: Combine) -> torch.dtype:
    """The type that elements are combined in: narrow ones are rounded once, at the end. (It is one
    that a GPU has atomics of.)"""
    if combine == "store":
        return dtype
    if dtype.is_floating_point:
        return torch.float32 if dtype.itemsize == 2 else dtype
    return torch.int32 if dtype.itemsize < 4 else dtype


def _is_ours(ctx: Context, value: Value, combine: Combine, shape: Sequence[int]) -> bool:
    """Whether to combine elements of a source of this shape by a kernel of ours: on a GPU not where
    what several elements make of one place must not depend on their order, nor where a large target
    of narrow elements would have to lie in memory in wider ones."""
    if not ctx.on_gpu:
        return True
    if torch.are_deterministic_algorithms_enabled():
        return False
    wider = _accumulated(value.dtype, combine).itemsize > value.dtype.itemsize
    return not wider or hint_of(value.numel) <= LARGER_TARGET * hint_of(prod(shape))


class _Target:
    """Memory that scatters write to, begun as a tensor of the caller's choice."""

    def __init__(self, ctx: Context, value: Value, combine: Combine) -> None:
        self.ctx, self.value = ctx, value
        self.dtype = _accumulated(value.dtype, combine)
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
        combine: Combine,
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
            scatter=Scatter(combine, before.buffer),
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


def _cheap(ctx: Context, *values: Any) -> None:
    """Compute in parallel, before, what a scatter would compute one after another."""
    for value in values:
        if isinstance(value, Value) and value.stored is None and not ctx.on_gpu:
            if ctx.cost(value).cost > SOURCE_COST:
                ctx.realize(value)


def _brought(ctx: Context, source: Any, indices: Indices, dtype: torch.dtype) -> Expr:
    """An element of what is written, in the type of the target."""
    if not isinstance(source, Value):
        return number(ctx, source, dtype, True)
    expr = ctx.load(source, indices)
    return expr if source.dtype == dtype else cast(ctx, expr, dtype)


def _index_put(ctx: Context, node: fx.Node, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    base: Value = args[0]
    picks: list[Value | None] = list(args[1])
    source: Value = args[2]
    accumulate = args[3] if len(args) > 3 else kwargs.get("accumulate", False)
    value = value_like(tensor_of(node), node.name)
    used = [p for p in picks if p is not None]
    if any(p.dtype in (torch.bool, torch.uint8) for p in used) or not used:
        return _put_where(ctx, value, base, picks, source, accumulate)
    combine: Combine = "store"
    if accumulate:
        combine = "max" if value.dtype is torch.bool else "add"
    picks += [None] * (len(base.shape) - len(picks))
    shape = broadcast_shape([p.shape for p in used])
    dims = [d for d, p in enumerate(picks) if p is not None]
    lead = dims[0] if dims == list(range(dims[0], dims[-1] + 1)) else 0
    others = [base.shape[d] for d, p in enumerate(picks) if p is None]
    whole = (*others[:lead], *shape, *others[lead:])
    if not _is_ours(ctx, value, combine, whole):
        return NotImplemented
    _cheap(ctx, source, *used)

    def point(indices: Indices) -> tuple[Sequence[Index], Expr]:
        at = indices[lead : lead + len(shape)]
        rest = iter(indices[:lead] + indices[lead + len(shape) :])
        own = []
        for d, pick in enumerate(picks):
            if pick is None:
                own.append(next(rest))
            else:
                position = broadcast_load(ctx, pick, shape, at, None)
                own.append(checked_index(ctx, position, base.shape[d], None, wrap=True))
        return own, broadcast_load(ctx, source, whole, indices, None)

    target = _Target(ctx, value, combine)
    target.begin_as(base, node)
    target.put(whole, combine, point)
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

    value.loader = loader
    return value


def _along(
    ctx: Context, base: Value, dim: int, index: Value, source: Any, dtype: torch.dtype
) -> tuple[tuple[int, ...], Point]:
    """The points of a scatter along one dimension."""
    if not base.shape or not index.shape:
        # One element, wherever it comes from.
        def only(indices: Indices) -> tuple[Sequence[Index], Expr]:
            own = indices if index.shape else ()
            position = ctx.load(index, own)
            size = base.shape[0] if base.shape else 1
            at = checked_index(ctx, position, size, None, wrap=False)
            where = (ZERO,) * len(source.shape) if isinstance(source, Value) else ()
            return (at,) * len(base.shape), _brought(ctx, source, where, dtype)

        return index.shape, only
    dim %= len(base.shape)
    _cheap(ctx, source, index)

    def point(indices: Indices) -> tuple[Sequence[Index], Expr]:
        position = ctx.load(index, indices)
        at = checked_index(ctx, position, base.shape[dim], None, wrap=False)
        own = (*indices[:dim], at, *indices[dim + 1 :])
        return own, _brought(ctx, source, indices, dtype)

    return index.shape, point


def _scatter(combine: Combine) -> Rule:
    def rule(ctx: Context, node: fx.Node, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        base, dim, index, source = args[:4]
        value = value_like(tensor_of(node), node.name)
        how: Combine = "max" if combine == "add" and value.dtype is torch.bool else combine
        if kwargs or len(args) > 4 or not _is_ours(ctx, value, how, index.shape):
            return NotImplemented
        target = _Target(ctx, value, how)
        target.begin_as(base, node)
        shape, point = _along(ctx, base, dim, index, source, value.dtype)
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
    target = _Target(ctx, value, "store")
    target.begin_as(base, node)

    def point(indices: Indices) -> tuple[Sequence[Index], Expr]:
        return (*indices, constant(start)), _brought(ctx, source, indices, value.dtype)

    target.put(tuple(shape), "store", point, (*stride, 1))
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
    memory = _Target(ctx, row, "store")
    nothing = ctx.builder.constant(0, arithmetic_dtype(memory.dtype))
    memory.begin(lambda indices: nothing)
    memory.put(value.shape, "store", lambda at: (at, ctx.load(value, at)), stride)
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
    memory = _Target(ctx, row, "store")
    nothing = ctx.builder.constant(0, arithmetic_dtype(memory.dtype))
    memory.begin(lambda indices: nothing)

    def base_point(indices: Indices) -> tuple[Sequence[Index], Expr]:
        return (*indices, constant(before)), _brought(ctx, base, indices, value.dtype)

    def point(indices: Indices) -> tuple[Sequence[Index], Expr]:
        return (*indices, constant(before + start)), _brought(ctx, source, indices, value.dtype)

    memory.put(value.shape, "store", base_point, (*value.stride, 1))
    memory.put(shape, "store", point, (*stride, 1))
    stored = memory.result().stored
    assert stored is not None
    value.stored = Strided(stored.buffer, value.shape, value.stride, stored.offset + before)
    return value


# --- reductions -----------------------------------------------------------------------------------

_REDUCTIONS: dict[str, Combine] = {
    "sum": "add", "mean": "add", "prod": "mul", "amax": "max", "amin": "min",
}  # fmt: skip


class _Reduction:
    """How a GPU combines: its atomics compare floats by their bits, which puts NaN above all
    numbers if its sign is +, and knows one zero only. So the least is sought as the greatest of
    what has the other sign."""

    def __init__(self, ctx: Context, name: str, dtype: torch.dtype) -> None:
        self.ctx = ctx
        self.combine = _REDUCTIONS[name]
        self.dtype = _accumulated(dtype, self.combine)
        by_bits = ctx.on_gpu and dtype.is_floating_point and self.combine in ("max", "min")
        self.negated = by_bits and self.combine == "min"
        self.by_bits = by_bits
        if self.negated:
            self.combine = "max"

    def held(self, expr: Expr) -> Expr:
        """An element as it is combined."""
        b = self.ctx.builder
        kind = arithmetic_dtype(self.dtype)
        expr = b.apply("cast", [expr], kind)
        if self.negated:
            expr = b.apply("neg", [expr])
        if self.by_bits:
            expr = b.apply("add", [expr, b.constant(0, kind)])
            nan = b.constant(float("nan"), kind)
            expr = b.apply("where", [b.apply("isnan", [expr]), nan, expr])
        return expr

    def given(self, expr: Expr) -> Expr:
        """What was combined, as an element."""
        return self.ctx.builder.apply("neg", [expr]) if self.negated else expr

    def nothing(self) -> Expr:
        """What changes nothing when it is combined."""
        kind = arithmetic_dtype(self.dtype)
        if self.combine in ("add", "mul"):
            return self.ctx.builder.constant(self.combine == "mul", kind)
        most = self.combine == "min"
        if kind.is_floating_point:
            return self.ctx.builder.constant(float("inf" if most else "-inf"), kind)
        info = torch.iinfo(kind)
        return self.ctx.builder.constant(int(info.max if most else info.min), kind)


def _reduce(
    ctx: Context,
    node: fx.Node,
    base: Value,
    points: tuple[tuple[int, ...], Point],
    name: str,
    include_self: bool,
) -> Any:
    value = value_like(tensor_of(node), node.name)
    reduction = _Reduction(ctx, name, value.dtype)
    if value.dtype is torch.bool or not _is_ours(ctx, value, reduction.combine, points[0]):
        return NotImplemented
    if ctx.on_gpu and reduction.combine == "mul":
        return NotImplemented  # there is no such atomic
    b = ctx.builder
    shape, point = points
    target = _Target(ctx, value, reduction.combine)
    target.begin(lambda indices: reduction.held(ctx.load(base, indices)))
    if not include_self:
        target.put(shape, "store", lambda indices: (point(indices)[0], reduction.nothing()))

    def held(indices: Indices) -> tuple[Sequence[Index], Expr]:
        at, brought = point(indices)
        return at, reduction.held(brought)

    target.put(shape, reduction.combine, held)
    total = target.held
    if name != "mean":

        def reduced(indices: Indices, mask: Expr | None) -> Expr:
            return cast(ctx, reduction.given(ctx.load(total, indices, mask)), value.dtype)

        value.loader = reduced
        return value
    number_of = Value(value.shape, value.stride, torch.int32, value.device, value.origin)
    counted = _Target(ctx, number_of, "add")
    one = b.constant(1, torch.int32)
    counted.begin(lambda indices: b.constant(int(include_self), torch.int32))
    counted.put(shape, "add", lambda indices: (point(indices)[0], one))
    count = counted.result()

    def mean(indices: Indices, mask: Expr | None) -> Expr:
        sum_, divisor = ctx.load(total, indices, mask), ctx.load(count, indices, mask)
        if value.dtype.is_floating_point:
            most = b.apply("maximum", [divisor, one])
            quotient = b.apply("div", [sum_, b.apply("cast", [most], sum_.dtype)])
            return cast(ctx, quotient, value.dtype)
        # Both wrap in the type of the result, as eager's do.
        sum_, divisor = cast(ctx, sum_, value.dtype), cast(ctx, divisor, value.dtype)
        nothing, unit = (b.constant(n, value.dtype) for n in (0, 1))
        divisor = b.apply("where", [b.apply("eq", [divisor, nothing]), unit, divisor])
        return b.apply("floordiv", [sum_, divisor])

    value.loader = mean
    return value


def _scatter_reduce(
    ctx: Context, node: fx.Node, args: Sequence[Any], kwargs: dict[str, Any]
) -> Any:
    base, dim, index, source, name = args[:5]
    include_self = args[5] if len(args) > 5 else kwargs.get("include_self", True)
    points = _along(ctx, base, dim, index, source, base.dtype)
    return _reduce(ctx, node, base, points, name, include_self)


def _index_reduce(ctx: Context, node: fx.Node, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    base, dim, index, source, name = args[:5]
    include_self = args[5] if len(args) > 5 else kwargs.get("include_self", True)
    if not base.shape or not index.shape:
        points = _along(ctx, base, dim, index, source, base.dtype)
        return _reduce(ctx, node, base, points, name, include_self)
    dim %= len(base.shape)
    _cheap(ctx, source, index)

    def point(indices: Indices) -> tuple[Sequence[Index], Expr]:
        position = ctx.load(index, (indices[dim],))
        at = checked_index(ctx, position, base.shape[dim], None, wrap=False)
        return (*indices[:dim], at, *indices[dim + 1 :]), ctx.load(source, indices)

    return _reduce(ctx, node, base, (source.shape, point), name, include_self)


def _embedding_backward(
    ctx: Context, node: fx.Node, args: Sequence[Any], kwargs: dict[str, Any]
) -> Any:
    gradient, index, rows, padding, by_frequency = args
    value = value_like(tensor_of(node), node.name)
    if by_frequency or not _is_ours(ctx, value, "add", gradient.shape):
        return NotImplemented
    b = ctx.builder
    _cheap(ctx, gradient, index)

    def point(indices: Indices) -> tuple[Sequence[Index], Expr]:
        position = ctx.load(index, indices[:-1])
        at = checked_index(ctx, position, rows, None, wrap=False)
        brought = ctx.load(gradient, indices)
        if padding is not None and padding >= 0:
            skipped = b.apply("eq", [position, b.constant(padding, position.dtype)])
            nothing = b.constant(0, brought.dtype)
            brought = b.apply("where", [skipped, nothing, brought])
        return (at, indices[-1]), brought

    target = _Target(ctx, value, "add")
    zero = b.constant(0, arithmetic_dtype(target.dtype))
    target.begin(lambda indices: zero)
    target.put(gradient.shape, "add", point)
    return target.result()


RULES: dict[str, Rule] = {
    "index_put.default": _index_put,
    "scatter.src": _scatter("store"),
    "scatter.value": _scatter("store"),
    "scatter_add.default": _scatter("add"),
    "scatter_reduce.two": _scatter_reduce,
    "index_reduce.default": _index_reduce,
    "as_strided_scatter.default": _as_strided_scatter,
    "embedding_dense_backward.default": _embedding_backward,
}
