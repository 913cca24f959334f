"""What built-in iterators have left is read without moving them, and guarded natively."""

from __future__ import annotations

import contextvars
import itertools
from collections import OrderedDict, deque
from types import FunctionType
from typing import Any

import pytest
from dovetail_guards import clauses as c
from dovetail_guards import iterators
from dovetail_guards import source as s
from dovetail_guards.evaluate import FrameView
from dovetail_guards.guard_set import GuardSet
from dovetail_guards.iterators import MOST_COPIED, MOST_READ, READERS, over, parts, rest

TABLE = {"a": 1, "b": 2, "c": 3}


class Reversed(list[Any]):
    """A list whose items are others where Python code asks for them."""

    def __getitem__(self, index: Any) -> Any:
        return None


MAKERS: list[Any] = [
    lambda: iter([1, 2, 3]),
    lambda: iter(Reversed([1, 2, 3])),
    lambda: reversed([1, 2, 3]),
    lambda: iter((1, 2, 3)),
    lambda: reversed((1, 2, 3)),
    lambda: iter(range(3, 30, 5)),
    lambda: reversed(range(4)),
    lambda: iter("abc"),
    lambda: iter("\u00e9t\u00e9"),
    lambda: iter(b"abc"),
    lambda: iter({1, 2, 3}),
    lambda: iter(frozenset({1, 2, 3})),
    lambda: itertools.repeat("x", 3),
    *(
        lambda step=step, view=view, kind=kind: step(view(kind(TABLE)))
        for step in (iter, reversed)
        for view in (lambda d: d, lambda d: d.values(), lambda d: d.items())
        for kind in (dict, OrderedDict)
    ),
]


@pytest.mark.parametrize("make", MAKERS)
@pytest.mark.parametrize("taken", range(5))
def test_the_rest_is_what_the_iterator_gives(make: Any, taken: int) -> None:
    iterator = make()
    for _ in range(taken):
        next(iterator, None)
    seen = rest(iterator)
    assert seen == rest(iterator)
    assert list(seen) == list(iterator)
    assert rest(iterator) == ()


def test_only_so_much_is_read() -> None:
    assert rest(iter(range(10**9))) == tuple(range(MOST_READ))
    assert rest(itertools.repeat(1)) == (1,) * MOST_READ
    with pytest.raises(TypeError):
        rest(iter(dict.fromkeys(range(MOST_COPIED + 1))))


def test_a_container_that_shrinks_or_grows() -> None:
    items = [1, 2, 3, 4]
    forwards, backwards = iter(items), reversed(items)
    next(forwards)
    items.append(5)
    assert rest(forwards) == (2, 3, 4, 5) and rest(backwards) == (4, 3, 2, 1)
    del items[1:]
    assert rest(forwards) == rest(backwards) == ()
    assert list(forwards) == list(backwards) == []
    table = dict(TABLE)
    keys = iter(table)
    next(keys)
    table["d"] = 4
    with pytest.raises(RuntimeError):
        rest(keys)


def test_what_iterators_go_through() -> None:
    items, table = [1], dict(TABLE)
    assert over(iter(items)) is items and over(reversed(items)) is items
    assert over(iter(table)) is table and over(iter(table.items())) is table
    assert over(iter((items,))) is None and over(itertools.repeat(items)) is None
    ended = iter(items)
    list(ended)
    assert over(ended) is None
    one, two = iter(items), iter(items)
    assert parts(zip(one, two, strict=False)) == (False, one, two)
    assert parts(zip(one, strict=True)) == (True, one)
    assert parts(enumerate(one, 5)) == (one, 5)
    assert parts(map(len, one)) == (len, one) and parts(filter(None, one)) == (None, one)
    assert parts(itertools.count(-3, 2)) == (-3, 2) and parts(itertools.count()) == (0, 1)
    for unknown in (iter(deque()), itertools.count(0.5), (x for x in ())):
        with pytest.raises(TypeError):
            rest(unknown)
        with pytest.raises(TypeError):
            parts(unknown)


def test_the_members_of_sets() -> None:
    class Own(set[int]):
        def __iter__(self) -> Any:
            raise AssertionError("asked")

    assert READERS["subclasses"](Own) == () and Own in READERS["subclasses"](set)
    assert READERS["members"](Own({1, 2})) == {1, 2} == READERS["members"](frozenset({1, 2}))
    with pytest.raises(TypeError):
        READERS["members"]([1])
    with pytest.raises(TypeError):
        READERS["order"]([1])
    assert READERS["order"](Own([8, 0])) == (8, 0) and READERS["order"]({0, 8}) == (0, 8)

    def function(held: Any) -> None: ...

    assert isinstance(function, FunctionType)
    members = s.IteratorSource(s.LocalSource("held"), "members")
    guards = GuardSet([c.ConstantIs(members, frozenset({1, 2}))])
    check = guards.compile(function.__code__)
    for held, holds in ((Own({1, 2}), True), (Own({1}), False), ({True, 2}, False), ([1], False)):
        assert guards.check_slow(FrameView((held,), function)) is holds
        assert check((held,), function) is holds


def test_guards_on_what_is_left() -> None:
    def function(it: Any) -> None: ...

    assert isinstance(function, FunctionType)
    left = s.IteratorSource(s.LocalSource("it"), "rest")
    guards = GuardSet([c.LengthIs(left, 2), c.ConstantIs(s.ItemSource(left, 1), 7)])
    native = guards.compile(function.__code__)
    iterator = iter([5, 6, 7])
    for expected in (False, True, False):
        for _ in range(5):
            assert native((iterator,), function) is expected
            assert guards.check_slow(FrameView((iterator,), function)) is expected
        next(iterator)
    for other in (iter([6, 8]), [6, 7], None, zip([6], [7], strict=True), iter({6: 1, 7: 2, 8: 3})):
        assert not native((other,), function)
        assert not guards.check_slow(FrameView((other,), function))
    assert str(left) == "rest(it)"


def test_guards_on_parts_of_parts() -> None:
    def function(it: Any) -> None: ...

    assert isinstance(function, FunctionType)
    inner = s.ItemSource(s.IteratorSource(s.LocalSource("it"), "parts"), 0)
    left = s.IteratorSource(inner, "rest")
    guards = GuardSet([c.TypeIs(inner, type(iter([]))), c.LengthIs(left, 1)])
    native = guards.compile(function.__code__)
    steps = enumerate([1, 2])
    assert not native((steps,), function)
    next(steps)
    assert native((steps,), function) and guards.check_slow(FrameView((steps,), function))
    assert next(steps) == (1, 2) and not native((steps,), function)


def test_a_context_variable_is_read_apart_from_its_default():
    variable = contextvars.ContextVar("variable", default=5)

    def reads():
        assert iterators.context(variable) == ()
        token = variable.set(None)
        assert iterators.context(variable) == (None,)
        variable.set(variable)
        assert iterators.context(variable) == (variable,)
        variable.reset(token)
        assert iterators.context(variable) == ()

    contextvars.copy_context().run(reads)
