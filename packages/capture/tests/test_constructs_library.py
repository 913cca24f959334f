"""Constructs: the standard library in its full width, and classes made inside a function.

PYTEST_DONT_REWRITE: pytest would put code of its own into the programs' assertions.
"""

# ruff: noqa  (programs as users write them, odd ones included)

from __future__ import annotations

import collections
import contextlib
import copy
import dataclasses
import enum
import functools
import inspect
import itertools
import logging
import operator
import random
import sys
import typing
import warnings
from dataclasses import dataclass, field

import dovetail_capture
import pytest
import torch
from construct_cases import Case, Table, Version, run_case

construct = Table()


# --- constants that C functions of a class make ---------------------------------------------------


@construct(graphs=1, breaks=0)
def made_by_classes(x):
    text = "abc".translate(str.maketrans("a", "z", "c"))
    numbers = float.fromhex("0x1p3"), int.from_bytes(b"ab", "big"), bytes.fromhex("00ff")
    return x * numbers[0], text, numbers, b"ab".translate(bytes.maketrans(b"a", b"z"))


# --- random --------------------------------------------------------------------------------------


@construct(graphs=None, breaks=None)
def random_numbers(x):
    random.seed(7)
    a = random.random()
    y = x * a
    b = random.randint(1, 10)
    c = random.choice([1, 2, 3])
    d = random.uniform(0, 1)
    return y + b, c, d, random.getstate()[1][:5]


@construct(graphs=None, breaks=None)
def random_order(x):
    random.seed(3)
    items = [1, 2, 3, 4]
    random.shuffle(items)
    y = x + items[0]
    picked = random.sample(range(10), 3)
    return y, items, picked, random.gauss(0, 1), random.random()


@construct(graphs=None, breaks=None)
def random_object(x):
    source = random.Random(5)
    y = x + 1
    return y * source.random(), source.randrange(5), source.choices("abc", k=2)


def dropped(x, p):
    return x * 0 if random.random() < p else x + 1


@construct(graphs=None, breaks=None)
def layer_drop(x):
    random.seed(11)
    for _ in range(4):
        x = dropped(x, 0.5)
    return x, random.random()


# --- copy ----------------------------------------------------------------------------------------


@dataclass
class Config:
    size: int = 2
    names: list = field(default_factory=list)
    table: dict = field(default_factory=lambda: {"k": [1]})


class WithCopy:
    def __init__(self, v):
        self.v = v

    def __copy__(self):
        return WithCopy(self.v + 1)

    def __deepcopy__(self, memo):
        return WithCopy(self.v + 10)


class Slotted:
    __slots__ = ("a", "b")

    def __init__(self, a, b):
        self.a, self.b = a, b


@construct()
def copies(x):
    nested = {"a": [1, (2, [3])], "c": Config(3, ["n"])}
    shallow, deep = copy.copy(nested), copy.deepcopy(nested)
    nested["a"].append(4)
    nested["c"].names.append("m")
    return x + 1, shallow, deep, nested


@construct()
def copies_with_hooks(x):
    w = WithCopy(1)
    return x + copy.copy(w).v + copy.deepcopy(w).v, [c.v for c in copy.deepcopy([w, w])]


@construct()
def copies_of_slots(x):
    s = Slotted(1, [2])
    t = copy.copy(s)
    t.a = 5
    return x + s.a + t.a, s.b is t.b, copy.deepcopy(s).b is s.b


@construct()
def deepcopy_keeps_sharing(x):
    inner = [1]
    both = copy.deepcopy([inner, inner, {"i": inner}])
    both[0].append(2)
    return x + len(both[1]), both, both[2]["i"] is both[0]


class LooksAtMemo:
    """What a deep copy of it is tells what its memo holds."""

    def __init__(self, look):
        self.look = look

    def __deepcopy__(self, memo):
        return self.look(memo)


@construct(graphs=None, breaks=None)
def copies_with_a_memo(x):
    memo, table = {}, [[1], 2]
    one = copy.deepcopy(table, memo)
    two, part = copy.deepcopy(table, memo=memo), copy.deepcopy(table[0], memo)
    return x + 1, one is two, part is one[0], memo[id(table)] is one, len(memo), one


@construct()
def copies_with_no_memo(x):
    table = [[1], 2]
    return x + 1, copy.deepcopy(table, None), copy.deepcopy(table, memo=None)


