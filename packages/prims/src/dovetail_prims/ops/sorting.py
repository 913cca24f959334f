"""Sorting, the largest of a row, running extremes, and search in sorted rows."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from dovetail_prims.fake_tensor import FakeTensor, Size, make
from dovetail_prims.ops.card import also, composed, kept, library
from dovetail_prims.ops.common import (
    Number,
    aten,
    cast,
    constant,
    contiguous,
    made_for,
    where,
)
from dovetail_prims.shape_rules.layout import empty_like_strides, fresh, wrap_dim
from dovetail_prims.shape_rules.views import stated

# --- shapes ---------------------------------------------------------------------------------------


def cumulative_with_index(x: FakeTensor, dim: int) -> tuple[FakeTensor, FakeTensor]:
    """`cummax`, `cummin`."""
    return fresh(x._sizes, x._dtype, x._device), fresh(x._sizes, torch.int64, x._device)


def _sorted(x: FakeTensor) -> tuple[FakeTensor, FakeTensor]:
    strides = empty_like_strides(x)
    return (
        make(x._sizes, strides, x._dtype, x._device),
        make(x._sizes, strides, torch.int64, x._device),
    )


def sort(x: FakeTensor, dim: int = -1, descending: bool = False) -> tuple[FakeTensor, FakeTensor]:
    """`sort`: values and indices, laid out as the input."""
    wrap_dim(dim, len(x._sizes))
    return _sorted(x)


def sort_stable(
    x: FakeTensor, *, stable: Any = None, dim: int = -1, descending: bool = False
) -> tuple[FakeTensor, FakeTensor]:
    """`sort.stable`."""
    return sort(x, dim)


def topk(
    x: FakeTensor, k: Size, dim: int = -1, largest: bool = True, sorted: bool = True
) -> tuple[FakeTensor, FakeTensor]:
    """The k largest (or smallest) along a dimension."""
    rank = len(x._sizes)
    d = wrap_dim(dim, rank)
    if rank:
        refusal = "selected index k out of range"
        if not (stated(k >= 0, refusal) and stated(k <= x._sizes[d], refusal)):
            raise RuntimeError(refusal)
    sizes = (*x._sizes[:d], k, *x._sizes[d + 1 :]) if rank else ()
    return fresh(sizes, x._dtype, x._device), fresh(sizes, torch.int64, x._device)


# --- decompositions -------------------------------------------------------------------------------


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
    kind = torch.int32 if length < 2**31 - 1 else torch.int64
    low = aten.full.default(self.shape, 0, dtype=kind, device=self.device)
    count = aten.full.default(self.shape, length, dtype=kind, device=self.device)
    for halved in range(length.bit_length()):
        half = aten.bitwise_right_shift.Tensor_Scalar(count, 1)
        middle = aten.minimum.default(aten.add.Tensor(low, half), constant(length - 1, low))
        at = cast(middle, torch.int64)
        if sorted_sequence.dim() == 1:
            value = aten.index.Tensor(sorted_sequence, [at])
        else:
            value = aten.gather.default(sorted_sequence, -1, at)
        # Whether the value lies further: "not at most" and not "beyond", for the sake of NaN.
        up = aten.logical_not.default((aten.gt if right else aten.ge).Tensor(value, self))
        if (length + 1) >> halved < 2:  # nothing may be left to halve
            up = aten.logical_and.default(up, aten.gt.Scalar(count, 0))
        low = aten.add.Tensor(low, where(up, aten.add.Tensor(half, 1), 0))
        count = aten.bitwise_right_shift.Tensor_Scalar(aten.sub.Tensor(count, cast(up, kind)), 1)
    return cast(low, torch.int32 if out_int32 else torch.int64)


def bucketize(self: Tensor, boundaries: Tensor, out_int32: bool, right: bool) -> Any:
    """The same, the other way round"""
    return searchsorted(boundaries, self, out_int32, right)


def isin_shape(elements: FakeTensor, others: FakeTensor, **options: Any) -> FakeTensor:
    """Whether each element is one of the others: row-major."""
    return fresh(elements._sizes, torch.bool, elements._device)


def isin_number(
    elements: Tensor, test_element: Number, *, assume_unique: bool = False, invert: bool = False
) -> Tensor:
    """Whether each element equals a number"""
    return (aten.ne if invert else aten.eq).Scalar(contiguous(elements), test_element)


# --- cards --------------------------------------------------------------------------------------

CARDS = (
    library("cummax", cumulative_with_index),
    library("cummin", cumulative_with_index),
    library("sort", sort, None, kept("stable", sort_stable)),
    library("topk", topk),
    library("kthvalue"),
    library("mode"),
    *(
        composed(
            name, None, made_for(f"{name}.Tensor", function), kept("Scalar"), overload="Tensor"
        )
        for name, function in (("searchsorted", searchsorted), ("bucketize", bucketize))
    ),
    library(
        "isin", isin_shape, None, also("Tensor_Scalar", None, isin_number), overload="Tensor_Tensor"
    ),
)
