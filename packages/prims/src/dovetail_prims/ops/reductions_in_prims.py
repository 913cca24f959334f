"""Reductions and scans over named dimensions, in the dtype they are given in."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from dovetail_prims.ops import common
from dovetail_prims.ops.operands import truth_of
from dovetail_prims.ops.promises import require


def _accumulated(x: Tensor, dtype: torch.dtype | None) -> torch.dtype:
    """The dtype a sum is taken and given in: int64 for integers unless told"""
    return dtype or (torch.int64 if common.kind(x.dtype) < 2 else x.dtype)


def sum(
    self: Tensor,
    dim: Sequence[int] | None,
    keepdim: bool = False,
    *,
    dtype: torch.dtype | None = None,
) -> Any:
    """Over named dimensions, the input converted first"""
    wanted = _accumulated(self, dtype)
    if dim and dtype is None and wanted == self.dtype:
        return NotImplemented
    if not self.dim():
        return common.cast(common.aten.clone.default(self), wanted)
    return common.aten.sum.dim_IntList(
        common.cast(self, wanted), common.dims_of(self, dim), keepdim
    )


def along_one(name: str) -> Callable[..., Any]:
    """prod, cumsum and cumprod: over one dimension, the input converted first"""
    op = common.lookup(name)
    assert op is not None, name

    def entry(self: Tensor, dim: int, *rest: Any, dtype: torch.dtype | None = None) -> Any:
        wanted = _accumulated(self, dtype)
        if dtype is None and wanted == self.dtype:
            return NotImplemented
        return op(common.cast(self, wanted), dim, *rest)

    return entry


def extreme(name: str) -> Callable[..., Any]:
    """amax and amin: over named dimensions"""
    op = common.lookup(name)
    assert op is not None, name

    def entry(self: Tensor, dim: Sequence[int] = (), keepdim: bool = False) -> Any:
        """Over named dimensions"""
        if dim:
            return NotImplemented
        if not self.dim():
            return common.aten.clone.default(self)
        return op(self, common.dims_of(self, dim), keepdim)

    return entry


def place(name: str) -> Callable[..., Any]:
    """argmax and argmin: along a named dimension"""
    op = common.lookup(name)
    assert op is not None, name

    def entry(self: Tensor, dim: int | None = None, keepdim: bool = False) -> Any:
        """Along a named dimension; of the whole tensor, along its row-major line"""
        if dim is not None:
            return NotImplemented
        found = op(common.reshape(self, [-1]), 0)
        return common.aten.view.default(found, [1] * self.dim()) if keepdim else found

    return entry


def truths(name: str) -> Callable[..., Any]:
    """any and all: of booleans, over named dimensions"""
    op = common.lookup(name)
    assert op is not None, name

    def entry(self: Tensor, dim: Sequence[int] | None = None, keepdim: bool = False) -> Any:
        """Of booleans, over named dimensions (uint8 stays uint8, as in ATen)"""
        if self.dtype == torch.bool and dim:
            return NotImplemented
        truth = truth_of(self)
        dims = common.dims_of(self, dim)
        out = op(truth, dims, keepdim) if dims else common.aten.clone.default(truth)
        return common.cast(out, torch.uint8) if self.dtype == torch.uint8 else out

    return entry


def var_mean(
    self: Tensor,
    dim: Sequence[int] | None = None,
    *,
    correction: common.Number | None = None,
    keepdim: bool = False,
) -> tuple[Tensor, Tensor]:
    """Two passes: the mean, then the mean square distance from it"""
    x = common.wide(self)
    dims = common.dims_of(x, dim)
    n = common.count(x, dims)
    mean = common.aten.div.Tensor(common.aten.sum.dim_IntList(x, dims, True), n)
    distance = common.aten.sub.Tensor(x, mean)
    square = common.aten.sum.dim_IntList(common.aten.mul.Tensor(distance, distance), dims, keepdim)
    left = n - (1 if correction is None else correction)
    variance = common.aten.div.Tensor(square, left if left > 0 else 0)
    mean = mean if keepdim else common.aten.squeeze.dims(mean, dims)
    return common.cast(variance, self.dtype), common.cast(mean, self.dtype)


# --- what they mean -------------------------------------------------------------------------------


def _named(x: Tensor, dims: Sequence[int]) -> list[int]:
    require(bool(dims), "a reduction names its dimensions")
    return sorted(d % max(x.dim(), 1) for d in dims)


def _summable(x: Tensor) -> None:
    require(x.is_floating_point() or x.is_complex() or x.dtype == torch.int64, f"{x.dtype}")


def sum_of(x: Tensor, dims: Sequence[int], keepdim: bool = False) -> Tensor:
    _summable(x)
    return x.sum(_named(x, dims), keepdim)


def prod_of(x: Tensor, dim: int, keepdim: bool = False) -> Tensor:
    _summable(x)
    return x.prod(dim, keepdim)


def amax_of(x: Tensor, dims: Sequence[int], keepdim: bool = False) -> Tensor:
    return x.amax(_named(x, dims), keepdim)


def amin_of(x: Tensor, dims: Sequence[int], keepdim: bool = False) -> Tensor:
    return x.amin(_named(x, dims), keepdim)


def _first_place(x: Tensor, dim: int, keepdim: bool, best: Tensor) -> Tensor:
    """The first position along `dim` that holds the best value, or a NaN if there is one"""
    if x.dim() == 0:
        return torch.zeros((), dtype=torch.int64)
    hit = x == best
    if x.is_floating_point():
        hit = torch.where(x.isnan().any(dim, keepdim=True), x.isnan(), hit)
    shape = [1] * x.dim()
    shape[dim] = x.shape[dim]
    place = torch.arange(x.shape[dim]).view(shape)
    first = torch.where(hit, place, x.shape[dim]).amin(dim, keepdim=True)
    return first if keepdim else first.squeeze(dim)


def argmax_of(x: Tensor, dim: int, keepdim: bool = False) -> Tensor:
    return _first_place(x, dim, keepdim, x.amax(dim, keepdim=True))


def argmin_of(x: Tensor, dim: int, keepdim: bool = False) -> Tensor:
    return _first_place(x, dim, keepdim, x.amin(dim, keepdim=True))


def any_of(x: Tensor, dims: Sequence[int], keepdim: bool = False) -> Tensor:
    require(x.dtype == torch.bool, "any of what is not boolean")
    return x.to(torch.int64).sum(_named(x, dims), keepdim) > 0


def all_of(x: Tensor, dims: Sequence[int], keepdim: bool = False) -> Tensor:
    return ~any_of(~x, dims, keepdim)


def cumsum_of(x: Tensor, dim: int) -> Tensor:
    _summable(x)
    return x.cumsum(dim)


def cumprod_of(x: Tensor, dim: int) -> Tensor:
    _summable(x)
    return x.cumprod(dim)
