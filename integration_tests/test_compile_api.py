"""`dovetail.compile` as a substitute for torch.compile: arguments, errors, module behaviour."""

from __future__ import annotations

import cProfile
import gc
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from dovetail_runtime import CompiledArtifact
from torch import Tensor, nn
from torch.fx import GraphModule

import dovetail
from dovetail.options import Options
from dovetail.pipeline import CompilerBackend


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.drop = nn.Dropout(0.5)

    def forward(self, x: Tensor) -> Tensor:
        return self.drop(torch.relu(self.linear(x)))


def test_decorator_with_and_without_arguments() -> None:
    @dovetail.compile
    def f(x: Tensor) -> Tensor:
        return x * 2 + 1

    @dovetail.compile(fullgraph=True)
    def g(x: Tensor) -> Tensor:
        return x.sin().cos()

    x = torch.randn(5)
    torch.testing.assert_close(f(x), x * 2 + 1)
    torch.testing.assert_close(g(x), x.sin().cos())


@pytest.mark.parametrize(
    ("arguments", "near"),
    [
        ({"mode": "reduce_overhead"}, "'reduce-overhead'"),
        ({"backend": "inductr"}, "'inductor'"),
        ({"options": {"cudagraph": True}}, "'cudagraphs'"),
    ],
)
def test_unknown_names_raise_and_name_the_near_ones(
    arguments: dict[str, object], near: str
) -> None:
    with pytest.raises(ValueError, match=near):
        dovetail.compile(lambda x: x, **arguments)  # type: ignore[call-overload]


def test_option_of_the_wrong_type() -> None:
    with pytest.raises(TypeError, match="recompile_limit"):
        dovetail.compile(lambda x: x, options={"recompile_limit": "8"})


def test_guards_can_be_filtered_and_explained() -> None:
    def f(x: Tensor) -> Tensor:
        return x * 2

    def only_tensors(guards: list) -> list[bool]:  # type: ignore[type-arg]
        return [guard.guard_type == "TENSOR_MATCH" for guard in guards]

    compiled = dovetail.compile(f, options={"guard_filter_fn": only_tensors})
    assert torch.equal(compiled(torch.ones(2)), torch.full((2,), 2.0))
    assert dovetail.explain_guards(compiled).count("guards (1)") == 1
    compiled(torch.ones(2).double())
    assert "dtype" in dovetail.recompiles(compiled)[0]
    with pytest.raises(TypeError, match="takes a function"):
        dovetail.compile(f, options={"guard_filter_fn": 3})


def test_not_callable() -> None:
    with pytest.raises(TypeError, match="int"):
        dovetail.compile(3)  # type: ignore[call-overload]


def test_disable_gives_the_model_back() -> None:
    net = Net()
    assert dovetail.compile(net, disable=True) is net


def test_module_behaves_as_its_original() -> None:
    net = Net()
    compiled = dovetail.compile(net)
    assert isinstance(compiled, nn.Module)
    assert list(compiled.state_dict()) == list(net.state_dict())
    assert compiled.linear is net.linear
    assert [id(p) for p in compiled.parameters()] == [id(p) for p in net.parameters()]
    compiled.eval()
    assert not net.training and not net.drop.training
    x = torch.randn(2, 4)
    torch.testing.assert_close(compiled(x), net(x))
    compiled.train()
    assert net.training


def test_forward_hooks_run() -> None:
    net = Net().eval()
    seen: list[int] = []

    def hook(module: nn.Module, args: tuple[Tensor], output: Tensor) -> Tensor:
        seen.append(1)
        return output + 1

    handle = net.register_forward_hook(hook)
    x = torch.randn(2, 4)
    expected = net(x)
    compiled = dovetail.compile(net)
    seen.clear()
    torch.testing.assert_close(compiled(x), expected)
    assert len(seen) == 1
    handle.remove()
    torch.testing.assert_close(compiled(x), expected - 1)


def test_train_and_eval_recompile_once_each() -> None:
    net = Net()
    compiled = dovetail.compile(net)
    x = torch.randn(8, 4)
    for _ in range(3):
        net.eval()
        torch.testing.assert_close(compiled(x), net(x))
        net.train()
        torch.manual_seed(3)
        got = compiled(x)
        torch.manual_seed(3)
        torch.testing.assert_close(got, net(x))
    assert dovetail.report(compiled).graphs == 2


def test_parameter_replaced_is_seen() -> None:
    net = Net().eval()
    compiled = dovetail.compile(net)
    x = torch.randn(2, 4)
    compiled(x)
    net.linear.weight = nn.Parameter(torch.zeros(4, 4))
    torch.testing.assert_close(compiled(x), net(x))
    with torch.no_grad():
        net.linear.weight.fill_(2.0)
    torch.testing.assert_close(compiled(x), net(x))


