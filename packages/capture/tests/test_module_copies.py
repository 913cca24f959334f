"""`copy.deepcopy` and `copy.copy` of modules in captured code: as without capture, in one graph
unless a copied parameter leaves the frame together with what was computed from it."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from construct_cases import CountingBackend, same
from dovetail_capture import optimize
from torch import nn


class Memory:
    """Copied by its own rules: the parts it shares with others stay shared."""

    def __init__(self, table: dict[str, Any]) -> None:
        self.table, self.copies = table, 0

    def __deepcopy__(self, memo: Any) -> Memory:
        new = Memory(copy.deepcopy(self.table, memo))
        new.copies = self.copies + 1
        return new


class Stated:
    """Says itself what its state is."""

    def __init__(self, v: Any) -> None:
        self.v, self.cache = v, [1, 2]

    def __getstate__(self) -> dict[str, Any]:
        return {"v": self.v}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.v, self.cache = state["v"], []


class Net(nn.Module):
    """Tied and frozen parameters, buffers, hooks, and parts of other classes."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = nn.Linear(3, 3), nn.Linear(3, 3)
        self.second.weight = self.first.weight
        self.first.bias.requires_grad_(False)
        self.norm = nn.BatchNorm1d(3)
        self.extras = nn.ParameterList([nn.Parameter(torch.ones(3))])
        self.register_buffer("steps", torch.zeros(1))
        self.register_buffer("none", None)
        self.table = {"k": [1]}
        self.memory, self.stated = Memory(self.table), Stated([3])
        self.dropout = nn.Dropout(0.5).eval()
        self.me = [self]
        self.second.register_forward_hook(lambda module, args, result: result * 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.steps += 1
        return self.dropout(self.second(torch.relu(self.norm(self.first(x)))) + self.extras[0])


def facts(result: Any) -> list[Any]:
    """What `same` does not ask of modules: of which kind their tensors and parts are."""
    found: list[Any] = []
    for part in result if isinstance(result, tuple) else (result,):
        if isinstance(part, nn.Module):
            names = [*part.named_parameters(remove_duplicate=False), *part.named_buffers()]
            found += [
                (name, type(t).__name__, t.requires_grad, t.is_leaf, t.grad is None, vars(t))
                for name, t in names
            ]
            found += [(name, m.training, sorted(vars(m))) for name, m in part.named_modules()]
    return found


def inside(x, net):
    new = copy.deepcopy(net)
    y = new(x)
    return y, new.first.weight is new.second.weight, new.first.weight is net.first.weight


def kinds(x, net):
    new = copy.deepcopy(net)
    names = [name for name, _ in new.named_parameters()]
    parameters = [isinstance(p, nn.Parameter) and p.is_leaf for p in new.parameters()]
    shared = new.memory.table is new.table, new.me[0] is new, new.memory.copies, new.stated.cache
    return x + 1, names, parameters, shared, new.training, new.dropout.training


def leaves_the_frame(x, net):
    return x + 1, copy.deepcopy(net)


def shallow(x, net):
    new = copy.copy(net)
    new.training = False
    return new(x), new, new.first is net.first, net.training


def averaged(x, net):
    new = copy.deepcopy(net)
    with torch.no_grad():
        for p, q in zip(new.parameters(), net.parameters(), strict=True):
            p.mul_(0.9).add_(q, alpha=0.2)
    return x + 1, new.eval()


def copy_of_a_copy(x, net):
    new = copy.deepcopy(copy.deepcopy(net))
    return new(x), new.memory.copies


def kept(x, net):
    net.__dict__["kept"] = copy.deepcopy(net.first)
    return x * 2, net.kept


def inner_step(x, net):
    new = copy.deepcopy(net)
    parameters = [p for p in new.parameters() if p.requires_grad]
    return torch.autograd.grad(new(x).sum(), parameters)


def of_a_parameter(x, net):
    p, q = copy.deepcopy((net.first.bias, net.first.bias))
    return x * p, p is q, type(p).__name__, p.requires_grad, copy.deepcopy(net.first.weight)


def of_methods(x, net):
    both = copy.deepcopy({"call": net.forward, "plain": torch.sin, "own": lambda t: t + 1})
    return both["call"](x) + both["own"](x), both["call"].__self__ is net


def used_and_leaving(x, net):
    new = copy.deepcopy(net)
    return new(x), new


def with_a_lock(x, net):
    net.__dict__["lock"] = threading.Lock()
    try:
        return copy.deepcopy(net)(x)
    except TypeError:
        return x - 1


def in_vmap(x, net):
    return torch.vmap(lambda row: copy.deepcopy(net.first)(row))(x)


def not_frozen(x, net):
    new = copy.deepcopy(net.first)
    new.requires_grad_(False)
    return new(x), new


def run(call: Callable[..., Any], needs: bool, grad: bool) -> Any:
    net, seen = Net(), []
    with torch.set_grad_enabled(grad):
        for _ in range(2):
            x = torch.arange(6.0).reshape(2, 3).requires_grad_(needs)
            result = call(x, net)
            gradient = None
            first = result[0] if isinstance(result, tuple) else result
            if first.requires_grad:
                first.sum().backward()
                gradient = x.grad, [p.grad for p in net.parameters()]
            seen.append((result, facts(result), gradient))
    return seen, net, facts(net)


CASES = [
    (inside, 1, 0), (kinds, 1, 0), (leaves_the_frame, 1, 0), (shallow, 1, 0), (averaged, 1, 0),
    (copy_of_a_copy, 1, 0), (of_a_parameter, 1, 0), (of_methods, 1, 0),
]  # fmt: skip


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("needs", [False, True])
@pytest.mark.parametrize(("function", "graphs", "breaks"), CASES)
def test_copies(
    function: Callable[..., Any], graphs: int, breaks: int, needs: bool, grad: bool
) -> None:
    captured = optimize(function, backend := CountingBackend())
    log = captured.capture_context.log
    assert same(run(function, needs, grad), run(captured, needs, grad)), log.as_text()
    assert (len(backend.graphs), len(log.breaks)) == (graphs, breaks), log.as_text()


@pytest.mark.parametrize("repeats", range(1, 6))
def test_no_copy_is_taken_for_that_of_another_object(repeats: int) -> None:
    def block() -> nn.Module:
        inner = nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 2), nn.ReLU())
        holder = nn.ModuleDict({"inner": inner})
        holder.shapes = [(8,), (8,)]
        return holder

    last = nn.Module()
    last.register_buffer("scale", torch.ones(3))
    last.keys = ["scale"]
    net = nn.ModuleDict({"all": nn.Sequential(*(block() for _ in range(repeats))), "last": last})
    copied = optimize(lambda net: copy.deepcopy(net), CountingBackend(), fullgraph=True)(net)
    parts = zip(net.named_modules(), copied.named_modules(), strict=True)
    for (name, part), (_, new) in parts:
        assert vars(part).keys() == vars(new).keys(), name
        for key, held in vars(part).items():
            assert type(held) is type(vars(new)[key]), (name, key)
            assert repr(held) == repr(vars(new)[key]), (name, key)


def test_an_inner_step_of_learning() -> None:
    captured = optimize(inner_step, backend := CountingBackend(), fullgraph=True)
    for _ in range(2):
        x = torch.arange(6.0).reshape(2, 3)
        assert same(inner_step(x, Net()), captured(x, Net()))
    assert len(backend.graphs) <= 2  # one for a module, one for all others


@pytest.mark.parametrize("function", [kept, used_and_leaving, with_a_lock, in_vmap, not_frozen])
@pytest.mark.parametrize("grad", [False, True])
def test_what_may_break(function: Callable[..., Any], grad: bool) -> None:
    captured = optimize(function, CountingBackend())
    log = captured.capture_context.log
    assert same(run(function, True, grad), run(captured, True, grad)), log.as_text()
    broken = grad or function is not used_and_leaving
    assert bool(log.breaks) == (broken and function is not kept), log.as_text()
