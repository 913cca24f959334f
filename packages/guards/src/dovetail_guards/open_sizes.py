"""`OpenSizes`: sizes of 2 or more that may be 1 in other calls of the same compiled code.

Where an element lies is often asked of sizes: is a tensor contiguous, which of two dimensions is
the outer one? For a dimension of one element either answer is right, as its stride is never used.
Such questions are answered as if there were more; any other question whose answer tells a size of
1 from more *closes* the size: a guard says that it is 2 or more. What answers on layouts leave
open is the strides of results. Whoever has the whole graph compares these at size 1, and closes
the sizes for which eager's are others.
"""

from __future__ import annotations

from dovetail_guards import expr as e
from dovetail_guards import relations as rel
from dovetail_guards.learned import Learned
from dovetail_guards.ranges import Facts, Range


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
