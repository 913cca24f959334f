"""`id()` of objects that have none yet: those that a frame makes."""

from __future__ import annotations

from typing import NoReturn

from dovetail_capture.interpreter.signals import GraphBreakSignal
from dovetail_capture.interpreter.values.base import Value


class IdOf(Value):
    """The int `id(of)`. It is compared with others of its kind and is a key of dictionaries and a
    member of sets; which number it is, is known only where it leaves the graph."""

    __slots__ = ("of",)

    def __init__(self, of: Value) -> None:
        self.of = of
        self.source = None

    def python_type(self) -> type:
        return int

    def describe(self) -> str:
        return f"id() of {self.of.describe()}"

    def refuse(self) -> NoReturn:
        """Break the graph, where the number itself is asked for."""
        raise GraphBreakSignal(f"the number that is {self.describe()}")
