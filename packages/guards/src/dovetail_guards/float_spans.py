"""For which values of its one symbol a float expression keeps an answer: an interval.

Sums, products and quotients with numbers, roots, extremes and signs keep the order of floats or
turn it around, their rounding included. Where an expression is made of those alone, the floats that
give a comparison its truth, or a rounded value its integer, lie between two floats. They are found
by bisecting over the keys (`float_expr`), with Python's own arithmetic, and are guarded instead of
the input's very value.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from dovetail_guards import expr as e
from dovetail_guards import relations as rel
from dovetail_guards.float_expr import (
    EXACT,
    INFINITE_KEY,
    INPUT,
    OPERATIONS,
    FloatExpr,
    FloatLike,
    float_of_key,
    key_of,
)
from dovetail_guards.shape_env import ShapeEnv


@dataclass(frozen=True)
class Span:
    """Between the symbol's values `lower` and `upper` the expression rises (`sign` 1) or falls."""

    sign: int
    lower: int
    upper: int


def same_answer(env: ShapeEnv, expr: FloatExpr, answer: Callable[[Any], Any]) -> Any:
    """`answer` of the expression in this call, guarded by the interval of its symbol that gives the
    same; None where there is none. `answer` must be a step function of a number."""
    symbols = expr.free_symbols()
    if len(symbols) != 1 or not symbols.isdisjoint(env.unbacked):
        return None
    (name,) = symbols
    hint = env.hints[name]
    span = _span(expr, name, hint)
    if span is None or not span.lower <= hint <= span.upper:
        return None
    try:
        known = answer(expr.evaluate(env.hints))
    except (ArithmeticError, ValueError):  # an infinity or NaN has no integer
        return None

    def holds(value: int) -> bool:
        try:
            return bool(answer(expr.evaluate({name: value})) == known)
        except (ArithmeticError, ValueError):
            return False

    within = _within(span, hint, holds)
    if within.lower == within.upper:
        return None
    symbol, reason = e.symbol(name), f"{expr} is rounded or compared"
    for relation in (rel.ge(symbol, within.lower), rel.le(symbol, within.upper)):
        if not env.guard_bool(relation, reason):
            return None
    return known


def compared(env: ShapeEnv, op: str, left: FloatLike, right: FloatLike) -> bool | None:
    """The truth of the comparison `op` with a number, by `same_answer`."""
    number = right if right in (math.inf, -math.inf) else _number(right)
    if not isinstance(left, FloatExpr) or not isinstance(number, (int, float)):
        return None
    if op not in ("eq", "ne"):
        return same_answer(env, left, lambda x: OPERATIONS[op](x, number))  # type: ignore[no-any-return]
    # Where it is not equal, it is so on one side of the number.
    side = same_answer(env, left, lambda x: (x > number) - (x < number))
    return None if side is None else bool(OPERATIONS[op](side, 0))


def _number(value: FloatLike) -> float | int | None:
    """A finite number that an operand is, one that floats can be compared with."""
    if isinstance(value, e.Expr):
        return value.value if value.value is not None and abs(value.value) <= EXACT else None
    if isinstance(value, FloatExpr) or not math.isfinite(value):
        return None
    return value


def _within(span: Span, hint: int, holds: Callable[[int], bool]) -> Span:
    """The part of a span around `hint` in which something holds, which does so in an interval."""
    return replace(span, lower=_edge(hint, span.lower, holds), upper=_edge(hint, span.upper, holds))


def _edge(good: int, bad: int, holds: Callable[[int], bool]) -> int:
    """The last value from `good` towards `bad` for which it holds."""
    if holds(bad):
        return bad
    while abs(good - bad) > 1:
        middle = (good + bad) // 2
        if holds(middle):
            good = middle
        else:
            bad = middle
    return good


