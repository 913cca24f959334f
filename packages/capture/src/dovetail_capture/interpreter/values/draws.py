"""Random numbers of Python's: drawn when the replacement code runs, before the graph."""

from __future__ import annotations

from dataclasses import dataclass

from dovetail_guards.source import Source

from dovetail_capture.interpreter.signals import GraphBreakSignal
from dovetail_capture.interpreter.values.base import Value


@dataclass(frozen=True)
class DrawSource(Source):
    """What draw number `index` of a `CapturedFrame` gave, or `item` of the list that it gave. No
    guard speaks of it."""

    index: int
    item: int | None = None

    def __str__(self) -> str:
        return f"draw{self.index}" + ("" if self.item is None else f"[{self.item}]")


class GeneratorState(Value):
    """What `getstate()` gave: known when the program runs only, and handed on as it is. Without a
    source, a part of the state that follows from a draw."""

    __slots__ = ()

    def __init__(self, source: DrawSource | None) -> None:
        self.source = source

    def python_type(self) -> type:
        # Whoever asks is about to look into it.
        raise GraphBreakSignal(f"a look at {self.describe()}", "look at it outside")

    def describe(self) -> str:
        return "the state of a random number generator"
