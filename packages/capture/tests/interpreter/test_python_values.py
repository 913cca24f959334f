"""Python's own data and control flow around tensors: one graph, equal to eager."""

from __future__ import annotations

import collections
import dataclasses
import enum
import functools
import importlib.util
import itertools
import math
import operator
import re
import typing
import weakref
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from dovetail_capture.api import optimize

from . import programs

check = programs.check


def x() -> torch.Tensor:
    return torch.arange(12.0).reshape(3, 4)


def loops(t: torch.Tensor, n: int) -> Any:
    total = t
    for i in range(n):
        if i % 2:
            continue
        total = total + i
        if i > 4:
            break
    else:
        total = total * 2
    while n:
        n -= 1
        total = total - 1
    return total


def comprehensions(t: torch.Tensor) -> Any:
    parts = [t * i for i in range(3) if i != 1]
    table = {name: part.sum() for name, part in zip("ab", parts, strict=True)}
    unique = {i % 2 for i in range(5)}
    nested = [[a + b for a in range(2)] for b in range(2)]
    return parts, table, unique, nested, tuple(p + 1 for p in parts)


def unpacking(t: torch.Tensor) -> Any:
    first, *middle, last = t.unbind(0)
    (a, b), c = (first, last), middle[0]
    merged = {**{"a": a}, "b": b}
    listed = [*middle, *(a, b)]
    return merged, listed, c


def list_methods(t: torch.Tensor) -> Any:
    items = [t, t + 1]
    items.append(t + 2)
    items.extend([t + 3])
    items.insert(0, t - 1)
    popped = items.pop()
    items.reverse()
    del items[0]
    items[0] = t * 5
    items += [popped]
    numbers = sorted([3, 1, 2], key=lambda v: -v)
    numbers.remove(1)
    return items, popped, numbers, numbers.index(2), items[1:], len(items), items * 2


def dict_methods(t: torch.Tensor) -> Any:
    table = {"a": t}
    table["b"] = t + 1
    table.update({"c": t + 2}, d=t + 3)
    table.setdefault("e", t + 4)
    removed = table.pop("a")
    del table["b"]
    missing = table.get("zz", 0)
    ordered = collections.OrderedDict(table)
    ordered.move_to_end("c")
    counts = collections.defaultdict(list)
    counts["x"].append(t)
    return table, removed, missing, ordered, dict(counts), "c" in table, list(table.items())


def set_methods(t: torch.Tensor) -> Any:
    first, second = {1, 2, 3}, {2, 3, 4}
    first.add(9)
    first.discard(1)
    merged = first | second
    return t + len(merged), first & second, first - second, first ^ second, 9 in first


def strings(t: torch.Tensor) -> Any:
    name = f"{'a'!r:>5}{3:03d}-{'b'}"
    return t + len(name), name.split("-"), "x".join(["a", "b"]), name.upper(), f"{3}"


def closures(t: torch.Tensor) -> Any:
    count = 0

    def step(value: torch.Tensor, *, by: int = 2) -> torch.Tensor:
        nonlocal count
        count += by
        return value + count

    t = step(t)
    t = step(t, by=5)
    twice = lambda v, k=3: step(v) * k  # noqa: E731
    return twice(t), count


def arguments(a: Any, b: Any = 2, /, c: Any = 3, *rest: Any, d: Any = 4, **more: Any) -> Any:
    return a + b + c + d + sum(rest) + sum(more.values())


def calls(t: torch.Tensor) -> Any:
    return (
        arguments(t),
        arguments(t, 1, 1, 1, 1, d=0, z=3),
        arguments(*(t, 1), **{"c": 5, "k": 1}),
        functools.partial(arguments, t, c=7)(1),
        functools.reduce(operator.add, [t, t, t]),
    )


def raising(t: torch.Tensor, how: int) -> Any:
    try:
        try:
            if how == 0:
                raise ValueError("bad", 3)
            if how == 1:
                {}["missing"]
            if how == 2:
                [][3]
            if how == 3:
                getattr(t, "nothing_of_the_kind")  # noqa: B009
            if how == 4:
                raise KeyError from ValueError("x")
            t = t + 100
        except (KeyError, IndexError) as error:
            t = t + len(error.args)
            if how == 4:
                assert isinstance(error.__cause__, ValueError)
        finally:
            t = t * 2
    except ValueError as error:
        t = t + error.args[1]
    except AttributeError:
        t = t - 1
    else:
        t = t + 7
    return t


