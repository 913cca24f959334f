"""Constructs: containers changed while they are iterated, parts of functions written through,
identity of equal numbers, containers within themselves, sums of many floats.
"""


# ruff: noqa  (programs as users write them, odd ones included)

from __future__ import annotations

import collections
import functools
import time

import pytest
import torch
from dovetail_capture import graph_break, optimize
from construct_cases import Case, CountingBackend, Table, run_case, same

construct = Table()
any_graphs = construct(graphs=None, breaks=None)


def _changed_in_loop(make, change, wrapped=iter):
    def program(x):
        items, count = make(), 0
        for item in wrapped(items):
            print(item)
            count += 1
            change(items, count + 100)
            if count > 5:
                break
        return count, x + 1

    program.__name__ = program.__qualname__ = f"{make.__name__}_{wrapped.__name__}"
    return any_graphs(program)


def ones():
    return {1}


def pairs():
    return {1: 1, 2: 2}


def queue():
    return collections.deque([1, 2])


def items_of(items):
    return items.items()


def values_backwards(items):
    return reversed(items.values())


def zipped(items):
    return zip([5, 6, 7], items)


for _wrapped in (iter, enumerate, zipped):
    _changed_in_loop(ones, set.add, _wrapped)
for _wrapped in (iter, reversed, items_of, values_backwards, enumerate):
    _changed_in_loop(pairs, lambda items, key: items.__setitem__(key, 1), _wrapped)
for _wrapped in (iter, reversed, zipped):
    _changed_in_loop(queue, collections.deque.append, _wrapped)


@any_graphs
def set_changed_before_break(x):
    items = {1}
    iterator = iter(items)
    next(iterator)
    items.add(5)
    print("b")
    return list(iterator), x + 1


@any_graphs
def set_changed_before_first_step(x):
    items, table = {1}, {}
    iterator, keys = iter(items), iter(table)
    items.add(2)
    table[1] = 1
    found = []
    for one in (iterator, keys):
        try:
            next(one)
        except RuntimeError as error:
            found.append(str(error))
    return found, x + 1


@any_graphs
def set_ended_then_changed(x):
    items = {1}
    iterator = iter(items)
    seen = list(iterator)
    items.add(5)
    print("b")
    return seen, list(iterator), x + 1


@any_graphs
def set_iterated_to_its_end(x):
    items = {"a", "b", x.dtype, (1, 2), 9, 17, 33}
    items |= {str(i) for i in range(3)}
    seen = []
    for item in items:
        print("b")
        seen.append(item)
    return len(seen), set(seen) == items, x + 1


@any_graphs
def backwards_behind_a_break(x):
    table, queue = collections.OrderedDict(a=1, b=2), collections.deque([1, 2, 3])
    keys, items = reversed(table), reversed(queue)
    next(keys), next(items)
    print("b")
    return list(keys), list(items), x + 1


def given_set(x, items):
    seen = []
    for item in items:
        print("b")
        seen.append(item)
        if len(seen) == 4:
            items.add(10_000)
    return seen, x + 1


construct(graphs=None, breaks=None, make=lambda: (torch.ones(2), {7, 14, 8, 9, 4001}))(given_set)
construct(graphs=None, breaks=None, make=lambda: (torch.ones(2), {7, 14, 8}))(given_set)


@any_graphs
def kwdefaults_written(x):
    def f(*, a=1):
        return a

    f.__kwdefaults__["a"] = 7
    first = f()
    print("b")
    f.__kwdefaults__["a"] += 1
    return first, f(), f.__kwdefaults__ is f.__kwdefaults__, x + 1


@any_graphs
def kwdefaults_aliased(x):
    def f(*, a=1):
        return a

    defaults = f.__kwdefaults__
    print("b")
    defaults["a"] = 8
    return f(), x + 1


@any_graphs
def fields_aliased(x):
    def f():
        return 1

    fields = f.__dict__
    fields["z"] = 1
    print("b")
    fields["r"] = 5
    return f.z, f.r, x + 1


@any_graphs
def fields_are_not_special(x):
    def f(a: int = 1):
        return a

    @functools.wraps(f)
    def g(*a):
        return f(*a)

    g.__qualname__ = "q.gg"
    g.__doc__ = "text"
    g.k = 3
    inside = sorted(g.__dict__), sorted(vars(g))
    print("b")
    return inside, sorted(g.__dict__), g.__qualname__, g.__doc__, g.__name__, g.__annotations__, x


