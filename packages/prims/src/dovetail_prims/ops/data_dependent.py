"""Operators whose result's size depends on data: a new symbol for each such size."""

from __future__ import annotations

from typing import Any

import torch

from dovetail_prims.fake_tensor import FakeTensor, Sizes, make
from dovetail_prims.ops.card import composed, library
from dovetail_prims.shape_rules.layout import contiguous, wrap_dim
from dovetail_prims.sizes.data_sizes import new_number, new_size


def fresh_like(sizes: Sizes, dtype: torch.dtype, like: FakeTensor) -> FakeTensor:
    return make(sizes, contiguous(sizes), dtype, like._device)


def _most(x: FakeTensor) -> int | None:
    """The number of elements, where it is a number."""
    count = 1
    for size in x._sizes:
        if type(size) is not int:
            return None
        count *= size
    return count


def nonzero(x: FakeTensor) -> FakeTensor:
    """One row for each element that is not zero."""
    count = new_size("aten.nonzero.default", 0, _most(x))
    sizes: Sizes = (count, len(x._sizes))
    return make(sizes, (1, count), torch.int64, x._device)


def masked_select(x: FakeTensor, mask: FakeTensor) -> FakeTensor:
    """The elements under the mask."""
    return fresh_like((new_size("aten.masked_select.default"),), x._dtype, x)


def repeat_interleave(repeats: FakeTensor, *, output_size: Any = None) -> FakeTensor:
    """Positions, each as often as it says."""
    size = new_size("aten.repeat_interleave.Tensor") if output_size is None else output_size
    return fresh_like((size,), repeats._dtype, repeats)


def bincount(x: FakeTensor, weights: FakeTensor | None = None, minlength: int = 0) -> FakeTensor:
    """One count for each number up to the largest."""
    dtype = torch.int64
    if weights is not None:
        dtype = weights._dtype if weights._dtype is torch.float32 else torch.float64
    return fresh_like((new_size("aten.bincount.default", int(minlength)),), dtype, x)


def item(x: FakeTensor) -> Any:
    """The one element as a number."""
    return new_number("aten._local_scalar_dense.default", x._dtype)


def _uniques(
    x: FakeTensor, rows: Sizes, inverse: Sizes | None, counts: bool, op: str
) -> tuple[FakeTensor, FakeTensor, FakeTensor]:
    size = new_size(op, 0, _most(x))
    values = fresh_like((size, *rows), x._dtype, x)
    where = fresh_like((0,) if inverse is None else inverse, torch.int64, x)
    return values, where, fresh_like((size,) if counts else (0,), torch.int64, x)


def unique2(
    x: FakeTensor, sorted: bool = True, return_inverse: bool = False, return_counts: bool = False
) -> tuple[FakeTensor, ...]:
    """The different elements, where each was found, and how often."""
    inverse = x._sizes if return_inverse else None
    return _uniques(x, (), inverse, return_counts, "aten._unique2.default")


def unique_consecutive(
    x: FakeTensor, return_inverse: bool = False, return_counts: bool = False, dim: int | None = None
) -> tuple[FakeTensor, ...]:
    """The different elements of each run, or with `dim` the different slices."""
    op = "aten.unique_consecutive.default"
    if dim is None or (dim == 0 and len(x._sizes) == 1):
        inverse = x._sizes if return_inverse else None
        return _uniques(x, (), inverse, return_counts, op)
    return _unique_slices(x, dim, return_inverse, return_counts, op)


def unique_dim(
    x: FakeTensor,
    dim: int,
    sorted: bool = True,
    return_inverse: bool = False,
    return_counts: bool = False,
) -> tuple[FakeTensor, ...]:
    """The different slices along `dim`, where each was found, and how often."""
    return _unique_slices(x, dim, return_inverse, return_counts, "aten.unique_dim.default")


def _unique_slices(
    x: FakeTensor, dim: int, inverse: bool, counts: bool, op: str
) -> tuple[FakeTensor, ...]:
    """The slices lie one after another in memory. (On a CPU the other results are always made.)"""
    dim = wrap_dim(dim, len(x._sizes))
    length = x._sizes[dim]
    rest = (*x._sizes[:dim], *x._sizes[dim + 1 :])
    if length == 0:
        return fresh_like(x._sizes, x._dtype, x), *(
            fresh_like((0,), torch.int64, x) for _ in range(2)
        )
    if any(type(n) is int and n == 0 for n in rest):
        raise RuntimeError(
            "There are 0 sized dimensions, and they aren't selected, so unique cannot be applied"
        )
    found = new_size(op, 1, length if type(length) is int else None)
    step, *strides = contiguous((found, *rest))
    strides.insert(dim, step)
    values = make((*rest[:dim], found, *rest[dim:]), tuple(strides), x._dtype, x._device)
    always = x._device.type == "cpu"
    where = fresh_like((length,) if inverse or always else (0,), torch.int64, x)
    return values, where, fresh_like((found,) if counts or always else (0,), torch.int64, x)


# --- cards --------------------------------------------------------------------------------------

CARDS = (
    composed("nonzero", nonzero),
    composed("masked_select", masked_select),
    library("repeat_interleave", repeat_interleave, overload="Tensor"),
    library("_assert_async", overload="msg"),
    composed("bincount", bincount),
    composed("_local_scalar_dense", item),
    composed("_unique2", unique2),
    composed("unique_consecutive", unique_consecutive),
    composed("unique_dim", unique_dim),
)
