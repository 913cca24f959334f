"""Shape rules of Fourier transforms, whose results lie as MKL lays them out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from dovetail_prims.fake_tensor import (
    FakeTensor,
    Size,
    Sizes,
    make,
)
from dovetail_prims.shape_rules.layout import (
    contiguous,
)


def fft_from_real(x: FakeTensor, dim: Sequence[int], normalization: int, onesided: bool) -> Any:
    """The transform of real numbers; by symmetry half of it may be left out."""
    if not _by_mkl(x) or not dim:
        return NotImplemented
    dims = [d % len(x._sizes) for d in dim]
    sizes = list(x._sizes)
    if onesided:
        sizes[dims[-1]] = sizes[dims[-1]] // 2 + 1
    strides = _mkl_strides(sizes, x._strides, [*_by_stride(dims[:-1], x._strides), dims[-1]])
    return make(tuple(sizes), strides, x._dtype.to_complex(), x._device)


def fft_to_real(x: FakeTensor, dim: Sequence[int], normalization: int, last: Size) -> Any:
    """Back to real numbers: a complex transform along all dimensions but the last comes first."""
    if not _by_mkl(x) or not dim:
        return NotImplemented
    dims = [d % len(x._sizes) for d in dim]
    strides = x._strides
    if len(dims) > 1:
        strides = _mkl_strides(x._sizes, strides, _by_stride(dims[:-1], strides))
    sizes = list(x._sizes)
    sizes[dims[-1]] = last
    strides = _mkl_strides(sizes, strides, dims[-1:])
    return make(tuple(sizes), strides, x._dtype.to_real(), x._device)


def fft(x: FakeTensor, dim: Sequence[int], normalization: int, forward: bool) -> Any:
    """The transform of complex numbers."""
    if not _by_mkl(x) or not dim or not x._dtype.is_complex:
        return NotImplemented
    dims = [d % len(x._sizes) for d in dim]
    strides = _mkl_strides(x._sizes, x._strides, _by_stride(dims, x._strides))
    return make(x._sizes, strides, x._dtype, x._device)


def _by_mkl(x: FakeTensor) -> bool:
    available: Callable[[], bool] = torch.backends.mkl.is_available
    return x._device.type == "cpu" and available()


def _by_stride(dims: Sequence[int], strides: Sizes) -> list[int]:
    """Dimensions with large strides first."""
    return sorted(dims, key=lambda d: -strides[d])


def _mkl_strides(sizes: Sequence[Size], source: Sizes, dims: list[int]) -> Sizes:
    """MKL's result is dense, the transformed dimensions innermost, the others by their strides."""
    order = _by_stride([d for d in range(len(sizes)) if d not in dims], source) + dims
    strides: list[Size] = [0] * len(sizes)
    for d, stride in zip(order, contiguous(tuple(sizes[d] for d in order)), strict=True):
        strides[d] = stride
    return tuple(strides)


def rules() -> dict[str, Callable[..., Any]]:
    """The table of this family."""
    return {
        "_fft_c2c.default": fft,
        "_fft_r2c.default": fft_from_real,
        "_fft_c2r.default": fft_to_real,
    }
