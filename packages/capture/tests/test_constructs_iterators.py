"""Constructs: iterators that existed before the captured stretch began, at a graph break say.

What such an iterator has left is read and guarded, and its steps are part of the graph.
"""
# ruff: noqa: B905, E501  (programs as users write them)

from __future__ import annotations

import contextlib
import threading
from collections import OrderedDict, deque
from itertools import repeat
from typing import Any

import pytest
import torch
from construct_cases import Case, CountingBackend, Table, run_case
from dovetail_capture import graph_break, optimize

construct = Table()


@construct(graphs=2, breaks=1)
def rest_of_nested_iterators(x):
    out = []
    for i, (a, b) in enumerate(zip([1.0, 2.0, 3.0, 4.0], "abcd")):
        x = x * a
        if i == 0:
            graph_break()
        out.append((b, x))
        x = x + 1
    return out


@construct(graphs=2, breaks=1)
def rest_of_a_map(x):
    steps = map(lambda a, b: a * x + b, [1, 2, 3], [4, 5, 6])
    y = next(steps)
    graph_break()
    for z in steps:
        y = y + z
    return y, list(steps)


@construct(graphs=1, breaks=1)
def rest_of_a_filter(x):
    odd = filter(lambda v: v % 2, range(10))
    first = next(odd)
    graph_break()
    return [x * v for v in odd], first, next(odd, "end")


@construct(graphs=1, breaks=1)
def rest_of_dictionaries(x):
    table, ordered = {"a": 1, "b": x, "c": 3}, OrderedDict(p=x, q=2)
    parts = [iter(table), iter(table.values()), iter(table.items()), reversed(table),
             iter(ordered.items()), reversed(ordered), iter({1, 2, 3})]  # fmt: skip
    first = [next(part) for part in parts]
    graph_break()
    return [[part * 1 if isinstance(part, torch.Tensor) else part for part in p] for p in parts], [
        x + len(f) if isinstance(f, (str, tuple)) else f for f in first
    ]


@construct(graphs=1, breaks=1)
def rest_of_sequences(x):
    parts = [iter([1, 2, x]), reversed([1, x, 3]), iter((x, 2, 3)), reversed((1, 2, x)),
             iter(range(2, 9, 3)), reversed(range(4)), iter("abc"), iter(b"ab"), repeat(x, 3)]  # fmt: skip
    for part in parts:
        next(part)
    graph_break()
    return [[item if isinstance(item, str) else item * x for item in part] for part in parts]


@construct(graphs=1, breaks=1)
def rest_of_a_repetition_without_end(x):
    forever = repeat(x)
    graph_break()
    return [a + b for a, b in zip(forever, range(3))], next(forever) is x


@construct(graphs=1, breaks=1)
def strict_zip_goes_on(x):
    rows = zip([1, 2, 3], [1, 2], strict=True)
    next(rows)
    graph_break()
    try:
        for p, q in rows:
            x = x * p + q
    except ValueError as error:
        return x, str(error)


@construct(graphs=1, breaks=1)
def zip_steps_on_after_its_end(x):
    items = iter([1, 2, 3, 4, 5, 6, 7, 8, 9])
    rows = zip(items, items, iter([1]))
    graph_break()
    return [*rows], [*rows], x + next(items, 9)


@construct(graphs=1, breaks=0)
def zip_made_here_steps_on_after_its_end(x):
    items = iter([1, 2, 3, 4, 5, 6])
    rows = zip(items, iter([1]))
    pairs = enumerate(items, 5)
    return [*rows], [*rows], next(pairs), x + next(items), next(map(abs, items))


@construct(graphs=1, breaks=1)
def one_iterator_in_several_places(x):
    it = iter([1, 2, 3, 4, 5, 6, 7])
    pairs = zip(it, it)
    first = next(pairs)
    graph_break()
    after = next(it)
    return x * after, list(pairs), first, next(it, "end")


@construct(graphs=None, breaks=None)
def enumerations_count_on(x):
    outer = enumerate(enumerate([1.0, 2.0, 3.0], 5), 2)
    numbers = enumerate(map(lambda v: v + 1, [1, 2, 3]))
    first = next(outer), next(numbers)
    graph_break()
    return [x * v + i + j for i, (j, v) in outer], first, next(outer, None), [*numbers]


@construct(graphs=None, breaks=None)
def lists_that_grow(x):
    items = [1, 2, 3]
    for i in items:
        x = x + i
        if i == 1:
            graph_break()
        if len(items) < 6:
            items.append(i * 10)
    return x, items