@construct(graphs=None, breaks=None)
def memos_that_are_looked_at(x):
    looks = (
        len,
        bool,
        dict,
        list,
        type,
        lambda m: "a" in m,
        lambda m: m.setdefault("a", 1),
        lambda m: m.get("a"),
        lambda m: m == {},
        lambda m: [1] if m else [2],
        lambda m: m is None,
        lambda m: [v for v in m if v == 1],
    )
    return x + 1, [copy.deepcopy(LooksAtMemo(look)) for look in looks]


@construct(graphs=None, breaks=None)
def a_memo_that_is_kept(x):
    kept = []
    copy.deepcopy([1, LooksAtMemo(kept.append)])
    return x + 1, len(kept), type(kept[0])


@construct()
def copies_of_collections(x):
    d = collections.deque([1, 2], maxlen=3)
    e, o = copy.copy(d), copy.deepcopy(collections.OrderedDict(a=[1]))
    e.append(3)
    c = copy.copy(collections.defaultdict(list, {1: [2]}))
    c[5].append(1)
    return x + len(e), d, e, o, c


# --- functools -----------------------------------------------------------------------------------


@functools.lru_cache(maxsize=None)
def cached(n):
    return n * 2


@functools.cache
def fib(n):
    return n if n < 2 else fib(n - 1) + fib(n - 2)


@functools.cache
def cached_list(n):
    return [n]


@functools.lru_cache(typed=True)
def cached_kind(n):
    return type(n).__name__


class Recipe:
    def __init__(self, names):
        self.axes = {name: [i] for i, name in enumerate(names)}


@functools.cache
def cached_recipe(names):
    return Recipe(names.split())


@functools.cache
def cached_order(names):
    recipe = cached_recipe(names)
    return [axis for axes in recipe.axes.values() for axis in axes], tuple(recipe.axes)


@construct()
def what_is_read_of_cached_objects(x):
    order, names = cached_order("b a")
    again = cached_order("b a")[0]
    return x.permute(order), names, cached_recipe("b a").axes["a"][0], order is again


@construct(graphs=None, breaks=None)
def a_cached_object_is_returned(x):
    return x * 2, cached_recipe("c d"), cached_order("c d")[0]


@construct(graphs=None, breaks=None)
def a_part_of_a_cached_object_changes(x):
    cached_recipe.cache_clear()
    cached_recipe("e f").axes["e"] += [7]
    print("a break")
    return x * len(cached_recipe("e f").axes["e"])


@construct(graphs=None, breaks=None)
def cached_objects(x):
    first, second = cached_list(3), cached_list(3)
    first.append(len(first))
    del first[2:]
    kinds = cached_kind(1), cached_kind(1.0), cached_kind(True)
    try:
        cached_list([])
    except TypeError as error:
        return x + 1, first is second, second, kinds, error


@construct()
def cached_recursion(x):
    return x * (fib(80) % 7)


class Props:
    def __init__(self, v):
        self.v = v
        self.count = 0

    @functools.cached_property
    def heavy(self):
        self.count += 1
        return self.v * 2

    def add(self, x, n, k=1):
        return x + n * k + self.v

    add_two = functools.partialmethod(add, 2)
    add_named = functools.partialmethod(add, n=3, k=2)

    @functools.singledispatchmethod
    def kind(self, arg):
        return "other"

    @kind.register
    def _(self, arg: int):
        return "int"

    @kind.register
    def _(self, arg: list):
        return "list"


@functools.singledispatch
def described(value):
    return "object"


@described.register
def _(value: int):
    return f"int {value}"


@described.register(list)
def _(value):
    return f"list of {len(value)}"


@construct()
def caches(x):
    return x + cached(3) + fib(10), cached(3)


@construct()
def cached_properties(x):
    p = Props(2)
    return x + p.heavy + p.heavy, p.count, sorted(vars(p))


@construct()
def partial_methods(x):
    p = Props(1)
    return p.add_two(x), p.add_named(x), p.add_two(x, k=3)


@construct()
def single_dispatch(x):
    return x + 1, described(3), described([1]), described("s"), described(True)


@construct()
def single_dispatch_methods(x):
    p = Props(1)
    return x + 1, p.kind(1), p.kind([]), p.kind("s")


