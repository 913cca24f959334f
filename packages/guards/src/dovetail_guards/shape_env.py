"""`ShapeEnv`: the symbols of one compilation, what is known of them, and what was assumed.

A *backed* symbol stands for an input size with a known value (its hint) in the call being
compiled. Whenever a decision depends on it, the hint decides and the decision is recorded as a
guard. An *unbacked* symbol (a data-dependent size) has no hint: a decision that its range does not
settle raises `DataDependentError`.
"""

from __future__ import annotations

import enum
import re
import traceback
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

from dovetail_guards import expr as e
from dovetail_guards import float_expr
from dovetail_guards import relations as rel
from dovetail_guards.assumptions import Assumptions, Decision, relations_to_guard
from dovetail_guards.clauses import ConstantIs, ShapeRelation
from dovetail_guards.learned import Learned, OpenSizes, age
from dovetail_guards.ranges import Bound, Range
from dovetail_guards.source import Source

_INF = float("inf")


class DataDependentError(RuntimeError):
    """A decision depends on a size that is only known when the program runs: on `relation`, where
    it is one relation between sizes."""

    relation: rel.BoolExpr | None = None


class FrozenError(RuntimeError):
    """Something new would be assumed of sizes when the guards are made already."""


class Check(NamedTuple):
    """What the compiled program checks of numbers that only the run tells: where `relation` does
    not hold, it raises `error` with `message`. Each `{}` in it is one of `numbers`, if it has any.
    """

    relation: rel.BoolExpr
    message: str
    error: type[Exception] = RuntimeError
    numbers: tuple[e.Expr, ...] = ()


class Dim(enum.Enum):
    """How an input size is to be treated."""

    STATIC = "static"  # its value is compiled in
    DUCK = "duck"  # a symbol, shared by all such sizes with the same value
    DYNAMIC = "dynamic"  # a symbol of its own (the user marked it)
    OPEN = "open"  # a symbol of its own; only where the program asks, 1 is compiled apart


_SYMBOL = re.compile(r"\b[a-z]+\d+\b")


@dataclass(frozen=True)
class Specialization:
    """A size that became a number, and why."""

    source: Source
    value: int
    reason: str


def _user_location() -> str:
    """The innermost stack frame that is neither torch's nor Dovetail's."""
    for frame in reversed(traceback.extract_stack(limit=40)):
        name = frame.filename
        if "/torch/" not in name and "/dovetail_" not in name and not name.startswith("<"):
            return f"{name}:{frame.lineno}"
    return ""


# Of values for symbols of run time: rising or falling by name, and how much smaller.
_TRIED = [(sign, 1 << shift) for shift in range(8) for sign in (1, -1)]
_SMALL = (2, 3, 5, 7, 11, 13, 1)  # for divisors
_DIVISIONS = ("floordiv", "mod")


