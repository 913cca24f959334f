"""What a program lets go of is freed at once, by reference counts, though it was compiled."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import dovetail

BACKENDS = ("eager", "aot_eager", "inductor")
Compile = Callable[[Any], Any]


@pytest.fixture(params=BACKENDS)
def compiled(request: pytest.FixtureRequest) -> Iterator[Compile]:
    """Compiles with one backend, while there is no cyclic collection."""
    gc.collect()
    gc.disable()
    try:
        yield lambda target: dovetail.compile(target, backend=request.param)
    finally:
        gc.enable()


def model() -> nn.Sequential:
    return nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 4))


def weights_of(module: nn.Module) -> Callable[[], list[str]]:
    """The names of the parameters and buffers that are still alive."""
    tensors = [*module.named_parameters(), *module.named_buffers()]
    alive = {name: weakref.ref(tensor) for name, tensor in tensors}
    return lambda: [name for name, tensor in alive.items() if tensor() is not None]


X = torch.ones(2, 8)


def calling(module: nn.Module) -> Callable[[Tensor], Tensor]:
    """A function that closes over a module."""
    return lambda x: module(x)


def step_of(module: nn.Module, optimizer: torch.optim.Optimizer) -> Callable[[Tensor], Tensor]:
    """A step of training."""

    def step(x: Tensor) -> Tensor:
        loss = module(x).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    return step


class Broken(nn.Module):
    """A graph break in the middle."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        y = self.first(x)
        dovetail.graph_break()
        return self.second(y)


class Counting(nn.Module):
    """One that writes to itself and to a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(8)
        self.calls = 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return self.norm(x) * self.calls


class Raising(nn.Module):
    """A graph that raises for its data."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(4, 8)

    def forward(self, x: Tensor) -> Tensor:
        return self.table(x.long() + 4).sum()


@pytest.mark.parametrize("make", [model, Broken, Counting])
@pytest.mark.parametrize("train", [False, True])
def test_a_module(make: Callable[[], nn.Module], train: bool, compiled: Compile) -> None:
    module = make()
    alive = weights_of(module)
    call = compiled(module)
    for _ in range(3):
        if train:
            call(X).sum().backward()
        else:
            with torch.no_grad():
                call(X)
    del module
    assert alive()
    del call
    assert alive() == []


def test_a_bound_method(compiled: Compile) -> None:
    class Trainer:
        def __init__(self) -> None:
            self.net = model()

        def step(self, x: Tensor) -> Tensor:
            return self.net(x)

    trainer = Trainer()
    alive = weights_of(trainer.net)
    step = compiled(trainer.step)
    step(X).sum().backward()
    del trainer
    assert alive()
    del step
    assert alive() == []


def test_a_forward_compiled_in_place(compiled: Compile) -> None:
    """(The module holds its compiled forward, which holds the module: a cycle of the program's.)"""
    module = model()
    alive = weights_of(module)
    module.forward = compiled(module.forward)
    module(X)
    del module.forward, module
    assert alive() == []


def test_a_function_that_closes_over_a_module(compiled: Compile) -> None:
    def over(module: nn.Module) -> Callable[[Tensor], Tensor]:
        def inner(x: Tensor) -> Tensor:
            return module(x).relu()

        def outer(x: Tensor) -> Tensor:
            return inner(x) + 1

        return outer

    module = model()
    alive = weights_of(module)
    call = compiled(over(module))
    call(X)
    del module
    assert alive()
    del call
    assert alive() == []


@pytest.mark.parametrize("how", ["argument", "in a list", "in a function", "global", "method"])
def test_a_module_that_the_compiled_function_does_not_hold(how: str, compiled: Compile) -> None:
    """The function lives on, and works for the next one."""
    with torch.no_grad():
        use_and_drop(how, compiled)