@construct()
def ordering(x):
    a, b = Version(1), Version(2)
    return x + (a <= b) + (a > b) + (a >= a), max(a, b).n, sorted([b, a])[0].n


@construct()
def wrapped(x):
    def logged(fn):
        @functools.wraps(fn)
        def inner(*args, **kwargs):
            return fn(*args, **kwargs) + 1

        return inner

    @logged
    def work(t, k=2):
        "doc"
        return t * k

    return work(x), work.__name__, work.__doc__, work.__wrapped__(x)


@construct()
def partials(x):
    p = functools.partial(operator.add, 1)
    q = functools.partial(p)
    r = functools.partial(torch.add, alpha=2)
    return q(x), r(x, x), p.func is operator.add, q.args, r.keywords


@construct()
def comparisons_to_keys(x):
    key = functools.cmp_to_key(lambda a, b: b - a)
    return x + sorted([1, 3, 2], key=key)[0], functools.reduce(operator.mul, [1, 2, 3])


# --- itertools, operator, collections ------------------------------------------------------------


@construct()
def all_of_itertools(x):
    i = itertools
    found = [
        list(i.accumulate([1, 2, 3], operator.mul, initial=2)), list(i.chain("ab", [1])),
        list(i.chain.from_iterable([[1], [2, 3]])), list(i.combinations("abc", 2)),
        list(i.combinations_with_replacement("ab", 2)), list(i.compress("abc", [1, 0, 1])),
        list(i.islice(i.count(3, 2), 3)), list(i.islice(i.cycle("ab"), 5)),
        list(i.dropwhile(lambda v: v < 2, [1, 2, 1])), list(i.filterfalse(None, [0, 1])),
        [(k, list(g)) for k, g in i.groupby("aabbc")], list(i.pairwise([1, 2, 3])),
        list(i.islice("abcdef", 1, 5, 2)), list(i.permutations([1, 2])),
        list(i.product([0, 1], repeat=2)), list(i.repeat(7, 2)),
        list(i.starmap(pow, [(2, 3), (3, 2)])), list(i.takewhile(bool, [1, 0, 1])),
        list(i.zip_longest("ab", "c", fillvalue="-")), [list(t) for t in i.tee([1, 2], 2)],
    ]  # fmt: skip
    return x + len(found), found


@construct()
def all_of_operator(x):
    o = operator
    found = [
        o.abs(-1), o.and_(3, 1), o.attrgetter("v", "v")(Props(1)), o.concat([1], [2]),
        o.contains([1], 1), o.countOf([1, 1], 1), o.eq(1, 1), o.floordiv(7, 2), o.ge(1, 2),
        o.getitem([1], 0), o.iadd(1, 2), o.index(3), o.indexOf([1, 2], 2), o.invert(1),
        o.itemgetter(1)("ab"), o.length_hint([1]), o.lshift(1, 2), o.matmul(x, x.T).shape,
        o.methodcaller("upper")("a"), o.mod(5, 3), o.neg(1), o.not_(1), o.or_(1, 2), o.pos(1),
        o.pow(2, 3), o.rshift(4, 1), o.sub(1, 2), o.truediv(1, 2), o.truth([]), o.xor(1, 3),
        o.is_(x, x), o.is_not(x, x), o.call(len, "ab") if hasattr(o, "call") else 2,
    ]  # fmt: skip
    return o.mul(x, 2), found


Corner = collections.namedtuple("Corner", "a b", defaults=[2])


@construct()
def all_of_collections(x):
    c = collections.Counter("abca")
    c.update("b")
    c.subtract({"a": 1})
    chain = collections.ChainMap({"a": 1}, {"a": 2, "b": 3})
    o = collections.OrderedDict([("a", 1), ("b", 2)])
    o.move_to_end("a")
    o.move_to_end("a", last=False)
    popped = o.popitem(last=False)
    d = collections.defaultdict(lambda: 5)
    d["x"] += 1
    q = collections.deque([1, 2, 3], 4)
    q.rotate(1)
    q.appendleft(0)
    p = Corner(1)._replace(b=5)
    return (
        x + c["a"], c.most_common(1), c.total(), chain["a"], chain["b"], len(chain), popped, o,
        dict(d), q, q.index(3), p._asdict(), p._fields, c + collections.Counter("a"),
        c & collections.Counter("ab"), sorted(c.elements()),
    )  # fmt: skip


