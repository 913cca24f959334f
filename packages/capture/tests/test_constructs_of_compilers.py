"""Constructs that programs written for other compilers use: keys known by identity, what dunder
methods may give, tensors and arrays of lists, names of `typing`, filters of warnings.
"""

# ruff: noqa  (programs as users write them, odd ones included)

from __future__ import annotations

import collections
import functools
import inspect
import itertools
import os
import typing
import warnings

import pytest
import torch
from dovetail_capture import optimize
from construct_cases import Case, CountingBackend, Table, run_case, same

np = pytest.importorskip("numpy")
construct = Table()
any_graphs = construct(graphs=None, breaks=None)
HELD = torch.arange(3.0)


def in_set(a, b, c):
    return a + len({HELD, a, b, c})


def in_dict(a, b, c):
    found = {(a, 1): 2.0}
    return a + found.get((b, 1), 5.0), (c in {a: 1})


def in_loop(a, b, c):
    seen, count = set(), 0
    for item in (a, b, c):
        if item not in seen:
            seen.add(item)
            count += 1
    return a + count


class Plain:
    pass


def by_object(a, b, c):
    return {a: 1, b: 2, c: 3}[a] + torch.ones(1)


@pytest.mark.parametrize("program", [in_set, in_dict, in_loop, by_object])
def test_keys_by_identity_stay_apart(program) -> None:
    make = Plain if program is by_object else lambda: torch.arange(3.0)
    x, y, z = make(), make(), make()
    backend = CountingBackend()
    run = optimize(program, backend, fullgraph=True)
    for arguments in ((x, y, z), (y, x, z), (x, x, x), (z, z, z), (x, y, y), (x, y, x)):
        assert same(run(*arguments), program(*arguments)), arguments
    assert len(backend.graphs) <= 5
    if program is in_set:
        assert same(run(HELD, HELD, HELD), program(HELD, HELD, HELD))


class Says:
    def __init__(self, answer):
        self.answer = answer

    def __bool__(self):
        return self.answer


class Long:
    def __init__(self, length):
        self.length = length

    def __len__(self):
        return self.length


@any_graphs
def truths_of_objects(x):
    found = []
    for made in (
        Says(True),
        Says(1),
        Says(None),
        Long(0),
        Long(2),
        Long(-1),
        Long(2.5),
        Long(True),
    ):
        try:
            found.append(x + 1 if made else x - 1)
            found.append(len(made) if isinstance(made, Long) else None)
        except (TypeError, ValueError) as error:
            found.append((type(error), str(error)))
    return found


class All(type):
    def __instancecheck__(cls, instance):
        return not isinstance(instance, str)


class Anything(metaclass=All):
    pass


@construct()
def instances_by_metaclass(x):
    return isinstance(x, Anything), isinstance(3, Anything), isinstance("a", Anything), x + 1


class Counted:
    def __init__(self, items):
        self.items, self.taken = items, 0

    def __iter__(self):
        return self

    def __next__(self):
        self.taken += 1
        if self.taken > len(self.items):
            raise StopIteration(self.taken)
        return self.items[self.taken - 1]


@construct()
def returned_by_iterators(x):
    def outer():
        last = yield from Counted([x, x + 1])
        yield last

    return list(outer())


class Stack(list):
    pass


@construct()
def extended_by_themselves(x):
    one, two = Stack([x, 1]), collections.deque([1, 2], maxlen=3)
    one.extend(one)
    one += one
    one[1:1] = one
    two.extend(two)
    return one, two, x + len(one)


class Doubled:
    def __set__(self, owner, value):
        owner.__dict__["field"] = 2 * value


class Written:
    field = Doubled()
    other = Doubled()


@construct()
def descriptors_without_get(x):
    made = Written()
    before = made.other is Written.__dict__["other"]
    made.field = 10
    return x + made.field, before


@construct(make=lambda: (torch.arange(6.0).reshape(2, 3), {"a": 1}))
def names_of_typing(x, mapping):
    return (
        isinstance(mapping, typing.Mapping), isinstance(mapping, typing.Sequence), typing.List[int],
        typing.Optional[torch.Tensor], typing.Callable[[int], str], typing.Tuple[int, ...],
        typing.Union[int, str] == typing.Union[str, int], torch.Tensor.shape.__get__(x),
        os.fspath("here"), sorted(vars()), x + 1,
    )  # fmt: skip


@construct(graphs=1, breaks=0)
def containers_by_their_aliases(x):
    named = dict[str, torch.Tensor](a=x, b=x + 1)
    kept = collections.defaultdict[str, list](list)
    kept["a"].append(named["b"])
    return named, list[int]((1, 2)), tuple[int, ...]([3]), set[str]("ab"), kept, type(named) is dict


@construct(graphs=1, breaks=0)
def marks_of_recorded_graphs(x):
    torch.compiler.cudagraph_mark_step_begin()
    return x + 1


