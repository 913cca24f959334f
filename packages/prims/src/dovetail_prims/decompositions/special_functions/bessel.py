"""Bessel functions of order 0 and 1: I, K (and these times exponentials), J, Y, spherical j."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from torch import Tensor

from dovetail_prims.decompositions.special_functions.chebyshev import Scaled, fit, mul, odd, over
from dovetail_prims.ops.common import aten, where

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
        small = where(aten.le.Scalar(a, 4.0), fit(near, 0, 4, a), fit(near, 4, 10, a))
        small = mul(small, a) if order else small
        large = over(fit(far, 0, 1, over(10.0, a)), aten.sqrt.default(a))
        out = where(aten.le.Scalar(a, 10.0), small, large)
        return odd(out, x) if order else out

    return value


i0e, i1e = _i_scaled(0), _i_scaled(1)


def grown(scaled: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    """The function whose exp(-|x|)-fold is given"""
    return lambda x: mul(scaled(x), aten.exp.default(aten.abs.default(x)))


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
        z = mul(x, x)
        log = mul(aten.log.default(mul(x, 0.5)), fit(first, 0, 4, z))
        own = fit(rest, 0, 4, z)
        if order:
            small = aten.add.Tensor(over(own, x), mul(log, x))
        else:
            small = aten.sub.Tensor(own, log)
        large = over(fit(far, 0, 1, over(2.0, x)), aten.sqrt.default(x))
        out = where(aten.le.Scalar(x, 2.0), mul(small, aten.exp.default(x)), large)
        return where(aten.eq.Scalar(x, 0), math.inf, out)

    return value


def shrunk(scaled: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    """The function whose exp(x)-fold is given"""
    return lambda x: mul(scaled(x), aten.exp.default(aten.neg.default(x)))


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
        u = over(5.0, x)
        z = mul(u, u)
        c, s = aten.cos.default(x), aten.sin.default(x)
        plus, minus = aten.add.Tensor(s, c), aten.sub.Tensor(s, c)
        cosine, sine = (minus, aten.neg.default(plus)) if order else (plus, minus)
        own, other = fit(p, 0, 1, z), mul(fit(q, 0, 1, z), u)
        if second:
            total = aten.add.Tensor(mul(own, sine), mul(other, cosine))
        else:
            total = aten.sub.Tensor(mul(own, cosine), mul(other, sine))
        return over(mul(total, 1 / math.sqrt(math.pi)), aten.sqrt.default(x))

    def j(x: Tensor) -> Tensor:
        a = aten.abs.default(x)
        near = fit(j_near, 0, 25, mul(a, a))
        near = mul(near, a) if order else near
        out = where(aten.le.Scalar(a, 5.0), near, far(a, False))
        return odd(out, x) if order else out

    def y(x: Tensor) -> Tensor:
        z = mul(x, x)
        log = mul(aten.log.default(x), fit(j_near, 0, 25, z), 2 / math.pi)
        near = aten.add.Tensor(fit(y_rest, 0, 25, z), log)
        if order:
            near = aten.sub.Tensor(mul(near, x), over(2 / math.pi, x))
        out = where(aten.le.Scalar(x, 5.0), near, far(x, True))
        return where(aten.eq.Scalar(x, 0), -math.inf, out)

    return j, y


j0, y0 = _bessel(0)
j1, y1 = _bessel(1)


def spherical_j0(x: Tensor) -> Tensor:
    """sin x / x"""
    ratio = over(aten.sin.default(x), x)
    ratio = where(aten.isinf.default(x), 0.0, ratio)
    return where(aten.eq.Scalar(x, 0), 1.0, ratio)


i0, i1 = grown(i0e), grown(i1e)
k0e, k1e = _k_scaled(0), _k_scaled(1)
