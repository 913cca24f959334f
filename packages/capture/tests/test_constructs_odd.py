"""Constructs: iterators that go on behind graph breaks, patterns, generators, odd arguments.

PYTEST_DONT_REWRITE: pytest would put code of its own into the programs' assertions.
"""


# ruff: noqa  (programs as users write them, odd ones included)

from __future__ import annotations


import collections
import copy
import dataclasses as dc
import enum
import contextlib
import functools
import itertools
import math
import operator
import types
import typing

import pytest
import torch
import torch.nn as nn
from dovetail_capture import optimize
from construct_cases import LOG, Case, CountingBackend, Table, run_case, same


construct = Table()
any_graphs = construct(graphs=None, breaks=None)


@any_graphs
def list_iter_break(x):
    l = [1, 2]
    it = iter(l)
    next(it)
    print("b")
    l.append(x)
    return (list(it), l)


@any_graphs
def list_loop_break(x):
    l = [1]
    out = []
    for i in l:
        print(i)
        out.append(i)
        if len(l) < 4:
            l.append(i + 1)
    for k, i in enumerate(l):
        print(k)
        if len(l) < 6:
            l.append(x)
    return (out, l)


@any_graphs
def dict_loop_break(x):
    d = {1: x}
    out = []
    try:
        for k in d:
            print(k)
            d[k + 1] = 2
            out.append(k)
    except RuntimeError as e:
        out.append(str(e))
    d = {1: 2, 3: 4}
    it = iter(d.values())
    next(it)
    print("z")
    d[3] = 9
    return (out, d, list(it))


@any_graphs
def dict_view_break(x):
    d = {1: x}
    ks = d.keys()
    vs = d.items()
    print("a")
    d[5] = 1
    return (list(ks), len(vs))


@any_graphs
def zip_break(x):
    l = [1, 2, 3]
    z = zip(l, [4, 5, 6])
    next(z)
    print("q")
    l[1] = 100
    l.append(9)
    r = reversed(l)
    next(r)
    print("q2")
    l[0] = "first"
    return (list(z), list(r))


@any_graphs
def deque_iter_break(x):
    d = collections.deque([1, 2])
    it = iter(d)
    next(it)
    print("q")
    d.append(3)
    try:
        return list(it)
    except RuntimeError as e:
        return str(e)


@any_graphs
def ret_iter_alias(x):
    l = [x, 1]
    it = iter(l)
    next(it)
    return (l, it)


@any_graphs
def iter_len_hint(x):
    it = iter([1, 2, 3])
    next(it)
    out = [it.__length_hint__()]
    import operator

    out.append(operator.length_hint(it))
    out.append(operator.length_hint(x.shape))
    return (x + 1, out)


@any_graphs
def gen_stopiter(x):

    def g():
        yield 1
        raise StopIteration("q")

    try:
        list(g())
    except RuntimeError as e:
        r = (str(e), repr(e.__cause__))

    def h():
        try:
            yield 1
        except GeneratorExit:
            yield 2

    k = h()
    next(k)
    try:
        k.close()
    except RuntimeError as e:
        s = str(e)

    def t():
        yield next(iter([]))

    try:
        next(t())
    except RuntimeError as e:
        u = str(e)

    def self_():
        yield next(gg)

    gg = self_()
    try:
        next(gg)
    except ValueError as e:
        v = str(e)
    w = k.gi_frame is None
    return (x + 1, r, s, u, v, w)


@any_graphs
def gen_throw_forms(x):

    def g():
        while True:
            try:
                yield "y"
            except ValueError as e:
                yield (type(e), e.args)
            except KeyError:
                return "ret"

    k = g()
    next(k)
    out = [k.throw(ValueError("a"))]
    next(k)
    out.append(k.throw(ValueError))
    next(k)
    try:
        k.throw(KeyError)
    except StopIteration as e:
        out.append(e.value)
    try:
        k.throw(IndexError("late"))
    except IndexError as e:
        out.append(str(e))
    n = g()
    try:
        n.throw(TypeError("unstarted"))
    except TypeError as e:
        out.append(str(e))
    try:
        out.append(next(n, "done"))
    except Exception as e:
        out.append(repr(e))
    try:
        g().throw(5)
    except TypeError as e:
        out.append(str(e))
    return (x + 1, out)


@any_graphs
def genexp_scope(x):
    n = 2
    g = (x * n * i for i in range(3) if i % n)
    n = 3
    h = {k: v for k, v in zip("ab", x)}
    [(m := 5) for _ in range(2)]
    return (list(g), h, m)


@any_graphs
def dict_ops2(x):
    d = dict([(1, 2), "ab"])
    out = []
    for bad in ([(1, 2, 3)], [1], ["abc"], [(1,)], 5, [None]):
        try:
            dict(bad)
        except Exception as e:
            out.append((type(e), str(e)))
        try:
            d.update(bad)
        except Exception as e:
            out.append((type(e), str(e)))
    return (x + 1, d, out)


