"""Compiled autograd against eager: gradients, accumulation, hooks, functions, sizes, errors."""

import copy
import threading
import weakref
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from dovetail_autograd_aot import aot_compile, compiled_autograd
from dovetail_autograd_aot.compiled_backward import passes
from dovetail_prims import trace_aten
from dovetail_prims.decompositions import core_aten_table
from dovetail_prims.graphs.backend_traits import takes_symbolic_graphs
from torch import Tensor, nn


class Counting:
    """A backend that runs graphs as they are, and keeps them."""

    def __init__(self) -> None:
        self.graphs: list[torch.fx.GraphModule] = []

    def __call__(self, gm: torch.fx.GraphModule, examples: list[Any]) -> Callable[..., Any]:
        self.graphs.append(gm)
        return gm.forward


@takes_symbolic_graphs
def functionalised(gm: torch.fx.GraphModule, examples: list[Any]) -> Callable[..., Any]:
    """A backend that traces, functionalises and decomposes."""
    return aot_compile(
        gm, examples, forward_compiler=lambda g, _: g.forward, decompositions=core_aten_table()
    )


BACKENDS = {"as is": Counting, "functionalised": lambda: functionalised}


@pytest.fixture(params=list(BACKENDS))
def context(request: Any) -> compiled_autograd:
    return compiled_autograd(BACKENDS[request.param]())


def leaves(*shapes: tuple[int, ...], seed: int = 0) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(s, generator=generator).requires_grad_() for s in shapes]


def check(
    context: compiled_autograd,
    loss: Callable[..., Tensor],
    *shapes: tuple[int, ...],
    times: int = 3,
    exact: bool = True,
) -> None:
    """`loss` of fresh leaves, backward in eager and in the context, several times."""
    for seed in range(times):
        ours, eager = leaves(*shapes, seed=seed), leaves(*shapes, seed=seed)
        torch.manual_seed(seed)
        loss(*eager).backward()
        torch.manual_seed(seed)
        value = loss(*ours)
        with context:
            value.backward()
        for a, b in zip(ours, eager, strict=True):
            assert (a.grad is None) == (b.grad is None)
            if a.grad is not None:
                torch.testing.assert_close(a.grad, b.grad, rtol=0 if exact else 1e-5, atol=1e-6)
                assert a.grad.stride() == b.grad.stride()
                assert a.grad.dtype == b.grad.dtype and not a.grad.requires_grad


