"""Attention with a function of its scores: what is recognised, and that it computes the same."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from dovetail_autograd_aot import AotSettings, aot_compile
from dovetail_autograd_aot.patterns import called_attention, score_patterns, scored_attention
from dovetail_autograd_aot.patterns.scored_attention import recognise_scored_attention
from dovetail_prims.decompositions import core_aten_table
from dovetail_prims.fake.fake_mode import FakeMode, fake_arguments
from torch import Tensor, fx
from torch.overrides import TorchFunctionMode

M, N = 6, 8


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(score_patterns, "WORTH_SCORES", 0)
    monkeypatch.setattr(score_patterns, "LEAST_LENGTH", 1)
    monkeypatch.setattr(called_attention, "MOST_FEW", 0)
    monkeypatch.setattr(score_patterns, "HEAD_SIZES", range(2, 257))


def seen() -> Tensor:
    return torch.arange(M)[:, None] + 2 >= torch.arange(N)[None, :]


def capped(q: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> Tensor:
    """As Gemma 2 has it, with the mask that is added."""
    scores = torch.matmul(q, k.transpose(2, 3)) * 0.5
    scores = torch.tanh(scores / 3.0) * 3.0
    hidden = torch.full((M, N), torch.finfo(torch.float32).min).triu(1)
    weights = F.softmax(scores + hidden, dim=-1, dtype=torch.float32).to(q.dtype)
    return torch.matmul(F.dropout(weights, 0.1, False), v).transpose(1, 2)


def grouped(q: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> Tensor:
    """Each head of keys for two of queries, as Llama's modules repeat them."""
    k, v = k[:, :2], v[:, :2]
    k = k[:, :, None, :, :].expand(2, 2, 2, N, 4).reshape(2, 4, N, 4)
    v = v[:, :, None, :, :].expand(2, 2, 2, N, 4).reshape(2, 4, N, 4)
    scores = q @ k.transpose(-2, -1)
    return torch.where(seen(), scores.sin(), -torch.inf).softmax(-1) @ v


