"""Comparisons of a float input with a number, as relations over the input's key.

So a branch on a learning rate guards the branch, not the rate's very value. (Keys: `float_expr`;
comparisons of what is computed of an input: `float_spans`.)
"""

from __future__ import annotations

import math

from dovetail_guards import expr as e
from dovetail_guards import float_spans
from dovetail_guards import relations as rel
from dovetail_guards.float_expr import (
    EXACT,
    INFINITE_KEY,
    OPERATIONS,
    FloatExpr,
    FloatLike,
    float_of_key,
    key_of,
)
from dovetail_guards.shape_env import ShapeEnv

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
        return float_spans.compared(env, op, left, right)
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
