"""Derivatives taken inside of compiled functions: `backward()`, `torch.autograd.grad`, `.grad`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import dovetail


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(6, 8), nn.Linear(8, 3)
        self.norm = nn.BatchNorm1d(8)
        self.unused = nn.Linear(2, 2)
        self.turned = nn.Parameter(torch.randn(8, 8).t())
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, x: Tensor) -> Tensor:
        x = torch.tanh(self.norm(self.first(x))) @ self.turned
        return self.last(x * self.scale)  # type: ignore[no-any-return]


Step = Callable[[Net, torch.optim.Optimizer, Tensor], Any]


def plain(net: Net, opt: torch.optim.Optimizer, x: Tensor) -> Tensor:
    opt.zero_grad()
    loss = net(x).square().mean()
    loss.backward()
    opt.step()
    return loss


def kept_zeros(net: Net, opt: torch.optim.Optimizer, x: Tensor) -> Tensor:
    opt.zero_grad(set_to_none=False)
    loss: Tensor = net(x).square().mean()
    loss.backward()
    opt.step()
    return loss.detach()


def accumulated(net: Net, opt: torch.optim.Optimizer, x: Tensor) -> Tensor:
    opt.zero_grad()
    total = torch.zeros((), dtype=x.dtype)
    for part in x.chunk(2):
        loss = net(part).square().mean() / 2
        loss.backward()
        total = total + loss.detach()
    opt.step()
    return total


def retained(net: Net, opt: torch.optim.Optimizer, x: Tensor) -> Tensor:
    opt.zero_grad()
    loss: Tensor = net(x).square().mean()
    loss.backward(retain_graph=True)
    (loss * 2).backward()
    opt.step()
    return loss.detach()


def given(net: Net, opt: torch.optim.Optimizer, x: Tensor) -> Tensor:
    opt.zero_grad()
    y = net(x)
    torch.autograd.backward([y, y.sum()], [torch.full_like(y, 0.5), None])
    opt.step()
    return y.detach()


def of_some(net: Net, opt: torch.optim.Optimizer, x: Tensor) -> Tensor:
    opt.zero_grad()
    net(x).square().mean().backward(inputs=[net.last.weight, net.scale])
    opt.step()
    return net.scale.detach().clone()


def clipped(net: Net, opt: torch.optim.Optimizer, x: Tensor) -> Tensor:
    opt.zero_grad()
    net(x).square().mean().backward()
    norm = torch.nn.utils.clip_grad_norm_([p for p in net.parameters() if p.grad is not None], 0.1)
    opt.step()
    return norm


def by_hand(net: Net, opt: torch.optim.Optimizer, x: Tensor) -> Tensor:
    params = list(net.parameters())
    loss: Tensor = net(x).square().mean()
    found = torch.autograd.grad(loss, params, allow_unused=True)
    with torch.no_grad():
        for p, g in zip(params, found, strict=True):
            if g is not None:
                p.sub_(0.1 * g)
    return loss.detach()


def materialised(net: Net, opt: torch.optim.Optimizer, x: Tensor) -> Any:
    wanted = [net.last.bias, net.unused.weight]
    return torch.autograd.grad(net(x).sum(), wanted, materialize_grads=True)


def penalised(net: Net, opt: torch.optim.Optimizer, x: Tensor) -> Tensor:
    opt.zero_grad()
    x = x.detach().clone().requires_grad_()
    score = net(x)
    (slope,) = torch.autograd.grad(score.sum(), x, create_graph=True)
    loss = score.mean() + 10 * (slope.norm(2, dim=1) - 1).square().mean()
    loss.backward()
    opt.step()
    return loss.detach()


def penalty_only(net: Net, opt: torch.optim.Optimizer, x: Tensor) -> Tensor:
    """What comes out has a gradient: the second derivative is taken outside."""
    score = net(x)
    (slope,) = torch.autograd.grad(score.sum(), net.first.weight, create_graph=True)
    return slope.square().sum()


def graph_created(net: Net, opt: torch.optim.Optimizer, x: Tensor) -> Tensor:
    net.scale.grad = None
    (net(x).square().mean() * net.scale).backward(create_graph=True, inputs=[net.scale])
    made = net.scale.grad
    assert made is not None
    (net.scale**3).backward(create_graph=True)
    return made * 1


WHOLE: list[Step] = [
    plain, kept_zeros, accumulated, retained, given, of_some, clipped, by_hand, materialised,
    penalty_only, graph_created,
]  # fmt: skip


def run(step: Step, call: Step, calls: int, prepare: Callable[[Net], Any]) -> list[Any]:
    torch.manual_seed(0)
    net = Net().double()  # so that rounding is nothing beside a mistake
    prepare(net)
    opt = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    seen: list[Any] = []
    torch.manual_seed(1)
    for _ in range(calls):
        found = call(net, opt, torch.randn(4, 6).double())
        if isinstance(found, Tensor) and found.requires_grad and step is penalty_only:
            found.backward()
        seen.append(torch.utils._pytree.tree_map(lambda t: t.detach().clone(), found))
        for p in net.parameters():
            g = p.grad
            strides = None if g is None else g.stride()
            grad = None if g is None else g.detach().clone()
            seen += [p.detach().clone(), grad, strides, g is not None and g.requires_grad]
        seen += [b.clone() for b in net.buffers()]
    return seen


def assert_same(ours: list[Any], theirs: list[Any]) -> None:
    assert len(ours) == len(theirs)
    for a, b in zip(ours, theirs, strict=True):
        if isinstance(b, Tensor) or (isinstance(b, tuple) and b and isinstance(b[0], Tensor)):
            torch.testing.assert_close(a, b, rtol=1e-8, atol=1e-10)
        else:
            assert a == b


@pytest.mark.filterwarnings("ignore:Using backward.. with create_graph")
@pytest.mark.parametrize("backend", ["eager", "dovetail"])
@pytest.mark.parametrize("step", WHOLE)
def test_one_graph(step: Step, backend: str) -> None:
    compiled = dovetail.compile(step, backend=backend, fullgraph=True)
    ours = run(step, compiled, 4, lambda net: None)
    assert_same(ours, run(step, step, 4, lambda net: None))
    # One graph for gradients that are None, one for those that are there, not more.
    assert dovetail.report(compiled).graphs <= 3


def hooked_leaf(net: Net) -> None:
    def double(p: Tensor) -> None:
        assert p.grad is not None
        p.grad.mul_(2)

    net.scale.register_hook(lambda g: g * 3)
    net.scale.register_hook(lambda g: None)
    net.first.bias.register_post_accumulate_grad_hook(double)


@pytest.mark.parametrize("backend", ["eager", "dovetail"])
@pytest.mark.parametrize("step", [plain, accumulated])
def test_hooks_of_leaves(step: Step, backend: str) -> None:
    compiled = dovetail.compile(step, backend=backend, fullgraph=True)
    ours = run(step, compiled, 3, hooked_leaf)
    assert_same(ours, run(step, step, 3, hooked_leaf))


@pytest.mark.parametrize("backend", ["eager", "dovetail"])
def test_a_hook_that_breaks_the_graph(backend: str) -> None:
    def results(compile_it: bool) -> tuple[list[Any], list[float]]:
        seen: list[float] = []

        def watch(net: Net) -> None:
            net.scale.register_hook(lambda g: seen.append(float(g)))

        call: Any = dovetail.compile(plain, backend=backend) if compile_it else plain
        found = run(plain, call, 2, watch)
        if compile_it:
            assert dovetail.report(call).breaks
        return found, seen

    ours, theirs = results(True), results(False)
    assert_same(ours[0], theirs[0])
    assert ours[1] == pytest.approx(theirs[1])


def test_a_hook_added_later_is_seen() -> None:
    results = []
    for compile_it in (True, False):
        net = Net()
        nn.init.constant_(net.turned, 0.5)
        call: Any = dovetail.compile(plain) if compile_it else plain
        opt = torch.optim.SGD(net.parameters(), lr=0.0)
        call(net, opt, torch.ones(4, 6))
        net.scale.register_hook(lambda g: torch.full_like(g, 7.0))
        call(net, opt, torch.ones(4, 6))
        assert net.scale.grad is not None
        results.append(net.scale.grad.item())
    assert results == [7.0, 7.0]


# --- what cannot be part of the graph ------------------------------------------------------------


def past_inputs(h: Tensor, w: Tensor) -> Tensor:
    (h * w).sum().backward()
    return h + 1


def test_a_backward_past_the_inputs_is_run_by_eager() -> None:
    found = []
    compiled = dovetail.compile(past_inputs)
    for call in (compiled, past_inputs):
        x, w = torch.arange(3.0, requires_grad=True), torch.ones(3, requires_grad=True)
        out = call(x * 2, w)
        found.append((out, x.grad, w.grad))
    torch.testing.assert_close(found[0], found[1])
    assert any("past the inputs" in b.reason for b in dovetail.report(compiled).breaks)


def checkpointed(net: Net, opt: torch.optim.Optimizer, x: Tensor) -> Tensor:
    opt.zero_grad()
    middle = checkpoint(lambda x: torch.tanh(net.first(x)).exp(), x, use_reentrant=False)
    loss: Tensor = net.last(middle).square().mean()
    loss.backward()
    opt.step()
    return loss.detach()


def test_a_checkpoint_is_computed_again() -> None:
    """So its backward is not part of the graph, which would keep everything."""
    compiled = dovetail.compile(checkpointed)
    ours = run(checkpointed, compiled, 3, lambda net: None)
    assert_same(ours, run(checkpointed, checkpointed, 3, lambda net: None))
    report = dovetail.report(compiled)
    assert any("checkpointed region" in b.reason for b in report.breaks)
    assert any("operators run again" in line for line in report.autograd)


def kept_by_the_middle(w: Tensor) -> Any:
    y = w * 2
    y.retain_grad()
    (y * y).sum().backward()
    return y.grad


def twice(w: Tensor) -> Tensor:
    loss = (w * w).sum()
    loss.backward()
    loss.backward()
    return loss


def no_scalar(w: Tensor) -> Tensor:
    (w * w).backward()
    return w


def unused(w: Tensor) -> Any:
    return torch.autograd.grad((w * w).sum(), torch.ones(3, requires_grad=True))


@pytest.mark.parametrize("function", [kept_by_the_middle, twice, no_scalar, unused])
def test_what_eager_says(function: Callable[[Tensor], Any]) -> None:
    found: list[Any] = []
    for call in (dovetail.compile(function), function):
        w = torch.arange(3.0, requires_grad=True)
        try:
            found.append((call(w), w.grad))
        except RuntimeError as error:
            found.append((str(error), w.grad))
    assert isinstance(found[0][0], str) == isinstance(found[1][0], str)
    if isinstance(found[1][0], str):
        assert found[0][0] == found[1][0]
    torch.testing.assert_close(found[0][1], found[1][1])
    if not isinstance(found[1][0], str):
        torch.testing.assert_close(found[0][0], found[1][0])


def test_a_second_backward_outside_is_eagers_error() -> None:
    def step(w: Tensor) -> Tensor:
        loss = (w * w).sum()
        loss.backward()
        return loss

    compiled = dovetail.compile(step, fullgraph=True)
    w = torch.arange(3.0, requires_grad=True)
    loss = compiled(w)
    assert loss.requires_grad
    with pytest.raises(RuntimeError, match="second time"):
        loss.backward()  # type: ignore[no-untyped-call]


def test_gradients_of_two_leaves_are_apart() -> None:
    def step(a: Tensor, b: Tensor) -> None:
        (a + b).sum().backward()

    a, b = torch.ones(3, requires_grad=True), torch.ones(3, requires_grad=True)
    dovetail.compile(step, fullgraph=True)(a, b)
    assert a.grad is not None and b.grad is not None
    a.grad.mul_(5)
    assert a.grad.tolist() == [5, 5, 5] and b.grad.tolist() == [1, 1, 1]


def test_a_gradient_that_was_there_is_written_in_place() -> None:
    def step(w: Tensor) -> None:
        (w * w).sum().backward()

    w = torch.ones(3, requires_grad=True)
    kept = torch.full((3,), 10.0)
    w.grad = kept
    dovetail.compile(step, fullgraph=True)(w)
    assert w.grad is kept and kept.tolist() == [12, 12, 12]
    w.grad = w.detach()  # an alias of the leaf itself
    dovetail.compile(step, fullgraph=True)(w)
    assert w.tolist() == [3, 3, 3]


class Rounded(nn.Module):
    """A layer trained to be quantized: what goes in by an observer's scale, weights row by row."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 4)
        self.register_buffer("scale", torch.full((1,), 0.05))
        self.register_buffer("zero", torch.full((1,), 3, dtype=torch.int32))
        self.register_buffer("most", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        self.most.copy_(torch.maximum(self.most, x.detach().abs().amax()))
        self.scale.copy_(self.most.reshape(1) / 100)
        rows = self.layer.weight.detach().abs().amax(1) / 31
        zeros = torch.zeros_like(rows, dtype=torch.int32)
        weight = torch.fake_quantize_per_channel_affine(self.layer.weight, rows, zeros, 0, -15, 15)
        x = torch.fake_quantize_per_tensor_affine(x, self.scale, self.zero, 0, 63)
        out = nn.functional.linear(x, weight, self.layer.bias)
        return torch.fake_quantize_per_tensor_affine(out, 0.125, 0, -8, 7)


def test_training_that_knows_of_quantization() -> None:
    torch.manual_seed(0)
    mine, theirs = Rounded(), Rounded()
    theirs.load_state_dict(mine.state_dict())
    run = dovetail.compile(mine, fullgraph=True)
    for batch in (4, 4, 7, 9):
        x = torch.randn(batch, 6)
        given = [x.clone().requires_grad_() for _ in range(2)]
        for model, call, each in ((theirs, theirs, given[0]), (mine, run, given[1])):
            model.zero_grad()
            call(each).square().sum().backward()
        torch.testing.assert_close(given[1].grad, given[0].grad)
        torch.testing.assert_close(mine.layer.weight.grad, theirs.layer.weight.grad)
        torch.testing.assert_close(mine.state_dict(), theirs.state_dict(), rtol=0, atol=0)
    assert dovetail.report(run).graphs == 2
    wrong = torch.full((4,), 99, dtype=torch.int32)
    checked = dovetail.compile(
        lambda x: torch.fake_quantize_per_channel_affine(x, torch.ones(4), wrong, 0, -15, 15)
    )
    with pytest.raises(RuntimeError, match="must be between `quant_min` and `quant_max`"):
        checked(torch.randn(4, 2))


def test_observers_by_channel_are_given_their_size_outside_of_the_graph() -> None:
    """The first call makes an empty observer as long as there are channels; then it is captured."""

    class Observed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(6, 4)
            observer = torch.ao.quantization.MovingAveragePerChannelMinMaxObserver
            self.observe = torch.ao.quantization.FusedMovingAvgObsFakeQuantize(
                observer, -128, 127, dtype=torch.qint8, qscheme=torch.per_channel_symmetric
            )

        def forward(self, x: Tensor) -> Tensor:
            return nn.functional.linear(x, self.observe(self.layer.weight)).relu()

    torch.manual_seed(0)
    mine, theirs = Observed(), Observed()
    theirs.load_state_dict(mine.state_dict())
    for fullgraph in (False, True):
        run = dovetail.compile(mine, fullgraph=fullgraph)
        for _ in range(2):
            x = torch.randn(3, 6)
            for model, call in ((theirs, theirs), (mine, run)):
                model.zero_grad()
                call(x).square().sum().backward()
            torch.testing.assert_close(mine.layer.weight.grad, theirs.layer.weight.grad)
            torch.testing.assert_close(mine.state_dict(), theirs.state_dict())
