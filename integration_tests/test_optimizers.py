"""Compiled optimizers, and whole training steps, against eager's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from dovetail_prims.graphs.backend_traits import BackendTraits
from torch import Tensor, nn

import dovetail
from dovetail.backends.eager_kernels import aot_eager

OPTIMIZERS: dict[str, dict[str, Any]] = {
    "SGD": {"momentum": 0.9, "nesterov": True}, "Adam": {"amsgrad": True}, "AdamW": {},
    "Adagrad": {}, "Adadelta": {}, "Adamax": {}, "NAdam": {}, "RMSprop": {"centered": True},
    "Rprop": {}, "RAdam": {}, "ASGD": {}, "Adafactor": {}, "Muon": {},
}  # fmt: skip


class Counting:
    """A backend that runs graphs as they are, and counts them."""

    backend_traits = BackendTraits(symbolic=True)

    def __init__(self) -> None:
        self.graphs = 0

    def __call__(self, gm: Any, example_inputs: Any) -> Callable[..., Any]:
        self.graphs += 1
        return aot_eager(gm, example_inputs)


def model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4))


def optimizer_of(name: str, net: nn.Module, **options: Any) -> torch.optim.Optimizer:
    params = [p for p in net.parameters() if p.dim() == 2 or name != "Muon"]
    made: torch.optim.Optimizer = getattr(torch.optim, name)(params, lr=0.05, **options)
    return made


def trained(
    name: str, options: dict[str, Any], compiled: Callable[[Any], Any], steps: int = 6
) -> tuple[list[Tensor], dict[str, Any]]:
    """The parameters and the state after some steps, with a rate that falls after each.

    The gradients are given: those of a loss follow from the parameters, and what one step rounds
    otherwise than eager would grow from step to step (a hundredfold in three of centred RMSprop).
    """
    net = model()
    optimizer = optimizer_of(name, net, **options)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
    # (The scheduler puts a wrapper over `step`, which counts: what is under it is compiled.)
    step = compiled(type(optimizer).step)
    torch.manual_seed(1)
    for _ in range(steps):
        optimizer.zero_grad()
        for p in net.parameters():
            p.grad = torch.randn_like(p)
        step(optimizer)
        schedule.step()
    return [p.detach() for p in net.parameters()], optimizer.state_dict()


def assert_same(ours: tuple[Any, Any], theirs: tuple[Any, Any], floor: float = 1e-6) -> None:
    for a, b in zip(ours[0], theirs[0], strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=floor)
    our_state, their_state = ours[1]["state"], theirs[1]["state"]
    assert our_state.keys() == their_state.keys()
    for index, values in their_state.items():
        assert our_state[index].keys() == values.keys()
        for key, value in values.items():
            if isinstance(value, Tensor):
                torch.testing.assert_close(our_state[index][key], value, rtol=1e-4, atol=floor)
            else:
                assert our_state[index][key] == pytest.approx(value)


@pytest.mark.parametrize("foreach", [False, True])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_step(name: str, foreach: bool) -> None:
    options = OPTIMIZERS[name] | ({} if name == "Muon" else {"foreach": foreach})
    counting = Counting()
    ours = trained(name, options, lambda step: dovetail.compile(step, backend=counting))
    assert_same(ours, trained(name, options, lambda step: step))
    # One graph while the state is made, one for a rate that is a constant, one for any rate.
    assert 0 < counting.graphs <= 3


@pytest.mark.parametrize("name", ["SGD", "Adagrad", "Adam", "AdamW"])
def test_fused_step(name: str) -> None:
    options = OPTIMIZERS[name] | {"fused": True, "maximize": True, "weight_decay": 0.1}
    steps = []

    def compiled(step: Any) -> Any:
        steps.append(dovetail.compile(step, fullgraph=True))
        return steps[-1]

    assert_same(trained(name, options, compiled), trained(name, options, lambda step: step))
    assert dovetail.report(steps[0]).graphs <= 3  # the state, one rate, any rate


@pytest.mark.parametrize("name", ["SGD", "Adagrad", "Adam", "AdamW"])
def test_fused_step_by_a_tensor(name: str) -> None:
    def run(compiled: Callable[[Any], Any]) -> tuple[list[Tensor], dict[str, Any]]:
        net = model()
        rate = torch.tensor(0.05)
        kind = getattr(torch.optim, name)
        optimizer = kind(net.parameters(), lr=rate, fused=True, **OPTIMIZERS[name])
        step = compiled(optimizer.step)
        torch.manual_seed(1)
        for _ in range(4):
            for p in net.parameters():
                p.grad = torch.randn_like(p)
            step()
            rate.mul_(0.5)
        return [p.detach() for p in net.parameters()], optimizer.state_dict()

    ours = run(lambda step: dovetail.compile(step, fullgraph=True))
    assert_same(ours, run(lambda step: step))


@pytest.mark.parametrize("name", ["SGD", "AdamW", "RMSprop"])
def test_step_as_kernels(name: str) -> None:
    options = OPTIMIZERS[name] | {"foreach": True}
    ours = trained(name, options, dovetail.compile)
    assert_same(ours, trained(name, options, lambda step: step))


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_step_is_one_graph(name: str) -> None:
    net = model()
    optimizer = optimizer_of(name, net, **OPTIMIZERS[name])
    for p in net.parameters():
        p.grad = torch.ones_like(p)
    optimizer.step()
    counting = Counting()
    dovetail.compile(optimizer.step, backend=counting, fullgraph=True)()
    assert counting.graphs == 1


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_rate_that_is_a_tensor_is_no_constant(name: str) -> None:
    """The state is made in the first step; all others are one graph, whatever the rate."""

    def run(compiled: Callable[[Any], Any]) -> tuple[list[Tensor], dict[str, Any]]:
        net = model()
        kind = getattr(torch.optim, name)
        params = [p for p in net.parameters() if p.dim() == 2 or name != "Muon"]
        optimizer = kind(params, lr=torch.tensor(0.05), **OPTIMIZERS[name])
        step = compiled(kind.step)
        torch.manual_seed(1)
        for _ in range(5):
            for p in net.parameters():
                p.grad = torch.randn_like(p)
            step(optimizer)
            optimizer.param_groups[0]["lr"].mul_(0.5)
        return [p.detach() for p in net.parameters()], optimizer.state_dict()

    counting = Counting()
    ours = run(lambda step: dovetail.compile(step, backend=counting))
    assert_same(ours, run(lambda step: step))
    assert 0 < counting.graphs <= 2


@pytest.mark.parametrize("name", ["SGD", "AdamW"])
def test_whole_training_step(name: str) -> None:
    """Forward, loss, backward, step and zero_grad in one compiled function."""

    def train(net: nn.Module, optimizer: Any, x: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss: Tensor = (net(x) ** 2).mean()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        return loss.detach()

    def run(step: Callable[..., Tensor]) -> tuple[list[Tensor], list[Tensor]]:
        net = model()
        optimizer = optimizer_of(name, net, **OPTIMIZERS[name])
        torch.manual_seed(1)
        losses = [step(net, optimizer, torch.randn(5, 8)) for _ in range(5)]
        return losses, [p.detach() for p in net.parameters()]

    ours, theirs = run(dovetail.compile(train)), run(train)
    for a, b in zip([*ours[0], *ours[1]], [*theirs[0], *theirs[1]], strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-6)


def test_state_that_is_kept_by_tensor_is_found_again() -> None:
    """A dictionary whose keys are tensors is looked into by what it has, not only by what the
    captured function puts there."""
    state: dict[Tensor, dict[str, Tensor]] = {}

    def count(p: Tensor) -> Tensor:
        if p not in state:
            state[p] = {"step": torch.zeros(())}
        state[p]["step"] += 1
        return p * state[p]["step"]

    compiled = dovetail.compile(count, backend="aot_eager")
    p, q = torch.ones(2), torch.ones(2)
    assert [compiled(p).tolist() for _ in range(3)] == [[1, 1], [2, 2], [3, 3]]
    assert [compiled(q).tolist() for _ in range(2)] == [[1, 1], [2, 2]]
    assert compiled(p).tolist() == [4, 4]


@pytest.mark.parametrize("name", ["SGD", "Adagrad", "Adam", "ASGD"])
def test_a_rate_that_falls_between_differentiable_steps(name: str) -> None:
    """Eager keeps the numbers that it computed from a rate; writing to the rate is no error."""

    def run(wrap: Callable[[Any], Any]) -> Any:
        torch.manual_seed(0)
        start = torch.randn(4, 3, requires_grad=True)
        given = [torch.randn(4, 3, requires_grad=True) for _ in range(3)]
        weights, rate = start.clone(), torch.tensor(0.1)
        optimizer = getattr(torch.optim, name)([weights], lr=rate, differentiable=True)
        step = wrap(lambda: optimizer.step())
        for gradient in given:
            weights.grad = gradient
            step()
            rate.mul_(0.9)
        return torch.autograd.grad(weights.square().sum(), [start, *given])

    eager = run(lambda step: step)
    ours = run(lambda step: dovetail.compile(step, fullgraph=True))
    torch.testing.assert_close(ours, eager)


@pytest.mark.parametrize("optimizer", [torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW])
def test_the_gradient_of_a_learning_rate(optimizer: Any) -> None:
    """Steps that are differentiated, of parameters that are no leaves."""

    def train(start: torch.Tensor, rate: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        weight = start.clone()
        steps = optimizer([weight], lr=rate, differentiable=True)
        for _ in range(2):
            loss = (weight * x).sin().sum()
            (weight.grad,) = torch.autograd.grad(loss, weight, create_graph=True)
            steps.step()
        assert weight.grad is not None
        return (weight * x).cos().sum()

    found = []
    for call in (train, dovetail.compile(train, fullgraph=True, backend="aot_eager")):
        for _ in range(2):
            torch.manual_seed(0)
            start = torch.randn(3, dtype=torch.float64, requires_grad=True)
            x = torch.randn(3, dtype=torch.float64)
            rate = torch.tensor(0.1, dtype=torch.float64, requires_grad=True)
            found.append(torch.autograd.grad(call(start, rate, x), (start, rate)))
    for other in found[1:]:
        torch.testing.assert_close(other, found[0])


@pytest.mark.parametrize("search", [None, "strong_wolfe"])
def test_a_search_by_data_is_compiled_in_parts(search: str | None) -> None:
    """LBFGS decides by its losses at every turn: Python drives it, what it computes is compiled."""
    x, y = torch.randn(32, 8, dtype=torch.float64), torch.randn(32, 4, dtype=torch.float64)

    def run(wrap: Callable[[Any], Any]) -> tuple[list[float], Any]:
        net = model().double()
        optimizer = torch.optim.LBFGS(
            net.parameters(), lr=0.1, max_iter=4, history_size=21, line_search_fn=search
        )

        def closure() -> Tensor:
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(net(x), y)
            loss.backward()
            return loss

        step = wrap(optimizer.step)
        return [step(closure).item() for _ in range(200)], step

    losses, step = run(dovetail.compile)
    their_losses, _ = run(lambda step: step)
    # (What is rounded otherwise grows with every step, until both have converged.)
    torch.testing.assert_close(losses[:15], their_losses[:15], rtol=1e-7, atol=0)
    assert losses[-1] < 1e-4 * losses[0] and their_losses[-1] < 1e-4 * losses[0]
    told = dovetail.report(step)
    assert 5 < told.graphs <= 16 and not told.plain_frames
    (broken,) = told.breaks
    assert broken.reason.startswith("LBFGS decides by its losses at every turn")


def test_a_step_by_sparse_gradients_is_compiled_in_parts() -> None:
    def run(wrap: Callable[[Any], Any]) -> tuple[Tensor, dict[str, Any], Any]:
        torch.manual_seed(0)
        table = nn.EmbeddingBag(50, 8, sparse=True, mode="sum", dtype=torch.float64)
        optimizer = torch.optim.SparseAdam(table.parameters(), lr=0.01)
        step = wrap(optimizer.step)
        for _ in range(200):
            optimizer.zero_grad()
            table(torch.randint(0, 50, (4, 3))).square().sum().backward()
            step()
        return table.weight.detach(), optimizer.state_dict()["state"][0], step

    ours, state, step = run(dovetail.compile)
    theirs, their_state, _ = run(lambda step: step)
    torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-12)
    assert state.keys() == their_state.keys() and state["step"] == their_state["step"]
    for name in ("exp_avg", "exp_avg_sq"):
        torch.testing.assert_close(state[name], their_state[name], rtol=1e-9, atol=1e-12)
    told = dovetail.report(step)
    assert 0 < told.graphs <= 4 and dict(told.extern_ops).keys() <= {"aten::sort"}
    (broken,) = told.breaks
    assert broken.reason.startswith("SparseAdam has sparse gradients")
