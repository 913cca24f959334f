"""Index algebra: sums of integer multiples of loop variables, floor divisions, remainders and
values read from memory (indirect indexing).

An `Index` is immutable and in normal form, so equality of two indices is equality of the values.
Every atom knows its range, which is all the simplifier needs:

    (a*n + b) // n == a      when 0 <= b < n
    (a*n + b) %  n == b      when 0 <= b < n
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property
from math import gcd
from typing import TYPE_CHECKING, ClassVar

from dovetail_inductor.loop_ir import sizes

if TYPE_CHECKING:
    from dovetail_inductor.loop_ir.expr import Expr


def _last(size: int) -> int:
    """The greatest index below `size`."""
    return size - 1 if sizes.is_symbolic(size) else max(size - 1, 0)


@dataclass(frozen=True, slots=True)
class Var:
    """Loop variable number `id`, counting 0 .. size-1."""

    id: int
    size: int

    @property
    def bounds(self) -> tuple[int, int]:
        """Smallest and largest value."""
        return 0, _last(self.size)

    @property
    def sort_key(self) -> tuple[object, ...]:
        """Order among atoms."""
        return (0, self.id, sizes.hint_of(self.size))

    def __str__(self) -> str:
        return f"i{self.id}"


@dataclass(frozen=True, slots=True)
class _Division:
    inner: Index
    divisor: int
    rank: ClassVar[int]

    @property
    def sort_key(self) -> tuple[object, ...]:
        """Order among atoms."""
        return (self.rank, sizes.hint_of(self.divisor), self.inner.sort_key)


class FloorDiv(_Division):
    """`inner // divisor`."""

    __slots__ = ()
    rank = 1

    @property
    def bounds(self) -> tuple[int, int]:
        """Smallest and largest value."""
        low, high = self.inner.bounds
        return low // self.divisor, high // self.divisor

    def __str__(self) -> str:
        return f"({self.inner} // {self.divisor})"


class Mod(_Division):
    """`inner % divisor` with Python's sign."""

    __slots__ = ()
    rank = 2

    @property
    def bounds(self) -> tuple[int, int]:
        """Smallest and largest value."""
        return 0, self.divisor - 1

    def __str__(self) -> str:
        return f"({self.inner} % {self.divisor})"


@dataclass(frozen=True, slots=True)
class Indirect:
    """An integer read from memory, already checked to lie in 0 .. size-1."""

    value: Expr
    size: int

    @property
    def bounds(self) -> tuple[int, int]:
        """Smallest and largest value."""
        return 0, _last(self.size)

    @property
    def sort_key(self) -> tuple[object, ...]:
        """Order among atoms."""
        return (3, self.value.uid, sizes.hint_of(self.size))

    def __str__(self) -> str:
        return f"@{self.value.uid}"


Atom = Var | FloorDiv | Mod | Indirect


