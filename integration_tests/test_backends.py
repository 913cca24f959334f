"""Backends by name, what they are told, and the debugging ladder."""

from __future__ import annotations

import copy
import importlib
import inspect
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
import torch
from dovetail_autograd_aot import aot_compile
from dovetail_runtime import load
from torch import Tensor, nn
from torch.fx import GraphModule
from torch.utils._python_dispatch import TorchDispatchMode

import dovetail
from dovetail.backends import registry
from dovetail.backends.cudagraphs import operator_plan

LADDER = [name for name in registry._NAMED if not registry._NAMED[name].packages]


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.norm = nn.LayerNorm(4)
        self.drop = nn.Dropout(0.5)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        y = torch.softmax(self.norm(self.linear(x)), -1)
        first, _ = self.drop(y).chunk(2, -1)
        return first, y.argmax(-1)


class Counting(TorchDispatchMode):
    calls = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        Counting.calls += 1
        return func(*args, **(kwargs or {}))


@pytest.fixture
def registered() -> Iterator[None]:
    known = dict(registry._REGISTERED.backends), dict(registry._REGISTERED.tags)
    yield
    registry._REGISTERED.backends, registry._REGISTERED.tags = known


@pytest.mark.parametrize("name", LADDER)
@pytest.mark.filterwarnings("ignore")
def test_a_model_is_trained_with_each_backend_of_the_ladder(name: str) -> None:
    net = Net()
    twin = copy.deepcopy(net)
    mode = Counting() if name.endswith("with_mode") else None  # type: ignore[no-untyped-call]
    compiled = dovetail.compile(net, backend=name, mode=mode, fullgraph=True)  # type: ignore[call-overload]
    for size in (3, 5, 4):
        x = torch.randn(size, 4)
        found = []
        for module in (compiled, twin):
            torch.manual_seed(size)
            y, best = module(x)
            y.square().sum().backward()
            found.append((y, best))
        torch.testing.assert_close(found[0], found[1])
    for ours, theirs in zip(net.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad)
    assert mode is None or Counting.calls > 0


def test_signatures_are_torch_s() -> None:
    theirs = inspect.signature(torch.compiler.list_backends)
    ours = inspect.signature(dovetail.list_backends)
    assert {n: p.default for n, p in ours.parameters.items()} == {
        n: p.default for n, p in theirs.parameters.items()
    }
    torch_s = importlib.import_module("torch._dynamo.backends.registry").register_backend
    register = inspect.signature(dovetail.register_backend)
    assert list(register.parameters) == list(inspect.signature(torch_s).parameters)


def test_each_debugging_name_of_torch_s_is_known_or_refused_with_a_reason() -> None:
    theirs = set(torch.compiler.list_backends(()))
    theirs = {name for name in theirs if not name.endswith("_TESTING_ONLY")}
    theirs -= {"dynamo_minifier_backend", "dynamo_accuracy_minifier_backend"}  # write programs
    theirs -= {"openxla", "openxla_eval"}  # for devices of torch_xla
    assert theirs <= {*registry._NAMED, *registry._REFUSED, *registry._OURS}
    for name, reason in registry._REFUSED.items():
        with pytest.raises(ValueError, match="is not one of Dovetail's") as refused:
            dovetail.compile(Net(), backend=name)
        assert reason in str(refused.value)