class Manager:
    def __init__(self, log: list[Any], swallow: bool) -> None:
        self.log = log
        self.swallow = swallow

    def __enter__(self) -> int:
        self.log.append("in")
        return 3

    def __exit__(self, cls: Any, error: Any, trace: Any) -> bool:
        self.log.append(None if cls is None else cls.__name__)
        return self.swallow


def with_blocks(t: torch.Tensor) -> Any:
    log: list[Any] = []
    with Manager(log, False) as k:
        t = t + k
    with Manager(log, True):
        raise RuntimeError("x")
    with Manager(log, False) as a, Manager(log, False) as b:
        return t * a * b, log
    return None


def generator(t: torch.Tensor, n: int) -> Any:
    for i in range(n):
        got = yield t + i
        if got is not None:
            t = got
    return n


def delegating(t: torch.Tensor) -> Any:
    n = yield from generator(t, 2)
    yield t * n


def generators(t: torch.Tensor) -> Any:
    sender = generator(t, 3)
    first = next(sender)
    second = sender.send(first * 10)
    return list(delegating(t)), second, next(sender), next(sender, None), sum(generator(t, 2))


def iterators(t: torch.Tensor) -> Any:
    rows = list(enumerate(zip([t, t + 1], itertools.count(5), strict=False), 1))
    chained = list(itertools.chain([t], [t + 1], *[[t + 2]]))
    mapped = list(map(lambda a, b: a * b, [t, t], [1, 2]))
    kept = list(filter(None, [0, 1, 2]))
    pairs = list(itertools.product([1, 2], repeat=2)), list(itertools.islice(range(9), 2, 5))
    return rows, chained, mapped, kept, pairs, [r for r in t], list(reversed([1, 2])), max(3, 1, 2)


class Base:
    scale = 2

    def __init__(self, value: Any) -> None:
        self._value = value

    @property
    def value(self) -> Any:
        return self._value * self.scale

    @value.setter
    def value(self, new: Any) -> None:
        self._value = new

    @classmethod
    def make(cls, value: Any) -> Any:
        return cls(value)

    @staticmethod
    def double(value: Any) -> Any:
        return value * 2

    def __getattr__(self, name: str) -> Any:
        if name.startswith("plus_"):
            return self._value + int(name[5:])
        raise AttributeError(name)

    def __add__(self, other: Any) -> Any:
        return type(self)(self._value + other)

    __radd__ = __add__

    def __len__(self) -> int:
        return 3

    def __getitem__(self, index: Any) -> Any:
        return self._value[index]

    def __contains__(self, item: Any) -> bool:
        return item == 1

    def __call__(self, other: Any) -> Any:
        return self._value - other

    def __eq__(self, other: Any) -> Any:
        return isinstance(other, Base)

    __hash__ = None  # type: ignore[assignment]


class Derived(Base):
    scale = 3

    def __init__(self, value: Any) -> None:
        super().__init__(value + 1)

    @property
    def value(self) -> Any:
        return super().value + 1

    @functools.cached_property
    def cached(self) -> Any:
        return self._value.sum()


def objects(t: torch.Tensor) -> Any:
    d = Derived.make(t)
    b = Base(t)
    b.value = t + 5
    results = [d.value, b.value, d.plus_4, (b + 1).value, (1 + b).value, len(d), d[0], 1 in d]
    results += [d(2), Base.double(t), d == b, d != b, bool(d), d.cached, d.cached]
    results += [hasattr(d, "nothing"), isinstance(d, Base), issubclass(Derived, Base)]
    del b._value
    return results, hasattr(b, "_value"), d


class Color(enum.Enum):
    RED = 1
    BLUE = "b"


class Flags(enum.IntFlag):
    A = 1
    B = 2


def enums(t: torch.Tensor) -> Any:
    picked = Color.RED if t.dim() == 2 else Color.BLUE
    both = Flags.A | Flags.B
    names = [c.name for c in Color]
    return t + Color["RED"].value, picked, Color("b"), both, Flags.A in both, names


class Point(NamedTuple):
    a: Any
    b: Any = 5


@dataclasses.dataclass
class Config:
    size: int
    items: list[Any] = dataclasses.field(default_factory=list)
    name: str = "n"

    def __post_init__(self) -> None:
        self.area = self.size * 2


def records(t: torch.Tensor) -> Any:
    p = Point(t)
    q = p._replace(b=t + 1)
    c = Config(3, name="m")
    c.items.append(t)
    names = [f.name for f in dataclasses.fields(c)]
    return p, q.b, p[0], p._fields, c, names, q._asdict()["b"], c == Config(3, [], "m")