def interleaved(q: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> Tensor:
    k, v = k[:, :2].repeat_interleave(2, 1), v[:, :2].repeat_interleave(2, 1)
    return torch.tanh(q @ k.transpose(-2, -1)).softmax(-1) @ v


def biased(q: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> Tensor:
    return (torch.sigmoid(q @ k.mT * 0.3) + bias).softmax(-1) @ v


def einsums(q: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> Tensor:
    scores = torch.einsum("bhid,bhjd->bhij", q, k) * 0.3
    return torch.einsum("bhij,bhjd->bhid", (scores * scores.abs()).softmax(-1), v)


def shaped_like_another(q: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> Tensor:
    """Nothing is read of what a mask is made after the type of."""
    hidden = q.new_ones(M, N).triu(1) > 0
    return torch.where(hidden, -torch.inf, (q @ k.mT).sin()).softmax(-1) @ v


def in_place(q: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> Tensor:
    scores = q @ k.transpose(-2, -1)
    scores = scores.mul_(0.5).sin().masked_fill_(~seen(), -torch.inf)
    return scores.softmax(-1) @ v


def nothing_seen(q: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> Tensor:
    """The first rows have no number, as the softmax of nothing."""
    hidden = torch.arange(M)[:, None] < torch.arange(N)[None, :] + 2
    return (q @ k.transpose(-2, -1)).tanh().masked_fill(hidden, -torch.inf).softmax(-1) @ v


def sums_wanted(q: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> Any:
    """As `flex_attention` is written out."""
    scores = torch.where(seen(), (q @ k.transpose(-2, -1)).tanh(), -torch.inf)
    sums = torch.logsumexp(scores, -1)
    shares = torch.exp(scores - torch.where(sums.isneginf(), 0.0, sums).unsqueeze(-1))
    return shares @ v, sums


def with_a_mask(q: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> Tensor:
    """As `flex_attention` with a mask alone is written out; some rows see nothing."""
    seen = (torch.arange(M)[:, None] >= torch.arange(N)[None, :] + 1)[None, None]
    some = seen.any(-1, keepdim=True)
    out = F.scaled_dot_product_attention(q, k, v, attn_mask=seen | ~some, scale=0.4)
    return torch.where(some, out, 0.0)


def with_a_constant_mask(q: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> Tensor:
    """For which the library has kernels."""
    seen = (torch.arange(M)[:, None] >= torch.arange(M)[None, :])[None, None]
    some = seen.any(-1, keepdim=True)
    k, v = k[:, :, :M], v[:, :, :M]
    out = F.scaled_dot_product_attention(q, k, v, attn_mask=seen | ~some, scale=0.4)
    return torch.where(some, out, 0.0)


def written_over(q: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> Tensor:
    """Nobody can differentiate it: what tanh needs for that is gone."""
    scores = (q @ k.transpose(-2, -1)).tanh_().masked_fill_(~seen(), -torch.inf)
    return scores.softmax(-1) @ v


def weights_are_read(q: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> Any:
    weights = (q @ k.transpose(-2, -1)).tanh().softmax(-1)
    return weights @ v, weights


def scores_are_read(q: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> Any:
    scores = (q @ k.transpose(-2, -1)).tanh()
    return scores.softmax(-1) @ v, scores.sum()


def of_several_scores(q: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> Tensor:
    scores = q @ k.transpose(-2, -1)
    return (scores - scores.mean(-1, keepdim=True)).tanh().softmax(-1) @ v


def dropped(q: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> Tensor:
    return F.dropout((q @ k.transpose(-2, -1)).tanh().softmax(-1), 0.5) @ v


def noisy(q: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> Tensor:
    return F.dropout((q @ k.transpose(-2, -1)), 0.5).softmax(-1) @ v


def no_function(q: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> Tensor:
    return (q @ k.transpose(-2, -1)).softmax(-1) @ v


def written_between(q: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> Tensor:
    values = v * 1
    scores = (q @ k.transpose(-2, -1)).tanh()
    values.mul_(2)
    return scores.softmax(-1) @ values


def mask_written_before(q: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> Tensor:
    """What the mask was made of is another when the scores are computed."""
    places = torch.arange(N) * 1
    hidden = places > 5
    places.zero_()
    return (q @ k.transpose(-2, -1)).tanh().masked_fill(hidden, -torch.inf).softmax(-1) @ v


def inputs(bias_gradient: bool = False) -> tuple[Tensor, ...]:
    generator = torch.Generator().manual_seed(0)
    q = torch.randn(2, M, 4, 4, generator=generator).transpose(1, 2).requires_grad_()
    k, v = (torch.randn(2, 4, N, 4, generator=generator, requires_grad=True) for _ in range(2))
    return q, k, v, torch.randn(4, 1, N, generator=generator, requires_grad=bias_gradient)


def captured(fn: Callable[..., Any], args: tuple[Tensor, ...]) -> fx.GraphModule:
    """The graph of a function, factories included, with the values of nodes."""
    tracer = fx.Tracer()

    class Factories(TorchFunctionMode):
        def __torch_function__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            if func in (torch.arange, torch.full):
                return tracer.create_proxy("call_function", func, args, kwargs or {})
            return func(*args, **(kwargs or {}))

    with Factories():
        gm = fx.GraphModule({}, tracer.trace(fn))

    class Noting(fx.Interpreter):
        def run_node(self, n: fx.Node) -> Any:
            n.meta["val"] = found = super().run_node(n)
            return found

    with FakeMode():
        Noting(gm).run(*fake_arguments(args))
    return gm


def compiled(fn: Callable[..., Any], args: tuple[Tensor, ...]) -> tuple[Any, list[Any]]:
    """The function with attention recognised, and what its forward graph calls."""
    called: list[Any] = []

    def compiler(gm: fx.GraphModule, _: Any) -> Callable[..., Any]:
        called.extend(n.target for n in gm.graph.nodes)
        return gm.forward

    gm = captured(fn, args)
    (output,) = gm.graph.find_nodes(op="output")
    if not isinstance(output.args[0], tuple):
        output.args = ((output.args[0],),)
    gm.recompile()
    run = aot_compile(
        gm,
        args,
        forward_compiler=compiler,
        decompositions=core_aten_table(),
        settings=AotSettings(lambda gm: recognise_scored_attention(gm, "cpu", (torch.float32,))),
    )
    return run, called


def calls_the_operator(called: list[Any]) -> bool:
    return torch.ops.dovetail_attention.forward.default in called


RECOGNISED = (
    capped, grouped, interleaved, biased, einsums, shaped_like_another, in_place, nothing_seen,
    sums_wanted, mask_written_before, with_a_mask,
)  # fmt: skip
OTHERS = (
    weights_are_read, scores_are_read, of_several_scores, dropped, noisy, no_function,
    written_between,
)  # fmt: skip


@pytest.mark.parametrize("fn", RECOGNISED, ids=lambda fn: fn.__name__)
def test_same_results_and_gradients(fn: Callable[..., Any]) -> None:
    args = inputs()
    run, called = compiled(fn, args)
    assert calls_the_operator(called)
    got, wanted = run(*args), fn(*args)
    wanted = wanted if isinstance(wanted, tuple) else (wanted,)
    for mine, eager in zip(got, wanted, strict=True):
        torch.testing.assert_close(mine, eager, equal_nan=True)
        assert mine.stride() == eager.stride()
    slopes = [torch.randn(w.shape) for w in wanted]
    mine = torch.autograd.grad(got, args[:3], slopes)
    eager = torch.autograd.grad(wanted, args[:3], slopes)
    for a, b in zip(mine, eager, strict=True):
        torch.testing.assert_close(a, b, equal_nan=True)


@pytest.mark.parametrize("fn", OTHERS, ids=lambda fn: fn.__name__)
def test_others_stay_as_they_are(fn: Callable[..., Any]) -> None:
    gm = captured(fn, inputs())
    assert recognise_scored_attention(gm, "cpu", (torch.float32,)) is gm


def test_other_devices_and_types_stay_as_they_are() -> None:
    gm = captured(capped, inputs())
    assert recognise_scored_attention(gm) is gm
    assert recognise_scored_attention(gm, "cpu") is gm


def test_what_takes_a_gradient_is_read_as_the_program_says() -> None:
    args = inputs(bias_gradient=True)
    run, called = compiled(biased, args)
    assert not calls_the_operator(called)
    (got,), wanted = run(*args), biased(*args)
    torch.testing.assert_close(got, wanted)
    slope = torch.randn(wanted.shape)
    mine = torch.autograd.grad(got, args, slope)
    for a, b in zip(mine, torch.autograd.grad(wanted, args, slope), strict=True):
        torch.testing.assert_close(a, b)
    with torch.no_grad():
        run, called = compiled(biased, args)
    assert calls_the_operator(called)


def test_without_a_derivative_inference_alone() -> None:
    args = inputs()
    run, called = compiled(written_over, args)
    assert not calls_the_operator(called)
    with torch.no_grad():
        run, called = compiled(written_over, args)
        assert calls_the_operator(called)
        torch.testing.assert_close(run(*args)[0], written_over(*args))


def test_training_of_wide_heads_keeps_scores_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scored_attention, "WIDE", 3)
    args = inputs()
    assert not calls_the_operator(compiled(capped, args)[1])
    assert calls_the_operator(compiled(sums_wanted, args)[1])
    with torch.no_grad():
        assert calls_the_operator(compiled(capped, args)[1])


def test_the_library_keeps_the_masks_that_it_knows() -> None:
    args = inputs()
    run, called = compiled(with_a_constant_mask, args)
    assert not calls_the_operator(called)
    torch.testing.assert_close(run(*args)[0], with_a_constant_mask(*args))


def test_masks_are_computed_with_the_scores() -> None:
    """What is read is what cannot be computed for less."""
    gm = recognise_scored_attention(captured(grouped, inputs()), "cpu", (torch.float32,))
    calls = [n for n in gm.graph.nodes if "attention" in getattr(n.target, "__name__", "")]
    assert [len(call.args) for call in calls] == [3]
    gm = recognise_scored_attention(captured(biased, inputs()), "cpu", (torch.float32,))
    calls = [n for n in gm.graph.nodes if "attention" in getattr(n.target, "__name__", "")]
    assert [len(call.args) for call in calls] == [4]


def test_double_backward() -> None:
    args = inputs()
    run, _ = compiled(capped, args)
    found = []
    for fn in (lambda *a: run(*a)[0], capped):
        (first,) = torch.autograd.grad(fn(*args).sin().sum(), args[:1], create_graph=True)
        found.append(torch.autograd.grad(first.square().sum(), args[:3]))
    for a, b in zip(*found, strict=True):
        torch.testing.assert_close(a, b)
