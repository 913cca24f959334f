"""Operators that users register: kernels in Python, gradients, lists of results."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import dovetail

ops = torch.ops.dovetail_custom


@torch.library.custom_op("dovetail_custom::product", mutates_args=())
def product(x: Tensor, y: Tensor) -> Tensor:
    return torch.from_numpy(x.numpy() * y.numpy())  # refuses what requires a gradient


@product.register_fake
def _(x: Tensor, y: Tensor) -> Tensor:
    return torch.empty_like(x)


def _save(ctx: Any, inputs: Any, output: Any) -> None:
    ctx.save_for_backward(*inputs)


def _product_backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
    x, y = ctx.saved_tensors
    return product(grad, y), product(grad, x)


product.register_autograd(_product_backward, setup_context=_save)


@torch.library.custom_op("dovetail_custom::halves", mutates_args=())
def halves(x: Tensor) -> tuple[list[Tensor], int]:
    return [part.clone() for part in x.chunk(2)], 7


@halves.register_fake
def _(x: Tensor) -> tuple[list[Tensor], int]:
    return [part.clone() for part in x.chunk(2)], 7


halves.register_autograd(
    lambda ctx, grads, _: torch.cat(grads), setup_context=lambda *_, **__: None
)


def products(x: Tensor, y: Tensor) -> Tensor:
    return product(x, product(x, y).sin()) * 2


def parts(x: Tensor, y: Tensor) -> Tensor:
    (first, second), number = halves(x * y)
    return first * second.cos() + number


@pytest.mark.parametrize("backend", ["aot_eager", "dovetail"])
@pytest.mark.parametrize("program", [products, parts])
def test_kernels_in_python_and_their_gradients(
    program: Callable[..., Tensor], backend: str
) -> None:
    compiled = dovetail.compile(program, backend=backend, fullgraph=True)
    torch.manual_seed(0)
    leaves = [torch.randn(4, 3, requires_grad=True) for _ in range(2)]
    found = []
    for function in (program, compiled):
        result = function(*leaves)
        found.append((result, *torch.autograd.grad(result.sum(), leaves)))
    torch.testing.assert_close(found[1], found[0])
    with torch.no_grad():
        torch.testing.assert_close(compiled(*leaves), found[0][0])