def use_and_drop(how: str, compiled: Compile) -> None:
    module = model()
    alive = weights_of(module)
    given: dict[str, Any] = {
        "argument": module,
        "in a list": [module],
        "in a function": calling(module),
        "global": None,
        "method": module.forward,
    }

    def apply(x: Tensor, f: Any) -> Tensor:
        if f is None:
            return NET(x)  # type: ignore[name-defined]  # noqa: F821
        return f[0](x) if isinstance(f, list) else f(x)

    call = compiled(apply)
    argument = given.pop(how)
    given.clear()
    if how == "global":
        globals()["NET"] = module
    wanted = apply(X, argument)
    assert torch.allclose(call(X, argument), wanted) and torch.allclose(call(X, argument), wanted)
    del module, argument
    globals().pop("NET", None)
    assert alive() == []
    for _ in range(3):
        other = model()
        alive = weights_of(other)
        globals()["NET"] = other
        argument = {"in a list": [other], "global": None}.get(how, other)
        assert torch.allclose(call(X, argument), other(X))
        del other, argument
        globals().pop("NET", None)
        assert alive() == []


def test_many_models_through_one_function(compiled: Compile) -> None:
    """Whatever address a new one gets, it is never taken for one that died."""

    def apply(x: Tensor, module: nn.Module) -> Tensor:
        return module(x) * module.scale

    call = compiled(apply)
    for number in range(12):
        module = nn.Linear(8, 8)
        module.scale = number
        assert torch.allclose(call(X, module), apply(X, module))


def test_saved_tensors_go_with_the_result(compiled: Compile) -> None:
    module = model()
    alive = weights_of(module)
    call = compiled(module)
    x = X.clone().requires_grad_()
    y = call(x)
    inputs = weakref.ref(x)
    del module, call, x
    assert alive() and inputs() is not None  # the backward needs them
    del y
    assert alive() == [] and inputs() is None


def test_an_input_goes_after_the_call(compiled: Compile) -> None:
    call = compiled(lambda x: x.sin() + 1)
    x = X.clone()
    alive = weakref.ref(x)
    y = call(x)
    del x
    assert alive() is None and y.shape == (2, 8)


def test_an_error_keeps_what_its_traceback_holds_and_no_more(compiled: Compile) -> None:
    module = Raising()
    alive = weights_of(module)
    call = compiled(module)
    with pytest.raises(IndexError) as caught:
        call(X)
    del module, call
    caught._excinfo = None
    del caught
    assert alive() == []


@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.Adam])
def test_a_training_step_with_its_optimizer(kind: Any, compiled: Compile) -> None:
    module = model()
    alive = weights_of(module)
    optimizer = kind(module.parameters(), lr=0.1)

    call = compiled(step_of(module, optimizer))
    for _ in range(3):
        call(X)
    state = [weakref.ref(t) for s in optimizer.state.values() for t in s.values()]
    del call, module
    # The optimizer is in a cycle of its own (hooks that profile its step).
    del optimizer
    gc.collect()
    assert alive() == [] and not [ref for ref in state if ref() is not None]


def test_a_compiled_call_that_outlives_its_wrapper() -> None:
    """A method of it, say: it still compiles."""
    call = dovetail.compile(model(), backend="eager").forward
    assert call(X).shape == (2, 4)
    assert call.capture_context.log.counters["graph"] == 1


def test_weights_that_are_swapped(compiled: Compile) -> None:
    """PyTorch swaps no tensor that has weak references."""
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4)).eval()
    run = compiled(model)
    before = torch.__future__.get_swap_module_params_on_conversion()
    torch.__future__.set_swap_module_params_on_conversion(True)
    try:
        for dtype in (torch.float64, torch.float32, torch.float64):
            for _ in range(2):
                x = torch.randn(2, 3, dtype=model[0].weight.dtype)
                run(x).sum().backward()
                torch.testing.assert_close(run(x), model(x))
            model.zero_grad()
            weight = model[0].weight
            model.to(dtype)
            assert model[0].weight is weight and weight.dtype is dtype
            given = {k: v + 1 for k, v in model.state_dict().items()}
            model.load_state_dict(given)
            x = torch.randn(2, 3, dtype=dtype)
            torch.testing.assert_close(run(x), model(x))
    finally:
        torch.__future__.set_swap_module_params_on_conversion(before)
