"""Reductions in terms of sum, prod, amax, amin, argmax, argmin, any, all and var_mean."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from dovetail_prims.fake_tensor import FakeTensor
from dovetail_prims.ops import reductions_in_prims as prims
from dovetail_prims.ops.card import (
    Card,
    Dialect,
    Form,
    Kind,
    also,
    composed,
    kept,
    library,
    reduction,
)
from dovetail_prims.ops.common import (
    Number,
    aten,
    cast,
    compute_dtype,
    count,
    dims_of,
    lookup,
    reshape,
    where,
    wide,
)
from dovetail_prims.shape_rules import reductions as rules
from dovetail_prims.shape_rules.argument_checks.requirement import Requirement
from dovetail_prims.shape_rules.layout import fresh
from dovetail_prims.shape_rules.pointwise import binary
from dovetail_prims.shape_rules.reductions import reduced_sizes

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


def _over_all(name: str) -> Callable[..., Any]:
    """The reduction `name` of the whole tensor."""
    op = lookup(name)
    assert op is not None, name

    def entry(self: Tensor) -> Any:
        """Over every dimension"""
        return op(self, list(range(self.dim())))

    return entry


def _over_one(name: str) -> Callable[..., Any]:
    """The reduction `name` along one dimension."""
    op = lookup(name)
    assert op is not None, name

    def entry(self: Tensor, dim: int, keepdim: bool = False) -> Any:
        """Over one dimension"""
        return op(self, [dim], keepdim)

    return entry


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


def aminmax(
    self: Tensor, *, dim: int | None = None, keepdim: bool = False
) -> tuple[Tensor, Tensor]:
    """Both ends"""
    dims = dims_of(self, dim)
    return aten.amin.default(self, dims, keepdim), aten.amax.default(self, dims, keepdim)


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


# (A set of dimensions is one of 64 bits.)
_FEW_DIMS = Requirement(
    lambda given: given.rank("self") <= 64, "only tensors with up to 64 dims are supported"
)


def histogram(x: FakeTensor, bins: Any = 100, **options: Any) -> tuple[FakeTensor, FakeTensor]:
    """Counts and bin edges, for a number of bins or for given edges."""
    if isinstance(bins, FakeTensor):
        return (
            fresh((bins._sizes[0] - 1,), x._dtype, x._device),
            fresh(bins._sizes, x._dtype, x._device),
        )
    return fresh((bins,), x._dtype, x._device), fresh((bins + 1,), x._dtype, x._device)


def truth_of_all(x: FakeTensor) -> FakeTensor:
    """Whether all elements, or any, are true."""
    if x._dtype is not torch.bool:
        return NotImplemented  # type: ignore[no-any-return]
    return fresh((), torch.bool, x._device)


def dist_shape(a: FakeTensor, b: FakeTensor, p: Any = 2) -> FakeTensor:
    """A norm of a difference."""
    difference = binary(a, b)
    dtype = difference._dtype
    if not (dtype.is_floating_point or dtype.is_complex):
        return NotImplemented  # type: ignore[no-any-return]
    return fresh((), dtype.to_real() if dtype.is_complex else dtype, difference._device)


def count_nonzero_shape(x: FakeTensor, dim: int | Sequence[int] | None = None) -> FakeTensor:
    """`count_nonzero`, along some dimensions or of all elements."""
    dims = list(range(len(x._sizes))) if dim is None else dim
    return fresh(reduced_sizes(x._sizes, dims, False), torch.int64, x._device)


def is_all_true(self: Tensor) -> Tensor:
    """All of it"""
    return aten.all.default(self)


def is_any_true(self: Tensor) -> Tensor:
    """Any of it"""
    return aten.any.default(self)


_PRIMS, _ATEN = Dialect.PRIMS, Dialect.ATEN


def _extreme(name: str, says: str, meaning: Callable[..., Any]) -> Card:
    shape = partial(rules.same_dtype_reduction, op=f"{name}()")
    way = prims.extreme(f"{name}.default")
    return reduction(name, says, Form("default", _PRIMS, shape, None, way, (_FEW_DIMS,)),
                     meaning=meaning)  # fmt: skip


def _place(name: str, says: str, meaning: Callable[..., Any]) -> Card:
    shape = partial(rules.arg_reduction, op=f"{name}()")
    form = Form("default", _PRIMS, shape, to_prims=prims.place(f"{name}.default"))
    return reduction(name, says, form, meaning=meaning)


def _with_place(name: str, says: str, along: Any) -> Card:
    of_all = _over_all(f"a{name}.default")
    return reduction(name, says,
                     also("default", partial(rules.reduce_all, op=f"{name}()"), of_all),
                     also("dim", partial(rules.with_index, op=f"{name}()"), along))  # fmt: skip


def _truth(name: str, says: str, meaning: Callable[..., Any]) -> Card:
    way = prims.truths(f"{name}.dims")
    return reduction(name, says, Form("dims", _PRIMS, rules.truth, None, way, (_FEW_DIMS,)),
                     also("default", rules.truth_all, _over_all(f"{name}.dims")),
                     also("dim", rules.truth, _over_one(f"{name}.dims")),
                     meaning=meaning)  # fmt: skip


def _scan(name: str, says: str, meaning: Callable[..., Any]) -> Card:
    form = Form("default", _PRIMS, rules.cumulative, to_prims=prims.along_one(f"{name}.default"))
    return reduction(name, says, form, meaning=meaning, kind=Kind.SCAN)


CARDS = (
    reduction("sum", "sum over dimensions",
              Form("dim_IntList", _PRIMS, rules.sum_, None, prims.sum, (_FEW_DIMS,)),
              Form("default", _ATEN, rules.sum_all, sum_all, of_complex=True),
              meaning=prims.sum_of),
    reduction("prod", "product over a dimension",
              Form("dim_int", _PRIMS, rules.sum_, to_prims=prims.along_one("prod.dim_int")),
              also("default", rules.sum_all, prod_all), meaning=prims.prod_of),
    _extreme("amax", "largest over dimensions", prims.amax_of),
    _extreme("amin", "smallest over dimensions", prims.amin_of),
    _place("argmax", "place of the first largest along a dimension", prims.argmax_of),
    _place("argmin", "place of the first smallest along a dimension", prims.argmin_of),
    _truth("any", "whether one over dimensions is not 0", prims.any_of),
    _truth("all", "whether none over dimensions is 0", prims.all_of),
    reduction("var_mean", "Two passes: the mean, then the mean square distance from it",
              Form("correction", Dialect.CORE_ATEN, rules.var_mean, None, prims.var_mean,
                   (_FEW_DIMS,))),
    _scan("cumsum", "sums of the elements up to each", prims.cumsum_of),
    _scan("cumprod", "products of the elements up to each", prims.cumprod_of),
    _with_place("max", "the largest, and where it stands", max_dim),
    _with_place("min", "the smallest, and where it stands", min_dim),
    reduction("aminmax", "both ends", also("default", None, aminmax)),
    reduction("mean", "sum / count",
              Form("dim", _ATEN, rules.mean, mean_dim, requires=(_FEW_DIMS,)),
              also("default", rules.mean_all, mean)),
    reduction("var", "variance",
              Form("correction", _ATEN, rules.var, var, requires=(_FEW_DIMS,))),
    reduction("std", "standard deviation",
              Form("correction", _ATEN, rules.var, std, requires=(_FEW_DIMS,))),
    reduction("std_mean", "standard deviation and mean",
              also("correction", rules.var_mean, std_mean)),
    reduction("linalg_vector_norm", "(sum |x|^p)^(1/p)",
              also("default", rules.norm, linalg_vector_norm)),
    reduction("norm", "the same", also("Scalar", None, norm),
              also("ScalarOpt_dtype", None, norm_dtype),
              also("ScalarOpt_dim", rules.norm_scalar_dim, norm_dim),
              also("ScalarOpt_dim_dtype", None, norm_dim_dtype)),
    reduction("dist", "norm of the difference", also("default", dist_shape, dist)),
    reduction("nansum", "sum with NaN as 0", also("default", rules.sum_, nansum)),
    reduction("count_nonzero", "how many are not 0",
              also("default", count_nonzero_shape, count_nonzero),
              also("dim_IntList", count_nonzero_shape, count_nonzero_dims)),
    reduction("trace", "sum of the diagonal",
              Form("default", _ATEN, None, trace, of_complex=True)),
    library("hash_tensor", rules.hash_tensor),
    library("logcumsumexp"),
    library("histc"),
    *(library(name, None, None, kept("dim")) for name in ("median", "nanmedian")),
    composed("_is_all_true", truth_of_all, is_all_true),
    composed("_is_any_true", truth_of_all, is_any_true),
    composed("histogram", histogram, None, also("bins_tensor", histogram), overload="bin_ct"),
)  # fmt: skip
