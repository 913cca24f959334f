"""Constructs: graph breaks in the middle of everything.

PYTEST_DONT_REWRITE: pytest would put code of its own into the programs' assertions.
"""

# ruff: noqa  (programs as users write them, odd ones included)

from __future__ import annotations

import sys
import threading
import contextlib

import pytest
import torch
from construct_cases import LOG, Case, Manager, OwnError, Table, fails, loud, run_case

construct = Table()


class PerThread(threading.local):
    def __init__(self, **settings):
        self.__dict__.update(settings)


@construct(graphs=None, breaks=None)
def thread_locals(x):
    """Their attributes live in a dictionary for each thread, which only C code finds."""
    own = PerThread(scale=3)
    y = x * 2
    own.offset = 1
    return y * own.scale + own.offset


def _names_of_a_callee(x):
    b = 1
    print("inside")
    return dir(), sorted(locals()), x


@construct(graphs=None, breaks=None)
def names_behind_breaks(x):
    """Of a frame that goes on behind a break, the program sees its own names only."""
    a, kept = 1, [2]
    found = [dir()]
    for turn in range(2):
        print("turn")
        found.append((dir(), sorted(locals()), sorted(vars())))
        found.append((eval("dir()"), sorted(eval("locals()")), [d() for d in (dir,)][0][-1]))
    with torch.no_grad():
        print("with")
        found.append((dir(), sorted(sys._getframe().f_locals)))
    try:
        a / (a - 1)
    except ZeroDivisionError as error:
        print("except")
        found.append((dir(), (lambda: len(kept))()))
    return found, _names_of_a_callee(x), dir(), kept


@construct(graphs=2, breaks=1)
def break_in_the_middle(x):
    y = x + 1
    print("middle")
    return y * 2


@construct(graphs=None, breaks=None)
def break_with_live_values(x):
    items, table = [x + 1], {"k": x * 2}
    alias = items
    print("live")
    alias.append(table["k"])
    return items, table, items is alias


@construct(graphs=3, breaks=2)
def two_breaks(x):
    y = x + 1
    print("one")
    y = y * 2
    print("two")
    return y - 1


@construct(graphs=4, breaks=None)
def break_in_an_inlined_call(x):
    return loud(x + 10) + 5


@construct(graphs=6, breaks=None)
def break_two_calls_deep(x):
    def middle(y):
        return loud(y * 3) - 1

    return middle(x + 10) + 5


@construct(graphs=2, breaks=1)
def break_on_data(x):
    y = x + 1
    if y.sum() > 0:
        return y * 2
    return y * 3


@construct(graphs=2, breaks=1)
def break_at_item(x):
    n = (x + 1).sum().item()
    return x * n, n


@construct(graphs=2, breaks=1)
def break_at_tolist(x):
    values = (x + 1).tolist()
    return values, x * 2


@construct(graphs=2, breaks=1)
def break_in_with(x):
    log = []
    with Manager(log):
        y = x + 1
        print("in with")
        y = y * 2
    return y, log


@construct(graphs=2, breaks=1)
def break_in_no_grad(x):
    with torch.no_grad():
        y = x + 1
        print("in no_grad")
        z = y * torch.ones(3, requires_grad=True)
    return z, z.requires_grad, torch.is_grad_enabled()


@construct(graphs=2, breaks=None)
def break_in_autocast(x):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = x @ x.T
        print("in autocast")
        z = x @ x.T
    return y, z


@construct(graphs=2, breaks=1)
def break_in_try(x):
    try:
        y = x + 1
        print("in try")
        y = y * 2
    except ValueError:
        y = x
    return y


@construct(graphs=2, breaks=None)
def break_then_raise_in_try(x):
    try:
        y = x + 1
        print("in try")
        fails(y)
    except OwnError as error:
        return x * error.code


@construct(graphs=None, breaks=None)
def break_in_except(x):
    try:
        fails(x)
    except OwnError as error:
        print("in except", error)
        y = x + 1
    return y


@construct(graphs=2, breaks=None)
def break_in_finally(x):
    try:
        y = x + 1
    finally:
        print("in finally")
    return y * 2


@construct(graphs=None, breaks=None)
def break_in_a_loop(x):
    y = x + 1
    for i in range(3):
        y = y * 2
        print("step")
        y = y - 1
    return y + 5


@construct(graphs=3, breaks=None)
def break_in_a_loop_with_index(x):
    for i in range(3):
        x = x * 2
        print("step", i)
        x = x + 1
    return x


@construct(graphs=None, breaks=None)
def break_in_a_while_loop(x):
    n = [0]
    while len(n) < 4:
        x = x * 2
        print("step")
        n.append(1)
    return x


@construct(graphs=None, breaks=None)
def break_in_a_loop_over_tensors(x):
    total = 0
    for row in x:
        total = total + row
        print("row")
    return total


@construct(graphs=None, breaks=None)
def break_in_a_nested_loop(x):
    for i in range(2):
        for j in range(2):
            x = x + 1
            print(i, j)
        x = x * 2
    return x


@construct(graphs=None, breaks=None)
def break_and_break_out(x):
    for i in range(10):
        x = x + 1
        if x.sum() > 30:
            break
    else:
        return -1
    return x * 2


@construct(graphs=None, breaks=None)
def break_in_an_inlined_loop(x):
    def inner(y):
        for _ in range(3):
            y = y + 1
            print("inner")
        return y

    return inner(x * 2) - 1


