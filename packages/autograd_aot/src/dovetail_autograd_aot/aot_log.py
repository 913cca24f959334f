"""What AOT autograd did for its caller: counts and reasons, for reports."""

from __future__ import annotations

import logging
from collections import Counter
from dataclasses import dataclass, field

_logger = logging.getLogger("dovetail.autograd")


@dataclass
class AotLog:
    """What the calls of `aot_compile` that were given this log did so far.

    `placements` counts compilations of a graph anew because inputs that share memory lay otherwise
    in it, and `placements_dropped` those given up since for newer ones (they are compiled anew if
    inputs come to lie so again). `double_backwards` counts compilations of a backward with
    `create_graph`; `replays` calls of one that ran eager's operators instead, by reason.
    """

    placements: int = 0
    placements_dropped: int = 0
    double_backwards: int = 0
    replays: Counter[str] = field(default_factory=Counter)

    def note_double_backward(self) -> None:
        """A backward with `create_graph` was compiled."""
        self.double_backwards += 1

    def note_replay(self, reason: str) -> None:
        """A backward with `create_graph` runs eager's operators."""
        if reason not in self.replays:
            _logger.warning("backward with create_graph runs uncompiled: %s", reason)
        self.replays[reason] += 1

    def lines(self) -> list[str]:
        """What there is to tell, for people."""
        found = []
        if self.placements:
            dropped = f", {self.placements_dropped} dropped" if self.placements_dropped else ""
            found.append(
                f"inputs that share memory lay in new ways: {self.placements} compilations{dropped}"
            )
        if self.double_backwards:
            found.append(f"backward with create_graph: {self.double_backwards} compilations")
        found += [
            f"backward with create_graph ran uncompiled {count} times: {reason}"
            for reason, count in self.replays.items()
        ]
        return found