class MyInt(int):
    pass


class MyStr(str):
    __match_args__ = ("up",)
    up = property(str.upper)


class NoTuple:
    __match_args__ = ["a"]


class NonStr:
    __match_args__ = (1,)


@any_graphs
def match_more(x):
    out = []
    match MyInt(3):
        case MyInt(v):
            out.append(v)
    match MyInt(3):
        case int(v):
            out.append(type(v))
    match MyStr("q"):
        case MyStr(v):
            out.append(v)
    match True:
        case int(v):
            out.append(v)

    class L:
        __match_args__ = ("a", "b")

        def __init__(s, a, b):
            s.a = a
            s.b = b

    match L(1, x):
        case L(1, t):
            out.append(t)
    for cls in (NoTuple, NonStr):
        try:
            match cls():
                case cls(1):
                    pass
        except TypeError as e:
            out.append(str(e))
    try:
        match Pt2(1, 2):
            case Pt2(1, x=3):
                pass
    except TypeError as e:
        out.append(str(e))
    k = 5
    try:
        match 3:
            case k():
                pass
    except TypeError as e:
        out.append(str(e))
    match {"a": 1}:
        case {"a": 1, **r}:
            out.append(r)
    match collections.OrderedDict(a=1):
        case {}:
            out.append("map")
    match "abc":
        case [a, *_]:
            out.append("no")
        case str() as s if len(s) > 5:
            out.append("no")
        case _:
            out.append(s)
    match x.shape:
        case [2, n]:
            out.append(n)
    match (x.dim(), x.dtype):
        case [2, torch.float32]:
            out.append("f32")
    match -1.5:
        case -1.5:
            out.append("neg")
    match 1 + 2j:
        case 1 + 2j:
            out.append("c")
    match [1, 2, 3]:
        case [1, *mid, 3]:
            out.append(mid)
    match (1, (2, {"k": [3, x]})):
        case [1, [2, {"k": [3, t]}]]:
            out.append(t)
    return out


class Pt2:
    __match_args__ = ("x", "y")

    def __init__(s, x, y):
        s.x = x
        s.y = y


@any_graphs
def super_forms(x):

    class A:
        def f(s):
            return "A"

        @classmethod
        def c(cls):
            return "cA" + cls.__name__

        @staticmethod
        def st():
            return "st"

        v = 3

    class B(A):
        def f(s):
            return "B" + super().f() + super(B, s).f()

        @classmethod
        def c(cls):
            return "cB" + super().c()

        def g(s):
            return [super(B, s).f() for _ in range(1)]

        @property
        def p(s):
            return super().v

        def bad(s):
            try:
                return super().nope
            except AttributeError as e:
                return str(e)

        def cl(s):
            return (lambda: __class__.__name__)()

    b = B()

    def nofn():
        return super()

    def nofn2(a):
        return super()

    out = []
    for f in (nofn, lambda: nofn2(1)):
        try:
            f()
        except RuntimeError as e:
            out.append(str(e))
    return (x + 1, b.f(), b.c(), B.c(), b.g(), b.p, b.bad(), b.cl(), out)


@any_graphs
def list_sort_forms(x):
    l = [3, 1, 2]
    seen = []
    l.sort(key=lambda v: seen.append(len(l)) or v)
    try:
        l.sort(key=lambda v: l.append(1) or v)
    except ValueError as e:
        seen.append(str(e))
    try:
        l.sort(3)
    except TypeError as e:
        seen.append(str(e))
    m = [5, 4]
    try:
        m.sort(key=lambda v: 1 / 0)
    except ZeroDivisionError:
        seen.append(m)

    class R:
        def __init__(s, v):
            s.v = v

        def __lt__(s, o):
            seen.append((s.v, o.v))
            return s.v < o.v

    q = [R(2), R(1), R(3)]
    q.sort()
    seen.append([r.v for r in q])
    return (x + 1, l, seen)


@any_graphs
def zip_strict(x):
    out = []
    for a, b in (([1], [1, 2]), ([1, 2], [1]), ([1], [2])):
        try:
            out.append(list(zip(a, b, strict=True)))
        except ValueError as e:
            out.append(str(e))
    try:
        out.append(list(map(lambda a, b: a + b, [1, 2], [3])))
    except Exception as e:
        out.append(str(e))
    return (x + 1, out)


def givenlist(x, l):
    it = iter(l)
    a = next(it)
    l.append(a + 1)
    return (x + 1, it)


def gl2(x, l):
    it = givenlist(x, l)[1]
    l.append("more")
    return list(it)


def zs(x):
    return (list(zip([1], [1, 2], strict=True)), x + 1)


def zs2(x):
    z = zip([1], [1, 2], strict=True)
    print("b")
    out = []
    try:
        for a in z:
            out.append(a)
    except ValueError as e:
        out.append(str(e))
    return out