LOSSES: dict[str, tuple[Any, ...]] = {
    "mlp": (lambda x, w, b: torch.tanh(x @ w + b).pow(2).mean(), (5, 4), (4, 3), (3,)),
    "reused": (lambda x: (x * x.sin() + x.exp() * x).sum(), (4, 3)),
    "views": (lambda x: (x.t()[1:, :2] * x.reshape(-1)[:2]).sum() + x[0].sum(), (4, 3)),
    "broadcast": (lambda x, y: (x[:, None] * y[None]).sum(), (4,), (3,)),
    "cat": (lambda x, y: torch.cat([x, y * 2]).square().sum(), (4, 3), (2, 3)),
    "cat with a constant": (lambda x: torch.cat([torch.ones(2, 3), x]).square().sum(), (4, 3)),
    "stack, chunk": (lambda x, y: sum(c.prod() for c in torch.stack([x, y]).chunk(2)), (3,), (3,)),
    "softmax": (lambda x: torch.log_softmax(x, -1)[:, 0].sum(), (4, 3)),
    "layer norm": (lambda x, w, b: nn.functional.layer_norm(x, (3,), w, b).sin().sum(),
                   (4, 3), (3,), (3,)),
    "convolution": (
        lambda x, w: nn.functional.conv2d(x, w).relu().sum(), (2, 3, 8, 8), (4, 3, 3, 3),
    ),
    "max pool": (lambda x: nn.functional.max_pool2d(x, 2).square().sum(), (2, 3, 8, 8)),
    "attention": (
        lambda q, k, v: nn.functional.scaled_dot_product_attention(q, k, v).square().sum(),
        (2, 2, 4, 8), (2, 2, 4, 8), (2, 2, 4, 8),
    ),
    "index": (lambda x: x[torch.tensor([0, 2, 0])].square().sum(), (4, 3)),
    "mask": (lambda x: x[x > 0].square().sum() + torch.where(x > 0, x, 2 * x).sum(), (4, 3)),
    "dropout": (lambda x: nn.functional.dropout(x, 0.5).square().sum(), (8, 8)),
    "double": (lambda x: (x.double() * 2).sum().float(), (4, 3)),
    "in place": (lambda x: (x * 2).add_(1).relu_().square().sum(), (4, 3)),
    "unused": (lambda x, y: x.sum(), (4, 3), (2,)),
    "detached": (lambda x: (x * x.detach()).sum(), (4, 3)),
    "division": (lambda x, y: (x / 2.5 + 3 / y - x / y).sum(), (4, 3), (4, 3)),
    "norm": (lambda x: x.norm() + x.std() + x.var(0).sum(), (4, 3)),
    "embedding": (
        lambda w: nn.functional.embedding(torch.tensor([[1, 2], [2, 0]]), w).square().sum(), (4, 3),
    ),
    "cross entropy": (
        lambda x: nn.functional.cross_entropy(x, torch.tensor([0, 2, 1, 1])), (4, 3),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", LOSSES)
def test_gradients_are_eagers(context: compiled_autograd, name: str) -> None:
    loss, *shapes = LOSSES[name]
    check(context, loss, *shapes, exact=context.passes.compiler is not functionalised)
    if name != "mask":  # (another number of elements each time)
        assert context.report.compiled >= 2, context.report
    assert not context.report.on_engine and not context.report.taken_over


def test_prod_branches_on_data_in_eager_and_is_captured(context: compiled_autograd) -> None:
    check(context, lambda x: x.prod() + x.cumprod(0).sum(), (5,), exact=False)
    assert context.report.compiled == 2


# --- accumulation, arguments of the engine --------------------------------------------------------


def test_gradients_accumulate_in_place() -> None:
    backend = Counting()
    context = compiled_autograd(backend)
    (x,), (y,) = leaves((4, 3)), leaves((4, 3))
    for step in range(5):
        before = x.grad
        y.square().sum().backward()
        with context:
            x.square().sum().backward()
        assert torch.equal(x.grad, y.grad)
        assert step == 0 or x.grad is before
    assert context.report.recorded == 2 and context.report.compiled == 3  # without, with a gradient
    assert len(backend.graphs) == 2
    assert "add_" in backend.graphs[1].code


def test_one_compilation_for_a_training_loop() -> None:
    torch.manual_seed(0)
    ours = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.LayerNorm(8), nn.Linear(8, 2))
    eager = copy.deepcopy(ours)
    backend = Counting()
    context = compiled_autograd(backend)
    losses = []
    for model in (ours, eager):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        generator = torch.Generator().manual_seed(1)
        for _ in range(10):
            optimizer.zero_grad()
            x = torch.randn(6, 4, generator=generator)
            loss = (model(x) - x[:, :2]).square().mean()
            if model is ours:
                with context:
                    loss.backward()
            else:
                loss.backward()
            optimizer.step()
            losses.append(loss.item())
    assert losses[:10] == losses[10:]
    assert len(backend.graphs) == 1
    assert context.report.recorded == 1 and context.report.compiled == 9


def test_grad_with_inputs(context: compiled_autograd) -> None:
    for seed in range(3):
        x, w, unused = leaves((4, 3), (3, 3), (2,), seed=seed)
        h = x @ w
        y = h.sin().sum()
        wanted = torch.autograd.grad(y, [w, h, unused], retain_graph=True, allow_unused=True)
        with context:
            found = torch.autograd.grad(y, [w, h, unused], retain_graph=True, allow_unused=True)
        for a, b in zip(found, wanted, strict=True):
            assert (a is None and b is None) or torch.equal(a, b)
        assert x.grad is None and w.grad is None
    assert context.report.compiled == 2
    with pytest.raises(RuntimeError, match="not have been used"), context:
        torch.autograd.grad(y, [w, unused])


def test_backward_with_inputs_frees_only_what_ran(context: compiled_autograd) -> None:
    for _ in range(3):
        x, w = leaves((4, 3), (3, 3))
        y = (x.exp() @ w).sin().sum()
        with context:
            y.backward(inputs=[w])
        assert x.grad is None and w.grad is not None
        assert x.exp().grad_fn is not None
        with pytest.raises(RuntimeError, match="second time"), context:
            y.backward()
    assert context.report.compiled == 2


def test_inputs_that_are_no_leaves_keep_their_gradients(context: compiled_autograd) -> None:
    for seed in range(3):
        found = []
        for compiled in (False, True):
            x, w = leaves((4, 3), (3, 3), seed=seed)
            h = x @ w
            with context if compiled else nullcontext():
                h.sin().sum().backward(inputs=[h, w])
            found.append((h.grad, w.grad))
            assert x.grad is None
        for ours, eager in zip(*found, strict=True):
            assert torch.equal(ours, eager)
    assert sum(context.report.on_engine.values()) == 3


def test_several_roots_and_given_gradients(context: compiled_autograd) -> None:
    for seed in range(3):
        ours, eager = leaves((4, 3), seed=seed)[0], leaves((4, 3), seed=seed)[0]
        for x in (ours, eager):
            roots = [x.sin(), (x * 2).sum(0), x.cos().sum()]
            given = [torch.full((4, 3), 0.5), torch.arange(3.0), None]
            if x is ours:
                with context:
                    torch.autograd.backward(roots, given)
            else:
                torch.autograd.backward(roots, given)
        assert torch.equal(ours.grad, eager.grad)
    assert context.report.compiled == 2


def test_retained_graph_runs_again_and_a_freed_one_raises(context: compiled_autograd) -> None:
    for _ in range(3):
        (x,) = leaves((4, 3))
        y = x.exp().sum()
        with context:
            y.backward(retain_graph=True)
            y.backward(retain_graph=True)
            y.backward()
        torch.testing.assert_close(x.grad, 3 * x.detach().exp())
        with pytest.raises(RuntimeError, match="second time"), context:
            y.backward()
        with pytest.raises(RuntimeError, match="second time"):
            y.backward()
    assert context.report.compiled >= 6


def test_changed_saved_tensor_raises(context: compiled_autograd) -> None:
    for _ in range(2):
        (x,) = leaves((4, 3))
        h = x.exp()
        y = h.sum()
        with context:
            y.backward()
    h = x.exp()
    y = h.sum()
    h.detach().mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"), context:
        y.backward()


def test_create_graph_is_the_engines(context: compiled_autograd) -> None:
    (x,) = leaves((4,))
    for _ in range(2):
        with context:
            (g,) = torch.autograd.grad(x.sin().sum(), x, create_graph=True)
            (gg,) = torch.autograd.grad(g.sum(), x)
        assert torch.equal(gg, -x.detach().sin())
    assert context.report.on_engine["create_graph=True"] == 2


# --- hooks ----------------------------------------------------------------------------------------


def run_hooks(context: compiled_autograd, register: Callable[..., None], times: int = 3) -> Any:
    """`register(x, h, y, seen)` hangs hooks; gradients and what the hooks saw must be eager's."""
    for seed in range(times):
        results = []
        for compiled in (False, True):
            (x,) = leaves((4, 3), seed=seed)
            seen: list[Any] = []
            h = x.sin() * 3
            y = (h * h.exp()).sum()
            register(x, h, y, seen)
            if compiled:
                with context:
                    y.backward()
            else:
                y.backward()
            results.append((x.grad, seen))
        assert torch.equal(results[0][0], results[1][0])
        assert results[0][1] == results[1][1]
        assert results[0][1]
    return context.report


def _noting(seen: list[Any], change: Callable[[Tensor], Any] = lambda g: None) -> Any:
    """A hook that notes the gradient's sum, and gives what `change` does."""

    def hook(g: Tensor) -> Any:
        seen.append(g.sum().item())
        return change(g)

    return hook


def _node_hook(seen: list[Any]) -> Any:
    def hook(inputs: Any, outputs: Any) -> Any:
        seen.append((len(inputs), outputs[0].sum().item()))
        return (inputs[0] * 2, *inputs[1:])

    return hook


def _node_prehook(seen: list[Any]) -> Any:
    def hook(outputs: Any) -> Any:
        seen.append(len(outputs))
        return (outputs[0] * 2,)

    return hook


def _accumulated(seen: list[Any]) -> Any:
    def hook(p: Tensor) -> None:
        seen.append(p.grad.sum().item())
        p.grad.mul_(2)

    return hook


def _accumulation(seen: list[Any]) -> Any:
    return lambda inputs, outputs: seen.append((len(inputs), outputs[0].sum().item()))


def _multi(x: Tensor, h: Tensor, seen: list[Any]) -> Any:
    def hook(gradients: Any) -> None:
        seen.append([g.sum().item() for g in gradients])

    return torch.autograd.graph.register_multi_grad_hook((x, h), hook)


HOOKS: dict[str, Callable[..., Any]] = {
    "tensor": lambda x, h, y, seen: h.register_hook(_noting(seen)),
    "tensor that changes": lambda x, h, y, seen: h.register_hook(_noting(seen, lambda g: g * 2)),
    "leaf": lambda x, h, y, seen: x.register_hook(_noting(seen, lambda g: g + 1)),
    "gives its argument": lambda x, h, y, seen: h.register_hook(_noting(seen, lambda g: g)),
    "writes in place": lambda x, h, y, seen: h.register_hook(
        _noting(seen, lambda g: (g.mul_(2), None)[1])
    ),
    "several": lambda x, h, y, seen: [
        h.register_hook(_noting(seen, lambda g, i=i: g * i)) for i in (2, 3)
    ],
    "node": lambda x, h, y, seen: h.grad_fn.register_hook(_node_hook(seen)),
    "node before": lambda x, h, y, seen: h.grad_fn.register_prehook(_node_prehook(seen)),
    "after accumulation": lambda x, h, y, seen: x.register_post_accumulate_grad_hook(
        _accumulated(seen)
    ),
    "of the accumulation": lambda x, h, y, seen: torch.autograd.graph.get_gradient_edge(
        x
    ).node.register_hook(_accumulation(seen)),
    "multi": lambda x, h, y, seen: _multi(x, h, seen),
}


@pytest.mark.parametrize("name", HOOKS)
def test_hooks(context: compiled_autograd, name: str) -> None:
    kept: list[Any] = []  # (handles, and nodes of leaves)

    def register(x: Tensor, h: Tensor, y: Tensor, seen: list[Any]) -> None:
        kept.append((HOOKS[name](x, h, y, seen), torch.autograd.graph.get_gradient_edge(x)))

    report = run_hooks(context, register)
    if name == "multi":
        assert sum(report.taken_over.values()) == 2  # (it asks which backward runs)
        return
    assert report.compiled == 2 and report.graphs == 1
    assert report.opaque_calls == {"several": 2}.get(name, 0 if "accumulation" in name else 1)


def test_hook_registered_later_is_another_pass(context: compiled_autograd) -> None:
    (x,) = leaves((3,))
    seen: list[float] = []
    for step in range(6):
        if step == 3:
            x.register_hook(lambda g: seen.append(g.sum().item()))
        x.grad = None
        with context:
            x.square().sum().backward()
    assert len(seen) == 3
    assert context.report.graphs == 2


def test_hook_that_changes_its_mind_hands_over_to_the_engine(context: compiled_autograd) -> None:
    calls = []
    factor: list[float | None] = [2.0, 3.0, None, 5.0, 7.0]

    def hook(g: Tensor) -> Tensor | None:
        calls.append(1)
        return None if factor[len(calls) - 1] is None else g * factor[len(calls) - 1]

    for step in range(5):
        (x,) = leaves((3,))
        h = x.sin()
        h.register_hook(hook)
        with context:
            h.sum().backward()
        torch.testing.assert_close(x.grad, x.detach().cos() * (factor[step] or 1.0))
    assert len(calls) == 5
    assert sum(context.report.taken_over.values()) == 1
    assert context.report.compiled == 3


class NoGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> None:
        return None


def test_a_hook_of_what_gets_no_gradient(context: compiled_autograd) -> None:
    seen = []
    for seed in range(3):
        (x,) = leaves((3,), seed=seed)
        h = x * 2
        h.register_hook(lambda g: seen.append(g))
        with context:
            (NoGradient.apply(h) + x).sum().backward()
        assert torch.equal(x.grad, torch.ones(3))
    assert seen == [None] * 3
    assert context.report.compiled == 2 and not context.report.on_engine


def test_an_error_names_the_hook(context: compiled_autograd) -> None:
    def halved(g: Tensor) -> Tensor:
        return g.half()

    (x,) = leaves((3,))
    h = x * 2
    h.register_hook(halved)
    with context, pytest.raises(RuntimeError, match="hook 'halved' has changed the type"):
        h.sum().backward()


def test_error_in_a_hook_is_raised(context: compiled_autograd) -> None:
    for step in range(4):
        (x,) = leaves((3,))
        h = x.sin()
        h.register_hook(lambda g, step=step: None if step < 2 else 1 / 0)
        with context:
            if step < 2:
                h.sum().backward()
            else:
                with pytest.raises(ZeroDivisionError):
                    h.sum().backward()
    x.grad = None
    with context:
        x.sin().sum().backward()
    torch.testing.assert_close(x.grad, x.detach().cos())


def test_gradient_that_a_hook_keeps_stays(context: compiled_autograd) -> None:
    kept = []
    for seed in range(4):
        (x,) = leaves((64, 64), seed=seed)
        h = x.sin()
        h.register_hook(kept.append)
        with context:
            (h.square().exp().cos()).sum().backward()
        hd = h.detach()
        torch.testing.assert_close(kept[-1], -hd.square().exp().sin() * hd.square().exp() * 2 * hd)
    assert len({k.data_ptr() for k in kept}) == 4


def test_optimizer_in_the_backward(context: compiled_autograd) -> None:
    def train(model: nn.Module, compiled: bool) -> list[float]:
        def step(p: Tensor) -> None:
            with torch.no_grad():
                p.sub_(0.1 * p.grad)
            p.grad = None

        for p in model.parameters():
            p.register_post_accumulate_grad_hook(step)
        losses = []
        for seed in range(4):
            loss = (
                model(torch.randn(5, 4, generator=torch.Generator().manual_seed(seed)))
                .square()
                .mean()
            )
            if compiled:
                with context:
                    loss.backward()
            else:
                loss.backward()
            losses.append(loss.item())
        assert all(p.grad is None for p in model.parameters())
        return losses

    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 2))
    ours = train(copy.deepcopy(model), True)
    torch.testing.assert_close(ours, train(model, False))
    assert context.report.compiled == 3


