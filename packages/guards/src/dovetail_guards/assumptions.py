"""What a stage of compilation assumed of symbolic sizes and numbers, as a value of its own."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass

from dovetail_guards import expr as e
from dovetail_guards import relations as rel
from dovetail_guards.ranges import Bound, Facts, Range, range_if_nonpositive


@dataclass(frozen=True)
class Decision:
    """A relation that was assumed, why, and where in the user's program."""

    relation: rel.BoolExpr
    reason: str
    where: str

    def __str__(self) -> str:
        return f"{self.relation}  ({self.reason}{'; ' + self.where if self.where else ''})"


@dataclass(frozen=True)
class Assumptions:
    """Decisions in the order in which they were made: those of capture, which a frame holds, or
    those of a backend, which it returns beside what it compiled."""

    decisions: tuple[Decision, ...] = ()

    def __add__(self, later: Assumptions) -> Assumptions:
        return Assumptions((*self.decisions, *later.decisions))

    def as_text(self) -> str:
        """A line for each."""
        return "\n".join(map(str, self.decisions))


# --- from relations to the fewest that say as much ------------------------------------------------

_INF = float("inf")


def relations_to_guard(
    assumed: Iterable[rel.BoolExpr], least: Mapping[str, Bound], floats: Container[str]
) -> tuple[list[str], list[rel.BoolExpr]]:
    """(symbols of `floats` that are tied to one value, relations to guard).

    What bounds one symbol is gathered into its range; what follows from the ranges and from
    the equations between symbols is left out. `least` has what each backed symbol is at least by
    its nature.
    """
    tied: list[str] = []
    kept: list[rel.BoolExpr] = []
    bounds: dict[str, Range] = {}
    others: list[rel.BoolExpr] = []
    for relation in assumed:
        bound = _bound_of(relation)
        if bound is None:
            others.append(relation)
        else:
            name, limits = bound
            bounds[name] = bounds.get(name, Range()) & limits
    for name, limits in bounds.items():
        if limits.lower == limits.upper and name in floats:
            tied.append(name)
        else:
            kept += _limits(name, limits, least.get(name, -_INF))
    # Equations stay as they are: others were simplified by them.
    equations = [relation for relation in others if relation.kind == "eq"]
    known = Facts({n: Range(low, _INF) & bounds.get(n, Range()) for n, low in least.items()}, {})
    rest = [r for r in others if r.kind != "eq" and known.decide(r) is not True]
    return tied, list(dict.fromkeys((*kept, *equations, *rest)))


def _limits(name: str, limits: Range, least: Bound) -> list[rel.BoolExpr]:
    """The limits of a symbol as relations, without what holds by its nature."""
    own = e.symbol(name)
    if limits.lower == limits.upper:
        return [rel.eq(own, int(limits.lower))]
    found = []
    if limits.lower > least:
        found.append(rel.ge(own, int(limits.lower)))
    if limits.upper != _INF:
        found.append(rel.le(own, int(limits.upper)))
    return found


def _bound_of(relation: rel.BoolExpr) -> tuple[str, Range] | None:
    """(symbol, range) of a relation that says no more than that."""
    if relation.kind not in ("le", "eq"):
        return None
    upper = range_if_nonpositive(relation.args[0])
    if upper is None or relation.kind == "le":
        return upper
    lower = range_if_nonpositive(-relation.args[0])
    assert lower is not None
    return upper[0], upper[1] & lower[1]
