"""Constructs: classes and their instances.

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
from collections.abc import Callable
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

import pytest
import torch
from construct_cases import Case, Table, run_case

construct = Table()


class Point:
    scale = 2

    def __init__(self, x, y=1):
        self.x = x
        self.y = y

    def moved(self, by):
        return Point(self.x + by, self.y)

    @property
    def double(self):
        return self.x * 2

    @double.setter
    def double(self, value):
        self.x = value / 2

    @classmethod
    def of(cls, x):
        return cls(x, cls.scale)

    @staticmethod
    def twice(x):
        return x * 2

    def __eq__(self, other):
        return isinstance(other, Point) and self.y == other.y

    def __hash__(self):
        return hash(self.y)

    def __repr__(self):
        return f"Point({self.y})"


@construct()
def makes_an_instance(x):
    p = Point(x).moved(1)
    return p, p.x, p.y


@construct()
def property_and_setter(x):
    p = Point(x)
    p.double = x + 4
    return p.double, p.x


@construct()
def class_and_static_methods(x):
    return Point.of(x).y, Point.twice(x), Point(x).twice(x), Point(x).of(x).scale


@construct(make=lambda: (torch.ones(2), Point(torch.zeros(2), 5)))
def changes_an_instance(x, p):
    p.x = p.x + x
    p.y += 1
    p.extra = x * 2
    return p.double


@construct(make=lambda: (torch.ones(2), Point(torch.zeros(2), 5)))
def deletes_an_attribute(x, p):
    p.gone = 1
    del p.gone
    return x + hasattr(p, "gone"), p


@construct()
def own_equality_and_hash(x):
    a, b = Point(x, 1), Point(x + 1, 1)
    table = {1: "one"}
    return a == b, a != b, a is b, a in [b], x + len(table)


@construct()
def own_repr(x):
    return repr(Point(x, 3)), f"{Point(x, 4)}", str(Point(x)), x + 1


class Child(Point):
    scale = 3

    def __init__(self, x):
        super().__init__(x, y=7)
        self.child = True

    def moved(self, by):
        return super().moved(by * 2)

    @property
    def double(self):
        return super().double + 1

    @classmethod
    def of(cls, x):
        made = super().of.__func__(Point, x)
        return made


@construct()
def inheritance_and_super(x):
    c = Child(x)
    return c.double, c.moved(x).x, c.scale, isinstance(c, Point), type(c).__name__, Child.of(x).y


class A:
    def go(self, x):
        return x + 1


class B(A):
    def go(self, x):
        return super().go(x) * 2


class C(A):
    def go(self, x):
        return super().go(x) * 3


class D(B, C):
    def go(self, x):
        return super().go(x) + 10


@construct()
def diamond(x):
    return D().go(x), [k.__name__ for k in D.__mro__]


class Dynamic:
    def __init__(self):
        self.table = {"a": 1}

    def __getattr__(self, name):
        if name in self.table:
            return self.table[name]
        raise AttributeError(name)


@construct()
def getattr_of_a_class(x):
    d = Dynamic()
    return x * d.a, hasattr(d, "b"), getattr(d, "b", 5)


class Logged:
    def __setattr__(self, name, value):
        object.__setattr__(self, name, value)
        object.__setattr__(self, "last", name)

    def __getattribute__(self, name):
        if name == "magic":
            return 42
        return object.__getattribute__(self, name)


@construct()
def setattr_and_getattribute(x):
    o = Logged()
    o.value = x
    return o.value + o.magic, o.last


class Descriptor:
    def __set_name__(self, owner, name):
        self.name = "_" + name

    def __get__(self, obj, owner=None):
        return self if obj is None else getattr(obj, self.name, 0)

    def __set__(self, obj, value):
        setattr(obj, self.name, value * 2)


class Described:
    field = Descriptor()


@construct()
def data_descriptor(x):
    d = Described()
    before = d.field
    d.field = x
    return d.field, before, Described.field.name


class Lazy:
    calls = 0

    def __init__(self, x):
        self.base = x

    @functools.cached_property
    def value(self):
        return self.base * 2


@construct()
def cached_property(x):
    o = Lazy(x)
    return o.value, o.value is o.value, "value" in vars(o)


@construct(graphs=2, make=lambda: (Lazy(torch.ones(2)),))
def cached_property_of_an_argument(o):
    return o.value + 1


class Slotted:
    __slots__ = ("a", "b")

    def __init__(self, a):
        self.a = a


@construct()
def slots(x):
    s = Slotted(x)
    s.b = s.a + 1
    has = hasattr(s, "b")
    try:
        s.c = 1
    except AttributeError:
        return s, s.b, has


@construct(make=lambda: (torch.ones(2), Slotted(3)))
def slots_of_an_argument(x, s):
    s.b = x * s.a
    s.a = 4
    return s.b


class Vector:
    def __init__(self, *items):
        self.items = list(items)

    def __len__(self):
        return len(self.items)

    def __getitem__(self, index):
        return self.items[index]

    def __setitem__(self, index, value):
        self.items[index] = value

    def __delitem__(self, index):
        del self.items[index]

    def __iter__(self):
        return iter(self.items)

    def __contains__(self, item):
        return any(item is other for other in self.items)

    def __bool__(self):
        return len(self.items) > 1

    def __add__(self, other):
        return Vector(*self.items, *other.items)

    def __iadd__(self, other):
        self.items.append(other)
        return self

    def __mul__(self, k):
        return Vector(*(i * k for i in self.items))

    __rmul__ = __mul__

    def __neg__(self):
        return Vector(*(-i for i in self.items))

    def __call__(self, f):
        return Vector(*map(f, self.items))

    def __reversed__(self):
        return iter(self.items[::-1])

    def __lt__(self, other):
        return len(self) < len(other)

    def __enter__(self):
        self.items.append("entered")
        return self

    def __exit__(self, *error):
        self.items.append("left")
        return False


@construct()
def container_protocol(x):
    v = Vector(x, x + 1)
    v[0] = x * 2
    del v[1]
    v += 3
    return v, len(v), v[0], x in v, list(v), [*reversed(v)], bool(v), not Vector()


@construct()
def operator_overloads(x):
    v = Vector(x) + Vector(1)
    w = 2 * -v * 3
    return w(lambda i: i + 1), v < w, (v > w), w.items[0]


@construct()
def callable_instance(x):
    v = Vector(x, 2)
    return v(torch.neg if False else (lambda i: i * 2)).items, callable(v)


@construct()
def own_context_manager(x):
    with Vector(x) as v:
        y = v[0] * 2
    return y, v


class Multiplier:
    def __init__(self, k):
        self.k = k

    def __rmul__(self, other):
        return other * self.k

    def __radd__(self, other):
        return other + self.k

    def __matmul__(self, other):
        return other @ other.T

    def __pow__(self, other):
        return other**self.k

    def __index__(self):
        return 1

    def __float__(self):
        return 2.5

    def __int__(self):
        return 4

    def __format__(self, spec):
        return f"<{spec}>"


@construct(graphs=None, breaks=None)
def reflected_operators(x):
    m = Multiplier(3)
    return 2 * m, 5 + m, m @ x, m**x, [1, 2, 3][m], float(m), int(m), f"{m:abc}", range(m)[0]


class Meta(type):
    def __call__(cls, *args):
        made = super().__call__(*args)
        made.meta = cls.__name__
        return made

    @property
    def label(cls):
        return cls.__name__.lower()

    def __getitem__(cls, item):
        return (cls.__name__, item)

    def __iter__(cls):
        return iter((1, 2))


class WithMeta(metaclass=Meta):
    def __init__(self, x):
        self.x = x


@construct()
def metaclass(x):
    o = WithMeta(x + 1)
    return o.meta, o.x, WithMeta.label, WithMeta[3], list(WithMeta)


class Base(abc.ABC):
    @abc.abstractmethod
    def run(self, x): ...

    def twice(self, x):
        return self.run(self.run(x))


class Concrete(Base):
    def run(self, x):
        return x + 1


@construct()
def abstract_base(x):
    try:
        Base()
    except TypeError:
        pass
    return Concrete().twice(x), isinstance(Concrete(), Base), issubclass(Concrete, Base)


class Runs(Protocol):
    def run(self, x): ...


@typing.runtime_checkable
class RunsChecked(Protocol):
    def run(self, x): ...


@construct()
def protocols(x):
    return isinstance(Concrete(), RunsChecked), isinstance(Vector(), RunsChecked), x + 1


class Registered:
    registry: dict = {}

    def __init_subclass__(cls, **kwargs):
        super().__init_subclass__(**kwargs)
        Registered.registry[cls.__name__] = cls

    def __class_getitem__(cls, item):
        return f"{cls.__name__}[{item}]"


class Sub(Registered):
    def __init__(self, x):
        self.x = x


@construct()
def registry_and_class_getitem(x):
    return Registered.registry["Sub"](x).x + 1, Registered["k"]


class WithNew:
    made = 0

    def __new__(cls, x):
        self = super().__new__(cls)
        self.stamped = True
        return self

    def __init__(self, x):
        self.x = x


@construct()
def own_new(x):
    o = WithNew(x + 1)
    return o.stamped, o.x


class Singleton:
    instance = None

    def __new__(cls):
        if cls.instance is None:
            cls.instance = super().__new__(cls)
        return cls.instance


Singleton()


@construct()
def singleton(x):
    return Singleton() is Singleton(), x + 1


@construct(graphs=None, breaks=None)
def local_class(x):
    class Local:
        factor = 3

        def __init__(self, y):
            self.y = y

        def go(self):
            return self.y * self.factor

    return Local(x).go()


@construct(graphs=None, breaks=None)
def local_subclass_with_super(x):
    class Local(Point):
        def __init__(self, y):
            super().__init__(y, 9)

    return Local(x).y, Local(x).double


@construct(graphs=None, breaks=None)
def local_dataclass(x):
    @dataclasses.dataclass
    class Local:
        a: Any
        b: int = 2

    return Local(x).a * Local(x).b


@construct(graphs=None, breaks=None)
def class_made_by_type(x):
    Made = type("Made", (Point,), {"scale": 9})
    return Made(x).scale, x + 1


@construct(graphs=None, breaks=None)
def class_attribute_write(x):
    Point.scale = 5
    try:
        return Point(x).scale * x
    finally:
        Point.scale = 2


@construct()
def counts_on_a_class(x):
    Lazy.calls += 1
    n = Lazy.calls
    Lazy.calls = 0
    return x * n


@construct()
def instance_dictionary(x):
    p = Point(x)
    p.__dict__["z"] = 3
    p.__dict__.update(w=4)
    return vars(p), p.z, x + 1, sorted(p.__dict__), p.w


@construct()
def dynamic_attribute_names(x):
    p = Point(x)
    for i in range(3):
        setattr(p, f"a{i}", x * i)
    delattr(p, "a0")
    return [getattr(p, f"a{i}", None) for i in range(3)], p


@construct()
def methods_as_values(x):
    p = Point(x)
    moved = p.moved
    return moved(1).x, moved.__self__ is p, moved.__func__ is Point.moved, p.moved == moved


@construct(make=lambda: (torch.ones(2), Point(torch.ones(2)).moved))
def bound_method_argument(x, method):
    return method(x).x


@construct()
def replaced_method(x):
    p = Point(x)
    p.moved = lambda by: by * 100
    q = Point(x)
    q.moved = types.MethodType(lambda self, by: self.x + by * 7, q)
    return p.moved(x), q.moved(x)


@construct()
def class_of_instance(x):
    p = Child(x)
    return (
        p.__class__.__name__,
        p.x + 1,
        type(p) is Child,
        p.__class__(x).y,
        type(p).__bases__[0].__name__,
        p.__module__ == __name__,
    )


@construct(graphs=None, breaks=None)
def class_change(x):
    p = Point(x)
    p.__class__ = Child
    return p.double


@construct()
def generic_class(x):
    return Box[int](x).item + 1, Box(x).item


T = typing.TypeVar("T")


class Box(typing.Generic[T]):
    def __init__(self, item):
        self.item = item


class Typed(typing.TypedDict, total=False):
    a: int


@construct()
def typed_dict(x):
    t = Typed(a=3)
    return x * t["a"], t


@construct()
def simple_namespace(x):
    n = types.SimpleNamespace(a=x, b=2)
    n.c = n.a * n.b
    return n.c, vars(n)["b"], n


@construct(make=lambda: (types.SimpleNamespace(a=torch.ones(2), b=2),))
def namespace_argument(n):
    n.c = n.a * n.b
    return n.c


class HasIter:
    def __init__(self, n):
        self.n = n

    def __iter__(self):
        for i in range(self.n):
            yield i

    def __length_hint__(self):
        return self.n


class Counter3:
    def __init__(self):
        self.i = 0

    def __iter__(self):
        return self

    def __next__(self):
        self.i += 1
        if self.i > 3:
            raise StopIteration
        return self.i


@construct()
def own_iterators(x):
    return (
        [x * i for i in HasIter(3)],
        sum(Counter3()),
        list(zip(HasIter(2), Counter3())),
        next(Counter3()),
    )


class GetItemOnly:
    def __getitem__(self, i):
        if i >= 3:
            raise IndexError(i)
        return i * 10


@construct()
def iteration_by_getitem(x):
    return [x + i for i in GetItemOnly()], 20 in GetItemOnly()


@construct(graphs=None, breaks=None)
def hashable_keys(x):
    a, b = Point(x, 1), Point(x, 1)
    return {a: 1, b: 2}[a], len({a, b}), x + 1


@construct()
def identity_keys(x):
    a, b = Vector(x), Vector(x)
    table = {a: x, b: x + 1}
    return table[a], table[b], a in table, len({a, b})


@construct()
def mangled_names(x):
    return Private(x).read()


class Private:
    def __init__(self, x):
        self.__hidden = x

    def read(self):
        return self.__hidden + 1


@construct(make=lambda: (torch.ones(2), Point))
def class_argument(x, cls):
    return cls(x).double, cls.of(x).y


class AttributeDict(dict):
    __getattr__ = dict.__getitem__
    __setattr__ = dict.__setitem__
    __delattr__ = dict.__delitem__


@construct(graphs=2, make=lambda: (torch.ones(2), AttributeDict(a=1, b=2, gone=3)))
def borrowed_methods(x, config):
    config.z = 4
    if "gone" in config:
        del config.gone
    return x * config.a + config["b"] + config.z


@construct()
def weak_reference(x):
    import weakref

    p = Point(x)
    r = weakref.ref(p)
    return r() is p, r().x + 1


class Gone:
    pass


@construct(breaks=1)
def weak_reference_to_what_is_gone(x):
    import weakref

    thing = Gone()
    r = weakref.ref(thing)
    del thing
    return x + 1, r()


class HasSlot:
    __slots__ = ("y",)

    def __init__(self):
        self.y = 3


class Hides(HasSlot):
    @property
    def y(self):
        return super().y + 1

    @y.setter
    def y(self, value):
        super(Hides, type(self)).y.__set__(self, value)


class HidesArgs(ValueError):
    @property
    def args(self):
        return super().args + (1,)


@construct(graphs=None, breaks=None)
def attributes_that_a_class_hides(x):
    return x + 1, Hides().y, HidesArgs(5).args


@construct()
def descriptors_through_super(x):
    error = super(HidesArgs, HidesArgs).args
    return x + 1, error is HidesArgs.args, error is ValueError.args


class NoModule:
    __module__ = None

    def __init__(self, n):
        self.n = n

    def twice(self, x):
        return x * self.n


@construct()
def class_without_a_module(x):
    return NoModule(2).twice(x), isinstance(NoModule(1), NoModule)


@construct()
def equal_methods(x):
    a, b, items, others = NoModule(1), NoModule(1), [1], [1]
    same = a.twice == a.twice, items.append == items.append, a.__repr__ == a.__repr__
    differ = a.twice == b.twice, items.append == others.append, items.append == items.pop
    odd = a.twice != a.twice, items.__len__ != items.__len__, a.twice is a.twice
    kinds = type(items.append).__name__, type(items.__len__).__name__, callable(items.pop)
    classes = NoModule.mro == NoModule.mro, NoModule.__init_subclass__ == Gone.__init_subclass__
    return x + 1, same, differ, odd, kinds, classes, hasattr(items.pop, "__call__")


KIND = TypeVar("KIND")


class Keyed:
    def __class_getitem__(cls, key):
        return cls, key


@construct()
def subscripts_of_classes(x):
    def applied(function: Callable[[KIND], Any]) -> KIND:
        return function(x)

    class Local(Generic[KIND]):
        def __init__(self):
            self.scale = 2

    kept = list[KIND], dict[str, KIND], Keyed[3]
    return applied(torch.neg), Keyed[x + 1], Local[KIND]().scale * x, kept


@construct()
def only_the_tensors_of_a_tree(x):
    return torch.utils._pytree.tree_map_only(torch.Tensor, torch.neg, (x, [1, x]))


@pytest.mark.parametrize("case", construct.cases, ids=construct.names)
def test_construct(case: Case) -> None:
    run_case(case)
