"""Shape rules of parts of a tensor: slices, selections, splits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from dovetail_prims.fake_tensor import FakeTensor, Size
from dovetail_prims.shape_rules.layout import insisted, wrap_dim
from dovetail_prims.shape_rules.views import clamped, known_truth, stated, view_of, wrapped

_MAX = 2**63 - 1


def _clamp_index(index: Any, size: Size, default: Size) -> Size:
    """A slice bound as eager reads it: None, negative, too large."""
    if index is None:
        return default
    if type(index) is int:
        if index == _MAX:
            return size
        if index == 0:
            return 0
        if type(size) is int:
            return min(index, size) if index > 0 else max(index + size, 0)
    return clamped(index, size)


def slice_(
    x: FakeTensor, dim: int = 0, start: Any = None, end: Any = None, step: Size = 1
) -> FakeTensor:
    """`x[start:end:step]` along one dimension."""
    rank = len(x._sizes)
    if rank == 0:
        raise RuntimeError("slice() cannot be applied to a 0-dim tensor.")
    dim = wrap_dim(dim, rank)
    if step <= 0:
        raise RuntimeError("slice step must be positive")
    size = x._sizes[dim]
    lo = _clamp_index(start, size, 0)
    hi = _clamp_index(end, size, size)
    if lo is not hi and not (type(lo) is int and lo == 0):
        empty = known_truth(hi < lo)
        if empty is not False:
            hi = lo if empty else torch.sym_max(lo, hi)
    length = hi - lo if not (type(lo) is int and lo == 0) else hi
    if not (type(step) is int and step == 1):
        length = (length + step - 1) // step
    stride = x._strides[dim]
    offset = x._offset
    if not (type(lo) is int and lo == 0):
        offset = offset + lo * stride
    sizes = (*x._sizes[:dim], length, *x._sizes[dim + 1 :])
    one = type(step) is int and step == 1
    strides = x._strides if one else (*x._strides[:dim], stride * step, *x._strides[dim + 1 :])
    return view_of(x, sizes, strides, offset)


def select(x: FakeTensor, dim: int, index: Size) -> FakeTensor:
    """`x[index]` along one dimension."""
    rank = len(x._sizes)
    if rank == 0:
        raise IndexError("select() cannot be applied to a 0-dim tensor.")
    dim = wrap_dim(dim, rank)
    size = x._sizes[dim]
    if type(index) is int and type(size) is int:
        inside = -size <= index < size
    else:
        # (An index is far more often in brackets than an argument of `select`: in their words.)
        refusal = f"index {{}} is out of bounds for dimension {dim} with size {{}}"
        inside = all(
            stated(condition, refusal, IndexError, (index, size))
            for condition in (index < size, index >= -size)
        )
    if not inside:
        raise IndexError(
            f"select(): index {index} out of range for tensor of size {list(x._sizes)} at "
            f"dimension {dim}"
        )
    index = wrapped(index, size)
    return view_of(
        x,
        x._sizes[:dim] + x._sizes[dim + 1 :],
        x._strides[:dim] + x._strides[dim + 1 :],
        x._offset + index * x._strides[dim],
    )


def split(x: FakeTensor, split_size: Size, dim: int = 0) -> list[FakeTensor]:
    """Equal pieces along a dimension (the last one may be smaller)."""
    dim = wrap_dim(dim, len(x._sizes))
    size = x._sizes[dim]
    if split_size < 0:
        raise RuntimeError(
            f"split expects split_size be non-negative, but got split_size={split_size}"
        )
    if type(split_size) is int and split_size == 0:
        if size != 0:
            raise RuntimeError(
                f"split_size can only be 0 if dimension size is 0, but got dimension size of {size}"
            )
        return [slice_(x, dim, 0, size)]
    # The number of pieces is the length of a Python list: a symbolic one becomes a guard here. How
    # long the last one is does not.
    pieces: list[FakeTensor] = []
    start: Size = 0
    while (end := start + split_size) < size:
        pieces.append(slice_(x, dim, start, end))
        start = end
    pieces.append(slice_(x, dim, start, size))
    return pieces


def split_with_sizes(x: FakeTensor, split_sizes: Sequence[Size], dim: int = 0) -> list[FakeTensor]:
    """Pieces of given sizes along a dimension."""
    dim = wrap_dim(dim, len(x._sizes))
    total: Size = 0
    for s in split_sizes:
        if not insisted(s >= 0):
            raise RuntimeError(
                "split_with_sizes expects split_sizes have only non-negative entries, but got "
                f"split_sizes={list(split_sizes)}"
            )
        total = total + s
    if not insisted(total == x._sizes[dim]):
        raise RuntimeError(
            f"split_with_sizes expects split_sizes to sum exactly to {x._sizes[dim]} (input "
            f"tensor's size at dimension {dim}), but got split_sizes={list(split_sizes)}"
        )
    pieces = []
    start: Size = 0
    for s in split_sizes:
        sizes = (*x._sizes[:dim], s, *x._sizes[dim + 1 :])
        pieces.append(view_of(x, sizes, x._strides, x._offset + start * x._strides[dim]))
        start = start + s
    return pieces


def unbind(x: FakeTensor, dim: int = 0) -> list[FakeTensor]:
    """All slices along a dimension. A symbolic length becomes a guard."""
    dim = wrap_dim(dim, len(x._sizes))
    pieces: list[FakeTensor] = []
    index = 0
    while index < x._sizes[dim]:
        pieces.append(select(x, dim, index))
        index += 1
    return pieces