construct(make=lambda: (torch.ones(2), [1, 2]), graphs=None, breaks=None)(gl2)
any_graphs(zs)
any_graphs(zs2)


def gen_ret(x):
    try:
        got = yield x
        while got is not None:
            got = yield (x * got)
        return x.sum()
    except ValueError as e:
        yield ("caught " + str(e))
        return "v"
    finally:
        LOG["events"].append("fin")


def outer_gen(x):
    r = yield from gen_ret(x)
    yield ("ret", r)


def g1(x):
    out = []
    g = outer_gen(x)
    out.append(next(g))
    out.append(g.send(2))
    out.append(g.send(3))
    out.append(g.send(None))
    try:
        next(g)
    except StopIteration as e:
        out.append(e.value)
    g = outer_gen(x)
    next(g)
    out.append(g.throw(ValueError("q")))
    out.append(next(g))
    g = outer_gen(x)
    next(g)
    g.close()
    try:
        next(g)
    except StopIteration:
        out.append("stopped")
    g = outer_gen(x)
    try:
        g.send(1)
    except TypeError as e:
        out.append(str(e))
    g.close()
    return out


g1.world = LOG
any_graphs(g1)


@any_graphs
def idx_all(x):
    x = torch.arange(24.0).reshape(2, 3, 4)
    b = x[0] > 5
    i = torch.tensor([0, 2, 1])
    out = []
    for f in (
        lambda: x[None],
        lambda: x[..., None],
        lambda: x[0, ..., 1],
        lambda: x[:, [0, 2]],
        lambda: x[[0, 1], [1, 2]],
        lambda: x[[0, 1], :, [1, 2]],
        lambda: x[:, i],
        lambda: x[:, i, i],
        lambda: x[1, i[:2], 1:3],
        lambda: x[[True, False]],
        lambda: x[:, [True, False, True]],
        lambda: x[torch.tensor(1)],
        lambda: x[torch.tensor(True)],
        lambda: x[True],
        lambda: x[False],
        lambda: x[None, True, None],
        lambda: x[-1, -1, -1],
        lambda: x[..., ::2],
        lambda: x[i[:, None] % 2, i],
        lambda: x[range(2)],
        lambda: x[0, 1],
        lambda: x[slice(None), 1],
        lambda: x[0][[[0, 1], [1, 2]]],
        lambda: x[:, :, i.to(torch.uint8)],
        lambda: x[()],
        lambda: x[...],
        lambda: x[[]],
        lambda: x[:, torch.tensor([], dtype=torch.long)],
        lambda: x[0, 1, 2].shape,
        lambda: x[5:],
        lambda: x[-10:10],
        lambda: x[1:0],
        lambda: x[[1, -1]],
        lambda: x[:, -i],
        lambda: x[i[0], i[1]],
        lambda: x[..., i[1:]],
        lambda: x[0, [0, 1], None, [1, 2]],
        lambda: x[:, None, [0, 1]],
        lambda: x[::-1],
        lambda: x[1.5],
        lambda: x[0, 0, 0, 0],
        lambda: x[..., ...],
        lambda: x["a"],
        lambda: x[[5]],
        lambda: x[None, None, ..., None],
        lambda: x[[0, 1.5]],
        lambda: x[2],
        lambda: x[torch.tensor([1.0])],
        lambda: x[:, [[0], [1]]],
        lambda: x[slice(None), [0]],
        lambda: x[np_int],
    ):
        try:
            out.append(f())
        except Exception as e:
            out.append((type(e), str(e)[:80]))
    return out


@any_graphs
def idx_set(x):
    out = []
    for k, v in (
        ((0,), 5),
        ((slice(None), 1), torch.arange(2.0)),
        ((Ellipsis, 0), 7.0),
        (([0, 1], [0, 1]), -1),
        (([True, False],), torch.ones(3)),
        ((None, 0), 9),
        ((slice(None, None, 2),), x[0]),
        ((torch.tensor([1, 0]), torch.tensor([0, 0])), torch.tensor([10.0, 20.0])),
        ((1, slice(1, None)), [1, 2]),
        ((5,), 0),
        ((slice(None, None, -1),), 0),
    ):
        y = x.clone()
        try:
            y[k] = v
            out.append(y)
        except Exception as e:
            out.append((type(e), str(e)[:80]))
    y = x.clone()
    y[0][1] = 5
    y[0, 1] += 1
    y[[0, 0], [1, 1]] += 1
    y[y == 0] = 8
    z = y.t()
    z[0, 0] = 99
    z[1] *= 2
    w = y.view(-1)[1:4]
    w.fill_(3)
    w.add_(x[0])
    y[:, 2:].zero_()
    y.index_put_((torch.tensor([0]), torch.tensor([1])), torch.tensor(1.0), accumulate=True)
    a, b = y.unbind(0)
    a.mul_(2) if False else None
    return (out, y, z, w, y.diagonal())


