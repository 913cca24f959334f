"""Behind torch.compile's front end: symbolic sizes stay symbolic, what our compiler decides about
them is guarded there, and inputs that share memory are told apart where one is written."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
import torch
from dovetail_guards import relations as rel
from torch import Tensor, nn

from dovetail.pipeline import CompilerBackend

Call = tuple[Any, ...]


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[CompilerBackend]]:
    """The backends that compiled a graph, one for each graph of torch.compile's."""
    found: list[CompilerBackend] = []
    original = CompilerBackend.__call__

    def counting(self: CompilerBackend, gm: Any, example_inputs: Sequence[Any]) -> Any:
        found.append(self)
        return original(self, gm, example_inputs)

    monkeypatch.setattr(CompilerBackend, "__call__", counting)
    torch.compiler.reset()
    yield found
    torch.compiler.reset()


def behind_torch(function: Callable[..., Any], **arguments: Any) -> Any:
    return torch.compile(function, backend="dovetail", **arguments)  # noqa: TID251


def grow(x: Tensor, y: Tensor) -> Tensor:
    return x.sin() * x.shape[0] + y[:2].sum()


def halves(x: Tensor) -> Tensor:
    y = x.sin()
    return y.view(2, -1).sum(0) if x.shape[0] % 2 == 0 else y


def by_int(x: Tensor, n: int) -> Tensor:
    return x * n + x.shape[0] // n


def product(x: Tensor, w: Tensor) -> Tensor:
    return (x @ w).softmax(-1)


def nonzero(x: Tensor) -> Tensor:
    return x.nonzero().sum() + x.shape[0]


def by_item(x: Tensor) -> Tensor:
    return x * x.sum().item()


def by_mask(x: Tensor) -> Tensor:
    return x[x > 0].cumsum(0)


CASES: dict[str, tuple[Callable[..., Any], list[Call], int]] = {
    "two sizes": (grow, [(torch.randn(k), torch.randn(2 * k)) for k in (3, 4, 5, 7)], 2),
    "a branch": (halves, [(torch.randn(k),) for k in (3, 4, 5, 6, 7, 10)], 3),
    "an int": (by_int, [(torch.randn(abs(k)), k) for k in (3, 4, 5, 6, -7)], 3),
    "strides": (product, [(torch.randn(4, k).t(), torch.randn(4, k)) for k in (3, 4, 5, 6)], 2),
    "nonzero": (nonzero, [(torch.arange(float(k)) % 2,) for k in (3, 4, 5, 6)], 2),
    "an item": (by_item, [(torch.arange(float(k)) % 2,) for k in (3, 4, 5, 6)], 2),
    "a mask": (by_mask, [(torch.arange(float(k)) % 2,) for k in (3, 4, 5, 6)], 2),
}


@pytest.mark.parametrize("name", CASES)
def test_one_graph_for_all_sizes(name: str, compiled: list[CompilerBackend]) -> None:
    function, calls, graphs = CASES[name]
    run = behind_torch(function, fullgraph=True)
    for call in calls:
        torch.testing.assert_close(run(*call), function(*call))
    assert len(compiled) == graphs
    for backend in compiled:
        assert not backend.records.per_size and not backend.records.failures


def test_training_of_any_batch(compiled: list[CompilerBackend]) -> None:
    layer = nn.Linear(4, 4)
    run = behind_torch(lambda x: layer(x).relu().sum(), dynamic=True)
    graphs: list[int] = []
    for batch in (3, 4, 5):
        x = torch.randn(batch, 4, requires_grad=True)
        (got,) = torch.autograd.grad(run(x), x)
        (expected,) = torch.autograd.grad(layer(x).relu().sum(), x)
        torch.testing.assert_close(got, expected)
        graphs.append(sum(len(backend.records.graphs) for backend in compiled))
    assert len(compiled) == 1 and graphs[0] == graphs[-1]


def test_what_the_compiler_decides_is_guarded_by_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    """A decision that the captured program does not make: is the size a multiple of three?"""
    decided: list[bool] = []

    def deciding(self: CompilerBackend, gm: Any, example_inputs: Sequence[Any]) -> Any:
        sizes = [n.meta["val"] for n in gm.graph.nodes if n.op == "placeholder"]
        size = sizes[0].node
        decided.append(size.env.guard_bool(rel.eq(size.expr % 3, 0)))
        return gm.forward

    monkeypatch.setattr(CompilerBackend, "__call__", deciding)
    torch.compiler.reset()
    run = behind_torch(torch.sin, dynamic=True)
    for size in (4, 5, 6, 9, 7):
        run(torch.ones(size))
    assert decided == [False, True]
    torch.compiler.reset()


@pytest.mark.parametrize(
    "given",
    [{"mode": "max-autotune"}, {"options": {"constant_weights": True}}],
    ids=["mode", "option"],
)
def test_mode_and_options(given: dict[str, Any], compiled: list[CompilerBackend]) -> None:
    x = torch.randn(4)
    torch.testing.assert_close(behind_torch(torch.sin, **given)(x), x.sin())
    options = compiled[0].options
    assert options.max_autotune if "mode" in given else options.constant_weights


def test_an_unknown_option_is_refused() -> None:
    torch.compiler.reset()
    with pytest.raises(Exception, match="unknown option 'device'"):
        behind_torch(torch.sin, options={"device": "cpu"})(torch.ones(2))


def _inputs(how: str) -> tuple[Tensor, Tensor]:
    whole = torch.arange(8.0)
    first = whole[:4]
    second = {"apart": torch.arange(4.0), "overlap": whole[2:6], "equal": whole[:4], "one": first}
    return first, second[how]


@pytest.mark.parametrize("dynamic", [False, True])
def test_inputs_that_come_to_share_memory(dynamic: bool, compiled: list[CompilerBackend]) -> None:
    def writes(x: Tensor, y: Tensor) -> Tensor:
        before = y.sin()
        x.add_(1)
        return y * 2 + before

    run = behind_torch(writes, dynamic=dynamic)
    for how in ("apart", "overlap", "equal", "one", "apart", "overlap"):
        given, expected = _inputs(how), _inputs(how)
        torch.testing.assert_close(run(*given), writes(*expected))
        torch.testing.assert_close(given, expected)
    assert not any(backend.records.failures for backend in compiled)
