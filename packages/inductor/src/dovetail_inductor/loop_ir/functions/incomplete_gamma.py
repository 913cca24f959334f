"""The incomplete gamma functions: series, continued fraction, uniform expansion."""

from __future__ import annotations

from functools import cache
from typing import Any

from dovetail_inductor.loop_ir.functions.function import Function, Numbers

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


GAMMA = (
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


def incomplete(name: str, upper: bool) -> Function:
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
