"""Shape rules of reductions, scans, softmax, sorting."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from dovetail_prims.fake_tensor import FakeTensor, Sizes
from dovetail_prims.shape_rules.layout import fresh, insisted, wrap_dim
from dovetail_prims.shape_rules.promotion import COMPLEX, FLOATING


def reduced_sizes(sizes: Sizes, dims: int | Sequence[int] | None, keepdim: bool) -> Sizes:
    """The sizes after reducing `dims` (None or empty: all)."""
    rank = len(sizes)
    if isinstance(dims, int):
        gone = {wrap_dim(dims, rank)}
    elif dims is None or len(dims) == 0:
        gone = set(range(rank))
    else:
        gone = {wrap_dim(d, rank) for d in dims}
        if len(gone) != len(dims):
            raise RuntimeError("dim appears multiple times in the list of dims")
    if keepdim:
        return tuple([1 if d in gone else s for d, s in enumerate(sizes)])
    return tuple([s for d, s in enumerate(sizes) if d not in gone])


def _sum_dtype(x: FakeTensor, dtype: Any) -> torch.dtype:
    """Sums of integers and bool are int64."""
    if dtype is not None:
        return dtype  # type: ignore[no-any-return]
    d = x._dtype
    return d if d in FLOATING or d in COMPLEX else torch.int64


def _check_not_empty(x: FakeTensor, dims: Any, op: str) -> None:
    """A maximum over nothing does not exist. Where only the data tells, the call says that there is
    something."""
    sizes = x._sizes
    if not sizes:
        return
    if dims is None or (isinstance(dims, (list, tuple)) and not dims):
        if all(insisted(size != 0) for size in sizes):
            return
        text = f"{op}: Expected reduction dim to be specified for input.numel() == 0."
        if op.startswith("arg"):
            raise IndexError(text)
        raise RuntimeError(f"{text} Specify the reduction dim with the 'dim' argument.")
    for d in (dims,) if isinstance(dims, int) else dims:
        if not insisted(sizes[wrap_dim(d, len(sizes))] != 0):
            raise IndexError(f"{op}: Expected reduction dim {d} to have non-zero size.")


def sum_(x: FakeTensor, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> FakeTensor:
    """`sum` (and `nansum`, `prod.dim_int`)."""
    sizes = reduced_sizes(x._sizes, dim, keepdim)
    return fresh(sizes, _sum_dtype(x, dtype), x._device)


def sum_all(x: FakeTensor, *, dtype: Any = None) -> FakeTensor:
    """`sum` or `prod` over everything."""
    return fresh((), _sum_dtype(x, dtype), x._device)


def mean(x: FakeTensor, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> FakeTensor:
    """`mean`."""
    out = dtype if dtype is not None else x._dtype
    return fresh(reduced_sizes(x._sizes, dim, keepdim), out, x._device)


def mean_all(x: FakeTensor, *, dtype: Any = None) -> FakeTensor:
    """`mean` over everything."""
    return mean(x, dtype=dtype)


def same_dtype_reduction(
    x: FakeTensor, dim: Any = (), keepdim: bool = False, *, op: str
) -> FakeTensor:
    """`amax`, `amin`."""
    _check_not_empty(x, dim, op)
    return fresh(reduced_sizes(x._sizes, dim, keepdim), x._dtype, x._device)


def reduce_all(x: FakeTensor, *, op: str) -> FakeTensor:
    """`max`, `min` over everything."""
    _check_not_empty(x, None, op)
    return fresh((), x._dtype, x._device)


def arg_reduction(x: FakeTensor, dim: Any = None, keepdim: bool = False, *, op: str) -> FakeTensor:
    """`argmax`, `argmin`."""
    _check_not_empty(x, dim, op)
    if dim is None:
        sizes = (1,) * len(x._sizes) if keepdim else ()
        return fresh(sizes, torch.int64, x._device)
    return fresh(reduced_sizes(x._sizes, dim, keepdim), torch.int64, x._device)


def with_index(
    x: FakeTensor, dim: int, keepdim: bool = False, *, op: str
) -> tuple[FakeTensor, FakeTensor]:
    """`max.dim`, `min.dim`: values and indices."""
    _check_not_empty(x, dim, op)
    sizes = reduced_sizes(x._sizes, dim, keepdim)
    return fresh(sizes, x._dtype, x._device), fresh(sizes, torch.int64, x._device)


def hash_tensor(
    x: FakeTensor, dim: Sequence[int] = (), *, keepdim: bool = False, mode: int = 0
) -> FakeTensor:
    """`hash_tensor`: exclusive or of 64 bits for each element."""
    sizes = reduced_sizes(x._sizes, dim, keepdim)
    _check_not_empty(x, dim, "hash_tensor")
    return fresh(sizes, torch.uint64, x._device)


def truth(x: FakeTensor, dim: Any = None, keepdim: bool = False) -> FakeTensor:
    """`any`, `all`: bool, except that uint8 stays uint8."""
    dtype = torch.uint8 if x._dtype is torch.uint8 else torch.bool
    if isinstance(dim, (list, tuple)) and len(dim) == 0:
        return fresh(x._sizes, dtype, x._device)  # (each element by itself)
    return fresh(reduced_sizes(x._sizes, dim, keepdim), dtype, x._device)


def truth_all(x: FakeTensor) -> FakeTensor:
    """`any`, `all` over everything."""
    return truth(x)


def var(
    x: FakeTensor, dim: Any = None, *, correction: Any = None, keepdim: bool = False
) -> FakeTensor:
    """`var`, `std`."""
    if not x._dtype.is_floating_point and not x._dtype.is_complex:
        return NotImplemented  # type: ignore[no-any-return]
    return fresh(reduced_sizes(x._sizes, dim, keepdim), x._dtype.to_real(), x._device)


def var_mean(
    x: FakeTensor, dim: Any = None, *, correction: Any = None, keepdim: bool = False
) -> tuple[FakeTensor, FakeTensor]:
    """`var_mean`, `std_mean`."""
    if not x._dtype.is_floating_point and not x._dtype.is_complex:
        return NotImplemented  # type: ignore[no-any-return]
    sizes = reduced_sizes(x._sizes, dim, keepdim)
    return (fresh(sizes, x._dtype.to_real(), x._device), fresh(sizes, x._dtype, x._device))


def norm(
    x: FakeTensor, ord: Any = 2, dim: Any = None, keepdim: bool = False, *, dtype: Any = None
) -> FakeTensor:
    """`linalg_vector_norm`."""
    if dtype is None and x._dtype.is_complex:
        dtype = x._dtype.to_real()
    if (dtype or x._dtype) not in FLOATING:
        return NotImplemented  # type: ignore[no-any-return]
    return fresh(reduced_sizes(x._sizes, dim, keepdim), dtype or x._dtype, x._device)


def norm_scalar_dim(x: FakeTensor, p: Any, dim: Any, keepdim: bool = False) -> FakeTensor:
    """`norm.ScalarOpt_dim`."""
    return norm(x, 2, dim, keepdim)


# --- shape kept -----------------------------------------------------------------------------------


def cumulative(x: FakeTensor, dim: int, *, dtype: Any = None) -> FakeTensor:
    """`cumsum`, `cumprod`."""
    wrap_dim(dim, len(x._sizes))
    return fresh(x._sizes, _sum_dtype(x, dtype), x._device)