@construct(graphs=None, breaks=None)
def a_list_that_grows_after_the_end(x):
    items = [1, 2, 3]
    it, backwards = iter(items), reversed(items)
    next(it), next(backwards)
    graph_break()
    taken = [x * v for v in it], [x + v for v in backwards]
    items.append(5)
    return taken, next(it, None), next(backwards, None), items


@construct(graphs=None, breaks=None)
def a_dictionary_that_changes_its_size(x):
    table = {"a": 1, "b": 2}
    try:
        for key in table:
            x = x + 1
            graph_break()
            table[key + "x"] = 1
    except RuntimeError as error:
        return x, str(error), table


@construct(graphs=None, breaks=None)
def a_dictionary_whose_values_change(x):
    table = {"a": x, "b": x + 1, "c": x + 2}
    for key, value in table.items():
        if key == "a":
            graph_break()
        table[key] = value * 2
        table["c"] = value
    return table


@construct(graphs=None, breaks=None)
def attributes_while_they_are_gone_through(x):
    class Holder:
        pass

    holder = Holder()
    holder.a, holder.b = x, x + 1
    names = iter(vars(holder))
    next(names)
    graph_break()
    holder.b = x * 5
    return [getattr(holder, name) for name in names]


@construct(graphs=3, breaks=2)
def a_break_in_each_step(x):
    for _ in range(2):
        x = x * 2 + 1
        graph_break()
        x = x - 1
    return x


def _iterators() -> tuple[Any, ...]:
    return torch.ones(3), iter([1, 2, 3]), enumerate([4.0, 5.0]), {"held": iter("ab")}


@construct(graphs=None, breaks=None, make=_iterators)
def iterators_as_arguments(x, it, numbered, table):
    y = x + next(it)
    for i, v in numbered:
        y = y * v + i
    return y, next(table["held"]), next(it), next(numbered, "end")


@construct(graphs=None, breaks=None)
def two_loops_over_one_iterator(x):
    it = iter([1, 2, 3, 4, 5])
    for v in it:
        x = x * v
        if v == 2:
            graph_break()
            break
    for v in it:
        x = x + v
    return x, [*it]


@construct(graphs=None, breaks=None)
def what_cannot_be_read_ahead(x):
    items = deque([1, 2, 3])
    parts = [iter(items), (v for v in [4, 5]), iter(lambda: 7, 7)]
    graph_break()
    return [[x * v for v in part] for part in parts]


@construct(graphs=None, breaks=None)
def a_long_loop(x):
    for i in range(150):
        x = x + i
        if i == 3:
            graph_break()
    return x


class Sorted(OrderedDict):
    pass


def _views() -> tuple[Any, ...]:
    views = {"a": 1, "b": 2}.keys(), {"c": torch.ones(3)}.values(), Sorted(a=1).items()
    return torch.ones(3), *views, vars(Sorted).keys()


@construct(graphs=1, breaks=0, make=_views)
def views_as_arguments(x, keys, values, items, names):
    return (len(keys), [*keys], [v * x for v in values], dict(items), type(items).__name__,
            "a" in keys, keys is values, "__doc__" in names, keys == {"a", "b"}, x + 1)  # fmt: skip


@construct(graphs=1, breaks=1)
def views_over_a_break(x):
    ordered, plain = OrderedDict(a=x, b=2), {"p": x}
    keys, values, items = ordered.keys(), ordered.values(), plain.items()
    graph_break()
    ordered["c"] = 3
    return type(keys).__name__, [*keys], [*values][2], [v + 1 for _, v in items], len(keys)


@construct(graphs=1, breaks=0)
def whose_thread_it_is(x):
    return x + 1, threading.get_ident() == threading.main_thread().ident


LOCAL = threading.local()


class Own(threading.local):
    """Attributes of each thread, and of the class."""

    scale = 2

    @property
    def double(self) -> int:
        return 2 * self.scale


OWN = Own()


@construct(graphs=1, breaks=0)
def attributes_of_a_thread(x):
    LOCAL.value = x + 1
    OWN.scale = 5
    there = hasattr(LOCAL, "value"), vars(LOCAL) is LOCAL.__dict__, dict(OWN.__dict__)
    y = LOCAL.value * OWN.double
    del OWN.scale
    return y * OWN.scale, there, LOCAL.__dict__.get("missing", 3), OWN.double


class Set(threading.local):
    """What each thread begins with."""

    def __init__(self, depth: int) -> None:
        self.depth = depth

    @contextlib.contextmanager
    def deeper(self):
        self.depth += 1
        try:
            yield self.depth
        finally:
            self.depth -= 1


SET = Set(2)