def test_retain_grad_is_the_engines(context: compiled_autograd) -> None:
    for _ in range(2):
        (x,) = leaves((3,))
        h = x.sin()
        h.retain_grad()
        with context:
            h.exp().sum().backward()
        torch.testing.assert_close(h.grad, h.detach().exp())
    assert sum(context.report.on_engine.values()) == 2


# --- functions ------------------------------------------------------------------------------------


class Scaled(torch.autograd.Function):
    """Its backward depends on what Python knows, and counts its calls."""

    calls = 0

    @staticmethod
    def forward(ctx: Any, x: Tensor, factor: float) -> Tensor:
        ctx.factor = factor
        ctx.save_for_backward(x)
        return x * factor

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, None]:
        Scaled.calls += 1
        (x,) = ctx.saved_tensors
        return g * ctx.factor + 0 * x, None


class MaybeNone(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, y: Tensor, none: bool) -> tuple[Tensor, Tensor]:
        ctx.none = none
        return x * 2, y * 3

    @staticmethod
    def backward(ctx: Any, g: Tensor, h: Tensor) -> tuple[Any, ...]:
        return g * 2, None if ctx.none else h * 3, None


def test_function_is_called_each_time(context: compiled_autograd) -> None:
    Scaled.calls = 0
    for factor in (2.0, 3.0, 4.0):
        (x,) = leaves((4, 3))
        y = Scaled.apply(x.sin(), factor).exp().sum()
        with context:
            y.backward()
        d = x.detach()
        torch.testing.assert_close(x.grad, (d.sin() * factor).exp() * factor * d.cos())
    assert Scaled.calls == 3
    assert context.report.compiled == 2 and context.report.opaque_calls == 1
    with pytest.raises(RuntimeError, match="second time"), context:
        y.backward()


