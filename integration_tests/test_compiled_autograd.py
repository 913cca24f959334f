"""Compiled autograd with our compiler: whole models, compiled and eager pieces, hooks, sizes."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any

import pytest
import sweep_operators
import torch
from dovetail_autograd_aot import compiled_autograd
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map
from transformers import BertConfig, BertForMaskedLM, GPT2Config, GPT2LMHeadModel

import dovetail

Losses = list[float]


def bert() -> nn.Module:
    config = BertConfig(
        vocab_size=99,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=64,
        hidden_dropout_prob=0.1,
        attention_probs_dropout_prob=0.0,
    )
    return BertForMaskedLM(config)


def gpt2() -> nn.Module:
    config = GPT2Config(
        vocab_size=99, n_embd=32, n_layer=2, n_head=4, n_positions=64,
        resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0,
    )  # fmt: skip
    return GPT2LMHeadModel(config)


class Convolutional(nn.Module):
    """Convolutions, batch norm, a residual, pooling."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 8, 3, padding=1)
        self.norm = nn.BatchNorm2d(8)
        self.second = nn.Conv2d(8, 8, 3, padding=1)
        self.head = nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        h = nn.functional.max_pool2d(self.norm(self.first(x)).relu(), 2)
        h = h + self.second(h)
        return self.head(h.mean((2, 3)))


def language_loss(model: Callable[..., Any], step: int, length: int) -> Tensor:
    ids = torch.randint(0, 99, (3, length), generator=torch.Generator().manual_seed(step))
    return model(input_ids=ids, labels=ids).loss


def image_loss(model: Callable[..., Any], step: int, size: int) -> Tensor:
    generator = torch.Generator().manual_seed(step)
    x = torch.randn(4, 3, size, size, generator=generator)
    return nn.functional.cross_entropy(model(x), torch.tensor([0, 1, 2, 3]))


def train(
    make: Callable[[], nn.Module],
    loss_of: Callable[..., Tensor],
    sizes: Sequence[int],
    context: compiled_autograd | None,
    compiled: bool,
) -> Losses:
    torch.manual_seed(0)
    model = make()
    called = dovetail.compile(model) if compiled else model
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    losses = []
    for step, size in enumerate(sizes):
        optimizer.zero_grad()
        loss = loss_of(called, step, size)
        if context is None:
            loss.backward()
        else:
            with context:
                loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


MODELS = {
    "bert": (bert, language_loss, (16, 16, 24, 24, 20, 16)),
    "gpt2": (gpt2, language_loss, (16, 16, 24, 24, 20, 16)),
    "convolutional": (Convolutional, image_loss, (16, 16, 16, 16, 12, 12)),
}


@pytest.mark.parametrize("compiled", [False, True], ids=["eager forward", "compiled forward"])
@pytest.mark.parametrize("name", MODELS)
def test_training_is_eagers(name: str, compiled: bool) -> None:
    make, loss_of, sizes = MODELS[name]
    context = dovetail.compiled_autograd()
    ours = train(make, loss_of, sizes, context, compiled)
    expected = train(make, loss_of, sizes, None, False)
    torch.testing.assert_close(ours, expected, rtol=1e-4, atol=1e-5)
    report = context.report
    assert not report.on_engine and not report.taken_over, report
    assert report.recorded + report.compiled == len(sizes)
    assert report.compiled >= 2 and report.graphs <= 3, report


def test_one_graph_for_lengths_that_change() -> None:
    context = dovetail.compiled_autograd()
    train(gpt2, language_loss, (16, 24, 20, 33, 16, 24, 20, 33), context, False)
    assert (context.report.graphs, context.report.symbolic) == (2, 1)
    assert context.report.compiled == 4
    backend: Any = context.passes.compiler
    assert not backend.records.per_size


def test_compiled_and_eager_pieces_are_one_graph() -> None:
    @dovetail.compile
    def first(x: Tensor, w: Tensor) -> Tensor:
        return torch.tanh(x @ w).sin()

    @dovetail.compile
    def second(x: Tensor, w: Tensor) -> Tensor:
        return (x.cos() @ w).relu()

    context = dovetail.compiled_autograd()
    for seed in range(4):
        generator = torch.Generator().manual_seed(seed)
        x, v, w = (torch.randn(4, 4, generator=generator).requires_grad_() for _ in range(3))
        h = first(x, v)
        loss = second(h.exp() * h, w).mean() + first(h, w).sum()
        expected = torch.autograd.grad(loss, [x, v, w], retain_graph=True)
        with context:
            loss.backward()
        torch.testing.assert_close((x.grad, v.grad, w.grad), expected)
        with pytest.raises(RuntimeError, match="second time"), context:
            loss.backward()
    assert context.report.graphs == 1 and context.report.compiled == 3
    assert context.report.opaque_calls == 0


