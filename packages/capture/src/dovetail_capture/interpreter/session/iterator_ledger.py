"""Steps of iterators that existed before the frame."""

from __future__ import annotations

from dovetail_capture.interpreter.values.functions import HeldIterator


class IteratorLedger:
    """Which iterators the replacement code steps, and how often."""

    def __init__(self) -> None:
        # (iterator, how many in a row), in their order; what a step takes steps of itself is not
        # among them.
        self.steps: list[tuple[HeldIterator, int]] = []
        self.steps_within = 0
        self.stepped: dict[int, HeldIterator] = {}  # all that were stepped, by their ids

    def note_step(self, iterator: HeldIterator) -> None:
        """Let the replacement code take a step of an iterator that existed before."""
        self.stepped[id(iterator)] = iterator
        if self.steps_within:
            return
        steps = self.steps
        count = steps.pop()[1] if steps and steps[-1][0] is iterator else 0
        steps.append((iterator, count + 1))
