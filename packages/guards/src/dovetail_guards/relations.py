"""Relations between integer expressions, interned: `==`, `<=`, and their `and`, `or`, `not`.

Each is brought to one form, so that relations that say the same are mostly one object, however they
were written: all terms stand on one side, their coefficients have no common divisor, and `<`, `>=`
and `>` are written with `<=`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from typing import Any

from dovetail_guards.expr import Expr, IntLike, as_expr, content, of_terms, print_terms


class BoolExpr:
    """A relation: `kind` is true, false, eq or le (`args[0]` compared with 0), and, or, not."""

    __slots__ = ("_symbols", "args", "kind")

    kind: str
    args: tuple[Any, ...]
    _symbols: frozenset[str]

    @property
    def value(self) -> bool | None:
        """The truth value, if this is a constant."""
        return True if self.kind == "true" else False if self.kind == "false" else None

    def free_symbols(self) -> frozenset[str]:
        """Names of all symbols in it."""
        return self._symbols

    def evaluate(self, values: Mapping[str, int]) -> bool:
        """The truth value for given symbols."""
        match self.kind:
            case "eq":
                return bool(self.args[0].evaluate(values) == 0)
            case "le":
                return bool(self.args[0].evaluate(values) <= 0)
            case "and":
                return all([arg.evaluate(values) for arg in self.args])
            case "or":
                return any([arg.evaluate(values) for arg in self.args])
            case "not":
                return not self.args[0].evaluate(values)
        return self.kind == "true"

    def substitute(self, values: Mapping[str, IntLike]) -> BoolExpr:
        """The relation with symbols replaced."""
        args = tuple(arg.substitute(values) for arg in self.args)
        match self.kind:
            case "eq":
                return eq(args[0], 0)
            case "le":
                return le(args[0], 0)
            case "and":
                return and_(*args)
            case "or":
                return or_(*args)
            case "not":
                return not_(args[0])
        return self

    def __str__(self) -> str:
        match self.kind:
            case "eq":
                return _print_comparison(self.args[0], "==")
            case "le":
                return _print_comparison(self.args[0], "<=")
            case "and" | "or":
                return "(" + f" {self.kind} ".join(str(arg) for arg in self.args) + ")"
            case "not":
                inner = self.args[0]
                if inner.kind == "eq":
                    return _print_comparison(inner.args[0], "!=")
                return f"not ({inner})"
        return self.kind.capitalize()

    __repr__ = __str__

    def __reduce__(self) -> Any:
        return (_bool, (self.kind, self.args))


_bools: dict[Any, BoolExpr] = {}


def _bool(kind: str, args: tuple[Any, ...] = ()) -> BoolExpr:
    found = _bools.get((kind, args))
    if found is None:
        found = BoolExpr()
        found._symbols = frozenset().union(*(arg.free_symbols() for arg in args))
        found.kind, found.args = kind, args
        _bools[kind, args] = found
    return found


TRUE = _bool("true")
FALSE = _bool("false")


@lru_cache(maxsize=65536)
def eq(a: IntLike, b: IntLike) -> BoolExpr:
    """`a == b`."""
    difference = as_expr(a) - as_expr(b)
    if difference.value is not None:
        return TRUE if difference.value == 0 else FALSE
    common = content(difference)
    if difference.terms[0][1] < 0:
        common = -common
    if any(c % common for _, c in difference.terms):
        return FALSE  # 2*x + 1 == 0 has no integer solution
    return _bool("eq", (of_terms(tuple((m, c // common) for m, c in difference.terms)),))


@lru_cache(maxsize=65536)
def le(a: IntLike, b: IntLike) -> BoolExpr:
    """`a <= b`."""
    difference = as_expr(a) - as_expr(b)
    if difference.value is not None:
        return TRUE if difference.value <= 0 else FALSE
    common = content(difference)
    # g*x + c <= 0 is x <= -c / g, rounded down for integers: x + ceil(c / g) <= 0
    terms = tuple((m, c // common if m else -(-c // common)) for m, c in difference.terms)
    return _bool("le", (of_terms(tuple((m, c) for m, c in terms if c)),))


def ne(a: IntLike, b: IntLike) -> BoolExpr:
    """`a != b`."""
    return not_(eq(a, b))


def lt(a: IntLike, b: IntLike) -> BoolExpr:
    """`a < b`."""
    return le(as_expr(a) + 1, b)


def ge(a: IntLike, b: IntLike) -> BoolExpr:
    """`a >= b`."""
    return le(b, a)


def gt(a: IntLike, b: IntLike) -> BoolExpr:
    """`a > b`."""
    return lt(b, a)


def not_(a: BoolExpr) -> BoolExpr:
    """`not a`."""
    match a.kind:
        case "true":
            return FALSE
        case "false":
            return TRUE
        case "not":
            inner: BoolExpr = a.args[0]
            return inner
        case "le":  # not x <= 0: x >= 1
            return le(1, a.args[0])
        case "and":
            return or_(*(not_(arg) for arg in a.args))
        case "or":
            return and_(*(not_(arg) for arg in a.args))
    return _bool("not", (a,))


def _junction(kind: str, neutral: BoolExpr, zero: BoolExpr, args: Iterable[BoolExpr]) -> BoolExpr:
    flat: dict[BoolExpr, None] = {}
    for arg in args:
        flat.update(dict.fromkeys(arg.args if arg.kind == kind else (arg,)))
    flat.pop(neutral, None)
    if zero in flat or any(not_(arg) in flat for arg in flat):
        return zero
    if len(flat) <= 1:
        return next(iter(flat), neutral)
    return _bool(kind, tuple(sorted(flat, key=str)))


def and_(*args: BoolExpr) -> BoolExpr:
    """All of them."""
    return _junction("and", TRUE, FALSE, args)


def or_(*args: BoolExpr) -> BoolExpr:
    """One of them at least."""
    return _junction("or", FALSE, TRUE, args)


def _print_comparison(difference: Expr, relation: str) -> str:
    """Positive terms on the left, negative ones on the right, numbers on the right."""
    left = tuple((m, c) for m, c in difference.terms if c > 0 and m)
    right = tuple((m, -c) for m, c in difference.terms if c < 0 or not m)
    if left:
        return f"{print_terms(left)} {relation} {print_terms(right)}"
    flipped = {"<=": ">="}.get(relation, relation)
    left = tuple((m, -c) for m, c in difference.terms if m)
    right = tuple((m, c) for m, c in difference.terms if not m)
    return f"{print_terms(left)} {flipped} {print_terms(right)}"


def compared(relation: BoolExpr) -> Iterator[Expr]:
    """The expressions that are compared with 0 in a relation."""
    if relation.kind in ("eq", "le"):
        yield relation.args[0]
    else:
        for part in relation.args:
            yield from compared(part)


def has_atom(relation: BoolExpr, kinds: tuple[str, ...]) -> bool:
    """Whether one of these functions is a term, or a factor of one, of what is compared."""
    return any(atom.kind in kinds for expr in compared(relation) for atom in expr.atoms())
