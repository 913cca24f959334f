"""Memory layout questions over symbolic sizes and strides, as relations."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from dovetail_guards import expr as e
from dovetail_guards import relations as rel
from dovetail_guards.shape_env import ShapeEnv

Rule = Callable[[ShapeEnv, list[e.Expr], list[e.Expr]], rel.BoolExpr]


def _packed(
    sizes: Sequence[e.Expr], strides: Sequence[e.Expr], order: Sequence[int]
) -> rel.BoolExpr:
    """Each dimension of `order`, innermost first, steps over exactly the ones before it.

    The stride of a dimension of size 1 does not matter, nor any if the tensor is empty.
    """
    expected, parts = e.ONE, []
    for dim in order:
        parts.append(rel.or_(rel.eq(sizes[dim], 1), rel.eq(strides[dim], expected)))
        expected = expected * sizes[dim]
    empty = rel.or_(*(rel.eq(size, 0) for size in sizes))
    return rel.or_(empty, rel.and_(*parts))


def contiguous(env: ShapeEnv, sizes: list[e.Expr], strides: list[e.Expr]) -> rel.BoolExpr:
    """Row-major without gaps."""
    return _packed(sizes, strides, range(len(sizes) - 1, -1, -1))


def _channels_last_order(rank: int) -> tuple[int, ...]:
    """Innermost first: channels, then the spatial dimensions backwards, then the batch."""
    return (1, *range(rank - 1, 1, -1), 0)


def channels_last_contiguous(rank: int) -> Rule:
    """Channels innermost, without gaps; False for another rank."""

    def rule(env: ShapeEnv, sizes: list[e.Expr], strides: list[e.Expr]) -> rel.BoolExpr:
        if len(sizes) != rank:
            return rel.FALSE
        return _packed(sizes, strides, _channels_last_order(rank))

    return rule


def channels_last_strides(rank: int) -> Rule:
    """Do the strides *suggest* channels-last: do they grow in that order, whatever the gaps?"""

    def rule(env: ShapeEnv, sizes: list[e.Expr], strides: list[e.Expr]) -> rel.BoolExpr:
        if len(sizes) != rank or env.guard_bool(rel.eq(strides[1], 0)):
            return rel.FALSE
        least = e.ZERO
        for dim in _channels_last_order(rank):
            if env.guard_bool(rel.eq(sizes[dim], 0)) or env.guard_bool(rel.lt(strides[dim], least)):
                return rel.FALSE
            # N11x1 tensors, and ones whose batch stride equals the channel stride, are ambiguous
            # and count as row-major.
            if dim == 0 and env.guard_bool(rel.eq(least, strides[1])):
                return rel.FALSE
            least = strides[dim]
            if env.guard_bool(rel.gt(sizes[dim], 1)):
                least = least * sizes[dim]
        return rel.TRUE

    return rule


def dense(env: ShapeEnv, sizes: list[e.Expr], strides: list[e.Expr]) -> rel.BoolExpr:
    """No gaps and no overlap, in whatever order of dimensions."""
    hints = [
        (env.hint(stride), env.hint(size)) for stride, size in zip(strides, sizes, strict=True)
    ]
    if any(stride is None or size is None for stride, size in hints):
        return contiguous(env, sizes, strides)
    order = sorted(range(len(sizes)), key=lambda dim: (hints[dim][1] == 1, hints[dim][0]))
    relation = _packed(sizes, strides, order)
    if relation.evaluate(env.hints):
        return relation
    # Another order might do for other sizes: the answer "no" is only known for these very ones.
    for value in (*sizes, *strides):
        env.guard_int(value, "memory layout")
    return rel.FALSE