# --- inspect, warnings, logging, contextlib -------------------------------------------------------


def annotated(a: int, *rest, k: str = "s", **more) -> float: ...


@construct(graphs=None, breaks=None)
def inspecting(x):
    s = inspect.signature(annotated)
    names = list(s.parameters)
    bound = s.bind(1, 2, k="z")
    return (
        x + len(names), names, s.parameters["k"].default, inspect.isfunction(annotated),
        inspect.isclass(Props), inspect.getdoc(Props) is None, bound.arguments,
        inspect.ismethod(Props(1).add), callable(annotated), inspect.isgenerator(v for v in ()),
        annotated.__annotations__,
    )  # fmt: skip


@construct(graphs=None, breaks=None)
def typing_tools(x):
    hints = typing.get_type_hints(annotated)
    T = typing.TypeVar("T")
    return x + len(hints), hints, typing.get_args(list[int]), typing.cast(int, 3), T.__name__


@construct(graphs=None, breaks=None)
def warnings_and_logging(x):
    logger = logging.getLogger("dovetail.tests")
    logger.debug("value %s", 3)
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        warnings.warn("careful")
    y = x + len(seen)
    return y, str(seen[0].message) if seen else None, logger.isEnabledFor(logging.ERROR)


@contextlib.contextmanager
def managed(log, fail=False):
    log.append("in")
    try:
        yield log
    except KeyError:
        log.append("key")
    finally:
        log.append("out")


class Decorating(contextlib.ContextDecorator):
    def __init__(self, log):
        self.log = log

    def __enter__(self):
        self.log.append("in")
        return self

    def __exit__(self, *exc):
        self.log.append("out")


@construct()
def managers_of_contextlib(x):
    log = []
    with managed(log) as same, contextlib.nullcontext(3) as three:
        y = x + three + len(same)
    with managed(log):
        {}["k"]
    with contextlib.ExitStack() as stack:
        stack.enter_context(managed(log))
        stack.callback(log.append, "callback")
        stack.push(lambda *exc: log.append("pushed"))
        y = y * 2
    with contextlib.suppress(IndexError):
        [][0]
    with contextlib.closing(Closes(log)) as c:
        y = y + c.v
    return y, log


class Closes:
    v = 4

    def __init__(self, log):
        self.log = log

    def close(self):
        self.log.append("closed")


@construct()
def decorating_manager(x):
    log = []

    @Decorating(log)
    def work(t):
        return t + len(log)

    manager = Decorating(log)
    with manager:
        y = work(x)
    return y, log


@construct()
def decorated_generator_manager(x):
    log = []

    @managed(log)
    def work(t):
        return t * 2

    return work(x), work(x), log


# --- classes made inside ---------------------------------------------------------------------------


class Registry(type):
    made = []

    def __new__(mcs, name, bases, namespace, **options):
        cls = super().__new__(mcs, name, bases, namespace)
        cls.options = options
        return cls

    def __call__(cls, *args):
        instance = super().__call__(*args)
        instance.called = True
        return instance

    @property
    def title(cls):
        return cls.__name__.title()

    def __getitem__(cls, key):
        return (cls.__name__, key)

    def __len__(cls):
        return 4

    def __iter__(cls):
        return iter((1, 2))

    def __contains__(cls, item):
        return item == 3


class WithMeta(metaclass=Registry, flag=2):
    def __init__(self, v=1):
        self.v = v


class Plugin:
    registry = {}

    def __init_subclass__(cls, /, tag=None, **kwargs):
        super().__init_subclass__(**kwargs)
        cls.tag = tag


class Named:
    def __set_name__(self, owner, name):
        self.name = "_" + name

    def __get__(self, obj, owner=None):
        return self if obj is None else getattr(obj, self.name, 3)

    def __set__(self, obj, value):
        setattr(obj, self.name, value * 2)


class Field:
    size = Named()

    def __class_getitem__(cls, item):
        return (cls.__name__, item)

    def __call__(self, t):
        return t + self.size


class Sub(Plugin, tag="t"):
    pass


@construct()
def metaclasses(x):
    m = WithMeta(3)
    return (
        x + m.v, m.called, WithMeta.title, WithMeta["k"], len(WithMeta), list(WithMeta),
        3 in WithMeta, WithMeta.options, type(WithMeta) is Registry,
    )  # fmt: skip


