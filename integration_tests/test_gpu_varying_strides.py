"""Kernels on a GPU for inputs whose strides change from call to call, against eager."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import dovetail

pytestmark = pytest.mark.gpu

PARTS: dict[str, Callable[[Tensor], Tensor]] = {
    "rows": lambda x: x[..., :-3],
    "chunk": lambda x: x[..., 1:9],
    "transposed": lambda x: x[:, 1:].transpose(1, 2),
    "every other": lambda x: x[..., ::2],
}


def fn(x: Tensor) -> tuple[Tensor, ...]:
    return x.softmax(-1) * 2, x.sum(0), x.cumsum(1), x.reshape(-1), x.transpose(1, 2) @ x


@pytest.mark.parametrize("name", PARTS)
@pytest.mark.parametrize("size", [40, 64, 100])
def test_values_layouts_and_gradients(size: int, name: str) -> None:
    compiled = dovetail.compile(fn)
    for n in (size, size + 1, size + 2, size + 7):
        whole = torch.randn(6, 5, n + 3, device="cuda", requires_grad=True)
        seen = []
        for call in (fn, compiled):
            results = call(PARTS[name](whole))
            total = sum(y.square().mean() for y in results)
            assert isinstance(total, Tensor)
            seen.append([*results, torch.autograd.grad(total, whole)[0]])
        for mine, wanted in zip(seen[1], seen[0], strict=True):
            torch.testing.assert_close(mine, wanted, rtol=1e-4, atol=1e-4)
            assert mine.stride() == wanted.stride()
    # (Every other element of an even row lies as in one without a gap, which `reshape` views.)
    assert dovetail.report(compiled).graphs <= (4 if name == "every other" else 2)
