"""Passes that differ in scalars alone: a graph that takes them as inputs needs no new record.

A scalar of the forward (`beta` in `a + beta * b`) reaches the backward as a number of some
operator. Two records of one structure with the same sizes and other scalars tell which numbers
those are: each number that changed has, in every record, the very value of one scalar.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from dovetail_autograd_aot.compiled_backward.description import as_key
from dovetail_autograd_aot.compiled_backward.program import Program
from dovetail_autograd_aot.compiled_backward.sizes import Compiled, Recorded

Scalars = tuple[Any, ...]


@dataclass(frozen=True)
class ScalarPasses:
    """A graph for all values of some scalars. `sources` gives for numbers of the program the scalar
    that each is; the scalars in `same` must have the values that they had, and those of one group
    in `groups` equal values."""

    program: Program
    compiled: Compiled
    recorded: Recorded
    sources: dict[int, int]
    same: dict[int, Any]
    groups: tuple[tuple[int, ...], ...]

    def numbers(self, scalars: Scalars) -> tuple[Any, ...] | None:
        """What the graph is to be called with for these scalars, if it is for them."""
        if any(as_key(scalars[i]) != key for i, key in self.same.items()):
            return None
        if any(len({as_key(scalars[i]) for i in group}) > 1 for group in self.groups):
            return None
        numbers = list(self.recorded.numbers)
        for position, scalar in self.sources.items():
            if type(scalars[scalar]) is not type(numbers[position]):
                return None
            numbers[position] = scalars[scalar]
        return self.compiled.match(replace(self.recorded, numbers=tuple(numbers)))


def scalar_passes(
    program: Program, compiled: Compiled, records: Sequence[tuple[Scalars, Recorded]]
) -> ScalarPasses | None:
    """From records of one structure with equal sizes (the last that of `program`), if they tell."""
    recorded = records[-1][1]
    alike = [(scalars, r) for scalars, r in records if r.skeleton == recorded.skeleton]
    if len(alike) < 2:
        return None
    by_value: dict[Any, list[int]] = {}  # scalars by their values in all records
    for i in range(len(alike[0][0])):
        by_value.setdefault(tuple(as_key(s[i]) for s, _ in alike), []).append(i)
    same = {i: key[0] for key, own in by_value.items() if len(set(key)) == 1 for i in own}
    sources: dict[int, int] = {}
    for position in range(len(recorded.numbers)):
        values = tuple(as_key(r.numbers[position]) for _, r in alike)
        if len(set(values)) > 1:
            if values not in by_value:
                return None
            sources[position] = by_value[values][0]
    groups = tuple(tuple(own) for key, own in by_value.items() if len(set(key)) > 1)
    return ScalarPasses(program, compiled, recorded, sources, same, groups)
