"""Attention by its kernels' operators; attention with a function of its scores as one operator: its
plain meaning, and its shapes."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from dovetail_prims.fake.fake_mode import FakeMode, fake_arguments
from dovetail_prims.graphs.graph_text import NoText, graph_of, run_text, text_of
from dovetail_prims.graphs.record import trace_aten
from dovetail_prims.graphs.scored_attention import scored_attention
from dovetail_prims.symbolic.attention import attention
from torch import Tensor


def function(scores: Tensor, bias: Tensor) -> Tensor:
    m, n = scores.shape[-2:]
    seen = torch.arange(m)[:, None] >= torch.arange(n)[None, :] + 1
    return torch.where(seen, torch.tanh(scores) * 2 + bias, -math.inf)


def with_slopes(scores: Tensor, bias: Tensor, slopes: Tensor) -> tuple[Tensor, Tensor]:
    m, n = scores.shape[-2:]
    seen = torch.arange(m)[:, None] >= torch.arange(n)[None, :] + 1
    t = torch.tanh(scores)
    return function(scores, bias), torch.where(seen, slopes * 2 * (1 - t * t), 0.0)


def inputs() -> tuple[Tensor, ...]:
    torch.manual_seed(0)
    q = torch.randn(2, 6, 4, 5).transpose(1, 2)  # heads after places in memory
    k, v = torch.randn(2, 2, 7, 5), torch.randn(2, 2, 7, 3)
    return q, k, v, torch.randn(4, 1, 7)


def text() -> str:
    scores = torch.empty(2, 4, 6, 7)
    return text_of(trace_aten(with_slopes, scores, inputs()[3], torch.empty_like(scores)).graph)


@pytest.mark.parametrize("empty", [0.0, math.nan])
def test_as_written_with_gradients(empty: float) -> None:
    *operands, bias = inputs()
    q, k, v = (t.requires_grad_() for t in operands)
    out, sums = scored_attention(q, k, v, [bias], text(), empty)
    keys, values = (t.repeat_interleave(2, 1) for t in (k, v))
    scores = function(q @ keys.mT, bias)
    shares = torch.softmax(scores, -1)
    if empty == 0:
        shares = torch.where(scores.isneginf().all(-1, keepdim=True), 0.0, shares)
    wanted = shares @ values
    torch.testing.assert_close(out, wanted, equal_nan=True)
    torch.testing.assert_close(sums, torch.logsumexp(scores, -1))
    assert out.transpose(1, 2).is_contiguous()
    if empty == 0:  # the first row sees nothing
        below = sums[:, :, 1:]
        got = torch.autograd.grad(out.sin().sum() + below.cos().sum(), (q, k, v))
        lower = torch.logsumexp(scores[:, :, 1:], -1)
        total = (shares[:, :, 1:] @ values).sin().sum() + lower.cos().sum()
        for mine, eager in zip(got, torch.autograd.grad(total, (q, k, v)), strict=True):
            torch.testing.assert_close(mine, eager)


def test_shapes_are_those_of_the_results() -> None:
    *operands, bias = inputs()
    real = scored_attention(*operands, [bias], text(), 0.0)
    with FakeMode():
        fakes = scored_attention(*fake_arguments(operands), [bias], text(), 0.0)
    for fake, value in zip(fakes, real, strict=True):
        assert (fake.shape, fake.stride(), fake.dtype) == (value.shape, value.stride(), value.dtype)


def test_there_is_no_second_derivative() -> None:
    *operands, bias = inputs()
    q, k, v = (t.requires_grad_() for t in operands)
    out, _ = scored_attention(q, k, v, [bias], text(), 0.0)
    (gradient,) = torch.autograd.grad(out.sum(), (q,), create_graph=True)
    with pytest.raises(RuntimeError, match="no second derivative"):
        gradient.sum().backward()


def test_a_graph_goes_through_its_text() -> None:
    def fn(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        kept = x.to(torch.float64).masked_fill(y > 0, -math.inf)
        return kept, torch.full((3,), 2, dtype=torch.int32, device=x.device) + y.long()

    x, y = torch.randn(2, 3), torch.randn(3)
    made = text_of(trace_aten(fn, x, y).graph)
    for mine, eager in zip(run_text(made, [x, y]), fn(x, y), strict=True):
        torch.testing.assert_close(mine, eager)
    again = graph_of(made, fake_arguments([x, y]))
    assert text_of(again.graph) == made
    assert again.graph.find_nodes(op="output")[0].args[0][0].meta["val"].dtype is torch.float64
    (first,) = run_text(made, [x, y], 1)
    torch.testing.assert_close(first, fn(x, y)[0])


def test_what_has_no_text() -> None:
    with pytest.raises(NoText, match="max"):
        text_of(trace_aten(lambda x: x.max(0)[0], torch.randn(2, 3)).graph)


MASKS = {
    "none": None,
    "boolean": torch.ones(8, 8, dtype=torch.bool).tril(),
    "boolean of every batch": torch.ones(1, 1, 8, 8, dtype=torch.bool).tril().expand(2, 1, 8, 8),
    "added": torch.randn(2, 1, 8, 8),
    "added, turned": torch.randn(1, 8, 8, 4).permute(0, 3, 1, 2),
}


CASES = [(mask, False) for mask in MASKS] + [("none", True)]  # a mask, or causal: not both


@pytest.mark.parametrize(("mask", "causal"), CASES)
@pytest.mark.parametrize("heads", [4, 1])
def test_as_pytorch_computes_it(mask: str, heads: int, causal: bool) -> None:
    """`heads` of keys and values: one serves all queries, which only the plain formula takes."""
    chosen: Tensor | None = MASKS[mask]
    q, k, v = torch.randn(2, 4, 8, 16), torch.randn(2, heads, 8, 16), torch.randn(2, heads, 8, 16)
    with pytest.MonkeyPatch.context() as patch:
        # The plain formula, as on a GPU for what no fused kernel takes.
        patch.setattr("dovetail_prims.symbolic.attention.choose_backend", lambda *args: "math")
        got = attention(q, k, v, chosen, is_causal=causal)
    torch.testing.assert_close(got, F.scaled_dot_product_attention(q, k, v, chosen, 0.0, causal))
