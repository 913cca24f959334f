"""Batch norm with cumulative averages: one graph, and the buffers as in eager."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from dovetail_capture import optimize
from torch import Tensor, nn


def networks() -> dict[str, nn.Module]:
    torch.manual_seed(0)
    return {
        "rows": nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3, momentum=None)),
        "images": nn.Sequential(nn.Conv2d(2, 3, 2), nn.BatchNorm2d(3, momentum=None, affine=False)),
        "double": nn.BatchNorm1d(4, momentum=None).double(),
        "untracked": nn.BatchNorm1d(4, momentum=None, track_running_stats=False),
        "with momentum": nn.BatchNorm1d(4, momentum=0.3),
    }


def batch(name: str) -> Tensor:
    shape = (2, 2, 5, 5) if name == "images" else (6, 4)
    return torch.randn(shape, dtype=torch.float64 if name == "double" else torch.float32)


@pytest.mark.parametrize("fullgraph", [False, True])
@pytest.mark.parametrize("name", networks())
def test_as_eager(name: str, fullgraph: bool) -> None:
    graphs: list[Any] = []

    def backend(gm: Any, inputs: Any) -> Any:
        graphs.append(gm)
        return gm.forward

    eager = networks()[name]
    other = copy.deepcopy(eager)
    compiled = optimize(lambda x: other(x), backend=backend, fullgraph=fullgraph)
    for _ in range(4):
        x = batch(name).requires_grad_()
        found, wanted = compiled(x), eager(x)
        torch.testing.assert_close(found, wanted)
        gradients = [torch.autograd.grad(y.sin().sum(), x)[0] for y in (found, wanted)]
        torch.testing.assert_close(*gradients, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(other.state_dict(), eager.state_dict())
    assert len(graphs) == 1
    eager.eval(), other.eval()
    x = batch(name)
    torch.testing.assert_close(compiled(x), eager(x))
    assert len(graphs) == 2


def test_one_value_per_channel_is_refused() -> None:
    compiled = optimize(nn.Sequential(nn.BatchNorm1d(4, momentum=None)), backend=lambda g, i: g)
    with pytest.raises(ValueError, match="more than 1 value per channel"):
        compiled(torch.randn(1, 4))
