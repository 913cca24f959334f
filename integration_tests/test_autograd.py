"""What autograd promises, through the whole pipeline: second derivatives, checkpointing, hooks."""

from __future__ import annotations

import copy
import gc
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from dovetail_autograd_aot import JointGraph, PartitionedGraph, aot_compile, min_cut_partition
from dovetail_prims.decompositions import core_aten_table
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

import dovetail

Call = Callable[..., Any]


def network(inputs: int = 4, outputs: int = 1) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(inputs, 16), nn.SiLU(), nn.LayerNorm(16), nn.Linear(16, outputs))


def penalty(net: nn.Module, call: Call) -> list[Tensor]:
    """WGAN-GP: the norm of the critic's gradient is part of its loss."""
    x = torch.randn(5, 4, requires_grad=True)
    score = call(x)
    (slope,) = torch.autograd.grad(score.sum(), x, create_graph=True)
    loss = score.mean() + 10 * ((slope.norm(2, dim=1) - 1) ** 2).mean()
    return list(torch.autograd.grad(loss, list(net.parameters()), allow_unused=True))


def inner_step(net: nn.Module, call: Call) -> list[Tensor]:
    """MAML: the loss after a step of gradient descent, differentiated through the step."""
    x, y = torch.randn(6, 4), torch.randn(6, 1)
    params = list(net.parameters())
    slopes = torch.autograd.grad(F.mse_loss(call(x), y), params, create_graph=True)
    names = [name for name, _ in net.named_parameters()]
    moved = {n: p - 0.1 * g for n, p, g in zip(names, params, slopes, strict=True)}
    after = torch.func.functional_call(net, moved, (x,))
    return list(torch.autograd.grad(F.mse_loss(after, y), params))


def forces(net: nn.Module, call: Call) -> list[Tensor]:
    """Forces are minus the slope of an energy; training on them differentiates twice."""
    places = torch.randn(7, 4, requires_grad=True)
    (slope,) = torch.autograd.grad(call(places).sum(), places, create_graph=True)
    loss = (-slope - torch.randn(7, 4)).square().mean()
    found = torch.autograd.grad(loss, list(net.parameters()), allow_unused=True)
    return [slope.detach(), *found]


def hessian_vector(net: nn.Module, call: Call) -> list[Tensor]:
    params = list(net.parameters())
    slopes = torch.autograd.grad(call(torch.randn(6, 4)).square().sum(), params, create_graph=True)
    along = sum((g * torch.ones_like(g)).sum() for g in slopes)
    return list(torch.autograd.grad(along, params))


@pytest.mark.parametrize("backend", ["aot_eager", "dovetail"])
@pytest.mark.parametrize("method", [penalty, inner_step, forces, hessian_vector])
def test_second_derivatives(method: Callable[..., list[Tensor]], backend: str) -> None:
    ours, theirs = network(), network()
    torch.manual_seed(1)
    expected = method(theirs, theirs)
    torch.manual_seed(1)
    call = dovetail.compile(ours, backend=backend)
    got = method(ours, call)
    if backend == "dovetail":  # nothing runs eager's operators instead
        told = "\n".join(dovetail.report(call).autograd)
        assert "create_graph: 1 compilations" in told and "uncompiled" not in told
    for a, b in zip(got, expected, strict=True):
        assert (a is None) == (b is None)
        if b is not None:
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-6)


def test_second_derivatives_inside_a_compiled_function() -> None:
    def loss(net: nn.Module, x: Tensor) -> Tensor:
        (slope,) = torch.autograd.grad(net(x).sum(), x, create_graph=True)
        return (slope.norm(2, dim=1) - 1).square().mean()

    ours, theirs = network(), network()
    x = torch.randn(5, 4)
    found = []
    for net, call in ((ours, dovetail.compile(loss)), (theirs, loss)):
        call(net, x.clone().requires_grad_()).backward()
        found.append([p.grad for p in net.parameters()])
    for a, b in zip(*found, strict=True):
        assert (a is None) == (b is None)
        if a is not None:
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-6)


# --- checkpointing -------------------------------------------------------------------------------


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(32), nn.Linear(32, 128), nn.Linear(128, 32)

    def forward(self, x: Tensor) -> Tensor:
        inner = F.gelu(self.up(self.norm(x)))
        return x + F.dropout(self.down(inner), 0.1, self.training)


