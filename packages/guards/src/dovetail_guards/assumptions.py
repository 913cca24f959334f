"""What a stage of compilation assumed of symbolic sizes and numbers, as a value of its own."""

from __future__ import annotations

from dataclasses import dataclass

from dovetail_guards import relations as rel


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
