"""Constructs: which special methods answer for an operator, in Python's order, and what built-in
containers, keys, formats and unpacking make of classes that override part of them.

PYTEST_DONT_REWRITE: pytest would put code of its own into the programs' assertions.
"""

# ruff: noqa  (programs as users write them, odd ones included)

from __future__ import annotations

import collections
import functools
import types

import pytest
import torch
from construct_cases import Case, Table, run_case

construct = Table()


class A:
    def __init__(self, name="A"):
        self.name = name

    def __lt__(self, other):
        return ("A.lt", self.name)

    def __gt__(self, other):
        return ("A.gt", self.name)

    def __eq__(self, other):
        return ("A.eq", self.name)

    def __add__(self, other):
        return ("A.add", self.name)

    def __radd__(self, other):
        return ("A.radd", self.name)

    def __sub__(self, other):
        return NotImplemented

    def __rsub__(self, other):
        return ("A.rsub", self.name)

    __hash__ = None


class Overrides(A):
    def __gt__(self, other):
        return ("B.gt", self.name)

    def __eq__(self, other):
        return ("B.eq", self.name)

    def __radd__(self, other):
        return ("B.radd", self.name)


class Inherits(A):
    pass


@construct()
def a_subclass_is_asked_first(x):
    a, b, c = A(), Overrides("b"), Inherits("c")
    seen = [a < b, a == b, a + b, a + c, b + a, a < c, c < a, a == c, c == b]
    a += b
    return x + 1, seen, a


@construct()
def equal_types_are_asked_once(x):
    seen = []
    for left, right in ((A(), A()), (A(), Inherits()), (Inherits(), A()), (A(), 3), (3, A())):
        try:
            seen.append(left - right)
        except TypeError as error:
            seen.append(str(error))
    return x + 1, seen


class L(list):
    def __add__(self, other):
        return "add"

    def __rmul__(self, other):
        return "rmul"

    def __iadd__(self, other):
        return "iadd"

    def __eq__(self, other):
        return "eq"


class Plain(list):
    pass


class S(set):
    def __and__(self, other):
        return "and"

    def __ror__(self, other):
        return "ror"


class D(dict):
    def __or__(self, other):
        return "or"


class T(tuple):
    def __add__(self, other):
        return "add"


@construct()
def subclasses_of_containers(x):
    l, plain, s, d, t = L([1, 2]), Plain([1, 2]), S([1, 2]), D(a=1), T((1, 2))
    seen = [l + [1], l * 2, 2 * l, l == [1, 2], l != [1, 2], [1] + plain, plain + plain, plain * 2]
    seen += [s & {1}, {5} | s, s - {1}, d | {}, {} | d, t + (1,), t * 2, (1,) + t]
    seen += [type(plain + plain), type(s - {1}), type(plain.copy()), type(plain[:1])]
    l += [3]
    plain += [3]
    return x + 1, seen, l, plain


@construct()
def equality_of_containers(x):
    O, deque = collections.OrderedDict, collections.deque
    seen = [deque([1]) == [1], [1] == deque([1]), deque([1]) == deque([1]), (1,) == [1]]
    seen += [O(a=1, b=2) == O(b=2, a=1), O(a=1, b=2) == dict(b=2, a=1)]
    seen += [{1: 2}.values() == {1: 2}.values(), {1: 2}.keys() == {1}, {1: 2}.items() == {(1, 2)}]
    nan = float("nan")
    seen += [[nan] == [nan], [nan] <= [nan], [nan] < [nan], {1: [x]} == {1: [x]}]
    N = types.SimpleNamespace
    seen += [N(a=1) == N(a=1), N(a=1) == N(a=2), N(a=1) != N(a=1), N(a=x) == N(a=x)]
    return x + 1, seen


@construct()
def deques_joined(x):
    d = collections.deque([1, 2], maxlen=3)
    e = d + collections.deque([7, 8])
    f = d * 2
    try:
        d + [1]
    except TypeError as error:
        text = type(error)
    return x + 1, e, e.maxlen, f, text


@construct()
def dictionaries_joined(x):
    d = {"a": 1}
    e = d
    d |= [("b", x)]
    d |= {"c": 3}
    return d is e, d | {"a": 5}, {"z": 0} | d, x + 1


class Formatted:
    def __str__(self):
        return "str"

    def __repr__(self):
        return "repr"


class Formats(Formatted):
    def __format__(self, spec):
        return "F" + spec


@construct()
def formatted_objects(x):
    p, q = Formatted(), Formats()
    try:
        f"{p:>9}"
    except TypeError as error:
        text = str(error)
    return x + 1, f"{p} {p!r} {p!s} {q} {q:abc} {q!r:>6}", format(q, "z"), str(q), text


Pair = collections.namedtuple("Pair", "a b")


class Key(tuple):
    pass


@construct()
def tuples_of_all_kinds_as_keys(x):
    d = {Pair(1, 2): "a", (3, 4): "b", Key((5, 6)): "c"}
    seen = [d[Pair(1, 2)], d[(1, 2)], d[Pair(3, 4)], d[Key((5, 6))], d[(5, 6)]]
    return x + 1, seen, Pair(1, 2) in {(1, 2)}, len({Pair(1, 2), (1, 2), Key((1, 2))})


class Number:
    def __index__(self):
        return 2

    def __divmod__(self, other):
        return ("divmod", other)

    def __rdivmod__(self, other):
        return ("rdivmod", other)