class Stack(nn.Module):
    def __init__(self, reentrant: bool | None) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(4))
        self.reentrant = reentrant

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            if self.reentrant is None:
                x = block(x)
            else:
                x = checkpoint(block, x, use_reentrant=self.reentrant)
        return x


def trained(reentrant: bool | None) -> tuple[PartitionedGraph, list[Tensor], list[Tensor]]:
    """How the graph was cut, and the gradients, compiled and eager."""
    torch.manual_seed(0)
    net = Stack(reentrant)
    twin = copy.deepcopy(net)
    x = torch.randn(16, 32, requires_grad=True)
    cuts: list[PartitionedGraph] = []

    def partition(joint: JointGraph) -> PartitionedGraph:
        cuts.append(min_cut_partition(joint))
        return cuts[-1]

    def backend(gm: torch.fx.GraphModule, examples: Any) -> Call:
        return aot_compile(
            gm, examples, forward_compiler=lambda graph, inputs: graph.forward,
            decompositions=core_aten_table(), partition=partition,
        )  # fmt: skip

    found = []
    for module, call in (
        (net, dovetail.compile(net, backend=backend, fullgraph=True)),
        (twin, twin),
    ):
        torch.manual_seed(2)
        call(x).square().mean().backward()
        found.append([p.grad for p in module.parameters()])
    (cut,) = cuts
    return cut, found[0], found[1]


@pytest.mark.parametrize("reentrant", [False, True])
def test_statistics_in_a_checkpoint_are_updated_as_often_as_in_eager(reentrant: bool) -> None:
    found = []
    for compile_it in (True, False):
        torch.manual_seed(0)
        first, norm = nn.Linear(4, 4), nn.BatchNorm1d(4)

        def step(x: Tensor, first: nn.Module = first, norm: nn.Module = norm) -> Tensor:
            return checkpoint(lambda t: norm(first(t)).relu(), x.sin(), use_reentrant=reentrant)

        call = dovetail.compile(step) if compile_it else step
        x = torch.randn(6, 4, requires_grad=True)
        for _ in range(2):
            call(x).square().sum().backward()
        found.append([x.grad, first.weight.grad, *norm.buffers()])
        if compile_it:
            assert any("running statistics" in b.reason for b in dovetail.report(call).breaks)
    torch.testing.assert_close(found[0], found[1], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("reentrant", [False, True])
def test_a_checkpoint_saves_memory(reentrant: bool) -> None:
    plain, _, _ = trained(None)
    cut, ours, theirs = trained(reentrant)
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-6)
    # Between blocks one tensor is kept, and in each what dropout drew.
    tensor = 16 * 32 * 4
    assert cut.saved_bytes == (3 + 4) * tensor < plain.saved_bytes / 2
    products = [n for n in cut.backward.graph.nodes if n.target is torch.ops.aten.addmm.default]
    assert len(products) >= 4  # computed again


# --- the rest ------------------------------------------------------------------------------------


class Cube(torch.autograd.Function):
    """With `setup_context`, and an argument that is no tensor."""

    @staticmethod
    def forward(x: Tensor, power: int) -> Tensor:
        return x**power

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(inputs[0])
        ctx.power = inputs[1]

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        (x,) = ctx.saved_tensors
        return 7 * gradient * x ** (ctx.power - 1), None


class Doubled(torch.autograd.Function):
    """Marks its input dirty."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.mark_dirty(x.mul_(2))
        return x

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return 5 * gradient


class Largest(torch.autograd.Function):
    """One result has no gradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> tuple[Tensor, Tensor]:
        index = x.argmax(1)
        ctx.mark_non_differentiable(index)
        return x * 2, index

    @staticmethod
    def backward(ctx: Any, gradient: Tensor, none: None) -> Tensor:
        return 11 * gradient


def hooked(x: Tensor) -> Tensor:
    y = x * 2
    y.register_hook(lambda g: g * 10)
    return y.sin()


def packed(x: Tensor) -> Tensor:
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t * 2, lambda t: t / 2):
        return (x * x).exp()


def offloaded(x: Tensor) -> Tensor:
    with torch.autograd.graph.save_on_cpu():
        return (x * x).exp()


def largest(x: Tensor) -> Tensor:
    values, index = Largest.apply(x)
    return values + index[:, None]


def without_gradient(x: Tensor) -> Tensor:
    with torch.no_grad():
        y = x * 3
    return y * x + x.detach()


