"""Calls by a symbolic float that C++ takes as a number, said in operators that take it as it is.

A loss's threshold, a bound or a deviation that is annealed would be compiled for each of its
values. See `symbolic_forms`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

_LOSSES: Mapping[str, Callable[[Tensor], Tensor]] = {
    "none": lambda loss: loss, "mean": Tensor.mean, "sum": Tensor.sum,
}  # fmt: skip


def _distance(x: Any, y: Any, reduction: Any, factor: Any) -> Tensor | None:
    """The difference of two floating tensors of one shape, where a loss is to have a form."""
    if not isinstance(factor, torch.SymFloat) or reduction not in _LOSSES:
        return None
    if not (isinstance(x, Tensor) and isinstance(y, Tensor)) or x.dtype is not y.dtype:
        return None
    if not x.dtype.is_floating_point or x.shape != y.shape or not factor > 0:
        return None
    return x - y


def _bent(far: Tensor, bend: Any, inner: Tensor, slope: Any) -> Tensor:
    """`inner` up to `bend` on either side, and a line from there. (NaN, whose gradient is NaN, is
    no side's.)"""
    less = 0.5 * bend
    outer = torch.where(far <= -bend, slope * (-far - less), inner)
    return torch.where(far >= bend, slope * (far - less), outer)


def _huber(
    input: Any, target: Any, reduction: Any = "mean", delta: Any = 1.0, weight: Any = None
) -> Any:
    """`huber_loss`: squares up to `delta`, and a line that goes on from there."""
    far = None if weight is not None else _distance(input, target, reduction, delta)
    if far is None:
        return NotImplemented
    loss = _bent(far, delta, 0.5 * far * far, delta)
    return _LOSSES[reduction](loss)


def _smooth_l1(
    input: Any,
    target: Any,
    size_average: Any = None,
    reduce: Any = None,
    reduction: Any = "mean",
    beta: Any = 1.0,
) -> Any:
    """`smooth_l1_loss`: a Huber loss over its threshold."""
    plain = size_average is None and reduce is None
    far = _distance(input, target, reduction, beta) if plain else None
    if far is None:
        return NotImplemented
    loss = _bent(far, beta, 0.5 * far * far / beta, 1.0)
    return _LOSSES[reduction](loss)


def _hardtanh(input: Any, min_val: Any = -1.0, max_val: Any = 1.0, inplace: Any = False) -> Any:
    """`hardtanh`: no gradient from its bounds on, where `clamp` has one at them."""
    if not any(isinstance(bound, torch.SymFloat) for bound in (min_val, max_val)):
        return NotImplemented
    if inplace or not isinstance(input, Tensor) or not input.dtype.is_floating_point:
        return NotImplemented
    if not (min_val < 0 and max_val > 0):  # (which of two symbolic bounds is less takes a value)
        return NotImplemented
    low, high = (
        torch.full((), b, dtype=input.dtype, device=input.device) for b in (min_val, max_val)
    )
    return torch.where(input <= low, low, torch.where(input >= high, high, input))


def _normal(mean: Any, std: Any, size: Any = None, **options: Any) -> Any:
    """`torch.normal` of numbers: standard normal ones, stretched and moved."""
    numbers = (mean, std)
    if size is None or options.get("out") is not None:
        return NotImplemented
    if any(isinstance(n, Tensor) for n in numbers) or not _is_symbolic(*numbers) or not std >= 0:
        return NotImplemented
    kept = {name: value for name, value in options.items() if name != "out"}
    return torch.normal(0.0, 1.0, size, **kept) * std + mean


def _normal_(x: Any, mean: Any = 0.0, std: Any = 1.0, *, generator: Any = None) -> Any:
    """`x.normal_` likewise."""
    if not _is_symbolic(mean, std) or not x.dtype.is_floating_point or not std >= 0:
        return NotImplemented
    with torch.no_grad():
        return x.normal_(0.0, 1.0, generator=generator).mul_(std).add_(mean)


def _is_symbolic(*numbers: Any) -> bool:
    return any(isinstance(number, torch.SymFloat) for number in numbers)


FLOAT_FORMS: Mapping[Any, Callable[..., Any]] = {
    torch.nn.functional.huber_loss: _huber,
    torch.nn.functional.smooth_l1_loss: _smooth_l1,
    torch.nn.functional.hardtanh: _hardtanh,
    torch.normal: _normal,
    Tensor.normal_: _normal_,
}
"""The forms, by the function that is called."""
