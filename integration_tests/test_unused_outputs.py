"""Outputs that have no gradient in a call: what they depend on is not differentiated."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import dovetail


@pytest.mark.parametrize("backend", ["aot_eager", "dovetail"])
@pytest.mark.parametrize("dynamic", [False, True])
def test_infinite_derivatives_that_no_loss_needs(backend: str, dynamic: bool) -> None:
    """Zeros for the gradients that are not there would make NaN of them, in symbolic sizes, too."""

    def fn(x: Tensor) -> tuple[Tensor, ...]:
        return x * 2, (1 / x).cumsum(0), x.norm(dim=1), x.sqrt().unsqueeze(0) + 1, x.sin(), x + 1

    compiled = dovetail.compile(fn, backend=backend, dynamic=dynamic)
    for rows in (3, 4):
        x = (torch.arange(rows * 4.0).view(rows, 4) - 4).relu().requires_grad_()
        # (more sets of them than are compiled)
        for used in ((0,), (4,), (5,), (0, 4), (0, 5), (4, 5), (0, 4, 5)):
            ours, eager = (
                torch.autograd.grad(sum((call(x)[i].sum() for i in used), x.new_zeros(())), x)[0]
                for call in (compiled, fn)
            )
            assert torch.isfinite(eager).all()
            torch.testing.assert_close(ours, eager)


def test_with_a_break_behind_what_is_not_used() -> None:
    def fn(x: Tensor, i: Tensor) -> Tensor:
        doubled = x * 2
        inverse = 1 / doubled
        inverse[i]  # (an index that is data: the graph ends)
        return doubled

    compiled = dovetail.compile(fn, dynamic=True)
    x = torch.tensor([0.0, 1.0, 2.0], requires_grad=True)
    (gradient,) = torch.autograd.grad(compiled(x, torch.tensor(1)).sum(), x)
    assert torch.equal(gradient, torch.full((3,), 2.0))
