"""Text of numbers that depend on sizes, e.g. the message of an assertion that holds."""

from __future__ import annotations

from typing import Any

import torch

from dovetail_capture.interpreter.values.base import Constant, Value
from dovetail_capture.interpreter.values.containers import TupleValue
from dovetail_capture.interpreter.values.symbolic import SymbolicNumber

_TUPLES = (tuple, torch.Size)
_CONVERTED = ("{!s}", "{!r}", "{!a}")


class LateText(Constant):
    """`template.format(*parts)`. Whoever looks at the text ties the numbers in it to what they are
    in this call; until then nothing is guarded."""

    __slots__ = ("_known", "parts", "template")

    def __init__(self, template: str, parts: tuple[Value, ...]) -> None:
        self.template = template
        self.parts = parts
        self.source = None
        self.unread = None
        self._known: str | None = None

    @property
    def value(self) -> str:
        """The text in this call."""
        if self._known is None:
            self._known = self.template.format(*map(_plain, self.parts))
        return self._known

    def python_type(self) -> type:
        return str

    def describe(self) -> str:
        return "a text of numbers that depend on sizes"


def late_text(value: Value, conversion: str, spec: str) -> LateText | None:
    """A value as an f-string formats it; None where its text is known, or may be another later."""
    if isinstance(value, LateText) and not conversion:  # it was converted just before
        if not spec:
            return value
        if value.template in _CONVERTED and not ("{" in spec or "}" in spec):
            return LateText(f"{value.template[:-1]}:{spec}}}", value.parts)
    if "{" in spec or "}" in spec or not _depends_on_sizes(value):
        return None
    mark = "{" + (f"!{conversion}" if conversion else "") + (f":{spec}" if spec else "") + "}"
    return LateText(mark, (value,))


def joined(texts: list[Value]) -> Constant:
    """One text after the other."""
    if not any(isinstance(text, LateText) for text in texts):
        return Constant("".join(text.value for text in texts))  # type: ignore[attr-defined]
    template, parts = "", list[Value]()
    for text in texts:
        if isinstance(text, LateText):
            template += text.template
            parts += text.parts
        else:
            assert isinstance(text, Constant)
            template += text.value.replace("{", "{{").replace("}", "}}")
    return LateText(template, tuple(parts))


def _depends_on_sizes(value: Any) -> bool:
    """Is it a number that depends on sizes, or a tuple of such and of plain ones?"""
    if isinstance(value, SymbolicNumber):
        return value.value.node.constant is None and value.value.node.hint is not None
    if not isinstance(value, TupleValue) or value.python_type() not in _TUPLES:
        return False
    plain = all(
        isinstance(item, SymbolicNumber)
        or (item.__class__ is Constant and type(item.value) in (int, float, bool))
        for item in value.items
    )
    return plain and any(map(_depends_on_sizes, value.items))


def _plain(value: Any) -> Any:
    if isinstance(value, TupleValue):
        return value.python_type()(map(_plain, value.items))
    return value.concrete() if isinstance(value, SymbolicNumber) else value.value
