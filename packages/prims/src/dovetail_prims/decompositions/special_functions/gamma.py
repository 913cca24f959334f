"""The gamma function's relatives: digamma, polygamma, the multivariate log-gamma."""

from __future__ import annotations

import math
from typing import Any

from torch import Tensor

from dovetail_prims.decompositions.special_functions.chebyshev import (
    DOUBLE,
    horner,
    mul,
    over,
    power,
)
from dovetail_prims.ops.common import aten, cast, constant, contiguous, floating, where


def _bernoulli(n: int) -> float:
    import mpmath

    return float(mpmath.bernoulli(n))


def _polygamma_positive(n: int, x: Tensor) -> Tensor:
    """n! ζ(n + 1, x): terms up to some x + N, and the rest by Euler and Maclaurin (25.11.5)"""
    terms = 10 + n
    total: Tensor | None = None
    for k in range(terms):
        term = power(aten.reciprocal.default(aten.add.Tensor(x, float(k))), n + 1)
        total = term if total is None else aten.add.Tensor(total, term)
    assert total is not None
    y = aten.add.Tensor(x, float(terms))
    # y^-n / n + y^-(n+1) / 2 + sum of B_2j (n+1) ... (n+2j-1) / (2j)! y^-(n+2j)
    inverse = aten.reciprocal.default(y)
    last, square = power(inverse, n + 1), mul(inverse, inverse)
    series = []
    for j in range(1, 13):
        rising = math.prod(range(n + 1, n + 2 * j))
        series.append(_bernoulli(2 * j) * rising / math.factorial(2 * j))
    bent = mul(horner(square, tuple(series)), inverse)
    rest = aten.add.Tensor(aten.add.Tensor(mul(y, 1 / n), 0.5), bent)
    return mul(aten.add.Tensor(total, mul(last, rest)), float(math.factorial(n)))


def _cotangent(x: Tensor) -> Tensor:
    """cot(πx)"""
    turn = mul(aten.sub.Tensor(x, aten.round.default(x)), math.pi)
    return over(aten.cos.default(turn), aten.sin.default(turn))


def digamma(x: Tensor) -> Tensor:
    """By recurrence (5.5.2) up to the series (5.11.2); below 0 by reflection (5.5.4)"""
    below = aten.lt.Scalar(x, 0)
    at = where(below, aten.sub.Tensor(1.0, x), x)
    total: Tensor | None = None
    for k in range(10):
        term = aten.reciprocal.default(aten.add.Tensor(at, float(k)))
        total = term if total is None else aten.add.Tensor(total, term)
    assert total is not None
    y = aten.add.Tensor(at, 10.0)
    inverse = aten.reciprocal.default(y)
    square = mul(inverse, inverse)
    series = tuple(_bernoulli(2 * j) / (2 * j) for j in range(1, 9))
    bent = aten.add.Tensor(mul(horner(square, series), square), mul(inverse, 0.5))
    value = aten.sub.Tensor(aten.sub.Tensor(aten.log.default(y), bent), total)
    mirrored = aten.sub.Tensor(value, mul(_cotangent(x), math.pi))
    pole = aten.eq.Tensor(x, aten.round.default(x))
    out = where(below, where(pole, math.nan, mirrored), value)
    return where(aten.eq.Scalar(x, 0), over(-1.0, x), out)  # an infinity, by the sign of 0


def polygamma(n: int, self: Tensor) -> Any:
    """The derivatives of digamma; below 1/2 by reflection (5.15.6)"""
    if n == 0:
        return aten.digamma.default(self)
    given = floating(self)
    x = cast(given, DOUBLE)
    if n > 20:  # (powers beyond what float64 holds well)
        zeta = aten.special_zeta.default(constant(n + 1.0, x), x)
        factor = (1.0 if n % 2 else -1.0) * _factorial(n)
        return cast(mul(zeta, factor), given.dtype)
    mirrored = aten.lt.Scalar(x, 0.5)
    at = where(mirrored, aten.sub.Tensor(1.0, x), x)
    sign = 1.0 if n % 2 else -1.0
    value = mul(_polygamma_positive(n, at), sign)
    # d^n cot(πz) = π^n P(cot(πz)), where P_0(c) = c and P_k+1 = -(1 + c²) P_k'
    powers = [0, 1]
    for _ in range(n):
        slope = [k * c for k, c in enumerate(powers)][1:]
        longer = [*slope, 0, 0]
        powers = [-c - (longer[k - 2] if k > 1 else 0) for k, c in enumerate(longer)]
    cot = _cotangent(x)
    square = mul(cot, cot)
    odd = powers[1] != 0 or powers[0] == 0
    held = tuple(float(c) for c in powers[odd % 2 :: 2])
    bend = horner(square, held)
    bend = mul(bend, cot) if odd else bend
    below = aten.sub.Tensor(mul(value, -sign), mul(bend, math.pi ** (n + 1)))
    out = where(mirrored, below, value)
    # At the infinities, eager's values.
    end, there = (math.inf, 0.0) if n == 1 else (-math.inf, sign * math.inf)
    out = where(aten.eq.Scalar(x, end), there, out)
    return cast(out, given.dtype)


def _factorial(n: int) -> float:
    """n!, or infinity"""
    return float(math.factorial(n)) if n <= 170 else math.inf


def mvlgamma(self: Tensor, p: int) -> Tensor:
    """p (p - 1) / 4 log π + the sum of log Γ(x - j / 2)"""
    given = floating(self)
    x = cast(given, DOUBLE)
    total = aten.lgamma.default(x)
    for j in range(1, p):
        total = aten.add.Tensor(total, aten.lgamma.default(aten.sub.Tensor(x, j / 2)))
    return contiguous(
        cast(aten.add.Tensor(total, p * (p - 1) / 4 * math.log(math.pi)), given.dtype)
    )
