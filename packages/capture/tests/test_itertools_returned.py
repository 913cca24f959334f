"""Iterators of `itertools` that leave a captured frame: of the same class, and as far on."""
# ruff: noqa: B905  (programs as users write them)

from __future__ import annotations

import itertools
import operator
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from construct_cases import CountingBackend, same
from dovetail_capture import optimize, run_graph

ITERATORS: dict[str, Callable[[Any], Iterator[Any]]] = {
    "chain": lambda x: itertools.chain([x, x + 1], (3, 4), iter([x * 2, 5]), ()),
    "chain of a map": lambda x: itertools.chain.from_iterable(map(lambda k: [k, x * k], range(4))),
    "islice": lambda x: itertools.islice([x, x + 1, 2, 3, 4, 6, 7], 5),
    "islice with a step": lambda x: itertools.islice(iter([x, 1, 2, 3, 4, 5, 6, 7]), 1, None, 2),
    "islice of a count": lambda x: itertools.islice(itertools.count(x.shape[0]), 1, 12, 3),
    "count": lambda x: itertools.count(x.shape[0]),
    "count of floats": lambda x: itertools.count(0.5, 0.25),
    "count down": lambda x: itertools.count(step=-2),
    "cycle": lambda x: itertools.cycle([x, 2, 3]),
    "repeat": lambda x: itertools.repeat(x, 10**12),
    "repeat for ever": itertools.repeat,
    "pairwise": lambda x: itertools.pairwise([x, x + 1, 3, 4, 5, 6]),
    "zip_longest": lambda x: itertools.zip_longest([x, x + 1, 3, 4, 5, 6], [1, 2], fillvalue=x),
    "starmap": lambda x: itertools.starmap(operator.add, [(x, 1), (2, 3), (4, 5), (6, x)] * 2),
    "takewhile": lambda x: itertools.takewhile(lambda v: v < 7, range(10)),
    "dropwhile": lambda x: itertools.dropwhile(lambda v: v < 3, [1, 2, 3, 1, 5, 6, 0, 2, 8]),
    "filterfalse": lambda x: itertools.filterfalse(lambda v: v % 2, range(20)),
    "compress": lambda x: itertools.compress([x, 1, 2, 3, 4, 5, 6, 7], [1, 0, 1, 1, 1, 1, 1]),
    "accumulate": lambda x: itertools.accumulate([x, 1, 2, 3, 4, 5]),
    "accumulate products": lambda x: itertools.accumulate(range(1, 9), operator.mul, initial=x),
    "one in another": lambda x: itertools.islice(
        itertools.chain(itertools.count(2), [x]), 1, 12, 2
    ),
}


@pytest.mark.parametrize("taken", [0, 1, 4])
@pytest.mark.parametrize("name", ITERATORS)
def test_what_is_left_is_returned(name: str, taken: int) -> None:
    make = ITERATORS[name]

    def function(x: torch.Tensor) -> Any:
        made = make(x)
        return made, [next(made) for _ in range(taken)], x + 1

    backend = CountingBackend()
    compiled = optimize(function, backend, fullgraph=True)
    for size in (3, 4):
        x = torch.arange(float(size))
        ours, wanted = compiled(x), function(x)
        assert type(ours[0]) is type(wanted[0])
        assert same(ours[1:], wanted[1:])
        assert same([*itertools.islice(ours[0], 6)], [*itertools.islice(wanted[0], 6)])


def test_parts_that_others_hold_are_shared() -> None:
    def function(x: torch.Tensor) -> Any:
        numbers = itertools.count(3)
        pairs = zip(numbers, itertools.islice(numbers, 1, None))
        return x * next(pairs)[0], pairs, numbers

    _, pairs, numbers = optimize(function, CountingBackend(), fullgraph=True)(torch.ones(2))
    _, wanted_pairs, wanted_numbers = function(torch.ones(2))
    for _ in range(3):
        assert next(pairs) == next(wanted_pairs) and next(numbers) == next(wanted_numbers)


def test_a_group_that_has_begun_breaks_the_graph() -> None:
    def function(x: torch.Tensor, begin: bool) -> Any:
        groups = itertools.groupby([1, 1, 2, 3, 3])
        begun = [(key, list(group)) for key, group in itertools.islice(groups, int(begin))]
        return x + 1, begun, groups

    for begin in (False, True):
        compiled = optimize(function, CountingBackend())
        ours, wanted = compiled(torch.ones(2), begin), function(torch.ones(2), begin)
        assert ours[1] == wanted[1]
        assert [(k, [*g]) for k, g in ours[2]] == [(k, [*g]) for k, g in wanted[2]]
        assert bool(compiled.capture_context.log.breaks) == begin


@pytest.mark.skipif(sys.version_info < (3, 12), reason="no itertools.batched")
def test_batches() -> None:
    def sums(x: torch.Tensor) -> list[torch.Tensor]:
        return [x * sum(batch) for batch in itertools.batched(iter(range(7)), 3)]

    def refused(x: torch.Tensor) -> str:
        try:
            itertools.batched([1, 2], 0)  # at the call: no item is asked for
        except ValueError as error:
            return str(error)
        return "nothing"

    x = torch.ones(2)
    for fn in (sums, refused):
        assert str(optimize(fn, run_graph)(x)) == str(fn(x))


@pytest.mark.skipif(sys.version_info < (3, 12), reason="no itertools.batched")
def test_batches_that_must_be_full() -> None:
    """`strict` came with 3.13."""

    def strictly(x: torch.Tensor, n: int) -> list[torch.Tensor]:
        return [x * sum(batch) for batch in itertools.batched(range(6), n, strict=True)]

    for n in (3, 4):
        outcomes = []
        for run in (strictly, optimize(strictly, run_graph)):
            try:
                outcomes.append(str(run(torch.ones(2), n)))
            except (TypeError, ValueError) as error:
                outcomes.append(f"{type(error).__name__}: {error}")
        assert outcomes[0] == outcomes[1]
