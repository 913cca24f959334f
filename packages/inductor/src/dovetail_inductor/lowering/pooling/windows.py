"""Windows along the dimensions of an image, and how elements and windows find each other."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product
from math import prod
from typing import Any

import torch

from dovetail_inductor.loop_ir.expr import Expr
from dovetail_inductor.loop_ir.index import ZERO, Index, Var, constant, variable
from dovetail_inductor.loop_ir.ops import arithmetic_dtype
from dovetail_inductor.loop_ir.reduction import SUM, Reduction
from dovetail_inductor.loop_ir.sizes import is_symbolic
from dovetail_inductor.lowering.indexing import both, in_range, masked_load
from dovetail_inductor.lowering.values import Context, Indices, Value

# Windows of more elements are read by a loop.
MOST_READS = 27
# What computing all elements of a window may cost; beyond it they are computed once, before.
_WINDOW_COST = 150
FAR = 2**62  # beyond every number of an element


@dataclass(frozen=True)
class Steps:
    """Windows of one size along one dimension, at equal steps."""

    size: int
    pooled: int
    kernel: int
    step: int
    pad: int
    dilation: int = 1

    @property
    def reads(self) -> int:
        """The elements of a window."""
        return self.kernel

    @property
    def hits(self) -> int:
        """In how many windows an element may lie."""
        return self.kernel if self.dilation != 1 else -(-self.kernel // self.step)

    def element(self, ctx: Context, window: Index, k: Index) -> tuple[Index, Expr]:
        """Where element k of a window lies, and whether that is not in the padding."""
        at = window * self.step + k * self.dilation - self.pad
        return at, in_range(ctx, at, 0, self.size)

    def window(self, ctx: Context, at: Index, back: Index) -> tuple[Index, Expr]:
        """One of the windows that may hold an element, and whether it does."""
        b = ctx.builder
        if self.dilation != 1:
            start = at + self.pad - back * self.dilation
            phase = b.index_value(start.mod(self.step))
            found = start.floordiv(self.step)
            exact = b.apply("eq", [phase, b.constant(0, torch.int64)])
            if self.step == 1:
                exact = b.constant(True, torch.bool)
            return found, both(ctx, exact, in_range(ctx, found, 0, self.pooled))
        found = (at + self.pad).floordiv(self.step) - back
        reached = in_range(ctx, at + self.pad - found * self.step, 0, self.kernel)
        return found, both(ctx, reached, in_range(ctx, found, 0, self.pooled))

    def extent(self, ctx: Context, window: Index, with_padding: bool) -> Expr:
        """How many elements of a window count."""
        b = ctx.builder
        start = window * self.step - self.pad
        beyond = self.size + self.pad if with_padding else self.size
        low, high = b.index_value(start), b.index_value(start + self.kernel)
        if not with_padding and start.bounds[0] < 0:
            low = b.apply("maximum", [low, b.constant(0, torch.int64)])
        if is_symbolic(beyond) or not (start + self.kernel).bounds[1] <= beyond:
            high = b.apply("minimum", [high, b.constant(beyond, torch.int64)])
        elif start.bounds[0] >= 0 or with_padding:
            return b.constant(self.kernel, torch.int64)
        return b.apply("sub", [high, low])


@dataclass(frozen=True)
class Shares:
    """Adaptive windows: window i holds what lies between i/n and (i + 1)/n of the dimension."""

    size: int
    pooled: int

    @property
    def reads(self) -> int:
        """The elements of the largest window, or one more."""
        whole = self.size % self.pooled == 0
        return self.size // self.pooled if whole else -(-self.size // self.pooled) + 1

    @property
    def hits(self) -> int:
        """In how many windows an element may lie."""
        whole = self.pooled % self.size == 0
        return self.pooled // self.size if whole else -(-self.pooled // self.size) + 1

    def _ends(self, window: Index) -> tuple[Index, Index]:
        after = (window + 1) * self.size + (self.pooled - 1)
        return (window * self.size).floordiv(self.pooled), after.floordiv(self.pooled)

    def element(self, ctx: Context, window: Index, k: Index) -> tuple[Index, Expr]:
        """Where element k of a window lies, and whether the window is so long."""
        start, end = self._ends(window)
        if k.is_constant and k.const < self.size // self.pooled:
            return start + k, ctx.builder.constant(True, torch.bool)
        return start + k, in_range(ctx, start + k - end, -self.size - 1, 0)

    def window(self, ctx: Context, at: Index, back: Index) -> tuple[Index, Expr]:
        """One of the windows that may hold an element, and whether it does."""
        found = (at * self.pooled).floordiv(self.size) + back
        if back == ZERO:
            return found, ctx.builder.constant(True, torch.bool)
        last = ((at + 1) * self.pooled + (self.size - 1)).floordiv(self.size)
        return found, in_range(ctx, found - last, -self.pooled - 1, 0)

    def extent(self, ctx: Context, window: Index, with_padding: bool) -> Expr:
        """How many elements a window has."""
        start, end = self._ends(window)
        return ctx.builder.index_value(end - start)


Dim = Steps | Shares


def steps_of(
    rank: int, size: Sequence[int], pooled: Sequence[int], *geometry: Any
) -> list[Steps] | None:
    """From kernel, stride, padding (and dilation) as an op takes them; None for sizes that are not
    numbers."""

    def each(given: Any) -> list[int]:
        numbers: list[int] = [given] if isinstance(given, int) else list(given)
        return numbers * rank if len(numbers) == 1 else numbers

    kernel, step, *rest = geometry
    parts = [each(kernel), each(kernel if step in ((), []) else step), *map(each, rest)]
    if any(map(is_symbolic, (*size[-rank:], *pooled[-rank:]))):
        return None
    return [Steps(*own) for own in zip(size[-rank:], pooled[-rank:], *parts, strict=True)]


def shares_of(rank: int, size: Sequence[int], pooled: Sequence[int]) -> list[Shares] | None:
    """Adaptive windows along the last `rank` dimensions; None of symbolic or empty sizes."""
    sizes = (*size[-rank:], *pooled[-rank:])
    if any(map(is_symbolic, sizes)) or 0 in sizes:
        return None
    return [Shares(n, m) for n, m in zip(size[-rank:], pooled[-rank:], strict=True)]


def filled(args: Sequence[Any], defaults: Sequence[Any]) -> list[Any]:
    """All arguments of an op, of which trailing ones may have been left out."""
    return [*args, *defaults[len(args) :]]


def places(ctx: Context, parts: Sequence[tuple[Index, Expr]]) -> tuple[Indices, Expr]:
    """Positions along several dimensions, and whether all of them are valid."""
    valid = ctx.builder.constant(True, torch.bool)
    for _, own in parts:
        valid = both(ctx, own, valid)
    return tuple(at for at, _ in parts), valid


def element_number(ctx: Context, dims: Sequence[Dim], at: Indices) -> Expr:
    """How pooling numbers an element of the source."""
    flat = constant(0)
    for dim, i in zip(dims, at, strict=True):
        flat = flat * dim.size + i
    return ctx.builder.index_value(flat)


# What an element of the result takes from one place, of its indices, the place and a mask.
Part = Callable[[Indices, Indices, Expr | None], Expr]


def reduced(
    ctx: Context, value: Value, counts: Sequence[int], reduction: Reduction, part: Part
) -> None:
    """Put in memory the reduction of `part` over places, one variable a dimension."""
    variables, indices = ctx.loop_indices(value.shape)
    extra = tuple(Var(len(variables) + d, n) for d, n in enumerate(counts))
    body = part(indices, tuple(map(variable, extra)), None)
    ctx.write(value, ctx.new_buffer(value), variables, extra, reduction, body)


def summed(ctx: Context, value: Value, counts: Sequence[int], part: Part) -> Value:
    """The sum of `part` over places: an expression, or a loop where they are many."""
    if prod(counts) > MOST_READS:
        reduced(ctx, value, counts, SUM, part)
        return value

    def loader(indices: Indices, mask: Expr | None) -> Expr:
        total: Expr | None = None
        for place in product(*(range(n) for n in counts)):
            own = part(indices, tuple(map(constant, place)), mask)
            total = own if total is None else ctx.builder.apply("add", [total, own])
        assert total is not None
        return total

    return value.made_by(loader)


def masked_part(ctx: Context, source: Value, at: Indices, valid: Expr, mask: Expr | None) -> Expr:
    """An element in its arithmetic type; 0 where it is not valid."""
    b = ctx.builder
    nothing = b.constant(0, arithmetic_dtype(source.dtype))
    expr = masked_load(ctx, source, at, both(ctx, valid, mask))
    return nothing if expr is None else b.apply("where", [valid, expr, nothing])


def in_memory_if_costly(ctx: Context, source: Value, reads: int) -> None:
    """Compute a source before that windows would compute again and again."""
    if source.stored is None and ctx.cost(source).cost * reads > _WINDOW_COST:
        ctx.realize(source)
