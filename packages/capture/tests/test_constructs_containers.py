"""Constructs: lists, tuples, dicts, sets, strings, numbers, and iteration over them.

PYTEST_DONT_REWRITE: pytest would put code of its own into the programs' assertions.
"""

# ruff: noqa  (programs as users write them, odd ones included)

from __future__ import annotations

import collections
import copy
import itertools
import operator

import pytest
import dovetail_capture
import torch
from construct_cases import Case, Table, run_case

construct = Table()


@construct()
def list_methods(x):
    a = [3, 1, 2]
    a.append(x)
    a.extend([5, 6])
    a.insert(0, 9)
    popped = a.pop(), a.pop(0)
    a.remove(1)
    b = a.copy()
    b.reverse()
    b.clear()
    return a, popped, [3, 2].index(2), [2, 2].count(2), b, x + 1


@construct()
def list_slices(x):
    a = list(range(10))
    a[2:5] = [x, x]
    del a[-2:]
    a[::2] = [0] * len(a[::2])
    return a, a[1:3], a[::-1], a[-1], a[:], x + 1


@construct()
def list_sort(x):
    a = [3, 1, 2]
    a.sort()
    b = sorted([("b", 2), ("a", 3)], key=lambda p: p[1], reverse=True)
    c = sorted({"z": 1, "y": 2})
    return a, b, c, sorted("hello"), x + 1


@construct(graphs=None, breaks=None)
def list_errors(x):
    seen = []
    for action in (
        lambda: [].pop(),
        lambda: [1][5],
        lambda: [1].remove(2),
        lambda: [1].index(2),
        lambda: {}["a"],
        lambda: {"a": 1}.pop("b"),
        lambda: (1,)[3],
        lambda: set().pop(),
        lambda: {1}.remove(2),
        lambda: int("x"),
        lambda: 1 / 0,
        lambda: "a" + 1,
        lambda: None.foo,
        lambda: [] + (),
        lambda: (1, 2) < (1, "a"),
        lambda: len(3),
        lambda: next(iter([])),
        lambda: [1, 2, 3].foo,
        lambda: collections.deque().popleft(),
        lambda: {}.popitem(),
        lambda: [][::0],
        lambda: max([]),
        lambda: {[]: 1},
        lambda: iter(3),
        lambda: 3(),
        lambda: "abc".index("z"),
        lambda: range(3)[7],
    ):
        try:
            action()
        except Exception as error:
            seen.append((type(error).__name__, str(error)))
    return seen, x + 1


@construct()
def comprehensions(x):
    rows = [row * i for i, row in enumerate(x)]
    table = {k: v + 1 for k, v in zip("ab", x)}
    odd = {n for n in range(6) if n % 2}
    nested = [[i * j for j in range(i)] for i in range(4)]
    flat = [j for i in nested for j in i if j]
    return rows, table, odd, nested, flat


@construct()
def comprehension_with_closure(x):
    k = 3
    fs = [(lambda: x * k * i)() for i in range(3)]
    return fs, {n: (lambda: n * k)() for n in range(2)}


@construct()
def conditional_comprehension(x):
    return [x if i % 2 else -x for i in range(3)], [i for i in range(10) if i % 2 if i % 3]


@construct()
def dict_methods(x):
    d = {"a": 1, "b": x}
    d["c"] = 3
    d.update(d=4, e=x + 1)
    d.update([("f", 6)])
    d.setdefault("g", []).append(1)
    got = d.get("a"), d.get("zz"), d.get("zz", 5), d.pop("a"), d.pop("zz", None)
    del d["c"]
    last = d.popitem()
    return d, got, last, list(d), list(d.values()), list(d.items()), len(d), "b" in d


@construct()
def dict_merge_and_order(x):
    d = {"a": 1, **{"b": x}, "c": 3}
    e = d | {"a": 9, "z": 0}
    d |= {"q": 1}
    return d, e, x + 1, list(reversed(d)), d == dict(d), {**e, "a": 5}["a"], dict(zip("xy", [x, 1]))


@construct()
def dict_views(x):
    d = {"a": 1, "b": 2}
    keys, items = d.keys(), d.items()
    d["c"] = 3
    both = keys & {"a", "c", "zz"}
    return (
        sorted(keys),
        sorted(both),
        ("a", 1) in items,
        len(keys),
        sorted(keys | {"w"}),
        sorted(keys - {"a"}),
        x + 1,
    )


