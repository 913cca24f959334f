"""`torch.func`'s transforms that give more than a derivative, compiled: eager's values, and eager's
gradients through them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call, jvp, linearize, vjp

import dovetail

LAYER = nn.Linear(3, 3)


def jvp_and_more(x: Tensor) -> Tensor:
    value, slope, more = jvp(lambda t: (t.sin(), (t * 2, x)), (x,), (x.cos(),), has_aux=True)
    return value + slope * more[0] * more[1]


def jvp_that_says_so(x: Tensor) -> Tensor:
    value, slope = jvp(LAYER, (x,), (x * 2,), has_aux=False)
    return value + slope


def vjp_and_more(x: Tensor) -> Tensor:
    value, pull, more = vjp(lambda t: (LAYER(t).sin(), {"more": t * 3}), x, has_aux=True)
    return value + pull(value * 2)[0] + more["more"]


def linearized(x: Tensor) -> Tensor:
    value, push = linearize(lambda t: LAYER(t).sin() * x, x)
    return value + push(x * 3) + push(torch.ones_like(x))


def linearized_in_parameters(x: Tensor) -> Tensor:
    def call(parameters: dict[str, Tensor]) -> Tensor:
        return functional_call(LAYER, parameters, (x,)).exp()

    parameters = dict(LAYER.named_parameters())
    value, push = linearize(call, parameters)
    return value + push({name: p * p for name, p in parameters.items()})


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize(
    "function",
    [jvp_and_more, jvp_that_says_so, vjp_and_more, linearized, linearized_in_parameters],
)
def test_one_graph_gives_what_eager_gives(
    function: Callable[[Tensor], Tensor], dynamic: bool | None
) -> None:
    call: Any = dovetail.compile(function, fullgraph=True, dynamic=dynamic, backend="aot_eager")
    found = []
    for run in (function, call):
        x = torch.linspace(-1, 1, 6).view(2, 3).requires_grad_()
        result = run(x)
        wanted = [x, *LAYER.parameters()]
        gradients = torch.autograd.grad(result.square().sum(), wanted, allow_unused=True)
        found.append([result.detach(), *(g for g in gradients if g is not None)])
    torch.testing.assert_close(*found)
