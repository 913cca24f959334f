"""Small real architectures in pairs, and how results of two of them are compared."""

from __future__ import annotations

import copy

import torch
from torch import Tensor

from dovetail.bench.models import Case, cases


def build(name: str, train: bool) -> tuple[Case, Case]:
    """The small case and a copy of it with its own parameters."""
    torch.manual_seed(0)
    case = cases()[name](True)
    case.model.train(train)
    return case, Case(copy.deepcopy(case.model), case.inputs, case.loss)


def assert_close(name: str, got: Tensor, expected: Tensor) -> None:
    """Same dtype, shape and strides; values within float32 rounding of deep networks."""
    assert got.dtype == expected.dtype and got.shape == expected.shape, name
    assert got.stride() == expected.stride(), (name, got.stride(), expected.stride())
    scale = max(1.0, float(expected.detach().abs().max())) if expected.numel() else 1.0
    torch.testing.assert_close(
        got, expected, rtol=1e-3, atol=2e-4 * scale, msg=lambda m: f"{name}: {m}"
    )