@construct()
def class_hooks(x):
    f = Field()
    before = f.size
    f.size = 5
    return f(x), before, f.size, Field[int], Sub.tag, Field.size.name


@construct()
def local_class(x):
    class Local:
        factor = 3

        def __init__(self, v):
            self.v = v

        def scale(self, t):
            return t * self.factor + self.v

    return Local(2).scale(x)


@construct(graphs=None, breaks=None)
def local_classes_of_all_kinds(x):
    class Child(WithMeta, flag=5):
        size = Named()

    class Tagged(Plugin, tag="local"):
        pass

    @dataclass
    class Data:
        a: int
        b: list = field(default_factory=list)

    class Color(enum.Enum):
        RED = enum.auto()
        BLUE = enum.auto()

    Pair = collections.namedtuple("Pair", ["a", "b"])
    made = type("Made", (Plugin,), {"k": 4})
    c = Child(2)
    c.size = 4
    d = Data(1)
    return (
        x + c.v + c.size,
        Child.options,
        Tagged.tag,
        d.a,
        d.b,
        Color.BLUE.value,
        Pair(1, 2).b,
        made.k,
    )


# --- records ---------------------------------------------------------------------------------------


@dataclass(frozen=True, order=True)
class Frozen:
    a: int
    b: float = 2.0
    c: typing.ClassVar[int] = 9


@dataclass(slots=True, kw_only=True)
class SlottedData:
    a: int = 1
    items: list = field(default_factory=list, repr=False)

    def __post_init__(self):
        self.items.append(self.a)


@dataclass
class Child(Config):
    extra: dataclasses.InitVar[int] = 3
    total: int = field(init=False, default=0)

    def __post_init__(self, extra):
        self.total = self.size + extra


@construct()
def dataclass_features(x):
    f = Frozen(1)
    g = dataclasses.replace(f, a=2)
    try:
        f.a = 5
        failed = None
    except dataclasses.FrozenInstanceError as error:
        failed = str(error)
    s, c = SlottedData(a=4), Child(5)
    return (
        x + g.a + c.total, f < g, f == Frozen(1), hash(f) == hash(Frozen(1)), failed, repr(s),
        s.items, dataclasses.asdict(c), dataclasses.astuple(g), Frozen.c,
        [n.name for n in dataclasses.fields(c)], repr(f),
    )  # fmt: skip


@construct(graphs=None, breaks=None)
def keys_with_own_hash(x):
    table = {Frozen(1): 1, Version: 2}
    return x + table[Frozen(1)], Frozen(2) in table, {Frozen(1), Frozen(1)}


class Color(enum.Enum):
    RED = 1
    BLUE = 2

    @property
    def lower(self):
        return self.name.lower()

    @classmethod
    def first(cls):
        return cls.RED


class Mode(enum.Flag):
    A = enum.auto()
    B = enum.auto()
    BOTH = A | B


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 10


class Text(str, enum.Enum):
    ONE = "one"


@construct()
def enums(x):
    return (
        x + Color.BLUE.value + Level.HIGH, Color(1), Color["RED"], Color.first().lower, list(Color),
        Color.RED in Color, Mode.A | Mode.B, (Mode.A | Mode.B) == Mode.BOTH, bool(Mode.A & Mode.B),
        Mode.A in Mode.BOTH, Level.LOW < Level.HIGH, Level.LOW + 1, Text.ONE == "one",
        Text.ONE.upper(), Color.RED is Color.RED, {Color.RED: 1}[Color.RED], len(Color),
        Color.RED.name, isinstance(Level.LOW, int), Color.__members__["BLUE"] is Color.BLUE,
    )  # fmt: skip


class Movie(typing.TypedDict, total=False):
    name: str
    year: int


class Point(typing.NamedTuple):
    a: int
    b: int = 3

    def total(self):
        return self.a + self.b


@typing.runtime_checkable
class Sized(typing.Protocol):
    def size_of(self) -> int: ...


class HasSize:
    def size_of(self):
        return 3


@construct()
def typed_records(x):
    m = Movie(name="n", year=3)
    p = Point(1)
    a, b = p
    return (
        x + m["year"] + p.total(), m, p, p._replace(a=4), a + b, p == (1, 3), p[0], len(p),
        isinstance(HasSize(), Sized), isinstance(p, tuple), p._asdict(), Point._fields,
        Point._make([5, 6]), isinstance(3, Sized),
    )  # fmt: skip


