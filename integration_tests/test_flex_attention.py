"""`flex_attention`: its functions of scores and places are part of the graph."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.attention.flex_attention import (
    BlockMask,
    and_masks,
    create_block_mask,
    flex_attention,
    or_masks,
)

import dovetail

N = 128
BIAS = torch.randn(N, N, generator=torch.Generator().manual_seed(0))
DOCUMENTS = (torch.arange(N) // 48).expand(2, N).contiguous()
SLOPES = torch.tensor([0.5, 0.25, 0.125, 0.0625])


def causal(b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
    return i >= j


def near(b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
    return (i - j).abs() < 16


def same_document(b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
    return DOCUMENTS[b, i] == DOCUMENTS[b, j]


def late_rows(b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
    return (i >= j) & (i > 40)


def alibi(score: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
    return score + SLOPES[h] * (j - i)


def biased(score: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
    return score + BIAS[i, j]


def capped(score: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
    return 20 * torch.tanh(score / 20)


def hidden(score: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
    return torch.where(i >= j, score, -float("inf"))


def from_table(score: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
    return score + BIAS[DOCUMENTS[b, i], (i - j).abs()] * SLOPES[h]


MASKS: dict[str, Any] = {
    "none": None,
    "causal": causal,
    "window": and_masks(causal, near),
    "either": or_masks(causal, near),
    "documents": same_document,
    "empty rows": late_rows,
}
SCORES: dict[str, Any] = {
    "none": None, "alibi": alibi, "bias": biased, "cap": capped, "hidden": hidden,
    "table": from_table,
}  # fmt: skip


def tensors(dtype: torch.dtype = torch.float32, keys: int = 4, n: int = N) -> list[Tensor]:
    torch.manual_seed(1)
    shapes = ((2, n, 4, 16), (2, n, keys, 16), (2, n, keys, 16))
    return [torch.randn(shape, dtype=dtype).transpose(1, 2) for shape in shapes]


def block_mask(mask: Any, n: int = N) -> BlockMask | None:
    return None if mask is None else create_block_mask(mask, 2, None, n, n, device="cpu")


def same(function: Callable[..., Any], *inputs: Any, tolerance: float = 1e-5) -> None:
    """One graph, and what eager gives, in its layout."""
    want = function(*inputs)
    compiled = dovetail.compile(function, fullgraph=True, isolate_recompiles=True)
    got = compiled(*inputs)
    assert dovetail.report(compiled).graphs == 1
    wanted, found = ([v] if isinstance(v, Tensor) else list(v) for v in (want, got))
    for mine, theirs in zip(found, wanted, strict=True):
        assert mine.dtype is theirs.dtype and mine.stride() == theirs.stride()
        torch.testing.assert_close(mine, theirs, atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("score", SCORES)
def test_scores_and_masks(score: str, mask: str) -> None:
    made = block_mask(MASKS[mask])

    def attend(query: Tensor, key: Tensor, value: Tensor) -> Any:
        return flex_attention(query, key, value, SCORES[score], made)

    same(attend, *tensors())


def test_heads_in_groups_sums_scale_and_dtypes() -> None:
    made = block_mask(causal)

    def grouped(query: Tensor, key: Tensor, value: Tensor) -> Any:
        return flex_attention(query, key, value, None, made, scale=0.3, enable_gqa=True)

    def sums(query: Tensor, key: Tensor, value: Tensor) -> Any:
        return flex_attention(query, key, value, alibi, made, enable_gqa=True, return_lse=True)

    same(grouped, *tensors(keys=2))
    same(sums, *tensors(keys=2))
    same(grouped, *tensors(torch.bfloat16, keys=1), tolerance=2e-2)
    same(sums, *tensors(torch.float64), tolerance=1e-12)
    rows = [t.contiguous() for t in tensors()]
    same(grouped, *rows)


def test_a_mask_made_in_the_graph_and_one_given() -> None:
    def made_here(query: Tensor, documents: Tensor) -> Any:
        def of_one(b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
            return (documents[b, i] == documents[b, j]) & (i >= j)

        mask = create_block_mask(of_one, 2, None, N, N, device=query.device)
        return flex_attention(query, query, query, block_mask=mask)

    query = tensors()[0]
    same(made_here, query, DOCUMENTS)

    @dovetail.compile(fullgraph=True)
    def given(query: Tensor, mask: Any) -> Any:
        return flex_attention(query, query, query, block_mask=mask)

    for mask in (causal, near, causal):
        made = block_mask(mask)
        torch.testing.assert_close(
            given(query, made), flex_attention(query, query, query, block_mask=made)
        )


def test_captured_tensors_take_gradients() -> None:
    bias = BIAS.clone().requires_grad_()
    query, key, value = tensors()

    def attend(query: Tensor, key: Tensor, value: Tensor) -> Any:
        def score(s: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
            return s + bias[i, j]

        return flex_attention(query, key, value, score)

    weights = (query @ key.mT / math.sqrt(16) + bias).softmax(-1)
    (want,) = torch.autograd.grad((weights @ value).sin().sum(), bias)
    out = dovetail.compile(attend, fullgraph=True)(query, key, value)
    (got,) = torch.autograd.grad(out.sin().sum(), bias)
    torch.testing.assert_close(got, want, atol=1e-5, rtol=1e-5)


def test_lengths_change() -> None:
    @dovetail.compile(fullgraph=True)
    def attend(query: Tensor, key: Tensor, value: Tensor, mask: Any) -> Any:
        return flex_attention(query, key, value, alibi, mask)

    for n in (128, 96, 64, 80):
        made = block_mask(causal, n)
        inputs = tensors(n=n)
        torch.testing.assert_close(attend(*inputs, made), flex_attention(*inputs, alibi, made))
    assert dovetail.report(attend).graphs <= 3


def test_what_eager_refuses() -> None:
    made = block_mask(causal)
    query = tensors()[0]

    @dovetail.compile
    def attend(query: Tensor, mask: Any = None) -> Any:
        return flex_attention(query, query, query, block_mask=mask)

    with pytest.raises(NotImplementedError, match="backward on CPU"):
        attend(query.clone().requires_grad_())
    with pytest.raises((ValueError, RuntimeError), match="block_mask"):
        attend(query[:, :, :100], made)

    @dovetail.compile
    def beside(query: Tensor, key: Tensor, mask: Any = None) -> Any:
        return flex_attention(query, key, key, block_mask=mask)

    one = query[:1]
    with pytest.raises(ValueError, match="batch"):
        beside(query, one)
    with pytest.raises(ValueError, match="batch"):
        beside(query, one, create_block_mask(causal, None, None, N, N, device="cpu"))
    torch.testing.assert_close(
        beside(query, one, made), flex_attention(query, one, one, block_mask=made)
    )
