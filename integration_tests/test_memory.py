"""Memory on the CPU: its peak in training steps, beside eager's, and what is given back."""

from __future__ import annotations

import copy
import gc
from collections.abc import Callable
from pathlib import Path
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


def _kernels_mapped() -> int:
    return Path("/proc/self/maps").read_text().count("kernels.so")


def test_kernels_are_unloaded_with_what_was_compiled() -> None:
    """A process that compiles on and on would run out of maps, with and without a backward."""

    def compile_one(number: int) -> None:
        def fn(x: torch.Tensor) -> torch.Tensor:
            x.mul_(number)
            return (x.sin() * number).sum()

        given = torch.randn(7, 3, requires_grad=number % 2 == 0)
        out = dovetail.compile(fn, isolate_recompiles=True)(given.clone())
        if number % 4 == 0:
            out.backward()

    gc.collect()
    before = _kernels_mapped()
    kept = dovetail.compile(lambda x: x.cos() + 31)
    kept(torch.ones(5))
    with_one = _kernels_mapped()
    assert with_one > before
    for number in range(2, 7):
        compile_one(number)
    assert _kernels_mapped() > with_one
    gc.collect()
    gc.collect()  # what nodes of autograd held is found to be garbage once they are gone
    assert _kernels_mapped() <= with_one
    torch.testing.assert_close(kept(torch.ones(5)), torch.ones(5).cos() + 31)
