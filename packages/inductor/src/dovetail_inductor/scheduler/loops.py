"""Loop transformations on nests: renaming, splitting and merging variables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from math import prod

from dovetail_inductor.loop_ir.expr import Builder, IndexValue, Load, divisors, walk
from dovetail_inductor.loop_ir.index import Index, Var, variable
from dovetail_inductor.loop_ir.loops import LoopNest
from dovetail_inductor.loop_ir.sizes import (
    any_symbolic,
    hint_of,
    is_multiple,
    known_le,
    known_within,
)

# For a variable, the variables that replace it, outermost first.
Pieces = Mapping[Var, tuple[Var, ...]]


def piece_index(pieces: Sequence[Var]) -> Index:
    """The value of a variable split into `pieces`, outermost first."""
    result = Index(0, ())
    for piece in pieces:
        result = result * piece.size + variable(piece)
    return result


def replace_vars(
    builder: Builder, nest: LoopNest, pieces: Pieces, indices: Mapping[Var, Index]
) -> LoopNest:
    """The nest with each variable replaced by its pieces (`indices` gives their values)."""

    def spread(variables: tuple[Var, ...]) -> tuple[Var, ...]:
        return tuple(p for v in variables for p in pieces[v] if p.size != 1)

    if all(pieces[v] == (v,) for v in (*nest.vars, *nest.reduce_vars)):
        return nest
    renamed = nest.renamed(builder, lambda v: indices[v])
    return replace(
        renamed,
        vars=spread(nest.vars),
        reduce_vars=spread(nest.reduce_vars),
        scan=nest.scan and replace(nest.scan, vars=spread(nest.scan.vars)),
    )


def position_index(nest: LoopNest) -> Index:
    """The position of an element among those that one result reduces, in row-major order."""
    return piece_index(nest.reduce_vars)


def all_indices(nest: LoopNest) -> list[Index]:
    """Every index that the nest computes with: addresses and index values."""
    positions = [position_index(nest)] if nest.with_index else []
    within = [node.index for node in walk(nest.values) if isinstance(node, Load | IndexValue)]
    return [nest.index, *positions, *within]


def split_divisions(builder: Builder, nest: LoopNest) -> LoopNest:
    """Split variables so that divisions and remainders of them by constants go away.

    `i // 64` with i < 768 becomes `i0` with i = 64*i0 + i1, i0 < 12, i1 < 64.
    """
    cuts: dict[Var, set[int]] = {}
    for index in all_indices(nest):
        for var, n in divisors(index):
            if any_symbolic((n, var.size)):
                continue  # the chain of divisors below needs an order
            if var.size % n == 0 and 1 < n < var.size:
                cuts.setdefault(var, set()).add(n)
    if not cuts:
        return nest
    next_id = 1 + max(v.id for v in (*nest.vars, *nest.reduce_vars))
    pieces: dict[Var, tuple[Var, ...]] = {}
    for var in (*nest.vars, *nest.reduce_vars):
        steps = [1]
        for n in sorted(cuts.get(var, ())):
            if n % steps[-1] == 0:  # a chain of divisors; an odd one out stays a division
                steps.append(n)
        steps.append(var.size)
        sizes = [b // a for a, b in pairwise(steps)]
        if len(sizes) == 1:
            pieces[var] = (var,)
            continue
        pieces[var] = tuple(Var(next_id + k, n) for k, n in enumerate(reversed(sizes)))
        next_id += len(sizes)
    indices = {v: piece_index(p) for v, p in pieces.items()}
    return replace_vars(builder, nest, pieces, indices)


def distinct_variables(index: Index) -> set[Var]:
    """Variables of which two values give different indices, whatever the values of the others and
    of what is read from memory.

    As a digit of a number: what has a smaller coefficient adds up to less than its own, and what
    has a larger one moves in steps of more than it and they can reach.
    """
    found: set[Var] = set()
    for atom, own in index.terms:
        if not isinstance(atom, Var):
            continue
        others = [(a, c) for a, c in index.terms if a is not atom]
        inner = [(a, c) for a, c in others if hint_of(c) < hint_of(own)]
        outer = [c for a, c in others if hint_of(c) >= hint_of(own)]
        below = Index(0, tuple(inner)).bounds
        if known_le(0, own) is not True or not known_within(*below, own):
            continue
        step = min(outer, key=hint_of, default=None)
        if step is None or (
            known_within(0, own * (atom.size - 1) + below[1], step)
            and all(is_multiple(c, step) for c in outer)
        ):
            found.add(atom)
    return found


def merge_vars(
    builder: Builder, nests: Sequence[LoopNest], groups: Sequence[tuple[Var, ...]]
) -> tuple[list[LoopNest], list[tuple[Var, ...]]]:
    """Merge neighbours (outer, inner) of each group of variables where every access of every nest
    steps through both as through one: stride(outer) == stride(inner) * size(inner)."""
    accesses = [index for nest in nests for index in all_indices(nest)]
    new_groups: list[tuple[Var, ...]] = []
    runs: list[list[Var]] = []
    for group in groups:
        mine: list[list[Var]] = []
        for var in group:
            if mine and _mergeable(accesses, mine[-1][-1], var):
                mine[-1].append(var)
            else:
                mine.append([var])
        runs += mine
        new_groups.append(tuple(v for run in mine for v in run))
    if all(len(run) == 1 for run in runs):
        return list(nests), list(groups)
    merged: dict[Var, Var] = {}
    for k, run in enumerate(runs):
        new = Var(k, prod(v.size for v in run))
        for v in run:
            merged[v] = new
    result = [_with_merged(builder, nest, runs, merged) for nest in nests]
    return result, [tuple(dict.fromkeys(merged[v] for v in group)) for group in new_groups]


def _mergeable(accesses: Sequence[Index], outer: Var, inner: Var) -> bool:
    for index in accesses:
        a, b = index.coefficient(outer), index.coefficient(inner)
        if a is None or b is None or a != b * inner.size:
            return False
    return True


def _with_merged(
    builder: Builder, nest: LoopNest, runs: Sequence[Sequence[Var]], merged: Mapping[Var, Var]
) -> LoopNest:
    # In every access the run contributes c*(inner + size*outer + ...) with c the innermost's
    # stride: the innermost becomes the merged variable, the others vanish.
    indices = {}
    for run in runs:
        for v in run:
            indices[v] = variable(merged[v]) if v is run[-1] else Index(0, ())
    return replace(
        nest.renamed(builder, lambda v: indices[v]),
        vars=tuple(dict.fromkeys(merged[v] for v in nest.vars)),
        reduce_vars=tuple(dict.fromkeys(merged[v] for v in nest.reduce_vars)),
        scan=nest.scan
        and replace(nest.scan, vars=tuple(dict.fromkeys(merged[v] for v in nest.scan.vars))),
    )
