"""`Value`: what stands for a Python object while a frame is interpreted."""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any

from dovetail_guards.source import Source


class Value:
    """Stands for one Python object.

    `source` tells where the object came from if it existed before the frame ran, and is None for
    an object made in the frame. Two places hold the same `Value` exactly if they hold the same
    object. `hashed` is set once it was a key, or a member of a set, by its identity: then whether
    two such objects are one decided what the container held.
    """

    __slots__ = ("hashed", "source")

    hashed: bool
    source: Source | None

    def python_type(self) -> type:
        """The type of the object this stands for."""
        raise NotImplementedError

    def describe(self) -> str:
        """A short text for graph-break messages."""
        return f"a {self.python_type().__name__}"


class Constant(Value):
    """An object known at capture and pinned by a guard if it has a source: numbers, strings,
    None, dtypes and devices, and also functions, classes, modules and other long-lived objects."""

    __slots__ = ("value",)

    def __init__(self, value: Any, source: Source | None = None) -> None:
        self.value = value
        self.source = source

    def python_type(self) -> type:
        return type(self.value)

    def describe(self) -> str:
        tells = type(type(self.value).__repr__) is not types.FunctionType
        try:
            if tells or type(self.value).__repr__.__module__ == "enum":
                return f"{self.value!r:.80}"
        except Exception:  # an object that is not finished yet may not be able to tell
            pass
        return f"an object of type {type(self.value).__qualname__}"

    def __repr__(self) -> str:
        return f"Constant({self.value!r:.60})"


class Lazy:
    """A pre-existing child object that has not been looked at: no guard speaks of it yet.

    `wrap` looks at it where no interpreter is at hand: at the members of a tuple that is a key."""

    __slots__ = ("real", "source", "wrap")

    def __init__(
        self, real: Any, source: Source, wrap: Callable[[Any, Source], Value] | None = None
    ) -> None:
        self.real = real
        self.source = source
        self.wrap = wrap

    def looked_at(self) -> Value:
        """The value of it, with the guards that this needs."""
        return Constant(self.real) if self.wrap is None else self.wrap(self.real, self.source)


NONE = Constant(None)
TRUE = Constant(True)
FALSE = Constant(False)


def is_none(value: Value) -> bool:
    """Is it None, whichever place it came from?"""
    return isinstance(value, Constant) and value.value is None


def is_not_implemented(value: Value) -> bool:
    """Is it what a special method answers that leaves an operation to the other operand?"""
    return isinstance(value, Constant) and value.value is NotImplemented


def boolean(flag: bool) -> Constant:
    """The shared constant for a truth value."""
    return TRUE if flag else FALSE
