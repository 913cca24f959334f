"""Orthogonal polynomials by their recurrences."""

from __future__ import annotations

from dovetail_inductor.loop_ir.functions.function import Function

_DOUBLE = "like(x, limit) > 1e300"  # whether the result is of float64


def _recurrence(name: str, first: str, step: str, ends: str, result: str) -> Function:
    """p_0 = 1, p_1 = `first` and p_k+1 = `step` of `now` = p_k and `before` = p_k-1 (18.9.1), up to
    the whole part of n; 0 of a negative or infinite degree. `ends` may set n to 0 where `result`
    has a shorter way. In the type of the result two infinities follow on the first number beyond
    its range, and no number on these."""
    text = f"""
def {name}(x, n, limit):
    n = where(abs(n) < 9223372036854775808.0, trunc(n), like(n, -1.0))
    degree = n
{ends}
    twice = x + x
    before = like(x, 1.0)
    now = {first}
    k = like(x, 1.0)
    beyond = where(abs(now) > limit, like(x, 1.0), like(x, 0.0))
    going = k < n
    while some(going):
        for _ in range(4):
            next = {step}
            before = where(k < n, now, before)
            beyond = where((k < n) & (abs(next) > limit), beyond + 1.0, beyond)
            now = where(k < n, next, now)
            k = k + 1.0
        going = (k < n) & (now == now) & (beyond < 3.0)
    now = where(beyond > 0.0, now * INFINITY, now)
    now = where(beyond > 2.0, like(x, NAN), now)
    out = where(n < 1.0, like(x, 1.0), now)
{result}
    return where(degree < 0.0, like(x, 0.0), out)
"""
    return Function(name, text)


def _chebyshev(name: str, first: str, value: str) -> Function:
    """Recurrence 18.9.1 with A = 2, C = 1, whose errors grow with the square of the degree; within
    [-1, 1], for larger degrees, `value` of the angle, cosine |x| (18.5.1 to 18.5.4), whose sign
    below 0 is that of (-1)^n (table 18.6.1)."""
    ends = f"""
    most = where({_DOUBLE}, like(x, 8.0), like(x, 64.0))
    inside = (abs(x) <= 1.0) & (n > most)
    n = where(inside, like(n, 0.0), n)
"""
    result = f"""
    if some(inside):
        at = where(inside, abs(x), like(x, 0.0))
        angle = acos(at)
{value}
        odd = degree - 2.0 * floor(degree * 0.5)
        value = where(x < 0.0, value * (1.0 - 2.0 * odd), value)
        out = where(inside, value, out)
"""
    return _recurrence(name, first, "twice * now - before", ends, result)


def _halves(below: str, above: str) -> str:
    """The third and fourth kind: each is the other one's mirror image"""
    return f"""
        half = (degree + 0.5) * angle
        cosines = cos(half) / sqrt(0.5 + 0.5 * at)
        straight = at == 1.0
        sines = sin(half) / sqrt(0.5 - 0.5 * where(straight, like(x, 0.0), at))
        sines = where(straight, 2.0 * degree + 1.0, sines)
        value = where(x < 0.0, {below}, {above})
"""


_SECOND_KIND = """
        straight = at == 1.0
        safe = where(straight, like(x, 0.0), at)
        value = sin((degree + 1.0) * angle) / sqrt((1.0 - safe) * (1.0 + safe))
        value = where(straight, degree + 1.0, value)
"""
POLYNOMIALS = (
    _chebyshev("chebyshev_t", "x", "        value = cos(degree * angle)"),
    _chebyshev("chebyshev_u", "twice", _SECOND_KIND),
    _chebyshev("chebyshev_v", "twice - 1.0", _halves("sines", "cosines")),
    _chebyshev("chebyshev_w", "twice + 1.0", _halves("cosines", "sines")),
    _recurrence("hermite_h", "twice", "twice * now - (k + k) * before", "", ""),
    _recurrence("hermite_he", "x", "x * now - k * before", "", ""),
    # (written as small steps from the last.) L_n(0) = 1 and P_n(±1) = (±1)^n
    _recurrence("laguerre_l", "1.0 - x",
                "now + (k * (now - before) - x * now) / (k + 1.0)",
                "    n = where(x == 0.0, like(n, 0.0), n)\n"
                "    ends = (abs(x) == INFINITY) & (degree > 1.0)\n"
                "    n = where(ends, like(n, 0.0), n)",
                "    out = where(ends, like(x, NAN), out)\n"
                "    out = where(ends & (degree == 2.0), like(x, INFINITY), out)"),
    _recurrence("legendre_p", "x", "x * now + (x * now - before) * k / (k + 1.0)",
                "    n = where(abs(x) == 1.0, like(n, 0.0), n)",
                "    odd = degree - 2.0 * floor(degree * 0.5)\n"
                "    out = where(x == -1.0, 1.0 - 2.0 * odd, out)"),
)  # fmt: skip

SHIFTED = tuple(
    Function(
        f"shifted_chebyshev_{kind}",
        f"""
def shifted_chebyshev_{kind}(x, n, limit):
    return chebyshev_{kind}(x + x - 1.0, n, limit)
""",
        (f"chebyshev_{kind}",),
    )
    for kind in "tuvw"
)  # (18.1.1)