@any_graphs
def annotations_aliased(x):
    def f(a: int = 1):
        return a

    notes = f.__annotations__
    print("b")
    notes["b"] = 3
    return f.__annotations__, x + 1


@any_graphs
def texts_of_cycles(x):
    items, table = [1], {}
    items.append(items)
    table["a"] = items, table
    return str(items), repr(table), f"{items}", str((items,)), x + 1


def text_of_given_cycle(x, items):
    return f"{items}", x + 1


def _cycle():
    items: list = [1]
    items.append(items)
    return torch.ones(2), items


construct(graphs=None, breaks=None, make=_cycle)(text_of_given_cycle)


# --- an object's `__dict__` -------------------------------------------------------------------------


class Held:
    pass


def _held():
    held = Held()
    held.a = 1
    return (torch.arange(6.0).reshape(2, 3), held)


@construct(make=_held)
def instance_dictionaries_leave(x, held):
    return held.__dict__, held.__dict__ is vars(held), held.__dict__.keys(), x + 1, held


@construct(make=_held)
def instance_dictionaries_of_what_is_made(x, held):
    made = Held()
    made.b = x + 1
    names = vars(made)
    names["c"] = 2
    made.itself = names
    return made, names, names is made.__dict__, made.c


@construct(graphs=None, breaks=None, make=_held)
def instance_dictionaries_over_a_break(x, held):
    names, made = vars(held), Held()
    others = made.__dict__
    held.z = x + 1
    steps = iter(others)
    graph_break()
    names["y"] = x * 2
    others["r"] = 5
    made.q = 4
    return held.y, made.r, others["q"], names is held.__dict__, sorted(others), names["z"], steps


def test_a_dictionary_may_be_an_objects_own_in_another_call() -> None:
    def first(x, held, names):
        names["a"] = 5
        return x + held.a

    def second(x, held, names):
        held.a = 7
        return x + names["a"]

    for function, apart, shared in ((first, 1.0, 5.0), (second, 3.0, 7.0)):
        compiled = optimize(function, CountingBackend())
        for own in (False, True, False):
            _, held = _held()
            names = vars(held) if own else {"a": 3}
            wanted = shared if own else apart
            assert compiled(torch.zeros(1), held, names).item() == wanted


@construct
def text_beside_a_partial(x):
    reduction = functools.partial(torch.var, unbiased=False)
    known = reduction in ("mean", "sum") or reduction == "max" or reduction != reduction
    return x.sum() if known else reduction(x)


# --- keys that leave a dictionary from before, and come back, while it is gone through -------------


def _is_put_back(table, key):
    table[key] = table.pop(key)


def _last_is_put_back(table, key):
    key, value = table.popitem()
    table[key] = value


def _all_are_put_back(table, key):
    kept = dict(table)
    table.clear()
    table.update(kept)


def _others_come_and_go(table, key):
    for number in range(7):
        table[number] = number
        del table[number]


def _is_put_back_often(table, key):
    for _ in range(4):
        for known in list(table):
            table[known] = table.pop(known)


def _gets_a_value(table, key):
    table[key] = 7


def _before(x, table, change):
    found = []
    for key in table:
        found.append(key)
        if len(found) < 4:
            change(table, key)
        print(key)
        if len(found) > 8:
            break
    return found, x + 1


def _after(x, table, change):
    found = []
    for place, key in enumerate(table):
        print(key)
        found.append(key)
        change(table, key)
        if len(found) > 8:
            break
    return found, x + 1


def _between(x, table, change):
    found, steps = [], iter(table.items())
    found.append(next(steps))
    change(table, "a")
    print("first")
    change(table, "a")
    found.append(next(steps, None))
    print("second")
    found.append(next(steps, None))
    return found, x + 1


def _across(x, table, change):
    """The iterator is in a frame above that of the changes."""
    found = []

    def one(key):
        change(table, key)
        found.append(key)

    for key in table:
        print(key)
        one(key)
        print(key)
        if len(found) > 8:
            break
    return found, x + 1


_CHANGES = (
    _is_put_back, _last_is_put_back, _all_are_put_back, _others_come_and_go, _is_put_back_often,
    _gets_a_value,
)  # fmt: skip


@pytest.mark.parametrize("kind", [dict, collections.OrderedDict, collections.Counter])
@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("change", _CHANGES)
@pytest.mark.parametrize("program", [_before, _after, _between, _across])
def test_keys_that_leave_and_come_back(program, change, count, kind) -> None:
    make = lambda: (torch.ones(2), kind(zip("abcdef", range(count))), change)
    run_case(Case(program, None, None, make, (3, 11)))