def swap(m, x):
    a = m.l(x)
    m.l = nn.Identity()
    b = m.l(x)
    m.l = nn.Linear(3, 3, bias=False)
    torch.nn.init.ones_(m.l.weight)
    c = m.l(x)
    m.add_module("q", nn.ReLU())
    del m.l
    d = hasattr(m, "l")
    m.l = m.q
    return (a, b, c, d, m.q(x), list(dict(m.named_modules())))


class L(nn.Module):
    def __init__(s):
        super().__init__()
        s.l = nn.Linear(3, 3)


class GA(nn.Module):
    def __init__(s):
        super().__init__()
        s.inner = nn.Linear(3, 3)
        s.__dict__["zz"] = 4

    def __getattr__(s, n):
        if n.startswith("dyn_"):
            return len(n)
        return super().__getattr__(n)

    def __setattr__(s, n, v):
        super().__setattr__(n, v + 1 if n == "cnt" else v)

    def __call__(s, *a, **k):
        return ("called", super().__call__(*a, **k))

    def forward(s, x):
        s.cnt = 3
        return s.inner(x) * s.dyn_ab + s.cnt + s.zz

    def __len__(s):
        return 0

    def __contains__(s, k):
        return k == "y"

    def __iter__(s):
        return iter([s.inner])


def gacall(m, x):
    try:
        m.nope
    except AttributeError as e:
        er = str(e)
    return (m(x), er, bool(m), "y" in m, [q(x) for q in m], "t" if m else "f")


def rec(x, n):
    return x if n == 0 else rec(x * n, n - 1) + n


def fib(n):
    return n if n < 2 else fib(n - 1) + fib(n - 2)


@any_graphs
def recursive(x):

    def even(n):
        return True if n == 0 else odd(n - 1)

    def odd(n):
        return False if n == 0 else even(n - 1)

    Y = lambda f: (lambda q: q(q))(lambda q: f(lambda *a: q(q)(*a)))
    return (rec(x, 4), fib(8), even(7), Y(lambda s: lambda n: 1 if n < 1 else n * s(n - 1))(5))


@any_graphs
def deco(x):
    import functools

    def d(k):

        def w(f):

            @functools.wraps(f)
            def inner(*a, **kw):
                inner.n += 1
                return f(*a, **kw) * k

            inner.n = 0
            return inner

        return w

    @d(2)
    @d(3)
    def f(v):
        """doc"""
        return v + 1

    class Cls:
        @d(5)
        def m(s, v):
            return v

        @staticmethod
        @d(7)
        def s(v):
            return v

        @classmethod
        def c(cls, v):
            return (cls.__name__, v)

        @property
        def p(self):
            return self.__class__.m.n

    o = Cls()
    r = (o.m(x), o.s(x), Cls.s(x), o.c(1), o.p)
    return (f(x), f.n, f.__wrapped__.n, f.__name__, f.__doc__, r, o.m.__func__ is Cls.m, o.m == o.m)


def seeded(make):
    def build():
        torch.manual_seed(0)
        return make(), torch.arange(6.0).reshape(2, 3)

    return build


construct(make=seeded(GA), graphs=None, breaks=None)(gacall)
construct(make=seeded(L), graphs=None, breaks=None)(swap)


@any_graphs
def itertools_are_lazy(x):
    it = iter([1, 2, 3, 4])
    pairs = itertools.pairwise(it)
    first = next(pairs)
    rest = next(it)
    longest = itertools.zip_longest(itertools.count(), it)
    a = next(longest)
    cycle = itertools.cycle(itertools.count(5))
    b = next(cycle), next(cycle)
    numbers = itertools.count(step=3, start=2)
    c = next(numbers), next(numbers)
    out = []
    for bad in (
        lambda: itertools.islice([1], -1),
        lambda: filter(None, 5),
        lambda: itertools.chain.from_iterable(5),
    ):
        try:
            bad()
        except Exception as error:
            out.append((type(error), str(error)))
    return x + 1, first, rest, a, b, c, out


@any_graphs
def iterators_of_functions_go_on(x):
    seen = []
    items = [1, 2, 3, 4]
    mapped = map(lambda a: seen.append(a) or x * a, items)
    kept = filter(lambda a: a % 2, items)
    counted = enumerate(items, 5)
    first = next(mapped), next(kept), next(counted)
    print("break")
    items.append(5)
    return first, list(mapped), list(kept), list(counted), seen


def attributes_hold_iterators(x, holder, items):
    holder.it = iter(items)
    items.append(x)
    next(holder.it)
    items.append(7)
    print("break")
    items.append(8)
    return list(holder.it)


class Holder:
    pass


construct(make=lambda: (torch.ones(2), Holder(), [1]), graphs=None, breaks=None)(
    attributes_hold_iterators
)


