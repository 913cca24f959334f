"""Modules whose first call gives their parameters shapes (`torch.nn.LazyLinear`)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from dovetail_capture import GraphBreakError
from torch import Tensor, nn
from torch.nn.modules.lazy import LazyModuleMixin

import dovetail

pytestmark = pytest.mark.filterwarnings("ignore:Lazy modules are a new feature")


class Convolutions(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.LazyConv1d(4, 3), nn.LazyBatchNorm1d()
        self.first, self.last = nn.LazyLinear(5), nn.Linear(5, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.first(self.norm(self.conv(x)).relu().flatten(1)))


class Scale(LazyModuleMixin, nn.Module):
    """Of the program's own: its parameter is made from the data."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.UninitializedParameter()

    def initialize_parameters(self, x: Tensor) -> None:
        with torch.no_grad():
            self.weight.materialize(x.shape[-1:])  # type: ignore[arg-type]
            self.weight.copy_(x.flatten(0, -2).amax(0))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.weight


class Holder(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x * 2)


MODULES: dict[str, Callable[[], nn.Module]] = {
    "one": lambda: nn.LazyLinear(3),
    "two": lambda: nn.Sequential(nn.LazyLinear(4), nn.Tanh(), nn.LazyLinear(2)),
    "convolutions": Convolutions,
    "own": Scale,
}


@pytest.mark.parametrize("backend", ["eager", "dovetail"])
@pytest.mark.parametrize("fullgraph", [False, True])
@pytest.mark.parametrize("name", MODULES)
def test_the_first_call_initialises(name: str, fullgraph: bool, backend: str) -> None:
    x = torch.randn(2, 3, 7)
    found = []
    for compiles in (False, True):
        torch.manual_seed(0)
        module = MODULES[name]()
        call: Any = module
        if compiles:
            call = dovetail.compile(module, fullgraph=fullgraph, backend=backend)
        results = [call(x), call(x)]
        results[0].square().sum().backward()
        slopes = [parameter.grad for parameter in module.parameters()]
        found.append(
            (results, slopes, torch.rand(2), dict(module.state_dict()), type(module).__name__)
        )
    (*expected, expected_class), (*tensors, own_class) = found
    torch.testing.assert_close(tensors, expected, rtol=1e-4, atol=1e-4)
    assert own_class == expected_class


def test_shapes_that_do_not_fit_are_told_as_in_eager() -> None:
    compiled = dovetail.compile(Holder(nn.LazyConv1d(4, 3)), fullgraph=True)
    with pytest.raises(RuntimeError, match=r"^Expected 2D \(unbatched\) or 3D \(batched\) input"):
        compiled(torch.randn(3))


def test_what_may_be_made_from_computed_data_is_refused() -> None:
    module, x = Holder(Scale()), torch.randn(2, 3)
    with pytest.raises(GraphBreakError, match="a parameter without a shape"):
        dovetail.compile(module, fullgraph=True, backend="eager")(x)
    torch.testing.assert_close(dovetail.compile(module, backend="eager")(x), module(x))
    assert torch.equal(module.inner.weight, (x * 2).amax(0))


def test_a_module_behind_a_random_draw_is_refused() -> None:
    """Initialised before the graph runs, it would have the numbers that the draw is to have."""

    class Dropped(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.last = nn.LazyLinear(3)

        def forward(self, x: Tensor) -> Tensor:
            return self.last(nn.functional.dropout(x, 0.5))

    module = Dropped()
    with pytest.raises(dovetail.CaptureError, match="call the module once"):
        dovetail.compile(module, fullgraph=True)(torch.ones(2, 4))
    assert module.last.has_uninitialized_params()
    without = dovetail.compile(Dropped())
    torch.manual_seed(3)
    got = without(torch.ones(2, 4))
    eager = Dropped()
    torch.manual_seed(3)
    torch.testing.assert_close(got, eager(torch.ones(2, 4)))