@dataclass(frozen=True)
class Index:
    """`const + sum(coefficient * atom)`; terms sorted by atom, no zero coefficients."""

    const: int
    terms: tuple[tuple[Atom, int], ...]

    @cached_property
    def _hash(self) -> int:
        return hash((self.const, self.terms))

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        return (
            isinstance(other, Index)
            and self._hash == other._hash
            and self.const == other.const
            and self.terms == other.terms
        )

    @cached_property
    def bounds(self) -> tuple[int, int]:
        """Smallest and largest value over the atoms' ranges."""
        low = high = self.const
        for atom, coefficient in self.terms:
            a, b = atom.bounds
            if coefficient >= 0:
                low, high = low + coefficient * a, high + coefficient * b
            else:
                low, high = low + coefficient * b, high + coefficient * a
        return low, high

    @property
    def sort_key(self) -> tuple[object, ...]:
        """Order among indices."""
        return (
            sizes.hint_of(self.const),
            tuple((a.sort_key, sizes.hint_of(c)) for a, c in self.terms),
        )

    @property
    def is_constant(self) -> bool:
        """True without variables."""
        return not self.terms

    def __add__(self, other: Index | int) -> Index:
        if not isinstance(other, Index):
            return self if other == 0 else Index(self.const + other, self.terms)
        if not other.terms:
            return self + other.const
        if not self.terms:
            return other + self.const
        return _from_terms(self.const + other.const, (*self.terms, *other.terms))

    def __sub__(self, other: Index | int) -> Index:
        return self + (other * -1 if isinstance(other, Index) else -other)

    def __mul__(self, factor: int) -> Index:
        if factor == 1:
            return self
        if factor == 0:
            return ZERO
        return Index(self.const * factor, tuple((a, c * factor) for a, c in self.terms))

    def floordiv(self, divisor: int) -> Index:
        """`self // divisor`, simplified."""
        if divisor == 1:
            return self
        found = _one_quotient(self.bounds, divisor)
        if found is not None:
            return constant(found)
        quotient = tuple((a, c // divisor) for a, c in self.terms if c % divisor == 0)
        rest_terms = tuple((a, c) for a, c in self.terms if c % divisor != 0)
        rest_const = self.const % divisor
        whole = Index((self.const - rest_const) // divisor, quotient)
        rest = Index(rest_const, rest_terms)
        found = _one_quotient(rest.bounds, divisor)
        if found is not None:
            return whole + found
        common = _common_divisor(divisor, [c for _, c in rest_terms])
        if common > 1:  # (g*x + k) // (g*m) == (x + k//g) // m
            rest = Index(rest_const // common, tuple((a, c // common) for a, c in rest_terms))
            return whole + rest.floordiv(divisor // common)
        if len(rest.terms) == 1 and rest.const == 0:
            atom, c = rest.terms[0]
            if c == 1 and isinstance(atom, FloorDiv):
                return whole + atom.inner.floordiv(atom.divisor * divisor)
        return whole + Index(0, ((FloorDiv(rest, divisor), 1),))

    def mod(self, divisor: int) -> Index:
        """`self % divisor`, simplified."""
        if divisor == 1:
            return ZERO
        found = _one_quotient(self.bounds, divisor)
        if found is not None:
            return self - found * divisor
        rest_terms = tuple((a, c) for a, c in self.terms if c % divisor != 0)
        rest = Index(self.const % divisor, rest_terms)
        found = _one_quotient(rest.bounds, divisor)
        if found is not None:
            return rest - found * divisor
        common = _common_divisor(divisor, [rest.const, *(c for _, c in rest_terms)])
        if common > 1:
            small = Index(rest.const // common, tuple((a, c // common) for a, c in rest_terms))
            return small.mod(divisor // common) * common
        if len(rest.terms) == 1 and rest.const == 0:
            atom, c = rest.terms[0]
            if c == 1 and isinstance(atom, Mod) and sizes.is_multiple(atom.divisor, divisor):
                return atom.inner.mod(divisor)
        return Index(0, ((Mod(rest, divisor), 1),))

    def substitute(
        self, variables: Callable[[Var], Index], values: Callable[[Expr], Expr]
    ) -> Index:
        """Replace every variable, and rewrite the values of indirect atoms."""
        result = constant(self.const)
        for atom, coefficient in self.terms:
            if isinstance(atom, Var):
                new = variables(atom)
            elif isinstance(atom, FloorDiv):
                new = atom.inner.substitute(variables, values).floordiv(atom.divisor)
            elif isinstance(atom, Mod):
                new = atom.inner.substitute(variables, values).mod(atom.divisor)
            else:
                new = Index(0, ((Indirect(values(atom.value), atom.size), 1),))
            result = result + new * coefficient
        return result

    def variables(self) -> set[Var]:
        """All loop variables, those inside divisions included (not those behind memory reads)."""
        found: set[Var] = set()
        for atom, _ in self.terms:
            if isinstance(atom, Var):
                found.add(atom)
            elif isinstance(atom, FloorDiv | Mod):
                found |= atom.inner.variables()
        return found

    def indirects(self) -> list[Indirect]:
        """All indirect atoms."""
        found: list[Indirect] = []
        for atom, _ in self.terms:
            if isinstance(atom, Indirect):
                found.append(atom)
            elif isinstance(atom, FloorDiv | Mod):
                found += atom.inner.indirects()
        return found

    def coefficient(self, var: Var) -> int | None:
        """The stride along `var`; None when it is not constant (a division or remainder of it)."""
        result = 0
        for atom, c in self.terms:
            if isinstance(atom, Var):
                if atom.id == var.id:
                    result = c
            elif isinstance(atom, FloorDiv | Mod) and var in atom.inner.variables():
                return None
        return result

    def __str__(self) -> str:
        parts = [str(a) if c == 1 else f"{c}*{a}" for a, c in self.terms]
        if self.const or not parts:
            parts.append(str(self.const))
        return " + ".join(parts)


def _one_quotient(bounds: tuple[int, int], divisor: int) -> int | None:
    """What every value within `bounds` gives when divided, if it is known to be one number."""
    low, high = bounds
    if sizes.any_symbolic((low, high, divisor)):
        return 0 if sizes.known_within(low, high, divisor) else None
    return low // divisor if low // divisor == high // divisor else None


def _common_divisor(divisor: int, numbers: list[int]) -> int:
    """The greatest common divisor; 1 where sizes are symbolic."""
    return 1 if sizes.any_symbolic((divisor, *numbers)) else gcd(divisor, *numbers)


def _from_terms(const: int, terms: Iterable[tuple[Atom, int]]) -> Index:
    collected: dict[Atom, int] = {}
    for atom, c in terms:
        collected[atom] = collected.get(atom, 0) + c
    kept = [(a, c) for a, c in collected.items() if c != 0]
    if len(kept) > 1:
        kept.sort(key=lambda t: t[0].sort_key)
    return Index(const, tuple(kept))


def constant(value: int) -> Index:
    """The index that is always `value`."""
    return Index(value, ())


def variable(var: Var) -> Index:
    """The index that is one loop variable; a variable of one iteration is the constant 0."""
    return Index(0, ((var, 1),)) if var.size != 1 else ZERO


def indirect(value: Expr, size: int) -> Index:
    """The index held by `value`, known to lie in 0 .. size-1."""
    return Index(0, ((Indirect(value, size), 1),))


def linear(indices: Iterable[Index], strides: Iterable[int], offset: int = 0) -> Index:
    """`offset + sum(index * stride)`."""
    terms: list[tuple[Atom, int]] = []
    const = offset
    for index, stride in zip(indices, strides, strict=True):
        if stride != 0:
            const += index.const * stride
            terms.extend((a, c * stride) for a, c in index.terms)
    return _from_terms(const, terms)


ZERO = Index(0, ())
