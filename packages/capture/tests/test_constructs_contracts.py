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


# --- copies and conversions -----------------------------------------------------------------------


@construct()
def set_class_of_an_iterator(x):
    class Own(set):
        pass

    class Counted(set):
        def __init__(self, items):
            super().__init__(items)
            self.count = len(self)

    pieces = [len(Own(iter([1, 2]))), len(Own(map(str, [1, 2]))), Counted(iter("abc")).count]
    pieces.append(len(Own(map(frozenset, ["ab", "bc", "ba"]))))
    return x + 1, pieces


@construct()
def set_initialised_again(x):
    class Own(set):
        pass

    again = Own("abc")
    again.__init__("xy")
    return x + 1, sorted(again)


@construct()
def dict_class_that_iterates_its_own_way(x):
    class Backwards(dict):
        def keys(self):
            return reversed(list(dict.keys(self)))

        __iter__ = keys

    table = Backwards(a=1, b=2)
    return x + 1, list(dict(table)), list({**table}), list({"z": 0} | table)


@construct()
def counted_in_tables_of_own_classes(x):
    log = []

    class Asked(dict):
        def get(self, key, default=None):
            log.append(key)
            return dict.get(self, key, default)

    table = Asked()
    collections._count_elements(table, "aba")
    return x + 1, log, dict(table)


@construct()
def deque_that_changes_while_gone_through(x):
    def turn(queue, step, item):
        queue.append(queue.popleft())

    def rotate(queue, step, item):
        queue.rotate(1)

    def replace(queue, step, item):
        queue[0] = 5

    changes = turn, rotate, replace
    queues = [gone_through(collections.deque([1, 2, 3]), change) for change in changes]
    bounded = gone_through(collections.deque([1, 2, 3], 3), lambda q, step, item: q.append(item))
    return x + 1, queues, bounded


@construct()
def iterator_begun_before_a_change(x):
    queue, table, members = collections.deque([1, 2, 3]), {1: 2, 3: 4}, {1, 2}
    begun = iter(queue), iter(table), reversed(queue)
    queue.rotate(1)
    del table[1]
    table[5] = 6
    return x + 1, texts(*(functools.partial(list, it) for it in begun)), list(table)


@construct()
def copies_keep_what_containers_know(x):
    def empty():
        return [0]

    table = collections.defaultdict(empty)
    queue = collections.deque([[1], 2], maxlen=2)
    pair, nested = (1, ("a", None)), (1, [2])
    deep = copy.deepcopy(table), copy.deepcopy(queue), copy.deepcopy(pair), copy.deepcopy(nested)
    same = deep[2] is pair, deep[3] is nested, deep[3][1] is nested[1]
    members = frozenset([1])
    return x + 1, deep[0]["new"], deep[1].maxlen, same, copy.copy(members) is members


@any_graphs
def copies_of_own_classes(x):
    class Ordered(collections.OrderedDict):
        pass

    class Default(collections.defaultdict):
        pass

    class Own(dict):
        pass

    ordered, default = Ordered(a=1), Default(list, a=1)
    copies = ordered.copy(), default.copy(), Own(a=1).copy()
    kinds = [type(made) is kind for made in copies for kind in (Ordered, Default, dict)]
    return x + 1, kinds, [dict(made) for made in copies], copies[1]["b"]


@construct()
def what_is_equal_is_itself(x):
    pair, members, nothing = (1, 2), frozenset([1, 2]), ()
    of_tuples = pair * 1 is pair, 1 * pair is pair, pair + () is pair, () + pair is pair
    of_slices = pair[:] is pair, pair[0:2] is pair, pair[::-1] is pair, pair[1:] is pair
    of_sets = frozenset(members) is members, members.copy() is members
    return x + 1, of_tuples, of_slices, of_sets, pair * 0 is nothing


# --- generators -----------------------------------------------------------------------------------


@construct()
def thrown_into_a_handler(x):
    def waits():
        try:
            raise KeyError("a")
        except KeyError:
            yield

    def inner():
        yield

    def delegates():
        try:
            raise KeyError("a")
        except KeyError:
            yield from inner()

    contexts = []
    for make in waits, delegates:
        generator = make()
        next(generator)
        try:
            generator.throw(ValueError)
        except ValueError as error:
            contexts.append(repr(error.__context__))
    return x + 1, contexts


@any_graphs
def ended_generator_behind_a_break(x):
    def numbers(n, *, by=1):
        yield n + by + x.dim()

    generator = numbers(1)
    whole = list(generator)
    print("break")
    fields = generator.gi_frame, generator.gi_running, generator.gi_suspended
    names = type(generator), generator.__name__, generator.gi_code is numbers.__code__
    return x + 1, whole, fields, names, next(generator, "none")


@pytest.mark.parametrize("case", construct.cases, ids=construct.names)
def test_construct(case: Case) -> None:
    if sys.version_info < case.since:
        pytest.skip(f"needs Python {case.since}")
    run_case(case)