def test_function_that_gives_none_now_and_then(context: compiled_autograd) -> None:
    for none in (False, False, True, False, True):
        x, y = leaves((3,), (3,))
        a, b = MaybeNone.apply(x, y, none)
        with context:
            (a.sum() + b.sum()).backward()
        assert torch.equal(x.grad, torch.full((3,), 2.0))
        assert (y.grad is None) == none
    assert sum(context.report.taken_over.values()) == 2


@pytest.mark.parametrize("reentrant", [True, False])
def test_checkpointing(context: compiled_autograd, reentrant: bool) -> None:
    layer = nn.Sequential(nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 3))

    def loss(x: Tensor) -> Tensor:
        h = torch.utils.checkpoint.checkpoint(layer, x.sin(), use_reentrant=reentrant)
        return (h * x).sum() + layer(x).sum()

    for seed in range(3):
        results = []
        for compiled in (False, True):
            layer.zero_grad()
            (x,) = leaves((4, 3), seed=seed)
            value = loss(x)
            if compiled:
                with context:
                    value.backward()
            else:
                value.backward()
            results.append([x.grad, *[p.grad for p in layer.parameters()]])
        for a, b in zip(*results, strict=True):
            torch.testing.assert_close(a, b)


# --- numbers --------------------------------------------------------------------------------------


