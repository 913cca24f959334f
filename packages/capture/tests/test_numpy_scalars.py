"""Scalars of NumPy's as arguments: symbolic for torch's functions once they change, constants for
all else."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from dovetail_capture import optimize
from torch import Tensor
from torch.fx import GraphModule

np = pytest.importorskip("numpy")

PROGRAMS: dict[str, Callable[[Tensor, Any], Any]] = {
    "times": lambda x, k: x * k,
    "divided": lambda x, k: k / x,
    "of whole numbers": lambda x, k: x.long() * k,
    "in place": lambda x, k: x.clone().add_(k).mul_(2),
    "a function": lambda x, k: torch.add(x, x, alpha=2) + torch.clamp(x, max=k),
    "returned, too": lambda x, k: (x + k, k),
    "of a list": lambda x, k: [x - v for v in (k, 1)],
    "left of": lambda x, k: k - x,
    "full": lambda x, k: torch.full((2,), k) + x,
}
KINDS = (np.int64, np.int32, np.float32, np.float64, np.float16)


def same(got: Any, wanted: Any) -> None:
    if isinstance(wanted, (tuple, list)):
        assert type(got) is type(wanted)
        for one, other in zip(got, wanted, strict=True):
            same(one, other)
    elif isinstance(wanted, Tensor):
        assert got.dtype == wanted.dtype
        torch.testing.assert_close(got, wanted, equal_nan=True)
    else:
        assert (type(got), repr(got)) == (type(wanted), repr(wanted))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", PROGRAMS)
def test_two_graphs_for_scalars_that_change(name: str, kind: Any) -> None:
    graphs: list[GraphModule] = []

    def backend(gm: GraphModule, examples: list[Any]) -> Callable[..., Any]:
        graphs.append(gm)
        return gm.forward

    fn = PROGRAMS[name]
    run = optimize(fn, backend)
    for number in (2, 3, 5, 7, 4, -3):
        same(run(torch.ones(2), kind(number)), fn(torch.ones(2), kind(number)))
    whole = issubclass(kind, np.integer)
    assert len(graphs) <= (3 if whole else 2)


@pytest.mark.parametrize("kind", KINDS)
def test_special_values_and_other_types(kind: Any) -> None:
    run = optimize(PROGRAMS["times"], lambda gm, examples: gm.forward)
    values = [kind(v) for v in (0, 1, 2, 9)] + [2, 2.5, True, np.bool_(True), np.array(2.0)]
    if not issubclass(kind, np.integer):
        values += [kind("nan"), kind("inf"), kind(-0.0), kind(0.5)]
    for value in values * 2:
        wanted, got = torch.ones(2) * value, run(torch.ones(2), value)
        same(got, wanted)
        assert torch.equal(torch.signbit(got), torch.signbit(wanted))


def test_a_branch_on_a_scalar_is_guarded() -> None:
    def fn(x: Tensor, k: Any) -> Tensor:
        return x * k if k > 3 else x - k

    run = optimize(fn, lambda gm, examples: gm.forward)
    for value in (2, 5, 4, 3, 7, 1):
        same(run(torch.ones(2), np.float64(value)), fn(torch.ones(2), np.float64(value)))
