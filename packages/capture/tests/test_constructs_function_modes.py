"""Constructs: torch function modes, the program's own and torch's (`with torch.device(...)`)."""

# ruff: noqa  (programs as users write them, odd ones included)

from __future__ import annotations


import pytest
import torch
import torch.nn.functional as F
from dovetail_capture import optimize
from torch.overrides import TorchFunctionMode
from construct_cases import Case, CountingBackend, Table, run_case

construct = Table()


class Plain(TorchFunctionMode):
    def __torch_function__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))


class Doubling(TorchFunctionMode):
    """Doubles what sums and softmaxes give."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        if func in (torch.add, torch.Tensor.add, F.softmax):
            return result * 2
        return result


class Noting(TorchFunctionMode):
    """Notes which functions were called, with how many arguments."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def __torch_function__(self, func, types, args=(), kwargs=None):
        name = getattr(func, "__name__", "?")
        self.seen.append((name, len(args), len(kwargs or {}), len(types)))
        return func(*args, **(kwargs or {}))


class Indexing(TorchFunctionMode):
    def __torch_function__(self, func, types, args=(), kwargs=None):
        if func is torch.Tensor.__getitem__ and isinstance(args[1], int):
            return args[0].select(0, args[1]) + 100
        return func(*args, **(kwargs or {}))


class Box:
    """No tensor, and asked about operations all the same."""

    def __init__(self, tensor, told=()):
        self.tensor = tensor
        self.told = told

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        def opened(arg):
            if isinstance(arg, (list, tuple)):
                return type(arg)(map(opened, arg))
            return arg.tensor if isinstance(arg, Box) else arg

        result = func(*opened(args), **{name: opened(arg) for name, arg in (kwargs or {}).items()})
        return cls(result, (func.__name__, len(types), len(args), sorted(kwargs or {})))


class Loud(TorchFunctionMode):
    def __torch_function__(self, func, types, args=(), kwargs=None):
        if func is torch.mul:
            print("a product of", len(args))
        return func(*args, **(kwargs or {}))


class Refusing(TorchFunctionMode):
    def __torch_function__(self, func, types, args=(), kwargs=None):
        if func is torch.exp:
            raise ValueError("no exponentials")
        return func(*args, **(kwargs or {}))


@construct()
def changes_nothing(x):
    with Plain():
        y = torch.add(x, 1) * 3
    return y - 1


@construct()
def doubles_sums(x):
    with Doubling():
        y = torch.add(x, 1)
        z = y + 1
        w = 1 + x
        s = F.softmax(x, dim=0)
    return y, z, w, s, torch.add(x, 1)


@construct()
def notes_what_is_called(x):
    with Noting() as mode:
        y = torch.add(x, 1, alpha=2)
        y = y[0] - y.T.sum()
        y = F.relu(y) / 2 + F.gelu(y)
        z = torch.cat([y, y.to(torch.float64).float()])
        n = x.shape[0] + x.size(1) + x.dim()
        z = -z @ z == 1
        made = torch.zeros(3), torch.tensor([1.0, 2.0])
    return y, z, n, made, mode.seen


@construct()
def nested_modes(x):
    with Noting() as outer:
        with Doubling():
            y = torch.add(x, 1)
        with Noting() as inner:
            y = y * 2
    return y, outer.seen, inner.seen


@construct()
def changes_subscripts(x):
    with Indexing():
        return x[0], x[0:1], x[1] * 2


@construct()
def in_a_called_function(x):
    def inner(t):
        with Doubling():
            return torch.add(t, t)

    return inner(x) + x


@construct()
def under_vmap(x):
    with Indexing():
        return torch.vmap(lambda row: row[0] * 2)(x)


@construct(graphs=2, breaks=1)
def break_inside(x):
    with Doubling():
        y = torch.add(x, 1)
        print("inside")
        y = torch.add(y, 1)
    return torch.add(y, 1)


