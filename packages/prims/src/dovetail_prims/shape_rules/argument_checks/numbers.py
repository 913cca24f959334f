"""Numbers that a tensor is filled with: its dtype must hold them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from dovetail_prims.fake_tensor import FakeTensor
from dovetail_prims.shape_rules.argument_checks.check import Check
from dovetail_prims.shape_rules.conversions import check_number


def _number(
    size: Any, value: Any, dtype: torch.dtype | None = None, device: Any = None, **kwargs: Any
) -> None:
    if dtype is not None:
        _everywhere(value, dtype, tuple(size), torch.device("cpu" if device is None else device))


def _like(
    x: FakeTensor,
    value: Any,
    dtype: torch.dtype | None = None,
    device: Any = None,
    **kwargs: Any,
) -> None:
    _new(x, x._sizes, value, dtype, device)


def _new(
    x: FakeTensor,
    size: Any,
    value: Any,
    dtype: torch.dtype | None = None,
    device: Any = None,
    **kwargs: Any,
) -> None:
    device = x._device if device is None else torch.device(device)
    _everywhere(value, x._dtype if dtype is None else dtype, tuple(size), device)


def _everywhere(value: Any, dtype: torch.dtype, sizes: Any, device: torch.device) -> None:
    """A fill: on a CPU one number alone of a half type is taken by way of float64."""
    alone = device.type == "cpu" and all(type(n) is int and n == 1 for n in sizes)
    half = dtype in (torch.float16, torch.bfloat16)
    check_number(value, torch.float64 if alone and half else dtype)


def _scalar(value: Any, dtype: torch.dtype | None = None, **kwargs: Any) -> None:
    if dtype is not None:
        check_number(value, dtype)


def _first_number(
    start: Any, end: Any, steps: Any, *, dtype: torch.dtype | None = None, **kwargs: Any
) -> None:
    """The start of a range whose end is a tensor."""
    if dtype is not None and steps != 0:
        check_number(start, dtype)


def _padding(x: FakeTensor, pad: Any, value: Any = 0) -> None:
    if any(type(n) is not int or n > 0 for n in pad):
        check_number(value, x._dtype)


def _replaced(x: FakeTensor, *given: Any) -> None:
    """Numbers among the arguments, with which elements are compared or replaced."""
    for value in given:
        check_number(value, x._dtype)


TABLE: Mapping[str, Check] = {
    "fill.Scalar": _like,
    "full_like.default": _like,
    "new_full.default": _new,
    "scalar_tensor.default": _scalar,
    "constant_pad_nd.default": _padding,
    "full.default": _number,
    "linspace.Scalar_Tensor": _first_number,
    "_unsafe_masked_index.default": _replaced,
}
