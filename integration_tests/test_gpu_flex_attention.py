"""Attention with functions of its scores on a GPU: trained, as exact as eager's, which has all
scores in memory; in 2-byte floats by kernels that have none there."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

import dovetail

pytestmark = pytest.mark.gpu
N = 384


def causal(b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
    return i >= j


def late_rows(b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
    return (i >= j) & (i > 40)


def documents(b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
    return (i // 100 == j // 100) & (i >= j)


def capped(score: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
    return 20 * torch.tanh(score / 20) + 0.01 * (j - i) * (h + 1)


def inputs(dtype: torch.dtype, n: int = N) -> list[Tensor]:
    torch.manual_seed(0)
    return [
        torch.randn(2, n, heads, 64, device="cuda", dtype=dtype).transpose(1, 2).requires_grad_()
        for heads in (4, 2, 2)
    ]


def run(function: Any, tensors: list[Tensor]) -> list[Tensor]:
    out = function(*tensors)
    return [out.detach(), *torch.autograd.grad(out.float().sin().sum(), tensors)]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("score", [None, capped], ids=["plain", "capped"])
@pytest.mark.parametrize(
    "mask", [None, causal, late_rows, documents], ids=["all", "causal", "late", "documents"]
)
def test_training(mask: Any, score: Any, dtype: torch.dtype) -> None:
    made = None if mask is None else create_block_mask(mask, None, None, N, N, device="cuda")

    def attend(query: Tensor, key: Tensor, value: Tensor) -> Any:
        return flex_attention(query, key, value, score, made, enable_gqa=True)

    launched = check(attend, dtype, N)
    ours = dtype is torch.bfloat16 and (score is not None or mask in (late_rows, documents))
    assert any(kernel.startswith("attention_") for kernel, _ in launched) is ours


def repeated(x: Tensor) -> Tensor:
    batch, heads, n, d = x.shape
    return x[:, :, None, :, :].expand(batch, heads, 2, n, d).reshape(batch, heads * 2, n, d)


@pytest.mark.parametrize("n", [N, 401])
def test_a_soft_cap_written_out(n: int) -> None:
    """As Gemma 2's modules write it."""

    def attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        scores = torch.matmul(query, repeated(key).transpose(2, 3)) * 0.125
        scores = torch.tanh(scores / 20) * 20
        least = torch.finfo(torch.float16).min
        hidden = torch.full((n, n), least, dtype=query.dtype, device="cuda").triu(1)
        weights = torch.softmax(scores + hidden, dim=-1).to(query.dtype)
        return torch.matmul(weights, repeated(value))

    launched = check(attend, torch.bfloat16, n)
    assert any(kernel.startswith("attention_") for kernel, _ in launched)


def check(attend: Any, dtype: torch.dtype, n: int) -> Any:
    """Trains, and compares with eager and float64; the forward's kernels."""
    exact = run(attend, [t.detach().double().requires_grad_() for t in inputs(dtype, n)])
    eager = run(attend, inputs(dtype, n))
    compiled = dovetail.compile(attend, fullgraph=True)
    found = run(compiled, inputs(dtype, n))
    report = dovetail.report(compiled)
    assert report.graphs == 1
    assert found[0].stride() == eager[0].stride()
    for mine, theirs, right in zip(found, eager, exact, strict=True):
        assert mine.dtype is theirs.dtype
        size = right.abs().max()
        error, allowed = (mine - right).abs().max() / size, (theirs - right).abs().max() / size
        assert error <= 2 * allowed + torch.finfo(dtype).eps
    return report.forward_launches