@construct()
def dict_of_odd_keys(x):
    d = {
        1: x,
        (1, 2): x + 1,
        None: 3,
        torch.float32: 4,
        True: 5,
        2.0: 6,
        "s": 7,
        len: 8,
        int: 9,
        b"x": 1,
    }
    return d[1], d[(1, 2)], d[None], d[torch.float32], len(d), d[2], d[len], d[int]


@construct()
def tensor_keys(x):
    y = x + 1
    d = {x: 1, y: 2}
    return d[x], d[y], x in d, len(d), y


@construct()
def dict_fromkeys_and_copy(x):
    d = dict.fromkeys("abc", 0)
    e = d.copy()
    e["a"] = x + 1
    return d, e, dict(d, z=1), dict(e.items())


@construct(graphs=0)
def dict_changes_while_iterated(x):
    d = {"a": 1}
    try:
        for k in d:
            d[k + "b"] = 2
    except RuntimeError as error:
        return str(error), x


@construct()
def set_operations(x):
    a, b = {1, 2, 3}, frozenset([2, 3, 4])
    a.add(7)
    a.discard(1)
    a.update([9])
    c = a.copy()
    c -= {9}
    return (
        a | b,
        a & b,
        a - b,
        a ^ b,
        2 in a,
        a <= a | b,
        a.isdisjoint({100}),
        len(c),
        x + 1,
        {*a, *b},
        c < a,
        a.issuperset({2}),
        b.union([1]),
    )


@construct()
def set_of_strings_and_tuples(x):
    s = {("a", 1), "b", None, torch.float32}
    s.remove("b")
    return s, ("a", 1) in s, x * len(s)


@construct()
def tuples(x):
    t = (1, x, 3)
    return (
        t + (4,),
        t * 2,
        t[1:],
        t.index(1),
        (1, 2).count(1),
        x + 1,
        1 in t,
        (1, 2) < (1, 3),
        len(t),
        hash((1, 2)) == hash((1, 2)),
    )


@construct()
def deque(x):
    d = collections.deque([1, 2, 3], maxlen=3)
    d.append(x)
    d.appendleft(0)
    d.rotate(1)
    d.extend([7])
    d.extendleft([8, 9])
    left, right = d.popleft(), d.pop()
    return d, left, right, len(d), d.maxlen, d[0], list(d), x + 1


@construct()
def default_dict(x):
    d = collections.defaultdict(list)
    d["a"].append(x)
    d["b"] += [1]
    n = collections.defaultdict(int)
    for c in "hello":
        n[c] += 1
    return d, dict(n), "zz" in d, d.get("q"), d.default_factory, x + 1


@construct()
def ordered_dict(x):
    d = collections.OrderedDict(a=1, b=x)
    d["c"] = 3
    d.move_to_end("a")
    first = d.popitem(last=False)
    return d, first, list(d), d == collections.OrderedDict(c=3, a=1), x + 1


@construct(graphs=None, breaks=None)
def counter(x):
    c = collections.Counter("hello")
    c.update("ll")
    return c.most_common(1), c["l"], c["zz"], x * c["h"], sum(c.values())


@construct()
def chain_map(x):
    m = collections.ChainMap({"a": 1}, {"b": x})
    return m["a"], m["b"] + 1, "c" in m


@construct()
def nested_structures(x):
    d = {"a": [1, {"b": (x, [x + 1])}]}
    d["a"][1]["b"][1].append(3)
    return d, d["a"][1]["b"][0]


@construct()
def aliases(x):
    a = [x]
    b = a
    b.append(x + 1)
    c = {"a": a, "b": b}
    return a, b, c, a is b, c["a"] is c["b"]


@construct()
def self_referential(x):
    a = [x + 1]
    a.append(a)
    return a[1] is a, a[0], len(a)


@construct(make=lambda: (torch.ones(2), [1, 2, 3], {"k": [4]}, {1, 2}, (5, [6])))
def argument_containers(x, a, d, s, t):
    a.append(x)
    a[0] = 9
    d["k"].append(5)
    d["new"] = x + 1
    s.add(3)
    t[1].append(7)
    a.pop()
    a.pop(1)
    d["k"].pop()
    del d["new"]
    s.discard(3)
    t[1].pop()
    return x + len(a) + len(d)


construct.cases[-1] = Case(argument_containers, 2, 0, construct.cases[-1].make, (3, 11))


@construct(
    make=lambda: (
        torch.ones(2),
        collections.deque([1], maxlen=4),
        collections.OrderedDict(a=1),
        collections.defaultdict(list),
        frozenset([1, 2]),
        collections.Counter("aab"),
    )
)
def argument_collections(x, d, o, dd, f, c):
    return x * d[0] + o["a"], list(o), dd.get("z"), 1 in f, c["a"], len(d), sorted(f)


