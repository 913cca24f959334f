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

import pytest
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
    of_sets += members.intersection() is members, members.union() is members
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


# --- errors ---------------------------------------------------------------------------------------


def texts(*calls):
    told = []
    for call in calls:
        try:
            told.append(repr(call()))
        except Exception as error:
            told.append(repr(error))
    return told


class Plain:
    pass


@construct()
def with_of_what_is_no_manager(x):
    class Enters:
        def __enter__(self):
            return self

    class Leaves:
        def __exit__(self, *error):
            return False

    def enter(manager):
        with manager:
            pass

    return x + 1, texts(lambda: enter(Enters()), lambda: enter(Leaves()), lambda: enter(3))


@construct()
def arguments_that_object_refuses(x):
    class OwnNew:
        def __new__(cls, *args):
            return object.__new__(cls, *args)

    class OwnInit:
        def __init__(self, *args):
            object.__init__(self, *args)

    class Other:
        def __init__(self, *args):
            pass

    calls = (
        lambda: OwnNew(1), lambda: OwnInit(1), lambda: object.__new__(Plain, 1),
        lambda: object.__init__(Plain(), 1), lambda: Plain.__new__(Plain, a=2),
        lambda: type(object.__new__(Other, 1)), lambda: type(Other(1)),
    )  # fmt: skip
    return x + 1, texts(*calls)


@construct()
def fields_of_errors_that_cannot_be(x):
    make = ValueError
    calls = (
        lambda: make().with_traceback(5), lambda: setattr(make(), "__traceback__", 5),
        lambda: setattr(make(), "__cause__", 5), lambda: setattr(make(), "__context__", 5),
        lambda: setattr(make(), "args", 5), lambda: delattr(make(), "args"),
        lambda: delattr(make(), "__cause__"), lambda: make(a=1), lambda: ImportError(a=1),
        lambda: ImportError("a", name="b", c=2), lambda: AttributeError(a=1), lambda: KeyError(k=1),
    )  # fmt: skip
    error = make(1)
    error.args = [2, 3]
    return x + 1, texts(*calls), error.args


@construct()
def notes_that_are_no_list(x):
    error = ValueError()
    error.__notes__ = 3
    return x + 1, texts(lambda: error.add_note("a"))


@construct()
def what_errors_know(x):
    known, it = [], Plain()

    def raises(name):
        return getattr(it, name)

    for call in (
        lambda: it.missing, lambda: Plain.missing, lambda: raises("other"), lambda: [].missing,
        lambda: it.missing(),
    ):  # fmt: skip
        try:
            call()
        except AttributeError as error:
            known.append((error.name, error.obj is it, error.obj is Plain, error.obj == []))
    try:
        nowhere
    except NameError as error:
        known.append(error.name)
    try:
        from math import nothing_there
    except ImportError as error:
        known.append((str(error), error.name, error.path))
    again = AttributeError("a", name="n", obj=3)
    again.__init__()
    return x + 1, known, again.name, again.obj, again.args


class Odd:
    def __str__(self):
        return 3

    __repr__ = __format__ = __iter__ = __len__ = __str__

    def __hash__(self):
        return "a"

    __index__ = __int__ = __float__ = __hash__


class OddInit:
    def __init__(self):
        return 5


class Huge:
    def __init__(self, number):
        self.number = number

    def __hash__(self):
        return self.number


@construct()
def methods_that_return_what_they_must_not(x):
    odd = Odd()
    calls = (
        OddInit, lambda: str(odd), lambda: repr(odd), lambda: f"{odd}", lambda: f"{odd!r}",
        lambda: iter(odd), lambda: list(odd), lambda: hash(odd), lambda: [1][odd],
        lambda: int(odd), lambda: float(odd), lambda: tuple([1], a=2),
    )  # fmt: skip
    return x + 1, texts(*calls), [hash(Huge(n)) for n in (-1, 5, 2**70)]


@any_graphs
def attributes_that_cannot_be_set(x):
    class Slotted:
        fixed = 0
        __slots__ = ("slot",)

    class Computed:
        @property
        def value(self):
            return 1

    calls = (
        lambda: setattr(Slotted(), "fixed", 1), lambda: setattr(Slotted(), "other", 1),
        lambda: delattr(Slotted(), "fixed"), lambda: delattr(Slotted(), "other"),
        lambda: setattr(Computed(), "value", 1), lambda: delattr(Computed(), "value"),
        lambda: delattr(Computed(), "other"),
    )  # fmt: skip
    return x + 1, texts(*calls)


# --- classes --------------------------------------------------------------------------------------


class Partial:
    def collect(self, *args):
        return args

    first = functools.partialmethod(collect, 3)


@any_graphs
def partial_method_knows_its_object(x):
    it = Partial()
    return x + 1, it.first(4), it.first.__self__ is it, it.first.args


class Dispatching:
    @functools.singledispatchmethod
    def told(self, value):
        "What it is told."
        return "any"

    @told.register
    def _(self, value: int):
        return "int"


@any_graphs
def dispatching_method_keeps_its_names(x):
    it = Dispatching()
    method = it.told
    return x + 1, method(1), method("a"), method.__doc__, method.__name__, method.__qualname__


class Shape:
    def __new__(cls, sides):
        return object.__new__(Square if sides == 4 else Shape)

    def __init__(self, sides):
        self.sides = sides


class Square(Shape):
    def __init__(self, sides):
        super().__init__(sides)
        self.regular = True


@construct()
def new_that_makes_one_of_a_subclass(x):
    return x + 1, vars(Shape(4)), vars(Shape(3)), type(Shape(4)) is Square


class Left(abc.ABC):
    def __eq__(self, other):
        asked.append("left")
        return NotImplemented


@Left.register
class Virtual:
    def __eq__(self, other):
        asked.append("virtual")
        return NotImplemented


asked = []


@construct()
def compared_with_a_virtual_subclass(x):
    first = x + 1, Left() == Virtual(), Left() != Virtual(), list(asked)
    asked.clear()
    return first


class Named:
    @classmethod
    @property
    def title(cls):
        return cls.__name__

    @classmethod
    @functools.lru_cache
    def cached(cls):
        return cls.__name__


@any_graphs
def class_methods_of_descriptors(x):
    kinds = Named.title, Named().title
    return x + 1, [kind if sys.version_info < (3, 13) else 0 for kind in kinds], Named.cached()


@any_graphs
def recursion_that_is_caught(x):
    def deeper(n):
        return deeper(n + 1)

    try:
        deeper(0)
    except RecursionError:
        return x + 1


@any_graphs
def lists_in_themselves_that_are_compared(x):
    one, other = [], []
    one.append(one)
    other.append(other)
    y = x + 1
    try:
        return y, one == other
    except RecursionError:
        return y, one == one, repr(one)


@any_graphs
def objects_that_tell_when_they_go(x):
    class Told:
        def __del__(self):
            told.append("gone")

    told = []

    def makes():
        Told()
        return x + 1

    return makes(), told


@construct()
def locals_of_a_class(x):
    y = 3

    class Holds:
        y = 12

        def method(self):
            return y

        names = list(locals())

    return x + 1, [n for n in Holds.names if not n.startswith("__")], Holds().method()


@pytest.mark.parametrize("case", construct.cases, ids=construct.names)
def test_construct(case: Case) -> None:
    if sys.version_info < case.since:
        pytest.skip(f"needs Python {case.since}")
    run_case(case)
