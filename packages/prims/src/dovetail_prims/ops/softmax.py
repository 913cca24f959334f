"""Softmax, its logarithm and logsumexp, with their gradients."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from dovetail_prims.fake_tensor import FakeTensor, Size
from dovetail_prims.ops.card import composed
from dovetail_prims.ops.common import aten, cast, contiguous, dims_of, floating, where, wide, wrap
from dovetail_prims.shape_rules.layout import fresh, wrap_dim
from dovetail_prims.shape_rules.promotion import as_float
from dovetail_prims.shape_rules.reductions import reduced_sizes
from dovetail_prims.shape_rules.views import known_truth

# --- shapes ---------------------------------------------------------------------------------------


def logsumexp_shape(x: FakeTensor, dim: Any, keepdim: bool = False) -> FakeTensor:
    """`logsumexp`."""
    return fresh(reduced_sizes(x._sizes, dim, keepdim), as_float(x._dtype), x._device)


def softmax_shape(x: FakeTensor, dim: int, half_to_float: bool) -> FakeTensor:
    """`_softmax`, `_log_softmax`: contiguous, whatever the input's strides."""
    wrap_dim(dim, len(x._sizes))
    return fresh(x._sizes, torch.float32 if half_to_float else x._dtype, x._device)


def safe_softmax_shape(x: FakeTensor, dim: int, dtype: Any = None) -> FakeTensor:
    """`_safe_softmax`: rows that are wholly masked give zeros."""
    wrap_dim(dim, len(x._sizes))
    return fresh(x._sizes, dtype or x._dtype, x._device)


def softmax_backward_shape(
    grad: FakeTensor, output: FakeTensor, dim: int, input_dtype: torch.dtype
) -> FakeTensor:
    """Backward of both."""
    return fresh(grad._sizes, input_dtype, grad._device)


# --- decompositions -------------------------------------------------------------------------------


def _empty(size: Size) -> bool:
    return type(size) is int and size == 0


def _largest(x: Tensor, dims: Sequence[int]) -> Tensor:
    """The maximum along dimensions, which stay; -inf of none, where only the data tells if there
    are elements"""
    for d in dims if x.dim() else ():
        if known_truth(x.shape[d] == 0) is None:
            behind = 2 * (x.dim() - 1 - d)
            x = aten.constant_pad_nd.default(x, [*[0] * behind, 0, 1], -math.inf)
    return aten.amax.default(x, list(dims), True)


def _shifted(self: Tensor, dim: int) -> Tensor:
    """x - max(x), so that the largest exponent is 0"""
    x = wide(contiguous(self))
    return aten.sub.Tensor(x, _largest(x, [dim]))


def _result_dtype(self: Tensor, half_to_float: bool) -> torch.dtype:
    return torch.float32 if half_to_float else self.dtype


def softmax(self: Tensor, dim: int, half_to_float: bool) -> Tensor:
    """exp(x) / sum(exp(x))"""
    dtype = _result_dtype(self, half_to_float)
    dim = wrap(dim, self.dim())
    if self.dim() and _empty(self.shape[dim]):  # no largest element to shift by
        return aten.empty.memory_format(self.shape, dtype=dtype, device=self.device)
    e = aten.exp.default(_shifted(self, dim))
    return cast(aten.div.Tensor(e, aten.sum.dim_IntList(e, [dim], True)), dtype)


def log_softmax(self: Tensor, dim: int, half_to_float: bool) -> Tensor:
    """x - log(sum(exp(x)))"""
    dtype = _result_dtype(self, half_to_float)
    dim = wrap(dim, self.dim())
    if self.dim() and _empty(self.shape[dim]):
        return aten.empty.memory_format(self.shape, dtype=dtype, device=self.device)
    x = _shifted(self, dim)
    total = aten.sum.dim_IntList(aten.exp.default(x), [dim], True)
    return cast(aten.sub.Tensor(x, aten.log.default(total)), dtype)


def safe_softmax(self: Tensor, dim: int, dtype: torch.dtype | None = None) -> Tensor:
    """softmax with 0, not NaN, for a row that is -inf throughout"""
    x = self if dtype is None else cast(self, dtype)
    masked = aten.all.dims(aten.eq.Scalar(x, -math.inf), [dim], True)
    return where(masked, 0.0, softmax(x, dim, False))


def softmax_backward(
    grad_output: Tensor, output: Tensor, dim: int, input_dtype: torch.dtype
) -> Tensor:
    """y (g - sum(g y))"""
    y = wide(contiguous(output))
    product = aten.mul.Tensor(wide(contiguous(grad_output)), y)
    total = aten.sum.dim_IntList(product, [dim], True)
    return cast(aten.sub.Tensor(product, aten.mul.Tensor(y, total)), input_dtype)


def log_softmax_backward(
    grad_output: Tensor, output: Tensor, dim: int, input_dtype: torch.dtype
) -> Tensor:
    """g - exp(y) sum(g)"""
    g, y = wide(contiguous(grad_output)), wide(contiguous(output))
    total = aten.sum.dim_IntList(g, [dim], True)
    return cast(aten.sub.Tensor(g, aten.mul.Tensor(aten.exp.default(y), total)), input_dtype)


def logsumexp(self: Tensor, dim: Sequence[int], keepdim: bool = False) -> Tensor:
    """log(sum(exp(x))), shifted by the largest finite element"""
    x = wide(floating(self))
    dims = dims_of(x, dim)
    if any(_empty(x.shape[d]) for d in dims):  # none is the largest
        return aten.log.default(aten.sum.dim_IntList(floating(self), dims, keepdim))
    top = _largest(x, dims)
    top = where(aten.isinf.default(top), 0.0, top)
    total = aten.sum.dim_IntList(aten.exp.default(aten.sub.Tensor(x, top)), dims, keepdim)
    if not keepdim:
        top = aten.squeeze.dims(top, dims)
    return cast(aten.add.Tensor(aten.log.default(total), top), floating(self).dtype)


# --- cards --------------------------------------------------------------------------------------

CARDS = (
    composed("logsumexp", logsumexp_shape, logsumexp),
    composed("_softmax", softmax_shape, softmax),
    composed("_log_softmax", softmax_shape, log_softmax),
    composed("_safe_softmax", safe_softmax_shape, safe_softmax),
    composed("_softmax_backward_data", softmax_backward_shape, softmax_backward),
    composed("_log_softmax_backward_data", softmax_backward_shape, log_softmax_backward),
)
