"""Hurwitz' zeta function, by Euler and Maclaurin."""

from __future__ import annotations

from functools import cache

from dovetail_inductor.loop_ir.functions.function import Function

_EULER_MACLAURIN = 12


@cache
def _zeta_tables() -> dict[str, float]:
    from mpmath import bernoulli, factorial

    return {
        f"B{j}": float(bernoulli(2 * j) / factorial(2 * j)) for j in range(1, _EULER_MACLAURIN + 1)
    }


_BENT = "\n".join(
    f"    t = t * ((x + {2.0 * j - 3}) * w) * ((x + {2.0 * j - 2}) * w)\n    bent = bent + B{j} * t"
    for j in range(2, _EULER_MACLAURIN + 1)
)
ZETA_TERMS = Function(
    "zeta_terms",
    f"""
def zeta_terms(x, q, ahead):
    '''Of x > 1: terms (25.11.1) until they are nothing beside their sum, or as far as Euler's and
    Maclaurin's formula (25.11.5) gives the rest: to 1e-17 from `ahead` = 8 on, 2e-11 from 3.'''
    k = like(q, 0.0)
    y = q
    total = like(q, 0.0)
    going = y < x + ahead
    while some(going):
        term = pow(y, -x)
        total = where(going, total + term, total)
        k = k + 1.0
        y = where(going, q + k, y)
        going = going & (y < x + ahead)
        going = going & ((y < 1.0) | (abs(term) > abs(total) * 8.673617379884035e-19))
    w = 1.0 / y
    t = x * w
    bent = B1 * t
{_BENT}
    rest = pow(y, -x) * (y / (x - 1.0) + 0.5 + bent)
    return where(y < x + ahead, total, total + rest)
""",
    tables=_zeta_tables,
)
ZETA = Function(
    "zeta",
    """
def zeta(x, q, limit):
    '''Below 0, powers are of whole x alone. Far below, the sum over all whole numbers, which goes
    on in q with period 1, without the sum over those below q.'''
    ahead = where(like(x, limit) > 1e300, like(x, 8.0), like(x, 3.0))
    whole = (q != floor(q)) & (x == floor(x))
    ok = (x > 1.0) & ((q > 0.0) | (whole & (q > -48.0)))
    out = zeta_terms(where(ok, x, like(x, 2.0)), where(ok, q, like(q, 16.0)), ahead)
    out = where(x == x, where(q == q, out, q), x)
    below = (x > 1.0) & whole & (q <= -48.0)
    if some(below):
        m = where(below, x, like(x, 2.0))
        at = where(below, q, like(q, -0.25))
        f = at - round(at)
        sign = 1.0 - 2.0 * (m - 2.0 * floor(m * 0.5))
        beside = pow(1.0 + f, -m) + sign * pow(1.0 - f, -m)
        mirrored = zeta_terms(m, 2.0 - f, ahead) - zeta_terms(m, 1.0 - at, ahead)
        own = pow(f, -m) + beside + (zeta_terms(m, 2.0 + f, ahead) + sign * mirrored)
        out = where(below, own, out)
    # (an infinite x: as eager's)
    end = where(q > 1.0, like(x, NAN), where(q == 1.0, like(x, 1.0), like(x, INFINITY)))
    out = where((x == INFINITY) & (q == q), end, out)
    out = where((q < 0.0) & (x != floor(x)), like(x, NAN), out)
    out = where((q <= 0.0) & (q == floor(q)), like(x, INFINITY), out)
    out = where(x < 1.0, like(x, NAN), out)
    return where(x == 1.0, like(x, INFINITY), out)
""",
    ("zeta_terms",),
)
