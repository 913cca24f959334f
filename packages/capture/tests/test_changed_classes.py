"""What a program changes of its classes between two calls is noticed: names, bases, metaclasses,
what abstract classes and protocols say; and so is what only looks equal: keys, sets, limits."""

from __future__ import annotations

import abc
import collections
import enum
import inspect
import typing
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from construct_cases import observe, same
from dovetail_capture import optimize, run_graph

X = torch.arange(6.0).reshape(2, 3)
# What a call is given. Between two of them something was changed.
Steps = Iterator[tuple[Any, ...]]
Case = tuple[Callable[..., Any], Steps]


def derived() -> tuple[type, type, type]:
    """A class, its base, and a class that can take the place of the base."""
    first = type("First", (), {"held": 1})
    second = type("Second", (), {"held": 1})
    return type("Derived", (first,), {}), first, second


def names() -> Case:
    class Named:
        "A text."

    def function(x, cls):
        obj = cls()
        parts = type(obj).__name__, obj.__class__.__qualname__, cls.__module__, cls.__doc__
        return x + len(cls.__name__), parts, f"{cls}", repr([cls])

    def steps() -> Steps:
        yield X, Named
        for name in ("__name__", "__qualname__", "__module__", "__doc__"):
            setattr(Named, name, f"another{name}")
            yield X, Named

    return function, steps()


def names_in_errors() -> Case:
    class Named:
        pass

    def text_of(function, *args):
        try:
            function(*args)
        except (AttributeError, TypeError) as error:
            return str(error)

    def function(x, obj):
        texts = [
            text_of(getattr, obj, "nothing"),
            text_of(len, obj),
            text_of(iter, obj),
            text_of(lambda: obj + 1),
            text_of(lambda: obj[0]),
            text_of(lambda: obj < 1),
            text_of(lambda: obj()),
        ]
        return x + 1, texts

    def steps() -> Steps:
        yield X, Named()
        Named.__name__ = "Renamed"
        yield X, Named()

    return function, steps()


def texts_with_names() -> Case:
    class Error(ValueError):
        pass

    def function(x):
        return x + 1, repr(Error("a", 1)), f"{Error}"

    def steps() -> Steps:
        yield (X,)
        Error.__name__ = Error.__qualname__ = "Renamed"
        yield (X,)

    return function, steps()


def bases(read: Callable[[type, type], Any]) -> Case:
    cls, first, second = derived()

    def function(x):
        return x + (1 if read(cls, first) else 2)

    def steps() -> Steps:
        yield (X,)
        cls.__bases__ = (second,)
        yield (X,)

    return function, steps()


def bases_of_a_tensor() -> Case:
    _, first, second = derived()

    class Own(first, torch.Tensor):
        pass

    def function(x):
        return x.as_subclass(torch.Tensor) + (1 if isinstance(x, first) else 2)

    def steps() -> Steps:
        yield (X.as_subclass(Own),)
        Own.__bases__ = (second, torch.Tensor)
        yield (X.as_subclass(Own),)

    return function, steps()


def bases_of_an_error() -> Case:
    class First(Exception):
        pass

    class Second(Exception):
        pass

    class Raised(First):
        pass

    def function(x):
        try:
            raise Raised
        except First:
            return x + 1
        except Second:
            return x + 2

    def steps() -> Steps:
        yield (X,)
        Raised.__bases__ = (Second,)
        yield (X,)

    return function, steps()


def metaclass_says_what_is_derived() -> Case:
    class Meta(type):
        pass

    class Asked(metaclass=Meta):
        pass

    log: list[str] = []

    def function(x):
        log.clear()
        answers = issubclass(int, Asked), issubclass(int, (str, Asked)), isinstance(5, Asked)
        return x + 1, answers, list(log)

    def said(cls, other):
        log.append("asked")
        return other is int or other == 5

    def steps() -> Steps:
        yield (X,)
        Meta.__subclasscheck__ = said
        yield (X,)
        Meta.__instancecheck__ = said
        yield (X,)
        Meta.__subclasscheck__ = lambda cls, other: False
        yield (X,)

    return function, steps()


def abstract_class_is_told_of_built_in_types() -> Case:
    class Abstract(abc.ABC):  # noqa: B024 - it is told what counts as one
        pass

    def function(x, value):
        return x + (1 if isinstance(value, Abstract) else 2)

    def steps() -> Steps:
        yield X, 5
        yield X, [5]
        Abstract.register(int)
        yield X, 5
        Abstract.register(list)
        yield X, [5]

    return function, steps()


def abstract_methods() -> Case:
    class Abstract(abc.ABC):
        @abc.abstractmethod
        def go(self): ...

    class Whole(Abstract):
        def go(self):
            return 1

    def function(x):
        try:
            return x + Whole().go()
        except TypeError as error:
            return str(error)

    def steps() -> Steps:
        yield (X,)
        Whole.__abstractmethods__ = frozenset({"another"})
        yield (X,)

    return function, steps()


