"""`matmul` of batches in operators that take symbolic sizes as they are (see `symbolic_forms`)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from dovetail_prims.fake_tensor import tensor_meta


def has_symbolic_sizes(value: Any) -> bool:
    """True for a fake with a size known at run time only."""
    return isinstance(value, Tensor) and any(type(n) is not int for n in tensor_meta(value).sizes)


def batched_matmul(a: Tensor, b: Tensor) -> Any:
    """`torch.matmul` of two tensors, one of three dimensions or more: batch dimensions broadcast.

    Returns NotImplemented for what PyTorch's own computes without the numbers: fewer dimensions, or
    no symbolic sizes.
    """
    if not has_symbolic_sizes(a) and not has_symbolic_sizes(b):
        return NotImplemented
    if max(a.dim(), b.dim()) < 3 or 0 in (a.dim(), b.dim()):
        return NotImplemented
    if b.dim() == 1:
        return batched_matmul(a, b.unsqueeze(1)).squeeze(-1)
    if a.dim() == 1:
        return batched_matmul(a.unsqueeze(0), b).squeeze(-2)
    if b.dim() == 2:  # the batch is so many more rows
        rows = a.reshape(-1, a.shape[-1])
        return (rows @ b).view(*a.shape[:-1], b.shape[-1])
    batch = _broadcast(list(a.shape[:-2]), list(b.shape[:-2]))
    (m, k), (inner, n) = a.shape[-2:], b.shape[-2:]
    count: Any = 1
    for size in batch:
        count = count * size
    left = a.expand(*batch, m, k).reshape(count, m, k)
    right = b.expand(*batch, inner, n).reshape(count, inner, n)
    return torch.bmm(left, right).view(*batch, m, n)


def _broadcast(a: list[Any], b: list[Any]) -> list[Any]:
    """The sizes that both expand to; a symbolic size is never 1 (`expand` checks the rest)."""
    rank = max(len(a), len(b))
    a, b = [1] * (rank - len(a)) + a, [1] * (rank - len(b)) + b
    return [y if type(x) is int and x == 1 else x for x, y in zip(a, b, strict=True)]
