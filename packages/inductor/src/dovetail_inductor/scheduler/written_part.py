"""A loop over the part of a tensor that is written, where the rest is in its place already.

`x[:, 1:5] = s` is, as a value, `where(1 <= j < 5, s, x)` for all of x. Where that is computed in
the memory of x itself, the loop need only go over the points at which the condition holds.
"""

from __future__ import annotations

from dataclasses import replace

from dovetail_inductor.loop_ir.expr import Apply, Builder, Constant, Expr, IndexValue, Load
from dovetail_inductor.loop_ir.index import Var, constant, variable
from dovetail_inductor.loop_ir.loops import LoopNest
from dovetail_inductor.loop_ir.sizes import any_symbolic, is_symbolic
from dovetail_inductor.scheduler.kernels import FusedKernel

Box = dict[Var, tuple[int, int]]  # the values of loop variables: from, to before


def over_written_part(builder: Builder, kernel: FusedKernel, source: str) -> FusedKernel:
    """The kernel, whose one nest writes over the buffer `source`, without the points at which it
    writes what is there; as it is if that is not told by ranges of its loops."""
    if len(kernel.nests) != 1 or kernel.columns:
        return kernel
    (nest,) = kernel.nests
    if nest.reduction is not None or nest.scatter is not None or nest.scan is not None:
        return kernel
    box = {v: (0, v.size) for v in nest.vars}
    if any_symbolic(v.size for v in nest.vars):
        return kernel
    while (inner := _where_new(nest, source)) is not None:
        condition, new = inner
        if not _holds_within(condition, box):
            break  # outside of the box all the same
        nest = replace(nest, body=new)
    if all(hi - lo == v.size for v, (lo, hi) in box.items()):
        return kernel
    if any(lo >= hi for lo, hi in box.values()):
        return kernel  # nothing is written: a loop there must be
    loops = {v: Var(v.id, hi - lo) for v, (lo, hi) in box.items()}
    places = {
        v: constant(lo) if hi - lo == 1 else variable(loops[v]) + lo for v, (lo, hi) in box.items()
    }
    shorter = replace(
        nest.renamed(builder, lambda v: places[v]),
        vars=tuple(loops[v] for v in nest.vars if loops[v].size != 1),
    )
    rows = tuple(loops[v] for v in kernel.rows if v in loops and loops[v].size != 1)
    return replace(kernel, rows=rows, nests=(shorter,))


def _where_new(nest: LoopNest, source: str) -> tuple[Expr, Expr] | None:
    """Of a value that is either new or what is there: when it is new, and what it is then."""
    body = nest.body
    if not isinstance(body, Apply) or body.op != "where":
        return None
    condition, new, old = body.args
    same = isinstance(old, Load) and (old.buffer, old.index) == (source, nest.index)
    return (condition, new) if same and isinstance(old, Load) and old.mask is None else None


def _holds_within(condition: Expr, box: Box) -> bool:
    """Narrow a box to where a condition may hold; True if it consists of bounds of loop variables,
    so that it holds everywhere there."""
    if not isinstance(condition, Apply):
        return False
    if condition.op == "bitwise_and":
        return all(_holds_within(part, box) for part in condition.args)
    if condition.op not in ("lt", "le", "gt", "ge"):
        return False
    place, bound = condition.args
    if not (isinstance(place, IndexValue) and isinstance(bound, Constant)):
        return False
    terms, first = place.index.terms, place.index.const
    if len(terms) != 1 or terms[0][1] != 1 or is_symbolic(first):
        return False
    v = terms[0][0]
    if not isinstance(v, Var) or v not in box:
        return False
    low, high = box[v]
    at = int(bound.value) - first
    if condition.op in ("lt", "le"):
        high = min(high, at + (condition.op == "le"))
    else:
        low = max(low, at + (condition.op == "gt"))
    box[v] = (low, high)
    return True


__all__ = ["over_written_part"]
