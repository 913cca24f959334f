"""Changes of some keys of a dictionary: what else is in it is neither guarded nor read."""

from __future__ import annotations

import collections
from collections.abc import Callable
from typing import Any

import pytest
import torch
from construct_cases import CountingBackend
from dovetail_capture import graph_break, optimize
from torch import Tensor

X = torch.arange(4.0)
Table = dict[Any, Any]


class Registry(dict[Any, Any]):
    """A dictionary that counts what is written to it."""

    writes = 0

    def __setitem__(self, key: Any, value: Any) -> None:
        self.writes += 1
        super().__setitem__(key, value)


def puts(x: Tensor, table: Table) -> Tensor:
    table["out"] = x + 1
    return x * 2


def puts_twice(x: Tensor, table: Table) -> Any:
    table["a"], table["b"] = x + 1, x + 2
    table["a"] = table["b"] * 2
    return table["a"], "a" in table, table.get("b")


def takes(x: Tensor, table: Table) -> Any:
    return x + table.pop("n"), table.pop("nothing", None)


def takes_and_puts_back(x: Tensor, table: Table) -> Any:
    n = table.pop("n")
    table["n"] = n + 1
    table["m"] = x
    del table["m"]
    return x + n, "m" in table


def by_number(x: Tensor, table: Table) -> Any:
    """The key that is there stays."""
    table[1] = x
    table[1.0] = x + 1
    return x - 1


def by_tuple(x: Tensor, table: Table) -> Any:
    table["n", 0] = x
    return table["n", 0] + 1


def if_absent(x: Tensor, table: Table) -> Any:
    return x + table.setdefault("n", 2) + table.setdefault("new", 3)


def updates(x: Tensor, table: Table) -> Any:
    table.update(a=x, b=2)
    table.update({"n": 1})
    return x + table["n"]


def removes_only(x: Tensor, table: Table) -> Any:
    del table["n"]
    return x + 1


PROGRAMS = [puts, puts_twice, takes, takes_and_puts_back, by_number, by_tuple, if_absent, updates,
            removes_only]  # fmt: skip
LISTS = [
    {"n": 5},
    {"n": 5, "a": 1},
    {"b": 2, "n": 5, "c": [3]},
    {"a": 1, True: "yes", "n": 5, "b": 2},
    {("n", 0): 1, "n": 5, object: 2, None: 3},
]
CLASSES = [dict, collections.OrderedDict, lambda t: collections.defaultdict(list, t), Registry]


def outcome(program: Callable[..., Any], cls: Callable[[Any], Any], entries: Table) -> Any:
    table = cls(dict(entries))
    result = program(X, table)
    items = [(type(key), key, repr(value)) for key, value in table.items()]
    return repr(result), items, getattr(table, "writes", 0), [*reversed(table)]


@pytest.mark.parametrize("cls", CLASSES)
@pytest.mark.parametrize("program", PROGRAMS)
def test_one_version_for_all(program: Callable[..., Any], cls: Callable[[Any], Any]) -> None:
    backend = CountingBackend()
    captured = optimize(program, backend, fullgraph=True)
    for entries in LISTS:
        assert outcome(captured, cls, entries) == outcome(program, cls, entries)
    if program not in (puts_twice, if_absent):
        assert len(backend.graphs) == 1


def counts(x: Tensor, table: Table) -> Any:
    table["a"] = x
    del table["n"]
    return x + len(table)


def goes_through(x: Tensor, table: Table) -> Any:
    table["n"] = 1
    table["new"] = x + 1
    return [(key, str(value)) for key, value in table.items() if key != "new"], x + 1


def goes_through_what_moved(x: Tensor, table: Table) -> Any:
    table["n"] = table.pop("n") + 1
    table[1] = "one"
    return [*table], [type(key) for key in table], x + 1


def copies(x: Tensor, table: Table) -> Any:
    table["a"] = 4
    return {**table, "b": x * 3}, x + 1


def empties(x: Tensor, table: Table) -> Any:
    table["a"] = 4
    table.clear()
    table["b"] = x * 2
    return x + 1


def takes_the_last(x: Tensor, table: Table) -> Any:
    table["last"] = 4
    return table.popitem(), x + 1


def by_nan(x: Tensor, table: Table) -> Any:
    table[float("nan")] = 1
    return x + len(table)


@pytest.mark.parametrize("cls", CLASSES)
@pytest.mark.parametrize(
    "program",
    [counts, goes_through, goes_through_what_moved, copies, empties, takes_the_last, by_nan],
)
def test_all_keys_are_asked_for(program: Callable[..., Any], cls: Callable[[Any], Any]) -> None:
    captured = optimize(program, CountingBackend())
    for entries in LISTS:
        assert str(outcome(captured, cls, entries)) == str(outcome(program, cls, entries))


def presence(x: Tensor, table: Table) -> Any:
    if "a" in table:
        del table["a"]
        return x + 1
    table["a"] = 0
    return x - 1


def test_what_is_asked_is_guarded() -> None:
    backend = CountingBackend()
    captured = optimize(presence, backend, fullgraph=True)
    for entries in (*LISTS, *LISTS):
        assert outcome(captured, dict, entries) == outcome(presence, dict, entries)
    assert len(backend.graphs) == 2


def filled(x: Tensor, tables: list[Table]) -> Any:
    for table in tables:
        table["sum"] = x + 1
        graph_break()
        x = x + table["sum"]
    return x


def test_filled_around_breaks() -> None:
    backend = CountingBackend()
    captured = optimize(filled, backend)
    for number in (6, 6):
        first, second = ([{i: i for i in range(n)} for n in range(number)] for _ in range(2))
        assert torch.equal(captured(X, first), filled(X, second))
        assert repr(first) == repr(second)
    assert len(backend.graphs) <= 3


def both(x: Tensor, first: Table, second: Table) -> Any:
    first["a"] = x + 1
    return second.get("a"), x * 2


def test_one_that_is_passed_twice() -> None:
    captured = optimize(both, CountingBackend())
    for _ in range(2):
        table: Table = {}
        assert captured(X, {}, {})[0] is None
        assert torch.equal(captured(X, table, table)[0], X + 1)
