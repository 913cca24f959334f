"""Lowering rules of reductions: each becomes a loop nest of its own; fusing is the scheduler's."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import product
from math import prod
from typing import Any

import torch
from torch import fx

from dovetail_inductor.loop_ir.expr import Apply, Builder, Constant, Expr, IndexValue
from dovetail_inductor.loop_ir.index import Index, Var, variable
from dovetail_inductor.loop_ir.ops import arithmetic_dtype
from dovetail_inductor.loop_ir.reduction import (
    ALL,
    ANY,
    ARGMAX,
    ARGMIN,
    MAX,
    MIN,
    PROD,
    SUM,
    XOR,
    Reduction,
)
from dovetail_inductor.loop_ir.sizes import is_symbolic
from dovetail_inductor.lowering.pointwise import Rule
from dovetail_inductor.lowering.promotion import cast
from dovetail_inductor.lowering.values import (
    Context,
    Indices,
    Value,
    fits_cache_wide,
    in_order_of,
    tensor_of,
    value_like,
)
from dovetail_inductor.lowering.views import make_view

# A value that several reductions of one op read is put in memory when it costs more than this.
_REREAD_COST = 4
# A reduction of so many elements, of so large a tensor, is arithmetic.
_MOST_TERMS = 4
_LARGE = 1 << 14


def normal_dims(dims: Sequence[int] | int | None, rank: int) -> tuple[int, ...]:
    """Dimensions to reduce: sorted, non-negative; None or empty is all of them."""
    if isinstance(dims, int):
        dims = [dims]
    if not dims:
        return tuple(range(rank))
    return tuple(sorted({d % rank for d in dims})) if rank else ()


def reduce_into(
    ctx: Context,
    value: Value,
    source: Value,
    dims: tuple[int, ...],
    reduction: Reduction,
    element: Callable[[Indices], Expr],
) -> None:
    """Compute `value` (shaped like `source` with `dims` of size 1 or dropped) by a reduction.

    `element(indices of source)` is the expression to reduce.
    """
    keep = [d for d in range(len(source.shape)) if d not in dims]
    keepdim = len(value.shape) == len(source.shape)
    variables = tuple(Var(i, n) for i, n in enumerate(value.shape))
    first = len(variables)
    reduce_variables = tuple(Var(first + i, source.shape[d]) for i, d in enumerate(dims))
    at: dict[int, Index] = {d: variable(v) for d, v in zip(dims, reduce_variables, strict=True)}
    for position, d in enumerate(keep):
        at[d] = variable(variables[d if keepdim else position])
    body = element(tuple(at[d] for d in range(len(source.shape))))
    buffer = ctx.new_buffer(value)
    chosen = _chosen(ctx.builder, body, reduce_variables) if reduction.is_sum else None
    if chosen is not None:
        ctx.write(value, buffer, variables, (), None, chosen)
    else:
        ctx.write(value, buffer, variables, reduce_variables, reduction, body)


def _chosen(builder: Builder, body: Expr, along: tuple[Var, ...]) -> Expr | None:
    """The sum of what is a number at one place, which that number does not depend on, and 0 at all
    others: it, if there is such a place. (So a loss gives its gradient to the class of a target.)
    None if `body` is something else."""
    if len(along) != 1:
        return None
    (var,) = along
    match body:
        case Apply(op="where", args=(Apply(op="eq", args=(a, b)), number, Constant(value=0))):
            place, target = (a, b) if isinstance(a, IndexValue) else (b, a)
        case _:
            return None
    if not isinstance(place, IndexValue) or place.index != variable(var):
        return None
    if place.dtype not in (torch.int32, torch.int64):
        return None  # which may not hold all places
    if (number.free | target.free) >> var.id & 1:
        return None

    def bound(n: int) -> Expr:
        return builder.apply("cast", [builder.constant(n, torch.int64)], target.dtype)

    there = builder.apply(
        "bitwise_and",
        [builder.apply("ge", [target, bound(0)]), builder.apply("lt", [target, bound(var.size)])],
    )
    nothing = builder.constant(0, number.dtype)
    # (0 + -0.0 is 0.0)
    return builder.apply("add", [builder.apply("where", [there, number, nothing]), nothing])


def _simple(reduction: Reduction) -> Rule:
    """sum, prod, amax, amin: the element in the type in which it accumulates."""

    def rule(ctx: Context, node: fx.Node, args: Sequence[Any], kwargs: dict[str, Any]) -> Value:
        source: Value = args[0]
        value = value_like(tensor_of(node), node.name)
        dims = normal_dims(args[1] if len(args) > 1 else None, len(source.shape))
        accumulate = arithmetic_dtype(value.dtype)
        kind = reduction.on(value.dtype)

        def element(indices: Indices, mask: Expr | None = None) -> Expr:
            expr = ctx.load(source, indices, mask)
            if "dtype" in kwargs and kwargs["dtype"] not in (None, source.dtype):
                expr = cast(ctx, expr, kwargs["dtype"])
            return ctx.builder.apply("cast", [expr], accumulate)

        if _few_terms(ctx, source, dims):
            value.loader = _term_by_term(ctx, value, source, dims, kind.combine, element)
        else:
            reduce_into(ctx, value, source, dims, kind, element)
        return value

    return rule


def _few_terms(ctx: Context, source: Value, dims: tuple[int, ...]) -> bool:
    """Whether a reduction is arithmetic on a few elements at each point of a large result, which
    then can be computed wherever it is read (on a CPU: where these are no neighbours)."""
    if is_symbolic(prod(source.shape)) or prod(source.shape) < _LARGE:
        return False
    apart = ctx.target.costs.near_elements_apart or all(source.stride[d] != 1 for d in dims)
    return apart and 2 <= prod(source.shape[d] for d in dims) <= _MOST_TERMS


def _term_by_term(
    ctx: Context,
    value: Value,
    source: Value,
    dims: tuple[int, ...],
    combine: str,
    element: Callable[[Indices, Expr | None], Expr],
) -> Callable[[Indices, Expr | None], Expr]:
    """A loader of a reduction's results that combines the elements in order."""
    kept = [d for d in range(len(source.shape)) if d not in dims]
    keepdim = len(value.shape) == len(source.shape)

    def load(indices: Indices, mask: Expr | None) -> Expr:
        terms = []
        for places in product(*(range(int(source.shape[d])) for d in dims)):
            at = {d: Index(place, ()) for d, place in zip(dims, places, strict=True)}
            at |= {d: indices[d if keepdim else i] for i, d in enumerate(kept)}
            terms.append(element(tuple(at[d] for d in range(len(at))), mask))
        total = terms[0]
        for term in terms[1:]:
            total = ctx.builder.apply(combine, [total, term])
        return total

    return load


