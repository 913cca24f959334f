"""Operators along a dimension whose length only the data tells, none included, and routing to
experts by it: one graph, against eager."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import dovetail

EXPERTS = nn.ModuleList(nn.Linear(4, 4) for _ in range(3))
ROUTER = nn.Linear(4, 4)
HEADS = nn.MultiheadAttention(4, 2, batch_first=True)


def kept(x: Tensor) -> Tensor:
    return x[x[:, 0] > 0]


def attention(x: Tensor) -> Tensor:
    y = kept(x)[None]
    found: Tensor = HEADS(y, y, y)[0]
    return found


def causal(x: Tensor) -> Tensor:
    y = kept(x)[None, None]
    return F.scaled_dot_product_attention(y, y, y, is_causal=True)


def divergence(x: Tensor) -> Tensor:
    y = kept(x)
    return F.kl_div(y.log_softmax(1), y.t().contiguous().t().softmax(1), reduction="batchmean")


def pooled(x: Tensor) -> Tensor:
    y = kept(x)
    y = torch.cat([y, x[:2]]).t()[None]
    torch._check(y.shape[-1] >= 2)
    return F.max_pool1d(y, 2, 1)


def set_if_any(x: Tensor) -> tuple[Tensor, Tensor]:
    """By one truth value: a number, a tensor, what is broadcast."""
    y, z = x * 2, (x * 3).long()
    y[x.sum() > 0] = 5.5
    y[x.sum() <= 0] = x[:1].sin()
    z[x.sum() > -1] = 7
    return y, z


def routed_by_place(x: Tensor) -> Tensor:
    weights, chosen = ROUTER(x).softmax(-1).topk(2)
    chosen = chosen % 3
    out = torch.zeros_like(x)
    for number, expert in enumerate(EXPERTS):
        row, rank = torch.where(chosen == number)
        out.index_add_(0, row, expert(x[row]) * weights[row, rank, None])
    return out


def routed_by_mask(x: Tensor) -> Tensor:
    chosen = ROUTER(x).argmax(-1) % 3
    out = torch.zeros_like(x)
    for number, expert in enumerate(EXPERTS):
        mask = chosen == number
        out[mask] = expert(x[mask])
    return out


def routed_by_order(x: Tensor) -> Tensor:
    chosen = ROUTER(x).argmax(-1) % 3
    counts = torch.bincount(chosen, minlength=3)
    torch._check(counts.shape[0] == 3)
    order = chosen.argsort()
    parts = x[order].split(counts.tolist())
    found = torch.cat([expert(part) for expert, part in zip(EXPERTS, parts, strict=True)])
    return torch.zeros_like(x).index_copy(0, order, found)


PROGRAMS: dict[str, Callable[[Tensor], Any]] = {
    "softmax": lambda x: kept(x).softmax(0),
    "log_softmax": lambda x: kept(x).log_softmax(0),
    "logsumexp": lambda x: kept(x).logsumexp(0),
    "std": lambda x: kept(x).std(0),
    "std of all": lambda x: kept(x).std(),
    "var of all, biased": lambda x: kept(x).var(unbiased=False),
    "var_mean": lambda x: torch.var_mean(kept(x), 0),
    "normalize": lambda x: F.normalize(kept(x), dim=0),
    "standardized": lambda x: (kept(x) - kept(x).mean(0)) / (kept(x).std(0) + 1e-5),
    "roll": lambda x: kept(x).roll(1, 0),
    "roll far": lambda x: kept(x).roll((-3, 5), (0, 1)),
    "attention": attention,
    "causal": causal,
    "divergence": divergence,
    "pooled": pooled,
    "set if any": set_if_any,
    "routed by place": routed_by_place,
    "routed by mask": routed_by_mask,
    "routed by order": routed_by_order,
}


def inputs() -> list[Tensor]:
    """With several rows kept, one, none."""
    torch.manual_seed(0)
    several, one, none = torch.randn(6, 4), torch.randn(6, 4), torch.randn(6, 4)
    several[:4, 0], one[:, 0], none[:, 0] = 1.0, -1.0, -1.0
    one[2, 0] = 2.0
    return [several, one, none]


def observed(function: Callable[[Tensor], Any], x: Tensor) -> list[Any]:
    x = x.clone().requires_grad_()
    with torch.no_grad():
        first = function(x)
    result = function(x)
    results = list(result) if isinstance(result, tuple) else [result]
    graded = [one.sin().sum() for one in results if one.requires_grad]
    (gradient,) = torch.autograd.grad(torch.stack(graded).sum(), x)
    return [first, *(one.detach() for one in results), gradient]


@pytest.mark.filterwarnings("ignore:.*degrees of freedom:UserWarning")
@pytest.mark.parametrize("name", PROGRAMS)
def test_as_eager(name: str) -> None:
    compiled = dovetail.compile(PROGRAMS[name], fullgraph=True)
    for x in inputs():
        wanted, found = observed(PROGRAMS[name], x), observed(compiled, x)
        torch.testing.assert_close(found, wanted, equal_nan=True, rtol=1e-4, atol=1e-5)
    assert dovetail.report(compiled).graphs == 2  # with gradients, and without


@pytest.mark.parametrize(
    "program",
    [
        lambda x: kept(x).max(),
        lambda x: kept(x).max(0).values,
        lambda x: kept(x).amin(0),
        lambda x: kept(x).argmax(0),
    ],
)
def test_a_maximum_says_that_there_is_one(program: Callable[[Tensor], Tensor]) -> None:
    compiled = dovetail.compile(program, fullgraph=True)
    several, one, none = inputs()
    for x in (several, one):
        torch.testing.assert_close(compiled(x), program(x))
    with pytest.raises((RuntimeError, IndexError)):
        program(none)
    with pytest.raises(RuntimeError, match="a check of the program fails"):
        compiled(none)


def test_a_list_of_a_length_that_only_the_data_tells() -> None:
    with pytest.raises(dovetail.CaptureError, match=r"(?s)tolist.*torch._check\(counts.shape"):
        dovetail.compile(lambda x: torch.bincount(x).tolist(), fullgraph=True)(torch.arange(3))