def test_sizes_are_symbolic_after_the_first_change() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.LayerNorm(8), nn.Linear(8, 2))
    for backend in (Counting(), functionalised):
        context = compiled_autograd(backend)
        for rows, columns in ((5, 3), (7, 3), (9, 3), (5, 3), (9, 3), (6, 3)):
            x = torch.randn(rows, columns, 4)
            grads = []
            for compiled in (False, True):
                model.zero_grad()
                loss = model(x).square().mean()
                if compiled:
                    with context:
                        loss.backward()
                else:
                    loss.backward()
                grads.append([p.grad for p in model.parameters()])
            for a, b in zip(*grads, strict=True):
                torch.testing.assert_close(a, b)
        report = context.report
        assert (report.graphs, report.symbolic) == (2, 1)
        assert (report.recorded, report.compiled) == (4, 2)


def test_a_backend_that_traces_its_examples_gets_a_graph_for_each_size() -> None:
    def traced(gm: torch.fx.GraphModule, examples: list[Any]) -> Callable[..., Any]:
        tensors = [value for value in examples if isinstance(value, Tensor)]
        rest = [value for value in examples if not isinstance(value, Tensor)]
        graph = trace_aten(lambda *given: gm(*given, *rest), *tensors)
        return lambda *args: graph(*args[: len(tensors)])

    context = compiled_autograd(traced)
    for _ in range(2):  # each is recorded, then replayed
        for size in (3, 4, 5, 1, 6):
            check(
                context,
                lambda x, w: ((x @ w).reshape(-1) * len(x)).mean(),
                (size, 4),
                (4, 2),
                times=1,
            )
    assert context.report.graphs >= 4 and context.report.symbolic == 0
    assert context.report.compiled == 5


