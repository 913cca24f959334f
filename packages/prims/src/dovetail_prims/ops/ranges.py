"""Numbers at equal distances, and their logarithms."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from dovetail_prims.fake_tensor import FakeTensor, Size
from dovetail_prims.ops.card import also, composed, library
from dovetail_prims.ops.common import Number, aten, cast, compute_dtype, iota, made_for, where
from dovetail_prims.shape_rules.factories import device_of
from dovetail_prims.shape_rules.layout import fresh

_DOUBLE = torch.float64


def _spaced(
    start: Tensor | Number, end: Tensor | Number, steps: int, dtype: torch.dtype, device: Any
) -> Tensor:
    """The positions, in float64"""

    def exact(x: Tensor | Number) -> Tensor:
        if not isinstance(x, Tensor):
            if not dtype.is_floating_point:
                x = int(x)
            x = aten.full.default([], x, dtype=dtype, device=device)
        elif x.device != device:
            x = aten._to_copy.default(x, device=device)
        return cast(cast(x, dtype), _DOUBLE)

    first, last = exact(start), exact(end)
    step = aten.div.Tensor(aten.sub.Tensor(last, first), max(steps - 1, 1))
    narrow = compute_dtype(dtype)
    if not dtype.is_floating_point:
        narrow = torch.float32 if device.type == "cuda" else _DOUBLE
    step = cast(cast(step, narrow), _DOUBLE)
    i = iota(steps, first)
    up = aten.add.Tensor(first, aten.mul.Tensor(step, cast(i, _DOUBLE)))
    left = cast(aten.sub.Tensor(steps - 1, i), _DOUBLE)
    down = aten.sub.Tensor(last, aten.mul.Tensor(step, left))
    early = aten.lt.Scalar(i, max(steps // 2, 1))
    return cast(where(early, up, down), narrow)


def _range(name: str) -> Callable[..., Any]:
    """linspace or logspace, of numbers or of tensors"""

    def function(start: Any, end: Any, steps: int, *rest: Any) -> Any:
        """Numbers (or their logarithms) at equal distances, both ends included"""
        *base, dtype, _, device, _ = rest
        given = [x.device for x in (start, end) if isinstance(x, Tensor)]
        device = device_of(device) if device else (given or [torch.device("cpu")])[0]
        dtype = dtype or torch.get_default_dtype()
        if dtype.is_complex or any(isinstance(x, complex) for x in (start, end)):
            return NotImplemented
        at = _spaced(start, end, steps, dtype, device)
        if base:
            full = aten.full.default([], base[0], dtype=_DOUBLE, device=device)
            at = aten.pow.Tensor_Tensor(full, cast(at, _DOUBLE))
        return cast(at, dtype)

    return made_for(name, function)


def triangle_places(
    rows: Size, columns: Size, offset: int, below: bool, options: dict[str, Any]
) -> FakeTensor:
    """Row and column of each element below a diagonal, or from it on."""
    if type(rows) is not int or type(columns) is not int or type(offset) is not int:
        return NotImplemented  # type: ignore[no-any-return]
    if rows < 0 or columns < 0 or options.get("layout") not in (None, torch.strided):
        return NotImplemented  # type: ignore[no-any-return]
    last = offset if below else offset - 1
    lower = sum(min(columns, max(0, row + last + 1)) for row in range(rows))
    count = lower if below else rows * columns - lower
    device = torch.device(options.get("device") or "cpu")
    return fresh((2, count), options.get("dtype") or torch.int64, device)


def lower_places(rows: Size, columns: Size, offset: int = 0, **options: Any) -> FakeTensor:
    """`tril_indices`."""
    return triangle_places(rows, columns, offset, True, options)


def upper_places(rows: Size, columns: Size, offset: int = 0, **options: Any) -> FakeTensor:
    """`triu_indices`."""
    return triangle_places(rows, columns, offset, False, options)


# --- cards ----------------------------------------------------------------------------------------

CARDS = (
    *(
        composed(
            name,
            None,
            _range(f"{name}.default"),
            *(
                also(overload, None, _range(f"{name}.{overload}"))
                for overload in ("Tensor_Tensor", "Tensor_Scalar", "Scalar_Tensor")
            ),
        )
        for name in ("linspace", "logspace")
    ),
    library("tril_indices", lower_places),
    library("triu_indices", upper_places),
)
