"""Parts, views and new tensors: one op of a kind, sizes and dtypes named."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from dovetail_prims.ops.common import Number, aten, cast, wrap
from dovetail_prims.ops.operands import number_dtype, result_dtype
from dovetail_prims.ops.views import unsqueeze_in_prims


def cat(tensors: Sequence[Tensor], dim: int = 0) -> Any:
    """Of one dtype, without the empty vectors ATen ignores"""
    kept = [x for x in tensors if x.dim() != 1 or x.shape[0] != 0] or tensors[:1]
    dtype = result_dtype(*tensors)
    if len(kept) == len(tensors) and all(x.dtype == dtype for x in tensors):
        return NotImplemented
    return aten.cat.default([cast(x, dtype) for x in kept], dim)


def scatter_number(self: Tensor, dim: int, index: Tensor, value: Number) -> Tensor:
    """The number as a tensor"""
    one = aten.full.default([], value, dtype=self.dtype, device=self.device)
    return aten.scatter.src(self, dim, index, aten.expand.default(one, index.shape))


def embedding(
    weight: Tensor,
    indices: Tensor,
    padding_idx: int = -1,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> Tensor:
    """Rows of the weight"""
    return aten.index.Tensor(weight, [indices])


def select_scatter(self: Tensor, src: Tensor, dim: int, index: int) -> Tensor:
    """slice_scatter of one slice"""
    dim = wrap(dim, self.dim())
    start = index if index >= 0 else index + self.shape[dim]
    return aten.slice_scatter.default(self, unsqueeze_in_prims(src, dim), dim, start, start + 1)


def scalar_tensor(
    s: Number,
    *,
    dtype: torch.dtype | None = None,
    layout: torch.layout | None = None,
    device: torch.device | None = None,
    pin_memory: bool | None = None,
) -> Tensor:
    """A full tensor of no dimensions"""
    return aten.full.default([], s, dtype=dtype or torch.get_default_dtype(), device=device)


def full(
    size: Sequence[int],
    fill_value: Number,
    *,
    dtype: torch.dtype | None = None,
    layout: torch.layout | None = None,
    device: torch.device | None = None,
    pin_memory: bool | None = None,
) -> Any:
    """With its dtype named"""
    if dtype is not None:
        return NotImplemented
    return aten.full.default(size, fill_value, dtype=number_dtype(fill_value), device=device)


def arange(
    start: Number,
    end: Number,
    step: Number = 1,
    *,
    dtype: torch.dtype | None = None,
    layout: torch.layout | None = None,
    device: torch.device | None = None,
    pin_memory: bool | None = None,
) -> Any:
    """With its dtype named"""
    if dtype is not None:
        return NotImplemented
    whole = all(number_dtype(x) == torch.int64 for x in (start, end, step))
    named = torch.int64 if whole else torch.get_default_dtype()
    return aten.arange.start_step(start, end, step, dtype=named, device=device)
