"""Attention of few queries, as in generating text, from the program to kernels that run in Triton's
interpreter: a launch reads the keys of a head once, whatever heads of queries there are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from dovetail_inductor.lowering import scored_attention
from interpreted_attention import Kernels
from torch import Tensor, nn

import dovetail

N = 200
attend = F.scaled_dot_product_attention


class Cache(nn.Module):
    """Attention over a static cache of two heads, which each step writes in place."""

    def __init__(self, repeats: bool, mask: str) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.repeats, self.mask = repeats, mask
        self.register_buffer("keys", torch.randn(2, 2, N, 32).half())
        self.register_buffer("values", torch.randn(2, 2, N, 16).half())

    def forward(self, q: Tensor, k: Tensor, v: Tensor, place: Tensor) -> Tensor:
        self.keys[:, :, place] = k
        self.values[:, :, place] = v
        keys, values = self.keys, self.values
        if self.repeats:  # as transformers writes it
            keys, values = (
                x[:, :, None].expand(2, 2, 3, N, x.shape[-1]).reshape(2, 6, N, -1)
                for x in (keys, values)
            )
        mask = None
        if self.mask:
            mask = (torch.arange(N) <= place[:, None])[None, None]
        if self.mask == "added":
            mask = torch.where(mask, 0.0, -torch.inf).half()
        return F.scaled_dot_product_attention(
            q, keys, values, attn_mask=mask, enable_gqa=not self.repeats, scale=0.2
        )


def step(place: int, m: int = 1) -> list[Tensor]:
    torch.manual_seed(place)
    q, k, v = (torch.randn(2, heads, m, d).half() for heads, d in ((6, 32), (2, 32), (2, 16)))
    return [q, k, v, torch.arange(place, place + m)]


@pytest.mark.parametrize("m", [1, 3])
@pytest.mark.parametrize("mask", ["", "bool", "added"])
@pytest.mark.parametrize("repeats", [False, True])
@pytest.mark.parametrize("programs", [4, 264])
def test_steps_over_a_cache(
    programs: int, repeats: bool, mask: str, m: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scored_attention, "PROGRAMS", programs)
    mine, eager = Cache(repeats, mask), Cache(repeats, mask)
    backend = Kernels()
    compiled = dovetail.compile(mine, backend=backend, fullgraph=True, dynamic=False)
    for place in (0, 63, 64, N - m):
        got, wanted = compiled(*step(place, m)), eager(*step(place, m))
        assert got.stride() == wanted.stride() and got.dtype is wanted.dtype
        torch.testing.assert_close(got, wanted, rtol=4e-3, atol=4e-3)
        assert torch.equal(mine.keys, eager.keys) and torch.equal(mine.values, eager.values)
    assert backend.names.count("attention_of_few") == 1


def test_what_the_mask_hides_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """In whole tiles, where a program has several: it may hold no numbers."""
    monkeypatch.setattr(scored_attention, "PROGRAMS", 4)
    mine, eager = Cache(False, "bool"), Cache(False, "bool")
    compiled = dovetail.compile(mine, backend=Kernels(), fullgraph=True, dynamic=False)
    wanted = eager(*step(5))
    mine.keys[:, :, 128:] = torch.nan
    mine.values[:, :, 128:] = torch.nan
    torch.testing.assert_close(compiled(*step(5)), wanted, rtol=4e-3, atol=4e-3)


def test_rows_of_which_nothing_is_seen() -> None:
    q, k, v, _ = step(0)
    keys, values = (x.expand(2, 2, N, x.shape[-1]).contiguous() for x in (k, v))
    mask = torch.ones(2, 1, 1, N, dtype=torch.bool)
    mask[1] = False

    def masked(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
        return attend(q, k, v, mask, enable_gqa=True)

    compiled = dovetail.compile(masked, backend=Kernels(), fullgraph=True)
    got = compiled(q, keys, values, mask)
    assert (got[1] == 0).all()
    torch.testing.assert_close(got[0], masked(q, keys, values, mask)[0], rtol=4e-3, atol=4e-3)


@pytest.mark.parametrize(("wide", "narrow"), [(24, 40), (96, 80)])
def test_heads_whose_size_is_no_power_of_two(wide: int, narrow: int) -> None:
    """What programs leave to one another is as wide as a tile (the interpreter watches memory)."""
    torch.manual_seed(0)
    q, k, v = (
        torch.randn(1, heads, n, d).half()
        for heads, n, d in ((4, 2, narrow), (2, 300, narrow), (2, 300, wide))
    )
    assert recognised(lambda q, k, v: attend(q, k, v, enable_gqa=True), q, k, v)


def recognised(function: Callable[..., Any], *inputs: Tensor) -> bool:
    """Whether a program has a kernel of few queries, if it has no other kernel of the library's."""
    backend = Kernels(library=True)
    compiled = dovetail.compile(function, backend=backend, fullgraph=True)
    got, wanted = compiled(*inputs), function(*inputs)
    torch.testing.assert_close(got, wanted, rtol=4e-3, atol=4e-3)
    return "attention_of_few" in backend.names


def test_which_calls_have_such_a_kernel() -> None:
    torch.manual_seed(0)
    q, k, v = (torch.randn(1, 4, n, 32).half() for n in (1, N, N))
    assert recognised(lambda q, k, v: attend(q, k, v), q, k, v)
    assert recognised(lambda q, k, v: attend(q, k, v, is_causal=False, dropout_p=0.0), q, k, v)
    assert not recognised(lambda q, k, v: attend(q, k, v, is_causal=True), q, k, v)
    assert not recognised(lambda q, k, v: attend(q, k, v), q.expand(1, 4, 17, 32), k, v)
    assert not recognised(lambda q, k, v: attend(q, k, v), q, k[:, :, :50], v[:, :, :50])
    assert not recognised(lambda q, k, v: attend(q, k, v), q.float(), k.float(), v.float())
    many = [torch.randn(1, 4, n, 256).half() for n in (1, N, N)]
    assert not recognised(lambda q, k, v: attend(q, k, v), *many)
    assert not recognised(lambda q, k, v: attend(q, k, v), q.requires_grad_(), k, v)