class ShapeEnv:
    """Symbols, facts and recorded decisions of one compilation."""

    def __init__(self, *, specialize_zero_one: bool = True, locate: bool = False) -> None:
        self.specialize_zero_one = specialize_zero_one
        self.locate = locate
        self.hints: dict[str, int] = {}
        self.sources: dict[str, Source] = {}
        self.unbacked: set[str] = set()
        # Run-time values of which the compiled program checks nothing: all must be decided.
        self.unchecked: set[str] = set()
        self.given: set[str] = set()  # symbols of integer inputs of any sign
        self.floats: dict[str, float] = {}  # symbols of float inputs: a symbol is the float's key
        # Sizes of inputs that the user wants nothing decided about, for as long as `keep_undecided`
        self.undecided: set[str] = set()
        self.keep_undecided = True
        self.frozen = False
        self.decisions: list[Decision] = []
        self.checks: list[Check] = []  # for the compiled program to make
        self.specializations: list[Specialization] = []
        self.learned = Learned(self.unbacked)
        self.facts = self.learned.facts
        self.open = OpenSizes(self.learned)
        self._least: dict[str, Bound] = {}  # what a symbol is at least by its nature
        self._strides: list[ShapeRelation] = []
        self._by_hint: dict[int, str] = {}  # duck shaping
        self._by_source: dict[Source, e.Expr] = {}
        # Makes an input of a whole number that is rounded from a float; None where none is to be.
        self.make_input: Callable[[Source, int, e.Expr], None] | None = None
        self._rounded: dict[tuple[str, float_expr.FloatExpr], e.Expr] = {}
        self._truths: dict[float_expr.FloatExpr, bool] = {}  # of comparisons of floats

    # --- symbols ------------------------------------------------------------------------------

    def create_size(
        self, hint: int, source: Source, dim: Dim = Dim.DUCK, bounds: Range | None = None
    ) -> e.Expr:
        """The expression that stands for an input size: a number or a symbol.

        `bounds` are the user's limits of a dynamic size; a hint outside them is refused.
        """
        known = self._by_source.get(source)
        if known is not None:
            return known
        result = self._new_size(hint, source, dim, bounds)
        self._by_source[source] = result
        return result

    def _new_size(self, hint: int, source: Source, dim: Dim, bounds: Range | None) -> e.Expr:
        if dim is Dim.STATIC:
            return e.constant(hint)
        if hint in (0, 1) and self.specialize_zero_one:
            reason = (
                f"{source} is {hint} in this call; sizes 0 and 1 are compiled apart, because "
                "broadcasting and memory layout treat them differently"
            )
            if dim in (Dim.DYNAMIC, Dim.OPEN):
                reason += "; compile with a size of 2 or more first to make it dynamic"
            self.specializations.append(Specialization(source, hint, reason))
            return e.constant(hint)
        least = 2 if self.specialize_zero_one else 0
        limits = Range(least, _INF) & (bounds or Range())
        if hint not in limits:
            raise ValueError(f"{source} is {hint}, outside its declared bounds {bounds}")
        shared = self._by_hint.get(hint) if dim is Dim.DUCK else None
        name = self._named("s", hint, source, Range(0, _INF))
        symbol = e.symbol(name)
        if shared is not None:
            self._assume(rel.eq(symbol, e.symbol(shared)), "sizes that were equal share a symbol")
            return e.symbol(shared)
        if dim is Dim.DUCK:
            self._by_hint[hint] = name
        if limits.lower > 0:
            why = "bounds" if bounds and bounds.lower > least else "not 0 or 1"
            is_open = dim is Dim.OPEN and limits.lower == 2
            self._assume(rel.ge(symbol, 1 if is_open else int(limits.lower)), why)
            self.open.names |= {name} if is_open else set()
        if limits.upper != _INF:
            self._assume(rel.le(symbol, int(limits.upper)), "bounds")
        return symbol

    def _named(self, kind: str, hint: int, source: Source, limits: Range) -> str:
        """The name of a new symbol for what is at `source`, which is in these limits."""
        name = f"{kind}{len(self.hints) + len(self.unbacked)}"
        self.hints[name], self.sources[name] = hint, source
        self.facts.set_range(name, limits)
        self._least[name] = limits.lower
        return name

    def symbol_of(self, source: Source) -> e.Expr | None:
        """The expression made for what is at `source`, if one was."""
        return self._by_source.get(source)

    def create_undecided_size(self, hint: int, source: Source) -> e.Expr:
        """A symbol for an input size of which nothing may be decided: not even that it is neither 0
        nor 1. (What a compiler decides later, with `keep_undecided` off, is guarded.)"""
        name = self._named("s", hint, source, Range(0, _INF))
        self.undecided.add(name)
        return self._by_source.setdefault(source, e.symbol(name))

    def create_int(self, hint: int, source: Source, counts: bool = False) -> e.Expr:
        """The expression that stands for an integer input of any sign. One that `counts` is also 0
        and 1 in its time; any other is compiled apart for these."""
        known = self._by_source.get(source)
        if known is None:
            if hint in (0, 1) and not counts:
                reason = f"{source} is {hint} in this call; 0 and 1 are compiled apart"
                self.specializations.append(Specialization(source, hint, reason))
                return e.constant(hint)
            name = self._named("s", hint, source, Range())
            self.given.add(name)
            known = self._by_source[source] = e.symbol(name)
            least, why = (0, "not negative") if counts else (2, "not 0 or 1")
            self._assume(rel.ge(known, least) if hint >= least else rel.le(known, -1), why)
        return known

    def is_unbounded(self, value: e.Expr) -> bool:
        """Whether it is made of integer inputs of any sign, whose values have no bounds, and of
        nothing that only data tells."""
        if not self.given:
            return False
        names = self.replace(value).free_symbols()
        return not self.given.isdisjoint(names) and self.unbacked.isdisjoint(names)

    def create_float(self, hint: float, source: Source) -> float_expr.FloatExpr | float:
        """What stands for a float input; NaN and -0.0, which keys do not tell, stay numbers."""
        known = self._by_source.get(source)
        if known is None:
            if hint != hint or (hint == 0 and str(hint)[0] == "-"):
                return hint
            name = self._named("f", float_expr.key_of(hint), source, Range())
            self.floats[name] = hint
            known = self._by_source[source] = e.symbol(name)
            self._assume(rel.ge(known, -float_expr.INFINITE_KEY), "not NaN")
            self._assume(rel.le(known, float_expr.INFINITE_KEY), "not NaN")
        return float_expr.FloatExpr(float_expr.INPUT, (known,))

    def create_rounded(self, how: str, value: float_expr.FloatExpr) -> e.Expr | None:
        """The expression that stands for a rounded float, of sizes and inputs; None where it can
        only be tied to its value in this call."""
        settled = value.replace(self.replace)
        if not isinstance(settled, float_expr.FloatExpr):
            return None
        known = self._rounded.get((how, settled))
        names = sorted(settled.free_symbols())
        if known is not None or self.make_input is None:
            return known
        if not (self.unbacked | self.undecided).isdisjoint(names):
            return None
        try:
            hint = float_expr.ROUNDINGS[how](settled.evaluate(self.hints))
        except (ArithmeticError, ValueError):  # as the program says when it comes to it
            return None
        if hint in (0, 1) or abs(hint) > float_expr.EXACT:
            return None
        source = self._computed(how, settled)
        known = self._rounded[how, settled] = self.create_int(hint, source)
        self.make_input(source, hint, known)
        return known

    def guard_truth(self, comparison: float_expr.FloatExpr) -> bool | None:
        """The truth of a comparison of floats in this call, guarded by computing it again; None
        where it depends on data."""
        settled = comparison.replace(self.replace)
        if not isinstance(settled, float_expr.FloatExpr):
            return bool(settled)
        known = self._truths.get(settled)
        if known is None and (self.unbacked | self.undecided).isdisjoint(settled.free_symbols()):
            source = self._computed("int", settled)
            known = self._truths[settled] = bool(settled.evaluate(self.hints))
            name = self._named("s", int(known), source, Range(0, 1))
            self._assume(rel.eq(e.symbol(name), int(known)), "floats are compared")
        return known

    def _computed(self, how: str, value: float_expr.FloatExpr) -> float_expr.ComputedSource:
        names = sorted(value.free_symbols())
        return float_expr.ComputedSource(
            how, value, tuple((name, self.sources[name]) for name in names)
        )

    def relate_stride(self, stride: e.Expr, source: Source) -> None:
        """A guard that the stride at `source` is this expression over the sizes."""
        name = f"t{len(self._strides)}"
        relation = rel.eq(e.symbol(name), stride)
        symbols = [(n, self.sources[n]) for n in sorted(stride.free_symbols(), key=age)]
        self._strides.append(ShapeRelation(relation, ((name, source), *symbols)))

    def create_unbacked(self, bounds: Range | None = None) -> e.Expr:
        """A symbol for a size known only at run time (of `nonzero`, `.item()`, ...)."""
        name = f"u{len(self.hints) + len(self.unbacked)}"
        self.unbacked.add(name)
        self.facts.set_range(name, bounds if bounds is not None else Range(0, _INF))
        return e.symbol(name)

    def create_unbacked_float(self, keys: Range | None = None) -> float_expr.FloatExpr:
        """A symbol for a float known only at run time; `keys` are the limits of its key."""
        symbol = self.create_unbacked(keys or Range())
        assert symbol.symbol_name is not None
        self.floats[symbol.symbol_name] = float("nan")
        return float_expr.FloatExpr(float_expr.INPUT, (symbol,))

    # --- asking -------------------------------------------------------------------------------

    def simplify(self, expr: e.Expr) -> e.Expr:
        """The expression under everything that is known by now."""
        return self.facts.simplify(self.replace(expr))

    def replace(self, expr: e.Expr) -> e.Expr:
        """The expression with symbols replaced by what they were found equal to."""
        return self.learned.replace(expr)

    def product(self, left: e.Expr, right: e.Expr) -> e.Expr:
        """`left * right`; a quotient times its divisor, one of run time that the program has
        checked to leave nothing over, is the whole."""
        if self.unbacked:
            for quotient, factor in ((left, right), (right, left)):
                for atom in quotient.atoms():
                    if atom.kind == "floordiv" and e.of_atom(atom) is quotient:
                        whole, divisor = atom.args
                        checks = rel.eq(e.mod(whole, divisor), 0), rel.eq(left * right, whole)
                        if divisor is factor and any(map(self.statically_known, checks)):
                            return whole
        return left * right

    def hint(self, expr: e.Expr) -> int | None:
        """The value in the call being compiled; None if a part is unbacked."""
        if not self.unbacked.isdisjoint(expr.free_symbols()):
            expr = self.simplify(expr)
            if not self.unbacked.isdisjoint(expr.free_symbols()):
                return None
        return expr.evaluate(self.hints)

    def statically_known(self, relation: rel.BoolExpr) -> bool | None:
        """The truth of a relation if it follows from what is known; no guard is made."""
        return self.learned.decide(relation)

    def guard_bool(self, relation: rel.BoolExpr, reason: str = "a branch depends on it") -> bool:
        """The truth of a relation in this call, recorded as a guard unless it is known anyway."""
        known = self.statically_known(relation)
        if known is not None:
            return known
        loose = sorted(relation.free_symbols() & self.unbacked)
        if loose:
            undecided = DataDependentError(
                f"cannot decide {relation}: {', '.join(loose)} depends on data and is only known "
                f"at run time. State what holds before, e.g. torch._check({_readable(relation)}), "
                f"or avoid the branch"
            )
            undecided.relation = relation
            raise undecided
        marked = sorted(relation.free_symbols() & self.undecided) if self.keep_undecided else []
        if marked:
            named = ", ".join(f"{name} ({self.sources[name]})" for name in marked)
            raise DataDependentError(
                f"cannot decide {relation}: {named} is marked unbacked. State what holds before, "
                f"e.g. torch._check({_readable(relation)}), or avoid the branch"
            )
        return self._decide(relation, reason)

    def answer_of_layout(self, relation: rel.BoolExpr) -> bool | None:
        """The truth of what is asked for a layout alone, open sizes being taken for 2 or more; None
        where that is not what settles it."""
        if not self.open.names or self.statically_known(relation) is not None:
            return None
        return self.open.answer_of_layout(relation)

    def close(self, names: Iterable[str], reason: str) -> None:
        """Compile size 1 apart for these symbols, where they are open."""
        for name in sorted(self.open.names.intersection(names), key=age):
            self.open.names.discard(name)
            self._assume(rel.ge(e.symbol(name), 2), reason)

    def close_asked(self) -> None:
        """Compile apart size 1 of what layouts were asked about: the program itself asks now."""
        self.close(self.open.asked(), "the program asks how tensors lie in memory")

    def _decide(self, relation: rel.BoolExpr, reason: str) -> bool:
        known = self.open.answer(relation) if self.open.names else None
        if known is not None:
            self.close(self.open.within(relation), reason)
            return known
        truth = relation.evaluate(self.hints)
        self._assume(relation if truth else rel.not_(relation), reason)
        return truth

    def guard_int(self, expr: e.Expr, reason: str = "its value is needed as a number") -> int:
        """The value in this call; the expression is tied to it by a guard."""
        value = self.replace(expr).value
        if value is not None:
            return value
        value = self.hint(expr)
        if value is None:
            known = self.facts.range_of(self.replace(expr))
            if known.lower == known.upper:
                return int(known.lower)
            raise DataDependentError(
                f"the value of {expr} is only known at run time, but a number is needed here. "
                f"Bound it with torch._check(...), or keep it symbolic."
            )
        self.guard_bool(rel.eq(expr, value), reason)
        return value

    def require(
        self,
        relation: rel.BoolExpr,
        message: str = "",
        error: type[Exception] = RuntimeError,
        numbers: tuple[e.Expr, ...] = (),
    ) -> bool:
        """`torch._check`: from here on the relation holds; False if it is known not to. `message`,
        `error` and `numbers` are as in `Check`."""
        known = self.statically_known(relation)
        if known is not None:
            return known
        symbols = relation.free_symbols()
        if self.unbacked.isdisjoint(symbols):
            reason = message.format(*numbers) if numbers else message
            return self._decide(relation, reason or "checked by the program")
        if not self.unchecked.isdisjoint(symbols):
            return self.guard_bool(relation)
        # About a run-time value: the compiled program checks it when it runs; here it is learnt.
        message = message or f"a check of the program fails: {relation}"
        self.checks.append(Check(relation, message, error, numbers))
        self.learned.learn(relation)
        return True

    def typical_values(self, names: Iterable[str]) -> dict[str, int]:
        """Values that the symbols of run time among `names` may have and that are no special case:
        large ones, each of its own, or ones in the middle of their bounds; the largest that the
        checks of the program allow."""
        wanted = self.unbacked.intersection(names)
        if not wanted:
            return {}
        found: dict[str, int] = {}
        for sign, shrink in _TRIED:
            found = {name: self._typical(name, sign, shrink) for name in self.unbacked}
            if not self._failing(found):
                break
        divisors = [check for check in self._failing(found) if rel.has_atom(check, _DIVISIONS)]
        if divisors:
            # (What divides a number of this call is none of the large ones.)
            names = self.unbacked & set().union(*(check.free_symbols() for check in divisors))
            for number in _SMALL:
                tried = {**found, **dict.fromkeys(names, number)}
                if not self._failing(tried):
                    found = tried
                    break
        return {name: found[name] for name in wanted}

    def _failing(self, values: dict[str, int]) -> list[rel.BoolExpr]:
        """The checks of the program that do not hold with these values for symbols of run time."""
        told = {**self.hints, **values}
        asked = (check.relation for check in self.checks)
        asked = (check for check in asked if check.free_symbols() <= told.keys())
        return [check for check in asked if not check.evaluate(told)]

    def _typical(self, name: str, sign: int, shrink: int) -> int:
        bounds = self.facts.ranges.get(name, Range())
        large = (1 << 20) + sign * 7919 * int(name[1:])
        if bounds.upper <= large:
            upper = int(bounds.upper)
            lower = int(max(bounds.lower, min(0, upper)))
            return lower + ((upper - lower) // shrink + 1) // 2
        lower = int(max(bounds.lower, 0))
        return lower + large // shrink

    def lower_bound(self, name: str) -> int:
        """The least value that a symbol is known to have; 0 where nothing is known."""
        lower = self.facts.ranges.get(name, Range()).lower
        return 0 if lower == -_INF else int(lower)

    # --- recording ----------------------------------------------------------------------------

    def _assume(self, relation: rel.BoolExpr, reason: str) -> None:
        if self.frozen:
            raise FrozenError(f"{relation} would have to be assumed after the guards were made")
        where = _user_location() if self.locate else ""
        self.decisions.append(Decision(relation, reason, where))
        self.learned.learn(relation)

    # --- results ------------------------------------------------------------------------------

    def assumed(self, after: Assumptions | None = None) -> Assumptions:
        """All that was assumed so far, or what was `after` the first assumptions."""
        return Assumptions(tuple(self.decisions[len(after.decisions) if after else 0 :]))

    def clauses(
        self, assumptions: Assumptions | None = None
    ) -> tuple[ShapeRelation | ConstantIs, ...]:
        """The guards: what was assumed, or of that some, as clauses over size sources."""
        decisions = self.decisions if assumptions is None else assumptions.decisions
        assumed = (decision.relation for decision in decisions)
        tied, relations = relations_to_guard(assumed, self._least, self.floats)
        values = (ConstantIs(self.sources[name], self.floats[name]) for name in tied)
        return (*values, *(self.clause_for(relation) for relation in relations), *self._strides)

    def clause_for(self, relation: rel.BoolExpr) -> ShapeRelation:
        """A relation over backed symbols as a clause."""
        names = sorted(relation.free_symbols(), key=age)
        return ShapeRelation(relation, tuple((name, self.sources[name]) for name in names))

    def freeze(self) -> None:
        """From here on a decision that does not follow from the guards is an error."""
        self.frozen = True

    def why_specialized(self, name: str) -> str:
        """The first decision that ties a symbol to a number."""
        names = {symbol: str(source) for symbol, source in self.sources.items()}
        for decision in self.decisions:
            if decision.relation.kind == "eq" and name in decision.relation.free_symbols():
                return _SYMBOL.sub(lambda found: names.get(found[0], found[0]), str(decision))
        return "its bounds leave one value"

    def specialized(self) -> Iterable[str]:
        """Backed symbols that some guard tied to a number, e.g. to warn about `mark_dynamic`."""
        return [name for name in self.hints if self.replace(e.symbol(name)).value is not None]

    def as_text(self) -> str:
        """Symbols and decisions, for people."""
        lines = [
            f"  {name} = {self.hints[name]}  from {source}  in "
            f"[{self.facts.ranges[name].lower}, {self.facts.ranges[name].upper}]"
            for name, source in self.sources.items()
        ]
        lines += [f"  {name} unbacked" for name in sorted(self.unbacked)]
        lines += [f"  assumed {decision}" for decision in self.decisions]
        lines += [f"  fixed {s.source} = {s.value}: {s.reason}" for s in self.specializations]
        return "\n".join(["shapes:", *lines])

    # --- torch values -------------------------------------------------------------------------

    def symfloat(self, expr: float_expr.FloatExpr | float) -> Any:
        """A float, or a `torch.SymFloat` over the expression."""
        from dovetail_guards.sym_node import to_symfloat

        return to_symfloat(self, expr)

    def symint(self, expr: e.IntLike) -> Any:
        """What user code sees for an expression: an int, or a `torch.SymInt`."""
        from dovetail_guards.sym_node import to_symint

        return to_symint(self, e.as_expr(expr))


def _readable(relation: rel.BoolExpr) -> str:
    """A relation as an argument of `torch._check`: `u0 == 0` is seldom what is meant to hold."""
    if relation.kind == "eq":
        left = relation.args[0].symbol_name
        if left is not None:
            return f"{left} > 0"
    return str(relation)
