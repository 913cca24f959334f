"""`flex_attention` on a GPU: trained, as exact as eager's, which has all scores in memory."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

import dovetail

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
N = 256


def causal(b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
    return i >= j


def late_rows(b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
    return (i >= j) & (i > 40)


def capped(score: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
    return 20 * torch.tanh(score / 20) + 0.01 * (j - i) * (h + 1)


def inputs(dtype: torch.dtype) -> list[Tensor]:
    torch.manual_seed(0)
    return [
        torch.randn(2, N, heads, 64, device="cuda", dtype=dtype).transpose(1, 2).requires_grad_()
        for heads in (4, 2, 2)
    ]


def run(function: Any, tensors: list[Tensor]) -> list[Tensor]:
    out = function(*tensors)
    return [out.detach(), *torch.autograd.grad(out.float().sin().sum(), tensors)]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("score", [None, capped], ids=["plain", "capped"])
@pytest.mark.parametrize("mask", [None, causal, late_rows], ids=["all", "causal", "late"])
def test_training(mask: Any, score: Any, dtype: torch.dtype) -> None:
    made = None if mask is None else create_block_mask(mask, None, None, N, N, device="cuda")

    def attend(query: Tensor, key: Tensor, value: Tensor) -> Any:
        return flex_attention(query, key, value, score, made, enable_gqa=True)

    exact = run(attend, [t.detach().double().requires_grad_() for t in inputs(dtype)])
    eager = run(attend, inputs(dtype))
    compiled = dovetail.compile(attend, fullgraph=True)
    found = run(compiled, inputs(dtype))
    assert dovetail.report(compiled).graphs == 1
    assert found[0].stride() == eager[0].stride()
    for mine, theirs, right in zip(found, eager, exact, strict=True):
        assert mine.dtype is theirs.dtype
        size = right.abs().max()
        error, allowed = (mine - right).abs().max() / size, (theirs - right).abs().max() / size
        assert error <= 2 * allowed + torch.finfo(dtype).eps