@construct()
def truth_values_as_indices(x):
    y = x.clone()
    y[torch.tensor(True)] = 5
    return x[torch.tensor(True)], x[:, torch.tensor(False)].shape, y


def sizes_in_truth_values(x):
    n = x.size(0)
    a, b = n > 3, n % 2 == 0
    return x + a, [a ^ b, a & b, a | b, -a, +b, ~b, abs(a), a + b, not a, divmod(a, 2)]


class Meta(type):
    def __call__(cls, *a):
        o = super().__call__(*a)
        o.made = True
        return o

    def __getitem__(cls, k):
        return (cls.__name__, k)

    def __len__(cls):
        return 42

    def __iter__(cls):
        return iter([1, 2])

    def __contains__(cls, k):
        return k == 3

    def __instancecheck__(cls, o):
        return o == 5

    def __subclasscheck__(cls, s):
        return s is int

    def __getattr__(cls, n):
        return "meta_" + n

    def __bool__(cls):
        return False

    def __eq__(cls, o):
        return True

    def __hash__(cls):
        return 1

    def __add__(cls, o):
        return "add"

    @property
    def pp(cls):
        return cls.__name__ * 2


class WithMeta(metaclass=Meta):
    def __init__(s, v=0):
        s.v = v

    def __new__(cls, *a):
        o = object.__new__(cls)
        o.newed = a
        return o


@any_graphs
def metas(x):
    o = WithMeta(4)
    return (
        x + 1,
        o.made,
        o.newed,
        o.v,
        WithMeta["k"],
        len(WithMeta),
        list(WithMeta),
        3 in WithMeta,
        isinstance(5, WithMeta),
        isinstance(o, WithMeta),
        issubclass(int, WithMeta),
        WithMeta.foo,
        bool(WithMeta),
        WithMeta == 3,
        WithMeta + 1,
        WithMeta.pp,
        type(o) is WithMeta,
        type(WithMeta).__name__,
    )


@any_graphs
def unions(x):
    out = []
    for v in (1, "a", None, x, [1], (1,), {}, 1.5, True, int, len, x.dtype):
        out.append(
            (
                isinstance(v, (int, str)),
                isinstance(v, int | None),
                isinstance(v, collections.abc.Sequence),
                isinstance(v, collections.abc.Iterable),
                callable(v),
                isinstance(v, collections.abc.Hashable),
                type(v).__name__,
                isinstance(v, torch.Tensor),
                isinstance(v, (list, (tuple, dict))),
                v is None,
                isinstance(v, typing.Callable),
                isinstance(v, type),
            )
        )
    try:
        isinstance(1, list[int])
    except TypeError as e:
        out.append(str(e))
    return (x + 1, out)


@any_graphs
def strangeflow(x):
    out = []
    for i in range(5):
        try:
            if i == 0:
                continue
            if i == 1:
                raise ValueError(i)
            if i == 2:
                break
        except ValueError as e:
            out.append(e.args[0])
        else:
            out.append("else")
        finally:
            out.append(("f", i))
    else:
        out.append("never")
    try:
        e
    except UnboundLocalError as ex:
        out.append(str(ex)[:30])

    def f():
        try:
            return 1
        finally:
            out.append("fin")

    def g():
        while True:
            try:
                try:
                    raise KeyError("k")
                finally:
                    out.append("in")
            except KeyError:
                return "g"

    def h():
        for _ in range(2):
            try:
                return "h"
            finally:
                continue
        return "after"

    def k():
        try:
            raise ValueError("a")
        except ValueError:
            try:
                raise
            except ValueError as e2:
                return (repr(e2), repr(e2.__context__))

    def m():
        try:
            raise
        except RuntimeError as e:
            return str(e)

    def n():
        try:
            try:
                1 / 0
            except ZeroDivisionError as e:
                raise ValueError("v") from None
        except ValueError as e:
            return (repr(e.__cause__), e.__suppress_context__, repr(e.__context__))

    def o():
        try:
            assert x.dim() == 5, ("msg", x.dim())
        except AssertionError as e:
            return e.args

    def p():
        try:
            raise KeyError
        except (ValueError, KeyError) as e:
            return (type(e), e.args)

    def q():
        try:
            raise 5
        except TypeError as e:
            return str(e)

    def r():
        try:
            raise ValueError from 5
        except TypeError as e:
            return str(e)

    def s():
        try:
            try:
                raise ValueError(1)
            except 5:
                pass
        except TypeError as e:
            return str(e)

    return (x + 1, f(), g(), h(), k(), m(), n(), o(), p(), q(), r(), s(), out)


