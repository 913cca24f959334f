"""Numbers that depend on symbolic sizes, and `id()` of objects that have none yet."""

from __future__ import annotations

from typing import Any, NoReturn, TypeGuard

import torch
from dovetail_guards.source import Source
from dovetail_prims.sizes.size_nodes import power_of_floats

from dovetail_capture.interpreter.signals import GraphBreakSignal
from dovetail_capture.interpreter.values.base import Value

SYMBOLIC_TYPES = (torch.SymInt, torch.SymFloat, torch.SymBool)
_PYTHON_TYPES: dict[type, type] = {
    torch.SymInt: int, torch.SymFloat: float, torch.SymBool: bool,
}  # fmt: skip


def floor_divide(left: Any, right: Any) -> Any:
    """`left // right` as Python has it: torch takes the floor of a float's rounded quotient."""
    if torch.SymFloat in (type(left), type(right)):
        return _plain(left) // _plain(right)
    return left // right


def power(left: Any, right: Any) -> Any:
    """`left ** right`: what a negative float gives depends on whether the exponent is whole."""
    if torch.SymFloat not in (type(left), type(right)):
        return left**right
    if not left >= 0:
        return _plain(left) ** _plain(right)
    return power_of_floats(left, right)


def _plain(number: Any) -> Any:
    return float(number) if type(number) is torch.SymFloat else number


class SymbolicNumber(Value):
    """An int, float or bool that follows from sizes: `value` is a `torch.SymInt` and the like.

    Arithmetic on it stays symbolic; whatever else is done with it ties it to the number that it
    is in this call (`concrete`, which makes a guard).
    """

    __slots__ = ("value",)

    def __init__(self, value: Any, source: Source | None = None) -> None:
        self.value = value
        self.source = source

    def python_type(self) -> type:
        return _PYTHON_TYPES[type(self.value)]

    def concrete(self) -> Any:
        """The number in this call; a guard ties the sizes to it."""
        return self.python_type()(self.value)

    def describe(self) -> str:
        return f"a number that depends on sizes ({self.value})"


class SymbolicKey:
    """Hash key of a symbolic int: equal to those of the same expression. Whether it is one of the
    other keys of a container, `dicts.key_among` decides."""

    __slots__ = ("expr", "number")

    def __init__(self, number: SymbolicNumber) -> None:
        self.number = number
        self.expr = number.value.node.expr

    @staticmethod
    def fits(value: Value) -> TypeGuard[SymbolicNumber]:
        """Is it an int that may stay symbolic as a key?"""
        if not isinstance(value, SymbolicNumber) or value.python_type() is not int:
            return False
        return value.value.node.hint is not None

    def __hash__(self) -> int:
        return hash(self.expr)

    def __eq__(self, other: object) -> bool:
        return type(other) is SymbolicKey and bool(other.expr == self.expr)

    def is_number(self, other: Any) -> bool:
        """Is it that number (or that of another such key)? The answer is guarded."""
        if type(other) is SymbolicKey:
            return bool(self.number.value == other.number.value)
        whole = isinstance(other, (int, float)) and other == other // 1
        return whole and bool(self.number.value == int(other))


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
