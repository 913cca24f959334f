"""`Learned`: what the relations that were assumed say of each symbol.

A relation that holds is remembered as it is and, where it is simple enough, turned into a range or
a congruence of one symbol, or into an equality by which a symbol is replaced everywhere.
"""

from __future__ import annotations

from dovetail_guards import expr as e
from dovetail_guards import relations as rel
from dovetail_guards.ranges import Congruence, Facts, Range, range_if_nonpositive

_INF = float("inf")


class Learned:
    """Ranges, congruences and replacements of symbols.

    `unbacked` names the symbols of run time, and may grow: they are replaced by others rather than
    the other way round.
    """

    def __init__(self, unbacked: set[str]) -> None:
        self.unbacked = unbacked
        self.facts = Facts()
        self.replacements: dict[str, e.Expr] = {}
        self.recorded: set[rel.BoolExpr] = set()

    def replace(self, expr: e.Expr) -> e.Expr:
        """The expression with symbols replaced by what they were found equal to."""
        return expr.substitute(self.replacements) if self.replacements else expr

    def decide(self, relation: rel.BoolExpr) -> bool | None:
        """The truth of a relation; None where what is known leaves it open."""
        if relation.value is not None:
            return relation.value
        if relation in self.recorded:
            return True
        if rel.not_(relation) in self.recorded:
            return False
        if self.replacements:
            relation = relation.substitute(self.replacements)
            if relation in self.recorded:
                return True
            if rel.not_(relation) in self.recorded:
                return False
        return self.facts.decide(relation)

    def learn(self, relation: rel.BoolExpr) -> None:
        """Turn a relation that holds into ranges, congruences and replacements."""
        self.recorded.add(relation)
        if self.replacements:
            self.recorded.add(relation.substitute(self.replacements))
        if relation.kind == "and":
            for part in relation.args:
                self.learn(part)
        if relation.kind == "le":
            self._learn_bound(relation.args[0])
        elif relation.kind == "eq":
            self._learn_bound(relation.args[0])
            self._learn_bound(-relation.args[0])
            self._learn_equality(relation.args[0])

    def _learn_bound(self, expr: e.Expr) -> None:
        """c*x + d <= 0 bounds x, and what x is equal to."""
        self._bound(expr)
        settled = self.replace(expr)
        if settled is not expr:
            self._bound(settled)

    def _bound(self, expr: e.Expr) -> None:
        found = range_if_nonpositive(expr)
        if found is not None:
            name, bound = found
            self.facts.set_range(name, self.facts.ranges.get(name, Range()) & bound)

    def _learn_equality(self, expr: e.Expr) -> None:
        for monomial, factor in expr.terms:
            if len(monomial) != 1 or monomial[0][1] != 1:
                continue
            atom = monomial[0][0]
            if atom.kind == "floordiv" and atom.args[1].value == abs(factor):
                self._learn_rest(atom.args[0], abs(factor), expr if factor > 0 else -expr)
            if abs(factor) != 1:
                continue
            rest = (expr - e.of_atom(atom) * factor) * -factor
            if atom.kind == "mod" and rest.value is not None:
                name, modulus = atom.args[0].symbol_name, atom.args[1].value
                if name is not None and modulus is not None and modulus > 0:
                    self.facts.set_congruence(name, Congruence(modulus, rest.value))
            if atom.kind == "sym" and atom.name not in rest.free_symbols():
                # Keep the older symbol, one of an input before one of run time; a symbol never
                # stands for itself in a circle.
                own = (atom.name in self.unbacked, age(atom.name))
                if all((n in self.unbacked, age(n)) <= own for n in rest.free_symbols()):
                    self._replace(atom.name, rest)
                    return

    def _learn_rest(self, whole: e.Expr, divisor: int, zero: e.Expr) -> None:
        """What `zero`, with `divisor * (whole // divisor)` in it, says of what is left over."""
        left = zero - (whole // divisor) * divisor + whole  # whole % divisor, if it is a number
        if left.value is not None and whole.symbol_name is not None:
            self.facts.set_congruence(whole.symbol_name, Congruence(divisor, left.value))

    def _replace(self, name: str, by: e.Expr) -> None:
        by = self.replace(by)
        if name in by.free_symbols() or name in self.replacements:
            return
        one = {name: by}
        self.replacements = {n: x.substitute(one) for n, x in self.replacements.items()}
        self.replacements[name] = by
        # What was said of the symbol holds of what stands for it, and is asked in its words.
        said = [relation for relation in self.recorded if name in relation.free_symbols()]
        self.recorded.update(relation.substitute(self.replacements) for relation in said)
        known = self.facts.ranges.get(name, Range())
        if known.lower != -_INF:
            self._bound(-by + int(known.lower))
        if known.upper != _INF:
            self._bound(by - int(known.upper))


def age(name: str) -> int:
    """The number in a symbol's name: older symbols have lower ones."""
    return int(name[1:])


class OpenSizes:
    """The open sizes of one compilation: `names` are their symbols."""

    def __init__(self, learned: Learned) -> None:
        self.names: set[str] = set()
        self._asked: set[str] = set()
        self._learned = learned

    def asked(self) -> set[str]:
        """The open sizes that answers on layouts took for 2 or more."""
        found: set[str] = set()
        for name in self._asked:
            found |= self._learned.replace(e.symbol(name)).free_symbols()
        return found & self.names

    def within(self, relation: rel.BoolExpr) -> set[str]:
        """The open sizes that a relation is about."""
        return self.names & relation.substitute(self._learned.replacements).free_symbols()

    def answer(self, relation: rel.BoolExpr) -> bool | None:
        """The truth of a relation about open sizes if all of these are 2 or more; None where that
        does not settle it, or where it is about none."""
        relation = relation.substitute(self._learned.replacements)
        if self.names.isdisjoint(relation.free_symbols()):
            return None
        known = self._learned.facts
        more = {name: known.ranges[name] & Range(2) for name in self.names}
        return Facts({**known.ranges, **more}, known.congruences).decide(relation)

    def answer_of_layout(self, relation: rel.BoolExpr) -> bool | None:
        """`answer`, remembering what was asked."""
        truth = self.answer(relation)
        if truth is not None:
            self._asked |= self.within(relation)
        return truth