def test_hooks_and_functions_are_called_from_the_graph() -> None:
    class Cubed(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            ctx.save_for_backward(x)
            return x**3

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Tensor:
            (x,) = ctx.saved_tensors
            return 3 * x**2 * g

    context = dovetail.compiled_autograd()
    kept: list[Tensor] = []
    for seed in range(4):
        generator = torch.Generator().manual_seed(seed)
        x = torch.randn(16, 16, generator=generator).requires_grad_()
        h = Cubed.apply(x.sin())
        h.register_hook(kept.append)
        h.register_hook(lambda g: g * 2)
        loss = (h * h.exp()).mean()
        with context:
            loss.backward()
        d = h.detach()
        torch.testing.assert_close(kept[-1], (1 + d) * d.exp() / 256)
        s = x.detach().sin()
        torch.testing.assert_close(x.grad, 2 * kept[-1] * 3 * s**2 * x.detach().cos())
    assert context.report.compiled == 3 and context.report.opaque_calls == 3
    assert len({k.data_ptr() for k in kept}) == 4


def test_accumulation_over_micro_batches() -> None:
    torch.manual_seed(0)
    ours = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 2))
    eager = copy.deepcopy(ours)
    context = dovetail.compiled_autograd()
    for step in range(3):
        for model in (ours, eager):
            model.zero_grad()
            for part in range(3):
                generator = torch.Generator().manual_seed(10 * step + part)
                loss = model(torch.randn(5, 4, generator=generator)).square().mean()
                if model is ours:
                    with context:
                        loss.backward()
                else:
                    loss.backward()
        for a, b in zip(ours.parameters(), eager.parameters(), strict=True):
            torch.testing.assert_close(a.grad, b.grad)
    assert context.report.graphs == 2 and context.report.compiled == 7


# Operators whose backward has a shape of its own; the whole database is swept by hand.
OPERATORS = (
    "add", "mul", "div.floor_rounding", "addmm", "bmm", "cat", "stack", "cumsum", "cumprod",
    "prod", "std", "logsumexp", "gather", "scatter_add", "index_select", "masked_fill", "where",
    "max.reduction_with_dim", "norm", "sort", "split", "unfold", "expand", "repeat", "roll",
    "nn.functional.conv2d", "nn.functional.layer_norm", "nn.functional.linear",
    "nn.functional.embedding", "nn.functional.interpolate.bilinear", "as_strided", "block_diag",
    "linalg.det", "linalg.solve", "nn.functional.cross_entropy", "unbind", "to",
)  # fmt: skip


@pytest.mark.parametrize("name", OPERATORS)
def test_backward_of_an_operators_samples(name: str) -> None:
    op = sweep_operators.operators()[name]
    context = compiled_autograd(lambda gm, _: gm.forward)
    samples = list(op.sample_inputs("cpu", torch.float32, requires_grad=True))[:6]
    compared = 0
    for sample in samples:
        for scale in (1.0, 0.5):
            results = [run_sample(op, sample, scale, c) for c in (None, context)]
            if results[0] is None:
                continue
            for a, b in zip(*results, strict=True):
                torch.testing.assert_close(a, b, equal_nan=True)
                assert a is None or a.stride() == b.stride()
                compared += 1
    assert compared


def run_sample(
    op: Any, sample: Any, scale: float, context: compiled_autograd | None
) -> list[Tensor | None] | None:
    """The gradients of one sample's inputs; None if nothing requires grad."""

    def own(value: Any) -> Any:
        if not isinstance(value, Tensor):
            return value
        return value.detach().clone().requires_grad_(value.requires_grad)

    args, kwargs = tree_map(own, ((sample.input, *sample.args), sample.kwargs))
    torch.manual_seed(0)
    result = op(*args, **kwargs)
    if sample.output_process_fn_grad is not None:
        result = sample.output_process_fn_grad(result)
    roots = [r for r in tree_leaves(result) if isinstance(r, Tensor) and r.requires_grad]
    if not roots:
        return None
    given = [torch.full_like(r, scale) for r in roots]
    if context is None:
        torch.autograd.backward(roots, given)
    else:
        with context:
            torch.autograd.backward(roots, given)
    return [t.grad for t in tree_leaves((args, kwargs)) if isinstance(t, Tensor) and t.is_leaf]