@any_graphs
def builtins_kw(x):
    out = []
    out += [
        sum([1, 2], start=5),
        list(enumerate(iterable="ab", start=2)),
        sorted([3, 1], reverse=True, key=None),
        max([1, 2], key=lambda v: -v, default=3),
        min([], default=None),
        int("12", base=3),
        str(object=5),
        str(b"ab", encoding="ascii"),
        str(b"ab", "utf8"),
        round(number=2.567, ndigits=1),
        pow(base=2, exp=3, mod=5),
        complex(real=1, imag=2),
        list(zip([1], [2], strict=True)),
        dict(a=1, **{"b": 2}),
        dict({"a": 1}, c=2),
        "a,b".split(sep=","),
        "a b".split(maxsplit=1),
        "aXb".replace("X", "-"),
        print.__name__,
        collections.deque(iterable=[1, 2], maxlen=1),
        collections.Counter(a=2),
        collections.OrderedDict([("a", 1)], b=2),
        collections.defaultdict(int, a=1)["z"],
        list(itertools.accumulate([1, 2], initial=5)),
        list(itertools.accumulate([1, 2, 3], func=max)),
        list(itertools.product([1], repeat=2)),
        list(itertools.repeat(object=1, times=2)),
        list(itertools.islice([1, 2, 3], 2)),
        functools.reduce(lambda a, b: a + b, [1, 2], 10),
        list(itertools.combinations(iterable=[1, 2], r=1)),
        list(itertools.permutations([1, 2], r=1)),
        list(itertools.groupby([1, 1], key=None)) and 1,
        list(itertools.zip_longest([1], [2, 3], fillvalue=0)),
        isinstance(1, int),
        math.isclose(1, 1.05, rel_tol=0.1),
        math.prod([2, 3], start=4),
        math.log(8, 2),
        math.perm(5),
        math.dist((1,), (2,)),
        "{a}".format(a=1),
        "%(q)s" % {"q": 2},
        "abc".encode(encoding="utf8"),
        int.from_bytes(bytes=b"\x01", byteorder="big"),
        (5).to_bytes(length=2, byteorder="big"),
        bytes("a", encoding="utf8"),
        slice(1, 2, 3),
        list(range(1, 5, 2)),
        sorted({2: 1, 1: 2}.items(), key=operator.itemgetter(1)),
        operator.attrgetter("a.b")(types.SimpleNamespace(a=types.SimpleNamespace(b=3))),
        operator.methodcaller("split", ",", maxsplit=1)("a,b,c"),
        list(map(operator.add, [1], [2])),
        functools.partial(max, key=lambda v: -v)(1, 2),
        bool(),
        int(),
        float(),
        str(),
        list(),
        tuple(),
        dict(),
        set(),
        frozenset([1]),
        bytes(2),
        getattr(5, "real"),
        abs(-2),
        divmod(7, 2),
        ascii("a"),
        format(3.14, ".1f"),
        hash("a") == hash("a"),
        any(()),
        all(()),
        ord("a"),
        chr(97),
        next(iter([]), 9),
        vars(types.SimpleNamespace(a=1)),
        type("N", (), {"a": 1}).a,
        callable(len),
        callable(3),
        issubclass(bool, int),
        id(None) == id(None),
        memoryview(b"ab")[0],
        bytearray(b"a") + b"b",
        float.fromhex("0x1p1"),
        {**{"a": 1}},
        dict.fromkeys([1, 2], 0),
        [1, 2].index(2, 0, 5),
        "abab".find("b", 2),
        "abab".count("a", 1),
        (1, 2, 1).count(1),
        [3, 1].copy(),
        {1: 2}.pop(5, None),
        {1, 2}.union([3], [4]),
        {1}.issubset([1, 2]),
        {1, 2}.difference([1], [2]),
        {1}.symmetric_difference([2]),
        frozenset([1]) | {2},
        {1, 2} >= {1},
        {1}.isdisjoint({2}),
        "a".join(["x", "y"]),
        "ab".center(6, "*"),
        "a".ljust(3),
        "12".isnumeric(),
        "ab".partition("b"),
    ]
    return (x + 1, out)


def gl():
    global COUNTER, LISTG
    COUNTER += 1
    LISTG = LISTG + [COUNTER]
    return COUNTER


COUNTER = 0
LISTG = []


def globs(x):
    r = [gl(), gl()]
    import sys as s2

    m = s2.modules[__name__]
    m.COUNTER += 10
    r.append(COUNTER - r[0])
    r.append(globals()["COUNTER"] - r[0])
    m.NEWG = x
    r.append(NEWG is x)
    del m.NEWG
    r.append("NEWG" in globals())
    r.append(hasattr(m, "NEWG"))
    r.append(LISTG[-1] - r[0])
    return (x + 1, [r[1] - r[0]] + r[2:])


