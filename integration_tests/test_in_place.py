"""Inputs that a compiled function writes to: their values, version counters and memory, whether the
new values were computed where they lie or copied there."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import dovetail


def step(p: Tensor, g: Tensor, m: Tensor) -> None:
    m.mul_(0.9).add_(g, alpha=0.1)
    p.sub_(m, alpha=0.01)


def three(device: str = "cpu") -> list[Tensor]:
    return [torch.randn(50, 7, device=device) for _ in range(3)]


class Queue(nn.Module):
    """Keys of earlier batches, which a loss compares with before those of this one replace them."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.register_buffer("keys", torch.randn(4, 8))
        self.register_buffer("at", torch.zeros(1, dtype=torch.long))

    def forward(self, x: Tensor) -> Tensor:
        query = self.layer(x)
        found = query @ self.keys.clone().detach()
        with torch.no_grad():
            at = int(self.at)  # breaks the graph
            self.keys[:, at : at + len(x)] = query.T
            self.at[0] = (at + len(x)) % 8
        return found


def test_a_queue_is_written_to_before_the_backward() -> None:
    torch.manual_seed(0)
    mine = Queue()
    theirs = copy.deepcopy(mine)
    run = dovetail.compile(mine)
    for _ in range(3):
        x = torch.randn(4, 4)
        for model, call in ((theirs, theirs), (mine, run)):
            model.zero_grad()
            call(x).sin().sum().backward()
        torch.testing.assert_close(mine.layer.weight.grad, theirs.layer.weight.grad)
        torch.testing.assert_close(mine.keys, theirs.keys)


@pytest.mark.parametrize("context", [torch.no_grad, torch.inference_mode])
def test_steps(context: Callable[[], Any]) -> None:
    with context():
        mine = three()
        theirs = [t.clone() for t in mine]
        views = [t.view(-1) for t in mine]
        compiled = dovetail.compile(step)
        for _ in range(4):
            compiled(*mine)
            step(*theirs)
        for a, b, view in zip(mine, theirs, views, strict=True):
            torch.testing.assert_close(a, b)
            torch.testing.assert_close(view, b.view(-1))
        if not mine[0].is_inference():
            assert mine[0]._version == 4 and mine[1]._version == 0 and mine[2]._version > 0


def test_a_value_saved_for_a_backward_before_is_noticed() -> None:
    p, g, m = three()
    x = torch.randn(50, 7, requires_grad=True)
    loss = (x * p).sum()
    with torch.no_grad():
        dovetail.compile(step)(p, g, m)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_inputs_that_share_memory() -> None:
    def fn(a: Tensor, b: Tensor) -> Tensor:
        a.add_(1)
        return b * 2

    compiled = dovetail.compile(fn)
    x, y, z = torch.zeros(6), torch.zeros(6), torch.zeros(6)
    with torch.no_grad():
        for a, b in ((x, y), (x, x), (x, x[:]), (x[:5], x[1:]), (x[:3], x[3:]), (y, x)):
            at = a.storage_offset()
            eager = [t.clone() for t in (x, y)]
            ea = (eager[0] if a._base is x or a is x else eager[1])[at : at + len(a)]
            eb = (eager[0] if b._base is x or b is x else eager[1])[b.storage_offset() :][: len(b)]
            torch.testing.assert_close(compiled(a, b), fn(ea, eb))
            torch.testing.assert_close([x, y], eager)
        later = z[2:5]
        torch.testing.assert_close(compiled(later, y), y * 2)
        torch.testing.assert_close(z, torch.tensor([0.0, 0, 1, 1, 1, 0]))


def test_a_version_counter_that_stays() -> None:
    def fn(p: Tensor, g: Tensor) -> None:
        p.data.add_(g)

    p, g, _ = three()
    wanted = p + g
    dovetail.compile(fn)(p, g)
    torch.testing.assert_close(p, wanted)
    assert p._version == 0


def test_an_error_leaves_inputs_as_they_were() -> None:
    def fn(cache: Tensor, count: Tensor, rows: Tensor, at: Tensor) -> None:
        count.add_(1)
        cache[at] = rows

    cache, count, rows = torch.zeros(8, 4), torch.zeros(8, 4), torch.ones(1, 4)
    compiled = dovetail.compile(fn)
    compiled(cache, count, rows, torch.tensor([7]))
    assert cache[7].sum() == 4 and count.sum() == 32
    with pytest.raises((IndexError, RuntimeError)):
        compiled(cache, count, rows, torch.tensor([8]))
    assert cache.sum() == 4 and count.sum() == 32