def test_two_sizes_change(context: compiled_autograd) -> None:
    for rows, columns in ((4, 6), (5, 9), (7, 3), (11, 2), (7, 3)):
        x, w = leaves((rows, columns), (3,))
        y = (x[..., None] * w).reshape(rows * columns, 3).softmax(-1)[1:].square().mean()
        expected = torch.autograd.grad(y, [x, w], retain_graph=True)
        with context:
            y.backward()
        torch.testing.assert_close((x.grad, w.grad), expected)
    assert context.report.graphs <= 3 and context.report.compiled == 1


def test_a_size_of_one_is_a_graph_of_its_own(context: compiled_autograd) -> None:
    for rows in (4, 6, 1, 1, 8, 8):
        x, w = leaves((rows, 3), (1, 3))
        y = (x * w).expand(rows, 3).sin().sum()
        expected = torch.autograd.grad(y, [x, w], retain_graph=True)
        with context:
            y.backward()
        torch.testing.assert_close((x.grad, w.grad), expected)
    assert context.report.compiled == 2


def test_a_scalar_that_changes_becomes_an_input(context: compiled_autograd) -> None:
    (x,) = leaves((4,))
    for step in range(6):
        beta = 0.5 + 0.25 * step
        y = (x.sin() * beta).sum() * 3.0 + x.square().sum() * 2.0
        (expected,) = torch.autograd.grad(y, x, retain_graph=True)
        with context:
            (found,) = torch.autograd.grad(y, x)
        torch.testing.assert_close(found, expected, rtol=1e-6, atol=0)
    assert context.report.recorded == 2 and context.report.compiled == 4


def test_two_scalars_that_were_equal_part(context: compiled_autograd) -> None:
    (x,) = leaves((4,))
    for a, b in ((0.5, 0.5), (0.75, 0.75), (1.5, 2.5), (3.5, 4.5), (5.5, 5.5), (0.0, 1.0)):
        y = (x.sin() * a).sum() + (x.cos() * b).sum()
        (expected,) = torch.autograd.grad(y, x, retain_graph=True)
        with context:
            (found,) = torch.autograd.grad(y, x)
        assert torch.equal(found, expected)


def test_an_attribute_that_changes_is_recorded_anew(context: compiled_autograd) -> None:
    (x,) = leaves((4,))
    for power in (2.0, 3.0, 2.0, 3.0, 0.0, 1.0):
        y = (x.abs() + 1).pow(power).sum()
        (expected,) = torch.autograd.grad(y, x, retain_graph=True)
        with context:
            (found,) = torch.autograd.grad(y, x)
        torch.testing.assert_close(found, expected)


def test_numbers_that_make_graph_after_graph_end_on_the_engine() -> None:
    context = compiled_autograd(Counting())
    (x,) = leaves((4,))
    # (With the exponent 1, the derivative has the exponent 0, which is never made symbolic.)
    for power in [1.0 + 0.5 * i for i in range(11)]:
        y = (x.abs() + 1).pow(power).sum()
        (expected,) = torch.autograd.grad(y, x, retain_graph=True)
        with context:
            (found,) = torch.autograd.grad(y, x)
        torch.testing.assert_close(found, expected)
    assert context.report.graphs == passes.MAX_GRAPHS
    assert context.report.recorded == 11
    with context:
        torch.autograd.grad((x.abs() + 1).pow(6.0).sum(), x)
    assert context.report.on_engine == {"more than 8 graphs for backwards of one kind": 1}