@construct()
def signatures_of_closures(x):
    def two(a, b=2, *, c=3, **rest):
        return a + b

    told = inspect.signature(two)
    return x + len(told.parameters), list(told.parameters), told.bind(1, 2).arguments


def test_signature_of_a_closure_that_is_given() -> None:
    def checked(function, values):
        unknown = set(values) - set(inspect.signature(function).parameters)
        if unknown:
            raise ValueError(f"{sorted(unknown)}")
        return function(**values)

    run = optimize(checked, CountingBackend(), fullgraph=True)
    x = torch.ones(2)
    assert same(run(lambda a, b: a - b, {"a": x, "b": x}), x - x)
    loose = optimize(checked, CountingBackend())
    with pytest.raises(ValueError, match="c"):
        loose(lambda a, b: a - b, {"a": x, "c": x})


@construct(make=lambda: (2, 3.5, torch.zeros(())))
def numbers_into_a_tensor(a, b, out):
    return torch.add(a, b, out=out) * 2, torch.sub(a, b, alpha=2, out=out)


@construct(make=lambda: (torch.tensor([1.5, 2.5], dtype=torch.float64, requires_grad=True),))
def tensors_of_tensors(x):
    return (
        torch.tensor(x, dtype=torch.float32), torch.tensor([x[0], x[1]]), torch.tensor(x).requires_grad,
        torch.tensor([[x[0], 1], [2.5, x[1]]]), torch.tensor(data=x[0]), torch._shape_as_tensor(x),
    )  # fmt: skip


@construct()
def tensors_of_old_classes(x):
    return (
        torch.LongTensor([1, 2]), torch.FloatTensor([[1.0, 2], [3, 4]]), torch.Tensor([1, 2]),
        torch.Tensor(2, 3).shape, torch.BoolTensor([True]), torch.IntTensor(2).shape, torch.Tensor(x.shape).shape,
        torch.DoubleTensor([x.shape[0]]), torch.Tensor().shape, torch.return_types.max((x, x + 1)),
    )  # fmt: skip


@any_graphs
def old_classes_of_other_numbers(x):
    found = [x]
    for make in (
        lambda: torch.LongTensor([1.5]),
        lambda: torch.tensor([x[0, 1] + 0.5], dtype=torch.int64),
    ):
        try:
            found.append(make())
        except (TypeError, ValueError) as error:
            found.append(str(error))
    return found


@construct()
def filters_of_warnings(x):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        y = x.sin()
    return y + 1


def arrays():
    return np.arange(6, dtype=np.float64).reshape(2, 3), np.arange(6).reshape(2, 3)


@construct(make=arrays)
def more_of_numpy(a, b):
    return (
        np.meshgrid(a[0], b[0]), np.meshgrid(a[0], b[:, 0], indexing="ij"), np.take_along_axis(a, b % 2, 1),
        np.take_along_axis(a, np.array([-1, 2]), None), np.repeat(a, 2), a.repeat(3, 0), np.split(a, 3, axis=1),
        np.fliplr(a).copy(), np.flipud(b) + 0, np.rot90(a) * 1, np.diag(a, 1).copy(), np.atleast_2d(a[0]), np.column_stack([a[0], b[0]]),
        np.dstack([a, b]), np.nan_to_num(a * float("nan")), np.kron(a, a), np.count_nonzero(a, axis=1), np.inner(a, b),
        np.ptp(b, axis=1), np.issubdtype(b.dtype, np.integer), a.imag,
        np.full_like(a.astype(np.float32), 2.4, dtype=float),
    )  # fmt: skip


@construct(make=arrays)
def arrays_of_arrays(a, b):
    return (
        np.array([a, b]), np.array([a[0], [1, 2, 3]]), np.array([[a[0, 0], 1.0], [2, b[0, 1]]]),
        np.array([a, a], dtype=np.float32), np.asarray([b[0], b[1]]), torch.tensor(a, dtype=torch.float32),
        torch.as_tensor(b, dtype=torch.int32),
    )  # fmt: skip


@construct(graphs=None, breaks=None, make=lambda: (*arrays(), torch.ones(2, 3)))
def arrays_with_tensors(a, b, x):
    found = [x.numpy(force=True), (x * 2).requires_grad_().numpy(force=True)]
    for compute in (
        lambda: x + a,
        lambda: x * b,
        lambda: a + x,
        lambda: a / x,
        lambda: x < a,
        lambda: x - b,
    ):
        try:
            found.append(compute())
        except TypeError as error:
            found.append(str(error))
    return found


def _tried(call):
    try:
        found = call()
        return list(itertools.islice(found, 3)) if hasattr(found, "__next__") else found
    except Exception as error:
        return type(error), str(error)


