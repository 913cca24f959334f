"""Constructs: what Python promises of its own types, down to identity, errors and their fields.

PYTEST_DONT_REWRITE: pytest would put code of its own into the programs' assertions.
"""

# ruff: noqa  (programs as users write them, odd ones included)

from __future__ import annotations

import abc
import collections
import copy
import functools
import sys
import types
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from construct_cases import Case, Table, run_case

construct = Table()
any_graphs = construct(graphs=None, breaks=None)


# --- containers that change while they are gone through -------------------------------------------


def gone_through(table, change, view=iter):
    seen = []
    try:
        for step, key in enumerate(view(table)):
            seen.append(key)
            change(table, step, key)
            if len(seen) > 9:
                break
    except (RuntimeError, KeyError) as error:
        seen.append(str(error))
    return seen, table


def put_back(table, step, key):
    del table[key]
    table[key] = step


def put_elsewhere(table, step, key):
    del table[key]
    table[key + 100] = step


def swap_another(table, step, key):
    if step == 0:
        del table[1]
        table[77] = step


def pop_and_put(table, step, key):
    if step == 1:
        table.popitem()
        table[99] = step


@construct()
def dict_key_left_and_came_back(x):
    changes = put_back, put_elsewhere, swap_another, pop_and_put
    views = iter, dict.values, dict.items, reversed
    return x + 1, [gone_through({0: 1, 1: 2, 2: 3}, c, v) for c in changes for v in views]


@construct()
def ordered_dict_key_left_and_came_back(x):
    def to_end(table, step, key):
        table.move_to_end(key)

    def to_start(table, step, key):
        table.move_to_end(key, last=False)

    changes = put_back, put_elsewhere, swap_another, to_end, to_start
    make = collections.OrderedDict
    return x + 1, [gone_through(make({0: 1, 1: 2, 2: 3}), change) for change in changes]


@any_graphs
def set_member_left_and_came_back(x):
    def change(members, step, key):
        members.remove(key)
        members.add(key)

    return x + 1, gone_through({1, 2, 3}, change)


@any_graphs
def dict_cleared_and_filled(x):
    def change(table, step, key):
        if step == 0:
            table.clear()
            table.update({3: 1, 4: 2, 5: 6})

    return x + 1, gone_through({0: 1, 1: 2, 2: 3}, change)


@construct()
def dict_iterator_outlives_a_key(x):
    table = {1: 2, 3: 4, 5: 6}
    it = iter(table)
    first = next(it)
    del table[5]
    table[7] = 1
    return x + 1, first, next(it), list(it), table


@pytest.mark.parametrize("case", construct.cases, ids=construct.names)
def test_construct(case: Case) -> None:
    if sys.version_info < case.since:
        pytest.skip(f"needs Python {case.since}")
    run_case(case)
