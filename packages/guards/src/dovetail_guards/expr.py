"""Integer expressions over size symbols, interned: equal expressions are one object.

An `Expr` is a polynomial with integer coefficients over *atoms*: symbols, and the floor
divisions, remainders, minima and maxima that do not simplify away. (Relations between them are in
`relations`.) All rewriting keeps the value wherever the original is defined (a division by zero is
nowhere defined). Sizes are mathematical integers here; nothing wraps around.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any, Union

IntLike = Union["Expr", int]

# A monomial is atoms with their powers, sorted; the empty one stands for the constant 1.
Monomial = tuple[tuple["Atom", int], ...]
Terms = tuple[tuple[Monomial, int], ...]


class Atom:
    """A symbol (`kind` "sym", its `name`) or an operation on expressions (`args`)."""

    __slots__ = ("args", "kind", "name", "text")

    kind: str
    name: str
    args: tuple[Expr, ...]
    text: str

    def __repr__(self) -> str:
        return self.text

    def __reduce__(self) -> Any:
        return (_atom, (self.kind, self.name, self.args))


class Expr:
    """An integer polynomial over atoms. Made by `symbol`, `constant` and the operators."""

    __slots__ = ("__weakref__", "_text", "terms")

    terms: Terms
    _text: str | None

    # --- reading ------------------------------------------------------------------------------

    @property
    def value(self) -> int | None:
        """The number, if this is a constant."""
        if not self.terms:
            return 0
        if len(self.terms) == 1 and not self.terms[0][0]:
            return self.terms[0][1]
        return None

    @property
    def symbol_name(self) -> str | None:
        """The name, if this is a bare symbol."""
        if len(self.terms) == 1 and self.terms[0][1] == 1 and len(self.terms[0][0]) == 1:
            atom, power = self.terms[0][0][0]
            if power == 1 and atom.kind == "sym":
                return atom.name
        return None

    def atoms(self) -> tuple[Atom, ...]:
        """The atoms of the polynomial itself (not those inside other atoms)."""
        return tuple(dict.fromkeys(atom for monomial, _ in self.terms for atom, _ in monomial))

    def free_symbols(self) -> frozenset[str]:
        """Names of all symbols in it."""
        return _free_symbols(self)

    def evaluate(self, values: Mapping[str, int]) -> int:
        """The value for given symbols; ZeroDivisionError where it is undefined."""
        total = 0
        for monomial, coefficient in self.terms:
            product = coefficient
            for atom, power in monomial:
                product *= _atom_value(atom, values) ** power
            total += product
        return total

    def substitute(self, values: Mapping[str, IntLike]) -> Expr:
        """The expression with symbols replaced."""
        if self.free_symbols().isdisjoint(values):
            return self
        total = ZERO
        for monomial, coefficient in self.terms:
            product = constant(coefficient)
            for atom, power in monomial:
                product = product * power_of(_substitute_atom(atom, values), power)
            total = total + product
        return total

    # --- arithmetic ---------------------------------------------------------------------------

    def __add__(self, other: IntLike) -> Expr:
        return _add(self, as_expr(other))

    def __sub__(self, other: IntLike) -> Expr:
        return _add(self, _scale(as_expr(other), -1))

    def __mul__(self, other: IntLike) -> Expr:
        return _scale(self, other) if type(other) is int else _mul(self, as_expr(other))

    def __neg__(self) -> Expr:
        return _scale(self, -1)

    def __floordiv__(self, other: IntLike) -> Expr:
        return floordiv(self, as_expr(other))

    def __mod__(self, other: IntLike) -> Expr:
        return mod(self, as_expr(other))

    def __radd__(self, other: int) -> Expr:
        return self + other

    def __rmul__(self, other: int) -> Expr:
        return self * other

    def __rsub__(self, other: int) -> Expr:
        return as_expr(other) - self

    def __rfloordiv__(self, other: int) -> Expr:
        return as_expr(other) // self

    def __rmod__(self, other: int) -> Expr:
        return as_expr(other) % self

    def __pow__(self, power: int) -> Expr:
        return power_of(self, power)

    def __str__(self) -> str:
        if self._text is None:
            self._text = print_terms(self.terms)
        return self._text

    __repr__ = __str__

    def __reduce__(self) -> Any:
        return (of_terms, (self.terms,))


# --- interning -----------------------------------------------------------------------------------

_atoms: dict[Any, Atom] = {}
_exprs: dict[Terms, Expr] = {}


def _atom(kind: str, name: str, args: tuple[Expr, ...]) -> Atom:
    found = _atoms.get((kind, name, args))
    if found is None:
        found = _atoms[kind, name, args] = Atom()
        found.kind, found.name, found.args = kind, name, args
        found.text = _print_atom(kind, name, args)
    return found


def of_terms(terms: Terms) -> Expr:
    """The expression with these terms: sorted by `_order`, one a monomial, none of them zero."""
    found = _exprs.get(terms)
    if found is None:
        found = _exprs[terms] = Expr()
        found.terms, found._text = terms, None
    return found


def _order(term: tuple[Monomial, int]) -> Any:
    """Higher degrees first, then by name; constants last. The same in every process."""
    monomial = term[0]
    return (-sum(p for _, p in monomial), [(a.text, -p) for a, p in monomial])


def _collect(terms: dict[Monomial, int]) -> Expr:
    return of_terms(tuple(sorted(((m, c) for m, c in terms.items() if c), key=_order)))


def symbol(name: str) -> Expr:
    """The symbol called `name`."""
    return of_atom(_atom("sym", name, ()))


def of_atom(atom: Atom) -> Expr:
    """The expression that is just this atom."""
    return of_terms(((((atom, 1),), 1),))


@lru_cache(maxsize=4096)
def constant(value: int) -> Expr:
    """The number `value`."""
    return of_terms((((), int(value)),)) if value else of_terms(())


ZERO = constant(0)
ONE = constant(1)


def as_expr(value: IntLike) -> Expr:
    """An expression, or an int made one."""
    return value if isinstance(value, Expr) else constant(value)


# --- polynomial arithmetic -----------------------------------------------------------------------


@lru_cache(maxsize=65536)
def _add(a: Expr, b: Expr) -> Expr:
    terms = dict(a.terms)
    for monomial, coefficient in b.terms:
        terms[monomial] = terms.get(monomial, 0) + coefficient
    return _collect(terms)


@lru_cache(maxsize=65536)
def _scale(a: Expr, factor: int) -> Expr:
    return of_terms(tuple((m, c * factor) for m, c in a.terms)) if factor else ZERO


@lru_cache(maxsize=65536)
def _mul(a: Expr, b: Expr) -> Expr:
    terms: dict[Monomial, int] = {}
    for m, c in a.terms:
        for n, d in b.terms:
            product = _mul_monomials(m, n)
            terms[product] = terms.get(product, 0) + c * d
    return _collect(terms)


def _mul_monomials(m: Monomial, n: Monomial) -> Monomial:
    if not m or not n:
        return m or n
    powers = dict(m)
    for atom, power in n:
        powers[atom] = powers.get(atom, 0) + power
    return tuple(sorted(powers.items(), key=lambda item: item[0].text))


def _div_monomials(m: Monomial, n: Monomial) -> Monomial | None:
    powers = dict(m)
    for atom, power in n:
        left = powers.get(atom, 0) - power
        if left < 0:
            return None
        powers[atom] = left
    return tuple((atom, power) for atom, power in powers.items() if power)


def power_of(base: Expr, power: int) -> Expr:
    """`base ** power` for a power >= 0."""
    if power < 0:
        raise ValueError("a negative power of an integer expression is no integer")
    result = ONE
    for _ in range(power):
        result = result * base
    return result


def divide_exactly(a: Expr, b: Expr) -> Expr | None:
    """q with `a == q * b` as polynomials, or None."""
    if not b.terms:
        return None
    (lead, lead_coefficient), quotient = b.terms[0], ZERO
    for _ in range(64):
        if not a.terms:
            return quotient
        monomial, coefficient = a.terms[0]
        left = _div_monomials(monomial, lead)
        if left is None or coefficient % lead_coefficient:
            return None
        step = of_terms(((left, coefficient // lead_coefficient),))
        quotient, a = quotient + step, a - step * b
    return None


def _split(a: Expr, b: Expr) -> tuple[Expr, Expr]:
    """(q, r) with `a == q*b + r`, taking into q what `b` (a number or one term) divides."""
    if len(b.terms) != 1:
        return ZERO, a
    monomial, divisor = b.terms[0]
    quotient: dict[Monomial, int] = {}
    rest: dict[Monomial, int] = {}
    for m, c in a.terms:
        left = _div_monomials(m, monomial)
        q, r = (0, c) if left is None else divmod(c, divisor)
        if left is not None and q:
            quotient[left] = quotient.get(left, 0) + q
        if r:
            rest[m] = r
    return _collect(quotient), _collect(rest)


def content(a: Expr) -> int:
    """The greatest common divisor of the coefficients, the constant left out."""
    return math.gcd(*(c for m, c in a.terms if m))


@lru_cache(maxsize=65536)
def floordiv(a: Expr, b: Expr) -> Expr:
    """`a // b`, rounded down as in Python."""
    divisor = b.value
    if divisor == 0:
        raise ZeroDivisionError("a size expression is divided by zero")
    if divisor == 1:
        return a
    exact = divide_exactly(a, b)
    if exact is not None:
        return exact
    # (q*b + r) // b == q + r // b
    quotient, rest = _split(a, b)
    if divisor is not None and divisor > 1:
        # (g*x + c) // (g*d) == (x + c // g) // d
        common = math.gcd(content(rest), divisor)
        if common > 1:
            rest = of_terms(tuple((m, c // common) for m, c in rest.terms if c // common))
            return quotient + floordiv(rest, constant(divisor // common))
        inner = _single_atom(rest)
        # (x // m) // n == x // (m*n) for positive numbers
        if inner is not None and inner.kind == "floordiv":
            below = inner.args[1].value
            if below is not None and below > 0:
                return quotient + floordiv(inner.args[0], constant(below * divisor))
    if rest.value is not None and divisor is not None:
        return quotient + rest.value // divisor
    if rest is ZERO:
        return quotient
    return quotient + of_atom(_atom("floordiv", "", (rest, b)))


def _single_atom(a: Expr) -> Atom | None:
    if len(a.terms) == 1 and a.terms[0][1] == 1 and len(a.terms[0][0]) == 1:
        atom, power = a.terms[0][0][0]
        return atom if power == 1 else None
    return None


@lru_cache(maxsize=65536)
def mod(a: Expr, b: Expr) -> Expr:
    """`a % b`, with the sign of `b` as in Python."""
    divisor = b.value
    if divisor == 0:
        raise ZeroDivisionError("a size expression is taken modulo zero")
    if divisor in (1, -1) or divide_exactly(a, b) is not None:
        return ZERO
    _, rest = _split(a, b)
    if divisor is not None and divisor > 1:
        if rest.value is not None:
            return constant(rest.value % divisor)
        common = math.gcd(content(rest), divisor)
        if common > 1:  # (g*x + c) % (g*d) == g * ((x + c // g) % d) + c % g
            low = sum(c for m, c in rest.terms if not m) % common
            rest = of_terms(tuple((m, c // common) for m, c in rest.terms if c // common))
            return _scale(mod(rest, constant(divisor // common)), common) + low
        inner = _single_atom(rest)
        if inner is not None and inner.kind == "mod":  # (x % (k*d)) % d == x % d
            modulus = inner.args[1].value
            if modulus is not None and modulus % divisor == 0:
                return mod(inner.args[0], b)
    if rest is ZERO:
        return ZERO
    return of_atom(_atom("mod", "", (rest, b)))


def _extreme(kind: str, args: Iterable[IntLike]) -> Expr:
    pick = min if kind == "min" else max
    flat: list[Expr] = []
    for arg in map(as_expr, args):
        atom = _single_atom(arg)
        flat += atom.args if atom is not None and atom.kind == kind else (arg,)
    kept: list[Expr] = []
    for arg in dict.fromkeys(flat):  # of two that differ by a number, one is never chosen
        for i, other in enumerate(kept):
            difference = (arg - other).value
            if difference is not None:
                kept[i] = other if pick(difference, 0) == 0 else arg
                break
        else:
            kept.append(arg)
    if len(kept) == 1:
        return kept[0]
    return of_atom(_atom(kind, "", tuple(sorted(kept, key=str))))


def min_(*args: IntLike) -> Expr:
    """The least of the arguments."""
    return _extreme("min", args)


def max_(*args: IntLike) -> Expr:
    """The greatest of the arguments."""
    return _extreme("max", args)


# --- what is inside atoms -------------------------------------------------------------------------


@lru_cache(maxsize=65536)
def _free_symbols(expr: Expr) -> frozenset[str]:
    names: set[str] = set()
    for atom in expr.atoms():
        if atom.kind == "sym":
            names.add(atom.name)
        for arg in atom.args:
            names |= _free_symbols(arg)
    return frozenset(names)


def _atom_value(atom: Atom, values: Mapping[str, int]) -> int:
    match atom.kind:
        case "sym":
            return values[atom.name]
        case "floordiv":
            return atom.args[0].evaluate(values) // atom.args[1].evaluate(values)
        case "mod":
            return atom.args[0].evaluate(values) % atom.args[1].evaluate(values)
    pick = min if atom.kind == "min" else max
    return pick(arg.evaluate(values) for arg in atom.args)


def apply_atom(kind: str, args: tuple[Expr, ...]) -> Expr:
    """The operation of an atom of this kind on new arguments."""
    if kind in ("min", "max"):
        return _extreme(kind, args)
    return floordiv(*args) if kind == "floordiv" else mod(*args)


def _substitute_atom(atom: Atom, values: Mapping[str, IntLike]) -> Expr:
    if atom.kind == "sym":
        return as_expr(values.get(atom.name, of_atom(atom)))
    return apply_atom(atom.kind, tuple(arg.substitute(values) for arg in atom.args))


# --- printing ------------------------------------------------------------------------------------


def _print_atom(kind: str, name: str, args: tuple[Expr, ...]) -> str:
    if kind == "sym":
        return name
    if kind in ("min", "max"):
        return f"{kind}({', '.join(map(str, args))})"
    left, right = (_parenthesise(arg) for arg in args)
    return f"({left} {'//' if kind == 'floordiv' else '%'} {right})"


def _parenthesise(expr: Expr) -> str:
    simple = expr.value is not None and expr.value >= 0
    return str(expr) if simple or _single_atom(expr) is not None else f"({expr})"


def print_terms(terms: Terms) -> str:
    """A sum of terms as Python would write it."""
    if not terms:
        return "0"
    text = ""
    for monomial, coefficient in terms:
        factors = [a.text if p == 1 else f"{a.text}**{p}" for a, p in monomial]
        if abs(coefficient) != 1 or not factors:
            factors.insert(0, str(abs(coefficient)))
        sign = ("-" if coefficient < 0 else "") if not text else " - " if coefficient < 0 else " + "
        text += sign + "*".join(factors)
    return text
