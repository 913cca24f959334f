"""Lowering rules of pooling: windows are read, not scattered to.

An element of the gradient reads the few windows that it lies in, and takes its share of theirs. So
both ways fuse with what is around them, and nothing is added up in memory. Small windows are read
one element after the other in an expression; larger ones by a loop of their own.

On a CPU the library's kernels stay where they were measured to be faster: maxima of more than nine
elements or of adaptive windows, gradients of maxima that are scattered along rows or lie in four
windows, gradients of averages of many elements, and columns of windows that are apart (unless there
are few), or of more than 49 elements.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product
from math import prod
from typing import Any

import torch
from torch import fx

from dovetail_inductor.loop_ir.expr import Expr
from dovetail_inductor.loop_ir.index import Index, Var, constant, variable
from dovetail_inductor.loop_ir.ops import arithmetic_dtype
from dovetail_inductor.loop_ir.sizes import hint_of, is_symbolic
from dovetail_inductor.lowering.indexing import both, in_range, masked_load
from dovetail_inductor.lowering.pointwise import Rule
from dovetail_inductor.lowering.promotion import number
from dovetail_inductor.lowering.values import Context, Indices, Value, value_like

# Windows of more elements are read by a loop.
_MOST_READS = 25
# What computing all elements of a window may cost; beyond it they are computed once, before.
_WINDOW_COST = 150
# On a CPU, of a maximum, and of its gradient.
_MOST_COMPARED = 9
_MOST_HITS = 3
# On a CPU, of an average, for its gradient: along rows, and with channels beside one another.
_MOST_SPREAD = 9
_MOST_SPREAD_BESIDE = 121
_MOST_COLUMNS = 49
_FEW_COLUMNS = 1 << 14  # all reads of columns
_FAR = 2**62  # beyond every number of an element


@dataclass(frozen=True)
class _Steps:
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
class _Shares:
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
        return start + k, in_range(ctx, start + k - end, -self.size - 1, 0)

    def window(self, ctx: Context, at: Index, back: Index) -> tuple[Index, Expr]:
        """One of the windows that may hold an element, and whether it does."""
        found = (at * self.pooled).floordiv(self.size) + back
        last = ((at + 1) * self.pooled + (self.size - 1)).floordiv(self.size)
        return found, in_range(ctx, found - last, -self.pooled - 1, 0)

    def extent(self, ctx: Context, window: Index, with_padding: bool) -> Expr:
        """How many elements a window has."""
        start, end = self._ends(window)
        return ctx.builder.index_value(end - start)


_Dim = _Steps | _Shares


def _steps(
    rank: int, size: Sequence[int], pooled: Sequence[int], *geometry: Any
) -> list[_Steps] | None:
    """From kernel, stride, padding (and dilation) as an op takes them; None for sizes that are not
    numbers."""

    def each(given: Any) -> list[int]:
        numbers: list[int] = [given] if isinstance(given, int) else list(given)
        return numbers * rank if len(numbers) == 1 else numbers

    kernel, step, *rest = geometry
    parts = [each(kernel), each(kernel if step in ((), []) else step), *map(each, rest)]
    if any(map(is_symbolic, (*size[-rank:], *pooled[-rank:]))):
        return None
    return [_Steps(*own) for own in zip(size[-rank:], pooled[-rank:], *parts, strict=True)]


def _shares(rank: int, size: Sequence[int], pooled: Sequence[int]) -> list[_Shares] | None:
    sizes = (*size[-rank:], *pooled[-rank:])
    if any(map(is_symbolic, sizes)) or 0 in sizes:
        return None
    return [_Shares(n, m) for n, m in zip(size[-rank:], pooled[-rank:], strict=True)]


def _filled(args: Sequence[Any], defaults: Sequence[Any]) -> list[Any]:
    """All arguments of an op, of which trailing ones may have been left out."""
    return [*args, *defaults[len(args) :]]


def _places(ctx: Context, parts: Sequence[tuple[Index, Expr]]) -> tuple[Indices, Expr]:
    """Positions along several dimensions, and whether all of them are valid."""
    valid = ctx.builder.constant(True, torch.bool)
    for _, own in parts:
        valid = both(ctx, own, valid)
    return tuple(at for at, _ in parts), valid


def _element_number(ctx: Context, dims: Sequence[_Dim], at: Indices) -> Expr:
    """How pooling numbers an element of the source."""
    flat = constant(0)
    for dim, i in zip(dims, at, strict=True):
        flat = flat * dim.size + i
    return ctx.builder.index_value(flat)


# What an element of the result takes from one place, of its indices, the place and a mask.
Part = Callable[[Indices, Indices, Expr | None], Expr]


def _reduced(ctx: Context, value: Value, counts: Sequence[int], reduction: str, part: Part) -> None:
    """Put in memory the reduction of `part` over places, one variable a dimension."""
    variables, indices = ctx.loop_indices(value.shape)
    extra = tuple(Var(len(variables) + d, n) for d, n in enumerate(counts))
    body = part(indices, tuple(map(variable, extra)), None)
    ctx.write(value, ctx.new_buffer(value), variables, extra, reduction, body)


def _summed(ctx: Context, value: Value, counts: Sequence[int], part: Part) -> Value:
    """The sum of `part` over places: an expression, or a loop where they are many."""
    if prod(counts) > _MOST_READS:
        _reduced(ctx, value, counts, "sum", part)
        return value

    def loader(indices: Indices, mask: Expr | None) -> Expr:
        total: Expr | None = None
        for place in product(*(range(n) for n in counts)):
            own = part(indices, tuple(map(constant, place)), mask)
            total = own if total is None else ctx.builder.apply("add", [total, own])
        assert total is not None
        return total

    value.loader = loader
    return value


def _masked_part(ctx: Context, source: Value, at: Indices, valid: Expr, mask: Expr | None) -> Expr:
    """An element in its arithmetic type; 0 where it is not valid."""
    b = ctx.builder
    nothing = b.constant(0, arithmetic_dtype(source.dtype))
    expr = masked_load(ctx, source, at, both(ctx, valid, mask))
    return nothing if expr is None else b.apply("where", [valid, expr, nothing])


def _in_memory_if_costly(ctx: Context, source: Value, reads: int) -> None:
    if source.stored is None and ctx.cost(source).cost * reads > _WINDOW_COST:
        ctx.realize(source)


# --- averages -------------------------------------------------------------------------------------


def _divisor(
    ctx: Context, dims: Sequence[_Dim], window: Indices, like: Value, with_padding: bool, given: Any
) -> Expr:
    """What the sum over a window is divided by."""
    b = ctx.builder
    count = b.constant(given or 1, torch.int64)
    for dim, i in () if given else zip(dims, window, strict=True):
        count = b.apply("mul", [dim.extent(ctx, i, with_padding), count])
    return b.apply("cast", [count], arithmetic_dtype(like.dtype))


def _slow_spread(ctx: Context, value: Value, dims: Sequence[_Dim]) -> bool:
    """Whether the library's kernel of the gradient of averages is faster"""
    sizes = [dim.kernel for dim in dims if isinstance(dim, _Steps)]
    most = _MOST_SPREAD if value.stride[-1] == 1 else _MOST_SPREAD_BESIDE
    return ctx.library_on_cpu and bool(sizes) and prod(sizes) > most