def test_hooks_that_make_numbers_smaller_get_no_masks() -> None:
    """The graph saves relu's mask, where eager saves numbers."""

    def pack(saved: Tensor) -> tuple[Tensor, Tensor]:
        scale = saved.abs().max() / 127
        return (saved / scale).round().to(torch.int8), scale

    def unpack(packed: tuple[Tensor, Tensor]) -> Tensor:
        return packed[0].float() * packed[1]

    def fn(x: Tensor, w: Tensor) -> Tensor:
        return (x @ w).relu().sum()

    made = [torch.randn(8, 8) for _ in range(2)]
    gradients = []
    for run in (fn, dovetail.compile(fn, fullgraph=True)):
        x, w = (t.clone().requires_grad_() for t in made)
        with torch.autograd.graph.saved_tensors_hooks(pack, unpack):
            loss = run(x, w)
        loss.backward()
        gradients.append((x.grad, w.grad))
    torch.testing.assert_close(gradients[1], gradients[0])


@pytest.mark.parametrize(
    "function",
    [lambda x: Cube.apply(x, 3), lambda x: Doubled.apply(x * 1), largest, hooked, packed,
     offloaded, without_gradient],
    ids=["setup_context", "mark_dirty", "non_differentiable", "tensor hook", "saved tensor hooks",
         "save_on_cpu", "no_grad"],
)  # fmt: skip
def test_equals_eager(function: Call) -> None:
    found = []
    for call in (dovetail.compile(function), function):
        x = (torch.arange(6.0) / 6).view(2, 3).requires_grad_()
        out = call(x)
        out.sum().backward(retain_graph=True)
        once = x.grad
        assert once is not None
        kept = once.clone()
        out.sum().backward()
        found.append((out.detach(), kept, x.grad))
    for a, b in zip(*found, strict=True):
        torch.testing.assert_close(a, b)


def test_hooks_of_modules() -> None:
    found = []
    for compiled in (True, False):
        net = network()
        net[0].register_forward_hook(lambda module, args, output: output + 1)
        net[3].register_forward_pre_hook(lambda module, args: (args[0] * 2,))
        net[2].register_full_backward_hook(lambda module, before, after: (before[0] * 3,))
        x = torch.ones(5, 4, requires_grad=True)
        (dovetail.compile(net) if compiled else net)(x).sum().backward()
        found.append([x.grad, *[p.grad for p in net.parameters()]])
    for a, b in zip(*found, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-6)


def test_new_placements_of_inputs_in_memory_are_reported() -> None:
    def write_one(a: Tensor, b: Tensor) -> Tensor:
        a.mul_(2)
        return a + b

    compiled = dovetail.compile(write_one)
    for start in (0, 2, 4, 2):
        memory, twin = torch.arange(20.0), torch.arange(20.0)
        got = compiled(memory[start : start + 8], memory[4:12])
        assert torch.equal(got, write_one(twin[start : start + 8], twin[4:12]))
        assert torch.equal(memory, twin)
    report = dovetail.report(compiled)
    assert "lay in new ways" in report.as_text() and report.recompiles == ()


@pytest.mark.parametrize("reentrant", [None, False])
def test_a_memory_budget(reentrant: bool | None) -> None:
    """Bytes fall with it, results stay; what a checkpoint keeps is its own affair."""
    sizes = []
    for budget in (1, 0.5, 0):
        torch.manual_seed(0)
        net = Stack(reentrant)
        twin = copy.deepcopy(net)
        options = {"activation_memory_budget": budget}
        x = torch.randn(16, 32)
        torch.manual_seed(2)
        found = dovetail.explain(net, options=options)(x)
        (saved,) = found.saved
        assert f"saved for the backward: {len(saved.values)} values" in found.as_text()
        sizes.append(saved.bytes)
        results = []
        for module, call in ((net, dovetail.compile(net, options=options)), (twin, twin)):
            torch.manual_seed(3)
            call(x).square().mean().backward()
            results.append([p.grad for p in module.parameters()])
        torch.testing.assert_close(results[0], results[1], rtol=1e-4, atol=1e-6)
    if reentrant is None:
        assert sizes[0] > sizes[1] > sizes[2]
    else:  # what lies between the regions, and the random numbers in them
        assert sizes[0] == sizes[1] == sizes[2]
    with pytest.raises(ValueError, match="from 0 to 1"):
        dovetail.compile(net, options={"activation_memory_budget": 2.0})


def nan_in_the_backward(x: Tensor) -> Tensor:
    y = x * 2
    y = torch.sqrt(y - 2)  # infinite slope at one
    return (y * 0).sum()


