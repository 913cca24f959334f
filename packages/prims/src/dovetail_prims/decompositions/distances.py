"""Distances between rows, all pairs of them, with their gradients; and search in sorted rows."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from dovetail_prims.ops.common import Family, aten, broadcast, cast, constant, iota, made_for, where


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


def _pairs(n: int, like: Tensor) -> tuple[Tensor, Tensor]:
    """Rows i < j of pair k, in eager's order: k = n i - i (i + 1) / 2 + j - i - 1"""
    k = iota(n * (n - 1) // 2, like)
    root = cast(aten.sub.Tensor((n - 0.5) ** 2 - 1, aten.mul.Tensor(k, 2)), torch.float64)
    row = aten.sub.Tensor(n - 0.5, aten.sqrt.default(root))
    i = cast(aten.floor.default(row), torch.int64)
    before = aten.bitwise_right_shift.Tensor_Scalar(aten.mul.Tensor(i, aten.add.Tensor(i, 1)), 1)
    j = aten.add.Tensor(aten.sub.Tensor(k, aten.mul.Tensor(i, n)), before)
    return i, aten.add.Tensor(aten.add.Tensor(j, i), 1)


def pdist(self: Tensor, p: float = 2.0) -> Tensor:
    """Of every row to each one after it"""
    n, m = self.shape
    if n <= 1 or m == 0:
        size = n * (n - 1) // 2
        return aten.full.default([size], 0, dtype=self.dtype, device=self.device)
    i, j = _pairs(n, self)
    return _measure(aten.sub.Tensor(*(aten.index.Tensor(self, [x]) for x in (i, j))), p)


def pdist_backward(grad_output: Tensor, self: Tensor, p: float, pdist: Tensor) -> Tensor:
    """As of all rows to all others, with the gradient of a pair found at its number"""
    n, m = self.shape
    if p == 0 or n <= 1 or m == 0:
        return aten.full.default([n, m], 0, dtype=self.dtype, device=self.device)
    i = iota(n, self)
    rows, columns = aten.unsqueeze.default(i, 1), aten.unsqueeze.default(i, 0)
    low, high = aten.minimum.default(rows, columns), aten.maximum.default(rows, columns)
    before = aten.bitwise_right_shift.Tensor_Scalar(
        aten.mul.Tensor(low, aten.add.Tensor(low, 1)), 1
    )
    k = aten.add.Tensor(aten.sub.Tensor(aten.mul.Tensor(low, n), before), high)
    k = aten.sub.Tensor(aten.sub.Tensor(k, low), 1)
    own = aten.eq.Tensor(rows, columns)
    k = where(own, 0, k)
    grad = where(own, 0.0, aten.index.Tensor(grad_output, [k]))
    distance = where(own, 0.0, aten.index.Tensor(pdist, [k]))
    return cdist_backward(grad, self, self, p, distance)


def searchsorted(
    sorted_sequence: Tensor,
    self: Tensor,
    out_int32: bool = False,
    right: bool = False,
    side: str | None = None,
    sorter: Tensor | None = None,
) -> Any:
    """How many elements come before each value: the interval that holds it halved until it is one
    place (what equals the value comes before it with `right`)"""
    length = sorted_sequence.shape[-1]
    if not isinstance(length, int):
        return NotImplemented  # how often to halve is not known
    right = right or side == "right"
    if sorter is not None:
        sorted_sequence = aten.gather.default(sorted_sequence, -1, sorter)
    low = aten.full.default(self.shape, 0, dtype=torch.int64, device=self.device)
    high = aten.full.default(self.shape, length, dtype=torch.int64, device=self.device)
    for _ in range(length.bit_length()):
        middle = aten.bitwise_right_shift.Tensor_Scalar(aten.add.Tensor(low, high), 1)
        at = aten.minimum.default(middle, constant(length - 1, middle))
        if sorted_sequence.dim() == 1:
            value = aten.index.Tensor(sorted_sequence, [at])
        else:
            value = aten.gather.default(sorted_sequence, -1, at)
        # Whether the value lies further: "not at most" and not "beyond", for the sake of NaN.
        stays = (aten.gt if right else aten.ge).Tensor(value, self)
        open_ = aten.lt.Tensor(low, high)
        up = aten.logical_and.default(open_, aten.logical_not.default(stays))
        down = aten.logical_and.default(open_, stays)
        low, high = where(up, aten.add.Tensor(middle, 1), low), where(down, middle, high)
    return cast(low, torch.int32) if out_int32 else low


def bucketize(self: Tensor, boundaries: Tensor, out_int32: bool, right: bool) -> Any:
    """The same, the other way round"""
    return searchsorted(boundaries, self, out_int32, right)


TABLE: Family = {
    "_cdist_forward.default": cdist,
    "_cdist_backward.default": made_for("_cdist_backward.default", cdist_backward),
    "_pdist_forward.default": pdist,
    "_pdist_backward.default": made_for("_pdist_backward.default", pdist_backward),
    "searchsorted.Tensor": made_for("searchsorted.Tensor", searchsorted),
    "bucketize.Tensor": made_for("bucketize.Tensor", bucketize),
}
