"""Scalar functions that loop as long as their arguments say, each written once for every target.

A function is text in a small part of Python: assignments, `while some(...)`, `if some(...)`,
`for _ in range(4)` and one `return`, over float64 numbers (of one lane or of all of a block) and
truths. `some` is true where a truth holds in any lane, so that a loop runs until its last lane is
done; what a lane that is done computes is not kept (`where`). `like(x, c)` is the number c in the
shape of x; `horner(x, NAME)` the polynomial of the coefficients NAME, `nested(u, x, NAME)` the
polynomial in u whose coefficients are polynomials in x. `codegen_cpp.functions` and
`codegen_triton.functions` print it.

Numbers like (5.11.1) are equations of the NIST Digital Library of Mathematical Functions.
"""

from __future__ import annotations

import ast
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

Numbers = tuple[float, ...]


@dataclass(frozen=True)
class Function:
    """A function's text; the functions that it calls; the names and values of its coefficients.

    The scalar ops have a last parameter, `limit`: the largest finite number of the type that their
    result is rounded to.
    """

    name: str
    text: str
    callees: tuple[str, ...] = ()
    tables: Callable[[], dict[str, Any]] = dict

    def tree(self) -> ast.FunctionDef:
        """The text, parsed."""
        (found,) = ast.parse(self.text).body
        assert isinstance(found, ast.FunctionDef) and found.name == self.name
        return found


