"""Optimizer steps that decide by data (LBFGS, SparseAdam): Python runs them as several graphs."""

from __future__ import annotations

from collections.abc import Callable
from inspect import signature
from typing import Any

import pytest
import torch
from dovetail_capture import optimize, run_graph
from dovetail_capture.errors import GraphBreakError
from torch import Tensor, nn

Wrap = Callable[[Any], Any]


def compiled(step: Any) -> Any:
    return optimize(step, run_graph)


def plain(step: Any) -> Any:
    return step


def net(dtype: torch.dtype = torch.float64) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4)).to(dtype)


def fitting(model: nn.Module, optimizer: torch.optim.Optimizer) -> Callable[[], Tensor]:
    torch.manual_seed(3)
    x, y = torch.randn(32, 8, dtype=torch.float64), torch.randn(32, 4, dtype=torch.float64)

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(x), y)
        if optimizer.param_groups[0].get("maximize"):
            loss = -loss
        loss.backward()
        return loss

    return closure


def assert_same_state(ours: torch.optim.Optimizer, theirs: torch.optim.Optimizer) -> None:
    (mine,), (its,) = ours.state_dict()["state"].values(), theirs.state_dict()["state"].values()
    assert mine.keys() == its.keys()
    for name in mine:
        torch.testing.assert_close(mine[name], its[name], rtol=1e-5, atol=1e-9, msg=name)


def assert_only_broken_for(step: Any, reason: str, graphs: int) -> None:
    log = step.capture_context.log
    assert [b.reason for b in log.breaks] == [f"{reason}: its parts are captured one by one"]
    assert 0 < log.counters["graph"] <= graphs
    assert not log.counters["plain"]


CASES: dict[str, dict[str, Any]] = {
    "fixed": {},
    "history": {"history_size": 23},
    "none kept": {"max_iter": 1},
    "wolfe": {"line_search_fn": "strong_wolfe", "history_size": 7},
    "few": {"max_eval": 3},
    "tensor": {"lr": torch.tensor(0.1)},
}


@pytest.mark.parametrize("name", CASES)
def test_search_goes_as_eagers(name: str) -> None:
    def run(wrap: Wrap) -> tuple[list[float], Any, Any]:
        model = net()
        options = {"lr": 0.1, "max_iter": 4, "history_size": 5} | CASES[name]
        optimizer = torch.optim.LBFGS(model.parameters(), **options)
        closure, step = fitting(model, optimizer), wrap(optimizer.step)
        return [step(closure).item() for _ in range(15)], optimizer, step

    losses, optimizer, step = run(compiled)
    their_losses, theirs, _ = run(plain)
    torch.testing.assert_close(losses, their_losses, rtol=1e-7, atol=0)
    assert losses[-1] < 0.8 * losses[0]
    assert_same_state(optimizer, theirs)
    assert_only_broken_for(step, "LBFGS decides by its losses at every turn", graphs=16)


def test_steps_of_both_kinds_take_turns() -> None:
    """A compiled step goes on with the state of a plain one, and the other way round."""

    def run(wrap: Wrap) -> tuple[list[float], Any]:
        model = net()
        optimizer = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=3)
        closure = fitting(model, optimizer)
        steps = [optimizer.step, wrap(optimizer.step)]
        losses = [steps[i % 3 > 0](closure).item() for i in range(9)]
        kept = optimizer.state_dict()
        optimizer.load_state_dict(kept)
        return losses + [steps[1](closure).item() for _ in range(3)], optimizer

    (losses, ours), (their_losses, theirs) = run(compiled), run(plain)
    torch.testing.assert_close(losses, their_losses, rtol=1e-7, atol=0)
    assert_same_state(ours, theirs)


MAXIMIZES = "maximize" in signature(torch.optim.LBFGS).parameters  # (not in all versions)


@pytest.mark.parametrize("kind", ["complex", "missing", "sparse"] + ["maximize"] * MAXIMIZES)
def test_gradients_of_all_kinds_are_followed(kind: str) -> None:
    def run(wrap: Wrap) -> tuple[list[float], Any]:
        torch.manual_seed(1)
        table = nn.Embedding(6, 3, sparse=kind == "sparse", dtype=torch.float64)
        turn = torch.randn(3, dtype=torch.complex128).requires_grad_()
        params = [table.weight] + ([turn] if kind in ("complex", "missing") else [])
        more = {"maximize": True} if kind == "maximize" else {}
        optimizer = torch.optim.LBFGS(params, lr=0.2, max_iter=3, **more)

        def closure() -> Tensor:
            optimizer.zero_grad()
            rows = table(torch.tensor([1, 4, 1]))
            if kind == "complex":
                rows = (rows * turn).abs()
            loss = (rows - torch.arange(3.0)).square().mean()
            if kind == "maximize":
                loss = -loss
            loss.backward()
            return loss

        step = wrap(optimizer.step)
        return [step(closure).item() for _ in range(5)], optimizer

    (losses, ours), (their_losses, theirs) = run(compiled), run(plain)
    torch.testing.assert_close(losses, their_losses, rtol=1e-7, atol=1e-12)
    assert_same_state(ours, theirs)


