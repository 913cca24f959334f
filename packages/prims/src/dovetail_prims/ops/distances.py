"""Distances between rows, all pairs of them, with their gradients."""

from __future__ import annotations

import math
from typing import Any

from torch import Tensor

from dovetail_prims.fake_tensor import FakeTensor
from dovetail_prims.ops.card import composed, library
from dovetail_prims.ops.common import aten, broadcast, cast, made_for, where
from dovetail_prims.shape_rules.layout import fresh
from dovetail_prims.shape_rules.promotion import common_device

# --- shapes ---------------------------------------------------------------------------------------


def euclidean_distances(a: FakeTensor, b: FakeTensor) -> FakeTensor:
    """Of rows to rows, by a matrix product: (..., n, k) and (..., m, k), of one batch."""
    if len(a._sizes) < 2 or len(b._sizes) != len(a._sizes) or a._dtype is not b._dtype:
        return NotImplemented  # type: ignore[no-any-return]
    device = a._device if a._device == b._device else common_device((a, b))
    return fresh((*a._sizes[:-1], b._sizes[-2]), a._dtype, device)


# --- decompositions -------------------------------------------------------------------------------


def _measure(gap: Tensor, p: float) -> Tensor:
    """The p-norm over the last dimension"""
    size = aten.abs.default(gap)
    if p == 0:
        return aten.sum.dim_IntList(cast(aten.ne.Scalar(size, 0), gap.dtype), [-1])
    if p == 1:
        return aten.sum.dim_IntList(size, [-1])
    if p == 2:
        return aten.sqrt.default(aten.sum.dim_IntList(aten.mul.Tensor(gap, gap), [-1]))
    if p == math.inf:
        return aten.amax.default(size, [-1])
    total = aten.sum.dim_IntList(aten.pow.Tensor_Scalar(size, p), [-1])
    return aten.pow.Tensor_Scalar(total, 1 / p)


def _slope(gap: Tensor, distance: Tensor, grad: Tensor, p: float) -> Tensor:
    """How `grad` of the distance acts on each component of the gap; 0 where the rows are equal"""
    sign = aten.sign.default(gap)
    if p == 1:
        return aten.mul.Tensor(grad, sign)
    if p == math.inf:
        largest = aten.eq.Tensor(aten.abs.default(gap), distance)
        return where(largest, aten.mul.Tensor(grad, sign), 0.0)
    if p == 2:
        slope = aten.div.Tensor(aten.mul.Tensor(grad, gap), distance)
    else:
        power = aten.mul.Tensor(sign, aten.pow.Tensor_Scalar(aten.abs.default(gap), p - 1))
        if p < 1:
            power = where(aten.eq.Scalar(gap, 0), 0.0, power)
        scale = aten.div.Tensor(grad, aten.pow.Tensor_Scalar(distance, p - 1))
        slope = aten.mul.Tensor(power, scale)
    return where(aten.eq.Scalar(distance, 0), 0.0, slope)


def _gaps(x1: Tensor, x2: Tensor) -> Tensor:
    return aten.sub.Tensor(aten.unsqueeze.default(x1, -2), aten.unsqueeze.default(x2, -3))


def cdist(x1: Tensor, x2: Tensor, p: float, compute_mode: int | None) -> Any:
    """Of every row of x1 to every row of x2"""
    many = x1.shape[-2] > 25 or x2.shape[-2] > 25
    batch = broadcast(x1.shape[:-2], x2.shape[:-2])
    if p == 2 and x1.shape[-1] and (compute_mode == 1 or (not compute_mode and many)):
        # by a product of matrices, as in eager, which rounds otherwise
        wider = (aten.expand.default(x, [*batch, *x.shape[-2:]]) for x in (x1, x2))
        return aten._euclidean_dist.default(*wider)
    if x1.shape[-1] == 0:
        shape = [*batch, x1.shape[-2], x2.shape[-2]]
        return aten.full.default(shape, 0, dtype=x1.dtype, device=x1.device)
    return _measure(_gaps(x1, x2), p)


def cdist_backward(grad_output: Tensor, x1: Tensor, x2: Tensor, p: float, cdist: Tensor) -> Tensor:
    """The gradient of the rows of x1"""
    batch = broadcast(x1.shape[:-2], x2.shape[:-2])
    shape = [*batch, *x1.shape[-2:]]
    if p == 0 or 0 in cdist.shape or x1.shape[-1] == 0:
        return aten.full.default(shape, 0, dtype=x1.dtype, device=x1.device)
    grad, distance = (aten.unsqueeze.default(v, -1) for v in (grad_output, cdist))
    return aten.sum.dim_IntList(_slope(_gaps(x1, x2), distance, grad, p), [-2])


# --- cards --------------------------------------------------------------------------------------

CARDS = (
    library("_euclidean_dist", euclidean_distances),
    composed("_cdist_forward", None, cdist),
    composed("_cdist_backward", None, made_for("_cdist_backward.default", cdist_backward)),
    library(
        "_pdist_forward",
        lambda x, p=2.0: fresh((x._sizes[0] * (x._sizes[0] - 1) // 2,), x._dtype, x._device),
    ),
    library("_pdist_backward", lambda grad, x, p, distances: fresh(x._sizes, x._dtype, x._device)),
)
