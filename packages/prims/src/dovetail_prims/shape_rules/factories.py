"""Shape rules of tensor factories and of random ops."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from dovetail_prims.fake_tensor import FakeTensor, Size, Sizes, make
from dovetail_prims.shape_rules.layout import (
    channels_last,
    contiguous,
    empty_like_strides,
    fresh,
    insisted,
)
from dovetail_prims.shape_rules.promotion import FLOATING, number_dtype

_CPU = torch.device("cpu")


def device_of(given: Any) -> torch.device:
    """The device argument of a factory; an index-less CUDA device means the current one."""
    if given is None:
        return _CPU
    device = torch.device(given)
    if device.type == "cuda" and device.index is None:
        return torch.device("cuda", torch.cuda.current_device())
    return device


def _strides(sizes: Sizes, memory_format: Any) -> Sizes:
    if memory_format in (torch.channels_last, torch.channels_last_3d):
        return channels_last(sizes)
    return contiguous(sizes)


def empty(
    size: Sequence[Size],
    *,
    dtype: Any = None,
    layout: Any = None,
    device: Any = None,
    memory_format: Any = None,
    **options: Any,
) -> Any:
    """`empty`, `zeros`, `ones`, `rand`, `randn`: default dtype."""
    if layout is not None and layout is not torch.strided:
        return NotImplemented
    sizes = tuple(size)
    for s in sizes:
        if not insisted(s >= 0):
            raise RuntimeError(
                f"Trying to create tensor with negative dimension {s}: {list(sizes)}"
            )
    return make(
        sizes, _strides(sizes, memory_format), dtype or torch.get_default_dtype(), device_of(device)
    )


def empty_strided(
    size: Sequence[Size],
    stride: Sequence[Size],
    *,
    dtype: Any = None,
    device: Any = None,
    **options: Any,
) -> FakeTensor:
    """`empty_strided`."""
    return make(tuple(size), tuple(stride), dtype or torch.get_default_dtype(), device_of(device))


def full(size: Sequence[Size], fill_value: Any, *, dtype: Any = None, **options: Any) -> Any:
    """`full`: the dtype follows the value; that of complex numbers is never one of halves."""
    if dtype is None:
        dtype = number_dtype(fill_value)
        if dtype is torch.complex32:
            dtype = torch.complex64
    return empty(size, dtype=dtype, **options)


def eye(n: Size, m: Size | None = None, **options: Any) -> Any:
    """Ones on the diagonal of an n by m matrix, which is square without m."""
    sizes = (n, n if m is None else m)
    if any(type(s) is int and s < 0 for s in sizes):
        return NotImplemented  # the kernel names the argument
    return empty(sizes, **options)


def scalar_tensor(s: Any, *, dtype: Any = None, **options: Any) -> Any:
    """`scalar_tensor`: 0-dim, default dtype."""
    return empty((), dtype=dtype, **options)


def _arange(start: Any, end: Any, step: Any, dtype: Any, options: dict[str, Any]) -> Any:
    numbers = (start, end, step)
    if dtype is None:
        ints = all(number_dtype(n) in (torch.int64, torch.bool) for n in numbers)
        dtype = torch.int64 if ints else torch.get_default_dtype()
    if step == 0:
        raise RuntimeError("step must be nonzero")
    if not insisted((end >= start) if step > 0 else (end <= start)):
        raise RuntimeError("upper bound and lower bound inconsistent with step sign")
    if all(isinstance(n, (int, torch.SymInt)) for n in numbers):
        count = end - start
        if not (type(step) is int and step == 1):
            count = (count + step - 1) // step if step > 0 else (start - end - step - 1) // -step
    elif all(isinstance(n, (int, float)) for n in numbers):
        if not all(math.isfinite(n) for n in numbers):
            raise RuntimeError("unsupported range")
        if dtype not in FLOATING:
            return NotImplemented  # versions differ in when they round: PyTorch's own kernel knows
        count = math.ceil((end - start) / step)
    else:
        return NotImplemented
    return empty((count,), dtype=dtype, **options)


def arange(end: Any, *, dtype: Any = None, **options: Any) -> Any:
    """`arange(end)`."""
    return _arange(0, end, 1, dtype, options)


def arange_start(start: Any, end: Any, *, dtype: Any = None, **options: Any) -> Any:
    """`arange(start, end)`."""
    return _arange(start, end, 1, dtype, options)


def arange_step(start: Any, end: Any, step: Any = 1, *, dtype: Any = None, **options: Any) -> Any:
    """`arange(start, end, step)`."""
    return _arange(start, end, step, dtype, options)


# --- like another tensor --------------------------------------------------------------------------


def like(
    x: FakeTensor,
    *rest: Any,
    dtype: Any = None,
    layout: Any = None,
    device: Any = None,
    memory_format: Any = None,
    **options: Any,
) -> Any:
    """`empty_like`, `zeros_like`, `full_like`, `rand_like` ..."""
    if layout is not None and layout is not torch.strided:
        return NotImplemented
    if memory_format is None or memory_format is torch.preserve_format:
        strides = empty_like_strides(x)
    else:
        strides = _strides(x._sizes, memory_format)
    return make(
        x._sizes, strides, dtype or x._dtype, x._device if device is None else device_of(device)
    )


def new(
    x: FakeTensor,
    size: Sequence[Size],
    *rest: Any,
    dtype: Any = None,
    device: Any = None,
    **options: Any,
) -> FakeTensor:
    """`new_empty`, `new_zeros`, `new_ones`, `new_full`: contiguous, dtype and device of `x`."""
    return fresh(tuple(size), dtype or x._dtype, x._device if device is None else device_of(device))


def new_empty_strided(
    x: FakeTensor,
    size: Sequence[Size],
    stride: Sequence[Size],
    *,
    dtype: Any = None,
    device: Any = None,
    **options: Any,
) -> FakeTensor:
    """`new_empty_strided`."""
    place = x._device if device is None else device_of(device)
    return make(tuple(size), tuple(stride), dtype or x._dtype, place)


def window(
    window_length: Size, *rest: Any, dtype: torch.dtype | None = None, **options: Any
) -> Any:
    """`hann_window` and its like."""
    floating = dtype is None or dtype.is_floating_point
    if type(window_length) is not int or window_length < 0 or not floating:
        return NotImplemented
    return empty((window_length,), dtype=dtype, **options)