@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
@pytest.mark.gpu
def test_steps_on_a_gpu(mode: str) -> None:
    with torch.no_grad():
        mine = three("cuda")
        theirs = [t.clone() for t in mine]
        compiled = dovetail.compile(step, mode=mode)
        for _ in range(6):
            compiled(*mine)
            step(*theirs)
        moved = [t.clone() for t in mine]
        compiled(*moved)
        step(*theirs)
        torch.testing.assert_close(moved, theirs)
        assert mine[0]._version >= 6


class Attention(nn.Module):
    """One token after another, with a cache."""

    def __init__(self, width: int = 128, heads: int = 4, length: int = 64) -> None:
        super().__init__()
        self.heads = heads
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        for name in ("keys", "values"):
            self.register_buffer(name, torch.zeros(2, heads, length, width // heads))

    def forward(self, x: Tensor, at: Tensor) -> Tensor:
        parts = self.qkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        q, k, v = parts
        self.keys.index_copy_(2, at, k)
        self.values[:, :, at] = v
        mask = torch.arange(self.keys.shape[2], device=x.device) <= at[:, None]
        y = F.scaled_dot_product_attention(q, self.keys, self.values, attn_mask=mask)
        return self.out(y.transpose(1, 2).flatten(2))


def decoded(model: nn.Module, call: Any, device: str) -> tuple[list[Tensor], list[Tensor]]:
    with torch.no_grad():
        given = torch.Generator().manual_seed(0)
        outputs = []
        for position in range(6):
            x = torch.randn(2, 1, 128, generator=given).to(device)
            outputs.append(call(x, torch.tensor([position], device=device)).clone())
    return outputs, [b.clone() for b in model.buffers()]


def check_decoding(device: str, mode: str) -> None:
    torch.manual_seed(0)
    mine, theirs = Attention().to(device), Attention().to(device)
    theirs.load_state_dict(mine.state_dict())
    got = decoded(mine, dovetail.compile(mine, mode=mode), device)
    torch.testing.assert_close(got, decoded(theirs, theirs, device), rtol=1e-4, atol=1e-5)


def test_decoding() -> None:
    check_decoding("cpu", "default")


@pytest.mark.gpu
@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
def test_decoding_on_a_gpu(mode: str) -> None:
    check_decoding("cuda", mode)


@pytest.mark.parametrize("computed", [lambda x: (x + x).abs(), lambda x: (x * 3 - 1).sin() * 2])
def test_what_a_part_before_a_break_took_is_written_to_by_the_next(computed: Any) -> None:
    """Eager keeps a sum, and not what it is of."""

    def function(leaf: Tensor) -> Tensor:
        x = leaf * 1.5
        print(end="")  # a break
        y = computed(x)
        print(end="")  # a break
        x.neg_()
        return y + x

    compiled = dovetail.compile(function)
    results = []
    for call in (function, compiled):
        leaf = torch.linspace(-2, 2, 12).requires_grad_()
        result = call(leaf)
        result.sum().backward()
        results.append((result.detach(), leaf.grad))
    torch.testing.assert_close(results[1], results[0])


def add_one(x: Tensor) -> Tensor:
    return x.add_(1)


@pytest.mark.parametrize("first_normal", [False, True])
def test_an_inference_tensor_is_not_written_to_outside_of_the_mode(first_normal: bool) -> None:
    compiled = dovetail.compile(add_one)
    if first_normal:
        compiled(torch.ones(3))
    with torch.inference_mode():
        x = torch.ones(3)
    with pytest.raises(RuntimeError, match="Inplace update to inference tensor"):
        compiled(x)
    with torch.inference_mode():
        before = x.clone()
        assert torch.equal(compiled(x), before + 1)


def inferred(x: Tensor) -> tuple[Tensor, Tensor]:
    with torch.inference_mode():
        y = x * 2
        return y, y[0]


def test_what_a_block_of_inference_mode_makes_is_made_in_it() -> None:
    y, z = dovetail.compile(inferred, fullgraph=True)(torch.ones(3, requires_grad=True))
    assert y.is_inference() and z.is_inference() and z == 2
    with torch.inference_mode():
        y.zero_()
    assert z == 0
    with pytest.raises(RuntimeError, match="cannot be saved for backward"):
        y * torch.ones(3, requires_grad=True)
