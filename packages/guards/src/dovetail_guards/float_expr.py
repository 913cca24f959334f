"""Floating-point values that depend on sizes, e.g. `1 / x.size(0)`.

They are kept as trees, and decided by specialising the sizes in them. The one exception are
ratios of integers: their floor and ceiling are integer expressions again.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Union

from dovetail_guards import expr as e

FloatLike = Union["FloatExpr", e.Expr, float]

EXACT = 2**52
"""Integers up to here, and floors of their quotients, are exact in double precision."""

OPERATIONS: dict[str, Callable[..., float | bool]] = {
    "float": float,
    "truediv": lambda a, b: a / b,
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "floordiv": lambda a, b: a // b,
    "mod": lambda a, b: a % b,
    "pow": lambda a, b: a**b,
    "neg": lambda a: -a,
    "pos": lambda a: +a,
    "abs": abs,
    "min": min,
    "max": max,
    "eq": lambda a, b: a == b,
    "ne": lambda a, b: a != b,
    "lt": lambda a, b: a < b,
    "le": lambda a, b: a <= b,
    "gt": lambda a, b: a > b,
    "ge": lambda a, b: a >= b,
    "is_integer": lambda a: float(a).is_integer(),
    **{
        name: getattr(math, name)
        for name in ("sqrt cos cosh sin sinh tan tanh asin acos atan exp log log2".split())
    },
}


@dataclass(frozen=True)
class FloatExpr:
    """`op(*args)`, a float (or, for comparisons, a bool)."""

    op: str
    args: tuple[FloatLike, ...]

    def free_symbols(self) -> frozenset[str]:
        """Names of all symbols in it."""
        parts = [arg.free_symbols() for arg in self.args if not isinstance(arg, (int, float))]
        return frozenset().union(*parts)

    def evaluate(self, values: Mapping[str, int]) -> float | bool:
        """The value for given symbols."""
        return OPERATIONS[self.op](
            *(a if isinstance(a, (int, float)) else a.evaluate(values) for a in self.args)
        )

    def ratio(self) -> tuple[e.Expr, e.Expr] | None:
        """(n, d) if this is the correctly rounded quotient of two integers."""
        if self.op == "float" and isinstance(self.args[0], e.Expr):
            return self.args[0], e.ONE
        if self.op == "truediv":
            n, d = (_whole(arg) for arg in self.args)
            return (n, d) if n is not None and d is not None else None
        if self.op == "mul":
            for left, right in (self.args, self.args[::-1]):
                n = _whole(left)
                if n is not None and isinstance(right, float) and math.isfinite(right):
                    factor = Fraction(right)
                    return n * factor.numerator, e.constant(factor.denominator)
        return None

    def __str__(self) -> str:
        return f"{self.op}({', '.join(map(str, self.args))})"


def _whole(arg: FloatLike) -> e.Expr | None:
    """The integer that an argument is (an int made a float counts)."""
    if isinstance(arg, e.Expr):
        return arg
    if isinstance(arg, float):
        return e.constant(int(arg)) if arg.is_integer() else None
    if arg.op == "float" and isinstance(arg.args[0], e.Expr):
        return arg.args[0]
    return None
