"""Floating-point values that depend on sizes or on float inputs, e.g. `1 / x.size(0)`, `lr * 2`.

They are kept as trees, and decided by specialising the symbols in them. There are two exceptions:
the floor and ceiling of ratios of integers are integer expressions again, and comparisons of a
float input with a number are relations over the input's *key*, an integer that orders as the floats
do. A float input's symbol stands for its key.
"""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any, Union

from dovetail_guards import expr as e
from dovetail_guards.relations import BoolExpr
from dovetail_guards.source import Source

FloatLike = Union["FloatExpr", e.Expr, float]

EXACT = 2**52
"""Integers up to here, and floors of their quotients, are exact in double precision."""

MOST_PARTS = 128
"""An expression of more parts than this is not kept: the floats in it become plain numbers."""

_MAGNITUDE = 2**63 - 1


def key_of(value: float) -> int:
    """An integer that orders as the floats do; 0.0 and -0.0 have the same."""
    (bits,) = struct.unpack("<q", struct.pack("<d", value))
    return int(bits) if bits >= 0 else -(bits & _MAGNITUDE)


def float_of_key(key: int) -> float:
    """The float with this key (0.0 for 0)."""
    (value,) = struct.unpack("<d", struct.pack("<q", abs(key)))
    return -float(value) if key < 0 else float(value)


INFINITE_KEY = key_of(math.inf)
"""Keys beyond it, on either side, are NaNs."""

INPUT = "input"
"""The operation of a leaf: the float whose key is the symbol."""


OPERATIONS: dict[str, Callable[..., float | bool]] = {
    INPUT: float_of_key,
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


_COMPARED = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}
_OPERATORS = {
    "add": "+", "sub": "-", "mul": "*", "truediv": "/", "floordiv": "//", "mod": "%", "pow": "**",
    **_COMPARED,
}  # fmt: skip
_SYMBOL = re.compile(r"\b[a-z]\d+\b")


def _is_closed(arg: FloatLike) -> bool:
    if isinstance(arg, FloatExpr):
        return arg.closed
    return isinstance(arg, (int, float)) or not arg.free_symbols()


@dataclass(frozen=True)
class FloatExpr:
    """`op(*args)`, a float (or, for comparisons, a bool). `parts` counts the operations and
    operands in it; `closed` is where it holds no symbol. Zeros of either sign are equal, but not
    the same operand."""

    op: str
    args: tuple[FloatLike, ...]
    parts: int = field(init=False, compare=False, repr=False)
    closed: bool = field(init=False, compare=False, repr=False)
    _below_zero: tuple[bool, ...] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        below = (arg.parts if isinstance(arg, FloatExpr) else 1 for arg in self.args)
        object.__setattr__(self, "parts", 1 + sum(below))
        object.__setattr__(self, "closed", all(_is_closed(arg) for arg in self.args))
        signs = (isinstance(arg, float) and math.copysign(1.0, arg) < 0 for arg in self.args)
        object.__setattr__(self, "_below_zero", tuple(signs))

    @property
    def is_truth(self) -> bool:
        """Whether this is a comparison."""
        return self.op in _COMPARED or self.op == "is_integer"

    def free_symbols(self) -> frozenset[str]:
        """Names of all symbols in it."""
        parts = [arg.free_symbols() for arg in self.args if not isinstance(arg, (int, float))]
        return frozenset().union(*parts)

    def evaluate(self, values: Mapping[str, int]) -> float | bool:
        """The value for given symbols."""
        return OPERATIONS[self.op](
            *(a if isinstance(a, (int, float)) else a.evaluate(values) for a in self.args)
        )

    def replace(self, one: Callable[[e.Expr], e.Expr]) -> FloatExpr | float | bool:
        """The expression with its integer parts replaced; a number if no symbol is left."""
        args: list[FloatLike] = []
        for arg in self.args:
            if isinstance(arg, FloatExpr):
                arg = arg.replace(one)
            elif isinstance(arg, e.Expr):
                arg = one(arg)
            args.append(arg)
        made = FloatExpr(self.op, tuple(args))
        return made.evaluate({}) if made.closed else made

    def input_name(self) -> str | None:
        """The symbol, if this is a float input itself."""
        if self.op != INPUT:
            return None
        (symbol,) = self.args
        return symbol.symbol_name if isinstance(symbol, e.Expr) else None

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

    def as_text(self, text_of: Callable[[str], str]) -> str:
        """As a person writes it, with `text_of` each symbol."""
        name = self.input_name()
        if name is not None:
            return text_of(name)
        args = [
            arg.as_text(text_of)
            if isinstance(arg, FloatExpr)
            else _SYMBOL.sub(lambda found: text_of(found[0]), str(arg))
            for arg in self.args
        ]
        if self.op == "float" and isinstance(self.args[0], e.Expr):
            return args[0]
        if self.op in _OPERATORS:
            return f"({args[0]} {_OPERATORS[self.op]} {args[1]})"
        return f"{self.op}({', '.join(args)})"

    def __str__(self) -> str:
        name = self.input_name()
        if name is not None:
            return name
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


# --- whole numbers that are rounded from floats ---------------------------------------------------
# The integer algebra has no such operation. But what sizes and inputs the number comes from is
# known before a compiled program runs: it is computed then, by Python's own arithmetic, and passed
# as an input; guards on it compute it likewise.

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