@construct(make=lambda: (torch.ones(2), {"a": torch.zeros(2)}))
def argument_dict_walk(x, d):
    total = x
    for name, value in d.items():
        total = total + value + len(name)
    return total, list(d), [*d.values()]


@construct()
def string_methods(x):
    s = "  Hello World  "
    return (
        s.strip().lower().split(), "-".join(["a", "b"]), s.replace("l", "L"), s.find("W"), "a,b".partition(","),
        "abc"[1:], "abc" * 2, "b" in "abc", "x".isdigit(), "abc".startswith(("a", "z")), s.title(), "a\nb".splitlines(),
        "abc".upper().encode(), b"abc".decode(), "x=%d" % 3, "abc"[::-1], ord("a"), chr(98), "7".zfill(3), "a.b.c".rsplit(".", 1),  # noqa: UP031
        "layer.0.weight".removeprefix("layer."), len(s), "abc" < "abd", x + 1,
    )  # fmt: skip


@construct()
def numbers(x):
    return (
        7 // 2, -7 // 2, 7 % 3, -7 % 3, 2**10, 2**-1, divmod(7, 2), round(2.5), round(2.567, 2), abs(-3), int(3.9), float("1e3"), 5 & 3, 5 | 3,
        ~5, 1 << 4, max(1, 2, 3), min([4, 2]), sum([1, 2], 10), pow(2, 3, 5), bin(5), hex(255), 3 + 4j, (3 + 4j).real, (5).bit_length(),
        1e308 * 10, -0.0, 0.1 + 0.2, int("ff", 16), bool([]), 10**20, x + 1, float("inf") > 3, (2.5).is_integer(), True + 1,
    )  # fmt: skip


@construct()
def ranges(x):
    r = range(2, 20, 3)
    return (
        list(r),
        len(r),
        r[1],
        r[-1],
        5 in r,
        r.start,
        list(reversed(r)),
        [x * i for i in range(2)],
        r == range(2, 20, 3),
        range(3)[1:],
    )


@construct()
def zip_enumerate_map_filter(x):
    return (
        list(zip([1, 2], "ab")), list(enumerate(x, start=2)), list(map(lambda a, b: a * b, x, [2, 3])),
        list(filter(None, [0, 1, 2])), list(filter(lambda v: v > 1, [1, 2, 3])), dict(zip("ab", map(operator.neg, x))),
    )  # fmt: skip


@construct()
def zip_strict(x):
    try:
        list(zip([1, 2], [1], strict=True))
    except ValueError as error:
        return str(error), list(zip([x], [x + 1], strict=True))


@construct()
def iterator_by_hand(x):
    it = iter([1, 2, 3])
    first = next(it)
    rest = list(it)
    return first, rest, next(it, "end"), x * first


@construct()
def returns_iterators(x):
    it = iter([x, x + 1, 3])
    next(it)
    return next(it), list(it)


@construct()
def iter_with_sentinel(x):
    values = [1, 2, 3, 0, 4]
    return list(iter(lambda: values.pop(0), 0)), x + 1


@construct()
def itertools_functions(x):
    return (
        list(itertools.chain([1], (2, x))), list(itertools.chain.from_iterable([[1], [2]])), list(itertools.islice(range(10), 2, 8, 2)),
        list(itertools.repeat(x, 2)), list(itertools.islice(itertools.count(5, 2), 3)), list(itertools.product([1, 2], "ab")),
        list(itertools.combinations([1, 2, 3], 2)), list(itertools.permutations([1, 2, 3], 2)), list(itertools.accumulate([1, 2, 3])),
        list(itertools.accumulate([1, 2, 3], operator.mul, initial=10)), list(itertools.pairwise([1, 2, 3])),
        list(itertools.zip_longest([1, 2], [3], fillvalue=0)), list(itertools.starmap(operator.add, [(x, 1)])),
        list(itertools.takewhile(lambda v: v < 3, [1, 2, 3, 1])), list(itertools.dropwhile(lambda v: v < 3, [1, 2, 3, 1])),
        list(itertools.filterfalse(lambda v: v % 2, [1, 2, 3])), list(itertools.compress("abc", [1, 0, 1])),
        list(itertools.islice(itertools.cycle([1, 2]), 5)), x + 1,
    )  # fmt: skip