def _span(value: FloatLike, name: str, hint: int) -> Span | None:
    """Where, around `hint`, the expression is known to rise or to fall."""
    if isinstance(value, e.Expr):
        return _linear(value)
    if not isinstance(value, FloatExpr):
        return None
    if value.op == INPUT:
        return Span(1, -INFINITE_KEY, INFINITE_KEY)
    if len(value.args) == 1:
        span = _span(value.args[0], name, hint)
        return None if span is None else _unary(value.op, value.args[0], span, name, hint)
    left, right = value.args
    if value.op == "truediv" and isinstance(left, e.Expr) and isinstance(right, e.Expr):
        return _quotient(left, right, hint)
    if _number(right) is not None:
        span = _span(left, name, hint)
        return None if span is None else _by_number(value.op, _number(right), span)
    if _number(left) is not None:
        span = _span(right, name, hint)
        return None if span is None else _of_number(value.op, left, right, span, name, hint)
    return None


def _linear(value: e.Expr) -> Span | None:
    """Of integers up to which floats are exact: `a*x + b`."""
    parts = _coefficients(value)
    if parts is None or parts[0] == 0:
        return None
    most = EXACT // (abs(parts[0]) + abs(parts[1]) + 1)
    return Span(1 if parts[0] > 0 else -1, -most, most)


def _coefficients(value: e.Expr) -> tuple[int, int] | None:
    """(a, b) of `a*x + b`, x a symbol or absent."""
    slope = [(monomial, factor) for monomial, factor in value.terms if monomial]
    rest = sum(factor for monomial, factor in value.terms if not monomial)
    if not slope:
        return 0, rest
    ((monomial, factor), *more) = slope
    if more or len(monomial) != 1 or monomial[0][1] != 1 or monomial[0][0].kind != "sym":
        return None
    return factor, rest


def _quotient(left: e.Expr, right: e.Expr, hint: int) -> Span | None:
    """`(a*x + b) / (c*x + d)` where the divisor keeps its sign; Python rounds it correctly."""
    over, under = _coefficients(left), _coefficients(right)
    if over is None or under is None:
        return None
    (a, b), (c, d) = over, under
    sign, now = a * d - b * c, c * hint + d
    if sign == 0 or now == 0:
        return None
    most = EXACT // (abs(a) + abs(b) + abs(c) + abs(d) + 1)
    span = Span(1 if sign > 0 else -1, -most, most)
    if not -most <= hint <= most:
        return None
    return _within(span, hint, lambda x: (c * x + d) * now > 0)


def _unary(op: str, arg: FloatLike, span: Span, name: str, hint: int) -> Span | None:
    if op in ("pos", "float"):
        return span
    if op == "neg":
        return replace(span, sign=-span.sign)
    if op == "sqrt":
        return _of_sign(arg, span, name, hint)
    if op == "abs":
        signed = _of_sign(arg, span, name, hint)
        negative = bool(_value(arg, name, hint) < 0)
        return signed and replace(signed, sign=-signed.sign if negative else signed.sign)
    return None


def _by_number(op: str, number: float | int | None, span: Span) -> Span | None:
    """`value op number`."""
    assert number is not None
    if op in ("add", "sub", "min", "max"):
        return span
    if op in ("mul", "truediv") and number != 0:
        return replace(span, sign=span.sign if number > 0 else -span.sign)
    return None


def _of_number(
    op: str, left: FloatLike, arg: FloatLike, span: Span, name: str, hint: int
) -> Span | None:
    """`number op value`."""
    if op in ("add", "mul", "min", "max"):
        return _by_number(op, _number(left), span)
    if op == "sub":
        return replace(span, sign=-span.sign)
    if op == "truediv" and left != 0 and _value(arg, name, hint) != 0:
        signed = _of_sign(arg, span, name, hint, strictly=True)
        number = _number(left)
        rising = number is not None and number < 0
        return signed and replace(signed, sign=signed.sign if rising else -signed.sign)
    return None


def _value(arg: FloatLike, name: str, hint: int) -> float:
    return arg if isinstance(arg, (int, float)) else arg.evaluate({name: hint})


