"""Reductions in terms of sum, prod, amax, amin, argmax, argmin, any, all and var_mean."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from dovetail_prims.ops.common import (
    Family,
    Number,
    aten,
    cast,
    compute_dtype,
    count,
    dims_of,
    reshape,
    where,
    wide,
)

Dims = int | Sequence[int] | None


def sum_all(self: Tensor, *, dtype: torch.dtype | None = None) -> Tensor:
    """Over every dimension"""
    return aten.sum.dim_IntList(self, list(range(self.dim())), dtype=dtype)


def mean_dim(
    self: Tensor, dim: Dims, keepdim: bool = False, *, dtype: torch.dtype | None = None
) -> Tensor:
    """sum / count, both in the compute dtype"""
    dtype = dtype or self.dtype
    dims = dims_of(self, dim)
    total = aten.sum.dim_IntList(self, dims, keepdim, dtype=compute_dtype(dtype))
    return cast(aten.div.Tensor(total, count(self, dims)), dtype)


def mean(self: Tensor, *, dtype: torch.dtype | None = None) -> Tensor:
    """Over every dimension"""
    return mean_dim(self, None, dtype=dtype)


def prod_all(self: Tensor, *, dtype: torch.dtype | None = None) -> Tensor:
    """Over every dimension, in row-major order"""
    flat = reshape(self, [-1]) if self.dim() != 1 else self
    return aten.prod.dim_int(flat, 0, dtype=dtype)


def _extremum_dim(self: Tensor, dim: int, keepdim: bool, which: str) -> tuple[Tensor, Tensor]:
    values = getattr(aten, f"a{which}").default(self, [dim], keepdim)
    # There is no argmax of bool.
    ordered = cast(self, torch.uint8) if self.dtype == torch.bool else self
    return values, getattr(aten, f"arg{which}").default(ordered, dim, keepdim)


def max_dim(self: Tensor, dim: int, keepdim: bool = False) -> tuple[Tensor, Tensor]:
    """The largest and the first place it stands at; NaN counts as largest"""
    return _extremum_dim(self, dim, keepdim, "max")


def min_dim(self: Tensor, dim: int, keepdim: bool = False) -> tuple[Tensor, Tensor]:
    """The smallest and the first place it stands at; NaN counts as smallest"""
    return _extremum_dim(self, dim, keepdim, "min")


def max_all(self: Tensor) -> Tensor:
    """Over every dimension"""
    return aten.amax.default(self, list(range(self.dim())))


def min_all(self: Tensor) -> Tensor:
    """Over every dimension"""
    return aten.amin.default(self, list(range(self.dim())))


def aminmax(
    self: Tensor, *, dim: int | None = None, keepdim: bool = False
) -> tuple[Tensor, Tensor]:
    """Both ends"""
    dims = dims_of(self, dim)
    return aten.amin.default(self, dims, keepdim), aten.amax.default(self, dims, keepdim)


def any_all(self: Tensor) -> Tensor:
    """Over every dimension"""
    return aten.any.dims(self, list(range(self.dim())))


def any_dim(self: Tensor, dim: int, keepdim: bool = False) -> Tensor:
    """Over one dimension"""
    return aten.any.dims(self, [dim], keepdim)


def all_all(self: Tensor) -> Tensor:
    """Over every dimension"""
    return aten.all.dims(self, list(range(self.dim())))


def all_dim(self: Tensor, dim: int, keepdim: bool = False) -> Tensor:
    """Over one dimension"""
    return aten.all.dims(self, [dim], keepdim)


def var(
    self: Tensor, dim: Dims = None, *, correction: Number | None = None, keepdim: bool = False
) -> Tensor:
    """The first half of var_mean"""
    pair = aten.var_mean.correction(
        wide(self), dims_of(self, dim), correction=correction, keepdim=keepdim
    )
    return cast(pair[0], self.dtype)


def std(
    self: Tensor, dim: Dims = None, *, correction: Number | None = None, keepdim: bool = False
) -> Tensor:
    """Square root of the variance, rounded once"""
    return std_mean(self, dim, correction=correction, keepdim=keepdim)[0]


def std_mean(
    self: Tensor, dim: Dims = None, *, correction: Number | None = None, keepdim: bool = False
) -> tuple[Tensor, Tensor]:
    """Standard deviation and mean"""
    variance, middle = aten.var_mean.correction(
        wide(self), dims_of(self, dim), correction=correction, keepdim=keepdim
    )
    return cast(aten.sqrt.default(variance), self.dtype), cast(middle, self.dtype)


def linalg_vector_norm(
    self: Tensor,
    ord: Number = 2,
    dim: Dims = None,
    keepdim: bool = False,
    *,
    dtype: torch.dtype | None = None,
) -> Tensor:
    """(sum |x|^p)^(1/p), with the limits 0 (count), inf (largest) and -inf (smallest)"""
    dtype = dtype or self.dtype
    x = aten.abs.default(cast(self, compute_dtype(dtype)))
    dims = dims_of(self, dim)
    if not isinstance(ord, (int, float)):
        ord = float(ord)  # symbolic: each norm is a computation of its own
    if ord == math.inf:
        out = aten.amax.default(x, dims, keepdim)
    elif ord == -math.inf:
        out = aten.amin.default(x, dims, keepdim)
    elif ord == 0:
        out = aten.sum.dim_IntList(cast(aten.ne.Scalar(x, 0), x.dtype), dims, keepdim)
    elif ord == 1:
        out = aten.sum.dim_IntList(x, dims, keepdim)
    elif ord == 2:
        out = aten.sqrt.default(aten.sum.dim_IntList(aten.mul.Tensor(x, x), dims, keepdim))
    else:
        total = aten.sum.dim_IntList(aten.pow.Tensor_Scalar(x, ord), dims, keepdim)
        out = aten.pow.Tensor_Scalar(total, 1.0 / ord)
    return cast(out, dtype)


def norm(self: Tensor, p: Number = 2) -> Tensor:
    """Over every dimension"""
    return linalg_vector_norm(self, p)


def norm_dtype(self: Tensor, p: Number | None, *, dtype: torch.dtype) -> Tensor:
    """Over every dimension, in `dtype`"""
    return linalg_vector_norm(self, 2 if p is None else p, dtype=dtype)


def norm_dim(self: Tensor, p: Number | None, dim: Dims, keepdim: bool = False) -> Tensor:
    """Over `dim`"""
    return linalg_vector_norm(self, 2 if p is None else p, dim, keepdim)


def norm_dim_dtype(
    self: Tensor, p: Number | None, dim: Dims, keepdim: bool, *, dtype: torch.dtype
) -> Tensor:
    """Over `dim`, in `dtype`"""
    return linalg_vector_norm(self, 2 if p is None else p, dim, keepdim, dtype=dtype)


def dist(self: Tensor, other: Tensor, p: Number = 2) -> Tensor:
    """Norm of the difference"""
    return linalg_vector_norm(aten.sub.Tensor(self, other), p)


def nansum(
    self: Tensor, dim: Dims = None, keepdim: bool = False, *, dtype: torch.dtype | None = None
) -> Tensor:
    """sum with NaN as 0"""
    x = where(aten.isnan.default(self), 0, self) if self.is_floating_point() else self
    return aten.sum.dim_IntList(x, dims_of(self, dim), keepdim, dtype=dtype)


def count_nonzero(self: Tensor, dim: Dims = None) -> Tensor:
    """How many are not 0"""
    return aten.sum.dim_IntList(aten.ne.Scalar(self, 0), dims_of(self, dim))


def count_nonzero_dims(self: Tensor, dim: Sequence[int]) -> Tensor:
    """The same over several dimensions"""
    return count_nonzero(self, dim)


def trace(self: Tensor) -> Tensor:
    """Sum of the diagonal"""
    return aten.sum.dim_IntList(aten.diagonal.default(self), [0])


TABLE: Family = {
    "sum.default": sum_all,
    "mean.dim": mean_dim,
    "mean.default": mean,
    "prod.default": prod_all,
    "max.dim": max_dim,
    "min.dim": min_dim,
    "max.default": max_all,
    "min.default": min_all,
    "aminmax.default": aminmax,
    "any.default": any_all,
    "any.dim": any_dim,
    "all.default": all_all,
    "all.dim": all_dim,
    "var.correction": var,
    "std.correction": std,
    "std_mean.correction": std_mean,
    "linalg_vector_norm.default": linalg_vector_norm,
    "norm.Scalar": norm,
    "norm.ScalarOpt_dtype": norm_dtype,
    "norm.ScalarOpt_dim": norm_dim,
    "norm.ScalarOpt_dim_dtype": norm_dim_dtype,
    "dist.default": dist,
    "nansum.default": nansum,
    "count_nonzero.default": count_nonzero,
    "count_nonzero.dim_IntList": count_nonzero_dims,
    "trace.default": trace,
}
