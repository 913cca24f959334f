"""Instances of Python classes: nn.Modules, configs, dataclasses, exceptions, dict subclasses, and
tokens of context variables.
"""

from __future__ import annotations

import contextvars
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from dovetail_guards.source import Source

from dovetail_capture.interpreter.values.base import Value
from dovetail_capture.interpreter.values.containers import DictValue, TupleValue


class StandIn:
    """What stands for `value` in a class that was made for a capture (`local_classes`)."""

    __slots__ = ("value",)

    def __init__(self, value: Value) -> None:
        self.value = value


class ObjectValue(Value):
    """An instance of a Python class, pre-existing (`real` is it) or made in the frame.

    `fields` is its instance dictionary (an overlay over the real one), or the dictionary that an
    instance of `threading.local` has in this thread; `slots` hold what
    `__slots__` and C-level members hold; `native` is the list, dict, tuple or set that a subclass
    of one consists of; `pinned` says that a guard pins the object's identity.
    """

    __slots__ = ("base_new", "cls", "fields", "native", "new_args", "pinned", "real", "slots",
                 "slots_mutated")  # fmt: skip

    def __init__(
        self, cls: type, real: Any = None, source: Source | None = None, native: Any = None
    ) -> None:
        self.cls = cls
        self.real = real
        self.source = source
        self.native: Value | None = native
        self.fields = DictValue(dict, source)
        self.fields.is_instance_dict = True
        self.fields.holder = self
        self.slots: dict[str, Value] = {}
        self.slots_mutated: set[str] = set()
        self.pinned = False
        self.base_new: type = object
        self.new_args: tuple[Value, ...] = ()

    def python_type(self) -> type:
        return self.cls

    def describe(self) -> str:
        if issubclass(self.cls, torch.Tensor) and self.real is not None:
            return f"a {self.real.layout} tensor"
        return f"an object of type {self.cls.__module__}.{self.cls.__qualname__}"


def is_namedtuple(cls: type) -> bool:
    """Was this class made by `namedtuple` or as a `typing.NamedTuple`?"""
    fields = getattr(cls, "_fields", None)
    return cls.__bases__ == (tuple,) and type(fields) is tuple


def named_tuple(cls: type, items: Iterable[Value]) -> ObjectValue:
    """An instance of such a class."""
    value = ObjectValue(cls, native=TupleValue(items))
    value.base_new = tuple
    return value


class ProgramException(Exception):
    """An exception raised by the interpreted program; `value` is the exception object's value."""

    def __init__(self, value: Value) -> None:
        super().__init__(value)
        self.value = value


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
