"""nn.Modules: attribute lookup, calls, hooks, buffers, modes, containers."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from dovetail_capture.api import optimize
from torch import nn

from . import programs


class Block(nn.Module):
    eps: float = 1e-5

    def __init__(self, width: int) -> None:
        super().__init__()
        self.linear = nn.Linear(width, width)
        self.norm = nn.LayerNorm(width)
        self.register_buffer("steps", torch.zeros(1))
        self.scale = nn.Parameter(torch.ones(width))
        self.act = torch.nn.functional.gelu

    def forward(self, t: torch.Tensor, *, gain: float = 1.0) -> torch.Tensor:
        if self.training:
            self.steps += 1
        return self.act(self.norm(self.linear(t))) * self.scale * gain + self.eps


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([Block(4) for _ in range(3)])
        self.table = nn.ModuleDict({"a": nn.Linear(4, 4), "b": nn.Identity()})
        self.tail = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Dropout(0.5), nn.BatchNorm1d(3))
        self.weights = nn.ParameterList([nn.Parameter(torch.ones(3))])
        self.calls = 0

    def forward(self, t: torch.Tensor) -> Any:
        self.calls += 1
        for index, block in enumerate(self.blocks[:2]):
            t = block(t, gain=index + 1.0)
        for name, layer in self.table.items():
            t = layer(t) if name == "a" else layer(t) + 1
        t = self.blocks[-1](t)
        count = len(list(self.parameters())) + len(self.blocks) + ("a" in self.table)
        return self.tail(t) * self.weights[0] + count


@pytest.mark.parametrize("training", [False, True])
def test_net(training: bool) -> None:
    torch.manual_seed(0)
    eager = Net().train(training)
    model = copy.deepcopy(eager)
    backend = programs.CountingBackend()
    captured = optimize(model, backend, fullgraph=True)
    for call in range(3):
        t = torch.randn(2, 4)
        torch.manual_seed(call)
        expected = eager(t)
        torch.manual_seed(call)
        actual = captured(t)
        assert torch.equal(expected, actual)
        assert model.calls == call + 1
    for (name, left), (_, right) in zip(eager.named_buffers(), model.named_buffers(), strict=True):
        assert torch.equal(left, right), name
    expected.sum().backward()
    actual.sum().backward()
    for left, right in zip(eager.parameters(), model.parameters(), strict=True):
        assert programs.same(left.grad, right.grad)


def test_parameters_are_static_inputs() -> None:
    backend = programs.CountingBackend()
    model = Block(4)
    optimize(model, backend, fullgraph=True)(torch.randn(2, 4))
    (graph,) = backend.graphs
    names = [node.name for node in graph.graph.nodes if node.op == "placeholder"]
    assert len(names) == 1 + len(list(model.parameters())) + 1  # and the buffer


def test_switching_mode_recaptures() -> None:
    backend = programs.CountingBackend()
    model = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5)).eval()
    captured = optimize(model, backend, fullgraph=True)
    t = torch.randn(2, 4)
    assert torch.equal(captured(t), model[0](t))
    model.train()
    torch.manual_seed(0)
    expected = model(t)
    torch.manual_seed(0)
    assert torch.equal(captured(t), expected)
    assert len(backend.graphs) == 2


def test_hooks_on_inner_modules_are_inlined() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    model[0].register_forward_hook(lambda module, args, output: output * 2)
    model[1].register_forward_pre_hook(lambda module, args: (args[0] + 1,))
    backend = programs.CountingBackend()
    captured = optimize(model, backend, fullgraph=True)
    t = torch.randn(2, 4)
    assert torch.equal(captured(t), model(t))
    handle = model[1].register_forward_hook(lambda module, args, output: output - 1)
    assert torch.equal(captured(t), model(t))
    handle.remove()
    assert torch.equal(captured(t), model(t))
    # Hook handles and the outer modules' hook bookkeeping differ, so graphs may be more than two.
    assert len(backend.graphs) >= 2


def test_a_replaced_submodule_is_seen() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    captured = optimize(model, programs.CountingBackend(), fullgraph=True)
    t = torch.randn(2, 4)
    captured(t)
    model[1] = nn.Sigmoid()
    assert torch.equal(captured(t), model(t))
    model[0].weight = nn.Parameter(torch.ones(4, 4))
    assert torch.equal(captured(t), model(t))


def test_a_patched_forward_is_seen() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    captured = optimize(model, programs.CountingBackend(), fullgraph=True)
    t = torch.randn(2, 4)
    captured(t)
    model[1].forward = lambda value: value * 3
    assert torch.equal(captured(t), model(t))


@contextlib.contextmanager
def doubled(t: torch.Tensor) -> Iterator[torch.Tensor]:
    yield t * 2


def test_torch_modes_and_contexts() -> None:
    weight = torch.ones(2, requires_grad=True)

    @torch.no_grad()
    def inner(t: torch.Tensor) -> torch.Tensor:
        return t * weight

    def program(t: torch.Tensor) -> Any:
        with torch.no_grad():
            a = t * weight
            with torch.enable_grad():
                b = t * weight
        with doubled(t) as c:
            d = c * weight
        with torch.autocast("cpu", dtype=torch.bfloat16):
            e = torch.mm(t.reshape(1, 2), t.reshape(2, 1))
        flags = torch.is_grad_enabled(), a.requires_grad, b.requires_grad, e.dtype
        return a, b, d, e, inner(t), flags

    programs.check(program, torch.ones(2))


def test_losses_and_modules_made_in_the_frame() -> None:
    def program(t: torch.Tensor) -> Any:
        layers = nn.Sequential(nn.ReLU(), nn.Flatten())
        return nn.CrossEntropyLoss()(layers(t), torch.tensor([1, 0]))

    programs.check(program, torch.randn(2, 3))