@construct(graphs=1, breaks=0)
def attributes_that_a_thread_begins_with(x):
    with SET.deeper() as depth:
        y = x * SET.depth
    return y, depth, SET.depth


@construct(graphs=1, breaks=1)
def attributes_of_a_thread_over_a_break(x):
    LOCAL.seen = [x]
    graph_break()
    LOCAL.seen.append(x + 1)
    seen = LOCAL.seen
    try:
        del LOCAL.nothing
    except AttributeError as error:
        return seen, str(error)


@construct()
def states_of_a_generator(x):
    def numbers():
        yield generator.gi_running
        yield x * 2

    generator = numbers()
    found = [generator.gi_running, generator.gi_suspended, next(generator), generator.gi_suspended]
    rest = list(generator)
    return found, rest, generator.gi_frame, generator.gi_yieldfrom, generator.gi_code.co_name


@pytest.mark.parametrize("case", construct.cases, ids=construct.names)
def test_construct(case: Case) -> None:
    run_case(case)


def test_each_thread_has_attributes_of_its_own() -> None:
    place = threading.local()
    place.scale = 3

    def function(x: torch.Tensor) -> torch.Tensor:
        place.count = getattr(place, "count", 0) + 1
        return x * place.scale

    compiled = optimize(function, CountingBackend())
    seen: list[Any] = []

    def work() -> None:
        place.scale = 7
        seen.append((compiled(torch.ones(1)).item(), place.count))

    assert compiled(torch.ones(1)).item() == 3
    for _ in range(2):
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
    assert compiled(torch.ones(1)).item() == 3 and place.count == 2
    assert seen == [(7, 1), (7, 1)]


def test_each_thread_begins_with_what_the_class_says() -> None:
    place = Set(3)
    place.depth = 5
    backend = CountingBackend()
    compiled = optimize(lambda x: x * place.depth, backend)
    seen = []

    def work() -> None:
        seen.append(compiled(torch.ones(1)).item())
        place.depth = 8
        seen.append(compiled(torch.ones(1)).item())

    for _ in range(3):
        assert compiled(torch.ones(1)).item() == 5
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [3, 8]
    assert compiled(torch.ones(1)).item() == 5


def test_the_iterator_of_the_caller_moves() -> None:
    """Also past its end, and where another call finds other items left."""

    def function(x: torch.Tensor, it: Any) -> Any:
        return x + next(it, 100)

    compiled = optimize(function, CountingBackend())
    items = [1, 2]
    it = iter(items)
    assert [compiled(torch.zeros(1), it).item() for _ in range(3)] == [1, 2, 100]
    items.append(5)
    assert list(it) == []
    one = iter([torch.ones(1), torch.ones(2)])
    assert [compiled(torch.zeros(1), one).tolist() for _ in range(2)] == [[1.0], [1.0, 1.0]]


def test_an_iterator_over_what_the_frame_changes() -> None:
    """The list that is gone through may be the one that is changed in another call only."""

    def after(x: torch.Tensor, it: Any, items: list[int]) -> Any:
        y = x + next(it)
        items.append(7)
        return y

    def between(x: torch.Tensor, it: Any, items: list[int]) -> Any:
        y = x + next(it)
        items.append(7)
        return y + next(it)

    for function, wanted in ((after, (2.0, [7])), (between, (9.0, []))):
        backend = CountingBackend()
        compiled = optimize(function, backend)
        compiled(torch.ones(1), iter([1, 2, 3]), [1])
        items = [1]
        it = iter(items)
        assert (compiled(torch.ones(1), it, items).item(), [*it]) == wanted and items == [1, 7]


def test_attributes_changed_while_an_iterator_goes_through_them() -> None:
    class Holder:
        pass

    def function(x: torch.Tensor, names: Any, holder: Any) -> Any:
        holder.b = 5
        return x, [*names]

    compiled = optimize(function, CountingBackend())
    for shared in (False, True):
        holder, other = Holder(), Holder()
        holder.a = other.a = 1
        names = iter(vars(holder if shared else other).items())
        if shared:
            with pytest.raises(RuntimeError, match="changed size"):
                compiled(torch.ones(1), names, holder)
        else:
            assert compiled(torch.ones(1), names, holder)[1] == [("a", 1)]
        assert holder.b == 5


def test_programs_without_a_graph_warn_of_no_limit(recwarn: pytest.WarningsRecorder) -> None:
    def function(it: Any) -> Any:
        return [*it]

    compiled = optimize(function, CountingBackend())
    for count in range(20):
        assert compiled(iter(range(count))) == list(range(count))
    assert not [w for w in recwarn if "recompile limit" in str(w.message)]
