"""`SymNode`: the object behind `torch.SymInt`, `torch.SymFloat` and `torch.SymBool`.

torch's C++ and Python code calls its methods by name; which ones is no documented interface, so
each is here because something calls it. The nodes hold an expression and the `ShapeEnv` that
decides. `shape_env` is None: it is what torch asks for to find *its* shape environment.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from typing import Any, cast

import torch

from dovetail_guards import expr as e
from dovetail_guards import sym_layout
from dovetail_guards.float_expr import (
    EXACT,
    INFINITE_KEY,
    MOST_PARTS,
    OPERATIONS,
    FloatExpr,
    FloatLike,
    float_of_key,
    key_of,
)
from dovetail_guards.shape_env import DataDependentError, ShapeEnv

Text = str  # inside the class, `str` is the method that torch calls
Value = e.Expr | e.BoolExpr | FloatExpr | int | float | bool


class SymNode:
    """An integer, float or bool that depends on symbolic sizes."""

    __slots__ = ("env", "expr", "pytype")

    shape_env = None  # torch's own; see the module's docstring

    def __init__(self, env: ShapeEnv, expr: Value, pytype: type) -> None:
        self.env = env
        self.expr = expr
        self.pytype = pytype

    # --- what it is ---------------------------------------------------------------------------

    def is_int(self) -> bool:
        return self.pytype is int

    def is_float(self) -> bool:
        return self.pytype is float

    def is_bool(self) -> bool:
        return self.pytype is bool

    def is_nested_int(self) -> bool:
        return False

    def nested_int(self) -> None:
        return None

    def is_symbolic(self) -> bool:
        return True

    def is_constant(self) -> bool:
        # torch redoes an operation on what is constant, but has no way for floats.
        return self.pytype is not float and self.constant is not None

    @property
    def constant(self) -> Any:
        """The plain value, if it does not depend on any symbol; else None."""
        if isinstance(self.expr, e.Expr):
            return self.env.replace(self.expr).value
        if isinstance(self.expr, e.BoolExpr):
            return self.expr.value
        if isinstance(self.expr, FloatExpr):
            settled = self.expr.replace(self.env.replace)
            return None if isinstance(settled, FloatExpr) else settled
        return self.expr

    def maybe_as_int(self) -> int | None:
        return self.constant if self.pytype is int else None

    def maybe_as_float(self) -> float | None:
        return self.constant if self.pytype is float else None

    def maybe_as_bool(self) -> bool | None:
        return self.constant if self.pytype is bool else None

    @property
    def hint(self) -> Any:
        """The value in the call being compiled, or None."""
        expr = self.expr
        if isinstance(expr, e.Expr):
            return self.env.hint(expr)
        if isinstance(expr, (e.BoolExpr, FloatExpr)):
            loose = not self.env.unbacked.isdisjoint(expr.free_symbols())
            return None if loose else expr.evaluate(self.env.hints)
        return expr

    def hint_or_guess(self, guess: int = 1024) -> int:
        """The value of an integer in the call being compiled; what depends on data as if large."""
        known = self.hint
        if known is not None:
            return int(known)
        assert isinstance(self.expr, e.Expr)
        loose = self.env.typical_values(self.expr.free_symbols())
        for name, value in loose.items():
            loose[name] = max(min(guess, value), self.env.lower_bound(name))
        return self.expr.evaluate({**self.env.hints, **loose})

    def has_hint(self) -> bool:
        return self.hint is not None

    def require_hint(self, fallback: Any = None) -> Any:
        value = self.hint
        if value is None:
            if fallback is not None:
                return fallback
            raise DataDependentError(f"{self.expr} is only known at run time")
        return value

    def maybe_as_hint(self) -> Any:
        return self.hint

    def clone(self) -> SymNode:
        return self

    def str(self) -> Any:
        return f"{self.expr}"

    def _graph_repr(self) -> Any:
        return self.str()

    def __str__(self) -> Any:
        return self.str()

    def __repr__(self) -> Any:
        return self.str()

    # --- wrapping -----------------------------------------------------------------------------

    def wrap_int(self, value: int) -> SymNode:
        return SymNode(self.env, e.constant(value), int)

    def wrap_float(self, value: float) -> SymNode:
        return SymNode(self.env, value, float)

    def wrap_bool(self, value: bool) -> SymNode:
        return SymNode(self.env, e.TRUE if value else e.FALSE, bool)

    def _new(self, expr: Value, pytype: type) -> SymNode:
        return SymNode(self.env, expr, pytype)

    # --- deciding -----------------------------------------------------------------------------

    def guard_int(self, file: Any = None, line: Any = None) -> int:
        if self.pytype is int:
            assert isinstance(self.expr, e.Expr)
            return self.env.guard_int(self.expr)
        return int(self._specialize())

    def guard_bool(self, file: Any = None, line: Any = None) -> bool:
        if isinstance(self.expr, e.BoolExpr):
            if file and self.hint is None:
                return self._shortcut(self.expr)
            return self.env.guard_bool(self.expr)
        if isinstance(self.expr, e.Expr):
            return not self.env.guard_bool(e.eq(self.expr, 0))
        settled = self._compared_with_number()
        return bool(self._specialize()) if settled is None else settled

    def _shortcut(self, relation: e.BoolExpr) -> bool:
        """C++ asks about a size that depends on data. Where it asks whether there are fewer than
        two, it is to do less then: what it does otherwise is right for any number. (A truth that
        depends on data is no size: its answer is needed.)"""
        loose = relation.free_symbols() & self.env.unbacked
        if any(self.env.facts.ranges[name].upper <= 1 for name in loose):
            return self.env.guard_bool(relation)
        few, many = (
            relation.evaluate({**self.env.hints, **dict.fromkeys(loose, n)}) for n in (2, 1 << 20)
        )
        known = self.env.statically_known(relation)
        if known is None and few == many:
            return bool(many)
        return self.env.guard_bool(relation)

    def _compared_with_number(self) -> bool | None:
        """The truth of a comparison of a float input with a number, guarded by that relation
        alone; None for anything else."""
        expr = self.expr
        if not isinstance(expr, FloatExpr):
            return None
        if expr.op == "input":  # used as a truth value
            expr = FloatExpr("ne", (expr, 0.0))
        if expr.op not in _SWAPPED or len(expr.args) != 2:
            return None
        op, (left, right) = expr.op, expr.args
        if not isinstance(left, FloatExpr):
            op, left, right = _SWAPPED[op], right, left
        if isinstance(right, float):
            least = self._at_least(left)
            if op in ("ge", "lt") and least >= right:
                return op == "ge"
            if op in ("gt", "le", "eq", "ne") and least > right:
                return op in ("gt", "ne")
        name = left.input_name() if isinstance(left, FloatExpr) else None
        if name is None or isinstance(right, FloatExpr) or name in self.env.unbacked:
            return None
        whole = right.value if isinstance(right, e.Expr) else None
        number = whole if isinstance(right, e.Expr) else right
        if number is None or isinstance(number, e.Expr) or number != number:
            return None
        if abs(number) > EXACT and whole is not None:
            return None
        key, hint, symbol = key_of(float(number)), self.env.hints[name], e.symbol(name)
        less, equal = hint < key, hint == key
        holds = bool(FloatExpr(op, (0.0 if equal else -1.0 if less else 1.0, 0.0)).evaluate({}))
        if op in ("eq", "ne") and equal:
            relation = e.eq(symbol, key)
        elif less or (equal and (op, holds) in (("le", True), ("gt", False))):
            relation = e.le(symbol, key - (0 if (op, holds) in _INCLUSIVE else 1))
        else:
            relation = e.ge(symbol, key + (0 if (op, holds) in _INCLUSIVE else 1))
        reason = f"{name} compared with {number}"
        return holds if self.env.guard_bool(relation, reason) else None

    def guard_float(self, file: Any = None, line: Any = None) -> float:
        return float(self._specialize())

    def _specialize(self) -> Any:
        """The value in this call; every size it depends on is tied to its own value."""
        if isinstance(self.expr, FloatExpr):
            reason = f"{self.expr} is needed as a number"
            values = {
                name: self.env.guard_int(e.symbol(name), reason)
                for name in sorted(self.expr.free_symbols())
            }
            return self.expr.evaluate(values)
        if isinstance(self.expr, e.Expr):
            return self.env.guard_int(self.expr)
        if isinstance(self.expr, e.BoolExpr):
            return self.env.guard_bool(self.expr)
        return self.expr

    def _at_least(self, value: FloatLike) -> float:
        """A number that a float is never below, whatever the symbols are."""
        if isinstance(value, e.Expr):
            low = self.env.facts.range_of(self.env.replace(value)).lower
            return float(low) if abs(low) <= EXACT else -math.inf
        if not isinstance(value, FloatExpr):
            return value
        name = value.input_name()
        if name is not None:
            low = self.env.facts.range_of(self.env.replace(e.symbol(name))).lower
            return float_of_key(int(low)) if abs(low) <= INFINITE_KEY else -math.inf
        # Rounding keeps the order, so that bounds of sums and products hold.
        parts = [self._at_least(arg) for arg in value.args]
        if value.op in ("abs", "sqrt", "exp"):
            return 0.0
        if value.op in ("add", "min", "max", "float"):
            return float(OPERATIONS[value.op](*parts))
        if value.op == "mul" and min(parts) >= 0 and max(parts) < math.inf:
            return parts[0] * parts[1]
        return 0.0 if value.op in ("truediv", "pow") and min(parts) >= 0 else -math.inf

    def int_(self) -> int:
        return self.guard_int()

    def bool_(self) -> bool:
        return self.guard_bool()

    def float_(self) -> float:
        return self.guard_float()

    def expect_true(self, file: Any = None, line: Any = None, *rest: Any) -> bool:
        if isinstance(self.expr, e.BoolExpr):
            return self.env.require(self.expr)
        return self.guard_bool()

    def state(self, message: Text = "") -> bool:
        """`torch._check`: from here on it holds; False if it is known not to."""
        if isinstance(self.expr, e.BoolExpr):
            return self.env.require(self.expr, message)
        return self.guard_bool()

    def _or(self, fallback: bool) -> bool:
        """Decide; where that is impossible, the fallback."""
        try:
            return self.guard_bool()
        except DataDependentError:
            return fallback

    def answer_of_layout(self) -> bool:
        """Decide; what depends on data as if that were large, within its known bounds."""
        try:
            return self.guard_bool()
        except DataDependentError:
            expr = self.expr
            assert isinstance(expr, (e.BoolExpr, e.Expr, FloatExpr))
            loose = self.env.typical_values(expr.free_symbols())
            return bool(expr.evaluate({**self.env.hints, **loose}))

    def guard_or_false(self, file: Any = None, line: Any = None) -> bool:
        return self._or(False)

    def guard_or_true(self, file: Any = None, line: Any = None) -> bool:
        return self._or(True)

    def guard_size_oblivious(self, file: Any = None, line: Any = None) -> bool:
        return self._or(False)

    def statically_known_true(self, file: Any = None, line: Any = None) -> bool:
        if isinstance(self.expr, e.BoolExpr):
            return self.env.statically_known(self.expr) is True
        return self.constant is True

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
            if not self.env.guard_bool(e.le(part, EXACT), "exact in double precision"):
                return None
        return self._new(-((-n) // d) if up else n // d, int)

    def floor(self) -> SymNode:
        if self.pytype is int:
            return self
        exact = self._rounded(up=False)
        return exact if exact is not None else self.wrap_int(int(self._specialize() // 1))

    def ceil(self) -> SymNode:
        if self.pytype is int:
            return self
        exact = self._rounded(up=True)
        return exact if exact is not None else self.wrap_int(-int(-self._specialize() // 1))

    def trunc(self) -> SymNode:
        if self.pytype is int:
            return self
        hint = self.hint
        ratio = self.expr.ratio() if isinstance(self.expr, FloatExpr) else None
        if hint is not None and hint >= 0 and ratio is not None:
            positive = e.and_(e.ge(ratio[0], 0), e.gt(ratio[1], 0))
            if self.env.guard_bool(positive, "rounded towards zero"):
                return self.floor()
        return self.wrap_int(int(self._specialize()))

    def round(self, ndigits: Any = None) -> SymNode:
        if self.pytype is int:
            return self
        value = self._specialize()
        if ndigits is None:
            return self.wrap_int(round(value))
        return self.wrap_float(round(value, int(ndigits)))

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
        return self._binary(other, "mul", lambda a, b: a * b)

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
            if not self.env.require(e.ne(b, 0), "it is divided by"):
                python(1, 0)  # raises CPython's own error
            return op(a, b)

        return divide

    def truediv(self, other: SymNode) -> SymNode:
        if bool in (self.pytype, other.pytype):
            return self._number().truediv(other._number())
        if other.pytype is float and not other.guard_bool_nonzero():
            raise ZeroDivisionError("float division by zero")
        if self.pytype is int and other.pytype is int:
            if not self.env.require(e.ne(_whole(other), 0), "it is divided by"):
                raise ZeroDivisionError("division by zero")
        return self._float_op("truediv", float, other)

    def guard_bool_nonzero(self) -> bool:
        """Whether a float that is divided by is not zero; only a float input's answer is guarded,
        any other is checked when the program runs."""
        expr = self.expr
        if isinstance(expr, FloatExpr):
            if expr.input_name() is not None:
                return self.guard_bool()
            return bool(self.hint != 0)
        return isinstance(expr, (e.Expr, e.BoolExpr)) or expr != 0

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
        self, other: SymNode, op: Text, whole: Callable[[e.Expr, e.Expr], e.BoolExpr]
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
        return self._compare(other, "eq", e.eq)

    def ne(self, other: SymNode) -> SymNode:
        return self._compare(other, "ne", e.ne)

    def lt(self, other: SymNode) -> SymNode:
        return self._compare(other, "lt", e.lt)

    def le(self, other: SymNode) -> SymNode:
        return self._compare(other, "le", e.le)

    def gt(self, other: SymNode) -> SymNode:
        return self._compare(other, "gt", e.gt)

    def ge(self, other: SymNode) -> SymNode:
        return self._compare(other, "ge", e.ge)

    def sym_and(self, other: SymNode) -> SymNode:
        return self._new(e.and_(_truth(self), _truth(other)), bool)

    def sym_or(self, other: SymNode) -> SymNode:
        return self._new(e.or_(_truth(self), _truth(other)), bool)

    def sym_not(self) -> SymNode:
        return self._new(e.not_(_truth(self)), bool)

    and_ = sym_and
    or_ = sym_or

    def sym_ite(self, then: SymNode, otherwise: SymNode) -> SymNode:
        return then if self.guard_bool() else otherwise

    # --- memory layout ------------------------------------------------------------------------

    def _layout(
        self,
        rule: Callable[[ShapeEnv, list[e.Expr], list[e.Expr]], e.BoolExpr],
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


# A comparison with its sides swapped; and, with their truth, those that the equal value shares.
_SWAPPED = {"eq": "eq", "ne": "ne", "lt": "gt", "le": "ge", "gt": "lt", "ge": "le"}
_INCLUSIVE = {("le", True), ("gt", False), ("ge", True), ("lt", False)}


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
    if isinstance(node.expr, e.BoolExpr):
        return e.constant(int(node.guard_bool()))
    raise TypeError(f"{node.expr} is no integer")


def _truth(node: SymNode) -> e.BoolExpr:
    """The relation of a bool node; a comparison of floats is decided first."""
    if isinstance(node.expr, e.BoolExpr):
        return node.expr
    return e.TRUE if node.guard_bool() else e.FALSE


def _operand(node: SymNode) -> FloatExpr | e.Expr | float:
    expr = node.expr
    if isinstance(expr, e.Expr):
        return node.env.replace(expr)
    if isinstance(expr, e.BoolExpr):
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
