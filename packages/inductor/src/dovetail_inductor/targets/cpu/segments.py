"""The vectorised loop in segments within which no comparison of its index changes.

An element of a concatenation, of a rotation or of a padded row is one value before a place and
another from there on. Computed in one loop, every element is asked where it lies, for every part,
and reads are masked. In a loop for each segment nothing is asked.

Loops of a reduction end where its condition does. The pieces of one that was cut unevenly are as
long as one another, and a condition leaves out what the last one has too much. Asked at every
element, and at every read, it costs more than the reduction.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import pairwise

import torch

from dovetail_inductor.loop_ir.expr import Apply, Builder, Constant, Expr, IndexValue, assume, walk
from dovetail_inductor.loop_ir.handlers import count
from dovetail_inductor.loop_ir.index import Index, Indirect, Var, variable
from dovetail_inductor.loop_ir.loops import LoopNest
from dovetail_inductor.loop_ir.simpler import applied_as_place, place_of
from dovetail_inductor.loop_ir.sizes import is_symbolic
from dovetail_inductor.scheduler.kernels import FusedKernel

MOST_SEGMENTS = 9
# On average a segment fills at least one vector.
LEAST_LENGTH = 8
# What all segments compute, in additions: the text grows with it.
MOST_COST = 800
# First positions at which the other side of a comparison begins.
_BOUNDARY = {"lt": 0, "ge": 0, "le": 1, "gt": 1}
_EXTREMES = {"maximum": "ge", "minimum": "le"}


@dataclass(frozen=True)
class Segment:
    """The part of a loop from `start` on, and the nests as they are there; `var` counts from 0."""

    start: int
    var: Var
    nests: tuple[LoopNest, ...]

    def placed(self, index: Index) -> Index:
        """An index over the whole loop, by this segment's variable."""

        def at(v: Var) -> Index:
            return variable(self.var) + self.start if v.id == self.var.id else variable(v)

        return index.substitute(at, lambda value: value)


def segments_of(
    builder: Builder, kernel: FusedKernel, v: Var, short: bool = False
) -> tuple[Segment, ...]:
    """The segments of the loop over `v`; none where there would be too many or (unless `short` ones
    will do) too short ones, or the kernel has a form that takes its loops whole."""
    if is_symbolic(v.size) or any(
        nest.scatter is not None or nest.scan is not None or nest.with_index
        for nest in kernel.nests
    ):
        return ()
    whole = Segment(0, v, kernel.nests)
    if not _cuts(whole):
        return ()
    open_, found = [whole], []
    while open_:
        one = open_.pop()
        cuts = _cuts(one)
        if not cuts:
            found.append(one)
            continue
        bounds = [0, *cuts, one.var.size]
        parts = [_part(builder, one, a, b) for a, b in pairwise(bounds)]
        open_ += reversed(parts)
        if len(open_) + len(found) > MOST_SEGMENTS:
            return ()
    cost = sum(count(nest.values).cost + 1 for one in found for nest in one.nests)
    if not short and (v.size < LEAST_LENGTH * len(found) or cost > MOST_COST):
        return ()
    return tuple(found)


def _cuts(segment: Segment) -> list[int]:
    """The places within a segment at which a comparison changes, in order."""
    v, found = segment.var, set()
    for op, place, bound in _comparisons(segment.nests):
        if len(place.terms) != 1 or is_symbolic(place.const):
            continue
        atom, step = place.terms[0]
        if not isinstance(atom, Var) or atom.id != v.id or is_symbolic(step):
            continue
        # (s*v + c < b) changes at (b - c) / s, rounded up; (c - s*v < b), which is
        # (v > (c - b) / s), at the next whole number.
        beyond = bound + _BOUNDARY[op] - place.const
        at = -(-beyond // step) if step > 0 else -beyond // -step + 1
        if 0 < at < v.size:
            found.add(at)
    return sorted(found)


def _comparisons(nests: Sequence[LoopNest]) -> Iterator[tuple[str, Index, int]]:
    """Places compared with numbers."""
    for node in walk(value for nest in nests for value in nest.values):
        if not isinstance(node, Apply):
            continue
        op = "ge" if node.op in ("abs", "relu") else _EXTREMES.get(node.op, node.op)
        if op not in _BOUNDARY or node.args[0].dtype is not torch.int64:
            continue
        place = place_of(node.args[0])
        bound = node.args[1] if len(node.args) > 1 else None
        if place is None or not (bound is None or isinstance(bound, Constant)):
            continue
        yield op, place, 0 if bound is None else int(bound.value)


def _part(builder: Builder, segment: Segment, start: int, end: int) -> Segment:
    """A part of a segment, with what is settled there folded."""
    part = Var(segment.var.id, end - start)
    nests = tuple(_placed(builder, nest, segment.var, part, start) for nest in segment.nests)
    return Segment(segment.start + start, part, nests)


def _placed(builder: Builder, nest: LoopNest, old: Var, part: Var, start: int) -> LoopNest:
    def at(v: Var) -> Index:
        return variable(part) + start if v.id == old.id else variable(v)

    moved = nest.renamed(builder, at, applied=partial(_settled, builder), settled=_plain)
    return replace(moved, index=_plain(moved.index))


def _plain(index: Index) -> Index:
    """An index with the places that it reads as values written out."""
    plain = Index(index.const, ())
    for atom, step in index.terms:
        known = place_of(atom.value) if isinstance(atom, Indirect) else None
        plain = plain + (Index(0, ((atom, step),)) if known is None else known * step)
    return plain


def _settled(builder: Builder, node: Apply, args: list[Expr]) -> Expr:
    """An operation; of places, what it is throughout a segment."""
    first = args[0]
    if first.dtype is torch.int64:
        place = place_of(first)
        if place is not None:
            first = builder.index_value(place)
            args = [first, *args[1:]]
            if node.check is not None and _truth(builder, first, "ge", 0):
                if _truth(builder, first, "lt", node.check.size):
                    return first
            positive = _truth(builder, first, "ge", 0)
            if node.op == "abs" and positive is not None:
                return first if positive else builder.index_value(place * -1)
            if node.op == "relu" and positive is not None:
                return first if positive else builder.constant(0, torch.int64)
            bound = args[1] if len(args) > 1 else None
            if node.op in _EXTREMES and isinstance(bound, Constant):
                truth = _truth(builder, first, _EXTREMES[node.op], int(bound.value))
                if truth is not None:
                    return first if truth else bound
    return applied_as_place(builder, node, args)


def _truth(builder: Builder, place: Expr, op: str, bound: int) -> bool | None:
    """A comparison's truth, if it is the same for all values of the loops."""
    found = builder.apply(op, [place, builder.constant(bound, torch.int64)])
    return bool(found.value) if isinstance(found, Constant) else None


# --- loops that end where a condition does --------------------------------------------------------


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
