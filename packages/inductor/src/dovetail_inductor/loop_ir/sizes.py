"""Symbolic sizes in loops, strides and indices.

A `Dim` takes the place of an int wherever a size is only known at run time: type checkers take it
for one. It is none: what needs a number of it fails, so that no example's size slips into the
code. `==` compares expressions (what is not known to be equal counts as different). An order that
does not follow from what is known of the symbols raises `UnknownOrder`; a choice that may go either
way asks `hint_of` for the example's size instead.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING, Any

import torch
from dovetail_guards import expr as e
from dovetail_guards import relations as rel
from dovetail_guards.float_expr import FloatExpr, FloatLike
from dovetail_guards.shape_env import ShapeEnv
from dovetail_guards.sym_node import SymNode, to_symint
from dovetail_runtime.plan import Size, SizeExpr
from dovetail_runtime.sizes import float_bits

if TYPE_CHECKING:
    _Int = int
else:
    _Int = object


class UnknownOrder(Exception):
    """Which of two sizes is greater is only known at run time."""


def _expr_of(value: Any) -> e.Expr | None:
    if type(value) is Dim:
        return value.expr
    return e.constant(value) if isinstance(value, int) else None


class Dim(_Int):
    """An integer expression over size symbols; never a constant (that is an int)."""

    __slots__ = ("env", "expr")

    env: ShapeEnv
    expr: e.Expr

    def _binary(
        self, other: Any, op: Callable[[e.Expr, e.Expr], e.Expr], swap: bool = False
    ) -> Any:
        right = _expr_of(other)
        if right is None:
            return NotImplemented
        pair = (right, self.expr) if swap else (self.expr, right)
        return dim(self.env, op(*pair))

    def __add__(self, other: Any) -> Any:
        return self._binary(other, lambda a, b: a + b)

    __radd__ = __add__

    def __sub__(self, other: Any) -> Any:
        return self._binary(other, lambda a, b: a - b)

    def __rsub__(self, other: Any) -> Any:
        return self._binary(other, lambda a, b: a - b, swap=True)

    def __mul__(self, other: Any) -> Any:
        return self._binary(other, lambda a, b: a * b)

    __rmul__ = __mul__

    def __floordiv__(self, other: Any) -> Any:
        return self._binary(other, e.floordiv)

    def __rfloordiv__(self, other: Any) -> Any:
        return self._binary(other, e.floordiv, swap=True)

    def __mod__(self, other: Any) -> Any:
        return self._binary(other, e.mod)

    def __rmod__(self, other: Any) -> Any:
        return self._binary(other, e.mod, swap=True)

    def __neg__(self) -> Any:
        return dim(self.env, -self.expr)

    def __abs__(self) -> Any:
        return self if self >= 0 else -self

    # --- comparing --------------------------------------------------------------------------------

    def __eq__(self, other: object) -> bool:
        return type(other) is Dim and self.expr is other.expr

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __hash__(self) -> int:
        return hash(self.expr)

    def _decide(self, relation: Callable[..., rel.BoolExpr], other: Any) -> bool:
        right = _expr_of(other)
        if right is None:
            raise TypeError(f"{self} compared with a {type(other).__name__}")
        asked = relation(self.expr, right)
        truth = self.env.statically_known(asked)
        if truth is None:
            raise UnknownOrder(f"{asked} is only known at run time")
        return truth

    def __lt__(self, other: Any) -> bool:
        return self._decide(rel.lt, other)

    def __le__(self, other: Any) -> bool:
        return self._decide(rel.le, other)

    def __gt__(self, other: Any) -> bool:
        return self._decide(rel.gt, other)

    def __ge__(self, other: Any) -> bool:
        return self._decide(rel.ge, other)

    def __bool__(self) -> bool:
        # What may be zero, if the data says so, is not the literal zero.
        return self.env.statically_known(rel.ne(self.expr, 0)) is not False

    # --- printing ---------------------------------------------------------------------------------

    def __str__(self) -> str:
        return f"({_text(self.expr)})"

    __repr__ = __str__

    def __format__(self, spec: str) -> str:
        return str(self)


def dim(env: ShapeEnv, expr: e.Expr) -> int:
    """The `Dim` of an expression, or the int that it is."""
    expr = env.simplify(expr)
    value = expr.value
    if value is not None:
        return value
    if expr.symbol_name is None and env.statically_known(rel.eq(expr, 1)):
        return 1  # e.g. s0 // 4 under the guard 4 <= s0 < 8: such a size is broadcast
    made = Dim()
    made.env, made.expr = env, expr
    return made


def is_stretched(size: int, wanted: int) -> bool:
    """Whether a dimension of `size` elements has one, which stands for all of `wanted`.

    Raises UnknownOrder for a size that is one in the call at hand but is not known to be: the
    elements past it would be read from wherever they lie.
    """
    if isinstance(size, Dim) and size != wanted and size.env.hint(size.expr) == 1:
        raise UnknownOrder(f"{size} is 1, but not known to be")
    return size == 1


def from_torch(size: Any) -> int:
    """The `Dim` of a `torch.SymInt`; an int is itself."""
    if type(size) is int:
        return size
    node = size.node
    if not isinstance(size, torch.SymInt) or not isinstance(node, SymNode):
        raise TypeError(f"the size {size} belongs to another system")
    assert isinstance(node.expr, e.Expr)
    return dim(node.env, node.expr)


def to_torch(size: int) -> Any:
    """The `torch.SymInt` of a `Dim`; an int is itself."""
    return to_symint(size.env, size.expr) if isinstance(size, Dim) else size


@dataclass(frozen=True)
class FloatSize:
    """A float computed from sizes and float inputs, e.g. `1 / n`: an operand of pointwise operators
    and an argument of library calls. It is computed once a call, before any kernel."""

    env: ShapeEnv
    expr: FloatExpr

    @property
    def symbol(self) -> str | None:
        """The symbol of a float input; None for an expression."""
        return self.expr.input_name()

    @property
    def bits(self) -> SizeExpr:
        """Its bits, as a `Plan` computes them."""
        made = _plan_float(self.env, self.expr)
        assert isinstance(made, SizeExpr)
        return made


_FLOAT_OPERATIONS = {
    **{
        name: f"f{name}"
        for name in (
            "add sub mul floordiv mod pow neg abs min max "
            "sqrt cos cosh sin sinh tan tanh asin acos atan exp log log2"
        ).split()
    },
    "truediv": "fdiv",
}


def _plan_float(env: ShapeEnv, expr: FloatLike) -> Size:
    """The bits of a float; an integer is made a float, as Python does."""
    if isinstance(expr, e.Expr):
        return SizeExpr("float", (plan_size(env.simplify(expr)),))
    if not isinstance(expr, FloatExpr):
        return float_bits(float(expr))
    name = expr.input_name()
    if name is not None:
        return SizeExpr("sym", (name,))
    if expr.op in ("float", "pos"):
        return _plan_float(env, expr.args[0])
    if expr.op not in _FLOAT_OPERATIONS:
        raise UnknownOrder(f"{expr} is not computed by a plan")
    return SizeExpr(_FLOAT_OPERATIONS[expr.op], tuple(_plan_float(env, a) for a in expr.args))


def float_from_torch(value: Any) -> FloatSize | float:
    """The `FloatSize` of a `torch.SymFloat`, or the float that it has become."""
    node = value.node
    if not isinstance(node, SymNode):
        raise TypeError(f"the number {value} belongs to another system")
    constant = node.constant
    if constant is not None:
        return float(constant)
    assert isinstance(node.expr, FloatExpr)
    # (as `dim` does: a size that is a number by now is no symbol of the plan)
    settled = node.expr.replace(node.env.simplify)
    return FloatSize(node.env, settled) if isinstance(settled, FloatExpr) else float(settled)


def is_symbolic(size: int) -> bool:
    """True for a `Dim`."""
    return type(size) is Dim


def any_symbolic(sizes: Iterable[int]) -> bool:
    """True if one of them is a `Dim`."""
    return any(type(size) is Dim for size in sizes)


def hint_of(size: int) -> int:
    """The size in the call that is compiled: good for choices, never for what must hold."""
    if type(size) is not Dim:
        return size
    return SymNode(size.env, size.expr, int).hint_or_guess()


def only_data_tells(size: int) -> bool:
    """Whether not even the call that is compiled has a value for it: a size of data, or what stands
    for a float that each call computes."""
    if type(size) is not Dim:
        return False
    env = size.env
    if not size.expr.free_symbols() <= env.hints.keys() | env.unbacked:
        return True
    return SymNode(size.env, size.expr, int).hint is None


_NAMES = re.compile(r"\bsize_([a-z]\d+)\b")


def names_in(text: str) -> tuple[str, ...]:
    """The symbols whose values some text of loops, or of generated code, reads, in order."""
    return tuple(sorted(set(_NAMES.findall(text)), key=lambda name: (int(name[1:]), name)))


# Innermost calls that cannot fail, whatever the sizes are: divisors are numbers.
_PART = re.compile(
    r"\b(?:floor_div|floor_mod)\([^(),]+, [1-9]\d*\)|\b(?:least|greatest)\([^(),]+, [^(),]+\)"
)


def name_parts(text: str) -> tuple[dict[str, str], str]:
    """The text of generated code with a name for each part of a size that is not a sum of products,
    and what the names stand for, inner ones first. (What is written once is compiled once: the size
    of a deep layer's image is a division of a division, and stands in each of its indices.)"""
    names: dict[str, str] = {}

    def name(found: re.Match[str]) -> str:
        return names.setdefault(found[0], f"part{len(names)}")

    while True:
        text, count = _PART.subn(name, text)
        if count == 0:
            return {name: part for part, name in names.items()}, text


def condition(relation: rel.BoolExpr) -> Size:
    """A relation between sizes as a plan computes it: 0 or 1."""
    if relation.kind in ("eq", "le"):
        return SizeExpr(relation.kind, (plan_size(relation.args[0]), 0))
    if relation.kind == "not":
        return SizeExpr("not", (condition(relation.args[0]),))
    if relation.kind in ("and", "or"):
        return reduce(lambda a, b: SizeExpr(relation.kind, (a, b)), map(condition, relation.args))
    return int(relation.kind == "true")


def is_multiple(size: int, of: int) -> bool:
    """Whether `size` is known to be a multiple of `of`."""
    rest = size % of
    return type(rest) is int and rest == 0


def known_le(a: int, b: int) -> bool | None:
    """`a <= b`, or None where it is not known."""
    try:
        return a <= b
    except UnknownOrder:
        return None


def smallest(a: int, b: int) -> int:
    """The smaller of two sizes; which one that is need not be known."""
    below = known_le(a, b)
    return _either(e.min_, a, b) if below is None else a if below else b


def largest(a: int, b: int) -> int:
    """The larger of two sizes; which one that is need not be known."""
    below = known_le(a, b)
    return _either(e.max_, a, b) if below is None else b if below else a


def _either(op: Callable[[e.Expr, e.Expr], e.Expr], a: int, b: int) -> int:
    left, right = _expr_of(a), _expr_of(b)
    symbolic = a if type(a) is Dim else b
    assert left is not None and right is not None and isinstance(symbolic, Dim)
    return dim(symbolic.env, op(left, right))


def known_within(low: int, high: int, size: int) -> bool:
    """Whether `0 <= low` and `high < size` are known to hold."""
    return known_le(0, low) is True and known_le(high + 1, size) is True


# --- other forms ----------------------------------------------------------------------------------

_FUNCTIONS = {"floordiv": "floor_div", "mod": "floor_mod", "min": "least", "max": "greatest"}


def _text(expr: e.Expr) -> str:
    """The expression as C++ or Python, over `size_<symbol>` and the functions named above."""
    parts = []
    for monomial, factor in expr.terms:
        factors = [_atom_text(atom) for atom, power in monomial for _ in range(power)]
        if factor != 1 or not factors:
            factors.insert(0, str(factor))
        parts.append(" * ".join(factors))
    return " + ".join(parts) if parts else "0"


def _atom_text(atom: e.Atom) -> str:
    if atom.kind == "sym":
        return f"size_{atom.name}"
    name = _FUNCTIONS[atom.kind]
    return reduce(lambda a, b: f"{name}({a}, {b})", map(_text, atom.args))


def size_expr(size: int) -> Size:
    """A size as a `Plan` holds it."""
    return plan_size(size.expr) if type(size) is Dim else size


def plan_size(expr: e.Expr) -> Size:
    """An expression of sizes as a `Plan` holds it."""
    total: Size = 0
    for monomial, factor in expr.terms:
        product: Size = factor
        for atom, power in monomial:
            for _ in range(power):
                part = _plan_atom(atom)
                product = part if product == 1 else SizeExpr("mul", (product, part))
        total = product if total == 0 else SizeExpr("add", (total, product))
    return total


def _plan_atom(atom: e.Atom) -> SizeExpr:
    if atom.kind == "sym":
        return SizeExpr("sym", (atom.name,))
    made = reduce(lambda a, b: SizeExpr(atom.kind, (a, b)), map(plan_size, atom.args))
    assert isinstance(made, SizeExpr)
    return made
