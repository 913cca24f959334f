"""Loops of a reduction that end where its condition does.

The pieces of a reduction that was cut unevenly are as long as one another, and a condition leaves
out what the last one has too much. Asked at every element, and at every read, it costs more than
the reduction. So the loop ends where it ceases to hold, and nothing is asked inside.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from dovetail_inductor.loop_ir.expr import (
    Apply,
    Builder,
    Constant,
    Expr,
    IndexValue,
    assume,
)
from dovetail_inductor.loop_ir.index import Index, Var, variable
from dovetail_inductor.loop_ir.loops import LoopNest
from dovetail_inductor.scheduler.kernels import FusedKernel


@dataclass(frozen=True)
class ShortLoops:
    """A kernel without the condition, and where loops end that it held in: by the ids of their
    variables, indices over the kernel's rows, which may exceed the loop's length."""

    kernel: FusedKernel
    ends: Mapping[int, Index] = field(default_factory=dict)


def short_loops(builder: Builder, kernel: FusedKernel) -> ShortLoops:
    """The kernel with its loops over columns ended where a condition of all that goes over them
    ends; as it is if there is none such."""
    passing = [n for n in kernel.nests if n.reduction is not None or kernel.is_full(n)]
    conditions = [_condition(nest) for nest in passing]
    first = conditions[0] if conditions else None
    if first is None or any(found is not first for found in conditions):
        return ShortLoops(kernel)
    found = _end(first, kernel)
    if found is None:
        return ShortLoops(kernel)
    v, end = found
    nests = []
    for nest in kernel.nests:
        if nest in passing:
            assert isinstance(nest.body, Apply)
            nest = replace(nest, body=assume(builder, nest.body.args[1], first))
        nests.append(nest)
    return ShortLoops(replace(kernel, nests=tuple(nests)), {v.id: end})


def _condition(nest: LoopNest) -> Expr | None:
    """Where a reduction's elements are more than what it begins with."""
    body = nest.body
    if nest.reduction is None or nest.with_index:
        return None
    if not isinstance(body, Apply) or body.op != "where" or not isinstance(body.args[2], Constant):
        return None
    neutral = nest.reduction.identity(body.dtype)
    return body.args[0] if body.args[2].value == neutral else None


def _end(condition: Expr, kernel: FusedKernel) -> tuple[Var, Index] | None:
    """The loop over columns at whose index a condition ends, and where, over the rows."""
    if not isinstance(condition, Apply) or condition.op != "lt":
        return None
    place, bound = condition.args
    if not isinstance(place, IndexValue) or not isinstance(bound, Constant):
        return None
    if not all(isinstance(atom, Var) for atom, _ in place.index.terms):
        return None
    along = [v for v in kernel.columns if place.index.coefficient(v)]
    if len(along) != 1 or place.index.coefficient(along[0]) != 1:
        return None
    return along[0], (place.index - variable(along[0])) * -1 + int(bound.value)


__all__ = ["ShortLoops", "short_loops"]