@construct(graphs=None, breaks=None)
def itertools_groupby_and_tee(x):
    groups = [(k, list(g)) for k, g in itertools.groupby([1, 1, 2, 3, 3], key=lambda v: v % 2)]
    a, b = itertools.tee([1, 2, 3])
    return groups, next(a), list(b), list(a), x + 1


@construct()
def generators(x):
    def numbers(n):
        for i in range(n):
            yield x * i
        return "done"

    def outer():
        result = yield from numbers(2)
        yield result
        yield from [5, 6]

    return list(outer()), sum(1 for _ in numbers(3)), tuple(numbers(2))


@construct()
def generator_send_and_close(x):
    log = []

    def echo():
        value = x
        try:
            while True:
                value = yield value * 2
                log.append("got")
        finally:
            log.append("closed")

    g = echo()
    first = next(g)
    second = g.send(x + 1)
    g.close()
    return first, second, log, list(g)


@construct()
def generator_throw(x):
    def catching():
        try:
            yield 1
        except ValueError as error:
            yield str(error)

    g = catching()
    next(g)
    return g.throw(ValueError("inside")), x + 1


@construct()
def generator_return_value(x):
    def g():
        yield 1
        return x * 2

    it = g()
    next(it)
    try:
        next(it)
    except StopIteration as stop:
        return stop.value


@construct()
def generator_is_lazy(x):
    log = []

    def g():
        for i in range(5):
            log.append(i)
            yield i

    for i in g():
        if i == 2:
            break
    return log, any(v > 1 for v in g()), log, x + 1


@construct()
def infinite_generator(x):
    def naturals():
        n = 0
        while True:
            yield n
            n += 1

    return [x * n for n, _ in zip(naturals(), range(3))], next(naturals())


@construct(make=lambda: (torch.ones(2), iter([1, 2, 3, 4, 5, 6])))
def iterator_argument(x, it):
    return x * next(it)


construct.cases[-1] = Case(iterator_argument, 2, None, construct.cases[-1].make, (3, 11))


@construct()
def loop_with_else(x):
    for i in range(3):
        if i == 5:
            break
    else:
        x = x + 10
    while i:
        i -= 1
        if i == 1:
            continue
        x = x * 2
    else:
        x = x - 1
    return x


@construct()
def nested_loops(x):
    total = x
    for i in range(3):
        for j in range(3):
            if j > i:
                break
            if (i + j) % 2:
                continue
            total = total + i * j
    return total


@construct()
def loop_over_tensor(x):
    total = 0
    for i, row in enumerate(x):
        total = total + row.sum() * i
    a, b = x
    return total, a, b, [*x][0]


@construct()
def while_with_tensors(x):
    n = 0
    while n < 3:
        x = x * 2 + n
        n += 1
    return x, n


@construct()
def list_as_stack_and_queue(x):
    work, seen = [(x, 0)], []
    while work:
        t, depth = work.pop()
        seen.append(depth)
        if depth < 2:
            work += [(t + 1, depth + 1), (t * 2, depth + 1)]
    return seen, t


@construct()
def min_max_any_all(x):
    return (
        max([1, 3], key=lambda v: -v),
        min("b", "a"),
        max([], default=0),
        any([]),
        all([1, 2]),
        max({"a": 2, "b": 1}),
        x + 1,
    )


@construct()
def sum_of_lists_and_tensors(x):
    return sum([[1], [2]], []), sum([x, x + 1]), sum(x), sum(i * i for i in range(4))


@construct()
def slice_objects(x):
    s = slice(0, 2)
    return [1, 2, 3][s], x[s], s.start, s.stop, x[:, s], slice(None).indices(5)


@construct()
def shape_arithmetic(x):
    b, t = x.shape
    n = x.numel()
    size = x.size()
    return (
        x.view(t, b),
        x.reshape(-1),
        n * 2,
        size[0],
        size.numel(),
        x.shape[-1],
        tuple(size),
        size + (3,),
        list(x.shape),
        x.shape == (2, 3),
        len(x),
        x.ndim,
    )


@construct(graphs=None, breaks=None)
def bisect_and_heapq(x):
    import bisect
    import heapq

    h = [3, 1, 2]
    heapq.heapify(h)
    heapq.heappush(h, 0)
    return bisect.bisect([1, 2, 3], 2), heapq.heappop(h), heapq.nlargest(2, h), x + 1


@construct(graphs=None, breaks=None)
def bytes_and_bytearray(x):
    b = bytes([1, 2])
    return b[0], b + b"z", list(b), bytearray(b"ab")[1], x + 1