def _truth(reduction: Reduction) -> Rule:
    def rule(ctx: Context, node: fx.Node, args: Sequence[Any], kwargs: dict[str, Any]) -> Value:
        source: Value = args[0]
        value = value_like(tensor_of(node), node.name)
        dims = normal_dims(args[1] if len(args) > 1 else None, len(source.shape))

        def element(indices: Indices) -> Expr:
            return ctx.builder.apply("cast", [ctx.load(source, indices)], torch.bool)

        if value.dtype is torch.bool:
            reduce_into(ctx, value, source, dims, reduction, element)
            return value
        # Of bytes the truth is a byte, too: 0 or 1.
        truth = replace(value, dtype=torch.bool, _memo={})
        reduce_into(ctx, truth, source, dims, reduction, element)
        value.loader = lambda at, mask: cast(ctx, ctx.load(truth, at, mask), value.dtype)
        return value

    return rule


def _hash(ctx: Context, node: fx.Node, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """Exclusive or of the bits that elements have as float64 or int64. Loops hold the result as
    int64; it is seen as unsigned in memory."""
    source: Value = args[0]
    if kwargs.get("mode", 0) != 0:
        return NotImplemented  # the library's error
    ctx.realize(source)  # what is hashed has the bits that are in memory, however it was computed
    hashed = value_like(tensor_of(node), node.name)
    value = replace(hashed, dtype=torch.int64, _memo={})
    dims = normal_dims(args[1] if len(args) > 1 else None, len(source.shape))
    b = ctx.builder

    def element(indices: Indices) -> Expr:
        expr = ctx.load(source, indices)
        if not source.dtype.is_floating_point:
            return b.apply("cast", [expr], torch.int64)
        expr = b.apply("cast", [cast(ctx, expr, source.dtype)], torch.float64)
        return b.apply("to_bits", [expr], torch.int64)

    reduce_into(ctx, value, source, dims, XOR, element)
    return make_view(ctx, node, value, None, lambda stored: stored)


def _position(reduction: Reduction) -> Rule:
    def rule(ctx: Context, node: fx.Node, args: Sequence[Any], kwargs: dict[str, Any]) -> Value:
        source: Value = args[0]
        value = value_like(tensor_of(node), node.name)
        dim = args[1] if len(args) > 1 else None
        dims = normal_dims(dim, len(source.shape))
        if dim is None:  # with keepdim every dimension stays, as size 1
            assert value.numel == 1
        reduce_into(ctx, value, source, dims, reduction, lambda i: ctx.load(source, i))
        return value

    return rule


def _store_if_read_again(ctx: Context, source: Value) -> None:
    """Put what two reductions and their consumer read in memory where that saves more than it
    moves. A large tensor of a GPU goes there in its own narrow type, and not for a little
    arithmetic on one tensor of its size, which each reader then does again."""
    if source.stored is not None:
        return
    cost = ctx.cost(source)
    if not ctx.target.costs.memory_bound or fits_cache_wide(source):
        if cost.cost > _REREAD_COST:
            ctx.realize(source)
        return
    if len(ctx.large_reads(cost, source)) > 1 or cost.cost - cost.loads > ctx.target.costs.cheap(
        source.dtype
    ):
        ctx.realize(source.forms.widened or source)
        source.forget_memo()


def _var_mean(ctx: Context, node: fx.Node, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """Two passes, mean then squared deviations: as accurate as Welford, and cheap in cache."""
    source: Value = args[0]
    dims = normal_dims(args[1] if len(args) > 1 else kwargs.get("dim"), len(source.shape))
    correction = kwargs.get("correction", 1)
    correction = 1 if correction is None else correction
    count = prod(source.shape[d] for d in dims)
    arithmetic = arithmetic_dtype(source.dtype)
    var_val, mean_val = node.meta["val"]
    b = ctx.builder
    _store_if_read_again(ctx, source)

    # Statistics stay in the arithmetic type between the passes, and keep their dimensions.
    kept = tuple(1 if d in dims else n for d, n in enumerate(source.shape))

    def statistic(element: Callable[[Indices], Expr], name: str) -> Value:
        value = Value(
            kept, in_order_of(source.stride, kept), arithmetic, source.device, f"{node.name}_{name}"
        )
        reduce_into(ctx, value, source, dims, SUM, element)
        return value

    def divided(total: Value, by: Expr) -> Callable[[Indices, Expr | None], Expr]:
        # x / 0 follows IEEE: an empty or single sample gives NaN, as in eager
        return lambda i, m: b.apply("div", [ctx.load(total, i, m), by])

    samples = b.constant(count, arithmetic)
    total = statistic(lambda i: ctx.load(source, i), "sum")
    mean = replace(total, origin=f"{node.name}_mean", stored=None, loader=divided(total, samples))
    mean._memo = {}

    def deviation(indices: Indices) -> Expr:
        row = tuple(i if d not in dims else i * 0 for d, i in enumerate(indices))
        delta = b.apply("sub", [ctx.load(source, indices), ctx.load(mean, row)])
        return b.apply("mul", [delta, delta])

    squares = statistic(deviation, "squares")
    if is_symbolic(count):
        freedom = b.apply("sub", [samples, b.constant(correction, arithmetic)])
        freedom = b.apply("maximum", [freedom, b.constant(0, arithmetic)])
    else:
        freedom = b.constant(max(count - correction, 0), arithmetic)

    def result(val: torch.Tensor, loader: Callable[[Indices, Expr | None], Expr]) -> Value:
        value = value_like(val, node.name)
        keepdim = len(value.shape) == len(source.shape)

        def load(indices: Indices, mask: Expr | None) -> Expr:
            row = iter(indices)
            full = tuple(
                (next(row) * 0 if keepdim else Index(0, ())) if d in dims else next(row)
                for d in range(len(source.shape))
            )
            return loader(full, mask)

        return value.made_by(load)

    return (result(var_val, divided(squares, freedom)), result(mean_val, divided(total, samples)))


RULES: dict[str, Rule] = {
    "sum.dim_IntList": _simple(SUM),
    "prod.dim_int": _simple(PROD),
    "amax.default": _simple(MAX),
    "amin.default": _simple(MIN),
    "argmax.default": _position(ARGMAX),
    "argmin.default": _position(ARGMIN),
    "any.dims": _truth(ANY),
    "any.dim": _truth(ANY),
    "any.default": _truth(ANY),
    "all.dims": _truth(ALL),
    "all.dim": _truth(ALL),
    "all.default": _truth(ALL),
    "var_mean.correction": _var_mean,
    "hash_tensor.default": _hash,
}
# Their results are memory of another dtype than their loops hold.
SEEN_AS_ANOTHER_DTYPE = frozenset({"hash_tensor.default"})
