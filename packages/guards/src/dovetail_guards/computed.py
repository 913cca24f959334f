"""Whole numbers that are rounded from floats, e.g. `int(n * 0.3)`: symbols of their own.

The integer algebra has no such operation. But what sizes and inputs the number comes from is known
before a compiled program runs: it is computed then, by Python's own arithmetic, and passed as an
input; guards on it compute it likewise.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from dovetail_guards.float_expr import FloatExpr, key_of
from dovetail_guards.relations import BoolExpr
from dovetail_guards.source import Source

ROUNDINGS: Mapping[str, Callable[[Any], int]] = {
    "floor": math.floor, "ceil": math.ceil, "int": int, "round": round,
}  # fmt: skip
"""By the name that Python has for it."""


@dataclass(frozen=True)
class ComputedSource(Source):
    """`how(expr)`; `symbols` says where the symbols of `expr` come from."""

    how: str
    expr: FloatExpr
    symbols: tuple[tuple[str, Source], ...]

    def of(self, *values: Any) -> int:
        """The number for what was found at the sources of its symbols."""
        pairs = zip(self.symbols, values, strict=True)
        return self.evaluate({name: as_symbol(value) for (name, _), value in pairs})

    def evaluate(self, values: Mapping[str, int]) -> int:
        """The number for given symbols; ArithmeticError or ValueError where there is none."""
        return ROUNDINGS[self.how](self.expr.evaluate(values))

    def __str__(self) -> str:
        text = self.expr.as_text(lambda name: str(dict(self.symbols)[name]))
        return text if self.how == "int" and self.expr.is_truth else f"{self.how}({text})"


def as_symbol(value: Any) -> Any:
    """What a symbol is for the number at its source: for a float its key."""
    return key_of(value) if type(value) is float else value


def leaves(symbols: tuple[tuple[str, Source], ...]) -> dict[str, Source]:
    """The symbols, with those of numbers that are computed in place of these."""
    found: dict[str, Source] = {}
    for name, source in symbols:
        below = leaves(source.symbols) if isinstance(source, ComputedSource) else {name: source}
        found.update(below)
    return found


def holds(
    relation: BoolExpr, symbols: tuple[tuple[str, Source], ...]
) -> Callable[..., bool] | None:
    """Whether the relation holds, a function of the values of its `leaves`; None if none of its
    symbols is computed."""
    computed = dict(_computed(symbols))
    if not computed:
        return None
    names = tuple(leaves(symbols))

    def check(*values: int) -> bool:
        known = dict(zip(names, values, strict=True))
        try:
            for name, source in computed.items():
                known[name] = source.evaluate(known)
            return bool(relation.evaluate(known))
        except (ArithmeticError, ValueError):
            return False

    return check


def _computed(symbols: tuple[tuple[str, Source], ...]) -> Iterator[tuple[str, ComputedSource]]:
    """The symbols that are computed, each behind those that it is computed from."""
    for name, source in symbols:
        if isinstance(source, ComputedSource):
            yield from _computed(source.symbols)
            yield name, source
