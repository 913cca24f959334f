"""`copy.deepcopy` and `pickle` of compiled functions and modules, and of what holds one."""

from __future__ import annotations

import copy
import functools
import pickle
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import dovetail

X = torch.linspace(-1, 1, 4).reshape(2, 2)


def pickled(obj: Any) -> Any:
    return pickle.loads(pickle.dumps(obj))


COPIES: dict[str, Callable[[Any], Any]] = {"deepcopy": copy.deepcopy, "pickle": pickled}


@dovetail.compile(backend="aot_eager")
def activation(x: Tensor) -> Tensor:
    return torch.sin(x) * 2


def plain(x: Tensor) -> Tensor:
    return torch.cos(x)


@dovetail.disable
def in_python(x: Tensor) -> Tensor:
    return x + 1


class WithActivation(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear, self.activation = nn.Linear(2, 2), activation
        self.other = dovetail.compile(plain, backend="aot_eager")
        self.uncompiled = in_python

    def forward(self, x: Tensor) -> Tensor:
        return self.uncompiled(self.other(self.activation(self.linear(x))))


class ForwardCompiled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(2, 2)
        self.forward = dovetail.compile(self.forward, backend="aot_eager")

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x)


class MethodCompiled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(2, 2)

    @dovetail.compile(backend="aot_eager")
    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x)


class StepCompiled(nn.Module):
    """Its forward calls a compiled bound method, and a compiled part of it."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(2, 2)
        self.step_ = dovetail.compile(self.step, backend="aot_eager")
        self.part = dovetail.compile(nn.Linear(2, 2), backend="aot_eager", dynamic=True)

    def step(self, x: Tensor) -> Tensor:
        return self.linear(x)

    def forward(self, x: Tensor) -> Tensor:
        return self.part(self.step_(x))


class Disabled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = dovetail.disable(nn.Linear(2, 2), reason="to be seen")

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x)


class Trainer:
    """No module: it holds one and its compiled form."""

    def __init__(self) -> None:
        self.linear = nn.Linear(2, 2)
        self.compiled = dovetail.compile(self.linear, backend="aot_eager")
        self.applied = dovetail.compile(functools.partial(apply, self.linear), backend="aot_eager")

    def __call__(self, x: Tensor) -> Tensor:
        return self.compiled(x) + self.applied(x)

    def parameters(self) -> Any:
        return self.linear.parameters()


def apply(module: nn.Module, x: Tensor) -> Tensor:
    return module(x)


def compiled_linear() -> nn.Module:
    return dovetail.compile(nn.Linear(2, 2), backend="aot_eager")


HOLDERS = [
    WithActivation,
    ForwardCompiled,
    MethodCompiled,
    StepCompiled,
    Disabled,
    Trainer,
    compiled_linear,
]


@pytest.mark.parametrize("how", COPIES)
@pytest.mark.parametrize("called", [False, True], ids=["new", "called"])
@pytest.mark.parametrize("make", HOLDERS)
def test_a_copy_works_on_its_own_weights(make: Any, called: bool, how: str) -> None:
    holder = make()
    wanted = holder(X).detach() if called else None
    other = COPIES[how](holder)
    assert type(other) is type(holder)
    if wanted is not None:
        assert torch.equal(other(X), wanted)
    before = holder(X).detach().clone()
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.zero_()
    assert torch.equal(holder(X), before) and not torch.equal(other(X), before)
    other(X).sum().backward()
    assert all(p.grad is not None for p in other.parameters())
    assert all(p.grad is None for p in holder.parameters())


@pytest.mark.parametrize("how", COPIES)
def test_a_function_is_its_own_copy(how: str) -> None:
    assert COPIES[how](activation) is activation and COPIES[how](in_python) is in_python
    assert copy.copy(activation) is activation
    over = dovetail.compile(plain, backend="aot_eager", dynamic=True)
    other = COPIES[how](over)
    assert (other is over) == (how == "deepcopy")
    assert torch.equal(other(X), plain(X))
    assert other.capture_context.settings == over.capture_context.settings
    assert other.capture_context.log.counters["graph"] == 1


def test_a_local_function_is_pickled_as_little_as_without_compilation() -> None:
    def local(x: Tensor) -> Tensor:
        return x

    for function in (local, dovetail.compile(local, backend="aot_eager")):
        with pytest.raises((AttributeError, pickle.PicklingError), match="local"):
            pickle.dumps(function)


def test_a_disabled_copy_stays_disabled() -> None:
    other = copy.deepcopy(Disabled())
    with pytest.raises(Exception, match="to be seen"):
        dovetail.compile(other, backend="aot_eager", fullgraph=True)(X)


def double(module: nn.Module, args: Any, result: Tensor) -> Tensor:
    return result * 2


@pytest.mark.parametrize("how", COPIES)
def test_hooks_of_the_compiled_module_are_copied(how: str) -> None:
    module = compiled_linear()
    module.register_forward_hook(double)
    other = COPIES[how](module)
    assert torch.equal(other(X), module(X)) and torch.equal(other(X), module._orig_mod(X) * 2)


def test_a_module_that_knows_its_compiled_form() -> None:
    module = nn.Linear(2, 2)
    compiled = dovetail.compile(module, backend="aot_eager")
    module.__dict__["compiled"] = compiled
    for other in (copy.deepcopy(module), copy.deepcopy(compiled)._orig_mod):
        assert other.compiled._orig_mod is other and other is not module
        assert torch.equal(other.compiled(X), module(X))


FILE = """
import torch
import dovetail
@dovetail.compile
def activation(x):
    return torch.sin(x) * 2
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear, self.activation = torch.nn.Linear(2, 2), activation
        self.step_ = dovetail.compile(self.step, dynamic=True)
    def step(self, x):
        return self.activation(self.linear(x))
    def forward(self, x):
        return self.step_(x)
"""
LOAD = """
import pickle, sys, torch
sys.path.insert(0, sys.argv[1])
net, whole, x, wanted = pickle.load(open(sys.argv[1] + "/net.pkl", "rb"))
assert torch.allclose(net(x), wanted) and torch.allclose(whole(x), wanted)
assert net.step_.capture_context.log.counters["graph"] == 1
assert net.step_.capture_context.settings["dynamic"] is True
assert whole.capture_context.log.counters["graph"] >= 1
print("compiled anew")
"""


def test_another_process_compiles_anew(tmp_path: Path) -> None:
    (tmp_path / "net_of_a_file.py").write_text(FILE)
    sys.path.insert(0, str(tmp_path))
    try:
        net = __import__("net_of_a_file").Net()
        wanted = net(X).detach()
        whole = dovetail.compile(net)
        whole(X)
        (tmp_path / "net.pkl").write_bytes(pickle.dumps((net, whole, X, wanted)))
    finally:
        sys.path.remove(str(tmp_path))
        sys.modules.pop("net_of_a_file", None)
    done = subprocess.run(
        [sys.executable, "-c", LOAD, str(tmp_path)], capture_output=True, text=True, check=False
    )
    assert done.stdout == "compiled anew\n", done.stderr