def _of_sign(
    arg: FloatLike, span: Span, name: str, hint: int, strictly: bool = False
) -> Span | None:
    """The part of a span in which a value has the sign that it has in this call."""
    if _value(arg, name, hint) < 0:
        return _within(span, hint, lambda v: _value(arg, name, v) < 0)
    if strictly:
        return _within(span, hint, lambda v: _value(arg, name, v) > 0)
    return _within(span, hint, lambda v: _value(arg, name, v) >= 0)


# A comparison with its sides swapped; and, with their truth, those that the equal value shares.
_SWAPPED = {"eq": "eq", "ne": "ne", "lt": "gt", "le": "ge", "gt": "lt", "ge": "le"}
_INCLUSIVE = {("le", True), ("gt", False), ("ge", True), ("lt", False)}


def decide(env: ShapeEnv, expr: object) -> bool | None:
    """The truth of a comparison of a float input with a number, guarded by that relation
    alone; None for anything else."""
    if not isinstance(expr, FloatExpr):
        return None
    expr = as_comparison(expr)
    if expr.op not in _SWAPPED or len(expr.args) != 2:
        return None
    op, (left, right) = expr.op, expr.args
    if not isinstance(left, FloatExpr):
        op, left, right = _SWAPPED[op], right, left
    if isinstance(right, float):
        least = _least(env, left)
        if op in ("ge", "lt") and least >= right:
            return op == "ge"
        if op in ("gt", "le", "eq", "ne") and least > right:
            return op in ("gt", "ne")
    name = left.input_name() if isinstance(left, FloatExpr) else None
    if name is None:
        return compared(env, op, left, right)
    if isinstance(right, FloatExpr) or name in env.unbacked:
        return None
    whole = right.value if isinstance(right, e.Expr) else None
    number = whole if isinstance(right, e.Expr) else right
    if number is None or isinstance(number, e.Expr) or number != number:
        return None
    if abs(number) > EXACT and whole is not None:
        return None
    key, hint, symbol = key_of(float(number)), env.hints[name], e.symbol(name)
    less, equal = hint < key, hint == key
    holds = bool(FloatExpr(op, (0.0 if equal else -1.0 if less else 1.0, 0.0)).evaluate({}))
    if op in ("eq", "ne") and equal:
        relation = rel.eq(symbol, key)
    elif less or (equal and (op, holds) in (("le", True), ("gt", False))):
        relation = rel.le(symbol, key - (0 if (op, holds) in _INCLUSIVE else 1))
    else:
        relation = rel.ge(symbol, key + (0 if (op, holds) in _INCLUSIVE else 1))
    reason = f"{name} compared with {number}"
    return holds if env.guard_bool(relation, reason) else None


def as_comparison(expr: FloatExpr) -> FloatExpr:
    """A float used as a truth value as the comparison that it means."""
    if expr.op in _SWAPPED or expr.op == "is_integer":
        return expr
    return FloatExpr("ne", (expr, 0.0))


def _least(env: ShapeEnv, value: FloatLike) -> float:
    """A number that a float is never below, whatever the symbols are."""
    if isinstance(value, e.Expr):
        low = env.facts.range_of(env.replace(value)).lower
        return float(low) if abs(low) <= EXACT else -math.inf
    if not isinstance(value, FloatExpr):
        return value
    name = value.input_name()
    if name is not None:
        low = env.facts.range_of(env.replace(e.symbol(name))).lower
        return float_of_key(int(low)) if abs(low) <= INFINITE_KEY else -math.inf
    # Rounding keeps the order, so that bounds of sums and products hold.
    parts = [_least(env, arg) for arg in value.args]
    if value.op in ("abs", "sqrt", "exp"):
        return 0.0
    if value.op in ("add", "min", "max", "float"):
        return float(OPERATIONS[value.op](*parts))
    if value.op == "mul" and min(parts) >= 0 and max(parts) < math.inf:
        return parts[0] * parts[1]
    return 0.0 if value.op in ("truediv", "pow") and min(parts) >= 0 else -math.inf
