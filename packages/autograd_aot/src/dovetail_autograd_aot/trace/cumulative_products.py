"""`cumprod` with a derivative of a few operators, whatever the data and the number of elements.

PyTorch's own asks the data whether a factor is zero; where it cannot (PyTorch 2.11), it computes
the derivative by each factor from scratch: thousands of operators for a thousand elements.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from dovetail_autograd_aot.trace.node_values import same_size


class _RunningProduct(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, dim: int) -> Tensor:
        result = x.cumprod(dim)
        ctx.save_for_backward(x, result)
        ctx.dim = dim
        return result

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        x, result = (saved.conj() for saved in ctx.saved_tensors)
        if same_size(x.shape[ctx.dim], 1):
            return gradient, None  # (in eager, too, it lies as it is given)
        if torch.is_grad_enabled():  # it will be differentiated
            found = _by_each_factor(gradient, x, ctx.dim)
        else:
            found = _by_quotients(gradient, x, result, ctx.dim)
        return found.contiguous(), None  # as PyTorch's own lies


def _by_quotients(gradient: Tensor, x: Tensor, result: Tensor, dim: int) -> Tensor:
    """The derivative by the factors before the first zero of a row is a quotient; by those after it
    it is zero; by the zero itself, a sum over the products without it."""
    zero = x == 0
    zeros = zero.cumsum(dim)
    first = zero & (zeros == 1)
    sums_from_here_on = (gradient * result).flip(dim).cumsum(dim).flip(dim)
    quotient = sums_from_here_on / torch.where(zero, 1, x)
    without = torch.where(first, 1, x).cumprod(dim)
    by_zero = torch.where(zeros > 0, gradient * without, 0).sum(dim, keepdim=True)
    return torch.where(first, by_zero, torch.where(zeros == 0, quotient, 0))


def _by_each_factor(gradient: Tensor, x: Tensor, dim: int) -> Tensor:
    """The product of the factors before each, times the sum over the products of those after it: as
    many terms as pairs of elements, but right where zeros are, too, when it is differentiated."""
    x, gradient = x.movedim(dim, -1), gradient.movedim(dim, -1)
    pairs = torch.ones(x.shape[-1], x.shape[-1], dtype=torch.bool, device=x.device)
    after = torch.where(pairs.triu(1), x.unsqueeze(-2), 1).cumprod(-1)
    sums = torch.where(pairs.triu(), gradient.unsqueeze(-2) * after, 0).sum(-1)
    before = torch.cat([torch.ones_like(x[..., :1]), x[..., :-1].cumprod(-1)], -1)
    return (before * sums).movedim(-1, dim)


def running_product(x: Tensor, dim: int) -> Tensor:
    """`x.cumprod(dim)` of a tensor with dimensions that gets a gradient."""
    result: Tensor = _RunningProduct.apply(x, dim)
    return result


__all__ = ["running_product"]
