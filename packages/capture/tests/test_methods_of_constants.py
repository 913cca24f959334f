"""Special methods of members of enumerations, and of classes with a metaclass, are the program's:
they are captured, and so guarded, not run while a frame is captured."""

from __future__ import annotations

import enum
from collections.abc import Callable
from typing import Any

import pytest
import torch
from construct_cases import observe, same
from dovetail_capture import optimize, run_graph

X = torch.arange(6.0).reshape(2, 3)
NUMBER = 1


def told(name: str) -> int:
    """What a method gives, which is seen to run."""
    CALLS.append(name)
    return NUMBER


CALLS: list[str] = []


def _is_one(name: str) -> Callable[..., bool]:
    return lambda *args: told(name) == 1


def _number(name: str) -> Callable[..., int]:
    return lambda *args: told(name)


METHODS: dict[str, Callable[..., Any]] = {
    **{f"__{name}__": _is_one(name) for name in ("lt", "eq", "bool", "contains")},
    **{
        f"__{name}__": _number(name)
        for name in ("add", "radd", "len", "neg", "int", "index", "getitem", "matmul", "call")
    },
    "__hash__": lambda self: 3,
    "__float__": lambda self: float(told("float")),
    "__iter__": lambda self: iter([told("iter")]),
    "__str__": lambda self: f"text {told('str')}",
    "__repr__": lambda self: f"repr {told('repr')}",
    "__format__": lambda self, spec: f"format {told('format')}",
}


class Own:
    """The methods, for an enumeration."""

    locals().update(METHODS)

    @property
    def held(self) -> int:
        return told("property")

    def __getattr__(self, name: str) -> int:
        if name.startswith("_"):
            raise AttributeError(name)
        return told(name)


class Member(Own, enum.Enum):
    A = 1
    B = 2


class Meta(type):
    """The same of classes."""

    locals().update(METHODS)


class Made(metaclass=Meta):
    """A class."""


class BySquareBrackets:
    """Has items as a class."""

    def __class_getitem__(cls, key: int) -> int:
        return told("class_getitem") + key


READS: dict[str, Callable[[Any], Any]] = {
    "+": lambda one: one + 1,
    "reflected +": lambda one: 1 + one,
    "@": lambda one: one @ 1,
    "<": lambda one: one < one,
    "==": lambda one: one == 3,
    "!=": lambda one: one != 3,
    "== of lists": lambda one: [one] == [3],
    "not": lambda one: not one,
    "if": lambda one: 1 if one else 2,
    "all": lambda one: all([one]),
    "len": len,
    "in it": lambda one: 3 in one,
    "it in": lambda one: one in [3],
    "count": lambda one: [one, 3].count(3),
    "iterated": lambda one: [item for item in one],
    "zip": lambda one: list(zip(one, [1], strict=False)),
    "negative": lambda one: -one,
    "str": str,
    "repr": repr,
    "repr of a list": lambda one: repr([one]),
    "f-string": lambda one: f"{one}",
    "f-string of repr": lambda one: f"{one!r}",
    "call": lambda one: one(3),
    "item": lambda one: one[0],
}
NUMBERS: dict[str, Callable[[Any], Any]] = {
    "int": int,
    "float": float,
    "index": lambda one: [1, 2, 3][one],
    "slice": lambda one: [1, 2, 3][one:],
    "times": lambda one: [0] * one,
    "text times": lambda one: "ab" * one,
    "property": lambda one: one.held,
    "getattr": lambda one: one.another,
    "getattr with a default": lambda one: getattr(one, "another", 5),
    "sorted": lambda one: sorted([Member.A, Member.B])[0] is one,
}
BREAKING: dict[str, Callable[[Any], Any]] = {
    "%": lambda one: "%s" % one,  # noqa: UP031
    "str.format": lambda one: "{}".format(one),  # noqa: UP032
    "range": lambda one: list(range(one)),
    "chr": lambda one: chr(one),
}


def check(read: Callable[[Any], Any], one: Any, breaks: bool = False) -> None:
    global NUMBER

    def function(x):
        return x + 1, read(one)

    compiled = optimize(function, run_graph, fullgraph=not breaks)
    for number in (1, 2, 1):
        NUMBER = number
        for _ in range(3):
            CALLS.clear()
            expected = observe(function, function, (X,)), CALLS.copy()
            CALLS.clear()
            got = observe(compiled, function, (X,))
            assert CALLS == expected[1] and same(got, expected[0])


@pytest.mark.parametrize("name", [*READS, *NUMBERS])
def test_of_a_member(name: str) -> None:
    check({**READS, **NUMBERS}[name], Member.A)


@pytest.mark.parametrize("name", READS)
def test_of_a_class(name: str) -> None:
    check(READS[name], Made)


def test_of_a_class_itself() -> None:
    check(lambda one: one[3], BySquareBrackets)


@pytest.mark.parametrize("name", BREAKING)
def test_what_c_functions_ask_breaks_the_graph(name: str) -> None:
    check(BREAKING[name], Member.A, breaks=True)


def test_methods_that_are_none() -> None:
    class Box:
        def __iter__(self):
            return iter((1, 2))

        def __contains__(self, item):
            return True

    def function(x, box):
        try:
            return x + 1, 1 in box
        except TypeError as error:
            return str(error)

    compiled = optimize(function, run_graph)
    assert same(compiled(X, Box()), function(X, Box()))
    Box.__contains__ = None
    assert compiled(X, Box()) == function(X, Box()) == "'Box' object is not a container"