@construct()
def numbers_of_own_classes(x):
    n = Number()
    seen = ["ab" * n, [1] * n, n * (1, 2), [5, 6, 7][n], divmod(n, 1), divmod(1, n)]
    for left, right in ((x, 2), (2, x), ("a", 1), (None, 2)):
        try:
            seen.append(divmod(left, right))
        except TypeError as error:
            seen.append(str(error))
    return x + 1, seen


class Reflected:
    def __radd__(self, other):
        return "radd"

    def __rmatmul__(self, other):
        return other * 2

    def __rpow__(self, other):
        return "rpow"


@construct()
def a_tensor_leaves_it_to_the_other(x):
    r = Reflected()
    return x + r, x @ r, x**r, x + 1


@construct()
def iterated_while_changed(x):
    seen = []
    d, s, q = {"a": 1}, {1}, collections.deque([1])
    for items, change in ((d, lambda: d.update(b=2)), (d.values(), d.clear), (s, lambda: s.add(2))):
        try:
            for _ in items:
                change()
        except RuntimeError as error:
            seen.append(str(error))
    try:
        for _ in q:
            q.append(2)
    except RuntimeError as error:
        seen.append(str(error))
    return x + 1, seen


@construct()
def unpacked(x):
    def forever():
        n = 0
        while True:
            n += 1
            taken.append(n)
            yield n

    taken, seen = [], []

    def two(items):
        a, b = items

    def more(items):
        a, *b, c = items

    for take, items in ((two, forever()), (two, [1]), (two, 3), (two, None), (more, [1])):
        try:
            take(items)
        except (ValueError, TypeError) as error:
            seen.append(str(error))
    return x + 1, taken, seen


@construct()
def thrown_into_delegating_generators(x):
    seen = []

    def inner():
        try:
            yield 1
        except ValueError:
            seen.append("inner")
            yield 6
        finally:
            seen.append("inner ends")
        return "returned"

    def outer():
        try:
            seen.append((yield from inner()))
        except KeyError:
            seen.append("outer")
            yield 9
        except ValueError:
            seen.append("never")
        finally:
            seen.append("outer ends")
        return "x"

    g = outer()
    seen += [next(g), g.throw(ValueError())]
    try:
        next(g)
    except StopIteration as stop:
        seen.append(stop.value)
    g = outer()
    next(g)
    seen.append(g.throw(KeyError("a")))
    g.close()
    g = outer()
    next(g)
    g.close()
    g = outer()
    next(g)
    try:
        g.throw(TypeError("t"))
    except TypeError as error:
        seen.append(str(error))

    def swallows():
        try:
            yield 1
        except ValueError:
            return "swallowed"

    def goes_on():
        yield (yield from swallows())

    g = goes_on()
    seen += [next(g), g.throw(ValueError)]
    g = (yield_from_list for yield_from_list in [1])
    return x + 1, seen, next(g)


@construct()
def names_that_are_deleted(x):
    seen, y = [], 1
    reads = lambda: y
    del y
    for read in (reads,):
        try:
            read()
        except NameError as error:
            seen.append((type(error), error.name))
    try:
        y
    except UnboundLocalError:
        seen.append("unbound")
    y = 3
    return x + 1, seen


class Descriptor:
    def __set_name__(self, owner, name):
        self.name = "_" + name

    def __get__(self, obj, owner=None):
        return getattr(obj, self.name, 0)

    def __set__(self, obj, value):
        setattr(obj, self.name, value)

    def __delete__(self, obj):
        delattr(obj, self.name)


class Described:
    d = Descriptor()

    @property
    def p(self):
        return 1


@construct()
def descriptors_that_delete(x):
    o, seen = Described(), []
    o.d = 5
    seen.append(o.d)
    del o.d
    seen.append(o.d)
    for change in (lambda: delattr(o, "p"), lambda: setattr(o, "p", 1)):
        try:
            change()
        except AttributeError as error:
            seen.append(type(error))
    return x + 1, seen


class Slotted:
    __slots__ = ("a",)


@construct()
def no_dictionary(x):
    s = Slotted()
    s.a = 1
    return x + s.a, hasattr(s, "__dict__"), hasattr(s, "b"), getattr(s, "__dict__", None)


@construct()
def joined_from_generators(x):
    return x + 1, "x".join(str(n) for n in x.shape), ", ".join(map(str, (1, 2)))


@construct(graphs=None, breaks=None)
def errors_that_c_code_takes_apart(x):
    seen = []
    try:
        raise OSError(2, "message", "file")
    except OSError as error:
        seen.append((type(error), error.errno, error.strerror, error.filename, str(error)))
    try:
        raise SystemExit(3)
    except SystemExit as error:
        seen.append(error.code)
    return x + 1, seen


@construct()
def a_functions_parts(x):
    def f(a, b=2, *c, d, e=5, **g):
        "doc"

    return x + 1, f.__defaults__, f.__kwdefaults__, getattr(f, "nothing", 3), f.__doc__


@construct()
def powers_by_their_methods(x):
    y = x.__pow__(2) + torch.Tensor.__pow__(x, x)
    y.__ipow__(2)
    return y, functools.reduce(torch.Tensor.__pow__, [x, x, 2])


@pytest.mark.parametrize("case", construct.cases, ids=construct.names)
def test_construct(case: Case) -> None:
    run_case(case)