# --- orthogonal polynomials -----------------------------------------------------------------------


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
_POLYNOMIALS = (
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

_SHIFTED = tuple(
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

# --- Hurwitz' zeta function -----------------------------------------------------------------------

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
_ZETA_TERMS = Function(
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
_ZETA = Function(
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

# --- the incomplete gamma functions ---------------------------------------------------------------

_TEMME, _TEMME_POWERS = 8, 16  # 2e-17 where a > 30 and |x - a| <= 0.3 a


@cache
def _temme() -> tuple[Numbers, ...]:
    """c_k of (8.12.9) as series in eta, whose numbers follow from those of mu = lambda - 1:
    mu mu' = eta (1 + mu), c_0 = (mu' - eta - 1) / eta, and (8.12.11) with those of 5.11.3."""
    from mpmath import bernoulli, mpf, workdps

    with workdps(40):
        length = _TEMME_POWERS + 2 * _TEMME + 4
        mu = [mpf(0), mpf(1)]
        for n in range(2, length + 1):
            known = sum(mu[i] * (n + 1 - i) * mu[n + 1 - i] for i in range(2, n))
            mu.append((mu[n - 1] - known) / (n + 1))
        stirling = [mpf(1)]  # of its logarithm's derivative (5.11.1)
        for n in range(1, _TEMME + 1):
            terms = (bernoulli(k + 1) / (k + 1) * stirling[n - k] for k in range(1, n + 1) if k % 2)
            stirling.append(sum(terms) / n)
        first = [(n + 2) * mu[n + 2] - (n == 0) for n in range(length - 2)]
        rows = [first]
        for k in range(1, _TEMME + 1):
            last, g = rows[-1], (-1) ** k * stirling[k]
            rows.append([g * first[n] + (n + 2) * last[n + 2] for n in range(len(last) - 2)])
        return tuple(tuple(map(float, row[:_TEMME_POWERS])) for row in rows)


@cache
def _gamma_tables() -> dict[str, Any]:
    from dovetail_prims.decompositions.special_functions.chebyshev import coefficients
    from mpmath import bernoulli

    stirling = (float(bernoulli(2 * k) / (2 * k * (2 * k - 1))) for k in range(1, 10))
    return {
        "TEMME": _temme(),
        "STIRLING": tuple(stirling),  # (5.11.1)
        "LGAMMA1P": coefficients(_log_gamma, 0, 1.5),
        "ATANH": tuple(2 / (2 * k + 3) for k in range(12)),
    }


def _log_gamma(m: Any, u: Any) -> Any:
    """log Γ(1 + u) / u"""
    return m.loggamma(1 + u) / u


_GAMMA = (
    Function(
        "gamma_bend",
        """
def gamma_bend(a, x):
    '''mu - log(1 + mu), mu = x / a - 1, for |mu| <= 0.3: with s = mu / (2 + mu) the logarithm is
    2 artanh s, of which 2 s = mu - mu s goes off against mu.'''
    mu = (x - a) / a
    s = mu / (2.0 + mu)
    return mu * s - s * s * s * horner(s * s, ATANH)
""",
        tables=_gamma_tables,
    ),
    Function(
        "gamma_density",
        """
def gamma_density(a, x):
    '''x^a exp(-x) / Γ(a + 1): of a large a by Stirling's series (5.11.1), in which the large
    parts of the exponent are gone.'''
    large = a > 10.0
    power = a * log(where(large, x / a, x)) - x
    if some(large):
        b = where(large, a, like(a, 10.0))
        near = abs(x - b) <= 0.3 * b
        bend = gamma_bend(b, where(near, x, b))
        inverse = 1.0 / b
        exponent = where(near, -b * bend, b + power)
        exponent = exponent - inverse * horner(inverse * inverse, STIRLING)
        power = where(large, exponent - 0.5 * log(6.283185307179586 * b), power)
    if some(~large):
        power = where(large, power, power - lgamma(where(large, like(a, 1.0), a) + 1.0))
    return exp(power)
""",
        ("gamma_bend",),
        _gamma_tables,
    ),
    Function(
        "gamma_series",
        """
def gamma_series(a, x, tolerance):
    '''P over x^a exp(-x) / Γ(a + 1), for x <= max(a, 1) (8.7.1).'''
    term = like(x, 1.0)
    total = like(x, 1.0)
    k = a
    going = x > 0.0
    while some(going):
        k = k + 1.0
        term = term * (x / k)
        total = where(going, total + term, total)
        going = going & (term > total * tolerance)
    return total
""",
    ),
    Function(
        "gamma_fraction",
        """
def gamma_fraction(a, x, tolerance):
    '''Q over x^a exp(-x) / Γ(a), for x > max(a, 1): the continued fraction (8.9.2), contracted,
    by Lentz' rule.'''
    b = x + 1.0 - a
    c = like(x, 1e30)
    d = 1.0 / b
    total = d
    k = like(x, 0.0)
    going = x > 0.0
    while some(going):
        k = k + 1.0
        numerator = k * (a - k)
        b = b + 2.0
        d = 1.0 / (numerator * d + b)
        c = b + numerator / c
        factor = c * d
        total = where(going, total * factor, total)
        going = going & (abs(factor - 1.0) > tolerance) & (k < 500.0)
    return total
""",
    ),
    Function(
        "gamma_uniform",
        """
def gamma_uniform(a, x, side):
    '''Q (P for a side of -1), for a > 30 and |x - a| <= 0.3 a (8.12.3, 8.12.4, 8.12.7).'''
    bend = gamma_bend(a, x)
    eta = sqrt(2.0 * bend)
    eta = where(x < a, -eta, eta)
    inverse = 1.0 / a
    series = nested(inverse, eta, TEMME) * exp(-a * bend) / sqrt(6.283185307179586 * a)
    return 0.5 * erfc(side * eta * sqrt(a * 0.5)) + side * series
""",
        ("gamma_bend",),
        _gamma_tables,
    ),
    Function(
        "gamma_remainder",
        """
def gamma_remainder(a, x, tolerance):
    '''Q for x <= 1 and an a so small that P is near 1: of P = x^a / Γ(a + 1) (1 + a times the sum
    of (-x)^k / (k! (a + k))) (8.7.1) the parts that are 1 go off.'''
    t = (a - 0.75) / 0.75
    power = expm1(a * (log(x) - horner(t, LGAMMA1P)))
    term = like(x, 1.0)
    total = like(x, 0.0)
    k = like(x, 0.0)
    going = x > 0.0
    while some(going):
        k = k + 1.0
        term = -term * x / k
        part = term / (a + k)
        total = total + part
        going = going & (abs(part) > abs(total) * tolerance)
    return -power - (power + 1.0) * a * total
""",
        tables=_gamma_tables,
    ),
)


def _incomplete(name: str, upper: bool) -> Function:
    """Q, or P: the one of the two that is small where it is computed, or 1 less the other."""
    side = "1.0" if upper else "-1.0"
    own, other = ("value", "1.0 - value") if upper else ("1.0 - value", "value")
    remainder = """
        rest = series & (x <= 1.0) & (value > 0.5)
        out = where(series & ~rest, 1.0 - value, out)
        if some(rest):
            a = where(rest, a, like(a, 0.5))
            x = where(rest, x, like(x, 0.5))
            out = where(rest, gamma_remainder(a, x, tolerance), out)
"""
    kept = remainder if upper else f"        out = where(series, {other}, out)"
    text = f"""
def {name}(shape, argument, limit):
    tolerance = where(like(shape, limit) > 1e300, like(shape, 1.1102230246251565e-16),
                      like(shape, 1e-10))
    inside = (shape > 0.0) & (argument > 0.0) & (shape < INFINITY) & (argument < INFINITY)
    uniform = inside & (shape > 30.0) & (abs(argument - shape) <= 0.3 * shape)
    series = inside & ~uniform & ((argument <= shape) | (argument <= 1.0))
    fraction = inside & ~uniform & ~series
    out = where(argument < shape, like(shape, {0.0 if not upper else 1.0}),
                like(shape, {1.0 if not upper else 0.0}))
    if some(uniform):
        a = where(uniform, shape, like(shape, 40.0))
        x = where(uniform, argument, like(shape, 40.0))
        out = where(uniform, gamma_uniform(a, x, like(a, {side})), out)
    other = series | fraction
    density = like(shape, 1.0)
    if some(other):
        a = where(other, shape, like(shape, 1.0))
        density = gamma_density(a, where(other, argument, like(shape, 1.0)))
    if some(fraction):
        a = where(fraction, shape, like(shape, 1.0))
        x = where(fraction, argument, like(shape, 9.0))
        value = density * a * gamma_fraction(a, x, tolerance)
        out = where(fraction, {own}, out)
    if some(series):
        a = where(series, shape, like(shape, 1.0))
        x = where(series, argument, like(shape, 0.0625))
        value = density * gamma_series(a, x, tolerance)
{kept}
    # The ends, in eager's order: one of them may be beside NaN.
    odd = (shape != shape) | (argument != argument)
    out = where(odd, like(shape, NAN), out)
    out = where(argument == INFINITY, like(shape, {0.0 if upper else 1.0}), out)
    out = where(shape == INFINITY, where(argument == INFINITY, like(shape, NAN),
                                         like(shape, {1.0 if upper else 0.0})), out)
    out = where(argument == 0.0, like(shape, {1.0 if upper else 0.0}), out)
    out = where(shape == 0.0, where(argument > 0.0, like(shape, {0.0 if upper else 1.0}),
                                    like(shape, NAN)), out)
    odd = (shape < 0.0) | (argument < 0.0)
    return where(odd, like(shape, NAN), out)
"""
    callees = ("gamma_uniform", "gamma_density", "gamma_fraction", "gamma_series")
    return Function(name, text, (*callees, "gamma_remainder") if upper else callees)


FUNCTIONS = {
    f.name: f
    for f in (
        *_POLYNOMIALS, *_SHIFTED, _ZETA_TERMS, _ZETA, *_GAMMA, _incomplete("igamma", False),
        _incomplete("igammac", True),
    )
}  # fmt: skip
"""All functions by name."""

LOOPING = ("zeta", "igamma", "igammac", *(f.name for f in (*_POLYNOMIALS, *_SHIFTED)))
"""Those that are scalar ops of loop bodies, of two operands."""


def with_callees(names: set[str]) -> list[Function]:
    """These functions and all that they call, callees first."""
    ordered: list[Function] = []

    def visit(name: str) -> None:
        if all(f.name != name for f in ordered):
            for callee in FUNCTIONS[name].callees:
                visit(callee)
            ordered.append(FUNCTIONS[name])

    for name in sorted(names):
        visit(name)
    return ordered