def _average(
    ctx: Context, node: fx.Node, source: Value, dims: Sequence[_Dim] | None, *counting: Any
) -> Any:
    value = value_like(node.meta["val"], node.name)
    if dims is None or not value.dtype.is_floating_point or value.numel == 0:
        return NotImplemented
    rank = len(dims)
    counts = [dim.reads for dim in dims]
    _in_memory_if_costly(ctx, source, prod(counts))

    def part(indices: Indices, place: Indices, mask: Expr | None) -> Expr:
        own = zip(dims, indices[-rank:], place, strict=True)
        at, valid = _places(ctx, [dim.element(ctx, i, k) for dim, i, k in own])
        return _masked_part(ctx, source, (*indices[:-rank], *at), valid, mask)

    wide = Value(
        value.shape, value.stride, arithmetic_dtype(value.dtype), value.device, f"{node.name}_sum"
    )
    total = _summed(ctx, wide, counts, part)

    def loader(indices: Indices, mask: Expr | None) -> Expr:
        count = _divisor(ctx, dims, indices[-rank:], value, *counting)
        return ctx.builder.apply("div", [ctx.load(total, indices, mask), count])

    value.loader = loader
    return value


def _average_backward(
    ctx: Context, node: fx.Node, gradient: Value, dims: Sequence[_Dim] | None, *counting: Any
) -> Any:
    value = value_like(node.meta["val"], node.name)
    if dims is None or not value.dtype.is_floating_point or gradient.numel == 0:
        return NotImplemented
    rank = len(dims)
    counts = [dim.hits for dim in dims]
    if _slow_spread(ctx, value, dims):
        return NotImplemented
    b = ctx.builder

    def part(indices: Indices, place: Indices, mask: Expr | None) -> Expr:
        own = zip(dims, indices[-rank:], place, strict=True)
        window, valid = _places(ctx, [dim.window(ctx, i, k) for dim, i, k in own])
        given = _masked_part(ctx, gradient, (*indices[:-rank], *window), valid, mask)
        count = _divisor(ctx, dims, window, value, *counting)
        one = b.constant(1, count.dtype)  # (a window that does not exist may hold nothing)
        return b.apply("div", [given, b.apply("where", [valid, count, one])])

    return _summed(ctx, value, counts, part)


