"""`SymValue`: an integer, float or bool that depends on symbolic sizes: what it is, and decisions.

The half of `SymNode` that makes no new values. What decides is the `ShapeEnv`; decisions about
floats are in `float_spans`.
"""

from __future__ import annotations

from typing import Any

from dovetail_guards import expr as e
from dovetail_guards import float_spans
from dovetail_guards import relations as rel
from dovetail_guards.float_expr import FloatExpr
from dovetail_guards.shape_env import DataDependentError, ShapeEnv

Text = str  # inside the class, `str` is the method that torch calls
Value = e.Expr | rel.BoolExpr | FloatExpr | int | float | bool
_GUESS = 1024  # what a size that depends on data counts as, where a number is wanted


class SymValue:
    """An integer, float or bool that depends on symbolic sizes."""

    __slots__ = ("env", "expr", "pytype")

    shape_env = None  # torch's own; see the docstring of `sym_node`

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
        if isinstance(self.expr, rel.BoolExpr):
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
        if isinstance(expr, (rel.BoolExpr, FloatExpr)):
            loose = not self.env.unbacked.isdisjoint(expr.free_symbols())
            return None if loose else expr.evaluate(self.env.hints)
        return expr

    def hint_or_guess(self) -> int:
        """The value of an integer in the call being compiled; what depends on data as if large."""
        known = self.hint
        if known is not None:
            return int(known)
        assert isinstance(self.expr, e.Expr)
        loose = self.env.typical_values(self.expr.free_symbols())
        for name, value in loose.items():
            loose[name] = max(min(_GUESS, value), self.env.lower_bound(name))
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

    def str(self) -> Any:
        return f"{self.expr}"

    _graph_repr = __str__ = __repr__ = str

    # --- deciding -----------------------------------------------------------------------------

    def guard_int(self, file: Any = None, line: Any = None) -> int:
        if self.pytype is int:
            assert isinstance(self.expr, e.Expr)
            return self.env.guard_int(self.expr)
        return int(self._specialize())

    def guard_bool(self, file: Any = None, line: Any = None) -> bool:
        if isinstance(self.expr, rel.BoolExpr):
            if file and self.hint is None:
                return self._shortcut(self.expr)
            return self.env.guard_bool(self.expr)
        if isinstance(self.expr, e.Expr):
            return not self.env.guard_bool(rel.eq(self.expr, 0))
        settled = float_spans.decide(self.env, self.expr)
        if settled is None and isinstance(self.expr, FloatExpr):
            settled = self.env.guard_truth(float_spans.as_comparison(self.expr))
        return bool(self._specialize()) if settled is None else settled

    def _shortcut(self, relation: rel.BoolExpr) -> bool:
        """C++ asks about a size that depends on data. Where it asks whether there are fewer than
        two, it is to do less then: what it does otherwise is right for any number. (A truth that
        depends on data is no size: its answer is needed.)"""
        loose = relation.free_symbols() & self.env.unbacked
        if any(self.env.facts.ranges[name].upper <= 1 for name in loose):
            return self.env.guard_bool(relation)
        # (A slice, whose size is made of minima and maxima, may have one or two elements less.)
        few = 4 if rel.has_atom(relation, ("min", "max")) else 2
        of_few, of_many = (
            relation.evaluate({**self.env.hints, **dict.fromkeys(loose, n)}) for n in (few, 1 << 20)
        )
        known = self.env.statically_known(relation)
        if known is None and of_few == of_many:
            return bool(of_many)
        return self.env.guard_bool(relation)

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
        if isinstance(self.expr, rel.BoolExpr):
            return self.env.guard_bool(self.expr)
        return self.expr

    int_, bool_, float_ = guard_int, guard_bool, guard_float

    def expect_true(self, file: Any = None, line: Any = None, *rest: Any) -> bool:
        if isinstance(self.expr, rel.BoolExpr):
            return self.env.require(self.expr)
        return self.guard_bool()

    def state(self, message: Text = "") -> bool:
        """`torch._check`: from here on it holds; False if it is known not to."""
        if isinstance(self.expr, rel.BoolExpr):
            return self.env.require(self.expr, message)
        return self.guard_bool()

    def _or(self, fallback: bool) -> bool:
        """Decide; where that is impossible, the fallback."""
        try:
            return self._of_layout()
        except DataDependentError:
            return fallback

    def _of_layout(self) -> bool:
        relation = self.expr
        known = self.env.answer_of_layout(relation) if isinstance(relation, rel.BoolExpr) else None
        return self.guard_bool() if known is None else known

    def answer_of_layout(self) -> bool:
        """Decide; what depends on data as if that were large, within its known bounds."""
        try:
            return self._of_layout()
        except DataDependentError:
            expr = self.expr
            assert isinstance(expr, (rel.BoolExpr, e.Expr, FloatExpr))
            loose = self.env.typical_values(expr.free_symbols())
            return bool(expr.evaluate({**self.env.hints, **loose}))

    def guard_or_false(self, file: Any = None, line: Any = None) -> bool:
        return self._or(False)

    def guard_or_true(self, file: Any = None, line: Any = None) -> bool:
        return self._or(True)

    guard_size_oblivious = guard_or_false

    def statically_known_true(self, file: Any = None, line: Any = None) -> bool:
        if isinstance(self.expr, rel.BoolExpr):
            return self.env.statically_known(self.expr) is True
        return self.constant is True

    def guard_bool_nonzero(self) -> bool:
        """Whether a float that is divided by is not zero; only a float input's answer is guarded,
        any other is checked when the program runs."""
        expr = self.expr
        if isinstance(expr, FloatExpr):
            if expr.input_name() is not None:
                return self.guard_bool()
            return bool(self.hint != 0)
        return isinstance(expr, (e.Expr, rel.BoolExpr)) or expr != 0
