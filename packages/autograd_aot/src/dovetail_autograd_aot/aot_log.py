"""What AOT autograd did for its caller: counts and reasons, for reports."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class AotLog:
    """What the calls of `aot_compile` that were given this log did so far.

    `placements` counts compilations of a graph anew because inputs that share memory lay otherwise
    in it, and `placements_dropped` those given up since for newer ones (they are compiled anew if
    inputs come to lie so again).
    """

    placements: int = 0
    placements_dropped: int = 0

    def lines(self) -> list[str]:
        """What there is to tell, for people."""
        found = []
        if self.placements:
            dropped = f", {self.placements_dropped} dropped" if self.placements_dropped else ""
            found.append(
                f"inputs that share memory lay in new ways: {self.placements} compilations{dropped}"
            )
        return found