def test_a_function_that_never_settles_is_the_engines() -> None:
    context = compiled_autograd(Counting())
    for step in range(9):
        (x,) = leaves((3,))
        h = x.sin()
        h.register_hook(lambda g, step=step: None if step else g * 2)
        with context:
            h.sum().backward()
        torch.testing.assert_close(x.grad, x.detach().cos() * (1 if step else 2))
    assert sum(context.report.taken_over.values()) == passes.MAX_DEVIATIONS
    assert sum(context.report.on_engine.values()) == 8 - passes.MAX_DEVIATIONS


def test_the_last_used_passes_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(passes, "MAX_STRUCTURES", 2)
    monkeypatch.setattr(passes, "MAX_PASSES", 2)
    context = compiled_autograd(Counting())
    (x,) = leaves((3,))

    def run(function: Callable[[Tensor], Tensor], size: int = 3) -> int:
        before = context.report.recorded
        y = function(x.detach()[:1].repeat(size).requires_grad_()).sum()
        with context:
            y.backward()
        return context.report.recorded - before

    assert [run(f) for f in (torch.sin, torch.exp, torch.sin)] == [1, 1, 0]
    assert [run(f) for f in (torch.tan, torch.sin, torch.exp)] == [1, 0, 1]
    assert [run(torch.exp, n) for n in (3, 4, 3, 5, 3, 4)] == [0, 1, 0, 1, 0, 1]


# --- what is not captured -------------------------------------------------------------------------


def test_native_dropout_tells_its_scale(context: compiled_autograd) -> None:
    for train in (True, False, True, False):
        (x,) = leaves((8, 8))
        torch.manual_seed(0)
        y, mask = torch.native_dropout(x, 0.25, train)
        with context:
            y.square().sum().backward()
        scale = 1 / 0.75 if train else 1.0
        torch.testing.assert_close(x.grad, 2 * y.detach() * mask * scale)
    assert context.report.compiled == 2


def test_writes_to_views_tell_where(context: compiled_autograd) -> None:
    places: list[Any] = [0, 2, (slice(None), 1), (slice(1, 3), slice(0, 2)), 0, 2]
    for place in places:
        x, y = leaves((4, 4), (4, 4))
        expected = leaves((4, 4), (4, 4))
        for a, b in ((x, y), expected):
            base = a * 2
            base[place] = b[place] * 3
            base.t()[1:2].mul_(b[:1])
            loss = base.square().sum()
            if a is x:
                with context:
                    loss.backward()
            else:
                loss.backward()
        torch.testing.assert_close((x.grad, y.grad), tuple(t.grad for t in expected))
        with pytest.raises(RuntimeError, match="second time"), context:
            (x.sin() + base).sum().backward()
    assert context.report.compiled == 2


def test_what_cannot_be_seen_is_the_engines(context: compiled_autograd) -> None:
    for _ in range(2):
        (x,) = leaves((6,))
        z = x.as_strided((2, 2), (2, 1)).sum()
        with context:
            z.backward()
        assert torch.equal(x.grad, torch.tensor([1.0, 1, 1, 1, 0, 0]))
    assert sum(context.report.on_engine.values()) == 2
    assert context.report.compiled == 0


def test_sparse_gradients_are_the_engines(context: compiled_autograd) -> None:
    for _ in range(3):
        (w,) = leaves((5, 3))
        y = nn.functional.embedding(torch.tensor([1, 1, 4]), w, sparse=True).sum()
        with context:
            y.backward()
        assert w.grad.is_sparse and w.grad.to_dense().sum() == 9
    assert context.report.compiled == 0


