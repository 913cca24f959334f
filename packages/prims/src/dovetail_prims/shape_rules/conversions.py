"""Which numbers eager's kernels take as numbers of a dtype: those that do not overflow."""

from __future__ import annotations

import math
from typing import Any

import torch

_C_NAMES = {
    torch.int8: "int8_t", torch.uint8: "uint8_t", torch.int16: "int16_t", torch.int32: "int",
    torch.int64: "int64_t", torch.float16: "c10::Half", torch.bfloat16: "c10::BFloat16",
    torch.float32: "float", torch.float64: "double", torch.complex64: "c10::complex<float>",
    torch.complex128: "c10::complex<double>",
}  # fmt: skip


def check_number(value: Any, dtype: torch.dtype) -> None:
    """Raise what eager's kernels do that are to take a number as one of the dtype, and cannot."""
    if type(value) in (int, float, complex) and overflows(value, dtype):
        raise RuntimeError(overflow_message(dtype))


def overflow_message(dtype: torch.dtype) -> str:
    """What eager says of a number that is none of a dtype's."""
    name = _C_NAMES.get(dtype, str(dtype).removeprefix("torch."))
    return f"value cannot be converted to type {name} without overflow"


def overflows(value: float | complex, dtype: torch.dtype) -> bool:
    """Whether eager's kernels refuse to take a number as one of the dtype: complex as real, NaN and
    infinities as whole, what is too large. (Negative numbers wrap in an unsigned dtype.)"""
    if dtype is torch.bool:
        return False
    if isinstance(value, complex):
        if dtype.is_complex:
            part = dtype.to_real()
            return overflows(value.real, part) or overflows(value.imag, part)
        return value.imag != 0 or overflows(value.real, dtype)
    if dtype.is_complex:
        dtype = dtype.to_real()
    if dtype.is_floating_point and not math.isfinite(value):
        return False
    low, high = limits(dtype, isinstance(value, float))
    return not low <= value <= high


def limits(dtype: torch.dtype, of_floats: bool) -> tuple[float, float]:
    """The least and the largest finite number (floats or whole ones) that is taken as one of a real
    dtype's."""
    if dtype.is_floating_point:
        return -torch.finfo(dtype).max, torch.finfo(dtype).max
    held = torch.iinfo(dtype)
    if held.min == 0 and not of_floats:
        return -held.max, held.max
    return held.min, held.max


def always_converts(source: torch.dtype, target: torch.dtype) -> bool:
    """Whether every number of one dtype is taken as one of another."""
    if target is torch.bool or source is target or source is torch.bool:
        return True
    if source.is_complex and not target.is_complex:
        return False
    low, own = (d.to_real() if d.is_complex else d for d in (source, target))
    if low.is_floating_point and not own.is_floating_point:
        return False
    return limits(low, False)[1] <= limits(own, False)[1]
