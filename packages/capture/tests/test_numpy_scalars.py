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


COMPUTED: dict[str, Callable[[Tensor, Any, Any], Any]] = {
    "product": lambda x, k, m: x * (k * m),
    "returned": lambda x, k, m: {"a": x + 1, "b": k / 2, "c": (m - k, 3 * m)},
    "chain": lambda x, k, m: (x + (k + 1) * (m - 2) / 4, k * 1.5),
    "with a number": lambda x, k, m: x * (k * x.shape[0]) - m / k,
    "divided by nothing": lambda x, k, m: x * (k / (m - m)),
    "read": lambda x, k, m: x + 1 if k * m > 6 else x * (k * m),
    "as an index": lambda x, k, m: x[int(m * 0)] * k,
}


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", COMPUTED)
def test_arithmetic_of_scalars_that_change(name: str, kind: Any) -> None:
    graphs: list[GraphModule] = []

    def backend(gm: GraphModule, examples: list[Any]) -> Callable[..., Any]:
        graphs.append(gm)
        return gm.forward

    fn = COMPUTED[name]
    run = optimize(fn, backend)
    pairs = [(2, 3), (3, 5), (5, 7), (7, 2), (-3, 4), (0, 1), (1, 0), (9, -6)]
    if not issubclass(kind, np.integer):
        pairs += [(float("nan"), 1), (float("inf"), 2), (-0.0, 1.5), (0.5, -0.0)]
    for first, second in pairs:
        args = torch.ones(2), kind(first), kind(second)
        wanted, got = fn(*args), run(*args)
        got, wanted = (list(o.values()) if isinstance(o, dict) else o for o in (got, wanted))
        same(got, wanted)
    assert len(graphs) <= (len(pairs) if name in ("read", "as an index") else 4)


def test_scalars_where_errors_are_raised() -> None:
    def fn(x: Tensor, k: Any) -> Any:
        return x + 1, 1 / k

    run = optimize(fn, lambda gm, examples: gm.forward)
    with np.errstate(all="raise"):
        for number in (1, 2, 3, 4):
            same(run(torch.ones(2), np.float64(number)), fn(torch.ones(2), np.float64(number)))
        with pytest.raises(FloatingPointError):
            run(torch.ones(2), np.float64(0))
    with np.errstate(all="ignore"):
        same(run(torch.ones(2), np.float64(0)), fn(torch.ones(2), np.float64(0)))
