"""A frame whose graph costs no more as written keeps its own code, if it does little else; and the
log tells of that."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import dovetail_capture as dc
import pytest
import torch
from dovetail_prims.graphs.backend_traits import AsWritten
from torch import Tensor, nn


def as_written(gm: torch.fx.GraphModule, inputs: list[Any]) -> AsWritten:
    """A backend that gains nothing."""
    return AsWritten(gm.forward)


as_written.backend_traits = dc.BackendTraits(symbolic=True)  # type: ignore[attr-defined]


def helper(x: Tensor) -> Tensor:
    return x.exp()


class Layer(nn.Module):
    """A layer that is no torch's, over one of torch's."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x)


# What is compiled, whether gradients are wanted, and whether it keeps its code.
CASES: dict[str, tuple[Callable[[], Callable[..., Tensor]], bool, bool]] = {
    "one call": (lambda: lambda x: x.exp(), False, True),
    "another function's call": (lambda: lambda x: helper(x), True, False),
    "a layer, gradients": (lambda: nn.Linear(4, 4), True, True),
    "a layer": (lambda: nn.Linear(4, 4), False, False),
    "a layer's method": (lambda: nn.Conv1d(4, 4, 1), True, True),
    "a layer of a layer": (Layer, True, True),
    "a layer of that": (lambda: nn.Sequential(Layer()), True, False),
}


@pytest.mark.parametrize("name", CASES)
def test_the_log_tells_whose_code_runs(name: str) -> None:
    make, training, keeps = CASES[name]
    program, x = make(), torch.randn(4, 4)
    captured = dc.optimize(program, as_written)
    with torch.set_grad_enabled(training):
        if not isinstance(program, nn.Module):
            x.requires_grad_(training)
        torch.testing.assert_close(captured(x), program(x))
    log = captured.capture_context.log  # type: ignore[attr-defined]
    assert [event.kind for event in log.events] == ["own code" if keeps else "frame"]
    assert log.graph_count == 1