@pytest.mark.filterwarnings("ignore:Anomaly Detection", "ignore:Error detected in")
@pytest.mark.parametrize("check", [True, False])
def test_anomaly_mode_names_the_users_line(check: bool) -> None:
    compiled = dovetail.compile(nan_in_the_backward, fullgraph=True)
    x = torch.ones(3, requires_grad=True)
    with torch.autograd.set_detect_anomaly(True, check_nan=check):
        loss = compiled(x)
        if not check:
            loss.backward()
            assert x.grad is not None and x.grad.isnan().all()
            return
        with pytest.raises(RuntimeError, match="SqrtBackward0' returned nan") as raised:
            loss.backward()
    line = nan_in_the_backward.__code__.co_firstlineno + 2
    assert f'test_autograd.py", line {line}, in nan_in_the_backward' in str(raised.value)
    compiled(torch.full((3,), 2.0, requires_grad=True)).backward()  # and nothing is left behind


@pytest.mark.parametrize("backend", ["aot_eager", "dovetail"])
def test_a_second_derivative_past_one_inside_by_an_input_of_its_own(backend: str) -> None:
    """No output depends on that input, but what the graph itself asks for does."""

    def function(x: Tensor, w: Tensor) -> Tensor:
        (slope,) = torch.autograd.grad((w * x.detach()).sin().sum(), w)
        return (x * slope).sin()

    found = []
    compiled = dovetail.compile(function, fullgraph=True, backend=backend)
    for call in (function, compiled):
        x, w = torch.linspace(-1, 1, 5).requires_grad_(), torch.ones(5, requires_grad=True)
        (slope,) = torch.autograd.grad(call(x, w).sum(), x, create_graph=True)
        found.append([slope, *torch.autograd.grad(slope.square().sum(), x)])
        assert w.grad is None
    torch.testing.assert_close(found[1], found[0])
    assert not any("uncompiled" in line for line in dovetail.report(compiled).autograd)


class Pair(torch.autograd.Function):
    """Two results, whose gradients are added up."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Any:
        ctx.save_for_backward(x)
        return x**2, x * 3

    @staticmethod
    def backward(ctx: Any, squared: Tensor, tripled: Tensor) -> Any:
        (x,) = ctx.saved_tensors
        return squared * 2 * x + tripled * 3


@pytest.mark.parametrize("place", [0, 1])
def test_second_derivatives_of_one_of_two_results(place: int) -> None:
    """Autograd's zeros for the other are added; the sum is linear all the same."""
    found = []

    def function(x: Tensor) -> Tensor:
        return Pair.apply(x)[place].sin()  # type: ignore[no-any-return, no-untyped-call]

    for call in (function, dovetail.compile(function, fullgraph=True, backend="aot_eager")):
        x = torch.linspace(-1, 1, 6, dtype=torch.float64).requires_grad_()
        (slope,) = torch.autograd.grad(call(x).sum(), x, create_graph=True)
        found.append(torch.autograd.grad(slope.square().sum(), x))
    torch.testing.assert_close(found[1], found[0])


@pytest.mark.filterwarnings("ignore:Anomaly Detection", "ignore:Error detected in")
@pytest.mark.parametrize("own", ["backward", "grad"])
def test_anomaly_mode_looks_at_gradients_that_the_program_asks_for(own: str) -> None:
    @dovetail.compile
    def step(x: Tensor) -> Any:
        loss = nan_in_the_backward(x)
        return loss.backward() if own == "backward" else torch.autograd.grad(loss, x)

    step(torch.ones(3, requires_grad=True))  # nothing looks, and all is one graph
    assert dovetail.report(step).graphs == 1 and not dovetail.report(step).breaks
    with torch.autograd.set_detect_anomaly(True):
        with pytest.raises(RuntimeError, match="SqrtBackward0' returned nan"):
            step(torch.ones(3, requires_grad=True))
        step(torch.full((3,), 2.0, requires_grad=True))
    with torch.autograd.set_detect_anomaly(True, check_nan=False):
        step(torch.ones(3, requires_grad=True))


