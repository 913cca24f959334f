"""Classes made inside of captured functions: whole graphs as long as they stay inside."""

# ruff: noqa  (small programs, odd ones included)

from __future__ import annotations

import abc
import collections
import dataclasses
import enum
import functools
import typing
import warnings

import pytest
import torch
from construct_cases import Case, CountingBackend, Table, run_case
from dovetail_capture import optimize, recompiles

table = Table()


@table()
def local_class(x):
    class A:
        k = 3

        def __init__(self, v):
            self.v = v

        def f(self, t):
            return t * self.v + self.k

    return A(2).f(x)


@table()
def local_class_closure(x):
    n = x.shape[0]

    class A:
        def f(self, t):
            return t * n

    class B(A):
        def f(self, t):
            return super().f(t) + 1

    return B().f(x)


@table()
def local_class_returned(x):
    class A:
        pass

    a = A()
    a.x = x + 1
    return a.x, type(a).__name__


@table()
def local_dataclass(x):
    @dataclasses.dataclass
    class P:
        a: object
        b: int = 2

    p = P(x)
    return p.a * p.b


@table()
def local_nt(x):
    P = collections.namedtuple("P", "a b")
    p = P(x, 2)
    return p.a * p.b


@table()
def local_enum(x):
    class E(enum.Enum):
        A = 1
        B = 2

    return x * E.B.value


@table()
def local_module(x):
    class M(torch.nn.Module):
        def forward(self, x):
            return x + 1

    return M()(x)


@table()
def prop(x):
    class A:
        def __init__(self, v):
            self._v = v

        @property
        def v(self):
            return self._v * 2

        @v.setter
        def v(self, new):
            self._v = new

        @staticmethod
        def s(a):
            return a + 1

        @classmethod
        def c(cls, a):
            return cls(a)

        @functools.cached_property
        def z(self):
            return self._v + 5

    a = A.c(x)
    a.v = a.v + 1
    return A.s(a.v) + a.z, isinstance(a, A), A.__name__, type(a) is A


@table()
def abstract(x):
    class B(abc.ABC):
        @abc.abstractmethod
        def f(self): ...

    class C(B):
        def f(self):
            return x * 2

    try:
        B()
    except TypeError as e:
        y = str(e)
    return C().f(), y, issubclass(C, B)


@table()
def dc2(x):
    @dataclasses.dataclass(frozen=True, order=True)
    class P:
        a: object
        b: int = 2
        c: list = dataclasses.field(default_factory=list)

        def total(self):
            return self.a * self.b

    p = P(x)
    p.c.append(1)
    q = dataclasses.replace(p, b=5)
    return q.total(), len(q.c), [f.name for f in dataclasses.fields(P)]


@table()
def nt2(x):
    class P(typing.NamedTuple):
        a: object
        b: int = 2

        def s(self):
            return self.a * self.b

    p = P(x)
    a, b = p
    return p.s() + b


@table()
def ty3(x):
    K = type("K", (), {"f": lambda self, t: t + self.k, "k": 3})
    return K().f(x)


@table()
def setcls(x):
    class A:
        pass

    A.k = 3
    A.f = lambda self: self.k * 2
    return x * A().f()


@table()
def exc(x):
    class E(Exception):
        pass

    try:
        raise E("a")
    except E as e:
        return x + len(str(e))


@table()
def cls_attr_list(x):
    class A:
        items = []

        def add(self, v):
            self.items.append(v)
            return len(self.items)

    a = A()
    b = A()
    a.add(x)
    b.add(x)
    return a.items[0] + A.items[1] + len(A.items)


@table()
def slots(x):
    class A:
        __slots__ = ("a", "b")

        def __init__(self, a):
            self.a = a

    o = A(x)
    try:
        o.c = 1
    except AttributeError:
        o.b = 2
    return o.a * o.b


@table()
def enum2(x):
    class E(enum.IntEnum):
        A = enum.auto()
        B = enum.auto()

        def twice(self):
            return self.value * 2

    return x * E.B.twice() + E["A"], [e.name for e in E]


@table()
def flag(x):
    class F(enum.Flag):
        A = 1
        B = 2

    f = F.A | F.B
    return x + f.value, F.A in f