@construct()
def matching_classes(x):
    found = []
    for subject in (Point(1, 2), Frozen(3), Color.RED, {"a": 1, "b": 2}, [1, 2, 3], "s", 4.5, None):
        match subject:
            case Point(a=1, b=second):
                found.append(second)
            case Frozen(first, b=2.0):
                found.append(first)
            case Color.RED:
                found.append("red")
            case {"a": int(n), **rest}:
                found.append((n, rest))
            case [one, *others] if len(others) == 2:
                found.append(others)
            case str() | float() as both:
                found.append(both)
            case None:
                found.append(None)
    return x + len(found), found


@construct()
def heaps(x):
    import heapq

    heap = [5, 2, 8]
    heapq.heapify(heap)
    heapq.heappush(heap, 1)
    first = heapq.heappop(heap)
    some = [heapq.nsmallest(2, heap), heapq.nlargest(2, heap), heapq.heappushpop(heap, 0)]
    pairs = []
    for i in range(4):
        heapq.heappush(pairs, (-i, x + i))
    return x + first, some, heapq.heapreplace(heap, 7), heap, heapq.heappop(pairs)[1]


@construct()
def sorted_insertion(x):
    import bisect

    items = [1, 3, 5]
    bisect.insort(items, 4)
    bisect.insort_left(items, 3)
    return x + bisect.bisect(items, 4), items


@construct()
def operators_that_change_their_argument(x):
    import operator

    items, members, table = [1], {1}, {}
    operator.iconcat(items, [2])
    operator.iadd(items, [3])
    operator.imul(items, 2)
    operator.delitem(items, 0)
    operator.setitem(items, 0, 9)
    operator.ior(members, {2})
    operator.isub(members, {9})
    operator.setitem(table, "a", 1)
    operator.ior(table, {"b": 2})
    return x + 1, items, members, table


@construct(graphs=None, breaks=None)
def packs_into_a_buffer(x):
    import struct

    buffer = bytearray(4)
    struct.pack_into("i", buffer, 0, 7)
    return x + 1, bytes(buffer)


@construct()
def vmap_of_a_scaled_sum(x):
    return torch.func.vmap(lambda row: row.sum() * 2)(x)


@construct()
def deep_copies_of_tensors(x):
    y = {"a": [x + 1], "b": (x, 2)}
    z = copy.deepcopy(y)
    z["a"][0].add_(1)
    same = copy.deepcopy([x, x])
    turned = copy.deepcopy((x * 2).t())
    return y, z, same, same[0] is same[1], turned, turned.is_contiguous()


@construct(graphs=None, breaks=1)
def deep_copies_that_share_memory(x):
    y = x * 2
    a, b = copy.deepcopy((y, y[0]))
    a.add_(1)
    return y, a, b


@construct()
def deep_copy_of_a_parameter(x):
    y = x + 1
    p = copy.deepcopy(_parameter)
    return y * p, p.is_leaf, p.requires_grad, type(p).__name__, p is _parameter


_parameter = torch.nn.Parameter(torch.ones(3))


@construct()
def deep_copy_of_a_module(x):
    y = x + 1
    net = copy.deepcopy(_layer)
    return net(y).shape, len(list(net.parameters())), net is _layer


_layer = torch.nn.Linear(3, 2)


@pytest.mark.parametrize("kind", ["number", "list", "global"])
def test_a_cached_function_that_changes_something_is_called_once(kind: str) -> None:
    def programs():
        log: list[int] = []
        total = 0

        @functools.cache
        def cached(n):
            nonlocal total
            if kind == "global":
                total += n
            else:
                log.append(n)
            return [n] if kind == "list" else n * 2

        def program(x):
            made = cached(3)
            return x * (made[0] if kind == "list" else made), total, list(log)

        return program

    eager, compiled = programs(), dovetail_capture.optimize(programs(), lambda gm, _: gm.forward)
    for _ in range(3):
        x = torch.ones(2)
        got, expected = compiled(x), eager(x)
        assert torch.equal(got[0], expected[0]) and got[1:] == expected[1:]


@pytest.mark.parametrize("case", construct.cases, ids=construct.names)
def test_construct(case: Case) -> None:
    if sys.version_info < case.since:
        pytest.skip("a construct of a later Python")
    run_case(case)
