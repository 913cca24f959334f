"""The scaled error function, the normal distribution's logarithm and its inverse."""

from __future__ import annotations

import math
from typing import Any

from torch import Tensor

from dovetail_prims.decompositions.special_functions.chebyshev import fit, mul, odd, over
from dovetail_prims.ops.common import aten, where


def _erfcx_of(m: Any, u: Any) -> Any:
    """of u = 4 / (4 + x), over u"""
    x = 4 / u - 4
    return m.exp(x * x) * m.erfc(x) / u


def erfcx(x: Tensor) -> Tensor:
    """exp(x²) erfc(x)"""
    a = aten.abs.default(x)
    u = over(4.0, aten.add.Tensor(a, 4.0))
    near = aten.gt.Scalar(u, 0.4)
    out = mul(where(near, fit(_erfcx_of, 0.4, 1, u), fit(_erfcx_of, 0, 0.4, u)), u)
    mirrored = aten.sub.Tensor(mul(aten.exp.default(mul(x, x)), 2.0), out)
    return where(aten.lt.Scalar(x, 0), mirrored, out)


def log_ndtr(x: Tensor) -> Tensor:
    """The logarithm of the normal distribution"""
    scaled = mul(x, 1 / math.sqrt(2))
    tail = aten.log.default(mul(erfcx(aten.neg.default(scaled)), 0.5))
    tail = aten.sub.Tensor(tail, mul(scaled, scaled))
    rest = aten.log1p.default(mul(aten.erfc.default(scaled), -0.5))
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


def ndtri(p: Tensor) -> Tensor:
    """The inverse of the normal distribution: of p - 1/2, or of sqrt(-2 log p) in the tails"""
    q = aten.sub.Tensor(p, 0.5)
    middle = mul(fit(_ndtri_middle, 0, 0.135, mul(q, q)), q)
    tail = aten.minimum.default(p, aten.sub.Tensor(1.0, p))
    w = aten.sqrt.default(mul(aten.log.default(tail), -2.0))
    near, far = fit(_ndtri_tail, 1.98, 5, w), fit(_ndtri_far, 0.125, 1, over(5.0, w))
    size = mul(where(aten.le.Scalar(w, 5.0), near, far), w)
    out = where(aten.le.Scalar(mul(q, q), 0.13), middle, odd(size, q))
    out = where(aten.eq.Scalar(p, 0), -math.inf, where(aten.eq.Scalar(p, 1), math.inf, out))
    outside = aten.logical_or.default(aten.lt.Scalar(p, 0), aten.gt.Scalar(p, 1))
    return where(outside, math.nan, out)
