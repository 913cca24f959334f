"""Airy's function Ai."""

from __future__ import annotations

import math
from typing import Any

from torch import Tensor

from dovetail_prims.decompositions.special_functions.chebyshev import fit, mul, over
from dovetail_prims.ops.common import aten, where


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


def airy(x: Tensor) -> Tensor:
    """Ai(x)"""
    a = aten.abs.default(x)
    root = aten.sqrt.default(a)
    zeta = mul(a, root, 2 / 3)
    fourth = aten.sqrt.default(root)
    falling = fit(_airy_far, 0, 1, over(2.0, zeta))
    falling = over(mul(falling, aten.exp.default(aten.neg.default(zeta))), fourth)
    near = mul(fit(_airy_falling, 0, 2.1, x), aten.exp.default(aten.neg.default(x)))
    positive = where(aten.lt.Scalar(x, 2.1), near, falling)
    u = over(5.0, zeta)
    z = mul(u, u)
    turn = aten.sub.Tensor(zeta, math.pi / 4)
    cosine = mul(fit(_airy_cosine, 0, 1, z), aten.cos.default(turn))
    sine = mul(fit(_airy_sine, 0, 1, z), u, aten.sin.default(turn))
    waves = over(mul(aten.add.Tensor(cosine, sine), 1 / math.sqrt(math.pi)), fourth)
    near = where(aten.gt.Scalar(x, -2.0), fit(_airy_middle, -2, 0, x), fit(_airy_middle, -4, -2, x))
    negative = where(aten.gt.Scalar(x, -4.0), near, waves)
    return where(aten.gt.Scalar(x, 0), positive, negative)
