"""Where `__getattr__` is asked after something else raised AttributeError, and errors in CPython's
words."""

from __future__ import annotations

import collections
import dataclasses
import enum
import inspect
import weakref
from typing import Any

import pytest
import torch
from construct_cases import Case, CountingBackend, Table, run_case, same
from dovetail_capture import optimize

table = Table()


class Guesses:
    """Its property asks for an attribute that is not there."""

    __slots__ = ("__dict__", "slot")

    @property
    def computed(self):
        return self.absent

    @property
    def raising(self):
        raise AttributeError("from the property")

    def __getattr__(self, name):
        return f"guessed {name}"


class Raises:
    def __get__(self, obj, cls=None):
        raise AttributeError("from the descriptor")

    def __set__(self, obj, value):
        pass


class Described(Guesses):
    described = Raises()


class Plain:
    @property
    def computed(self):
        return self.absent


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(2, 2)

    @property
    def computed(self):
        return self.linear.absent


class Meta(type):
    @property
    def computed(cls):
        raise AttributeError("from the metaclass")

    def __getattr__(cls, name):
        return f"class {name}"


class OfMeta(metaclass=Meta):
    """A class whose attributes its metaclass guesses."""


class Color(enum.Enum):
    RED = 1

    @property
    def raising(self):
        raise AttributeError("from the member")

    def __getattr__(self, name):
        if name.startswith("_"):
            raise AttributeError(name)
        return f"member {name}"


@dataclasses.dataclass
class Record:
    field: int


GIVEN, MODEL = Described(), Model()


def error(call):
    try:
        return call()
    except Exception as raised:
        return type(raised), str(raised)


@table()
def guesses(x):
    made = Described()
    return [
        (one.computed, one.raising, one.described, one.slot, one.other, hasattr(one, "raising"))
        for one in (made, GIVEN)
    ], x + 1


@table()
def nothing_to_ask(x):
    return error(lambda: Plain().computed), getattr(Plain(), "computed", 3), x + 1


@table()
def a_property_of_a_module(x):
    return hasattr(MODEL, "computed"), error(lambda: MODEL.computed), x + 1


@table()
def metaclasses_and_members(x):
    return OfMeta.computed, OfMeta.other, Color.RED.raising, Color.RED.other, Color.RED.value, x + 1


@table()
def errors_of_unpacking(x):
    return [error(lambda: [*5]), error(lambda: {**5}), error(lambda: error(*5))], x + 1


@table()
def errors_of_calls(x):
    return [
        error(lambda: Record()), error(lambda: Record(1, **{"field": 2})),
        error(lambda: collections.deque([1], maxlen=-1)), error(lambda: weakref.ref(5)),
        error(lambda: inspect.signature(5)),
    ], x + 1  # fmt: skip


@pytest.mark.parametrize("case", table.cases, ids=table.names)
def test_construct(case: Case) -> None:
    run_case(case)


def test_an_attribute_that_a_property_misses_may_come() -> None:
    def program(x: torch.Tensor) -> Any:
        return x + 1, thing.computed

    thing = Guesses()
    compiled = optimize(program, CountingBackend(), fullgraph=True)
    x = torch.ones(2)
    assert same(compiled(x), program(x))
    thing.absent = 5
    assert same(compiled(x), program(x)) and compiled(x)[1] == 5
    del thing.absent
    assert same(compiled(x), program(x))