def test_data_dependent_backwards_are_the_engines(context: compiled_autograd) -> None:
    class Reads(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return x.clone()

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Tensor:
            return g * 2 if g.sum().item() > 0 else g * 3

    for sign in (1, 1, -1, -1, 1):
        (x,) = leaves((3,))
        with context:
            (Reads.apply(x) * sign).sum().backward()
        assert torch.equal(x.grad, torch.full((3,), 2.0 if sign > 0 else -3.0))


def test_a_compiler_that_fails_leaves_the_engine() -> None:
    def fails(gm: torch.fx.GraphModule, examples: list[Any]) -> Any:
        raise ValueError("no")

    context = compiled_autograd(fails)
    for _ in range(3):
        (x,) = leaves((3,))
        with context:
            x.sin().sum().backward()
        assert x.grad is not None
    assert context.report.on_engine["the compiler refused: ValueError: no"] == 2


# --- the context ----------------------------------------------------------------------------------


def test_other_threads_and_outside_are_left_alone() -> None:
    context = compiled_autograd(Counting())
    engine = torch.autograd.graph._engine_run_backward

    def other() -> None:
        (x,) = leaves((3,))
        x.sin().sum().backward()

    with context:
        assert torch.autograd.graph._engine_run_backward is not engine
        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
        assert context.report.recorded == 0
    assert torch.autograd.graph._engine_run_backward is engine
    other()
    assert context.report.recorded == 0


def test_nested_contexts_and_errors_inside() -> None:
    outer, inner = compiled_autograd(Counting()), compiled_autograd(Counting())
    engine = torch.autograd.graph._engine_run_backward
    with pytest.raises(ZeroDivisionError), outer:
        with inner:
            leaves((3,))[0].sin().sum().backward()
        leaves((3,))[0].sin().sum().backward()
        leaves((3,))[0].sin().sum().backward()
        raise ZeroDivisionError
    assert torch.autograd.graph._engine_run_backward is engine
    assert (inner.report.recorded, outer.report.recorded, outer.report.compiled) == (1, 1, 1)


def test_as_a_decorator() -> None:
    context = compiled_autograd(Counting())

    @context
    def step(x: Tensor) -> Tensor:
        x.grad = None
        x.sin().sum().backward()
        return x.grad

    (x,) = leaves((3,))
    for _ in range(3):
        assert torch.equal(step(x), x.detach().cos())
    assert context.report.compiled == 2


def test_threads_share_a_context() -> None:
    context = compiled_autograd(Counting())
    failures: list[BaseException] = []

    def work(seed: int) -> None:
        try:
            for step in range(20):
                (x,) = leaves((3 + step % 4, 2), seed=seed)
                h = x.sin()
                h.register_hook(lambda g: g * 2)
                with context:
                    h.sum().backward()
                assert torch.equal(x.grad, 2 * x.detach().cos())
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    assert context.report.graphs <= 4


def test_hooks_of_a_shared_parameter_in_threads() -> None:
    context = compiled_autograd(Counting())
    (w,) = leaves((64, 64))
    seen: list[int] = []
    w.register_hook(lambda g: seen.append(threading.get_ident()))
    failures: list[BaseException] = []

    def work(compiled: bool, size: int) -> None:
        try:
            for step in range(15):
                y = (torch.ones(size + step % 5, 64) @ w).sum()
                if compiled:
                    with context:
                        (g,) = torch.autograd.grad(y, w)
                else:
                    (g,) = torch.autograd.grad(y, w)
                assert torch.equal(g, torch.full((64, 64), float(size + step % 5)))
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(i % 2 == 0, 10 * i + 2)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    assert len(seen) == 60


def test_saved_tensors_are_given_away() -> None:
    class Consuming:
        def __init__(self, gm: torch.fx.GraphModule) -> None:
            self.gm = gm
            self.freed: list[bool] = []

        def __call__(self, *inputs: Tensor) -> Any:
            return self.gm(*inputs)

        def run_consuming(self, inputs: list[Tensor]) -> Any:
            results = self.gm(*inputs)
            seen = [weakref.ref(t) for t in inputs]
            inputs.clear()
            self.freed.append(any(ref() is None for ref in seen))
            return results

    made: list[Consuming] = []

    def compiler(gm: torch.fx.GraphModule, examples: list[Any]) -> Any:
        made.append(Consuming(gm))
        run = aot_compile(gm, examples, forward_compiler=lambda g, _: made[-1])
        return run

    context = compiled_autograd(compiler)
    for keep in (False, False, True):
        (x,) = leaves((3,))
        y = x.exp().sum()
        with context:
            y.backward(retain_graph=keep)
        assert torch.equal(x.grad, x.detach().exp())
    assert made[-1].freed == [True, False]


def test_aot_pieces_are_part_of_the_graph() -> None:
    def piece(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        h = torch.tanh(x @ w)
        return h, h.sum(0)

    x, w = leaves((4, 3), (3, 3))
    run = aot_compile(
        torch.fx.symbolic_trace(piece),
        [x, w],
        forward_compiler=lambda g, _: g.forward,
        decompositions=core_aten_table(),
    )
    backend = Counting()
    context = compiled_autograd(backend)
    for seed in range(4):
        grads = []
        for compiled in (False, True):
            x, w = leaves((4, 3), (3, 3), seed=seed)
            first, second = (run if compiled else piece)(x.sin(), w)
            third, _ = (run if compiled else piece)(first.exp(), w)
            value = third.sum() + second.cos().sum()
            if compiled:
                with context:
                    value.backward()
            else:
                value.backward()
            grads.append((x.grad, w.grad))
        torch.testing.assert_close(grads[0], grads[1])
        with pytest.raises(RuntimeError, match="second time"), context:
            value.backward()
    assert len(backend.graphs) == 1 and context.report.opaque_calls == 0
    assert context.report.compiled == 3