def test_without_anomaly_mode_gradients_are_not_searched_for_nan(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """That would wait for the GPU in every step."""

    def searched(gradient: Tensor | None) -> bool:
        raise AssertionError("a gradient was looked at")

    monkeypatch.setattr("dovetail_autograd_aot.calls.autograd_function._has_nan", searched)
    x = torch.full((3,), 2.0, requires_grad=True)
    dovetail.compile(nan_in_the_backward, fullgraph=True)(x).backward()
    assert x.grad is not None


# --- recurrent layers ----------------------------------------------------------------------------


@pytest.mark.parametrize("checkpointed", [False, True])
@pytest.mark.parametrize("backend", ["aot_eager", "dovetail"])
def test_lstm_whose_kernel_keeps_a_workspace(backend: str, checkpointed: bool) -> None:
    def loss(net: nn.LSTM, x: Tensor) -> Tensor:
        if checkpointed:
            out = checkpoint(lambda x: net(x)[0].sin(), x, use_reentrant=False)
            return out.square().sum()
        out, (hidden, cell) = net(x)
        return out.square().sum() + hidden.sum() * cell.sum()

    net = nn.LSTM(4, 5, 2, batch_first=True, bidirectional=True)
    x = torch.randn(3, 6, 4, requires_grad=True)
    wanted = [x, *net.parameters()]
    ours = torch.autograd.grad(dovetail.compile(loss, backend=backend)(net, x), wanted)
    torch.testing.assert_close(ours, torch.autograd.grad(loss(net, x), wanted))


def test_gradients_of_an_lstm_inside_the_graph() -> None:
    def slopes(net: nn.LSTM, x: Tensor) -> tuple[Tensor, ...]:
        return torch.autograd.grad(net(x)[0].sum(), [x, *net.parameters()])

    net, x = nn.LSTM(4, 5), torch.randn(3, 6, 4, requires_grad=True)
    torch.testing.assert_close(dovetail.compile(slopes)(net, x), slopes(net, x))


def test_hook_on_what_was_used_before() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        before = y + 1
        y.register_hook(lambda gradient: gradient * 2)
        return (before + y * 3).sum()

    gradients = []
    for run in (program, dovetail.compile(program)):
        x = torch.arange(3.0, requires_grad=True)
        run(x).backward()
        assert x.grad is not None
        gradients.append(x.grad)
    assert torch.equal(*gradients)


def test_hooks_on_saved_tensors_see_real_ones_once() -> None:
    """They are not asked while a graph is traced, whose tensors have no data."""
    kept: list[Tensor] = []

    def pack(t: Tensor) -> int:
        kept.append(t)
        return len(kept) - 1

    def fn(x: Tensor) -> Tensor:
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda place: kept[place] * 2):
            y = x * x
        return y.sum()

    x = torch.tensor([1.0, 2.0], requires_grad=True)
    (gradient,) = torch.autograd.grad(dovetail.compile(fn)(x), x)
    assert all(type(t) is Tensor and t.tolist() == [1, 2] for t in kept)
    assert gradient.tolist() == [4, 8] == torch.autograd.grad(fn(x), x)[0].tolist()


def test_saved_tensors_that_may_be_written_to() -> None:
    def fn(x: Tensor) -> Any:
        with torch.autograd.graph.allow_mutation_on_saved_tensors():
            y = x * 2
            z = y * y
            y.zero_()
            return torch.autograd.grad(z.sum(), x)[0]

    def zero(y: Tensor) -> None:
        with torch.no_grad():
            y.zero_()

    x = torch.tensor([1.0, 2.0], requires_grad=True)
    assert dovetail.compile(fn)(x).tolist() == [8, 16]
    with torch.autograd.graph.allow_mutation_on_saved_tensors():
        y = x * 2
        z = y * y
        dovetail.compile(zero)(y)
        assert torch.autograd.grad(z.sum(), x)[0].tolist() == [8, 16]