@any_graphs
def nested_data(x):
    d = {"a": [{"b": (x, {"c": [1, 2]})}], "z": collections.OrderedDict(q=x)}
    d["a"][0]["b"][1]["c"][0] += 5
    d["a"].append(d["a"][0])
    d["self"] = d
    d["z"]["r"] = d["a"]
    e = d["a"][1]
    e["new"] = x + 1
    (p, *q), r = [[1, 2, 3], 4]
    d["a"][0]["b"][1]["c"][1:1] = [7, 8]
    l = [0] * 5
    l[::2] = [1, 2, 3]
    l[1:4:2] = (9, 9)
    try:
        l[::2] = [1]
    except ValueError as ex:
        l.append(str(ex))
    del l[1:3]
    l[len(l) :] = ["end"]
    l.insert(-100, "f")
    l.insert(100, "e")
    l *= 1
    m = [[]] * 2
    m[0] += [1]
    try:
        l["a"]
    except TypeError as ex:
        l.append(str(ex))
    try:
        del l[100]
    except IndexError as ex:
        l.append(str(ex))
    try:
        l[100] = 1
    except IndexError as ex:
        l.append(str(ex))
    try:
        (1, 2)[0] = 1
    except TypeError as ex:
        l.append(str(ex))
    try:
        "a"[0] = "b"
    except TypeError as ex:
        l.append(str(ex))
    try:
        l[:] = 5
    except TypeError as ex:
        l.append(str(ex))
    return (d["a"], d["self"] is d, d["a"][0] is e, p, q, r, l, m, d["z"]["r"] is d["a"])


@any_graphs
def texts(x):
    d = {"a": 1, 2: [3, (4,)]}
    dd = collections.defaultdict(list, {"a": [1]})
    od = collections.OrderedDict(a=1)
    dq = collections.deque([1, 2], maxlen=3)
    c = collections.Counter("aab")
    s = {1, 2, 3}
    f = frozenset([1])
    e = ValueError("x", 1)
    NTl = collections.namedtuple("NTl", "p q", defaults=[5])
    n = NTl(1)

    @dc.dataclass
    class DCx:
        a: int = 1
        b: list = dc.field(default_factory=list)
        c: int = dc.field(default=3, repr=False)

    return (
        x + 1,
        [
            str(v)
            for v in (
                d,
                dd,
                od,
                dq,
                c,
                s,
                f,
                e,
                d.keys(),
                d.values(),
                d.items(),
                n,
                DCx(),
                range(3),
                slice(1, 2),
                (1,),
                [None, True],
                {},
                set(),
                (),
                b"a",
                1.0,
                1e100,
                -0.0,
                1j,
                float("inf"),
                "q\n",
                Ellipsis,
                NotImplemented,
                int,
                len,
                types.SimpleNamespace(a=1),
                torch.float32,
                torch.device("cpu"),
                x.shape,
                torch.strided,
                od.keys(),
                dd.items(),
                collections.ChainMap({1: 2}),
                iter,
                type(None),
                list[int],
                int | None,
                enum.Enum,
                functools.partial(int, base=2) and 1,
                memoryview and 1,
            )
        ],
        [
            repr(v)
            for v in (
                e,
                KeyError("k"),
                "a'b",
                n,
                dq,
                dd,
                c,
                OSError(2, "No"),
                StopIteration(3),
                KeyError(),
                AssertionError((1, 2)),
            )
        ],
        f"{d} {dq!r} {n!s:>20} {c}",
        str(KeyError("k")),
        str(OSError(2, "No", "f")),
        n._replace(q=2),
        "%s %r" % (dq, dd),
        dq == collections.deque([1, 2]),
        dd == {"a": [1]},
        list(od.items())[0],
        len(c),
        c.most_common(),
        json_ok(d),
    )


def json_ok(d):
    import json

    return json.dumps({"a": [1, 2.5, None, True]}, sort_keys=True)


@any_graphs
def tensor_in(x):
    l = [x, x + 1]
    out = [x in l, l.index(x), any((v is x for v in l))]
    d = {x: 1}
    out.append(d[x])
    out.append(x in d)
    s = {x}
    out.append(x in s)
    out.append(len({x, x}))
    t = (x, 1)
    out.append(t.index(x))
    out.append(1 in [1, x])
    try:
        out.append(x + 1 in [x])
    except RuntimeError as e:
        out.append(str(e))
    try:
        out.append([x] == [x + 0])
    except RuntimeError as e:
        out.append(str(e))
    out.append([x] == [x])
    out.append((x,) == (x,))
    out.append({"a": x} == {"a": x})
    out.append([x, 1] == [x, 2])
    out.append([x] == [x, 1])
    out.append(x is None or x == None)
    return out


