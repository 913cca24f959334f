"""Random numbers of compiled code are eager's very numbers (`fallback_random`)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import dovetail


def factories(x: Tensor) -> Any:
    return torch.rand(3, 4), torch.randn(5), torch.randint(0, 9, (6,)), torch.randperm(7)


def like(x: Tensor) -> Any:
    return torch.rand_like(x), torch.randn_like(x), torch.randint_like(x, 2, 8)


def in_place(x: Tensor) -> Any:
    a, b, c, d = (torch.empty(4, 5) for _ in range(4))
    return a.uniform_(1, 2), b.normal_(3, 2), c.exponential_(2.0), d.bernoulli_(0.3)


def more_in_place(x: Tensor) -> Any:
    a, b, c = (torch.empty(4, 5) for _ in range(3))
    return a.cauchy_(), b.log_normal_(), c.geometric_(0.4), torch.empty(9).random_(0, 5)


def samplers(x: Tensor) -> Any:
    weights = x.detach().abs() + 0.1
    return (
        torch.bernoulli(weights.clamp(max=1)), torch.multinomial(weights, 3),
        torch.normal(x, 0.5), torch.normal(0.0, weights), torch.poisson(weights * 4),
    )  # fmt: skip


def dropouts(x: Tensor) -> Any:
    y = F.dropout(x, 0.3) + F.alpha_dropout(x, 0.2)
    return y * F.dropout1d(x, 0.5) + F.rrelu(x, training=True)


def softly(x: Tensor) -> Any:
    return F.gumbel_softmax(x, tau=0.5) + F.gumbel_softmax(x, hard=True)


def attention(x: Tensor) -> Any:
    q = x.view(1, 2, 4, 3)
    return F.scaled_dot_product_attention(q, q, q, dropout_p=0.4)


def in_the_middle(x: Tensor) -> Any:
    """Two graphs, and eager between them, draw from one generator."""
    y = F.dropout(x, 0.5)
    dovetail.graph_break()
    return F.dropout(y * torch.rand(()), 0.5), torch.rand(2)


PROGRAMS: list[Callable[[Tensor], Any]] = [
    factories, like, in_place, more_in_place, samplers, dropouts, softly, attention, in_the_middle,
]  # fmt: skip


@pytest.mark.parametrize("graded", [False, True])
@pytest.mark.parametrize("program", PROGRAMS)
def test_eagers_numbers(program: Callable[[Tensor], Any], graded: bool) -> None:
    compiled = dovetail.compile(program, options={"fallback_random": True})
    found = []
    for call in (compiled, program):
        x = torch.linspace(-1, 1, 24).view(4, 6).requires_grad_(graded)
        torch.manual_seed(5)
        results: list[Any] = []
        for _ in range(2):
            values = call(x)
            results += values if isinstance(values, tuple) else (values,)
            used = [v.sum() for v in results if v.requires_grad]
            if used:
                results += torch.autograd.grad(sum(used), x, retain_graph=True, allow_unused=True)
        found.append((results, torch.get_rng_state()))
    for ours, eager in zip(found[0][0], found[1][0], strict=True):
        torch.testing.assert_close(ours, eager, rtol=1e-5, atol=1e-6)
        if eager is not None and program in (factories, like, in_place, more_in_place):
            assert torch.equal(ours, eager)
    assert torch.equal(found[0][1], found[1][1])  # the generator stands where eager's does


SAMPLERS: dict[str, Callable[[Tensor], Any]] = {
    "normal_": lambda t: t.normal_(1, 2),
    "uniform_": lambda t: t.uniform_(-1, 3),
    "bernoulli_": lambda t: t.bernoulli_(0.3),
    "bernoulli_.Tensor": lambda t: t.bernoulli_(torch.tensor(0.3)),
    "exponential_": lambda t: t.exponential_(2.0),
    "log_normal_": lambda t: t.log_normal_(),
    "geometric_": lambda t: t.geometric_(0.4),
    "cauchy_": lambda t: t.cauchy_(),
    "random_": lambda t: t.random_(),
    "random_.to": lambda t: t.random_(100),
    "random_.from": lambda t: t.random_(-5, 100),
    "random_.from without an end": lambda t: t.random_(3, None),
    "dropout": lambda t: t.copy_(F.dropout(t, 0.3)),
}
LAYOUTS: dict[str, Callable[[Tensor], Tensor]] = {
    "transposed": lambda t: t.t(),
    "columns": lambda t: t[:, :7],
    "steps": lambda t: t[::2, 1::2],
    "transposed columns": lambda t: t[:, :7].t(),
    "three dimensions": lambda t: t.view(2, -1, 10)[..., ::2].permute(2, 0, 1),
    "few": lambda t: t[:3, :3],
}


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_samplers_that_write_to_tensors_with_gaps(sampler: str) -> None:
    def call(x: Tensor) -> Any:
        y = x * 1
        for view in LAYOUTS.values():
            SAMPLERS[sampler](view(y))
            SAMPLERS[sampler](view(x))
        return y, torch.randn(3), torch.rand(2)

    kinds = ("normal_", "uniform_", "dropout")
    dtypes = (torch.float32, torch.complex64) if sampler in kinds[:2] else (torch.float32,)
    for dtype in dtypes:
        # (10 rows, then some other number: from then on for any number)
        compiled = dovetail.compile(call, fullgraph=True, backend="aot_eager")
        for rows in (10, 12, 14) if sampler in kinds else (10,):
            found = []
            for function in (compiled, call):
                x = torch.ones(rows, 10, dtype=dtype)
                torch.manual_seed(5)
                found.append((*function(x), x))
            for ours, eager in zip(*found, strict=True):
                assert torch.equal(ours, eager)


def _row(t: Tensor) -> Tensor:
    return t[(0,) * (t.dim() - 1)]


INTO: dict[str, Callable[[Tensor], Any]] = {
    "rand": lambda t: torch.rand(t.shape, out=t),
    "randn": lambda t: torch.randn(t.shape, out=t),
    "randint": lambda t: torch.randint(9, t.shape, out=t),
    "randint.low": lambda t: torch.randint(-3, 9, t.shape, out=t),
    "randperm": lambda t: torch.randperm(t.shape[-1], out=_row(t)),
    "normal": lambda t: torch.normal(1.0, 2.0, t.shape, out=t),
    "normal, means": lambda t: torch.normal(torch.arange(float(t.shape[-1])), 2.0, out=_row(t)),
    "normal, deviations": lambda t: torch.normal(1.0, torch.full(t.shape, 0.5), out=t),
    "normal, both": lambda t: torch.normal(torch.zeros(t.shape), torch.ones(t.shape), out=t),
    "bernoulli": lambda t: torch.bernoulli(torch.full(t.shape, 0.3), out=t),
}


@pytest.mark.parametrize("sampler", INTO)
def test_samplers_with_out(sampler: str) -> None:
    def call(x: Tensor) -> Any:
        y = x * 1
        for view in (*LAYOUTS.values(), torch.Tensor.contiguous):
            INTO[sampler](view(y))
            INTO[sampler](view(x))
        return y, torch.randn(3), torch.rand(2)

    compiled = dovetail.compile(call, fullgraph=True, backend="aot_eager")
    found = []
    for function in (compiled, call):
        x = torch.ones(10, 10)
        torch.manual_seed(5)
        found.append((*function(x), x))
    for ours, eager in zip(*found, strict=True):
        assert torch.equal(ours, eager)


def test_samplers_in_kernels() -> None:
    def call(x: Tensor) -> Any:
        y = x * 2
        return y[:, :7].normal_() + 1, y[::2, 1::2].bernoulli_(0.4) * 2, y + torch.randn(3, 1)

    compiled = dovetail.compile(call, fullgraph=True)
    found = []
    for function in (compiled, call):
        torch.manual_seed(5)
        found.append(function(torch.ones(3, 10)))
    for ours, eager in zip(*found, strict=True):
        assert torch.equal(ours, eager)


class Noisy(torch.autograd.Function):
    """Draws random numbers both ways; some are of no use."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, p: float) -> Tensor:
        ctx.save_for_backward(x)
        ctx.p = p
        return x * torch.rand_like(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:  # type: ignore[override]
        (x,) = ctx.saved_tensors
        torch.rand(3)
        return gradient * (torch.rand_like(x) < ctx.p).float() + torch.randn(()), None


def noisy(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    y = Noisy.apply((x * w).sin(), 0.5)
    z = torch.nn.functional.dropout(y.exp(), 0.3)
    return Noisy.apply(z, 0.2), y * 2


@pytest.mark.parametrize("both", [False, True])
@pytest.mark.parametrize("backend", ["aot_eager", "dovetail"])
def test_random_numbers_in_a_custom_backward(backend: str, both: bool) -> None:
    compiled = dovetail.compile(noisy, backend=backend, fullgraph=True)
    for seed in range(2):
        found = []
        for call in (compiled, noisy):
            torch.manual_seed(0)
            x, w = torch.randn(4, 5, requires_grad=True), torch.randn(5, requires_grad=True)
            torch.manual_seed(seed)
            first, second = call(x, w)
            loss = first.sum() + (second.sum() if both else 0)
            found.append((first, second, *torch.autograd.grad(loss, [x, w]), torch.rand(2)))
        torch.testing.assert_close(found[0], found[1])


@pytest.mark.parametrize(
    "draw",
    [
        lambda x: torch.rand((2, 3), generator=None) + x,
        lambda x: torch.randn((2, 3), generator=None, dtype=x.dtype) + x,
        lambda x: torch.randint(5, (2, 3), generator=None) + x,
        lambda x: torch.randint(2, 5, (2, 3), generator=None) + x,
        lambda x: torch.randperm(3, generator=None) + x,
    ],
    ids=["rand", "randn", "randint", "randint from", "randperm"],
)
def test_no_generator_given_by_name(draw: Callable[[Tensor], Tensor]) -> None:
    compiled = dovetail.compile(draw, fullgraph=True, options={"fallback_random": True})
    torch.manual_seed(3)
    got = compiled(torch.zeros(3))
    torch.manual_seed(3)
    assert torch.equal(got, draw(torch.zeros(3)))