def matching(value: Any) -> Any:
    match value:
        case {"kind": kind, **rest}:
            return kind + len(rest)
        case [a, b, *others]:
            return a + b + len(others)
        case Point(a=first, b=second):
            return first * second
        case int() | float() as number:
            return number
        case None:
            return 0
        case _:
            return -1


def matches(t: torch.Tensor) -> Any:
    values = ({"kind": t, "z": 1}, [t, 1, 2, 3], 7, None, "text")
    return [matching(value) for value in values]


def slices(t: torch.Tensor) -> Any:
    items = list(range(6))
    where = slice(1, 5, 2)
    return t[1:, ::2], items[where], items[-2:], t[..., None], t[[0, 2]], t[torch.tensor([1, 0])]


def numbers(t: torch.Tensor) -> Any:
    n = t.shape[0]
    folded = math.sqrt(n * 3) + n // 2 + -n % 5 + (n << 2) + (n**2) + abs(-n) + round(2.5)
    return t * folded, divmod(7, 2), min([3, 1]), int("7"), float(3), bool(n), n > 2 > 1, not n


def tensor_metadata(t: torch.Tensor) -> Any:
    rows, columns = t.shape
    assert t.dim() == 2 and t.dtype is torch.float32 and t.device.type == "cpu"
    if t.size(0) < t.size(-1) and t.is_floating_point() and not t.requires_grad:
        t = t.reshape(columns, rows)
    return t, t.numel(), t.shape, t.shape[-1], t.stride(), len(t), t.ndim, t.is_contiguous()


def typed(t: torch.Tensor) -> Any:
    from collections.abc import Sequence

    value: typing.Any = typing.cast("int", 3)
    return (
        t + value,
        isinstance([], Sequence),
        isinstance(t, torch.Tensor),
        isinstance(1, int | str),
    )


def identities(t: torch.Tensor) -> Any:
    same, other = [t], [t]
    return same is same, same is other, same == other if False else 0, t is same[0], (same, same)


def local_variables(t: torch.Tensor) -> Any:
    a = t + 1
    known = locals()
    del a
    return sorted(known), known["a"]


def recursion(t: torch.Tensor, n: int) -> Any:
    return t if n == 0 else recursion(t + n, n - 1)


PROGRAMS = [
    (comprehensions, ()), (unpacking, ()), (list_methods, ()), (dict_methods, ()),
    (set_methods, ()), (strings, ()), (closures, ()), (calls, ()), (with_blocks, ()),
    (generators, ()), (iterators, ()), (objects, ()), (enums, ()), (records, ()), (matches, ()),
    (slices, ()), (numbers, ()), (tensor_metadata, ()), (typed, ()),
    (local_variables, ()), (loops, (3,)), (loops, (8,)), (recursion, (5,)),
    *((raising, (how,)) for how in range(6)),
]  # fmt: skip


@pytest.mark.parametrize(
    ("program", "extra"), PROGRAMS, ids=lambda p: getattr(p, "__name__", str(p))
)
def test_program(program: Any, extra: tuple[Any, ...]) -> None:

    check(program, x(), *extra)


def test_nothing_to_compute_gives_no_graph() -> None:
    check(identities, x(), graphs=0)


PATTERN = re.compile("-")


def test_regular_expressions_and_installed_packages_are_known() -> None:
    def program(x):
        name = re.sub(r"\d+", "", "layer12") + PATTERN.sub("_", "a-b")
        found = importlib.util.find_spec("torch") is not None
        matched = re.match(r"(\w)(\w)", name)
        return x * len(name) * found, name, matched.groups()

    programs.check(program, torch.ones(2))


def test_numpy_scalars_and_functions_of_numbers() -> None:
    def program(x, scale):
        return x * np.sqrt(16) + np.float32(2) + scale, np.float64(3)

    programs.check(program, torch.ones(2), np.float64(0.5))


def test_a_weak_reference_from_outside() -> None:
    weight = torch.ones(3)
    references = [weakref.ref(weight)]

    def program(x):
        return x + 1 if references[0]() is weight else x * 5

    backend = programs.CountingBackend()
    captured = optimize(program, backend, fullgraph=True)
    for _ in range(2):
        assert torch.equal(captured(torch.ones(3)), torch.full((3,), 2.0))
    references[0] = weakref.ref(backend)
    assert torch.equal(captured(torch.ones(3)), torch.full((3,), 5.0))


def test_a_recurrent_layer() -> None:
    layer = torch.nn.LSTM(4, 5, batch_first=True, bidirectional=True)
    with torch.no_grad():
        programs.check(lambda t: layer(t)[0], torch.randn(2, 3, 4))