class _Held:
    def __init__(self):
        self.a, self.b, self.c = 1, 2, 3


@construct(make=lambda: (torch.ones(2), _Held()))
def attributes_that_come_back_are_the_last(x, held):
    value = held.a
    del held.a
    held.d = x + 1
    held.a = value
    return x * 2


@construct(graphs=2, make=lambda: (torch.ones(2), _Held()))
def fields_that_come_back_are_the_last(x, held):
    fields = vars(held)
    fields["b"] = fields.pop("b")
    kept = dict(fields)
    fields.clear()
    fields.update(kept)
    fields["a"] = fields.pop("a")
    return x * 2


@construct(graphs=None, breaks=None, make=lambda: (torch.ones(2), collections.deque([1])))
def a_turned_deque_of_one(x, held):
    found = []
    for item in held:
        found.append(item)
        held.rotate(1)
        print(item)
    return found, x


@pytest.mark.parametrize("case", construct.cases, ids=construct.names)
@pytest.mark.filterwarnings("error:internal error")
def test_construct(case: Case) -> None:
    run_case(case)


def identities(x, a, b):
    c = a + b
    return a is b, a is not b, a is a, c is a, c is c, x + 1


def of_items(x, items, others):
    return items[0] is others[0], items[0] is items[1], x + 1


BIG, SMALL, LITERAL = 1000, 5, "abc"


def literals(x, a, b):
    return a is BIG, a is SMALL, a is LITERAL, b is not LITERAL, x + 1


@pytest.mark.parametrize(
    "make",
    [lambda: float("3.5"), lambda: int("12345"), lambda: int("7"), lambda: 0.0,
     lambda: "".join(["ab", "c!"]), lambda: tuple([1, 2]), lambda: int("1000"), lambda: True],
)  # fmt: skip
def test_identity_is_that_of_the_objects(make) -> None:
    x = torch.ones(2)
    for function in (identities, literals):
        run = optimize(function, CountingBackend())
        one, other = make(), make()
        for pair in ((one, one), (one, other), (one, one), (other, one), (one + one, one)):
            assert same(run(x, *pair), function(x, *pair)), (function, pair)
    run = optimize(of_items, CountingBackend())
    items, others = [make(), make()], [make(), make()]
    for pair in ((items, items), (items, others), (items, items), (others, [others[0]] * 2)):
        assert same(run(x, *pair), of_items(x, *pair)), pair


def total(x, numbers):
    found = 0.0
    for number in numbers:
        found = found + number
    return x * found


def power_tower(x, number):
    for _ in range(40):
        number = number * number
    return x * number


def test_many_changing_floats_take_seconds() -> None:
    x = torch.ones(3)
    run = optimize(total, CountingBackend())
    started = time.process_time()
    for call in range(3):
        numbers = [call + i / 7 for i in range(1000)]
        assert same(run(x, numbers), total(x, numbers))
    run = optimize(power_tower, CountingBackend())
    for number in (1.0, 1.0 + 1e-12, 1.0 + 3e-12, 1.0 + 5e-12):
        assert same(run(x, number), power_tower(x, number))
    assert time.process_time() - started < 60
    few = optimize(total, CountingBackend())
    for call in range(4):
        numbers = [call + i / 7 for i in range(40)]
        assert same(few(x, numbers), total(x, numbers))
    assert len(few.capture_context.log.breaks) == 0


class Plain:
    """Equal to itself alone."""


def _equal(x, one, other):
    return x + (1 if one == other else 2)


def _unequal(x, one, other):
    return x + (1 if one != other else 2)


def _index(x, one, other):
    return x + ([Plain(), one].index(one) if one == other else 5)


def _removed(x, one, other):
    items = [one]
    try:
        items.remove(other)
    except ValueError:
        return x + 7
    return x + len(items)


def _some_partial():
    return functools.partial(torch.sum, dim=0)


@pytest.mark.parametrize("program", [_equal, _unequal, _index, _removed])
@pytest.mark.parametrize("make", [Plain, object, torch.nn.Module, _some_partial])
def test_objects_that_are_equal_to_themselves_alone(program, make):
    """Code for two such objects is not code for one object that is passed twice."""
    one, other = make(), make()
    compiled = optimize(program, CountingBackend())
    x = torch.zeros(1)
    for pair in ((one, other), (one, one), (other, one), (other, other)):
        assert same(compiled(x, *pair), program(x, *pair))
    assert not compiled.capture_context.log.breaks
