"""A backward's kernels are begun beside its forward's, where it is known which backward follows."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import dovetail
from dovetail.options import Options
from dovetail.pipeline import CompilerBackend, KernelBuild


def one(x: Tensor) -> tuple[Tensor, ...]:
    return (x.sin().exp(),)


def as_written(x: Tensor) -> tuple[Tensor, ...]:
    """Runs by eager's calls."""
    return (x.sin(),)


def several(x: Tensor) -> tuple[Tensor, ...]:
    return x.sin(), x.cos() * 2


def losses(x: Tensor) -> tuple[Tensor, ...]:
    return x.sin().sum(), x.cos().sum()


def beside_a_loss(x: Tensor) -> tuple[Tensor, ...]:
    return x.sin().sum(), x.cos() * 2


@pytest.mark.parametrize("program", [one, several, losses, as_written, beside_a_loss])
def test_the_backward_that_follows_is_begun(
    program: Callable[[Tensor], tuple[Tensor, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(KernelBuild, "is_underway", lambda build: True)
    backend = CompilerBackend(Options())
    compiled = dovetail.compile(program, backend=backend)
    x = torch.randn(5, requires_grad=True)
    outputs = compiled(x)
    begun = program not in (as_written, beside_a_loss)
    assert len(backend.ahead.begun) == begun
    found = torch.autograd.grad(outputs, x, [torch.ones_like(o) for o in outputs])
    assert not backend.ahead.begun
    wanted = program(x)
    expected = torch.autograd.grad(wanted, x, [torch.ones_like(o) for o in wanted])
    torch.testing.assert_close(found, expected)
    assert dovetail.report(compiled).graphs == 1