@any_graphs
def views_alias(x):
    a = x.clone()
    b = a[0]
    c = a.view(-1)
    d = a.t()
    e = a.unsqueeze(0)
    f = a.detach()
    b += 1
    c[5] = 50
    d[0, 1] = 7
    e.mul_(2)
    f[0, 0] = -1
    g = a.split(1)
    g[0].zero_()
    h = a.unbind(1)
    h[2].add_(3)
    i = a.narrow(1, 0, 1)
    i.fill_(9)
    j = a.flatten()
    j[1] = 77
    k = a.reshape(3, 2)
    k[2, 1] = 88
    l = a.contiguous()
    l is a
    m = a.to(torch.float32)
    n = m is a
    a.data.add_(1)
    o = a.diagonal()
    o.copy_(torch.tensor([1.0, 2.0]))
    p = a.expand(2, 2, 3)
    q = a.chunk(3, 1)[1]
    q.sub_(1)
    r = torch.as_strided(a, (2,), (3,))
    r.mul_(10)
    s = a.real if False else a.T
    s[1, 1] = -5
    x.add_(a)
    return (a, b, c, d, e, f, g, h, i, j, k, n, o, q, r, s, l is a)


@any_graphs
def keywords_of_c_functions(x):
    table = collections.OrderedDict(a=1)
    queue = collections.deque(iterable=[1, 2], maxlen=1)
    made = table.pop("z", default=5), table.setdefault("q", default=6)
    keys = collections.OrderedDict.fromkeys(iterable=[1], value=2)
    out = []
    for bad in (
        lambda: next(iter([]), default=1),
        lambda: [1].append(object=1),
        lambda: len(),
        lambda: enumerate(),
        lambda: itertools.count(begin=2),
        lambda: itertools.repeat(1, n=2),
        lambda: itertools.combinations([1]),
    ):
        try:
            out.append(bad())
        except TypeError as error:
            out.append(str(error))
    return x + 1, queue, made, keys, list(itertools.permutations(iterable=[1, 2], r=1)), out


def annotated(x, function):
    def inner(a: int) -> str:
        return a

    inner.__annotations__["b"] = 1
    return x + 1, inner.__annotations__, function.__annotations__


def _with_annotations():
    def given(a: int) -> str:
        return a

    return torch.ones(2), given


construct(graphs=None, breaks=None, make=_with_annotations)(annotated)
any_graphs(globs)


# --- patterns over classes of the program's -------------------------------------------------------


class MapThenRow(collections.abc.Mapping, collections.abc.Sequence):
    """A class is of the kind of its first base, or of the registration that came last."""

    def __getitem__(self, key):
        return [1, 2][key]

    def __len__(self):
        return 2

    def __iter__(self):
        return iter([0, 1])


class RowThenMap(collections.abc.Sequence, collections.abc.Mapping):
    __getitem__, __len__ = MapThenRow.__getitem__, MapThenRow.__len__
    __iter__ = MapThenRow.__iter__


class Registered:
    __getitem__, __len__ = MapThenRow.__getitem__, MapThenRow.__len__


collections.abc.Mapping.register(Registered)
collections.abc.Sequence.register(Registered)


class DictAndRow(dict):
    pass


collections.abc.Sequence.register(DictAndRow)


class OwnGet(dict):
    def get(self, key, default=None):
        return 7 if key == "k" else default


def _kind(subject):
    match subject:
        case [first, second]:
            return "row", first, second
        case {0: value}:
            return "map", value
    return "neither"


@construct()
def patterns_over_both_kinds(x):
    makers = (MapThenRow, RowThenMap, Registered, lambda: DictAndRow({0: 1, 1: 2}))
    return x + 1, [_kind(make()) for make in makers]


@construct()
def mapping_patterns_ask_get(x):
    found = []
    for table in (OwnGet(k=1), OwnGet(j=1), collections.ChainMap({"k": x}, {"j": 2})):
        match table:
            case {"k": value, "j": other}:
                found.append((value, other))
            case {"k": value}:
                found.append(value)
            case _:
                found.append(None)
    return x + 1, found


@construct(graphs=None, breaks=None)
def mapping_patterns_check_keys(x):
    class Keys:
        a = "k"
        b = "k"

    try:
        match {"k": 1, "j": 2}:
            case {Keys.a: 1, Keys.b: 2}:
                return x
    except ValueError as error:
        return x + 1, str(error)


@pytest.mark.parametrize("case", construct.cases, ids=construct.names)
def test_construct(case: Case) -> None:
    run_case(case)


def test_symbolic_truth_values() -> None:
    run = optimize(sizes_in_truth_values, CountingBackend(), dynamic=True)
    for size in (5, 4, 3, 6):
        x = torch.ones(size, 2)
        assert same(run(x), sizes_in_truth_values(x))


def settled_sizes(x):
    n = x.size(0)
    items = [0] * n
    return torch.full((2,), n / 2.0), n / (x + 1), len(items), n**2 / 4.0


def test_settled_sizes_are_numbers() -> None:
    run = optimize(settled_sizes, CountingBackend(), dynamic=True)
    for size in (5, 4):
        x = torch.ones(size, 2)
        assert same(run(x), settled_sizes(x))
    assert not run.capture_context.log.breaks
