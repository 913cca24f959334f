"""Values put into a tensor: fills, with or without a mask."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from dovetail_prims.ops.common import (
    Family,
    Number,
    aten,
    cast,
    contiguous,
    where,
)
from dovetail_prims.shape_rules.conversions import always_converts, limits, overflow_message


def masked_fill(self: Tensor, mask: Tensor, value: Number) -> Tensor:
    """value where the mask holds; row-major, as eager's copy is"""
    return contiguous(where(mask, value, self))


def _converts(value: Tensor, dtype: torch.dtype) -> Tensor:
    """Whether a number is taken as one of a dtype that not all of its own dtype are taken as"""
    if value.is_complex():
        real, imaginary = aten.unbind.int(aten.view_as_real.default(value), -1)
        if dtype.is_complex:
            parts = (_converts(p, dtype.to_real()) for p in (real, imaginary))
            return aten.logical_and.default(*parts)
        fits = aten.eq.Scalar(imaginary, 0)
        if always_converts(real.dtype, dtype):
            return fits
        return aten.logical_and.default(fits, _converts(real, dtype))
    if dtype.is_complex:
        dtype = dtype.to_real()
    low, high = limits(dtype, value.is_floating_point())
    value = cast(value, torch.float64 if value.is_floating_point() else torch.int64)
    above, below = aten.ge.Scalar(value, low), aten.le.Scalar(value, high)
    if value.is_floating_point() and high == 2.0**63:
        below = aten.lt.Scalar(value, high)  # (as which the largest whole number is rounded)
    within = aten.logical_and.default(above, below)
    if dtype.is_floating_point:
        infinite = aten.eq.Scalar(aten.abs.default(value), math.inf)
        within = aten.logical_or.default(within, infinite)
        within = aten.logical_or.default(within, aten.isnan.default(value))
    return within


def masked_fill_tensor(self: Tensor, mask: Tensor, value: Tensor) -> Tensor:
    """value (0-dim) where the mask holds, in x's dtype; on a CPU the program ends with eager's
    error if it is none of the dtype's"""
    if value.device.type == "cpu" and not always_converts(value.dtype, self.dtype):
        aten._assert_async.msg(_converts(value, self.dtype), overflow_message(self.dtype))
    return contiguous(where(mask, cast(value, self.dtype), self))


def fill(self: Tensor, value: Number) -> Tensor:
    """value everywhere"""
    return aten.full_like.default(self, value)


def fill_tensor(self: Tensor, value: Tensor) -> Tensor:
    """value (0-dim) everywhere"""
    return aten.clone.default(aten.expand.default(cast(value, self.dtype), self.shape))


def zero(self: Tensor) -> Tensor:
    """0 everywhere"""
    return aten.full_like.default(self, 0)


TABLE: Family = {
    "masked_fill.Scalar": masked_fill,
    "masked_fill.Tensor": masked_fill_tensor,
    "fill.Scalar": fill,
    "fill.Tensor": fill_tensor,
    "zero.default": zero,
}