@pytest.mark.parametrize("search", [None, "strong_wolfe"])
@pytest.mark.parametrize("name", ["_gather_flat_grad", "_add_grad", "_directional_evaluate"])
def test_methods_of_a_subclass_are_called(name: str, search: str | None) -> None:
    calls = []

    def own(self: Any, *args: Any) -> Any:
        calls.append(name)
        result = getattr(torch.optim.LBFGS, name)(self, *args)
        return result / 2 if name == "_gather_flat_grad" else result

    Own: Any = type("Own", (torch.optim.LBFGS,), {name: own})

    def run(wrap: Wrap) -> tuple[list[float], int, Any]:
        model = net()
        optimizer = Own(model.parameters(), lr=0.1, max_iter=3, line_search_fn=search)
        closure, step = fitting(model, optimizer), wrap(optimizer.step)
        calls.clear()
        return [step(closure).item() for _ in range(4)], len(calls), step

    losses, count, step = run(compiled)
    their_losses, their_count, _ = run(plain)
    torch.testing.assert_close(losses, their_losses, rtol=1e-7, atol=0)
    assert count == their_count
    assert step.capture_context.log.counters["graph"] > 3


def test_parameters_in_any_layout_without_gradients() -> None:
    def run(wrap: Wrap) -> Tensor:
        torch.manual_seed(1)
        turned = torch.randn(4, 3, dtype=torch.float64).t().requires_grad_()
        x = torch.randn(5, dtype=torch.float64).requires_grad_()
        optimizer = torch.optim.LBFGS([x, turned], lr=0.2, max_iter=3)

        def closure() -> Tensor:
            optimizer.zero_grad()
            loss = (x - torch.arange(5.0)).square().mean()
            loss.backward()
            return loss

        wrap(optimizer.step)(closure)
        return torch.cat([x.detach(), turned.detach().reshape(-1)])

    torch.testing.assert_close(run(compiled), run(plain), rtol=1e-9, atol=0)


def test_an_error_of_the_closure_leaves_what_eagers_does() -> None:
    def run(wrap: Wrap) -> Any:
        model = net()
        optimizer = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=4)
        closure, calls = fitting(model, optimizer), []

        def failing() -> Tensor:
            calls.append(1)
            if len(calls) == 7:
                raise KeyError("no data")
            return closure()

        step = wrap(optimizer.step)
        step(failing)
        with pytest.raises(KeyError, match="no data"):
            step(failing)
        return optimizer

    assert_same_state(run(compiled), run(plain))


def test_search_in_a_compiled_function_ends_its_graph() -> None:
    model = net()
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.1)
    closure = fitting(model, optimizer)

    def train() -> Tensor:
        loss: Tensor = optimizer.step(closure)
        return loss * 2

    with pytest.raises(GraphBreakError, match="LBFGS decides by its losses"):
        optimize(train, run_graph, fullgraph=True)()
    step = compiled(train)
    assert step() > step()


@pytest.mark.parametrize("shape", [(50,), (50, 8), (6, 5, 4)])
@pytest.mark.parametrize("way", ["repeated", "coalesced", "none", "maximize"])
def test_rows_are_stepped_as_eagers(shape: tuple[int, ...], way: str) -> None:
    sparse_dims = 2 if len(shape) == 3 else 1

    def run(wrap: Wrap) -> tuple[Tensor, Any, Any]:
        torch.manual_seed(0)
        param = torch.randn(shape, dtype=torch.float64).requires_grad_()
        optimizer = torch.optim.SparseAdam([param], lr=0.01, maximize=way == "maximize")
        step = wrap(optimizer.step)
        for turn in range(20):
            count = 0 if way == "none" and turn % 2 else 12
            places = torch.stack([torch.randint(0, n, (count,)) for n in shape[:sparse_dims]])
            values = torch.randn(count, *shape[sparse_dims:], dtype=torch.float64)
            grad = torch.sparse_coo_tensor(places, values, shape, check_invariants=True)
            param.grad = grad.coalesce() if way == "coalesced" else grad
            step()
        return param.detach(), optimizer, step

    ours, state, step = run(compiled)
    theirs, their_state, _ = run(plain)
    torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-14)
    assert_same_state(state, their_state)
    assert_only_broken_for(step, "SparseAdam has sparse gradients", graphs=6)


@pytest.mark.parametrize("kind", ["LBFGS", "SparseAdam"])
def test_steps_that_another_compiler_disabled(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """PyTorch's own compiler, once used in a process, disables these steps for itself."""
    cls = getattr(torch.optim, kind)
    monkeypatch.setattr(cls, "step", torch.compiler.disable(cls.step))
    param = torch.randn(6, 3).requires_grad_()
    optimizer = cls([param], lr=0.1)

    def closure() -> Tensor:
        optimizer.zero_grad()
        rows = nn.functional.embedding(torch.tensor([1, 2, 1]), param, sparse=kind == "SparseAdam")
        loss = rows.square().sum()
        loss.backward()
        return loss

    step = compiled(optimizer.step)
    assert step(closure) > step(closure)
    assert step.capture_context.log.counters["graph"] >= 2


def test_what_the_program_disabled_stays_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """All that PyTorch's own compiler disables has the same code."""
    cls = torch.optim.LBFGS
    monkeypatch.setattr(cls, "step", torch.compiler.disable(cls.step))
    param = torch.randn(6, 3).requires_grad_()
    optimizer = cls([param], lr=0.1, max_iter=2)

    def doubled(x: Tensor) -> Tensor:
        return x * 2

    disabled = torch.compiler.disable(doubled)

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss: Tensor = disabled(param).square().sum()
        loss.backward()
        return loss

    step = compiled(optimizer.step)
    step(closure)
    log = step.capture_context.log
    assert log.counters["graph"] >= 2
    assert not [event for event in log.events if event.name.endswith("doubled")]