class Shifting(TorchDispatchMode):
    """Adds 100 to sines."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        return result + 100 if func is torch.ops.aten.sin.default else result


def test_dispatch_modes_see_operations() -> None:
    """Where one is on, functions run as Python runs them; a compiled one is not taken there."""

    def outside(x: Tensor) -> Tensor:
        return torch.sin(x) * 2

    def inside(x: Tensor) -> Tensor:
        with Shifting():
            y = torch.sin(x)
        return torch.sin(y * 0) + y * 2

    x = torch.zeros(3)
    compiled = dovetail.compile(outside)
    for _ in range(2):
        assert compiled(x).tolist() == [0, 0, 0]
        with Shifting():
            assert compiled(x).tolist() == [200, 200, 200]
    assert dovetail.compile(inside)(x).tolist() == [200, 200, 200]


def scanned(x: Tensor) -> Tensor:
    return (x.sin() * x.sum()).cumsum(0).softmax(-1)


def test_forward_mode_derivatives() -> None:
    """A graph computes none: within a level of them functions run as Python runs them."""
    x, t = torch.randn(3, 4), torch.randn(3, 4)
    compiled = dovetail.compile(scanned)
    torch.testing.assert_close(compiled(x), scanned(x))
    found = []
    for call in (compiled, scanned):
        with forward_ad.dual_level():
            found.append(tuple(forward_ad.unpack_dual(call(forward_ad.make_dual(x, t)))))
        jacobian = torch.autograd.functional.jacobian(
            call, x, vectorize=True, strategy="forward-mode"
        )
        found[-1] = (*found[-1], jacobian)
    torch.testing.assert_close(*found)


@pytest.mark.filterwarnings("ignore:There is a performance drop")
def test_gradients_of_several_at_once() -> None:
    layers = nn.Sequential(nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3), nn.GELU(), nn.MaxPool2d(2))
    for function, shape in ((scanned, (3, 4)), (layers, (2, 2, 6, 6))):
        x = torch.randn(shape, requires_grad=True)
        found = []
        for call in (dovetail.compile(function), function):
            y = call(x)
            torch.manual_seed(0)
            given = torch.randn(2, *y.shape).transpose(-1, -2).contiguous().transpose(-1, -2)
            found.append(torch.autograd.grad(y, x, given, is_grads_batched=True)[0])
        torch.testing.assert_close(*found, rtol=1e-4, atol=1e-5)
    compiled = dovetail.compile(scanned)
    start = torch.randn(2, 3, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(compiled, start, check_batched_grad=True)


def _asked_for_its_grad_dtype(w: Tensor) -> tuple[Any, ...]:
    before = w.grad_dtype
    w.grad_dtype = torch.float16
    (w * 2).sum().backward()
    return before, w.grad_dtype, w.grad


def _gradient_of_another_dtype(w: Tensor) -> tuple[Any, ...]:
    (w.square() / 3).sum().backward()
    return w.grad_dtype, w.grad, torch.autograd.grad((w * 3).sum(), w)


@pytest.mark.skipif(not hasattr(Tensor, "grad_dtype"), reason="this torch has no grad_dtype")
@pytest.mark.parametrize("fn", [_asked_for_its_grad_dtype, _gradient_of_another_dtype])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, None])
def test_leaves_with_a_grad_dtype(fn: Callable[[Tensor], Any], dtype: Any) -> None:
    """Asked for, set, and what gradients become where it is another than the leaf's."""
    results = []
    for run in (fn, dovetail.compile(fn)):
        w = torch.tensor([1.0, 2.0], requires_grad=True)
        w.grad_dtype = dtype
        results.append(run(w))
        w.grad = None
        w.grad_dtype = torch.float32  # (what was compiled is asked for another one)
        results[-1] += run(w)
    assert str(results[0]) == str(results[1])


@pytest.mark.parametrize("backend", ["aot_eager", "dovetail"])
def test_a_state_that_the_graph_detaches(backend: str) -> None:
    """Truncated backpropagation: no gradient goes back into the last call, which is freed."""

    def function(x: Tensor, state: tuple[Tensor, Tensor]) -> Any:
        state = cell(x, (state[0].detach(), state[1].detach()))
        return state[0].square().sum(), state

    torch.manual_seed(0)
    cell = nn.LSTMCell(3, 4)
    results = []
    for call in (function, dovetail.compile(function, backend=backend)):
        torch.manual_seed(1)
        cell.zero_grad()
        state = (torch.zeros(2, 4), torch.zeros(2, 4))
        for _ in range(4):
            loss, state = call(torch.randn(2, 3), state)
            loss.backward()
        results.append([*state, *(p.grad.clone() for p in cell.parameters())])
        seen = []
        for _ in range(3):  # nor does a call keep alive the one before, if there is no backward
            x = torch.randn(2, 3)
            seen.append(weakref.ref(x))
            loss, state = call(x, state)
        del x
        gc.collect()
        assert [each() for each in seen[:2]] == [None, None]
    for mine, wanted in zip(*results, strict=True):
        torch.testing.assert_close(mine, wanted, rtol=1e-4, atol=1e-5)


