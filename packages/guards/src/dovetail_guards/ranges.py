"""What is known of an integer: its value range, and its remainder modulo something.

`Range` and `Congruence` are small value types with conservative arithmetic: if `x` is in `a` and
`y` is in `b`, then `x + y` is in `a + b`, and so on.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from dovetail_guards.expr import Atom, Expr, apply_atom, constant, of_atom, symbol
from dovetail_guards.relations import BoolExpr, le

_INF = math.inf
Bound = int | float  # an int, or one of the infinities


def _times(a: Bound, b: Bound) -> Bound:
    return 0 if a == 0 or b == 0 else a * b  # 0 * inf is 0 here: no finite value is infinite


def _over(a: Bound, b: Bound) -> Bound:
    """floor(a / b) for b != 0, also with infinities."""
    if abs(a) == _INF:
        return a if b > 0 else -a
    if abs(b) == _INF:
        return 0 if a == 0 or (a > 0) == (b > 0) else -1
    return a // b


@dataclass(frozen=True)
class Range:
    """All integers from `lower` to `upper`, both included; either may be infinite."""

    lower: Bound = -_INF
    upper: Bound = _INF

    def __contains__(self, value: int) -> bool:
        return self.lower <= value <= self.upper

    def __and__(self, other: Range) -> Range:
        return Range(max(self.lower, other.lower), min(self.upper, other.upper))

    @property
    def is_empty(self) -> bool:
        """No integer is in it."""
        return self.lower > self.upper

    def __add__(self, other: Range) -> Range:
        return Range(self.lower + other.lower, self.upper + other.upper)

    def __mul__(self, other: Range) -> Range:
        corners = [
            _times(a, b) for a in (self.lower, self.upper) for b in (other.lower, other.upper)
        ]
        return Range(min(corners), max(corners))

    def __pow__(self, power: int) -> Range:
        result = Range(1, 1)
        for _ in range(power):
            result = result * self
        if power % 2 == 0:  # an even power is never negative
            result = result & Range(0, _INF)
        return result

    def __floordiv__(self, other: Range) -> Range:
        parts = [
            part
            for part in (other & Range(1, _INF), other & Range(-_INF, -1))  # zero is undefined
            if not part.is_empty
        ]
        corners = [
            _over(a, b)
            for part in parts
            for a in (self.lower, self.upper)
            for b in (part.lower, part.upper)
        ]
        return Range(min(corners), max(corners)) if corners else Range()

    def __mod__(self, other: Range) -> Range:
        if other.lower >= 1:
            if self.lower >= 0:
                if self.upper < other.lower:
                    return self
                return Range(0, min(self.upper, other.upper - 1))
            return Range(0, other.upper - 1)
        if other.upper <= -1:
            return Range(other.lower + 1, 0)
        return Range(min(other.lower + 1, 0), max(other.upper - 1, 0))


ANY = Range()


@dataclass(frozen=True)
class Congruence:
    """All integers that leave `remainder` when divided by `modulus`.

    Modulus 1 says nothing; modulus 0 says that the integer *is* `remainder`.
    """

    modulus: int = 1
    remainder: int = 0

    def __post_init__(self) -> None:
        if self.modulus:
            object.__setattr__(self, "remainder", self.remainder % self.modulus)

    def __contains__(self, value: int) -> bool:
        if self.modulus == 0:
            return value == self.remainder
        return value % self.modulus == self.remainder

    def __add__(self, other: Congruence) -> Congruence:
        return Congruence(math.gcd(self.modulus, other.modulus), self.remainder + other.remainder)

    def __mul__(self, other: Congruence) -> Congruence:
        # (m*x + r) * (n*y + s) = m*n*x*y + m*s*x + n*r*y + r*s
        m, r, n, s = self.modulus, self.remainder, other.modulus, other.remainder
        return Congruence(math.gcd(m * n, m * s, n * r), r * s)

    def join(self, other: Congruence) -> Congruence:
        """What holds for a value that is in one of the two."""
        modulus = math.gcd(self.modulus, other.modulus, self.remainder - other.remainder)
        return Congruence(modulus, self.remainder)


class Facts:
    """What is known of symbols, and from that of expressions.

    What follows for an expression is kept until more is known: sizes behind several convolutions
    are divisions in divisions, and each would be gone through once for each that holds it.
    """

    def __init__(
        self,
        ranges: Mapping[str, Range] | None = None,
        congruences: Mapping[str, Congruence] | None = None,
    ) -> None:
        self._ranges = dict(ranges or {})
        self._congruences = dict(congruences or {})
        self.ranges: Mapping[str, Range] = MappingProxyType(self._ranges)
        self.congruences: Mapping[str, Congruence] = MappingProxyType(self._congruences)
        self._atom_ranges: dict[Atom, Range] = {}
        self._simplified: dict[Expr, Expr] = {}
        self._decided: dict[BoolExpr, bool | None] = {}

    def __reduce__(self) -> tuple[Any, ...]:
        return Facts, (self._ranges, self._congruences)

    def __repr__(self) -> str:
        return f"Facts({self._ranges}, {self._congruences})"

    def set_range(self, name: str, known: Range) -> None:
        """What is known of a symbol's range from here on."""
        if self._ranges.get(name) != known:
            self._ranges[name] = known
            self._forget()

    def set_congruence(self, name: str, known: Congruence) -> None:
        """What is known of a symbol's remainder from here on."""
        if self._congruences.get(name) != known:
            self._congruences[name] = known
            self._forget()

    def _forget(self) -> None:
        self._atom_ranges.clear()
        self._simplified.clear()
        self._decided.clear()

    def range_of(self, expr: Expr) -> Range:
        """A range that holds the value of `expr`."""
        total = Range(0, 0)
        for monomial, coefficient in expr.terms:
            product = Range(coefficient, coefficient)
            for atom, power in monomial:
                product = product * self._range_of_atom(atom) ** power
            total = total + product
        return total

    def _range_of_atom(self, atom: Atom) -> Range:
        if atom.kind == "sym":
            return self._ranges.get(atom.name, ANY)
        known = self._atom_ranges.get(atom)
        if known is None:
            known = self._atom_ranges[atom] = self._range_of_operation(atom)
        return known

    def _range_of_operation(self, atom: Atom) -> Range:
        args = [self.range_of(arg) for arg in atom.args]
        if atom.kind in ("floordiv", "mod"):
            divisor = args[1]
            if divisor.lower < 1 and self._never_positive(1 - atom.args[1]):
                divisor = divisor & Range(1, _INF)  # (the quotient of a size, rounded up, say)
            return args[0] // divisor if atom.kind == "floordiv" else args[0] % divisor
        pick = min if atom.kind == "min" else max
        return Range(pick(a.lower for a in args), pick(a.upper for a in args))

    def congruence_of(self, expr: Expr) -> Congruence:
        """A congruence that holds for the value of `expr`."""
        total = Congruence(0, 0)
        for monomial, coefficient in expr.terms:
            product = Congruence(0, coefficient)
            for atom, power in monomial:
                for _ in range(power):
                    product = product * self._congruence_of_atom(atom)
            total = total + product
        return total

    def _congruence_of_atom(self, atom: Atom) -> Congruence:
        if atom.kind == "sym":
            return self._congruences.get(atom.name, Congruence())
        if atom.kind in ("min", "max"):
            result = self.congruence_of(atom.args[0])
            for arg in atom.args[1:]:
                result = result.join(self.congruence_of(arg))
            return result
        below = atom.args[1].value
        if below is None or below <= 0:
            return Congruence()
        above = self.congruence_of(atom.args[0])
        if atom.kind == "mod":
            # x = m*k + r, so x % n leaves r modulo gcd(m, n)
            return Congruence(math.gcd(above.modulus, below), above.remainder)
        if above.modulus % below == 0:  # (m*k + r) // n == (m//n)*k + r // n
            return Congruence(above.modulus // below, above.remainder // below)
        return Congruence()

    def decide(self, relation: BoolExpr) -> bool | None:
        """The truth of a relation if the facts settle it."""
        if relation not in self._decided:
            self._decided[relation] = self._decide(relation)
        return self._decided[relation]

    def _decide(self, relation: BoolExpr) -> bool | None:
        match relation.kind:
            case "true":
                return True
            case "false":
                return False
            case "le":
                difference = self.simplify(relation.args[0])
                seen = self.range_of(difference)
                if seen.upper <= 0 or seen.lower > 0:
                    return seen.upper <= 0
                if self._never_positive(difference):
                    return True
                return False if self._never_positive(1 - difference) else None
            case "eq":
                difference = self.simplify(relation.args[0])
                seen = self.range_of(difference)
                if seen.lower == seen.upper == 0:
                    return True
                if 0 not in seen or 0 not in self.congruence_of(difference):
                    return False
                if self._never_positive(1 - difference) or self._never_positive(1 + difference):
                    return False
                return None
            case "not":
                inner = self.decide(relation.args[0])
                return None if inner is None else not inner
        truths = [self.decide(arg) for arg in relation.args]
        zero = relation.kind == "or"
        if zero in truths:
            return zero
        return not zero if None not in truths else None

    def _never_positive(self, expr: Expr, depth: int = 3) -> bool:
        """Whether `expr <= 0` follows where the terms' own ranges are too coarse.

        A floor division is bounded by the exact quotient (`x - d + 1 <= d * (x // d) <= x`), and
        symbols are counted from their least value: then it is enough that no coefficient is
        positive.
        """
        for monomial, coefficient in expr.terms:
            if len(monomial) == 1 and monomial[0][1] == 1 and monomial[0][0].kind == "floordiv":
                atom = monomial[0][0]
                below = atom.args[1].value
                if below is None or below <= 0 or not depth:
                    return False
                above = atom.args[0] if coefficient > 0 else atom.args[0] - (below - 1)
                rest = expr - of_atom(atom) * coefficient
                # (An integer is at most 0 if it is below 1: if d times it is at most d - 1.)
                bound = rest * below + above * coefficient - (below - 1)
                return self._never_positive(bound, depth - 1)
        shifted = {}
        for name in expr.free_symbols():
            least = self._ranges.get(name, ANY).lower
            if least == -_INF:
                return False
            if least:
                shifted[name] = symbol(name) + int(least)
        terms = (expr.substitute(shifted) if shifted else expr).terms
        return all(
            coefficient <= 0 and all(atom.kind == "sym" for atom, _ in monomial)
            for monomial, coefficient in terms
        )

    def simplify(self, expr: Expr) -> Expr:
        """The expression with atoms resolved that the facts decide."""
        known = self._simplified.get(expr)
        if known is None:
            known = self._simplified[expr] = self._simplify_terms(expr)
        return known

    def _simplify_terms(self, expr: Expr) -> Expr:
        total = constant(0)
        for monomial, coefficient in expr.terms:
            product = constant(1)
            for atom, power in monomial:
                divisor = self._even_divisor(atom)
                if power == 1 and divisor and coefficient % divisor == 0:
                    # n*(x // n) is x less what is known to be left over
                    coefficient //= divisor
                    left = self.congruence_of(atom.args[0]).remainder % divisor
                    product = product * (self.simplify(atom.args[0]) - left)
                else:
                    product = product * self._simplify_atom(atom) ** power
            total = total + product * coefficient
        return total

    def _even_divisor(self, atom: Atom) -> int:
        """By what an atom divides something of which it is known what is left over; or 0."""
        divisor = atom.args[1].value if atom.kind == "floordiv" else None
        if divisor is None or divisor <= 0:
            return 0
        return 0 if self.congruence_of(atom.args[0]).modulus % divisor else divisor

    def _simplify_atom(self, atom: Atom) -> Expr:
        known = self._range_of_atom(atom)
        if known.lower == known.upper:
            return constant(int(known.lower))
        if atom.kind == "sym":
            return symbol(atom.name)
        args = tuple(self.simplify(arg) for arg in atom.args)
        if atom.kind in ("floordiv", "mod") and args[1].value == 0:
            return of_atom(atom)  # nowhere defined
        if atom.kind == "mod":
            left, right = self.range_of(args[0]), self.range_of(args[1])
            if left.lower >= 0 and right.lower >= 1 and left.upper < right.lower:
                return args[0]
            below = args[1].value
            seen = self.congruence_of(args[0])
            if below is not None and below > 0 and seen.modulus % below == 0:
                return constant(seen.remainder % below)
        if atom.kind in ("min", "max"):
            args = self._without_dominated(atom.kind, args)
        return args[0] if len(args) == 1 else apply_atom(atom.kind, args)

    def _without_dominated(self, kind: str, args: tuple[Expr, ...]) -> tuple[Expr, ...]:
        kept = list(args)
        for arg in args:
            others = [other for other in kept if other is not arg]
            for other in others:
                smaller, larger = (other, arg) if kind == "min" else (arg, other)
                if self.decide(le(smaller, larger)) is True:
                    kept.remove(arg)
                    break
        return tuple(kept)


def range_if_nonpositive(expr: Expr) -> tuple[str, Range] | None:
    """(x, its range) for `expr = c*x + d` that is at most 0, or the same of a quotient `x // n`,
    which bounds x; None for any other expression."""
    linear = [(m, c) for m, c in expr.terms if m]
    if len(linear) != 1 or len(linear[0][0]) != 1:
        return None
    (((atom, power),), factor) = linear[0]
    if power != 1 or atom.kind not in ("sym", "floordiv"):
        return None
    rest = sum(c for m, c in expr.terms if not m)
    # x <= -d / c, or for a negative c: x >= d / -c rounded up
    most, least = -rest // factor if factor > 0 else None, -(-rest // -factor)
    if atom.kind == "floordiv":
        divisor = atom.args[1].value
        if divisor is None or divisor <= 0:
            return None
        if most is not None:
            return range_if_nonpositive(atom.args[0] - (most + 1) * divisor + 1)
        return range_if_nonpositive(least * divisor - atom.args[0])
    return atom.name, Range(lower=least) if most is None else Range(upper=most)
