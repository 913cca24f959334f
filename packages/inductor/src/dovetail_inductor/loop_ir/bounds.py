"""Which keys a query can see at all, as far as the function of scores tells by their places alone.

A score that is -inf has no share. Where it is so by a comparison of places, as in causal attention
or with a window, whole blocks of scores need not be computed.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from dovetail_inductor.loop_ir.expr import Apply, Constant, Expr, IndexValue
from dovetail_inductor.loop_ir.index import Index, Var


@dataclass(frozen=True)
class Bound:
    """`place <= slope * other + offset` (`upper`) or `place >= slope * other + offset`."""

    upper: bool
    slope: int
    offset: int


@dataclass(frozen=True)
class Seen:
    """Bounds of keys by the query, and of queries by the key. All of them hold for what is seen."""

    of_keys: tuple[Bound, ...]
    of_queries: tuple[Bound, ...]


def seen_within(score: Expr, variables: tuple[Var, Var, Var, Var]) -> Seen:
    """The bounds that a function of scores (of the batch, the head, the query, the key) tells."""
    _, _, query, key = variables
    of_keys: list[Bound] = []
    of_queries: list[Bound] = []
    for condition in _needed(score):
        for index in _not_negative(condition):
            i, j = (_coefficient(index, var) for var in (query, key))
            if i is None or j is None or {a for a, _ in index.terms} - {query, key}:
                continue
            if not isinstance(index.const, int):
                continue
            if abs(j) == 1:
                of_keys.append(_bound(j, i, index.const))
            if abs(i) == 1:
                of_queries.append(_bound(i, j, index.const))
    return Seen(tuple(of_keys), tuple(of_queries))


def _bound(own: int, other: int, const: int) -> Bound:
    """Of `own * place + other * x + const >= 0`, where `own` is 1 or -1."""
    return Bound(True, other, const) if own < 0 else Bound(False, -other, -const)


def _coefficient(index: Index, var: Var) -> int | None:
    found = index.coefficient(var) if var in index.variables() else 0
    return found if isinstance(found, int) else None


def _needed(score: Expr) -> Iterator[Expr | tuple[Expr]]:
    """Conditions that hold wherever a score is not -inf; one in a tuple does not hold."""
    if not isinstance(score, Apply):
        return
    if score.op == "where":
        condition, kept, other = score.args
        if _is_nothing(other):
            yield from _parts(condition)
            yield from _needed(kept)
        elif _is_nothing(kept):
            yield from _parts((condition,))
            yield from _needed(other)
    elif score.op == "add":
        for arg in score.args:
            yield from _needed(arg)


def _is_nothing(expr: Expr) -> bool:
    return isinstance(expr, Constant) and expr.value == -math.inf


def _parts(condition: Expr | tuple[Expr]) -> Iterator[Expr | tuple[Expr]]:
    """What all holds if a condition does."""
    inverted = isinstance(condition, tuple)
    expr = condition[0] if isinstance(condition, tuple) else condition
    if isinstance(expr, Apply) and expr.op == ("bitwise_or" if inverted else "bitwise_and"):
        for arg in expr.args:
            yield from _parts((arg,) if inverted else arg)
    elif isinstance(expr, Apply) and expr.op == "bitwise_not":
        yield from _parts(expr.args[0] if inverted else (expr.args[0],))
    else:
        yield condition


_INVERSE = {"lt": "ge", "ge": "lt", "gt": "le", "le": "gt"}


def _not_negative(condition: Expr | tuple[Expr]) -> Iterator[Index]:
    """What is at least 0 if a comparison of places holds."""
    expr = condition[0] if isinstance(condition, tuple) else condition
    if not isinstance(expr, Apply) or len(expr.args) != 2:
        return
    op = _INVERSE.get(expr.op, "") if isinstance(condition, tuple) else expr.op
    if op == "eq" and op == expr.op:
        left, right = (_place(arg) for arg in expr.args)
        if left is not None and right is not None:
            yield from (left + right * -1, right + left * -1)
        return
    if op not in _INVERSE:
        return
    greater, less = expr.args if op in ("gt", "ge") else expr.args[::-1]
    strict = 1 if op in ("gt", "lt") else 0
    far = _place(greater)
    if far is None:
        return
    if isinstance(less, Apply) and less.op == "abs":  # |a| <= b: both a <= b and -a <= b
        near = _place(less.args[0])
        if near is not None:
            yield from (far + near * -1 + -strict, far + near + -strict)
        return
    near = _place(less)
    if near is not None:
        yield far + near * -1 + -strict


def _place(expr: Expr) -> Index | None:
    """An integer value as a sum of multiples of loop variables, if it is one."""
    if isinstance(expr, IndexValue):
        return expr.index
    if isinstance(expr, Constant):
        return Index(expr.value, ()) if isinstance(expr.value, int) else None
    if not isinstance(expr, Apply) or expr.dtype.is_floating_point:
        return None
    if expr.op == "neg":
        inner = _place(expr.args[0])
        return None if inner is None else inner * -1
    if expr.op not in ("add", "sub"):
        return None
    left, right = (_place(arg) for arg in expr.args)
    if left is None or right is None:
        return None
    return left + (right if expr.op == "add" else right * -1)


__all__ = ["Bound", "Seen", "seen_within"]