def test_a_detached_state_beside_a_function_of_the_users() -> None:
    class Double(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return x * 2

        @staticmethod
        def backward(ctx: Any, gradient: Tensor) -> Tensor:
            return gradient * 2

    weight = torch.ones(3, requires_grad=True)
    call = dovetail.compile(lambda state: Double.apply((state.detach() * weight).tanh()))
    state = torch.ones(3)
    for _ in range(3):
        state = call(state)
        state.sum().backward()


def test_a_gradient_of_second_order_through_what_a_function_saves() -> None:
    class Gate(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor, gate: Tensor) -> Tensor:
            ctx.save_for_backward(gate)
            return x * 2

        @staticmethod
        def backward(ctx: Any, gradient: Tensor) -> Any:
            return gradient * ctx.saved_tensors[0], None

    for call in (Gate.apply, dovetail.compile(lambda x, gate: Gate.apply(x, gate))):
        x, gate = torch.ones(3, requires_grad=True), torch.ones(3, requires_grad=True)
        (slope,) = torch.autograd.grad(call(x, gate * 3).sum(), x, create_graph=True)
        (second,) = torch.autograd.grad(slope.sum(), gate)
        assert second.tolist() == [3.0, 3.0, 3.0]


class TwoHeads(nn.Module):
    """Two networks over one input; with `shared`, over a layer that both read."""

    def __init__(self, shared: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.trunk = nn.Sequential(nn.Linear(4, 4), nn.Tanh()) if shared else nn.Identity()
        self.actor = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))
        self.critic = nn.Sequential(nn.Linear(4, 8), nn.SiLU(), nn.Linear(8, 1))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        x = self.trunk(x)
        return self.actor(x).softmax(-1), self.critic(x)


