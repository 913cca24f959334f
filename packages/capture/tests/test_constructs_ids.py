"""`id()`: of what existed before, of what is made in the frame, and of tensors."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from construct_cases import Case, CountingBackend, Table, run_case
from dovetail_capture import graph_break, optimize


class Thing:
    """An object with an identity."""


THINGS: dict[str, Any] = {"list": [1.0], "dict": {"a": 1}, "set": {1}, "object": Thing()}
table = Table()


@table()
def ids_of_what_is_made_here(x):
    a, b, y = [1], [1], x + 1
    z, memo = y, {id(a): 1}
    return (
        id(a) in memo, id(b) in memo, memo[id(a)], memo.get(id(b)), id(a) == id(a), id(a) != id(b),
        id(y) == id(z), id(x) == id(y), id(a) == 5, [id(a)] == [id(a)], id(a) in [id(b), id(a)],
        len({id(a), id(b), id(a)}), isinstance(id(a), int), bool(id(a)), id(a) == id(y), y,
    )  # fmt: skip


@table()
def ids_of_what_existed(x):
    places = {id(thing): name for name, thing in THINGS.items()}
    return [places[id(thing)] for thing in THINGS.values()], id(THINGS) in places, x + 1


@table()
def a_walk_that_remembers_where_it_was(x):
    def size(part, seen):
        if id(part) in seen:
            return 0
        seen[id(part)] = part
        return 1 + sum(size(inner, seen) for inner in part)

    loop = []
    loop.append(loop)
    return x + size([loop, [], loop], {})


@table(graphs=None, breaks=None)
def ids_behind_a_break(x):
    a = [x + 1]
    memo = {id(a): 1}
    graph_break()
    return memo[id(a)], id(a) in memo, a


@table(graphs=None, breaks=None)
def ids_as_numbers(x):
    a = [x + 1]
    return id(a) % 1, id(a) > 0, hex(id(a)) == hex(id(a)), str(id(a)).isdigit(), a


@pytest.mark.parametrize("case", table.cases, ids=table.names)
def test_construct(case: Case) -> None:
    run_case(case)


def test_ids_that_leave_are_those_of_what_leaves() -> None:
    def program(x: torch.Tensor) -> Any:
        a, thing, y = [x + 1], Thing(), x * 2
        return a, id(a), thing, id(thing), {id(a): a}, y, id(y)

    a, of_a, thing, of_thing, memo, y, of_y = optimize(program, CountingBackend(), fullgraph=True)(
        torch.ones(2)
    )
    assert (id(a), id(thing), id(y)) == (of_a, of_thing, of_y)
    assert memo[id(a)] is a


def test_ids_of_inputs_tell_them_apart() -> None:
    def program(x: torch.Tensor, y: torch.Tensor) -> Any:
        return id(x) == id(y), x + y

    compiled = optimize(program, CountingBackend(), fullgraph=True)
    x, y = torch.ones(2), torch.ones(2)
    assert [compiled(*pair)[0] for pair in ((x, x), (x, y), (y, x), (y, y))] == [True, False, False,
                                                                                True]  # fmt: skip


def test_an_id_that_is_known_before_is_compared() -> None:
    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = torch.ones(2), torch.zeros(2)

        def forward(self, x: torch.Tensor, wanted: int) -> torch.Tensor:
            if id(self.first) == wanted:
                return x + 1
            return x * 3 if id(self) == wanted else x

    model, x = Model(), torch.ones(2)
    compiled = optimize(model, CountingBackend(), fullgraph=True)
    before = id(model.first)
    for wanted in (before, id(model), 0):
        assert torch.equal(compiled(x, wanted), model(x, wanted))
    kept, model.first = model.first, model.second
    assert torch.equal(compiled(x, before), x) and kept is not model.first


def test_another_object_at_a_place_is_noticed() -> None:
    known = {id(THINGS["list"]): 5}
    box = [THINGS["list"]]

    def program(x: torch.Tensor) -> torch.Tensor:
        return x + known.get(id(box[0]), 1)

    compiled = optimize(program, CountingBackend(), fullgraph=True)
    x = torch.ones(2)
    assert torch.equal(compiled(x), x + 5)
    box[0] = [1.0]
    assert torch.equal(compiled(x), x + 1)