@pytest.mark.parametrize("values", [(2, 3, 4, 5, 4), (2.5, 3.5, 4.5, 1.5, 3.5)])
def test_numbers_that_a_compiled_forward_keeps(values: Sequence[float]) -> None:
    """A number is in no tensor's size, and yet another one makes other gradients."""

    def function(x: Tensor, n: float) -> Tensor:
        return (x.sin() * n).cos()

    compiled = dovetail.compile(function, dynamic=True)
    context = dovetail.compiled_autograd()
    for n in (*values, *values):
        x = torch.linspace(-1, 1, 5).requires_grad_()
        with context:
            compiled(x, n).sum().backward()
        (wanted,) = torch.autograd.grad(function(x, n).sum(), x)
        torch.testing.assert_close(x.grad, wanted)
    assert context.report.compiled >= len(values) and not context.report.on_engine


class Clipped(torch.autograd.Function):
    """Of a sum of gradients its backward makes another than the sum."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return (2 * x * g).clamp(-0.1, 0.1)


def apart(x: Tensor, y: Tensor, w: Tensor) -> tuple[Tensor, ...]:
    return torch.tanh(x @ w).exp(), (y * y).sin() @ w, (x * y).cos()


def apart_beside_own_backwards(x: Tensor, y: Tensor, w: Tensor) -> tuple[Tensor, ...]:
    return Clipped.apply(x @ w).exp(), Clipped.apply(y).sin() @ w, (x * y).cos()


@pytest.mark.parametrize("backend", ["aot_eager", "dovetail"])
@pytest.mark.parametrize("in_context", [False, True])
@pytest.mark.parametrize("function", [apart, apart_beside_own_backwards])
def test_one_backward_for_each_output(function: Any, in_context: bool, backend: str) -> None:
    compiled = dovetail.compile(function, backend=backend, fullgraph=True)
    context = dovetail.compiled_autograd()
    for step in range(3):
        for order in ((0, 1, 2), (2, 0, 1)):
            found = []
            for call in (function, compiled):
                generator = torch.Generator().manual_seed(step)
                given = [torch.randn(4, 4, generator=generator).requires_grad_() for _ in range(3)]
                outputs = call(*given)
                for place in order:
                    with context if in_context and call is compiled else nullcontext():
                        outputs[place].square().sum().backward()
                    with pytest.raises(RuntimeError, match="a second time"):
                        outputs[place].sum().backward()
                found.append([x.grad for x in given])
            torch.testing.assert_close(found[1], found[0], rtol=1e-4, atol=1e-5)
    if in_context:
        assert context.report.compiled == 12 and not context.report.on_engine


def test_what_meets_in_an_own_backward_is_freed_with_it() -> None:
    def function(x: Tensor) -> tuple[Tensor, Tensor]:
        middle = Clipped.apply(x)
        return middle * 2, middle * 3

    for call in (function, dovetail.compile(function)):
        first, second = call(torch.ones(3, requires_grad=True))
        first.sum().backward()
        with pytest.raises(RuntimeError, match="a second time"):
            second.sum().backward()


def test_several_gradients_at_once_leave_the_other_outputs_theirs() -> None:
    found = []
    for call in (apart, dovetail.compile(apart)):
        generator = torch.Generator().manual_seed(0)
        given = [torch.randn(4, 4, generator=generator).requires_grad_() for _ in range(3)]
        many = torch.randn(3, 4, 4, generator=generator)
        outputs = call(*given)
        grads = torch.autograd.grad(
            outputs[0], given, many, is_grads_batched=True, allow_unused=True
        )
        outputs[1].sum().backward()
        found.append([*grads, *(x.grad for x in given)])
    torch.testing.assert_close(found[1], found[0])


def test_a_write_between_the_backwards_is_noticed_in_a_replay() -> None:
    def function(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return x.sin(), y.exp() * y

    compiled, context = dovetail.compile(function), dovetail.compiled_autograd()
    for step in range(4):
        x, y = torch.ones(3, requires_grad=True), torch.ones(3, requires_grad=True)
        first, second = compiled(x, y)
        with context:
            first.sum().backward()
        if step < 3:
            with context:
                second.sum().backward()
            continue
        with torch.no_grad():
            y.mul_(2)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"), context:
            second.sum().backward()
