"""Constructs: the text and the hash of what holds objects, and tensors of numbers that only data
tells."""

# ruff: noqa  (programs as users write them, odd ones included)

from __future__ import annotations

import dataclasses
import math
import sys
import types

import pytest
import torch
from dovetail_capture import optimize
from construct_cases import Case, CountingBackend, Table, run_case, same

construct = Table()


class Named:
    def __init__(self, name):
        self.name = name

    def __repr__(self):
        return f"Named({self.name})"

    def __str__(self):
        return "not asked within a container"


@construct()
def the_text_of_containers_of_objects(x):
    row = [Named(1), (Named(2),), {"key": Named(3), Named(4): 1}]
    row.append(row)
    table = {1: Named(1)}
    table[2] = table
    pair = (Named(1), Named(2))
    return x + 1, str(row), f"{(row,)}", repr(table), f"{pair}", "%s" % (Named(1),), str(Named(0))


# --- keys -----------------------------------------------------------------------------------------

_NESTED = {frozenset({1, 2}): 3, frozenset(): 4}


@construct()
def frozen_sets_as_keys(x):
    made = {}
    made[frozenset([1])] = x
    made[frozenset({1})] = x + 1
    found = _NESTED[frozenset((2, 1))], _NESTED.get(frozenset({5})), frozenset() in _NESTED
    return found, made[frozenset((1, 1))], len(made)


@dataclasses.dataclass(frozen=True)
class Plain:
    a: int
    b: str = "x"


@dataclasses.dataclass(frozen=True, slots=True)
class Slotted:
    a: int
    b: Plain


@dataclasses.dataclass(frozen=True, order=True)
class Counted:
    a: int
    count: int = dataclasses.field(default=0, compare=False)


@dataclasses.dataclass(frozen=True)
class Own:
    a: int

    def __hash__(self):
        return 1

    def __eq__(self, other):
        return True


_BY_RECORD = {Plain(1): 5, Slotted(2, Plain(3)): 6}


@construct()
def frozen_records_as_keys(x):
    made = {Plain(1): 1}
    made[Plain(1, "x")] = 2
    made[Slotted(2, Plain(3))] = 3
    made[Counted(1, 2)] = 4
    made[Counted(1, 3)] = 5
    found = _BY_RECORD[Plain(1)], _BY_RECORD.get(Plain(2)), _BY_RECORD[Slotted(2, Plain(3))]
    hashes = hash(Plain(1)) == hash(Plain(1, "x")), hash((Plain(1), 2)) == hash((Plain(1), 2))
    first = [*made][0]
    return x + 1, list(made.values()), found, hashes, len({Plain(3), Plain(3)}), first.b


@construct(graphs=None, breaks=None)
def records_with_an_equality_of_their_own_as_keys(x):
    return x + 1, {Own(1): 1, Own(2): 2}, {Plain(object): x}


@construct()
def a_module_that_nobody_has(x):
    try:
        import a_module_that_nobody_has.part as part
    except ImportError as error:
        return x + 1, type(error), str(error), error.name, error.path
    return part


_HELD = torch.nn.Linear(3, 3)
_BY_ID = {id(_HELD.weight): 3}


class Counts(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.held, self.tied = _HELD, _HELD.weight

    def forward(self, x):
        same = id(self.held.weight) == id(self.tied), id(self.tied) == id(self.held.bias)
        return (
            self.held(x) * _BY_ID[id(self.tied)],
            same,
            [id(p) in _BY_ID for p in self.parameters()],
        )


@construct(make=lambda: (Counts(), torch.ones(2, 3)))
def ids_of_parameters(module, x):
    return module(x)


@pytest.mark.parametrize("case", construct.cases, ids=construct.names)
def test_construct(case: Case) -> None:
    run_case(case)


# --- numbers that data tells ----------------------------------------------------------------------


def _of_numbers(v, w):
    i = w.item()
    return (
        torch.tensor([[v.item(), 1.0], [2, i]]),
        torch.tensor([i, i * 2, 3]),
        torch.tensor([i], dtype=torch.float32, device="cpu"),
        torch.tensor(data=(i, 2.5), dtype=torch.float64),
        torch.tensor(i, dtype=torch.int8),
        v.new_tensor([i, 2]),
        w.new_tensor([v.item()]),
        w.new_tensor(i, dtype=torch.float64),
    )


def _of_counts(v, w):
    count = w.expand(3).nonzero().numel()
    return v.new_tensor([count, count + 1]), torch.ones(max(count, 2)), min(w.item(), count, 4)


@pytest.mark.parametrize("program", [_of_numbers, _of_counts])
def test_tensors_of_numbers_that_data_tells(program) -> None:
    backend = CountingBackend()
    captured = optimize(program, backend, fullgraph=True)
    for v, w in ((-0.5, 5), (2.5, 2), (1.0, 0)):
        given = torch.tensor([v]), torch.tensor(w)
        wanted, got = program(*given), captured(*given)
        assert same(wanted, got), (wanted, got)
    assert len(backend.graphs) == 1


def test_functions_of_two_numbers_that_are_sizes() -> None:
    def program(x: torch.Tensor) -> tuple[object, ...]:
        n = x.shape[0]
        return x * math.log(n, 2), math.atan2(n, 2), math.hypot(n, 3), math.copysign(n, -1)

    captured = optimize(program, CountingBackend(), fullgraph=True, dynamic=True)
    for size in (3, 4, 7):
        assert same(program(torch.ones(size)), captured(torch.ones(size)))


def test_a_module_that_comes_later() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        try:
            import a_module_that_comes_later

            return x + a_module_that_comes_later.number
        except ImportError:
            return x

    captured = optimize(program, CountingBackend())
    assert captured(torch.ones(1)).item() == 1
    module = types.ModuleType("a_module_that_comes_later")
    module.number = 3
    sys.modules[module.__name__] = module
    try:
        assert captured(torch.ones(1)).item() == 4
    finally:
        del sys.modules[module.__name__]
    assert captured(torch.ones(1)).item() == 1