@any_graphs
def containers_called_with_too_much(x):
    found = []
    for make in (list, dict, set, frozenset, tuple, collections.OrderedDict, collections.deque):
        for name in (
            "copy",
            "clear",
            "pop",
            "add",
            "append",
            "insert",
            "update",
            "keys",
            "index",
            "union",
        ):
            for arguments in ((), (1,), ([], []), (1, 2, 3)):
                method = getattr(make(), name, None)
                if method is not None:
                    found.append(_tried(lambda: method(*arguments)))
        found.append(_tried(lambda: make([], [], [], [])))
        found.append((make().__eq__(2.5), make().__ne__(make())))
    return found, x + 1


@construct(make=lambda: (torch.ones(2), None, {"a": 1}))
def functions_called_with_odd_arguments(x, key, mapping):
    calls = (
        lambda: sorted([2, 1], key=key), lambda: min([2, 1], key=key), lambda: max(2, 1, key=key),
        lambda: sorted([1], keys=1), lambda: len([], []), lambda: next(1), lambda: next([1]), lambda: reversed({1}),
        lambda: reversed(iter([1])), lambda: reversed(x), lambda: iter(1, 2), lambda: getattr(x, 1),
        lambda: collections.defaultdict(1), lambda: functools.partial(1), lambda: enumerate(), lambda: zip(1),
        lambda: mapping.pop("a", default=2), lambda: mapping.get(), lambda: list(int), lambda: [1].pop(2.5),
        lambda: collections.deque([1], 1).insert(0, 2), lambda: collections.deque([1]).remove(2),
        lambda: abs(1, 2), lambda: isinstance(1), lambda: [].sort(1), lambda: {}.update({}, {}),
    )  # fmt: skip
    found = [_tried(call) for call in calls]
    numbers = [3, 1, 2]
    numbers.sort(key=key, reverse=True)
    return found, numbers, x + 1


@construct()
def kinds_by_class(x):
    half = x.type(torch.HalfTensor)
    return half, x.type("torch.DoubleTensor"), half.type(x.type())


class Joined(list):
    def __add__(self, other):
        return "joined"


class Whole(int):
    def __add__(self, other):
        return "whole"

    def __radd__(self, other):
        return "reflected"


class Often:
    def __index__(self):
        return 2

    def __eq__(self, other):
        return True

    __hash__ = None


def _extended(left, right):
    left += right
    return left


@construct(graphs=None, breaks=None)
def operators_between_odd_types(x):
    calls = (
        lambda: Joined([1]) + 2, lambda: _extended(Joined([1]), 2), lambda: _extended(Joined([1]), [2]),
        lambda: 2.5 + Whole(4), lambda: True + Whole(4), lambda: 3 + Whole(4), lambda: Whole(4) + 2.5,
        lambda: (1, 2) + x.shape, lambda: x.shape + (1,), lambda: frozenset([1]) - {2: 3}.keys(), lambda: {1} | {1: 2}.keys(),
        lambda: Joined([1]) * torch.tensor(2), lambda: torch.tensor(5) % Joined([1]), lambda: Often() * collections.deque([1]),
        lambda: Plain() in "text", lambda: Often() in {1: 2}.items(), lambda: (1, 2) in {1: 2}.items(), lambda: 3 in Plain,
        lambda: 1 in Plain(), lambda: _extended(1, None), lambda: _extended(1, {}), lambda: collections.deque() - 1,
    )  # fmt: skip
    return [_tried(call) for call in calls], x + 1


@construct()
def sets_asked_by_iterators(x):
    taken = []

    def numbers():
        for number in (1, 2, 3):
            taken.append(number)
            yield number

    one = {2, 4, 5}
    found = [one.isdisjoint(numbers()), one.issuperset(numbers()), {1}.issubset(numbers())]
    one.intersection_update([2, 4], numbers())
    one.symmetric_difference_update({9})
    one.difference_update([2], {7})
    return x + len(taken), taken, found, one


def test_sets_of_functions() -> None:
    def program(x, functions):
        return x.sin() if torch.sin in functions else x.cos()

    functions = {torch.sin, same, "a", 2.5}
    backend = CountingBackend()
    run = optimize(program, backend, fullgraph=True)
    x = torch.ones(2)
    for _ in range(2):
        assert same(run(x, functions), x.sin())
    functions.remove(torch.sin)
    functions.add(torch.cos)
    assert same(run(x, functions), x.cos())
    assert len(backend.graphs) == 2


def test_a_mark_of_each_step_is_no_case_of_its_own():
    backend = CountingBackend()
    captured = optimize(marks_of_recorded_graphs, backend)
    for _ in range(4):
        captured(torch.ones(2))
    assert len(backend.graphs) == 1


@pytest.mark.parametrize("case", construct.cases, ids=construct.names)
def test_construct(case: Case) -> None:
    run_case(case)


def test_lists_of_arrays_of_a_whole_graph() -> None:
    def program(a, x):
        return x + sum(a.tolist()[0])

    a, _ = arrays()
    run = optimize(program, CountingBackend(), fullgraph=True)
    assert same(run(a.astype(np.int64), torch.ones(2)), program(a.astype(np.int64), torch.ones(2)))
