"""Peak memory of training steps on the CPU, beside eager's."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

import dovetail
from dovetail.bench.measure import peak_bytes

MIB = 1 << 20


def deep() -> nn.Module:
    """Eight layers, 4 MiB of weights each."""
    torch.manual_seed(0)
    layers = [layer for _ in range(8) for layer in (nn.Linear(1024, 1024, bias=False), nn.Tanh())]
    return nn.Sequential(*layers)


def step(model: nn.Module, call: Callable[..., Any], x: torch.Tensor, retain: bool) -> None:
    """One step from and to no gradients, so that its peak holds them all."""
    call(x).square().mean().backward(retain_graph=retain)
    model.zero_grad(set_to_none=True)


def test_saved_tensors_make_room_for_gradients() -> None:
    x = torch.randn(1024, 1024)
    model = deep()
    twin = copy.deepcopy(model)
    compiled = dovetail.compile(model, fullgraph=True)
    eager = peak_bytes(lambda: step(twin, twin, x, retain=False), "cpu")
    ours = peak_bytes(lambda: step(model, compiled, x, retain=False), "cpu")
    retained = peak_bytes(lambda: step(model, compiled, x, retain=True), "cpu")
    assert ours <= 1.1 * eager
    assert retained > ours + 12 * MIB  # what the backward freed meanwhile


def test_outputs_without_gradient_cost_nothing() -> None:
    class TwoOutputs(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.randn(64, 2048))

        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            wide = torch.tanh(x @ self.weight)
            return wide, wide.square().mean()

    x = torch.randn(2048, 64)
    model = TwoOutputs()
    twin = copy.deepcopy(model)
    compiled = dovetail.compile(model, fullgraph=True)

    def run(call: Callable[..., Any]) -> Callable[[], None]:
        return lambda: call(x)[1].backward()

    eager, ours = peak_bytes(run(twin), "cpu"), peak_bytes(run(compiled), "cpu")
    torch.testing.assert_close(model.weight.grad, twin.weight.grad)
    assert ours <= 1.1 * eager