@pytest.mark.parametrize("backend", ["aot_eager", "dovetail"])
@pytest.mark.parametrize("dynamic", [None, True])
def test_backwards_of_outputs_that_are_apart(backend: str, dynamic: bool | None) -> None:
    """Eager frees what a backward went through, and no more; so the other output's can follow."""
    ours, theirs = TwoHeads(False), TwoHeads(False)
    call = dovetail.compile(ours, backend=backend, dynamic=dynamic)
    for rows in (3, 5, 6):
        grads = []
        for model, run in ((ours, call), (theirs, theirs)):
            torch.manual_seed(rows)
            x = torch.randn(rows, 4, requires_grad=True)
            model.zero_grad()
            chances, value = run(x)
            chances.log().sum().backward()
            value.square().sum().backward()
            grads.append([x.grad, *(p.grad for p in model.parameters())])
            for loss in (chances.sum(), value.sum()):
                with pytest.raises(RuntimeError, match="backward through the graph a second time"):
                    loss.backward()
        for mine, wanted in zip(*grads, strict=True):
            torch.testing.assert_close(mine, wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("backend", ["aot_eager", "dovetail"])
@pytest.mark.parametrize("dynamic", [None, True])
def test_gradients_of_one_part_after_another(backend: str, dynamic: bool | None) -> None:
    """Of one loss: eager frees what the way to the first part went through, and no more."""
    ours, theirs = TwoHeads(False), TwoHeads(False)
    call = dovetail.compile(ours, backend=backend, dynamic=dynamic)
    for rows in (3, 5, 6):
        found: list[list[Tensor]] = []
        for model, run in ((ours, call), (theirs, theirs)):
            torch.manual_seed(rows)
            chances, value = run(torch.randn(rows, 4))
            loss = chances[:, 0].sum() + value.sum()
            parts = [list(part.parameters()) for part in (model.actor, model.critic)]
            found.append([g for part in parts for g in torch.autograd.grad(loss, part)])
            for part in parts:
                with pytest.raises(RuntimeError, match="backward through the graph a second time"):
                    torch.autograd.grad(loss, part)
        for mine, wanted in zip(*found, strict=True):
            torch.testing.assert_close(mine, wanted, rtol=1e-4, atol=1e-5)


def test_backwards_of_outputs_with_a_shared_part_need_it_kept() -> None:
    for call in (TwoHeads(True), dovetail.compile(TwoHeads(True))):
        chances, value = call(torch.randn(3, 4))
        chances.log().sum().backward()
        with pytest.raises(RuntimeError, match="backward through the graph a second time"):
            value.sum().backward()


def test_a_weight_that_changed_between_backwards_is_noticed() -> None:
    for model in (TwoHeads(False), dovetail.compile(TwoHeads(False))):
        chances, value = model(torch.randn(3, 4))
        chances.log().sum().backward()
        with torch.no_grad():
            model.critic[2].weight.mul_(2)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            value.sum().backward()


def test_what_a_backward_is_done_with_is_freed_though_another_may_follow() -> None:
    def function(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return (x @ x).tanh() @ x, y.tanh() @ y

    def held(output: Any) -> int:
        """The bytes of what the graph keeps."""
        values = output.grad_fn.next_functions[0][0].remaining.values
        return sum(v.untyped_storage().nbytes() for v in values if isinstance(v, Tensor))

    compiled = dovetail.compile(function)
    for first in (0, 1):
        x, y = (torch.randn(64, 64, requires_grad=True) for _ in range(2))
        outputs = compiled(x, y)
        outputs[first].sum().backward()
        assert held(outputs[first]) <= 2 * x.nbytes + 64  # an input, and what is made of it
        outputs[1 - first].sum().backward()
        for mine, loss in zip((x.grad, y.grad), function(x, y), strict=True):
            wanted = torch.autograd.grad(loss.sum(), (x, y)[mine is y.grad])
            torch.testing.assert_close(mine, wanted[0], rtol=1e-4, atol=1e-4)


class _Generator(torch.nn.Module):
    """An image and the latent that it is made of, as of a style-based generator."""

    def __init__(self) -> None:
        super().__init__()
        self.mapping = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.GELU())
        self.styled = torch.nn.Linear(16, 12)
        self.image = torch.nn.Sequential(torch.nn.Tanh(), torch.nn.Dropout(0.2))

    def forward(self, noise: Tensor) -> tuple[Tensor, Tensor]:
        latent = self.mapping(noise)
        return self.image(self.styled(latent)), latent


def test_penalty_on_the_gradient_of_one_output_by_way_of_another() -> None:
    """Path length regularisation: the gradient of an image with regard to its latent, in a loss."""
    torch.manual_seed(0)
    eager = _Generator()
    ours = copy.deepcopy(eager)
    compiled = dovetail.compile(ours)
    for _ in range(3):
        found = []
        for model in (eager, compiled):
            torch.manual_seed(1)
            image, latent = model(torch.randn(4, 8))
            (path,) = torch.autograd.grad(image.square().sum(), latent, create_graph=True)
            (path.norm(dim=1) - 1).square().mean().backward()
            found.append(path.detach())
        torch.testing.assert_close(found[1], found[0])
    for mine, theirs in zip(ours.parameters(), eager.parameters(), strict=True):
        torch.testing.assert_close(mine.grad, theirs.grad)
    assert "by way of another" in dovetail.report(compiled).as_text()


def test_gradients_of_feature_maps() -> None:
    """Class activation maps: what the features of a network get from a class, by a hook and by
    `retain_grad()`, in training (batch norm's statistics are written) and not."""
    torch.manual_seed(0)

    class Network(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.features = torch.nn.Sequential(
                torch.nn.Conv2d(3, 4, 3), torch.nn.BatchNorm2d(4), torch.nn.ReLU()
            )
            self.head = torch.nn.Linear(4, 5)

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            features = self.features(x)
            return features, self.head(features.mean((2, 3)))

    eager = Network()
    ours = copy.deepcopy(eager)
    compiled = dovetail.compile(ours)
    for training in (True, False):
        eager.train(training)
        ours.train(training)
        found: list[list[Tensor]] = []
        for model in (eager, compiled):
            torch.manual_seed(1)
            features, scores = model(torch.randn(2, 3, 8, 8))
            features.retain_grad()
            seen: list[Tensor] = []
            features.register_hook(lambda gradient, seen=seen: seen.append(gradient.clone()))
            scores[:, 1].sum().backward()
            found.append([features.grad, *seen, *(p.grad for p in model.parameters())])
        for mine, theirs in zip(found[1], found[0], strict=True):
            torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-5)
    for mine, theirs in zip(ours.buffers(), eager.buffers(), strict=True):
        torch.testing.assert_close(mine, theirs)


def test_gradients_of_inputs_of_which_one_leads_to_another() -> None:
    """The engine goes from one to the other by what was computed before the compiled function."""

    def function(a: Tensor, b: Tensor) -> tuple[Tensor, ...]:
        return torch.autograd.grad((a * a).sum() + (b * b).sum(), [a, b], retain_graph=True)

    compiled = dovetail.compile(function, backend="aot_eager")
    for _ in range(2):
        leaf = torch.linspace(-1, 1, 3, requires_grad=True)
        between = leaf * 2
        for pair in ((between, between.sin()), (leaf, between.exp()), (between, leaf)):
            for ours, theirs in zip(compiled(*pair), function(*pair), strict=True):
                torch.testing.assert_close(ours, theirs)