@table()
def nested(x):
    class A:
        class B:
            k = 4

        def f(self):
            return self.B.k

    return x + A().f()


@table()
def decor(x):
    def deco(c):
        c.extra = 5
        return c

    @deco
    class A:
        pass

    return x + A().extra


@table(graphs=None, breaks=1)
def returned_method(x):
    class A:
        def f(self):
            return 3

    return x + 1, A().f


@table(graphs=1, breaks=1)
def returned_instance(x):
    y = x + 1

    class A:
        def __init__(self, v):
            self.v = v

    return A(y)


@table(graphs=None, breaks=None)
def break_in_a_method(x):
    class A:
        def f(self, t):
            print("hi")
            return t + 1

    return A().f(x) * 2


@table(graphs=None, breaks=None)
def autograd_function(x):
    class F(torch.autograd.Function):
        @staticmethod
        def forward(ctx, t):
            return t * 2

        @staticmethod
        def backward(ctx, g):
            return g

    return F.apply(x)


@table(graphs=None, breaks=None)
def descriptor(x):
    class D:
        def __set_name__(self, owner, name):
            self.name = name

        def __get__(self, obj, cls=None):
            return obj.__dict__[self.name] + 1

        def __set__(self, obj, value):
            obj.__dict__[self.name] = value

    class A:
        d = D()

    a = A()
    a.d = x
    return a.d


@pytest.mark.parametrize("case", table.cases, ids=table.names)
def test_construct(case: Case) -> None:
    run_case(case)


def test_local_classes_behind_a_break_are_bounded_and_reported() -> None:
    """Behind a break each call brings a class of its own: a few compiles, then Python, and told."""

    def program(x):
        class Scaled:
            def __init__(self, factor):
                self.factor = factor

            def apply(self, t):
                return t * self.factor

        scaled = Scaled(3)
        print("break")
        return scaled.apply(x) + 1

    backend = CountingBackend()
    optimized = optimize(program, backend)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for number in range(30):
            x = torch.full((2,), float(number))
            assert torch.equal(optimized(x), program(x))
    assert len(backend.graphs) <= 16
    told = recompiles(optimized)
    assert any("another class of that name" in why and "outside" in why for why in told), told
    assert any(why.startswith("limit") for why in told), told


# --- named tuples that are returned ---------------------------------------------------------------


def _returned(x):
    Out = collections.namedtuple("Out", ["first", "second"], defaults=(2,))
    first = Out(x + 1)
    return first._replace(second=x * first.second), Out, [Out(x, first)]


def _kept_by_an_object(x):
    Out = collections.namedtuple("Out", "first second")
    KEEPER.out, KEEPER.cls = Out(x, x + 1), Out
    return Out(x * 2, None)


class Keeper:
    pass


KEEPER = Keeper()


@pytest.mark.parametrize("program", [_returned, _kept_by_an_object])
def test_a_named_tuple_is_returned_by_one_graph(program) -> None:
    backend = CountingBackend()
    captured = optimize(program, backend, fullgraph=True)
    classes = []
    for number in range(3):
        x = torch.full((2,), float(number))
        expected = repr((program(x), getattr(KEEPER, "out", None)))
        result = captured(x)
        assert repr((result, getattr(KEEPER, "out", None))) == expected
        if program is _returned:
            out, cls, (other,) = result
            assert type(out) is cls is type(other) and cls.__module__ == __name__
        else:
            cls = type(result)
            assert KEEPER.cls is cls is type(KEEPER.out)
        classes.append(cls)
    assert len(set(classes)) == 3 and len(backend.graphs) == 1


def test_a_named_tuple_that_is_changed_or_holds_what_is_made_is_left_to_python() -> None:
    def changed(x):
        Out = collections.namedtuple("Out", "first")
        Out.more = 3
        return Out(x), Out.more

    def with_a_default(x):
        Out = collections.namedtuple("Out", "first second", defaults=([],))
        Out(x).second.append(1)
        return Out(x)

    for program in (changed, with_a_default):
        captured = optimize(program, CountingBackend())
        for _ in range(2):
            assert repr(captured(torch.ones(2))) == repr(program(torch.ones(2)))
