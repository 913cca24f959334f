"""Functions as polynomials in float64: the interpolation at Chebyshev points.

The coefficients are computed with mpmath from the function itself when it is first needed, so that
there are no tables.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor

from dovetail_prims.ops.common import aten, where

DOUBLE = torch.float64
_POINTS = 40
_LONG = 8
_TINY = 2.0**-57  # beside the largest coefficient, a polynomial's end
Scaled = Callable[[Any, Any], Any]  # of the module mpmath and a number


@cache
def coefficients(function: Scaled, low: float, high: float) -> tuple[float, ...]:
    """The powers of t = (2 u - low - high) / (high - low) that give `function` on an interval."""
    import mpmath
    from mpmath import mpf

    with mpmath.workdps(30):
        angles = [mpmath.pi * (k + mpf(0.5)) / _POINTS for k in range(_POINTS)]
        middle, half = (mpf(low) + mpf(high)) / 2, (mpf(high) - mpf(low)) / 2
        values = [function(mpmath, middle + half * mpmath.cos(a)) for a in angles]
        series = []
        for j in range(_POINTS):
            terms = (v * mpmath.cos(j * a) for v, a in zip(values, angles, strict=True))
            series.append(mpmath.fsum(terms) * (1 if j == 0 else 2) / _POINTS)
        least = _TINY * max(map(abs, series))
        count = 1 + max(j for j, c in enumerate(series) if abs(c) > least)
        if count > _POINTS - 2:
            raise ValueError(f"no polynomial for {function} on [{low}, {high}]")
        powers = [mpf(0)] * count
        before, current = [mpf(1)], [mpf(0), mpf(1)]  # T_0 and T_1, by their powers
        for j in range(count):
            for k, c in enumerate(before):
                powers[k] += series[j] * c
            longer = [mpf(0), *(2 * c for c in current)]
            longer = [c - (before[k] if k < len(before) else 0) for k, c in enumerate(longer)]
            before, current = current, longer
        return tuple(map(float, powers))


def horner(t: Tensor, powers: tuple[float, ...]) -> Tensor:
    """The polynomial of t with these coefficients, that of t^0 first; of many the even powers and
    the odd ones by themselves, as each step waits for the one before it"""
    if len(powers) >= _LONG:
        square = aten.mul.Tensor(t, t)
        odd_part = aten.mul.Tensor(_chain(square, powers[1::2]), t)
        return aten.add.Tensor(_chain(square, powers[::2]), odd_part)
    return _chain(t, powers)


def _chain(t: Tensor, powers: tuple[float, ...]) -> Tensor:
    out: Tensor | None = None
    for power in reversed(powers):
        if out is None:
            out = aten.mul.Tensor(t, 0.0) if len(powers) == 1 else aten.full_like.default(t, power)
        else:
            out = aten.add.Tensor(aten.mul.Tensor(out, t), power)
    assert out is not None
    return out


def fit(function: Scaled, low: float, high: float, u: Tensor) -> Tensor:
    """`function` where u lies in the interval, anything elsewhere"""
    t = aten.mul.Tensor(aten.sub.Tensor(u, (low + high) / 2), 2 / (high - low))
    return horner(t, coefficients(function, low, high))


def mul(*factors: Any) -> Tensor:
    """The product, from the left"""
    out = factors[0]
    for factor in factors[1:]:
        out = aten.mul.Tensor(out, factor)
    return out  # type: ignore[no-any-return]


def over(a: Any, b: Tensor) -> Tensor:
    """a / b, for a tensor or number a"""
    if not isinstance(a, Tensor):
        return aten.mul.Tensor(aten.reciprocal.default(b), a)
    return aten.div.Tensor(a, b)


def odd(size: Tensor, x: Tensor) -> Tensor:
    """A size with the sign of x"""
    return where(aten.lt.Scalar(x, 0), aten.neg.default(size), size)


def power(x: Tensor, n: int) -> Tensor:
    """x^n by squares"""
    if n == 1:
        return x
    half = power(mul(x, x), n // 2)
    return mul(half, x) if n % 2 else half
