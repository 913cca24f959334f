"""Tensors filled with a number, or under a mask; and copies into a tensor."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from dovetail_prims.fake_tensor import FakeTensor, make
from dovetail_prims.node_facts import Refusal
from dovetail_prims.ops.card import Dialect, Form, Kind, also, composed, library, moved
from dovetail_prims.ops.common import Number, aten, cast, contiguous, where
from dovetail_prims.shape_rules import copies, parts
from dovetail_prims.shape_rules.layout import broadcast, empty_like_strides, equal_sizes, fresh
from dovetail_prims.shape_rules.pointwise import in_place, like_operand
from dovetail_prims.shape_rules.promotion import always_converts, limits, overflow_message

# --- shapes ---------------------------------------------------------------------------------------


def masked_fill_shape(x: FakeTensor, mask: FakeTensor, value: Any) -> FakeTensor:
    """`masked_fill`: always contiguous."""
    sizes = x._sizes if equal_sizes(x._sizes, mask._sizes) else broadcast((x._sizes, mask._sizes))
    return fresh(sizes, x._dtype, x._device)


def copy(x: FakeTensor, src: Any, non_blocking: bool = False) -> FakeTensor:
    """The functional `copy`: a new tensor that lies in a copy of the memory of `x` as `x` does; but
    laid out as a clone where elements of `x` are one."""
    sizes = [n if type(n) is int else 2 for n in x._sizes]
    repeats = any(
        n > 1 and type(s) is int and s == 0 for n, s in zip(sizes, x._strides, strict=True)
    )
    if repeats and 0 not in sizes:
        return make(x._sizes, empty_like_strides(x), x._dtype, x._device)
    return make(x._sizes, x._strides, x._dtype, x._device, x._offset)


def _zeroed(x: FakeTensor) -> FakeTensor:
    """`zero_`, which eager does to elements that lie on each other, too: no graph holds that."""
    try:
        in_place(x)
    except RuntimeError as error:
        raise Refusal(str(error)) from error
    return x


# --- decompositions -------------------------------------------------------------------------------


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


# --- cards ----------------------------------------------------------------------------------------

CARDS = (
    composed(
        "masked_fill",
        masked_fill_shape,
        masked_fill,
        also("Tensor", masked_fill_shape, masked_fill_tensor),
        overload="Scalar",
        kind=Kind.MOVED,
    ),
    composed("masked_fill_", in_place, None, also("Tensor", in_place), overload="Scalar"),
    composed(
        "fill",
        like_operand,
        None,
        also("Scalar", like_operand, fill),
        also("Tensor", like_operand, fill_tensor),
        kind=Kind.MOVED,
    ),
    composed("fill_", in_place, None, also("Scalar", in_place), also("Tensor", in_place)),
    composed("zero", None, zero, kind=Kind.MOVED),
    composed("zero_", _zeroed),
    library("copy", copy),
    moved(
        "clone",
        "x in memory of its own, in a given order",
        Form("default", Dialect.PRIMS, copies.clone),
    ),
    moved("_to_copy", "x in another dtype", Form("default", Dialect.PRIMS, copies.to_copy)),
    composed("contiguous", copies.contiguous_op),
    composed("select_copy", copies.copying(parts.select), overload="int"),
    composed("slice_copy", copies.copying(parts.slice_), overload="Tensor"),
    composed("copy_", in_place),
)
