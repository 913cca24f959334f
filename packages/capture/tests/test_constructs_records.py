"""Constructs: data classes, named tuples, enums, subclasses of built-in types.

PYTEST_DONT_REWRITE: pytest would put code of its own into the programs' assertions.
"""

# ruff: noqa  (programs as users write them, odd ones included)

from __future__ import annotations

import abc
import collections
import dataclasses
import enum
import functools
import types
import typing
from typing import Any, NamedTuple, Protocol

import pytest
import torch
from construct_cases import Case, Table, run_case

construct = Table()


@dataclasses.dataclass
class Config:
    width: int
    names: list = dataclasses.field(default_factory=list)
    scale: float = 0.5
    x: Any = None

    def __post_init__(self):
        self.area = self.width * 2


@dataclasses.dataclass(frozen=True, slots=True)
class Frozen:
    a: Any
    b: int = 2


@dataclasses.dataclass(order=True)
class Ordered:
    rank: int
    x: Any = dataclasses.field(compare=False, default=None)


@construct()
def dataclass_instances(x):
    c = Config(3, x=x)
    c.names.append("n")
    return c, c.x * c.area, c == Config(3, ["n"], x=c.x)


@construct()
def frozen_dataclass(x):
    f = Frozen(x)
    try:
        f.a = 1
    except dataclasses.FrozenInstanceError as error:
        return f, f.a + f.b, type(error)


@construct()
def dataclass_functions(x):
    c = Config(3, ["n"], x=x)
    names = [field.name for field in dataclasses.fields(c)]
    other = dataclasses.replace(c, width=4)
    return names, other, other.x + other.area, dataclasses.is_dataclass(c)


@construct()
def dataclass_order(x):
    a, b = Ordered(1, x), Ordered(2, x + 1)
    return a < b, max(a, b).x, sorted([b, a])[0].x


@construct(make=lambda: (Config(2, x=torch.ones(2)),))
def dataclass_argument(c):
    c.x = c.x * c.width
    c.names.append("seen")
    return c


class Pair(NamedTuple):
    first: Any
    second: int = 2

    def total(self):
        return self.first + self.second


Old = collections.namedtuple("Old", ["a", "b"], defaults=[5])


@construct()
def named_tuples(x):
    p = Pair(x)
    a, b = p
    o = Old(a=p.total())
    return p, p.first + b, o, o._replace(b=x), o._asdict(), Pair._fields, p[0], len(o), p == p


@construct(make=lambda: (Pair(torch.ones(2), 4), Old(1, torch.ones(2))))
def named_tuple_arguments(p, o):
    return p.total() * o.a, o.b + 1, p, isinstance(p, tuple), [*o]


class Color(enum.Enum):
    RED = 1
    GREEN = "green"

    @property
    def shout(self):
        return self.name.upper()


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 5


class Flags(enum.Flag):
    A = 1
    B = 2


class Mode(str, enum.Enum):
    TRAIN = "train"
    EVAL = "eval"


@construct()
def enums(x):
    c = Color.RED
    return (
        c,
        c.value,
        c.name,
        Color("green"),
        Color["RED"] is c,
        c.shout,
        [m.name for m in Color],
        x + 1,
    )


@construct()
def int_and_flag_enums(x):
    return (
        x * Level.HIGH,
        Level.LOW < Level.HIGH,
        Flags.A | Flags.B,
        Flags.A in (Flags.A | Flags.B),
        Level(5),
    )


@construct(make=lambda: (torch.ones(2), Color.RED, Level.HIGH, Mode.TRAIN))
def enum_arguments(x, color, level, mode):
    table = {Color.RED: 2, Color.GREEN: 3}
    if color is Color.RED and mode == "train" and mode is Mode.TRAIN:
        return x * table[color] * level
    return x


class MyList(list):
    def total(self):
        return sum(self)


class MyDict(dict):
    def __missing__(self, key):
        return key + "?"

    def __getattr__(self, name):
        return self[name]


class MyTuple(tuple):
    __slots__ = ()

    def total(self):
        return sum(self)


class MyInt(int):
    def plus(self, n):
        return self + n


class MyStr(str):
    def loud(self):
        return self.upper()


class MyFloat(float):
    pass


class MySet(set):
    def biggest(self):
        return max(self)


@construct()
def subclass_of_list(x):
    m = MyList([x, x])
    m.append(x * 2)
    m.note = "n"
    return m.total(), len(m), m, m[0], isinstance(m, list), m.note


@construct()
def subclass_of_dict(x):
    m = MyDict(a=x)
    m["b"] = x + 1
    return m["zz"], m.a, m, list(m), m.get("q")


@construct()
def subclass_of_tuple(x):
    m = MyTuple([x, x + 1])
    return m.total(), m[0], isinstance(m, tuple), m


@construct(graphs=None, breaks=None)
def subclass_of_number(x):
    m = MyInt(4)
    return x * m, m.plus(1), m + 1, isinstance(m, int), MyFloat(2.5) * 2


@construct(graphs=None, breaks=None)
def subclass_of_str(x):
    m = MyStr("abc")
    return m.loud(), m + "d", len(m), x + 1


@construct()
def subclass_of_set(x):
    m = MySet([1, 3])
    m.add(5)
    return m.biggest(), len(m), x * 3


@construct(
    graphs=None,
    breaks=None,
    make=lambda: (torch.ones(2), MyList([1, 2]), MyDict(a=1), MyInt(3), MyStr("s"), MySet({1})),
)
def subclasses_as_arguments(x, items, table, n, s, members):
    items.append(3)
    table["b"] = 2
    return x * items.total() * table.a * n, s.loud(), members.biggest(), items, table


@pytest.mark.parametrize("case", construct.cases, ids=construct.names)
def test_construct(case: Case) -> None:
    run_case(case)