def test_backends_are_registered_by_name(registered: None) -> None:
    @dovetail.register_backend
    def mine(gm: GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        return lambda x: (x + 2,)

    @dovetail.register_backend(name="other", tags=("debug",))
    def yours(gm: GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        return gm.forward

    assert "mine" in dovetail.list_backends() and "other" not in dovetail.list_backends()
    assert "other" in dovetail.list_backends(None) and "mine" not in LADDER
    x = torch.ones(2)
    assert torch.equal(dovetail.compile(lambda v: v + 1, backend="mine")(x), x + 2)
    assert torch.equal(dovetail.compile(lambda v: v + 1, backend="other")(x), x + 1)
    for taken in ("mine", "eager", "inductor"):
        with pytest.raises(ValueError, match="already"):
            dovetail.register_backend(yours, name=taken)
    with pytest.raises(TypeError, match="callable, got int"):
        dovetail.register_backend(3)  # type: ignore[type-var]


def test_what_a_program_registered_with_torch_is_found() -> None:
    torch_s = importlib.import_module("torch._dynamo.backends.registry")

    def theirs(gm: GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        return lambda x: (x * 3,)

    torch_s.register_backend(theirs, name="registered_with_torch")
    compiled = dovetail.compile(lambda v: v + 1, backend="registered_with_torch")
    assert torch.equal(compiled(torch.ones(2)), torch.full((2,), 3.0))


@pytest.mark.parametrize("named", [False, True])
def test_mode_and_options_reach_the_backend(named: bool, registered: None) -> None:
    told: list[dict[str, Any]] = []

    def backend(gm: GraphModule, inputs: Sequence[Any], **keywords: Any) -> Callable[..., Any]:
        told.append(keywords)
        return gm.forward

    dovetail.register_backend(backend, name="told")
    chosen: Any = "told" if named else backend
    x = torch.ones(2)
    for arguments, expected in (
        ({"options": {"device": "CPU"}}, {"options": {"device": "CPU"}}),
        ({"mode": "reduce-overhead"}, {"mode": "reduce-overhead"}),
        ({"mode": "default"}, {}),
        ({}, {}),
        ({"options": {"recompile_limit": 3}}, {}),  # that is for capture
        ({"options": {"recompile_limit": 3, "k": 1}}, {"options": {"k": 1}}),
    ):
        dovetail.compile(lambda v: v + 1, backend=chosen, **arguments)(x)
        assert told.pop() == expected
    with pytest.raises(RuntimeError, match="either mode or options"):
        dovetail.compile(lambda v: v, backend=chosen, mode="a", options={"b": 1})
    with pytest.raises(TypeError, match="option 'recompile_limit' takes int"):
        dovetail.compile(lambda v: v, backend=chosen, options={"recompile_limit": "3"})


def test_a_backend_that_takes_no_options_is_named() -> None:
    def plain(gm: GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        return gm.forward

    with pytest.raises(TypeError, match=r"backend .*plain takes no options=\{'k': 1\}"):
        dovetail.compile(lambda v: v, backend=plain, options={"k": 1})
    with pytest.raises(ValueError, match="unknown option 'k'"):
        dovetail.compile(lambda v: v, backend="eager", options={"k": 1})


def test_options_reach_the_backend_of_compiled_backwards() -> None:
    told: list[Any] = []

    def backend(
        gm: GraphModule, inputs: Sequence[Any], options: dict[str, int]
    ) -> Callable[..., Any]:
        told.append(options)
        return gm.forward

    x = torch.ones(2, requires_grad=True)
    with dovetail.compiled_autograd(backend=backend, options={"k": 1}):
        (x * 2).sum().backward()
    assert told == [{"k": 1}] and torch.equal(x.grad, torch.full((2,), 2.0))  # type: ignore[arg-type]


def test_eager_noexcept_tells_that_the_graph_raised() -> None:
    compiled = dovetail.compile(lambda x, i: x[i], backend="eager_noexcept")
    with pytest.raises(dovetail.CaptureError, match="the captured graph raised IndexError"):
        compiled(torch.ones(2), torch.tensor([5]))


def test_pre_dispatch_eager_prints_its_graph(capsys: pytest.CaptureFixture[str]) -> None:
    compiled = dovetail.compile(lambda x: x.sin() + 1, backend="pre_dispatch_eager")
    torch.testing.assert_close(compiled(torch.ones(2)), torch.ones(2).sin() + 1)
    assert "x.sin()" in capsys.readouterr().out


def test_eager_debug_holds_operators_to_their_schemas() -> None:
    with torch.library._scoped_library("schemas_of_tests", "DEF") as library:
        library.define("writes(Tensor x) -> Tensor")
        library.define("lends(Tensor x) -> Tensor")
        library.define("honest(Tensor(a!) x) -> Tensor")
        library.impl("writes", lambda x: x.add_(1).clone(), "CPU")
        library.impl("lends", lambda x: x.view(-1), "CPU")
        library.impl("honest", lambda x: x.add_(1).clone(), "CPU")
        for name in ("writes", "lends", "honest"):
            library.impl(name, lambda x: torch.empty_like(x), "Meta")
        ops = torch.ops.schemas_of_tests
        for name, told in (("writes", "wrote to its argument 'x'"), ("lends", "returned memory")):
            operator = getattr(ops, name)
            compiled = dovetail.compile(lambda x: operator(x) + 1, backend="eager_debug")  # noqa: B023
            with pytest.raises(RuntimeError, match=told):
                compiled(torch.ones(2))
        compiled = dovetail.compile(lambda x: ops.honest(x) * 2, backend="eager_debug")
        assert torch.equal(compiled(torch.ones(2)), torch.full((2,), 4.0))


def test_plans_of_operators_give_what_eager_gives() -> None:
    """What `cudagraphs` records, run on the CPU."""

    def program(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        a, b = torch.split(x @ y, 2)
        values, places = torch.topk(torch.cat([a, b * 2], 1), 3)
        return values.to(torch.float64), places, a.t(), torch.where(a > 0, a, 0.5), x

    plans = []

    def compiler(graph: GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        plan = operator_plan(graph, "cpu")
        assert plan is not None
        plans.append(plan)
        return load(plan).run

    def backend(gm: GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        return aot_compile(gm, inputs, forward_compiler=compiler)

    compiled = dovetail.compile(program, backend=backend)
    inputs = torch.randn(4, 4, requires_grad=True), torch.randn(4, 4, requires_grad=True)
    for _ in range(2):
        found, expected = compiled(*inputs), program(*inputs)
        torch.testing.assert_close(found, expected)
        for results in (found, expected):
            sum(r.sum() for r in results if r.requires_grad).backward()  # type: ignore[union-attr]
    assert len(plans) == 2


def test_graphs_that_cannot_be_recorded_are_told_of() -> None:
    compiled = dovetail.compile(lambda x: x + 1, backend="cudagraphs")
    assert torch.equal(compiled(torch.ones(2)), torch.full((2,), 2.0))
    assert "no CUDA graph: a graph on the CPU" in dovetail.report(compiled).as_text()
    with pytest.raises(TypeError, match="backend cudagraphs takes no mode='max-autotune'"):
        dovetail.compile(lambda x: x, backend="cudagraphs", mode="max-autotune")


@pytest.mark.gpu
def test_cudagraphs_records_eager_kernels() -> None:
    from torch.profiler import ProfilerActivity, profile

    net = Net().cuda().eval()
    compiled = dovetail.compile(net, backend="cudagraphs")
    for size in (3, 5):
        for _ in range(4):
            x = torch.randn(size, 4, device="cuda")
            with torch.no_grad():
                torch.testing.assert_close(compiled(x), net(x))
    assert dovetail.report(compiled).cudagraphs == 2
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as seen, torch.no_grad():
        compiled(x)
    assert any("GraphLaunch" in event.key for event in seen.key_averages())
    y, _ = compiled(x)
    expected, _ = net(x)
    y.sum().backward()
    gradients = [p.grad.clone() for p in net.parameters()]  # type: ignore[union-attr]
    net.zero_grad()
    expected.sum().backward()
    torch.testing.assert_close(gradients, [p.grad for p in net.parameters()])
