"""Dtype and device of results, and which numbers eager's kernels take as numbers of a dtype."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import torch

from dovetail_prims.fake_tensor import FakeTensor

_CPU = torch.device("cpu")
FLOATING = frozenset(
    {
        torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.float8_e4m3fn,
        torch.float8_e5m2, torch.float8_e4m3fnuz, torch.float8_e5m2fnuz,
    }
)  # fmt: skip
COMPLEX = frozenset({torch.complex32, torch.complex64, torch.complex128})
REDUCED = frozenset({torch.float16, torch.bfloat16})
_COMPLEX_OF = {
    torch.float16: torch.complex32,
    # Newer PyTorch has a complex type of two bfloat16.
    torch.bfloat16: getattr(torch, "bcomplex32", torch.complex64),
    torch.float32: torch.complex64,
    torch.float64: torch.complex128,
}


_NAMES = {
    torch.bool: "Bool", torch.uint8: "Byte", torch.int8: "Char", torch.int16: "Short",
    torch.int32: "Int", torch.int64: "Long", torch.float16: "Half", torch.bfloat16: "BFloat16",
    torch.float32: "Float", torch.float64: "Double", torch.complex32: "ComplexHalf",
    torch.complex64: "ComplexFloat", torch.complex128: "ComplexDouble",
}  # fmt: skip


def name_in_kernels(dtype: torch.dtype) -> str:
    """What the errors of eager's kernels call a dtype."""
    return _NAMES.get(dtype, str(dtype).removeprefix("torch."))


def of_one_kind(*tensors: FakeTensor | None) -> bool:
    """Whether all are of one floating dtype and on one device."""
    given = [t for t in tensors if t is not None]
    dtype, device = given[0]._dtype, given[0]._device
    return dtype in FLOATING and all(t._dtype is dtype and t._device == device for t in given)


def common_device(tensors: Iterable[FakeTensor]) -> torch.device:
    """The device of the result: a 0-dim CPU tensor follows the others."""
    device: torch.device | None = None
    scalar = False
    for t in tensors:
        if device is None:
            device, scalar = t._device, not t._sizes
        elif t._device != device:
            if scalar and device.type == "cpu":
                device, scalar = t._device, not t._sizes
            elif t._sizes or t._device.type != "cpu":
                raise RuntimeError(
                    "Expected all tensors to be on the same device, but found at least two "
                    f"devices, {device} and {t._device}!"
                )
        elif t._sizes:
            scalar = False
    return device if device is not None else _CPU


def number_dtype(number: Any) -> torch.dtype:
    """The dtype that a Python number (or a symbolic one) stands for in type promotion."""
    kind = type(number)
    if kind is float or kind is torch.SymFloat:
        return torch.get_default_dtype()
    if kind is int or kind is torch.SymInt:
        return torch.int64
    if kind is bool or kind is torch.SymBool:
        return torch.bool
    if isinstance(number, complex):
        return _COMPLEX_OF[torch.get_default_dtype()]
    if isinstance(number, float):
        return torch.get_default_dtype()
    return torch.int64


def _combine(higher: torch.dtype | None, lower: torch.dtype | None) -> torch.dtype | None:
    """Join two priority classes: the lower one can only raise the kind, not the width."""
    if higher is None:
        return lower
    if lower is None or higher in COMPLEX:
        return higher
    if higher in FLOATING:
        return _COMPLEX_OF[higher] if lower in COMPLEX else higher
    if higher is torch.bool or lower in FLOATING or lower in COMPLEX:
        return torch.promote_types(higher, lower)
    return higher


def promote(args: Iterable[Any]) -> torch.dtype:
    """Type promotion: tensors with dimensions first, then 0-dim tensors, then numbers."""
    dim: torch.dtype | None = None
    zero: torch.dtype | None = None
    number: torch.dtype | None = None
    for a in args:
        if type(a) is FakeTensor:
            d = a._dtype
            if a._sizes:
                dim = d if dim is None or dim is d else torch.promote_types(dim, d)
            else:
                zero = d if zero is None or zero is d else torch.promote_types(zero, d)
        else:
            d = number_dtype(a)
            number = d if number is None else torch.promote_types(number, d)
    result = _combine(dim, _combine(zero, number))
    assert result is not None
    return result


def as_float(dtype: torch.dtype) -> torch.dtype:
    """Integers and bool become the default float."""
    if dtype in FLOATING or dtype in COMPLEX:
        return dtype
    return torch.get_default_dtype()


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