@construct()
def complex_numbers(x):
    return x * (1 + 2j), complex(1, 2), abs(3 + 4j)


@construct()
def type_constructors(x):
    return (
        list("ab"),
        tuple([1]),
        dict(a=1),
        set("a"),
        frozenset("b"),
        str(3),
        int("4"),
        bool("x"),
        float(1),
        list({"a": 1}),
        list(x),
        x + 1,
    )


@construct()
def views_are_ordered_as_sets(x):
    d = {"a": 1, "b": 2}
    first = d.items() >= {("a", 1)}, d.keys() > {"a"}, d.keys() < {"a", "b", "c"}
    return x + 1, first, d.keys() <= d.keys(), {"a"} <= d.keys(), d.items() < d.items()


@construct(graphs=None, breaks=None, make=lambda: ({"a": 1}.keys(), torch.ones(2)))
def views_made_outside(keys, x):
    y = x * len(keys) + ("a" in keys) + keys.__len__()
    return y if keys else x


@construct()
def the_order_of_members_that_collide(x):
    folded, made = {-3, (6 % 5), 5}, {int(x.shape[0]), 5, -3}
    many = set([17, 1, 2, 3, 4])
    keys = set({17: 0, 1: 1, 2: 2, 3: 3, 4: 4}), {*{17: 0, 1: 1, 2: 2}}
    changed = set(folded)
    changed |= {13, 21}
    changed.discard(5)
    changed.add(29)
    sets = (
        folded,
        made,
        many,
        *keys,
        changed,
        many.copy(),
        many | {33, 65},
        frozenset(many),
        {*many},
    )
    return x + 1, [list(s) for s in sets], [list(set(s)) for s in sets], min(many), many.pop()


_COLLIDING = {8, 16, 0, 24}


@construct()
def the_order_of_a_set_that_was_there(x):
    mine = set(_COLLIDING)
    mine.add(32)
    return x * 2, list(_COLLIDING), list(mine), list(_COLLIDING | {40, 48, 56}), list({*_COLLIDING})


@construct()
def disjoint_views(x):
    d = {"a": x, "b": 2}
    return (
        x * 2, d.keys().isdisjoint(["q"]), d.keys().isdisjoint({"b": 1}), d.keys().isdisjoint(d),
        d.items().isdisjoint([("c", 2)]), {}.keys().isdisjoint([]), d.keys().isdisjoint(iter("xb")),
    )  # fmt: skip


@construct(graphs=0)
def unions_of_dictionaries(x):
    ordered = collections.OrderedDict(a=x, b=2)
    listing = collections.defaultdict(list, {"x": x})
    first, second = ordered | {"z": 1}, {"z": 1, "a": 0} | ordered
    third, fourth = {"q": 1} | listing, listing | {"k": 2}
    third["new"].append(3), fourth["newer"]
    first.move_to_end("a")
    mixed = ordered | listing, listing | ordered, ordered | ordered
    mixed[1]["made"].append(1)
    ordered |= {"k": 1}
    return first, second, third, fourth, mixed, ordered


@pytest.mark.parametrize("case", construct.cases, ids=construct.names)
def test_construct(case: Case) -> None:
    run_case(case)


def test_sets_come_back_in_the_order_of_their_tables() -> None:
    there = {8, 16, 0, 24}

    def program(x):
        folded, more = {-3, (6 % 5), 5}, set(there)
        more |= {40, 48, 56}
        return x + 1, folded, more, frozenset(more), set([17, 1, 2, 3, 4])

    compiled = dovetail_capture.optimize(program, lambda gm, inputs: gm.forward)
    x = torch.ones(2)
    for got, expected in zip(compiled(x)[1:], program(x)[1:], strict=True):
        assert list(got) == list(expected)


def test_attributes_of_an_ordered_dict_that_was_there() -> None:
    def program(x, table):
        copies = [vars(copy.copy(table)), vars(copy.deepcopy(table)), vars(table.copy())]
        is_dict = isinstance(table, dict) and table == {"a": 1} and len(table) == 1
        return x + 1, hasattr(table, "note"), getattr(table, "note", None), copies, is_dict

    compiled = dovetail_capture.optimize(program, lambda gm, inputs: gm.forward)
    x, table = torch.ones(2), collections.OrderedDict(a=1)
    for note in (None, [1], [2], None):
        if note is not None:
            table.note = note
        elif hasattr(table, "note"):
            del table.note
        assert compiled(x, table)[1:] == program(x, table)[1:]
