"""Gradients that go to the elements equal to a reduction's result reach them, whatever the value
was fused with: what is compared must be what was reduced, to the bit."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import dovetail

# Each is linear in what it picks: its gradients sum to the cotangents.
PICKING: dict[str, Callable[[Tensor], Tensor]] = {
    "amax of columns": lambda a: a.amax(0),
    "amin of rows": lambda a: a.amin(1),
    "max": lambda a: a.max(),
    "median": lambda a: a.median(),
    "aminmax": lambda a: torch.stack(torch.aminmax(a, dim=0)),
    "inf-norm": lambda a: torch.linalg.vector_norm(a, float("inf"), dim=0),
    "scatter_reduce": lambda a: a.new_zeros(5, a.shape[1]).scatter_reduce(
        0, (torch.arange(a.shape[0]) % 5)[:, None].expand_as(a), a, "amax", include_self=False
    ),
    "segments": lambda a: torch.segment_reduce(
        a, "max", lengths=torch.tensor([a.shape[0] - 5, 0, 2, 3]), axis=0, initial=0.0
    )[[0, 2, 3]],
    "by value": lambda a: torch.where(a == a.amax(0, keepdim=True), a, 0.0).amax(0),
    "cummax": lambda a: a.cummax(0).values,
    "pooling": lambda a: torch.nn.functional.max_pool2d(a[None, None], 3),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", PICKING)
def test_gradients_reach_what_was_picked(name: str, dtype: torch.dtype) -> None:
    pick = PICKING[name]

    def fn(x: Tensor, y: Tensor, shift: Tensor) -> Tensor:
        return pick(((x * y).exp() * y.cos()).abs() + 0.125 * x.sin() + 1 + shift)

    compiled = dovetail.compile(fn, fullgraph=True)
    if name == "aminmax" and torch.__version__ < "2.15":  # (or as soon as eager has a derivative)
        leaf = torch.randn(9, 9, requires_grad=True)
        for refuses in (fn, compiled):
            with pytest.raises(RuntimeError, match="derivative for aten::aminmax"):
                refuses(leaf, leaf, leaf).sum().backward()
        return
    for shape in ((37, 53), (64, 32), (6, 300)):
        torch.manual_seed(0)
        x, y = (torch.randn(shape).to(dtype).requires_grad_() for _ in range(2))
        shift = torch.zeros(shape, dtype=dtype, requires_grad=True)
        out = compiled(x, y, shift)
        (gradient,) = torch.autograd.grad(out, shift, torch.ones_like(out))
        total = gradient.double().sum()
        assert abs(total.item() - out.numel()) < 0.02 * out.numel(), (total, out.numel())
    dovetail.reset()


def test_an_inf_norm_of_widened_values() -> None:
    """renorm takes the norm of float32 numbers and compares with bfloat16 ones."""
    x = torch.randn(37, 53).bfloat16()
    results = []
    for fn in (f := lambda x: (x * 1.5).renorm(float("inf"), 0, 0.5), dovetail.compile(f)):
        leaf = x.clone().requires_grad_()
        out = fn(leaf)
        results.append(torch.autograd.grad(out, leaf, torch.ones_like(out))[0])
    dovetail.reset()
    assert results[1].isfinite().all()
    torch.testing.assert_close(results[1], results[0], rtol=0.05, atol=0.05)
