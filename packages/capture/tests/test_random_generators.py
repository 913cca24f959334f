"""Generators of random numbers that are arguments: another in each call needs nothing compiled."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import dovetail_capture as dc
import pytest
import torch
from torch import Generator, Tensor
from torch.fx import GraphModule


def once(x: Tensor, g: Generator) -> Tensor:
    return x.sin() + torch.rand(3, generator=g) + 1


def by_device(x: Tensor, g: Generator | None) -> Tensor:
    if g is None or g.device.type != "cpu":
        return x
    return x + torch.randn(3, generator=g, device=g.device, dtype=x.dtype)


def seeded(x: Tensor, g: Generator) -> Tensor:
    g.manual_seed(3)
    return x + torch.randn(3, generator=g) + g.initial_seed()


def several(x: Tensor, g: Generator) -> Tensor:
    return torch.stack([x * torch.randn(3, generator=one) for one in [g, g]]).sum(0)


def in_place(x: Tensor, g: Generator) -> tuple[Tensor, ...]:
    first = x.bernoulli(0.5, generator=g)
    return first, torch.empty(3).normal_(generator=g), torch.randperm(4, generator=g)


def the_default(x: Tensor, g: Generator) -> Tensor:
    return x.cos() + torch.empty(3).uniform_(generator=torch.default_generator)


@pytest.mark.parametrize("function", [once, by_device, seeded, several, in_place, the_default])
def test_one_in_each_call(function: Callable[..., Any]) -> None:
    graphs: list[GraphModule] = []

    def backend(gm: GraphModule, inputs: list[Any]) -> Callable[..., Any]:
        graphs.append(gm)
        return gm.forward

    run: Any = dc.optimize(function, backend)
    compiled: tuple[Any, ...] = ()
    for seed in range(4):
        x, own, plain = torch.rand(3), Generator(), Generator()
        found = []
        for f, generator in ((run, own), (function, plain)):
            generator.manual_seed(seed)
            torch.manual_seed(seed)
            found.append(f(x, generator))
        torch.testing.assert_close(*found)
        assert torch.equal(own.get_state(), plain.get_state())
        compiled = compiled or (len(graphs), dc.recompiles(run))
    assert (len(graphs), dc.recompiles(run)) == compiled


def test_none_is_another_case() -> None:
    run = dc.optimize(by_device, dc.run_graph)
    x = torch.rand(3)
    for seed in (0, 1):
        for generator in (None, Generator().manual_seed(seed)):
            wanted = by_device(x, generator and Generator().manual_seed(seed))
            torch.testing.assert_close(run(x, generator), wanted)
