"""What of graphs ran in an engine that is not ours, for reports."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class RegionCount:
    """Of one graph: in how many regions how many operators run in the engine, and what runs as it
    is, with the reason and how often."""

    engine: str
    regions: int
    operators: int
    left: tuple[tuple[str, int], ...]

    def as_text(self) -> str:
        """One line of a report."""
        left = "; ".join(f"{what} x{count}" for what, count in self.left)
        return f"{self.engine}: {self.operators} operators in {self.regions} regions" + (
            f"; as they are: {left}" if left else ""
        )


class CountsRegions:
    """A backend that counts, of each graph that it compiled."""

    counts: list[RegionCount]