def _avg_pool(rank: int) -> Rule:
    def rule(ctx: Context, node: fx.Node, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        if kwargs:
            return NotImplemented
        kernel, stride, pad, _, *counting = _filled(args[1:], ((), (), 0, False, True, None))
        pooled = value_like(node.meta["val"], node.name).shape
        dims = _steps(rank, args[0].shape, pooled, kernel, stride, pad)
        return _average(ctx, node, args[0], dims, *counting)

    return rule


def _avg_pool_backward(rank: int) -> Rule:
    def rule(ctx: Context, node: fx.Node, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        gradient, source, kernel, stride, pad, _, *counting = args
        dims = _steps(rank, source.shape, gradient.shape, kernel, stride, pad)
        return _average_backward(ctx, node, gradient, dims, *counting)

    return rule


def _adaptive_avg_pool(rank: int) -> Rule:
    def rule(ctx: Context, node: fx.Node, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        pooled = value_like(node.meta["val"], node.name).shape
        return _average(ctx, node, args[0], _shares(rank, args[0].shape, pooled), False, None)

    return rule


def _adaptive_avg_pool_backward(rank: int) -> Rule:
    def rule(ctx: Context, node: fx.Node, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        dims = _shares(rank, args[1].shape, args[0].shape)
        return _average_backward(ctx, node, args[0], dims, False, None)

    return rule


# --- maxima ---------------------------------------------------------------------------------------


def _maximum(ctx: Context, node: fx.Node, source: Value, dims: Sequence[_Dim] | None) -> Any:
    """The largest element of a window and its number: the first of equal ones, the last NaN if
    there is one."""
    best, chosen = node.meta["val"]
    value, index = value_like(best, node.name), value_like(chosen, node.name)
    if dims is None or value.numel == 0:
        return NotImplemented
    rank, counts = len(dims), [dim.reads for dim in dims]
    if ctx.library_on_cpu and (prod(counts) > _MOST_COMPARED or isinstance(dims[0], _Shares)):
        return NotImplemented
    lowest = -torch.inf if value.dtype.is_floating_point else torch.iinfo(value.dtype).min
    b = ctx.builder

    def element(
        indices: Indices, place: Indices, mask: Expr | None
    ) -> tuple[Indices, Expr, Expr | None]:
        own = zip(dims, indices[-rank:], place, strict=True)
        at, inside = _places(ctx, [dim.element(ctx, i, k) for dim, i, k in own])
        found = masked_load(ctx, source, (*indices[:-rank], *at), both(ctx, inside, mask))
        return at, inside, found

    def folded(indices: Indices, mask: Expr | None) -> tuple[Expr, Expr]:
        """(From last to first, so that even -inf is found where nothing is larger.)"""
        largest = number(ctx, lowest, value.dtype, False)
        which: Expr = b.constant(0, torch.int64)
        for place in reversed(list(product(*(range(n) for n in counts)))):
            at, inside, found = element(indices, tuple(map(constant, place)), mask)
            if found is None:
                continue
            better = b.apply("ge", [found, largest])
            if value.dtype.is_floating_point:
                first_nan = [b.apply("isnan", [found]), b.apply("eq", [largest, largest])]
                better = b.apply("bitwise_or", [better, b.apply("bitwise_and", first_nan)])
            better = both(ctx, better, inside)
            largest = b.apply("where", [better, found, largest])
            which = b.apply("where", [better, _element_number(ctx, dims, at), which])
        return largest, which

    if prod(counts) <= _MOST_READS:
        _in_memory_if_costly(ctx, source, prod(counts))
        value.loader = lambda indices, mask: folded(indices, mask)[0]
        index.loader = lambda indices, mask: folded(indices, mask)[1]
    else:
        ctx.realize(source)

        def candidate(indices: Indices, place: Indices, mask: Expr | None) -> Expr:
            nothing = number(ctx, lowest, value.dtype, False)
            _, inside, found = element(indices, place, mask)
            return nothing if found is None else b.apply("where", [inside, found, nothing])

        def hit(indices: Indices, place: Indices, mask: Expr | None) -> Expr:
            """The number of what equals the largest; of NaN, less the number, as the last one is
            meant."""
            at, inside, found = element(indices, place, mask)
            far = b.constant(_FAR, torch.int64)
            if found is None:
                return far
            own, largest = _element_number(ctx, dims, at), ctx.load(value, indices, mask)
            equal = b.apply("where", [b.apply("eq", [found, largest]), own, far])
            if value.dtype.is_floating_point:
                is_nan = b.apply("isnan", [found])
                equal = b.apply("where", [is_nan, b.apply("neg", [own]), equal])
            return b.apply("where", [inside, equal, far])

        _reduced(ctx, value, counts, "max", candidate)
        signed = Value(index.shape, index.stride, index.dtype, index.device, index.origin)
        _reduced(ctx, signed, counts, "min", hit)
        index.loader = lambda indices, mask: b.apply("abs", [ctx.load(signed, indices, mask)])
    if node.users and any(n.args[1] == 1 and n.users for n in node.users):
        # One kernel makes both.
        ctx.realize(value)
        ctx.realize(index)
    return value, index


def _maximum_backward(
    ctx: Context, node: fx.Node, gradient: Value, chosen: Value, dims: Sequence[_Dim] | None
) -> Any:
    value = value_like(node.meta["val"], node.name)
    if dims is None or chosen.shape != gradient.shape or gradient.numel == 0:
        return NotImplemented
    rank, counts = len(dims), [dim.hits for dim in dims]
    if ctx.library_on_cpu and (prod(counts) > _MOST_HITS or value.stride[-1] == 1):
        return NotImplemented
    b = ctx.builder

    def part(indices: Indices, place: Indices, mask: Expr | None) -> Expr:
        own = zip(dims, indices[-rank:], place, strict=True)
        window, exists = _places(ctx, [dim.window(ctx, i, k) for dim, i, k in own])
        at, may = (*indices[:-rank], *window), both(ctx, exists, mask)
        nothing = b.constant(0, arithmetic_dtype(value.dtype))
        choice, given = masked_load(ctx, chosen, at, may), masked_load(ctx, gradient, at, may)
        if choice is None or given is None:
            return nothing
        mine = b.apply("eq", [choice, _element_number(ctx, dims, indices[-rank:])])
        return b.apply("where", [both(ctx, mine, exists), given, nothing])

    return _summed(ctx, value, counts, part)


def _max_pool(rank: int) -> Rule:
    def rule(ctx: Context, node: fx.Node, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        if kwargs:
            return NotImplemented
        kernel, stride, pad, dilation, _ = _filled(args[1:], ((), (), 0, 1, False))
        pooled = value_like(node.meta["val"][0], node.name).shape
        dims = _steps(rank, args[0].shape, pooled, kernel, stride, pad, dilation)
        return _maximum(ctx, node, args[0], dims)

    return rule


def _max_pool_backward(rank: int) -> Rule:
    def rule(ctx: Context, node: fx.Node, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        gradient, source, kernel, stride, pad, dilation, _, chosen = args
        dims = _steps(rank, source.shape, gradient.shape, kernel, stride, pad, dilation)
        return _maximum_backward(ctx, node, gradient, chosen, dims)

    return rule


def _adaptive_max_pool(rank: int) -> Rule:
    def rule(ctx: Context, node: fx.Node, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        pooled = value_like(node.meta["val"][0], node.name).shape
        return _maximum(ctx, node, args[0], _shares(rank, args[0].shape, pooled))

    return rule


def _adaptive_max_pool_backward(rank: int) -> Rule:
    def rule(ctx: Context, node: fx.Node, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        dims = _shares(rank, args[1].shape, args[0].shape)
        return _maximum_backward(ctx, node, args[0], args[2], dims)

    return rule


# --- columns --------------------------------------------------------------------------------------


def _slow_columns(value: Value, dims: Sequence[_Steps]) -> bool:
    """Whether the library's kernel is faster"""
    count = prod(dim.kernel for dim in dims)
    apart = any(dim.step != 1 for dim in dims)
    return count > _MOST_COLUMNS or (apart and hint_of(value.numel) * count > _FEW_COLUMNS)


def _col2im(ctx: Context, node: fx.Node, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """The sum of an element's copies: for each element of the kernel, of the window that had it
    there, if there is one."""
    columns, size, kernel, dilation, pad, step = args
    value = value_like(node.meta["val"], node.name)
    parts = [x if len(x) == 2 else list(x) * 2 for x in (size, kernel, step, pad, dilation)]
    if value.numel == 0 or any(map(is_symbolic, (*value.shape[-2:], *columns.shape))):
        return NotImplemented
    dims = []
    for n, k, s, p, d in zip(*parts, strict=True):
        dims.append(_Steps(n, (n + 2 * p - d * (k - 1) - 1) // s + 1, k, s, p, d))
    if ctx.library_on_cpu and _slow_columns(value, dims):
        return NotImplemented
    b = ctx.builder

    def part(indices: Indices, place: Indices, mask: Expr | None) -> Expr:
        found = []
        for dim, i, k in zip(dims, indices[-2:], place, strict=True):
            start = i + dim.pad - k * dim.dilation
            window = start.floordiv(dim.step)
            valid = in_range(ctx, window, 0, dim.pooled)
            if dim.step != 1:
                phase = b.index_value(start.mod(dim.step))
                valid = both(ctx, b.apply("eq", [phase, b.constant(0, torch.int64)]), valid)
            found.append((window, valid))
        (y, x), valid = _places(ctx, found)
        *batch, channel = indices[:-2]
        row = (channel * dims[0].kernel + place[0]) * dims[1].kernel + place[1]
        return _masked_part(ctx, columns, (*batch, row, y * dims[1].pooled + x), valid, mask)

    _in_memory_if_costly(ctx, columns, prod(dim.kernel for dim in dims))
    return _summed(ctx, value, [dim.kernel for dim in dims], part)


RULES: dict[str, Rule] = {
    name: rule
    for rank in (2, 3)
    for name, rule in {
        f"avg_pool{rank}d.default": _avg_pool(rank),
        f"avg_pool{rank}d_backward.default": _avg_pool_backward(rank),
        f"_adaptive_avg_pool{rank}d.default": _adaptive_avg_pool(rank),
        f"_adaptive_avg_pool{rank}d_backward.default": _adaptive_avg_pool_backward(rank),
        f"max_pool{rank}d_with_indices.default": _max_pool(rank),
        f"max_pool{rank}d_with_indices_backward.default": _max_pool_backward(rank),
        f"adaptive_max_pool{rank}d.default": _adaptive_max_pool(rank),
        f"adaptive_max_pool{rank}d_backward.default": _adaptive_max_pool_backward(rank),
    }.items()
}
RULES["col2im.default"] = _col2im
