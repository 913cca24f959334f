"""Attention that a program writes out: what is recognised, and that it computes the same."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from dovetail_autograd_aot.patterns import attention_pattern
from dovetail_autograd_aot.patterns.attention_pattern import (
    attention_as_written,
    recognise_attention,
)
from dovetail_prims.fake.fake_mode import FakeMode, fake_arguments
from torch import Tensor, fx


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention_pattern, "WORTH_A_MASK", 0)


def plain(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    return (q @ k.transpose(-2, -1) / math.sqrt(8)).softmax(dim=-1) @ v


def scaled_first(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    return torch.matmul(F.softmax(torch.matmul(q * 0.3, k.transpose(2, 3)), -1), v)


def einsums(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    scores = torch.einsum("b h i d, b h j d -> b h i j", q, k) * 0.5
    return torch.einsum("bhij,bhjd->bhid", scores.softmax(-1), v)


def causal(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    scores = 0.5 * (q @ k.mT)
    scores = scores.masked_fill(mask == 0, float("-inf"))
    return F.dropout(F.softmax(scores, dim=-1), 0.1, False) @ v


def least(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    scores = torch.where(mask > 0, q @ k.mT, -1e9)
    return scores.float().softmax(-1).to(v.dtype) @ v


def in_three_dimensions(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    return torch.bmm(torch.bmm(q[0], k[0].mT).softmax(2), v[0])


def weights_are_read(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Any:
    weights = (q @ k.mT).softmax(-1)
    return weights @ v, weights


def added(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    """The mask of no row at all is -inf: such a row has no number."""
    return (q @ k.mT * 0.5 + mask.log()).softmax(-1) @ v


def added_first(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    """Numbers beside which scores vanish, from the model's own dtype."""
    mask = (1.0 - mask) * torch.finfo(torch.float32).min
    weights = F.softmax(mask[None, None] + q @ k.mT / 3, dim=-1, dtype=torch.float32).to(q.dtype)
    return F.dropout(weights, p=0.5, training=False) @ v


def biased(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    return (q @ k.mT + mask * 3).softmax(-1) @ v


def learnt(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    """A bias that takes a gradient: as written."""
    return (q @ k.mT + (mask * v.sum())).softmax(-1) @ v


def added_and_filled(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    return (q @ k.mT + mask).masked_fill(mask == 0, -torch.inf).softmax(-1) @ v


def added_several_times(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    """The scores of one for several masks."""
    return (q[:1] @ k[:1].mT + torch.stack([mask, mask * 2])[:, None]).softmax(-1) @ v[:1]


def added_twice_as_much(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    return torch.add(q @ k.mT, mask, alpha=2).softmax(-1) @ v


def dropped(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    return F.dropout((q @ k.mT).softmax(-1), 0.5) @ v


def other_dimension(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    return (q @ k.mT).softmax(-2) @ v


def moderate(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    return (q @ k.mT).masked_fill(mask == 0, -5.0).softmax(-1) @ v


def written_between(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    q = q * 1
    scores = q @ k.mT
    q.zero_()
    return scores.softmax(-1) @ v + q


def inputs() -> tuple[Tensor, ...]:
    generator = torch.Generator().manual_seed(0)
    made = [torch.randn(2, 3, 6, 8, generator=generator, requires_grad=True) for _ in range(3)]
    mask = torch.tril(torch.ones(6, 6))
    mask[2] = 0  # a row of which nothing is left
    return *made, mask


def recognised(fn: Callable[..., Any]) -> fx.GraphModule:
    gm = fx.symbolic_trace(fn)
    note_values(gm)
    return recognise_attention(gm, "cpu", (torch.float32,))


class _Noting(fx.Interpreter):
    def run_node(self, n: fx.Node) -> Any:
        n.meta["val"] = super().run_node(n)
        return n.meta["val"]


def note_values(gm: fx.GraphModule) -> None:
    """Give every node its `meta["val"]`."""
    with FakeMode():
        _Noting(gm).run(*fake_arguments(inputs()))


def calls(gm: fx.GraphModule) -> int:
    return sum(n.target is attention_as_written for n in gm.graph.nodes)


FORMS = [plain, scaled_first, einsums, causal, least, in_three_dimensions]


@pytest.mark.parametrize("fn", [*FORMS, added, added_first, biased, learnt])
@pytest.mark.parametrize("rows", ["each has something", "one has nothing"])
def test_the_same_forward_and_backward(fn: Callable[..., Tensor], rows: str) -> None:
    gm = recognised(fn)
    assert calls(gm) == 1
    gm.graph.lint()
    mine, wanted = inputs(), inputs()
    dead = rows == "one has nothing"
    if not dead:
        mine[3][2, 0] = wanted[3][2, 0] = 1
    with torch.no_grad():
        torch.testing.assert_close(gm(*mine), fn(*wanted), equal_nan=True)
    got, want = gm(*mine), fn(*wanted)
    torch.testing.assert_close(got, want, equal_nan=True)
    assert bool(want.isnan().any()) == (fn in (causal, added) and dead)
    for g, w in zip(
        torch.autograd.grad(got.nan_to_num().square().sum(), mine[:3]),
        torch.autograd.grad(want.nan_to_num().square().sum(), wanted[:3]),
        strict=True,
    ):
        torch.testing.assert_close(g, w, equal_nan=True)


@pytest.mark.parametrize(
    "fn",
    [
        weights_are_read, dropped, other_dimension, moderate, written_between,
        added_and_filled, added_twice_as_much, added_several_times,
    ],
)  # fmt: skip
def test_what_is_no_attention_stays(fn: Callable[..., Any]) -> None:
    """What would not be the same: weights that somebody reads, dropout, shares along another
    dimension, scores that are filled with some that count, and a query that is written to after its
    scores were computed; or is said in a way that is not looked for."""
    assert calls(recognised(fn)) == 0


def test_where_an_added_mask_is_the_kernels() -> None:
    """Without gradients; with them the formula runs."""
    ran: list[str] = []

    class Seen(torch.overrides.TorchFunctionMode):
        def __torch_function__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            ran.append(getattr(func, "__name__", ""))
            return func(*args, **(kwargs or {}))

    gm = recognised(added_first)
    with Seen(), torch.no_grad():
        gm(*inputs())
    assert "scaled_dot_product_attention" in ran and "softmax" not in ran
    ran.clear()
    with Seen():
        gm(*inputs())
    assert "scaled_dot_product_attention" not in ran and "softmax" in ran


def test_only_types_that_the_kernels_are_made_for() -> None:
    gm = fx.symbolic_trace(plain)
    note_values(gm)
    assert recognise_attention(gm) is gm
    assert recognise_attention(gm, "cpu") is gm


def test_a_mask_needs_many_scores(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of few the formula is faster; without a mask attention is."""
    monkeypatch.setattr(attention_pattern, "WORTH_A_MASK", 1000)
    assert calls(recognised(causal)) == 0 and calls(recognised(plain)) == 1


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_added_masks_of_every_type(dtype: torch.dtype) -> None:
    """The least number of a narrow type is not so little that scores vanish beside it."""
    q, k, v, seen = (t.detach() for t in inputs())
    seen[2, 0] = 1
    for mask in (seen.log(), (1 - seen) * torch.finfo(dtype).min):
        got = attention_as_written(
            q.to(dtype), k.to(dtype), v.to(dtype), None, added=mask.to(dtype), scale=0.5
        )
        wanted = (q @ k.mT * 0.5 + mask).softmax(-1) @ v
        torch.testing.assert_close(got.float(), wanted, rtol=2e-2, atol=2e-2)
