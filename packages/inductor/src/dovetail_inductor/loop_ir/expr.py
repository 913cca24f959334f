"""Scalar expressions: the typed SSA bodies of loop nests.

An `Expr` is an immutable DAG node; a `Builder` interns nodes, so an expression computed twice is
one node and `is` is equality. The order of `uid`s is a valid order of computation.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import frexp
from typing import Literal

import torch

from dovetail_inductor.loop_ir.index import FloorDiv, Index, Indirect, Mod, Var, variable
from dovetail_inductor.loop_ir.ops import BYTES, ROUNDING, SCALAR_OPS
from dovetail_inductor.loop_ir.sizes import Dim, UnknownOrder, is_symbolic

Scalar = bool | int | float
_ROUNDINGS = frozenset(ROUNDING.values())


@dataclass(frozen=True, slots=True, eq=False)
class Constant:
    """A literal."""

    uid: int
    dtype: torch.dtype
    value: Scalar
    free: int = 0

    @property
    def args(self) -> tuple[Expr, ...]:
        """Operands."""
        return ()


@dataclass(frozen=True, slots=True, eq=False)
class IndexValue:
    """An index as an integer value (arange, positions, bounds)."""

    uid: int
    dtype: torch.dtype
    index: Index
    free: int

    @property
    def args(self) -> tuple[Expr, ...]:
        """Values read by indirect atoms."""
        return tuple(atom.value for atom in self.index.indirects())


@dataclass(frozen=True, slots=True, eq=False)
class Load:
    """`buffer[index]` (counted in elements from the buffer's first) as an arithmetic value.

    `dtype` is the arithmetic dtype. With a mask, memory is touched only where the mask is true and
    the value is 0 elsewhere.
    """

    uid: int
    dtype: torch.dtype
    buffer: str
    index: Index
    mask: Expr | None
    free: int

    @property
    def args(self) -> tuple[Expr, ...]:
        """Values read by indirect atoms, then the mask."""
        values = tuple(atom.value for atom in self.index.indirects())
        return values if self.mask is None else (*values, self.mask)


@dataclass(frozen=True, slots=True)
class IndexCheck:
    """What `check_index` asks of an index into dimension `dim`, which is `size` long; the kernel
    raises `error` where it is not. `wrapped`: to what was negative the size has been added. `line`
    is the program's that uses the index; two checks may be one whatever their lines."""

    size: int
    dim: int
    error: Literal["IndexError", "RuntimeError"]
    wrapped: bool
    line: str = field(default="", compare=False)


@dataclass(frozen=True, slots=True, eq=False)
class Apply:
    """A scalar op of `SCALAR_OPS` applied to operands. `check` belongs to `check_index`."""

    uid: int
    dtype: torch.dtype
    op: str
    args: tuple[Expr, ...]
    check: IndexCheck | None
    free: int


Expr = Constant | IndexValue | Load | Apply
"""`free` of every node is the bit set of the ids of the loop variables its value depends on."""


def index_free(index: Index) -> int:
    """The ids of the loop variables of an index, as a bit set, those behind reads included."""
    free = 0
    for atom, _ in index.terms:
        if isinstance(atom, Var):
            free |= 1 << atom.id
        elif isinstance(atom, Indirect):
            free |= atom.value.free
        else:
            free |= index_free(atom.inner)
    return free


class Builder:
    """Makes and interns expressions, folding what costs nothing to fold."""

    def __init__(self) -> None:
        self._interned: dict[tuple[object, ...], Expr] = {}
        self.ranges: dict[int, tuple[float, float]] = {}  # by uid, once they are asked for

    def constant(self, value: Scalar, dtype: torch.dtype) -> Expr:
        """A literal, converted to `dtype`; a symbolic size as a value computed from it."""
        if isinstance(value, Dim):
            return self.apply("cast", [self.index_value(Index(value, ()))], dtype)
        if dtype is torch.bool:
            value = bool(value)
        elif dtype.is_floating_point:
            value = float(value)
        else:
            value = int(value)
        # repr tells -0.0 from 0.0, and makes a NaN equal to itself
        key = ("const", repr(value), dtype)
        found = self._interned.get(key)
        if found is None:
            found = self._interned[key] = Constant(len(self._interned), dtype, value)
        return found

    def index_value(self, index: Index, dtype: torch.dtype = torch.int64) -> Expr:
        """An index as an integer value."""
        if index.is_constant and not is_symbolic(index.const):
            return self.constant(index.const, dtype)
        key = ("index", index, dtype)
        found = self._interned.get(key)
        if found is None:
            found = IndexValue(len(self._interned), dtype, index, index_free(index))
            self._interned[key] = found
        return found

    def load(self, buffer: str, index: Index, dtype: torch.dtype, mask: Expr | None = None) -> Expr:
        """A read from memory."""
        if isinstance(mask, Constant):
            if not mask.value:
                return self.constant(0, dtype)
            mask = None
        key = ("load", buffer, index, dtype, None if mask is None else mask.uid)
        found = self._interned.get(key)
        if found is None:
            free = index_free(index) | (0 if mask is None else mask.free)
            found = Load(len(self._interned), dtype, buffer, index, mask, free)
            self._interned[key] = found
        return found

    def apply(
        self,
        op: str,
        args: Sequence[Expr],
        dtype: torch.dtype | None = None,
        check: IndexCheck | None = None,
    ) -> Expr:
        """A scalar op. `dtype` is needed for `cast` only."""
        info = SCALAR_OPS[op]
        if len(args) != info.arity:
            raise ValueError(f"{op} takes {info.arity} operands, not {len(args)}")
        operands = args[1:] if op == "where" else args
        if any(a.dtype != operands[0].dtype for a in operands):
            raise ValueError(f"{op} on mixed dtypes {[str(a.dtype) for a in args]}")
        if info.result == "bool":
            dtype = torch.bool
        elif info.result == "same":
            dtype = operands[0].dtype
        assert dtype is not None
        folded = self._fold(op, args, dtype)
        if folded is not None:
            return folded
        key = (op, *(a.uid for a in args), dtype, check)
        found = self._interned.get(key)
        if found is None:
            free = 0
            for a in args:
                free |= a.free
            found = Apply(len(self._interned), dtype, op, tuple(args), check, free)
            self._interned[key] = found
        return found

    def again(self, node: Apply, args: Sequence[Expr]) -> Expr:
        """A node's scalar op of other operands."""
        return self.apply(node.op, args, node.dtype, node.check)

    def _fold(self, op: str, args: Sequence[Expr], dtype: torch.dtype) -> Expr | None:
        first = args[0]
        if op == "cast":
            if first.dtype == dtype:
                return first
            if isinstance(first, Constant) and (
                not isinstance(first.value, float) or dtype.is_floating_point
            ):
                return self.constant(first.value, dtype)
            if isinstance(first, IndexValue) and not dtype.is_floating_point:
                if dtype is torch.int64:
                    return self.index_value(first.index, dtype)
        elif op == "where":
            if isinstance(first, Constant):
                return args[1] if first.value else args[2]
            if args[1] is args[2]:
                return args[1]
        elif op in _ROUNDINGS and isinstance(first, Apply) and _is_rounded(first, op):
            return first
        elif op in ("mul", "div") and _is_number(args[1], 1):
            return first  # x * 1 == x, also for NaN and -0.0
        elif op == "mul" and _is_number(first, 1):
            return args[1]
        elif op == "div" and (factor := _exact_reciprocal(args[1])) is not None:
            return self.apply("mul", [first, self.constant(factor, dtype)])
        elif op in ("add", "sub") and not dtype.is_floating_point and _is_number(args[1], 0):
            return first  # not for floats: -0.0 + 0.0 is 0.0
        elif op == "bitwise_and" and dtype is torch.bool:
            for a, b in ((first, args[1]), (args[1], first)):
                if isinstance(a, Constant):
                    return b if a.value else a
        elif op in _INDEX_COMPARE and isinstance(first, Constant):
            if isinstance(args[1], Constant) and first.dtype is torch.int64:
                compare = _INDEX_COMPARE[op]
                return self.constant(compare(int(first.value), int(args[1].value)), torch.bool)
        elif op in _INDEX_COMPARE and isinstance(first, IndexValue):
            if isinstance(args[1], Constant):
                truth = _settled(op, first.index, int(args[1].value))
                if truth is not None:
                    return self.constant(truth, torch.bool)
            elif isinstance(args[1], IndexValue) and args[1].index.is_constant:
                truth = _settled(op, first.index, args[1].index.const)
                if truth is not None:
                    return self.constant(truth, torch.bool)
        return None


# Monotone in their first operand, so the truth at both ends of a range decides between.
_INDEX_COMPARE: dict[str, Callable[[int, int], bool]] = {
    "lt": lambda a, b: a < b,
    "le": lambda a, b: a <= b,
    "gt": lambda a, b: a > b,
    "ge": lambda a, b: a >= b,
}


def _settled(op: str, index: Index, bound: int) -> bool | None:
    """The truth of a comparison if it is the same at both ends of the index's range."""
    try:
        low, high = index.bounds
        at_low = _INDEX_COMPARE[op](low, bound)
        return at_low if at_low == _INDEX_COMPARE[op](high, bound) else None
    except UnknownOrder:
        return None


def _is_rounded(value: Apply, rounding: str) -> bool:
    """Whether rounding changes nothing: of what is rounded so, and of a byte."""
    of_byte = value.op == "cast" and value.args[0].dtype in BYTES
    return of_byte or value.op == rounding


def _exact_reciprocal(expr: Expr) -> float | None:
    """The number by which multiplying is dividing by a constant: by a power of two, whose
    reciprocal is a normal number in single precision, too."""
    if not isinstance(expr, Constant) or not isinstance(expr.value, float):
        return None
    mantissa, exponent = frexp(expr.value)
    return 1.0 / expr.value if abs(mantissa) == 0.5 and abs(exponent) < 120 else None


def _is_number(expr: Expr, value: int) -> bool:
    return isinstance(expr, Constant) and expr.value == value


def walk(roots: Iterable[Expr], known: Container[int] = ()) -> Iterator[Expr]:
    """Every node below `roots` once, operands first; not those whose uids are `known`, nor what
    only those are made of."""
    seen: set[int] = set()
    # An explicit stack: long pointwise chains are deeper than Python's recursion limit.
    stack: list[tuple[Expr, bool]] = [(r, False) for r in reversed(list(roots))]
    while stack:
        node, ready = stack.pop()
        if node.uid in seen or node.uid in known:
            continue
        if ready:
            seen.add(node.uid)
            yield node
            continue
        stack.append((node, True))
        stack.extend((a, False) for a in reversed(node.args) if a.uid not in seen)


Element = Callable[["Load", Index, Expr | None], Expr]
Applied = Callable[["Apply", list[Expr]], Expr]


def rename(
    builder: Builder,
    roots: Sequence[Expr],
    variables: Callable[[Var], Index],
    element: Element | None = None,
    known: Mapping[int, Expr] | None = None,
    applied: Applied | None = None,
    settled: Callable[[Index], Index] = lambda index: index,
) -> list[Expr]:
    """The expressions with every loop variable replaced, and every load by what `element` makes of
    it, its index and its mask, every operation by what `applied` makes of it and its arguments,
    every index by what `settled` makes of it; those whose uids are `known`, by what is known of
    them."""
    new: dict[int, Expr] = dict(known or {})

    def index_of(index: Index) -> Index:
        return settled(index.substitute(variables, lambda value: new[value.uid]))

    for node in walk(roots, new):
        result: Expr
        same = node.free == 0 and not node.args and not (element and isinstance(node, Load))
        if isinstance(node, Constant) or same:
            result = node
        elif isinstance(node, IndexValue):
            result = builder.index_value(index_of(node.index), node.dtype)
        elif isinstance(node, Load):
            mask = None if node.mask is None else new[node.mask.uid]
            index = index_of(node.index)
            if element is None:
                result = builder.load(node.buffer, index, node.dtype, mask)
            else:
                result = element(node, index, mask)
        else:
            result = (applied or builder.again)(node, [new[a.uid] for a in node.args])
        new[node.uid] = result
    return [new[r.uid] for r in roots]


def mask_loads(builder: Builder, root: Expr, mask: Expr) -> Expr:
    """The expression with memory touched only where `mask` holds."""

    def element(load: Load, index: Index, own: Expr | None) -> Expr:
        both = mask if own is None else builder.apply("bitwise_and", [mask, own])
        return builder.load(load.buffer, index, load.dtype, both)

    def applied(node: Apply, args: list[Expr]) -> Expr:
        if node.op == "check_index":
            args = [builder.apply("where", [mask, args[0], builder.constant(0, args[0].dtype)])]
        return builder.again(node, args)

    return rename(builder, [root], variable, element, applied=applied)[0]


def assume(builder: Builder, root: Expr, condition: Expr) -> Expr:
    """The expression where a condition holds."""
    known = {condition.uid: builder.constant(True, torch.bool)}
    return rename(builder, [root], variable, known=known)[0]


def loads(roots: Iterable[Expr]) -> list[Load]:
    """Every load below `roots`."""
    return [node for node in walk(roots) if isinstance(node, Load)]


def direct_loads(roots: Iterable[Expr]) -> list[Load]:
    """The loads below `roots` that nothing else decides on."""
    return [x for x in loads(roots) if x.mask is None and not x.index.indirects()]


def divisors(index: Index) -> set[tuple[Var, int]]:
    """The `(variable, n)` of every division or remainder of a plain variable by `n`."""
    found: set[tuple[Var, int]] = set()
    for atom, _ in index.terms:
        if isinstance(atom, FloorDiv | Mod):
            inner = atom.inner
            if len(inner.terms) == 1 and inner.const == 0 and isinstance(inner.terms[0][0], Var):
                if inner.terms[0][1] == 1:
                    found.add((inner.terms[0][0], atom.divisor))
            found |= divisors(inner)
    return found
