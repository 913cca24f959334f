"""Attention with functions of its scores, from the program to kernels that run in Triton's
interpreter: `flex_attention`, and what models write out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from dovetail_autograd_aot import recognise_scored_attention
from dovetail_autograd_aot.patterns import score_patterns
from interpreted_attention import Kernels
from torch import Tensor
from torch.fx import GraphModule
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

import dovetail

N = 96
DOCUMENTS = torch.arange(N) * 4 // N


def same_document(b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
    return (DOCUMENTS[i] == DOCUMENTS[j]) & (i >= j)


def late(b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
    """Rows of which nothing is seen are 0."""
    return (i >= j) & (i > 70)


def alibi(score: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
    return score + (j - i) * 2.0 ** (-(h + 1) / 2)


def of_documents(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    mask = create_block_mask(same_document, None, None, N, N, device="cpu")
    return flex_attention(q, k, v, None, mask, enable_gqa=True)  # type: ignore[return-value]


def with_slopes(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    mask = create_block_mask(late, None, None, N, N, device="cpu")
    return flex_attention(  # type: ignore[return-value]
        q, k, v, alibi, mask, enable_gqa=True, return_lse=True
    )


def repeated(x: Tensor) -> Tensor:
    batch, heads, n, d = x.shape
    return x[:, :, None, :, :].expand(batch, heads, 2, n, d).reshape(batch, heads * 2, n, d)


def capped(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """As Gemma 2's modules write it."""
    scores = torch.matmul(q, repeated(k).transpose(2, 3)) * 0.25
    scores = torch.tanh(scores / 5.0) * 5.0
    hidden = torch.full((N, N), torch.finfo(torch.float16).min, dtype=q.dtype).triu(1)
    weights = F.softmax(scores + hidden[None, None], dim=-1, dtype=torch.float32).to(q.dtype)
    weights = F.dropout(weights, 0.1, False)
    return torch.matmul(weights, repeated(v)).transpose(1, 2).contiguous()


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(score_patterns, "WORTH_SCORES", 0)


def inputs() -> list[Tensor]:
    torch.manual_seed(0)
    return [torch.randn(2, N, heads, 16).half().transpose(1, 2) for heads in (4, 2, 2)]


def error(got: Tensor, wanted: Tensor) -> float:
    finite = wanted.isfinite()
    assert torch.equal(got.isfinite(), finite)
    return float((got - wanted)[finite].abs().mean())


@pytest.mark.parametrize("fn", [of_documents, with_slopes, capped], ids=lambda fn: fn.__name__)
def test_inference(fn: Callable[..., Any]) -> None:
    """No farther from float64 than eager."""
    kernels, args = Kernels(), inputs()
    with torch.no_grad():
        got = dovetail.compile(fn, backend=kernels)(*args)
        plain, exact = fn(*args), fn(*[t.double() for t in args])
    # With one that tells where a mask that is read lets something be seen; and no copies.
    assert set(kernels.names) <= {"attention", "attention_tiles"}
    assert "attention" in kernels.names
    results = [r if isinstance(r, tuple) else (r,) for r in (got, plain, exact)]
    for mine, eager, wanted in zip(*results, strict=True):
        assert mine.stride() == eager.stride()
        assert error(mine, wanted) <= 1.05 * error(eager, wanted) + 1e-6


def test_training() -> None:
    kernels = Kernels()
    args = [t.requires_grad_() for t in inputs()]
    wide = [t.detach().double().requires_grad_() for t in args]
    out, plain, exact = (
        dovetail.compile(capped, backend=kernels)(*args),
        capped(*args),
        capped(*wide),
    )
    slopes = torch.randn(out.shape).half()
    mine, eager, wanted = (
        torch.autograd.grad(y, x, slopes.to(y.dtype))
        for y, x in ((out, args), (plain, args), (exact, wide))
    )
    assert {"attention", "attention_of_keys", "attention_of_queries"} <= set(kernels.names)
    for a, b, c in zip(mine, eager, wanted, strict=True):
        assert error(a, c) <= error(b, c)


def test_lengths_change() -> None:
    """Of symbolic sizes scores stay in memory."""

    def fn(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return torch.tanh(q @ k.transpose(-2, -1)).softmax(-1) @ v

    kernels = Kernels()

    def backend(gm: GraphModule, examples: Sequence[Any]) -> Callable[..., Any]:
        found = recognise_scored_attention(gm, "cpu", (torch.float16,))
        kernels.names.append("recognised" if found is not gm else "plain")
        return gm.forward

    run = dovetail.compile(fn, backend=backend)
    for n in (64, 80, 96):
        args = [torch.randn(1, 2, n, 16).half() for _ in range(3)]
        torch.testing.assert_close(run(*args), fn(*args))
    assert kernels.names == ["recognised", "plain"]
