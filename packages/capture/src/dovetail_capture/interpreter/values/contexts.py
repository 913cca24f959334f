"""What a frame does with context variables."""

from __future__ import annotations

import contextvars
from dataclasses import dataclass
from typing import Any

from dovetail_capture.interpreter.values.base import Value


@dataclass(frozen=True)
class ContextWrite:
    """What a context variable was set to in the frame."""

    variable: Value
    value: Value


class TokenValue(Value):
    """What `ContextVar.set` gave: `before` is the write it replaced. `born` is the step of the top
    frame that made it."""

    __slots__ = ("before", "born", "used", "variable")

    def __init__(
        self, variable: contextvars.ContextVar[Any], before: ContextWrite | None, born: int
    ) -> None:
        self.variable, self.before, self.born = variable, before, born
        self.used = False
        self.source = None

    def python_type(self) -> type:
        return contextvars.Token