@construct(graphs=None, breaks=None)
def break_in_a_comprehension(x):
    def noisy(v):
        print("noisy")
        return v + 1

    y = x * 2
    return [noisy(row) for row in y]


@construct(graphs=None, breaks=None)
def break_in_a_generator(x):
    def rows():
        for row in x:
            print("row")
            yield row * 2

    return sum(rows()) + 1


@construct(graphs=None, breaks=None)
def break_in_a_lambda(x):
    return (lambda t: print("lambda") or t + 1)(x * 2) * 3


@construct(graphs=None, breaks=None)
def break_in_a_loop_with_try(x):
    for i in range(3):
        try:
            x = x + 1
            print("try", i)
            if i == 1:
                raise ValueError("one")
        except ValueError as error:
            x = x * 10
            print("caught", error)
        finally:
            print("finally")
    return x


@construct(graphs=None, breaks=None)
def break_in_a_loop_in_with(x):
    log = []
    for i in range(3):
        with Manager(log):
            x = x + 1
            print("with", i)
        x = x * 2
    return x, log


@construct(graphs=None, breaks=None)
def breaks_and_closures(x):
    total = x + 1

    def add(y):
        nonlocal total
        print("add")
        total = total + y

    add(1)
    add(x)
    return total


@construct(graphs=None, breaks=None)
def effects_around_a_break(x):
    LOG["events"].append("a")
    y = x + 1
    print(len(LOG["events"]))
    LOG["events"].append("b")
    print(LOG["events"])
    LOG["n"] = y.dim()
    return y


effects_around_a_break.world = LOG


@construct(graphs=None, breaks=None)
def print_of_a_tensor(x):
    y = x + 1
    print(y)
    print(y, x.shape, sep="|", end="!\n")
    return y * 2


@construct(graphs=None, breaks=None)
def break_with_stack_values(x):
    return [x + 1, print("stack"), x * 2, {"k": print("again")}, f"{x + 1}"]


@construct(graphs=None, breaks=None)
def break_in_arguments(x):
    return torch.add(x * 2, x + (print("argument") or 1), alpha=(x.sum().item() > 0) + 1)


@construct(graphs=None, breaks=None)
def break_in_a_condition(x):
    return (x + 1 if x.sum() > 100 else x - 1) * (2 if (x > 0).any() else 3)


@construct(graphs=None, breaks=None)
def and_or_of_tensors(x):
    a, b = x.sum(), x.min()
    return (a and b), (a or b), not a, x + 1


@construct(graphs=None, breaks=None)
def while_on_a_tensor(x):
    n = 0
    while x.sum() < 100:
        x = x * 2
        n += 1
    return x, n


@construct(graphs=None, breaks=None)
def input_iterator_in_loop_with_break(x):
    it = iter([1, 2, 3])
    for i in it:
        x = x + i
        print(i)
        if i == 2:
            break
    return x, list(it)


@construct(graphs=None, breaks=None)
def break_and_raise(x):
    y = x + 1
    print("then raise")
    z = y * 2
    raise OwnError(f"at the end {z.dim()}")


@construct(graphs=None, breaks=None)
def deep_recursion_with_break(x):
    def down(y, n):
        if n == 0:
            print("bottom")
            return y
        return down(y + 1, n - 1) * 2

    return down(x, 5)


@construct(graphs=None, breaks=None)
def unknown_c_function(x):
    import zlib

    y = x + 1
    n = zlib.crc32(b"abc") % 7
    return y * n


@construct(graphs=None, breaks=None)
def time_and_environment(x):
    import os
    import time

    start = time.perf_counter()
    y = x + 1
    later = time.perf_counter() >= start
    return y, later, os.environ.get("NO_SUCH_VARIABLE", "unset")


@construct(graphs=None, breaks=None)
def break_in_a_comprehension_with_closures(x):
    i = "outer"
    y = x + 1
    getters = [(lambda: i, print("made", i), y + n)[0] for n in range(2) for i in (n, n + 1)]
    print(i)
    pairs = [(lambda: k, loud(y + k)) for k in range(3)]
    return [g() for g in getters], [(g(), t) for g, t in pairs], i, y


@construct(graphs=None, breaks=None)
def comprehension_with_closures_after_a_break(x):
    i = x + 1
    print("first")
    total = sum(g() for g in [lambda: i * x for i in range(3)])
    print("second")
    return total + sum(loud(t) for t in [i, x]), i


@construct(graphs=None, breaks=None)
def keys_that_change_places_behind_breaks(x):
    seen = []
    for change in ("swap", "again", "first", "value", "clear"):
        d = {1: 1, "b": 2, 3.5: 3}
        try:
            for k in d:
                print(k)
                seen.append(k)
                if len(seen) % 7 == 6:
                    break
                if change == "swap":
                    d[len(seen) + 10] = d.pop(k)
                elif change == "again" and len(seen) < 12:
                    d[k] = d.pop(k)
                elif change == "first":
                    d[next(iter(d))] = 0
                elif change == "value":
                    d["b"] += 1
                elif change == "clear":
                    d.clear()
                    d.update({5: 1, 6: 2, 7: 3})
        except RuntimeError as error:
            seen.append(str(error))
        seen.append(list(d.items()))
    return x + 1, seen


@pytest.mark.parametrize("case", construct.cases, ids=construct.names)
def test_construct(case: Case) -> None:
    run_case(case)
