"""Bounds of slices and indices that only the data tells, as expressions instead of branches."""

from __future__ import annotations

from typing import Any

import torch
from dovetail_guards.expr import Expr, constant
from dovetail_guards.relations import BoolExpr
from dovetail_guards.sym_node import SymNode

from dovetail_prims.fake_tensor import Size


def _expr_of(number: Size) -> Expr:
    if isinstance(number, int):
        return constant(number)
    expr: Expr = number.node.expr
    return expr


def known_truth(relation: Any) -> bool | None:
    """Whether a relation between sizes holds; None if only the data tells. (Of sizes that have an
    example it is guarded.)"""
    node = getattr(relation, "node", None)
    if isinstance(node, SymNode) and isinstance(node.expr, BoolExpr):
        env, symbols = node.env, node.expr.free_symbols()
        loose = symbols & (env.unbacked | env.undecided if env.keep_undecided else env.unbacked)
        if loose and env.statically_known(node.expr) is None:
            return None
    return bool(relation)


def wrapped(index: Size, size: Size) -> Size:
    """An index that counts from the end where it is negative, as one from the beginning."""
    negative = known_truth(index < 0)
    if negative is None:
        # 1 for a negative one, otherwise 0: what is chosen is not known, what is computed is.
        return index + size * torch.sym_min(1, torch.sym_max(0, -index))
    return index + size if negative else index


def clamped(index: Size, size: Size) -> Size:
    """A slice's bound as a position from 0 to `size`."""
    position = wrapped(index, size)
    below, above = known_truth(position < 0), known_truth(position > size)
    if below or above:
        return 0 if below else size
    if above is None:
        position = torch.sym_min(size, position)
    return torch.sym_max(0, position) if below is None else position


def stated(
    condition: Any,
    message: str,
    error: type[Exception] = RuntimeError,
    numbers: tuple[Size, ...] = (),
) -> bool:
    """Whether a relation holds; where only the data tells, the program checks it as it runs, and
    raises `error` with `message`, where each `{}` is one of `numbers`, if there are any."""
    if known_truth(condition) is None:
        node: Any = condition.node
        exprs = tuple(_expr_of(number) for number in numbers)
        return bool(node.env.require(node.expr, message, error, exprs))
    return bool(condition)