def test_shapes_and_grad_modes() -> None:
    @dovetail.compile
    def f(x: Tensor) -> Tensor:
        return torch.softmax(x, -1) * 3

    for size in (3, 5, 1, 3):
        x = torch.randn(2, size)
        torch.testing.assert_close(f(x), torch.softmax(x, -1) * 3)
        x.requires_grad_()
        y = f(x)
        assert y.requires_grad
        (grad,) = torch.autograd.grad(y.pow(2).sum(), x)
        (expected,) = torch.autograd.grad((torch.softmax(x, -1) * 3).pow(2).sum(), x)
        torch.testing.assert_close(grad, expected)
        with torch.no_grad():
            assert not f(x).requires_grad


def test_input_mutation_and_aliasing() -> None:
    @dovetail.compile
    def f(x: Tensor, out: list[Tensor]) -> tuple[Tensor, Tensor]:
        x.add_(1)
        out.append(x * 2)
        return x, x.view(-1)

    x, out = torch.zeros(2, 3), []
    same, view = f(x, out)
    assert same is x and view.data_ptr() == x.data_ptr()
    assert x.eq(1).all() and out[0].eq(2).all() and len(out) == 1


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "dovetail"])
def test_backend_ladder(backend: str) -> None:
    net = Net().eval()
    compiled = dovetail.compile(net, backend=backend)
    x = torch.randn(2, 4)
    torch.testing.assert_close(compiled(x), net(x))


def test_callable_backend_gets_an_fx_graph() -> None:
    graphs = []

    def backend(gm: torch.fx.GraphModule, example_inputs: list[Tensor]) -> object:
        graphs.append((gm, len(example_inputs)))
        return gm.forward

    compiled = dovetail.compile(lambda x: x.sin() + 1, backend=backend)
    torch.testing.assert_close(compiled(torch.ones(3)), torch.ones(3).sin() + 1)
    assert len(graphs) == 1 and graphs[0][1] == 1


def test_compiling_makes_no_garbage_collections() -> None:
    found: list[str] = []

    class Told(CompilerBackend):
        def __call__(self, gm: GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
            gc.callbacks.append(note)
            try:
                return super().__call__(gm, example_inputs)
            finally:
                gc.callbacks.remove(note)

        def compile_functional(
            self,
            gm: GraphModule,
            example_inputs: Sequence[Any],
            place: str = "",
            label: str = "",
        ) -> CompiledArtifact:
            gc.callbacks.append(note)
            try:
                return super().compile_functional(gm, example_inputs, place, label)
            finally:
                gc.callbacks.remove(note)

    def note(phase: str, info: dict[str, int]) -> None:
        found.append(f"{phase} of generation {info['generation']}")

    thresholds = gc.get_threshold()
    backend = Told(Options())
    compiled = dovetail.compile(lambda x: torch.softmax(x * 2, -1).sum(), backend=backend)
    x = torch.randn(4, 5, requires_grad=True)
    gc.set_threshold(100, 2, 2)
    try:
        compiled(x).backward()
    finally:
        gc.set_threshold(*thresholds)
    # one may begin when it may again, at once
    assert (
        len(backend.records.graphs) == 2 and len([f for f in found if f.startswith("start")]) <= 2
    )
    assert gc.isenabled()


def test_a_limit_of_one_compile_call() -> None:
    """Beside a mode, and beside no backend at all, which is ours."""

    def scaled(x: torch.Tensor, how: str) -> torch.Tensor:
        return x * len(how)

    compiled = dovetail.compile(scaled, backend=None, mode="default", recompile_limit=2)
    other = dovetail.compile(scaled)
    with pytest.warns(RuntimeWarning, match="was compiled 2 times"):
        for how in ("a", "bb", "ccc"):
            assert torch.equal(compiled(torch.ones(2), how), torch.full((2,), float(len(how))))
            other(torch.ones(2), how)
    assert dovetail.report(compiled).graphs == 2 and dovetail.report(other).graphs == 3
    for wrong in (0, "2", True):
        with pytest.raises(ValueError, match="recompile_limit"):
            dovetail.compile(scaled, recompile_limit=wrong)


def test_a_compile_call_again_is_cheap() -> None:
    """A program may compile in each step: what is known of a function is found by few calls."""

    def scaled(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    dovetail.compile(scaled)
    profile = cProfile.Profile()
    profile.runcall(dovetail.compile, scaled)
    calls = sum(entry.callcount for entry in profile.getstats())
    assert calls < 400  # (some 200, and 80 where torch's own settings are loaded)


def test_a_class_has_a_name_in_its_report() -> None:
    @dovetail.compile(name="doubling", backend="eager")
    class Doubled:
        def __call__(self, x: torch.Tensor) -> torch.Tensor:
            return x * 2

    assert torch.equal(Doubled()(torch.ones(2)), torch.full((2,), 2.0))
    assert dovetail.report(Doubled).as_text().startswith("doubling: 1 graphs")


def test_what_the_cache_warns_of_while_a_graph_is_compiled_is_seen(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """It is no warning of an operator, which capture has told of already."""
    unusable = tmp_path / "file"
    unusable.write_text("no folder")
    monkeypatch.setenv("DOVETAIL_CACHE_DIR", str(unusable))
    code = (
        "import torch, dovetail\n"
        "print(dovetail.compile(lambda x: x.exp() + 1)(torch.ones(8)).sum().item())\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr.count("CacheWarning") == 1 and "cannot be used" in done.stderr
