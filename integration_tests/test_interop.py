"""Our back half behind PyTorch's front end: `torch.compile(model, backend="dovetail")`."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import dovetail
from dovetail.interop import dovetail_backend
from dovetail.options import Options
from dovetail.pipeline import CompilerBackend


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.LayerNorm(16), nn.Linear(16, 4))

    def forward(self, x: Tensor) -> Tensor:
        return torch.softmax(self.net(x), -1)


@pytest.mark.parametrize("backend", ["dovetail", dovetail_backend], ids=["name", "callable"])
def test_backend_behind_torch_compile(backend: object) -> None:
    model = Net()
    twin = copy.deepcopy(model)
    compiled = torch.compile(model, backend=backend, dynamic=False)  # noqa: TID251
    x = torch.randn(5, 8)
    got, expected = compiled(x), twin(x)
    torch.testing.assert_close(got, expected)
    got.pow(2).sum().backward()
    expected.pow(2).sum().backward()
    for p, q in zip(model.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(p.grad, q.grad)


def test_settings_of_the_process_hold_behind_torch_compile() -> None:
    """What the call does not say is as `dovetail.config` says."""
    seen: list[Options] = []

    class Seen(CompilerBackend):
        def __call__(self, gm: Any, example_inputs: Any) -> Any:
            seen.append(self.options)
            return super().__call__(gm, example_inputs)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dovetail.interop, "CompilerBackend", Seen)
        for options in (None, {"activation_memory_budget": 1.0}):
            with dovetail.config.patch(activation_memory_budget=0.5, freezing=True):
                compiled = torch.compile(  # noqa: TID251
                    lambda x: x * 2, backend=dovetail_backend, options=options
                )
                assert torch.equal(compiled(torch.ones(3)), torch.full((3,), 2.0))
    assert [o.activation_memory_budget for o in seen] == [0.5, 1.0]
    assert all(o.constant_weights for o in seen)


def test_modules_made_in_a_frame_after_torch_compile_has_run() -> None:
    """torch.compile patches `nn.Module.__init__` for good; capture is not to stumble over it."""
    x = torch.randn(4, 3)
    torch.compile(lambda t: t + 1, backend="eager")(x)  # noqa: TID251

    def loss(logits: Tensor, target: Tensor) -> Tensor:
        result: Tensor = nn.CrossEntropyLoss()(logits, target)
        return result

    target = torch.tensor([0, 1, 2, 0])
    compiled = dovetail.compile(loss, fullgraph=True)
    torch.testing.assert_close(compiled(x, target), loss(x, target))


def test_conditionals_that_torch_compile_captured() -> None:
    def program(x: Tensor, y: Tensor) -> Tensor:
        z: Tensor = torch.cond(x.sum() > 0, lambda a, b: (a * b).sin(), lambda a, b: a - b, (x, y))
        return z * 2

    compiled = torch.compile(program, backend="dovetail")  # noqa: TID251
    for sign in (1, -1):
        x, y = (torch.rand(4, 4) * sign).requires_grad_(), torch.rand(4, 4).requires_grad_()
        wanted = (x * y).sin() * 2 if sign > 0 else (x - y) * 2
        found = compiled(x, y)
        torch.testing.assert_close(found, wanted)
        gradients = (torch.autograd.grad(z.sum(), (x, y)) for z in (found, wanted))
        torch.testing.assert_close(*gradients)


def test_torch_compile_within_what_is_compiled() -> None:
    """There it is the function itself: its calls are part of the graph."""

    @torch.compile  # noqa: TID251
    def wrapped(t: Tensor) -> Tensor:
        return t * 2

    module: Any = torch.compile(Net())  # noqa: TID251

    def program(t: Tensor) -> Tensor:
        @torch.compile(fullgraph=True, dynamic=True)  # noqa: TID251
        def inner(u: Tensor) -> Tensor:
            return wrapped(u) + 1

        return torch.compile(nn.functional.relu)(inner(t)) + module(t).sum()  # noqa: TID251

    compiled = dovetail.compile(program, fullgraph=True)
    x = torch.ones(2, 8)
    torch.testing.assert_close(compiled(x), 3 + module._orig_mod(x).sum().expand(2, 8))
    assert dovetail.report(compiled).graphs == 1


def test_a_step_that_torch_compile_disabled_is_compiled_and_told_of() -> None:
    """torch.compile puts a wrapper around each optimizer's step, with the code of all that a user
    disables: whatever was met first, the step is compiled in parts and its break reported."""
    torch.compile(lambda t: t + 1, backend="eager")(torch.ones(2))  # noqa: TID251

    @torch.compiler.disable
    def observe(loss: Tensor) -> float:
        return loss.item()

    def losses(wrap: Any) -> tuple[list[float], Any]:
        torch.manual_seed(0)
        net, x = nn.Linear(4, 2).double(), torch.randn(8, 4, dtype=torch.float64)
        optimizer = torch.optim.LBFGS(net.parameters(), lr=0.1, max_iter=3)

        def closure() -> Tensor:
            optimizer.zero_grad()
            loss = net(x).square().sum()
            loss.backward()
            return loss

        def steps() -> list[float]:
            found = []
            for _ in range(3):
                found.append(observe(net(x).square().sum()))
                optimizer.step(closure)
            return found

        step = wrap(steps)
        return step(), step

    expected, _ = losses(lambda f: f)
    got, step = losses(dovetail.compile)
    torch.testing.assert_close(got, expected)
    told = dovetail.report(step)
    assert any(b.reason.startswith("LBFGS decides by its losses") for b in told.breaks)
    assert told.graphs > 3 and not told.plain_frames, told.as_text()


@pytest.mark.parametrize(
    ("inner", "outer"),
    [
        (torch.compile, dovetail.compile),  # noqa: TID251
        (dovetail.compile, dovetail.compile),
        (torch.compile, torch.compile),  # noqa: TID251
    ],
    ids=["theirs within ours", "ours within ours", "theirs within theirs"],
)
def test_what_is_captured_as_a_part_obeys_the_outer_call(inner: Any, outer: Any) -> None:
    ran: list[str] = []

    def backend(name: str) -> Any:
        def run(gm: torch.fx.GraphModule, example_inputs: list[Any]) -> Any:
            ran.append(name)
            return gm.forward

        return run

    doubled = inner(lambda x: x * 2, backend=backend("inner"), dynamic=False)
    in_parts = inner(lambda x: [print(end=""), x * 2][1], backend=backend("inner"), fullgraph=True)
    compiled = outer(lambda x: doubled(x + 1), backend=backend("outer"), dynamic=True)
    for size in (3, 4, 5):
        assert torch.equal(compiled(torch.ones(size)), torch.full((size,), 4.0))
    assert ran == ["outer"]
    with pytest.raises(RuntimeError):
        outer(lambda x: in_parts(x + 1), backend=backend("outer"))(torch.ones(3))
