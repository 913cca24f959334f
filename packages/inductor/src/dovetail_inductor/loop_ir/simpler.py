"""Functions of scores in fewer operations, where the last digit of a float does not count: what is
made of a score is an exponent, and shares are rounded to 2 bytes.

Quotients by constants become products, constants of a product are gathered into one, and integer
arithmetic of places becomes an index. A condition that holds throughout a tile goes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial

import torch

from dovetail_inductor.loop_ir.expr import Apply, Builder, Constant, Expr, IndexValue, rename
from dovetail_inductor.loop_ir.index import Index, variable

_TINY = 1e-30  # beyond its reciprocal constants are left alone


def simpler(
    builder: Builder, roots: Sequence[Expr], known: Mapping[int, bool] | None = None
) -> list[Expr]:
    """The same values in fewer operations; the truths at the uids in `known` are what they say."""
    truths = {uid: builder.constant(t, torch.bool) for uid, t in (known or {}).items()}
    return rename(builder, roots, variable, known=truths, applied=partial(_applied, builder))


def _applied(builder: Builder, node: Apply, args: list[Expr]) -> Expr:
    if node.dtype is torch.bool and node.op in _LOGIC:
        folded = _logic(builder, node.op, args)
        if folded is not None:
            return folded
    if node.dtype is torch.float32 and node.op in ("mul", "div"):
        product = _product(builder, node.op, *args)
        if product is not None:
            return product
    if node.dtype is torch.float32 and node.op == "add" and 0.0 in map(_factor, args):
        return args[1] if _factor(args[0]) == 0.0 else args[0]
    return applied_as_place(builder, node, args)


def applied_as_place(builder: Builder, node: Apply, args: list[Expr]) -> Expr:
    """A node's operation of other operands; as an index, if it is a sum of such."""
    made = builder.again(node, args)
    if node.dtype is torch.int64 and node.op in ("add", "sub", "neg"):
        place = place_of(made)
        return made if place is None else builder.index_value(place)
    return made


_LOGIC = ("bitwise_and", "bitwise_or", "bitwise_not")


def _logic(builder: Builder, op: str, args: list[Expr]) -> Expr | None:
    """A connective with a constant."""
    if op == "bitwise_not":
        (one,) = args
        return builder.constant(not one.value, torch.bool) if isinstance(one, Constant) else None
    for one, other in (args, args[::-1]):
        if isinstance(one, Constant):
            settles = bool(one.value) == (op == "bitwise_or")
            return one if settles else other
    return None


def _product(builder: Builder, op: str, left: Expr, right: Expr) -> Expr | None:
    """A product with its constant, if it has one, as its last factor."""
    if op == "div":
        factor = _factor(right)
        if factor is None or not _TINY < abs(factor) < 1 / _TINY:
            return None
        right = builder.constant(1.0 / factor, torch.float32)
    (x, a), (y, b) = _split(left), _split(right)
    constant = a * b
    if not math.isfinite(constant):
        return None
    if x is None and y is None:
        return builder.constant(constant, torch.float32)
    if x is None or y is None:
        variable_part = y if x is None else x
        assert variable_part is not None
    else:
        variable_part = builder.apply("mul", [x, y])
    if constant == 1.0:
        return variable_part
    return builder.apply("mul", [variable_part, builder.constant(constant, torch.float32)])


def _split(expr: Expr) -> tuple[Expr | None, float]:
    """What a value is besides a constant factor, and the factor."""
    own = _factor(expr)
    if own is not None:
        return None, own
    if isinstance(expr, Apply) and expr.op == "mul":
        factor = _factor(expr.args[1])
        if factor is not None and _TINY < abs(factor) < 1 / _TINY:
            return expr.args[0], factor
    return expr, 1.0


def _factor(expr: Expr) -> float | None:
    if isinstance(expr, Constant) and isinstance(expr.value, float):
        return expr.value if math.isfinite(expr.value) else None
    return None


def place_of(expr: Expr) -> Index | None:
    """An integer value as a sum of multiples of loop variables, if it is one."""
    if isinstance(expr, IndexValue):  # (of narrower types it might wrap around)
        return expr.index if expr.dtype in (torch.int32, torch.int64) else None
    if isinstance(expr, Constant):
        return Index(expr.value, ()) if type(expr.value) is int else None
    if not isinstance(expr, Apply) or expr.dtype is not torch.int64:
        return None
    if expr.op == "neg":
        inner = place_of(expr.args[0])
        return None if inner is None else inner * -1
    if expr.op not in ("add", "sub"):
        return None
    left, right = (place_of(arg) for arg in expr.args)
    if left is None or right is None:
        return None
    return left + right if expr.op == "add" else left - right