def protocol() -> Case:
    @typing.runtime_checkable
    class Goes(typing.Protocol):
        def go(self): ...

    class Thing:
        pass

    thing = Thing()

    def function(x):
        return x + (1 if isinstance(thing, Goes) else 2)

    def steps() -> Steps:
        yield (X,)
        Thing.go = lambda self: 1
        yield (X,)
        del Thing.go
        yield (X,)
        thing.go = lambda: 1
        yield (X,)

    return function, steps()


def keys_that_look_equal() -> Case:
    def function(x, table):
        return [x / key if isinstance(key, float) else repr(key) for key in table]

    def steps() -> Steps:
        for key in (0.0, -0.0, (True,), (1,), (1.0,), ((0.0,),), ((-0.0,),)):
            yield X, {key: 1}
        for key in (complex(0.0, 0.0), complex(-0.0, 0.0), frozenset({1}), frozenset({True})):
            yield X, {key: 1}

    return function, steps()


def order_of_sets() -> Case:
    def function(x, members):
        return x + 1, list(members), repr(members)

    def steps() -> Steps:
        for kind in (set, frozenset):
            yield X, kind([8, 0])
            yield X, kind([0, 8])

    return function, steps()


def limit_of_a_deque() -> Case:
    def function(x, items):
        more = items.copy()
        more.append(x.shape[0])
        return x + sum(more), items.maxlen

    def steps() -> Steps:
        for limit in (None, 2, 3):
            yield X, collections.deque([1, 5], limit)

    return function, steps()


def signature_that_is_said() -> Case:
    def said(a, b):
        pass

    def function(x):
        return x + len(inspect.signature(said).parameters)

    def steps() -> Steps:
        yield (X,)
        said.__signature__ = inspect.Signature()
        yield (X,)
        del said.__signature__
        said.__wrapped__ = lambda a: None
        yield (X,)

    return function, steps()


def signature_of_what_is_called() -> Case:
    class Called:
        def __init__(self, a, b=1): ...

        def method(self, a): ...

    def function(x):
        parts = inspect.signature(Called), inspect.signature(Called.method)
        return x + 1, [str(part) for part in parts]

    def steps() -> Steps:
        yield (X,)
        Called.__init__ = lambda self, c: None
        yield (X,)
        Called.__init__.__defaults__ = (1,)
        yield (X,)
        Called.method.__defaults__ = (2,)
        yield (X,)

    return function, steps()


def members_that_are_added() -> Case:
    class Few(enum.Enum):
        A = 1

    def function(x):
        return x + len(Few), [member.name for member in Few]

    def steps() -> Steps:
        yield (X,)
        another = object.__new__(Few)
        another._name_, another._value_ = "B", 2
        Few._member_names_.append("B")
        Few._member_map_["B"] = another
        yield (X,)

    return function, steps()


CASES: dict[str, Callable[[], Case]] = {
    made.__name__: made
    for made in (
        names,
        names_in_errors,
        texts_with_names,
        bases_of_a_tensor,
        bases_of_an_error,
        metaclass_says_what_is_derived,
        abstract_class_is_told_of_built_in_types,
        abstract_methods,
        protocol,
        keys_that_look_equal,
        order_of_sets,
        limit_of_a_deque,
        signature_that_is_said,
        signature_of_what_is_called,
        members_that_are_added,
    )
}
READS: dict[str, Callable[[type, type], Any]] = {
    "bases": lambda cls, first: cls.__bases__[0] is first,
    "base": lambda cls, first: cls.__base__ is first,
    "mro": lambda cls, first: first in cls.__mro__,
    "call of mro": lambda cls, first: first in cls.mro(),
    "issubclass": lambda cls, first: issubclass(cls, (int, first)),
    "isinstance": lambda cls, first: isinstance(cls(), first),
}


def check(case: Case) -> None:
    function, steps = case
    compiled = optimize(function, run_graph, recompile_limit=100)
    for arguments in steps:
        for _ in range(4):  # so that the guards settle
            expected = observe(function, function, arguments)
            assert same(observe(compiled, function, arguments), expected)
    assert not compiled.capture_context.log.breaks


@pytest.mark.parametrize("name", CASES)
def test_a_change_is_noticed(name: str) -> None:
    check(CASES[name]())


@pytest.mark.parametrize("name", READS)
def test_other_bases_are_noticed(name: str) -> None:
    check(bases(READS[name]))


def test_an_iterator_until_a_value() -> None:
    def function(x):
        values = iter([1, 2, 3, 4])
        until = iter(lambda: next(values), 3)
        ends = iter(lambda: next(values), 9)
        left = iter(lambda: x.shape[0], 0)
        next(left)
        return left, x + sum(until), type(until).__name__, list(ends)

    compiled = optimize(function, run_graph, fullgraph=True)
    for _ in range(2):
        left, *got = compiled(X)
        other, *wanted = function(X)
        assert same(got, wanted) and type(left) is type(other) and next(left) == next(other)
