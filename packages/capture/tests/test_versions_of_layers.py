"""Layers whose frames are compiled by themselves (a break inside of each): what they share."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable
from typing import Any

import dovetail_capture as dc
import pytest
import torch
from torch import Tensor, nn


class Layer(nn.Module):
    def __init__(self, width: int, to: int) -> None:
        super().__init__()
        self.inner = nn.Linear(width, to)

    def forward(self, x: Tensor) -> Tensor:
        y = self.inner(x)
        dc.graph_break()
        return y.relu() if self.training else y.sigmoid()


class Counting:
    def __init__(self) -> None:
        self.graphs = 0

    def __call__(self, gm: torch.fx.GraphModule, inputs: list[Any]) -> Callable[..., Any]:
        self.graphs += 1
        return gm.forward


def compiled(widths: list[int]) -> tuple[nn.Module, nn.Module, Counting]:
    model = nn.Sequential(*[Layer(a, b) for a, b in itertools.pairwise(widths)])
    backend = Counting()
    return copy.deepcopy(model), dc.optimize(model, backend), backend


def reached_the_limit(fast: Any) -> bool:
    return any(event.kind == "limit" for event in fast.capture_context.log.events)


def test_layers_alike_share_a_version_from_the_second_on() -> None:
    model, fast, backend = compiled([4] * 13)
    x = torch.randn(2, 4, requires_grad=True)
    torch.testing.assert_close(fast(x), model(x))
    # Two parts of a layer: for the first layer, which is pinned, and for any other.
    assert backend.graphs == 4
    for a, b in zip(model.parameters(), fast.parameters(), strict=True):
        with torch.no_grad():
            for weight in (a, b):
                weight.add_(0.5)
    torch.testing.assert_close(fast(x), model(x))
    assert backend.graphs == 4


def test_layers_of_many_shapes_do_not_count_against_one_another() -> None:
    model, fast, _ = compiled(list(range(3, 23)))
    x = torch.randn(2, 3)
    for training in (True, False, True):
        model.train(training)
        fast.train(training)
        torch.testing.assert_close(fast(x), model(x))
        with torch.no_grad():
            torch.testing.assert_close(fast(x), model(x))
    assert not reached_the_limit(fast)


def test_one_module_that_changes_counts() -> None:
    class Counter(nn.Module):
        step = 0

        def forward(self, x: Tensor) -> Tensor:
            return x * 2 if str(self.step) == "4" else x + len(str(self.step))

    def call(module: Counter, x: Tensor) -> Tensor:
        return module(x) + 1

    fast: Any = dc.optimize(call, Counting(), dynamic=False, recompile_limit=4)
    modules = [Counter() for _ in range(3)]
    with pytest.warns(RuntimeWarning, match="recompile limit"):
        for step in range(8):
            for module in modules:
                module.step = step
                torch.testing.assert_close(fast(module, torch.ones(2)), call(module, torch.ones(2)))
    assert reached_the_limit(fast)
