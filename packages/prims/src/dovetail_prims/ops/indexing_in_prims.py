"""Indexing in PRIMS: what takes it there, and what it means."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from dovetail_prims.ops.common import Number, aten, cast, wrap
from dovetail_prims.ops.operands import result_dtype
from dovetail_prims.ops.promises import require
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


def embedding(weight: Tensor, indices: Tensor, *rest: Any) -> Tensor:
    """Rows of the weight"""
    return aten.index.Tensor(weight, [indices])


def select_scatter(self: Tensor, src: Tensor, dim: int, index: int) -> Tensor:
    """slice_scatter of one slice"""
    dim = wrap(dim, self.dim())
    start = index if index >= 0 else index + self.shape[dim]
    return aten.slice_scatter.default(self, unsqueeze_in_prims(src, dim), dim, start, start + 1)


# --- what they mean -------------------------------------------------------------------------------


def cat_of(tensors: Sequence[Tensor], dim: int = 0) -> Tensor:
    dtypes = {t.dtype for t in tensors}
    require(len(dtypes) == 1, f"cat of several dtypes: {dtypes}")
    return torch.cat(list(tensors), dim)


def pad_of(x: Tensor, pad: Sequence[int], value: float = 0) -> Tensor:
    """Pairs from the last dimension on; a negative pair crops"""
    pairs = list(zip(pad[::2], pad[1::2], strict=True))
    before, after = [0] * x.dim(), [0] * x.dim()
    for i, (left, right) in enumerate(pairs):
        before[-1 - i], after[-1 - i] = left, right
    shape = [b + s + a for b, s, a in zip(before, x.shape, after, strict=True)]
    out = torch.full(shape, value, dtype=x.dtype)
    inner = tuple(
        slice(max(b, 0), n - max(a, 0)) for b, n, a in zip(before, shape, after, strict=True)
    )
    outer = tuple(
        slice(max(-b, 0), s - max(-a, 0)) for b, s, a in zip(before, x.shape, after, strict=True)
    )
    out[inner] = x[outer]
    return out


def flip_of(x: Tensor, dims: Sequence[int]) -> Tensor:
    for dim in dims:
        x = x.index_select(dim, torch.arange(x.shape[dim] - 1, -1, -1))
    return x


def index_of(x: Tensor, indices: Sequence[Tensor | None]) -> Tensor:
    return x[tuple(slice(None) if i is None else i for i in indices)]


def index_put_of(
    x: Tensor, indices: Sequence[Tensor | None], values: Tensor, accumulate: bool = False
) -> Tensor:
    require(values.dtype == x.dtype, "index_put of another dtype")
    out = x.clone()
    where = tuple(slice(None) if i is None else i for i in indices)
    if not accumulate:
        out[where] = values
        return out
    places = torch.arange(x.numel()).view(x.shape)[where]
    flat, added = out.reshape(-1), values.expand(places.shape).reshape(-1)
    flat.index_add_(0, places.reshape(-1), added)
    return flat.view(x.shape)


def gather_of(x: Tensor, dim: int, index: Tensor, *, sparse_grad: bool = False) -> Tensor:
    out = torch.empty(index.shape, dtype=x.dtype)
    for place in itertools.product(*map(range, index.shape)):
        source = list(place)
        if place:
            source[dim] = int(index[place])
        out[place] = x[tuple(source)]
    return out


def scatter_of(x: Tensor, dim: int, index: Tensor, src: Tensor, add: bool) -> Tensor:
    require(src.dtype == x.dtype, "scatter of another dtype")
    out = x.clone()
    for place in itertools.product(*map(range, index.shape)):
        target = list(place)
        if place:
            target[dim] = int(index[place])
        new = src[place]
        out[tuple(target)] = out[tuple(target)] + new if add else new
    return out


def scatter_src_of(x: Tensor, dim: int, index: Tensor, src: Tensor) -> Tensor:
    return scatter_of(x, dim, index, src, False)


def scatter_add_of(x: Tensor, dim: int, index: Tensor, src: Tensor) -> Tensor:
    return scatter_of(x, dim, index, src, True)


def into_of(view: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """The scatter form of a view: a copy with the view's part overwritten"""

    def run(x: Tensor, src: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        require(src.dtype == x.dtype, "a scatter of another dtype")
        out = torch.empty_strided(x.shape, x.stride(), dtype=x.dtype)
        out.copy_(x)
        view(out, *args, **kwargs).copy_(src)
        return out

    return run
