"""Bessel, Airy, error and gamma functions as polynomials in float64, rounded once.

A function is cut into pieces, scaled on each (by its leading behaviour) to something smooth that
varies little, and this is a polynomial: the interpolation at Chebyshev points, whose coefficients
are computed with mpmath from the function itself when it is first needed. So there are no tables.
Numbers like (10.8.2) are equations of the NIST Digital Library of Mathematical Functions.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor

from ._common import Family, aten, cast, constant, contiguous, floating, made_for, where

_DOUBLE = torch.float64
_POINTS = 40
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


def _horner(t: Tensor, powers: tuple[float, ...]) -> Tensor:
    out: Tensor | None = None
    for power in reversed(powers):
        if out is None:
            out = aten.mul.Tensor(t, 0.0) if len(powers) == 1 else aten.full_like.default(t, power)
        else:
            out = aten.add.Tensor(aten.mul.Tensor(out, t), power)
    assert out is not None
    return out


def _fit(function: Scaled, low: float, high: float, u: Tensor) -> Tensor:
    """`function` where u lies in the interval, anything elsewhere"""
    t = aten.mul.Tensor(aten.sub.Tensor(u, (low + high) / 2), 2 / (high - low))
    return _horner(t, coefficients(function, low, high))


def _mul(*factors: Any) -> Tensor:
    out = factors[0]
    for factor in factors[1:]:
        out = aten.mul.Tensor(out, factor)
    return out  # type: ignore[no-any-return]


def _over(a: Any, b: Tensor) -> Tensor:
    if not isinstance(a, Tensor):
        return aten.mul.Tensor(aten.reciprocal.default(b), a)
    return aten.div.Tensor(a, b)


def _odd(size: Tensor, x: Tensor) -> Tensor:
    """A size with the sign of x"""
    return where(aten.lt.Scalar(x, 0), aten.neg.default(size), size)


def _power(x: Tensor, n: int) -> Tensor:
    """x^n by squares"""
    if n == 1:
        return x
    half = _power(_mul(x, x), n // 2)
    return _mul(half, x) if n % 2 else half


# --- modified Bessel functions


def _i_scaled(order: int) -> Callable[[Tensor], Tensor]:
    """exp(-|x|) I(x), as x to the order by something even near 0, as over sqrt(x) far away"""

    def near(m: Any, u: Any) -> Any:
        return m.besseli(order, u) * m.exp(-u) / u**order

    def far(m: Any, u: Any) -> Any:
        x = 10 / u
        return m.besseli(order, x) * m.exp(-x) * m.sqrt(x)

    def value(x: Tensor) -> Tensor:
        a = aten.abs.default(x)
        small = where(aten.le.Scalar(a, 4.0), _fit(near, 0, 4, a), _fit(near, 4, 10, a))
        small = _mul(small, a) if order else small
        large = _over(_fit(far, 0, 1, _over(10.0, a)), aten.sqrt.default(a))
        out = where(aten.le.Scalar(a, 10.0), small, large)
        return _odd(out, x) if order else out

    return value


_i0e, _i1e = _i_scaled(0), _i_scaled(1)


def _grown(scaled: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    return lambda x: _mul(scaled(x), aten.exp.default(aten.abs.default(x)))


def _k_scaled(order: int) -> Callable[[Tensor], Tensor]:
    """exp(x) K(x): a logarithm times I and something even (10.31.1, 10.31.2), or over sqrt(x)"""

    def first(m: Any, z: Any) -> Any:  # I(x) / x^order
        return m.besseli(order, m.sqrt(z)) / m.sqrt(z) ** order

    def rest(m: Any, z: Any) -> Any:
        x, sign = m.sqrt(z), (-1) ** order
        return (m.besselk(order, x) + sign * m.log(x / 2) * m.besseli(order, x)) * x**order

    def far(m: Any, u: Any) -> Any:
        x = 2 / u
        return m.besselk(order, x) * m.exp(x) * m.sqrt(x)

    def value(x: Tensor) -> Tensor:
        z = _mul(x, x)
        log = _mul(aten.log.default(_mul(x, 0.5)), _fit(first, 0, 4, z))
        own = _fit(rest, 0, 4, z)
        if order:
            small = aten.add.Tensor(_over(own, x), _mul(log, x))
        else:
            small = aten.sub.Tensor(own, log)
        large = _over(_fit(far, 0, 1, _over(2.0, x)), aten.sqrt.default(x))
        out = where(aten.le.Scalar(x, 2.0), _mul(small, aten.exp.default(x)), large)
        return where(aten.eq.Scalar(x, 0), math.inf, out)

    return value


def _shrunk(scaled: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    return lambda x: _mul(scaled(x), aten.exp.default(aten.neg.default(x)))


# --- Bessel functions


def _amplitudes(order: int) -> tuple[Scaled, Scaled]:
    """P and Q of 10.17.3, from J and Y: the first as it is, the second over 5/x"""

    def both(m: Any, z: Any) -> tuple[Any, Any, Any]:
        u = m.sqrt(z)
        x = 5 / u
        turn = x - (2 * order + 1) * m.pi / 4
        j, y, c, s = m.besselj(order, x), m.bessely(order, x), m.cos(turn), m.sin(turn)
        scale = m.sqrt(m.pi * x / 2)
        return scale * (j * c + y * s), scale * (y * c - j * s), u

    def p(m: Any, z: Any) -> Any:
        return both(m, z)[0]

    def q(m: Any, z: Any) -> Any:
        _, own, u = both(m, z)
        return own / u

    return p, q


def _bessel(order: int) -> tuple[Callable[[Tensor], Tensor], Callable[[Tensor], Tensor]]:
    """J and Y"""
    p, q = _amplitudes(order)

    def j_near(m: Any, z: Any) -> Any:
        return m.besselj(order, m.sqrt(z)) / m.sqrt(z) ** order

    def y_rest(m: Any, z: Any) -> Any:  # (10.8.1)
        x = m.sqrt(z)
        known = 2 / m.pi * m.log(x) * m.besselj(order, x) - (2 / m.pi / x if order else 0)
        return (m.bessely(order, x) - known) / x**order

    def far(x: Tensor, second: bool) -> Tensor:
        """sqrt(2/(πx)) (P cos - Q sin), or (P sin + Q cos), of x - (2 order + 1) π/4"""
        u = _over(5.0, x)
        z = _mul(u, u)
        c, s = aten.cos.default(x), aten.sin.default(x)
        plus, minus = aten.add.Tensor(s, c), aten.sub.Tensor(s, c)
        cosine, sine = (minus, aten.neg.default(plus)) if order else (plus, minus)
        own, other = _fit(p, 0, 1, z), _mul(_fit(q, 0, 1, z), u)
        if second:
            total = aten.add.Tensor(_mul(own, sine), _mul(other, cosine))
        else:
            total = aten.sub.Tensor(_mul(own, cosine), _mul(other, sine))
        return _over(_mul(total, 1 / math.sqrt(math.pi)), aten.sqrt.default(x))

    def j(x: Tensor) -> Tensor:
        a = aten.abs.default(x)
        near = _fit(j_near, 0, 25, _mul(a, a))
        near = _mul(near, a) if order else near
        out = where(aten.le.Scalar(a, 5.0), near, far(a, False))
        return _odd(out, x) if order else out

    def y(x: Tensor) -> Tensor:
        z = _mul(x, x)
        log = _mul(aten.log.default(x), _fit(j_near, 0, 25, z), 2 / math.pi)
        near = aten.add.Tensor(_fit(y_rest, 0, 25, z), log)
        if order:
            near = aten.sub.Tensor(_mul(near, x), _over(2 / math.pi, x))
        out = where(aten.le.Scalar(x, 5.0), near, far(x, True))
        return where(aten.eq.Scalar(x, 0), -math.inf, out)

    return j, y


_j0, _y0 = _bessel(0)
_j1, _y1 = _bessel(1)


def _spherical_j0(x: Tensor) -> Tensor:
    """sin x / x"""
    ratio = _over(aten.sin.default(x), x)
    ratio = where(aten.isinf.default(x), 0.0, ratio)
    return where(aten.eq.Scalar(x, 0), 1.0, ratio)


# --- the Airy function


def _airy_middle(m: Any, x: Any) -> Any:
    return m.airyai(x)


def _airy_falling(m: Any, x: Any) -> Any:
    return m.airyai(x) * m.exp(x)


def _airy_far(m: Any, u: Any) -> Any:
    """of 2 / ζ (9.7.5)"""
    zeta = 2 / u
    x = (3 * zeta / 2) ** (m.mpf(2) / 3)
    return m.airyai(x) * m.exp(zeta) * m.root(x, 4)


def _airy_waves(m: Any, z: Any) -> tuple[Any, Any, Any]:
    """the factors of cos and sin of ζ - π/4 in (9.7.9), of (5 / ζ)²"""
    u = m.sqrt(z)
    zeta = 5 / u
    x = (3 * zeta / 2) ** (m.mpf(2) / 3)
    c, s = m.cos(zeta - m.pi / 4), m.sin(zeta - m.pi / 4)
    scale = m.sqrt(m.pi) * m.root(x, 4)
    a, b = scale * m.airyai(-x), scale * m.airybi(-x)
    return a * c - b * s, a * s + b * c, u


def _airy_cosine(m: Any, z: Any) -> Any:
    return _airy_waves(m, z)[0]


def _airy_sine(m: Any, z: Any) -> Any:
    _, own, u = _airy_waves(m, z)
    return own / u


def _airy(x: Tensor) -> Tensor:
    """Ai(x)"""
    a = aten.abs.default(x)
    root = aten.sqrt.default(a)
    zeta = _mul(a, root, 2 / 3)
    fourth = aten.sqrt.default(root)
    falling = _fit(_airy_far, 0, 1, _over(2.0, zeta))
    falling = _over(_mul(falling, aten.exp.default(aten.neg.default(zeta))), fourth)
    near = _mul(_fit(_airy_falling, 0, 2.1, x), aten.exp.default(aten.neg.default(x)))
    positive = where(aten.lt.Scalar(x, 2.1), near, falling)
    u = _over(5.0, zeta)
    z = _mul(u, u)
    turn = aten.sub.Tensor(zeta, math.pi / 4)
    cosine = _mul(_fit(_airy_cosine, 0, 1, z), aten.cos.default(turn))
    sine = _mul(_fit(_airy_sine, 0, 1, z), u, aten.sin.default(turn))
    waves = _over(_mul(aten.add.Tensor(cosine, sine), 1 / math.sqrt(math.pi)), fourth)
    near = where(
        aten.gt.Scalar(x, -2.0), _fit(_airy_middle, -2, 0, x), _fit(_airy_middle, -4, -2, x)
    )
    negative = where(aten.gt.Scalar(x, -4.0), near, waves)
    return where(aten.gt.Scalar(x, 0), positive, negative)


# --- error functions


def _erfcx_of(m: Any, u: Any) -> Any:
    """of u = 4 / (4 + x), over u"""
    x = 4 / u - 4
    return m.exp(x * x) * m.erfc(x) / u


def _erfcx(x: Tensor) -> Tensor:
    """exp(x²) erfc(x)"""
    a = aten.abs.default(x)
    u = _over(4.0, aten.add.Tensor(a, 4.0))
    near = aten.gt.Scalar(u, 0.4)
    out = _mul(where(near, _fit(_erfcx_of, 0.4, 1, u), _fit(_erfcx_of, 0, 0.4, u)), u)
    mirrored = aten.sub.Tensor(_mul(aten.exp.default(_mul(x, x)), 2.0), out)
    return where(aten.lt.Scalar(x, 0), mirrored, out)


def _log_ndtr(x: Tensor) -> Tensor:
    """The logarithm of the normal distribution"""
    scaled = _mul(x, 1 / math.sqrt(2))
    tail = aten.log.default(_mul(_erfcx(aten.neg.default(scaled)), 0.5))
    tail = aten.sub.Tensor(tail, _mul(scaled, scaled))
    rest = aten.log1p.default(_mul(aten.erfc.default(scaled), -0.5))
    return where(aten.lt.Scalar(x, -1.0), tail, rest)


def _ndtri_middle(m: Any, z: Any) -> Any:
    q = m.sqrt(z)
    return m.sqrt(2) * m.erfinv(2 * q) / q


def _ndtri_tail(m: Any, w: Any) -> Any:
    """x with log(Φ(-x)) = -w²/2, over w"""

    def off(x: Any) -> Any:
        return m.log(m.erfc(x / m.sqrt(2)) / 2) + w * w / 2

    start = w - (m.log(w) + 1) / w
    return m.findroot(off, start) / w


def _ndtri_far(m: Any, u: Any) -> Any:
    return _ndtri_tail(m, 5 / u)


def _ndtri(p: Tensor) -> Tensor:
    """The inverse of the normal distribution: of p - 1/2, or of sqrt(-2 log p) in the tails"""
    q = aten.sub.Tensor(p, 0.5)
    middle = _mul(_fit(_ndtri_middle, 0, 0.135, _mul(q, q)), q)
    tail = aten.minimum.default(p, aten.sub.Tensor(1.0, p))
    w = aten.sqrt.default(_mul(aten.log.default(tail), -2.0))
    near, far = _fit(_ndtri_tail, 1.98, 5, w), _fit(_ndtri_far, 0.125, 1, _over(5.0, w))
    size = _mul(where(aten.le.Scalar(w, 5.0), near, far), w)
    out = where(aten.le.Scalar(_mul(q, q), 0.13), middle, _odd(size, q))
    out = where(aten.eq.Scalar(p, 0), -math.inf, where(aten.eq.Scalar(p, 1), math.inf, out))
    outside = aten.logical_or.default(aten.lt.Scalar(p, 0), aten.gt.Scalar(p, 1))
    return where(outside, math.nan, out)


# --- the gamma function's relatives


def _bernoulli(n: int) -> float:
    import mpmath

    return float(mpmath.bernoulli(n))


def _polygamma_positive(n: int, x: Tensor) -> Tensor:
    """n! ζ(n + 1, x): terms up to some x + N, and the rest by Euler and Maclaurin (25.11.5)"""
    terms = 10 + n
    total: Tensor | None = None
    for k in range(terms):
        term = _power(aten.reciprocal.default(aten.add.Tensor(x, float(k))), n + 1)
        total = term if total is None else aten.add.Tensor(total, term)
    assert total is not None
    y = aten.add.Tensor(x, float(terms))
    # y^-n / n + y^-(n+1) / 2 + sum of B_2j (n+1) ... (n+2j-1) / (2j)! y^-(n+2j)
    inverse = aten.reciprocal.default(y)
    last, square = _power(inverse, n + 1), _mul(inverse, inverse)
    series = []
    for j in range(1, 13):
        rising = math.prod(range(n + 1, n + 2 * j))
        series.append(_bernoulli(2 * j) * rising / math.factorial(2 * j))
    bent = _mul(_horner(square, tuple(series)), inverse)
    rest = aten.add.Tensor(aten.add.Tensor(_mul(y, 1 / n), 0.5), bent)
    return _mul(aten.add.Tensor(total, _mul(last, rest)), float(math.factorial(n)))


def _cotangent(x: Tensor) -> Tensor:
    """cot(πx)"""
    turn = _mul(aten.sub.Tensor(x, aten.round.default(x)), math.pi)
    return _over(aten.cos.default(turn), aten.sin.default(turn))


def _digamma(x: Tensor) -> Tensor:
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
    square = _mul(inverse, inverse)
    series = tuple(_bernoulli(2 * j) / (2 * j) for j in range(1, 9))
    bent = aten.add.Tensor(_mul(_horner(square, series), square), _mul(inverse, 0.5))
    value = aten.sub.Tensor(aten.sub.Tensor(aten.log.default(y), bent), total)
    mirrored = aten.sub.Tensor(value, _mul(_cotangent(x), math.pi))
    pole = aten.eq.Tensor(x, aten.round.default(x))
    out = where(below, where(pole, math.nan, mirrored), value)
    return where(aten.eq.Scalar(x, 0), _over(-1.0, x), out)  # an infinity, by the sign of 0


def polygamma(n: int, self: Tensor) -> Any:
    """The derivatives of digamma; below 1/2 by reflection (5.15.6)"""
    if n == 0:
        return aten.digamma.default(self)
    given = floating(self)
    x = cast(given, _DOUBLE)
    if n > 20:  # (powers beyond what float64 holds well)
        zeta = aten.special_zeta.default(constant(n + 1.0, x), x)
        factor = (1.0 if n % 2 else -1.0) * _factorial(n)
        return cast(_mul(zeta, factor), given.dtype)
    mirrored = aten.lt.Scalar(x, 0.5)
    at = where(mirrored, aten.sub.Tensor(1.0, x), x)
    sign = 1.0 if n % 2 else -1.0
    value = _mul(_polygamma_positive(n, at), sign)
    # d^n cot(πz) = π^n P(cot(πz)), where P_0(c) = c and P_k+1 = -(1 + c²) P_k'
    powers = [0, 1]
    for _ in range(n):
        slope = [k * c for k, c in enumerate(powers)][1:]
        longer = [*slope, 0, 0]
        powers = [-c - (longer[k - 2] if k > 1 else 0) for k, c in enumerate(longer)]
    cot = _cotangent(x)
    square = _mul(cot, cot)
    odd = powers[1] != 0 or powers[0] == 0
    held = tuple(float(c) for c in powers[odd % 2 :: 2])
    bend = _horner(square, held)
    bend = _mul(bend, cot) if odd else bend
    below = aten.sub.Tensor(_mul(value, -sign), _mul(bend, math.pi ** (n + 1)))
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
    x = cast(given, _DOUBLE)
    total = aten.lgamma.default(x)
    for j in range(1, p):
        total = aten.add.Tensor(total, aten.lgamma.default(aten.sub.Tensor(x, j / 2)))
    return contiguous(
        cast(aten.add.Tensor(total, p * (p - 1) / 4 * math.log(math.pi)), given.dtype)
    )


def _special(name: str, function: Callable[[Tensor], Tensor], says: str) -> Family:
    """An entry that computes in float64 and rounds once"""

    def entry(x: Tensor) -> Any:
        if x.dtype.itemsize == 2 and x.is_floating_point() and name in _CANCELLING:
            return NotImplemented
        given = floating(x)
        return cast(function(cast(given, _DOUBLE)), given.dtype)

    entry.__doc__ = says
    return made_for(f"{name}.default", entry)


# Their derivatives are differences of them, of which half types leave little but the roundings:
# those of eager's kernels, then.
_CANCELLING = ("special_i0e", "special_i1e")
_i0, _i1 = _grown(_i0e), _grown(_i1e)
_k0e, _k1e = _k_scaled(0), _k_scaled(1)
_UNARY: tuple[tuple[str, Callable[[Tensor], Tensor], str], ...] = (
    ("i0", _i0, "Bessel's I_0"), ("special_modified_bessel_i0", _i0, "Bessel's I_0"),
    ("special_i1", _i1, "Bessel's I_1"), ("special_modified_bessel_i1", _i1, "Bessel's I_1"),
    ("special_i0e", _i0e, "exp(-\\|x\\|) I_0(x)"), ("special_i1e", _i1e, "exp(-\\|x\\|) I_1(x)"),
    ("special_modified_bessel_k0", _shrunk(_k0e), "Bessel's K_0"),
    ("special_modified_bessel_k1", _shrunk(_k1e), "Bessel's K_1"),
    ("special_scaled_modified_bessel_k0", _k0e, "exp(x) K_0(x)"),
    ("special_scaled_modified_bessel_k1", _k1e, "exp(x) K_1(x)"),
    ("special_bessel_j0", _j0, "Bessel's J_0"), ("special_bessel_j1", _j1, "Bessel's J_1"),
    ("special_bessel_y0", _y0, "Bessel's Y_0"), ("special_bessel_y1", _y1, "Bessel's Y_1"),
    ("special_spherical_bessel_j0", _spherical_j0, "sin x / x"),
    ("special_airy_ai", _airy, "Airy's Ai"),
    ("digamma", _digamma, "Γ'(x) / Γ(x)"),
    ("special_erfcx", _erfcx, "exp(x²) erfc(x)"),
    ("special_log_ndtr", _log_ndtr, "the logarithm of the normal distribution"),
    ("special_ndtri", _ndtri, "the inverse of the normal distribution"),
)  # fmt: skip

TABLE: Family = {
    **{op: entry for row in _UNARY for op, entry in _special(*row).items()},
    "polygamma.default": polygamma,
    "mvlgamma.default": mvlgamma,
}
