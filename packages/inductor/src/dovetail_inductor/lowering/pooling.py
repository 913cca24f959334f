"""Lowering rules of max pooling, on a GPU: windows are read, not scattered to.

An element of the gradient reads the few windows that it lies in, and takes the gradient of those
that chose it. So both ways fuse with what is around them, and nothing is added up in memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import Any

import torch
from torch import fx

from dovetail_inductor.loop_ir.expr import Expr
from dovetail_inductor.loop_ir.index import Index
from dovetail_inductor.loop_ir.ops import arithmetic_dtype
from dovetail_inductor.loop_ir.sizes import is_symbolic
from dovetail_inductor.lowering.indexing import both, in_range, masked_load
from dovetail_inductor.lowering.pointwise import Rule
from dovetail_inductor.lowering.promotion import number
from dovetail_inductor.lowering.values import Context, Indices, Value, value_like

# Larger windows are the library's: each of their elements is read by itself.
_MOST_READS = 25
# What computing all elements of a window may cost; beyond it they are computed once, before.
_WINDOW_COST = 150


class _Window:
    """The geometry of `max_pool2d` over sizes that are known."""

    def __init__(self, source: Value, args: Sequence[Any], pooled: Sequence[int]) -> None:
        def pair(position: int, default: Any) -> tuple[int, int]:
            given = args[position] if len(args) > position else default
            given = [given] if isinstance(given, int) else list(given)
            return (given[0], given[-1])

        self.size = (source.shape[-2], source.shape[-1])
        self.pooled = (pooled[-2], pooled[-1])
        self.kernel = pair(0, ())
        self.step = pair(1, ()) if len(args) > 1 and args[1] not in ((), []) else self.kernel
        self.pad = pair(2, 0)
        self.dilation = pair(3, 1)

    def is_small(self) -> bool:
        """Whether it pays to read each element of a window."""
        known = not any(is_symbolic(n) for n in (*self.size, *self.pooled))
        return known and self.kernel[0] * self.kernel[1] <= _MOST_READS

    def offsets(self) -> list[tuple[int, int]]:
        """Of a window's elements, in the order in which they are compared."""
        (rows, columns), (dy, dx) = self.kernel, self.dilation
        return [(y * dy, x * dx) for y, x in product(range(rows), range(columns))]

    def element(self, at: Indices, offset: tuple[int, int]) -> tuple[Index, Index]:
        """Where in the source the element of a window lies; it may be in the padding."""
        y, x = (i * s + (o - p) for i, s, o, p in zip(at, self.step, offset, self.pad, strict=True))
        return y, x

    def number(self, ctx: Context, y: Index, x: Index) -> Expr:
        """How the pooling numbers an element of the source."""
        return ctx.builder.index_value(y * self.size[1] + x)

    def containing(self, at: Indices) -> list[tuple[Index, Index]]:
        """The windows that an element of the source may lie in; some do not exist."""
        ways = []
        for i, p, s, k in zip(at, self.pad, self.step, self.kernel, strict=True):
            last = (i + p).floordiv(s)
            ways.append([last - back for back in range(-(-k // s))])
        return list(product(*ways))  # type: ignore[arg-type]


def _max_pool2d(ctx: Context, node: fx.Node, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    source: Value = args[0]
    best, chosen = node.meta["val"]
    value, index = value_like(best, node.name), value_like(chosen, node.name)
    window = _Window(source, args[1:], value.shape)
    if not ctx.on_gpu or kwargs or not window.is_small():
        return NotImplemented
    offsets = window.offsets()
    if source.stored is None and ctx.cost(source).cost * len(offsets) > _WINDOW_COST:
        ctx.realize(source)

    def folded(indices: Indices, mask: Expr | None) -> tuple[Expr, Expr]:
        """The largest element of a window and its number: the first of equal ones, the last NaN if
        there is one. (From last to first, so that even -inf is found where nothing is larger.)"""
        b = ctx.builder
        lowest = -torch.inf if value.dtype.is_floating_point else torch.iinfo(value.dtype).min
        largest = number(ctx, lowest, value.dtype, False)
        which: Expr = b.constant(0, torch.int64)
        for offset in reversed(offsets):
            y, x = window.element(indices[-2:], offset)
            inside = both(
                ctx, in_range(ctx, y, 0, window.size[0]), in_range(ctx, x, 0, window.size[1])
            )
            element = masked_load(ctx, source, (*indices[:-2], y, x), both(ctx, inside, mask))
            if element is None:
                continue
            better = b.apply("ge", [element, largest])
            if value.dtype.is_floating_point:
                first_nan = [b.apply("isnan", [element]), b.apply("eq", [largest, largest])]
                better = b.apply("bitwise_or", [better, b.apply("bitwise_and", first_nan)])
            better = both(ctx, better, inside)
            largest = b.apply("where", [better, element, largest])
            which = b.apply("where", [better, window.number(ctx, y, x), which])
        return largest, which

    value.loader = lambda indices, mask: folded(indices, mask)[0]
    index.loader = lambda indices, mask: folded(indices, mask)[1]
    if node.users and any(n.args[1] == 1 and n.users for n in node.users):
        # One kernel makes both.
        ctx.realize(value)
        ctx.realize(index)
    return value, index


def _max_pool2d_backward(
    ctx: Context, node: fx.Node, args: Sequence[Any], kwargs: dict[str, Any]
) -> Any:
    gradient, source, indices_of = args[0], args[1], args[-1]
    value = value_like(node.meta["val"], node.name)
    window = _Window(source, args[2:-1], gradient.shape)
    small = window.is_small() and window.dilation == (1, 1)
    if not ctx.on_gpu or kwargs or not small or indices_of.shape != gradient.shape:
        return NotImplemented
    target = arithmetic_dtype(value.dtype)

    def loader(indices: Indices, mask: Expr | None) -> Expr:
        b = ctx.builder
        own = window.number(ctx, *indices[-2:])
        nothing = b.constant(0, target)
        total: Expr | None = None
        for y, x in window.containing(indices[-2:]):
            exists = both(
                ctx, in_range(ctx, y, 0, window.pooled[0]), in_range(ctx, x, 0, window.pooled[1])
            )
            at, may = (*indices[:-2], y, x), both(ctx, exists, mask)
            choice = masked_load(ctx, indices_of, at, may)
            given = masked_load(ctx, gradient, at, may)
            if choice is None or given is None:
                continue
            takes = b.apply("bitwise_and", [b.apply("eq", [choice, own]), exists])
            part = b.apply("where", [takes, b.apply("cast", [given], target), nothing])
            total = part if total is None else b.apply("add", [total, part])
        return nothing if total is None else total

    value.loader = loader
    return value


RULES: dict[str, Rule] = {
    "max_pool2d_with_indices.default": _max_pool2d,
    "max_pool2d_with_indices_backward.default": _max_pool2d_backward,
}