@construct(graphs=None, breaks=None)
def break_in_the_mode(x):
    y = x + 1
    with Loud():
        y = torch.mul(y, 3)
        y = y + 1
    return torch.mul(y, 2)


@construct(graphs=None, breaks=None)
def raises_in_the_mode(x):
    try:
        with Refusing():
            y = x + 1
            y = torch.exp(y)
    except ValueError as error:
        return torch.exp(x), str(error)
    return y


@construct()
def a_device(x):
    with torch.device("meta"):
        y = torch.ones(3)
        z = torch.tensor([1.0])
        w = torch.zeros(2, device="cpu")
        like = torch.ones_like(x)
        default = torch.get_default_device()
    return y.device, z.device, w, like, default, torch.get_default_device(), torch.ones(2) + x[0, 0]


@construct(graphs=2, breaks=1)
def break_inside_of_a_device(x):
    with torch.device("meta"):
        y = torch.ones(3)
        print("inside")
        z = torch.ones(3) * 2
    return y.device, z.device, torch.ones(2) + x[0, 0]


@construct()
def a_device_within_a_device(x):
    with torch.device("meta"):
        with torch.device("cpu"):
            y = torch.ones(3)
        z = torch.ones(3)
    return y + 1, z.device, torch.ones(3) * x[0, 0]


@construct()
def a_device_and_a_mode(x):
    with torch.device("meta"), Noting() as mode:
        y = torch.ones(3) * 2
    return y.device, mode.seen, x + 1


@construct(graphs=1, breaks=0)
def objects_that_are_asked(x):
    boxes = [
        torch.add(Box(x), x), torch.sub(x, other=Box(x + 1), alpha=2), x.mul(Box(x)),
        torch.stack([Box(x), x]), torch.cat((x, Box(x)), dim=0), F.softmax(Box(x), dim=0),
        F.linear(Box(x), x.repeat(2, 1)),
    ]  # fmt: skip
    return [(box.tensor, box.told) for box in boxes], F.relu(boxes[0]).told


@construct(graphs=1, breaks=0)
def is_there_a_mode(x):
    with Plain():
        inside = torch._C._is_torch_function_mode_enabled()
    return x + 1, inside, torch._C._is_torch_function_mode_enabled()


@pytest.mark.parametrize("case", construct.cases, ids=construct.names)
def test_construct(case: Case):
    run_case(case)


def test_modes_entered_outside_are_captured_and_guarded():
    def function(x):
        return torch.add(x, 1) + torch.ones(2)[0]

    backend = CountingBackend()
    captured = optimize(function, backend)
    x = torch.arange(6.0).reshape(2, 3)
    noting = Noting()
    for mode in (None, Doubling(), noting, None, noting):
        if mode is None:
            assert torch.equal(captured(x), function(x))
            continue
        with mode:
            noting.seen.clear()
            expected = function(x)
            count = len(noting.seen)
            got = captured(x)
        assert torch.equal(got, expected)
        assert noting.seen[:count] == noting.seen[count:]
    assert len(backend.graphs) == 3, captured.capture_context.log.as_text()
    targets = [str(node.target) for node in backend.graphs[1].graph.nodes]
    assert any("mul" in target for target in targets), targets


def test_a_device_entered_outside_is_guarded_by_its_value():
    def function(x):
        return torch.ones(3), x * 2

    backend = CountingBackend()
    captured = optimize(function, backend)
    for device in ("cpu", "meta", "cpu", "meta"):
        with torch.device(device):
            assert captured(torch.ones(2))[0].device.type == device
    assert len(backend.graphs) == 2
    assert captured(torch.ones(2))[0].device.type == "cpu"


def test_modes_see_the_index_that_the_program_wrote():
    def function(x, at):
        with Indexing():
            return x[at] * 2

    captured = optimize(function, CountingBackend())
    x = torch.arange(12.0).reshape(6, 2)
    for at in (2, 3, 4, 5):
        assert torch.equal(captured(x, at), function(x, at))
