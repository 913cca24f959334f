"""`SymNode`: the object behind `torch.SymInt`, `torch.SymFloat` and `torch.SymBool`.

torch's C++ and Python code calls its methods by name; which ones is no documented interface, so
each is here because something calls it. The nodes hold an expression and the `ShapeEnv` that
decides. `shape_env` is None: it is what torch asks for to find *its* shape environment.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any, cast

import torch

from dovetail_guards import expr as e
from dovetail_guards import float_spans, sym_layout
from dovetail_guards import relations as rel
from dovetail_guards.float_expr import EXACT, MOST_PARTS, OPERATIONS, ROUNDINGS, FloatExpr
from dovetail_guards.shape_env import ShapeEnv
from dovetail_guards.sym_value import SymValue, Text, Value

# Products of numbers given stay so small that sums of a few of them have 64 bits.
MOST = 2**60
SMALL = 2**30


class SymNode(SymValue):
    """A symbolic value with the operations on it; each gives a new one."""

    __slots__ = ()

    def clone(self) -> SymNode:
        return self

    # --- wrapping -----------------------------------------------------------------------------

    def wrap_int(self, value: int) -> SymNode:
        return SymNode(self.env, e.constant(value), int)

    def wrap_float(self, value: float) -> SymNode:
        return SymNode(self.env, value, float)

    def wrap_bool(self, value: bool) -> SymNode:
        return SymNode(self.env, rel.TRUE if value else rel.FALSE, bool)

    def _new(self, expr: Value, pytype: type) -> SymNode:
        return SymNode(self.env, expr, pytype)

    # --- conversions --------------------------------------------------------------------------

    def sym_float(self) -> SymNode:
        if self.pytype is float:
            return self
        if self.pytype is bool:
            return self.wrap_float(float(self.guard_bool()))
        return self._new(FloatExpr("float", (_operand(self),)), float)

    def sym_int(self) -> SymNode:
        return self if self.pytype is int else self.trunc()

    def _rounded(self, up: bool) -> SymNode | None:
        """Floor or ceiling as an integer expression, where that is exact."""
        if not isinstance(self.expr, FloatExpr):
            return None
        ratio = self.expr.ratio()
        if ratio is None:
            return None
        n, d = ratio
        for part in (n, -n, d, -d):
            if not self.env.guard_bool(rel.le(part, EXACT), "exact in double precision"):
                return None
        return self._new(-((-n) // d) if up else n // d, int)

    def floor(self) -> SymNode:
        if self.pytype is int:
            return self
        exact = self._rounded(up=False)
        return exact if exact is not None else self._settled_as("floor")

    def ceil(self) -> SymNode:
        if self.pytype is int:
            return self
        exact = self._rounded(up=True)
        return exact if exact is not None else self._settled_as("ceil")

    def trunc(self) -> SymNode:
        if self.pytype is int:
            return self
        hint = self.hint
        ratio = self.expr.ratio() if isinstance(self.expr, FloatExpr) else None
        if hint is not None and hint >= 0 and ratio is not None:
            positive = rel.and_(rel.ge(ratio[0], 0), rel.gt(ratio[1], 0))
            if self.env.guard_bool(positive, "rounded towards zero"):
                return self.floor()
        return self._settled_as("int")

    def _settled_as(self, how: Text) -> SymNode:
        """A float rounded to a number that is computed before the program runs, or to the integer
        of this call, by a guard of the floats that give it."""
        rounded = ROUNDINGS[how]
        if isinstance(self.expr, FloatExpr):
            made = self.env.create_rounded(how, self.expr)
            if made is not None:
                return self._new(made, int)
            found = float_spans.same_answer(self.env, self.expr, rounded)
            if found is not None:
                return self.wrap_int(found)
        return self.wrap_int(rounded(self._specialize()))

    def round(self, ndigits: Any = None) -> SymNode:
        if self.pytype is int:
            return self
        if ndigits is None:
            return self._settled_as("round")
        return self.wrap_float(round(self._specialize(), int(ndigits)))

    def is_integer(self) -> SymNode:
        return self.wrap_bool(True) if self.pytype is int else self._float_op("is_integer", bool)

    # --- arithmetic ---------------------------------------------------------------------------

    def _float_op(self, op: Text, pytype: type, *others: SymNode) -> SymNode:
        if op in ("mul", "truediv") and others[0].expr == 1.0 and self.pytype is float:
            return self
        nodes = (self, *others)
        made = FloatExpr(op, tuple(_operand(node) for node in nodes))
        if made.parts > MOST_PARTS:  # what walks expressions recurses, and takes its time
            return self._new(OPERATIONS[op](*(node._specialize() for node in nodes)), pytype)
        return self._new(made, pytype)

    def _binary(
        self, other: SymNode, op: Text, whole: Callable[[e.Expr, e.Expr], e.Expr]
    ) -> SymNode:
        left, right = self._number(), other._number()
        if left.pytype is int and right.pytype is int:
            return self._new(whole(_whole(left), _whole(right)), int)
        return left._float_op(op, float, right)

    def _number(self) -> SymNode:
        """What takes part in arithmetic: for a truth value the int that it is. (PyTorch 2.11 gives
        plain ones, too.)"""
        return self.wrap_int(int(self.guard_bool())) if self.pytype is bool else self

    def add(self, other: SymNode) -> SymNode:
        return self._binary(other, "add", lambda a, b: a + b)

    def sub(self, other: SymNode) -> SymNode:
        return self._binary(other, "sub", lambda a, b: a - b)

    def mul(self, other: SymNode) -> SymNode:
        left, right = self._number(), other._number()
        if left.pytype is int and right.pytype is int:
            known = left.constant if left.constant is not None else right.constant
            most = SMALL if known is None else MOST // max(abs(known), 1)
            if not all(n.constant is not None or n._is_within(most) for n in (left, right)):
                return self.wrap_int(left.guard_int() * right.guard_int())
        return self._binary(other, "mul", self.env.product)

    def _is_within(self, most: int) -> bool:
        """Whether an integer made of numbers given is at most so large, by guards: they have no
        bounds, and what is compiled computes in 64 bits. (Sizes are small.)"""
        whole = _whole(self)
        if self.env.frozen or not self.env.is_unbounded(whole):
            return True  # (of what comes after the guards no more can be asked)
        within = (rel.le(whole, most), rel.ge(whole, -most))
        return all(self.env.guard_bool(one, "computed in 64 bits") for one in within)

    def floordiv(self, other: SymNode) -> SymNode:
        return self._binary(other, "floordiv", self._nonzero(e.floordiv, operator.floordiv))

    int_floordiv = floordiv

    def mod(self, other: SymNode) -> SymNode:
        return self._binary(other, "mod", self._nonzero(e.mod, operator.mod))

    def _nonzero(
        self, op: Callable[[e.Expr, e.Expr], e.Expr], python: Callable[[int, int], int]
    ) -> Callable[[e.Expr, e.Expr], e.Expr]:
        """Division that has made sure, by a guard if need be, that the divisor is not zero."""

        def divide(a: e.Expr, b: e.Expr) -> e.Expr:
            if not self.env.require(rel.ne(b, 0), "it is divided by"):
                python(1, 0)  # raises CPython's own error
            return op(a, b)

        return divide

    def truediv(self, other: SymNode) -> SymNode:
        if bool in (self.pytype, other.pytype):
            return self._number().truediv(other._number())
        if other.pytype is float and not other.guard_bool_nonzero():
            raise ZeroDivisionError("float division by zero")
        if self.pytype is int and other.pytype is int:
            if not self.env.require(rel.ne(_whole(other), 0), "it is divided by"):
                raise ZeroDivisionError("division by zero")
        return self._float_op("truediv", float, other)

    int_truediv = truediv
    float_truediv = truediv

    def pow(self, other: SymNode) -> SymNode:
        if bool in (self.pytype, other.pytype):
            return self._number().pow(other._number())
        power = other.constant
        if self.pytype is int and other.pytype is int:
            if power is None:
                power = other.guard_int()
            if power >= 0:
                if power > 1 and not self._is_within(int(MOST ** (1 / power))):
                    return self.wrap_int(self.guard_int() ** power)
                return self._new(_whole(self) ** power, int)
        return self._float_op("pow", float, other)

    pow_by_natural = pow
    float_pow = pow

    def neg(self) -> SymNode:
        if self.pytype is int:
            return self._new(-_whole(self), int)
        if self.pytype is bool:
            return self._number().neg()
        return self._float_op("neg", float)

    def pos(self) -> SymNode:
        return self._number()

    def abs(self) -> SymNode:
        if self.pytype is int:
            whole = _whole(self)
            return self._new(self.env.simplify(e.max_(whole, -whole)), int)
        if self.pytype is bool:
            return self._number()
        return self._float_op("abs", float)

    def sym_min(self, other: SymNode) -> SymNode:
        return self._binary(other, "min", lambda a, b: self.env.simplify(e.min_(a, b)))

    def sym_max(self, other: SymNode) -> SymNode:
        return self._binary(other, "max", lambda a, b: self.env.simplify(e.max_(a, b)))

    def sym_sum(self, args: Sequence[SymNode]) -> SymNode:
        total = self.wrap_int(0)
        for node in args:
            total = total.add(node)
        return total

    def lshift(self, other: SymNode) -> SymNode:
        return self._new(_whole(self._number()) * 2 ** other._number().guard_int(), int)

    def rshift(self, other: SymNode) -> SymNode:
        return self._new(_whole(self._number()) // 2 ** other._number().guard_int(), int)

    def _bitwise(self, other: SymNode, op: Callable[[int, int], int]) -> SymNode:
        if self.pytype is bool and other.pytype is bool:
            return self.wrap_bool(bool(op(self.guard_bool(), other.guard_bool())))
        return self.wrap_int(op(self._number().guard_int(), other._number().guard_int()))

    def bitwise_and(self, other: SymNode) -> SymNode:
        return self._bitwise(other, lambda a, b: a & b)

    def bitwise_or(self, other: SymNode) -> SymNode:
        return self._bitwise(other, lambda a, b: a | b)

    def bitwise_xor(self, other: SymNode) -> SymNode:
        return self._bitwise(other, lambda a, b: a ^ b)

    xor = bitwise_xor

    # --- comparisons and logic ----------------------------------------------------------------

    def _compare(
        self, other: SymNode, op: Text, whole: Callable[[e.Expr, e.Expr], rel.BoolExpr]
    ) -> SymNode:
        if self.pytype is int and other.pytype is int:
            return self._new(whole(_whole(self), _whole(other)), bool)
        if self.pytype is bool and other.pytype is bool and op in ("eq", "ne"):
            same = self.guard_bool() == other.guard_bool()
            return self.wrap_bool(same == (op == "eq"))
        if bool in (self.pytype, other.pytype):
            return self._number()._compare(other._number(), op, whole)
        return self._float_op(op, bool, other)

    def eq(self, other: SymNode) -> SymNode:
        return self._compare(other, "eq", rel.eq)

    def ne(self, other: SymNode) -> SymNode:
        return self._compare(other, "ne", rel.ne)

    def lt(self, other: SymNode) -> SymNode:
        return self._compare(other, "lt", rel.lt)

    def le(self, other: SymNode) -> SymNode:
        return self._compare(other, "le", rel.le)

    def gt(self, other: SymNode) -> SymNode:
        return self._compare(other, "gt", rel.gt)

    def ge(self, other: SymNode) -> SymNode:
        return self._compare(other, "ge", rel.ge)

    def sym_and(self, other: SymNode) -> SymNode:
        return self._new(rel.and_(_truth(self), _truth(other)), bool)

    def sym_or(self, other: SymNode) -> SymNode:
        return self._new(rel.or_(_truth(self), _truth(other)), bool)

    def sym_not(self) -> SymNode:
        return self._new(rel.not_(_truth(self)), bool)

    and_ = sym_and
    or_ = sym_or

    def sym_ite(self, then: SymNode, otherwise: SymNode) -> SymNode:
        return then if self.guard_bool() else otherwise

    # --- memory layout ------------------------------------------------------------------------

    def _layout(
        self,
        rule: Callable[[ShapeEnv, list[e.Expr], list[e.Expr]], rel.BoolExpr],
        sizes: Sequence[Any],
        strides: Sequence[Any],
    ) -> SymNode:
        dims, steps = ([_whole(as_node(self, x)) for x in xs] for xs in (sizes, strides))
        return self._new(rule(self.env, dims, steps), bool)

    def is_contiguous(self, sizes: Sequence[Any], strides: Sequence[Any]) -> SymNode:
        return self._layout(sym_layout.contiguous, sizes, strides)

    def is_channels_last_contiguous_2d(self, sizes: Any, strides: Any) -> SymNode:
        return self._layout(sym_layout.channels_last_contiguous(4), sizes, strides)

    def is_channels_last_contiguous_3d(self, sizes: Any, strides: Any) -> SymNode:
        return self._layout(sym_layout.channels_last_contiguous(5), sizes, strides)

    def is_channels_last_strides_2d(self, sizes: Any, strides: Any) -> SymNode:
        return self._layout(sym_layout.channels_last_strides(4), sizes, strides)

    def is_channels_last_strides_3d(self, sizes: Any, strides: Any) -> SymNode:
        return self._layout(sym_layout.channels_last_strides(5), sizes, strides)

    def is_non_overlapping_and_dense(self, sizes: Any, strides: Any) -> SymNode:
        return self._layout(sym_layout.dense, sizes, strides)


def _unary(name: str) -> Callable[[SymNode], SymNode]:
    def method(self: SymNode) -> SymNode:
        return self._float_op(name, float)

    method.__name__ = f"sym_{name}"
    return method


for _name in "sqrt cos cosh sin sinh tan tanh asin acos atan exp log log2".split():
    setattr(SymNode, f"sym_{_name}", _unary(_name))


def _whole(node: SymNode) -> e.Expr:
    """The integer expression of an int node."""
    if isinstance(node.expr, e.Expr):
        return node.expr
    if isinstance(node.expr, rel.BoolExpr):
        return e.constant(int(node.guard_bool()))
    raise TypeError(f"{node.expr} is no integer")


def _truth(node: SymNode) -> rel.BoolExpr:
    """The relation of a bool node; a comparison of floats is decided first."""
    if isinstance(node.expr, rel.BoolExpr):
        return node.expr
    return rel.TRUE if node.guard_bool() else rel.FALSE


def _operand(node: SymNode) -> FloatExpr | e.Expr | float:
    expr = node.expr
    if isinstance(expr, e.Expr):
        return node.env.replace(expr)
    if isinstance(expr, rel.BoolExpr):
        return float(node.guard_bool())
    return expr if isinstance(expr, FloatExpr) else float(expr)


def as_node(like: SymNode, value: Any) -> SymNode:
    """The node of a `torch.SymInt`, of a node, or of a plain int."""
    if isinstance(value, SymNode):
        return value
    if isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool)):
        node = value.node
        if not isinstance(node, SymNode):
            raise TypeError("a symbolic size of another system")
        return node
    return like.wrap_int(value)


def to_symint(env: ShapeEnv, expr: e.Expr) -> Any:
    """An int, or a `torch.SymInt` over the expression."""
    expr = env.replace(expr)
    value = expr.value
    return value if value is not None else torch.SymInt(cast(Any, SymNode(env, expr, int)))


def to_symfloat(env: ShapeEnv, expr: FloatExpr | float) -> Any:
    """A float, or a `torch.SymFloat` over the expression."""
    if not isinstance(expr, FloatExpr):
        return expr
    return torch.SymFloat(cast(Any, SymNode(env, expr, float)))


def expr_of(value: Any) -> e.Expr:
    """The expression of an int or of one of our `torch.SymInt`s."""
    if isinstance(value, torch.SymInt):
        node = value.node
        if isinstance(node, SymNode) and isinstance(node.expr, e.Expr):
            return node.env.replace(node.expr)
        raise TypeError("a symbolic size of another system")
    return e.constant(int(value))
