"""Operators that write to their arguments, which graphs have functional twins of: where they are
called on what dies there, and where on a copy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from dovetail_inductor import compile_graph
from dovetail_prims.decompositions import core_aten_table
from dovetail_prims.graphs.functional_forms import functional_form
from dovetail_prims.graphs.record import trace_aten
from dovetail_runtime import CallAten, LaunchCpp, load
from torch import Tensor


@torch.library.custom_op("dovetail_twins::add_into", mutates_args={"out"})
def add_into(x: Tensor, out: Tensor) -> None:
    out.add_(x)


@torch.library.custom_op("dovetail_twins::both", mutates_args={"a", "b"})
def both(a: Tensor, b: Tensor) -> Tensor:
    a.add_(1)
    b.mul_(2)
    return a.sum(0)


@both.register_fake
def _(a: Tensor, b: Tensor) -> Tensor:
    return a.new_empty(a.shape[1:])


ADD = functional_form(torch.ops.dovetail_twins.add_into.default, frozenset())
BOTH = functional_form(torch.ops.dovetail_twins.both.default, frozenset())


def chain(x: Tensor) -> Any:
    first = ADD(x, x * 2)
    return ADD(x, first).sin()


def leaves(x: Tensor) -> Any:
    return ADD(x, x * 2)


def input_written(x: Tensor) -> Any:
    return ADD(x * 2, x)


def read_later(x: Tensor) -> Any:
    old = x * 2
    return ADD(x, old), old


def given_twice(x: Tensor) -> Any:
    y = x * 2
    return ADD(y, y)


def two_results(x: Tensor) -> Any:
    total, a, b = BOTH(x * 2, x.sin())
    return total + 1, a * 3, b


def one_of_two_stays(x: Tensor) -> Any:
    kept = x.sin()
    total, a, b = BOTH(x * 2, kept)
    return total, a * 3, b, kept


def memory_only(x: Tensor) -> Any:
    return ADD(x, torch.empty_like(x)).mul(0)


def part(x: Tensor) -> Any:
    rows = torch.stack([x, x * 2])
    return ADD(x, rows[1]), rows.sum(0)


OP, TWIN = "dovetail_twins::", "dovetail_functional::"
CASES: dict[str, tuple[Callable[[Tensor], Any], list[str]]] = {
    "chain": (chain, [OP, OP]),
    "leaves": (leaves, [OP]),
    "input_written": (input_written, [TWIN]),
    "read_later": (read_later, [TWIN]),
    "given_twice": (given_twice, [TWIN]),
    "two_results": (two_results, [OP]),
    "one_of_two_stays": (one_of_two_stays, [TWIN]),
    "part": (part, [TWIN]),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("size", [4, 600])
def test_copies_only_where_the_old_value_is_needed(name: str, size: int) -> None:
    fn, wanted = CASES[name]
    x = torch.randn(size, size)
    plan = compile_graph(trace_aten(fn, x, decompositions=core_aten_table()))
    calls = [step.op for step in plan.steps if isinstance(step, CallAten)]
    assert [any(o in c for c in calls) for o in wanted] == [True] * len(wanted), calls
    assert sum("add_into" in c or "both" in c for c in calls) == len(wanted)
    before, expected = x.clone(), fn(x)
    for _ in range(2):
        found = load(plan)(x)
        flat = expected if isinstance(expected, tuple) else (expected,)
        for mine, theirs in zip(found, flat, strict=True):
            torch.testing.assert_close(mine, theirs)
        assert torch.equal(x, before)


def test_memory_that_is_only_written_is_not_filled() -> None:
    x = torch.randn(5, 5)
    plan = compile_graph(trace_aten(memory_only, x, decompositions=core_aten_table()))
    assert sum(isinstance(step, LaunchCpp) for step in plan.steps) == 1
