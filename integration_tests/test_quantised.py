"""Quantised products and training in 8-bit floats, as torchao writes them, beside eager."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import dovetail

E4, E5, BF = torch.float8_e4m3fn, torch.float8_e5m2, torch.bfloat16


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def whole(*shape: int) -> Tensor:
    draw = torch.Generator().manual_seed(0)
    return torch.randint(-128, 128, shape, generator=draw, dtype=torch.int8)


def outcome(fn: Callable[..., Any], inputs: tuple[Any, ...]) -> tuple[Any, ...]:
    """What a call gives, or the type of what it raises."""
    try:
        out = fn(*inputs)
    except (RuntimeError, ValueError) as error:
        return (type(error),)
    return out.dtype, tuple(out.shape), out.stride(), out.float().tolist()


def scaled(*args: Any) -> Tensor:
    return torch._scaled_mm(*args[:5], out_dtype=BF)


def of_own_type(*args: Any) -> Tensor:
    return torch._scaled_mm(*args)


def integers(a: Tensor, b: Tensor) -> Tensor:
    return torch._int_mm(a, b)


ONE = torch.ones(())
A, B = drawn(16, 32).to(E4), drawn(48, 32).to(E4).t()
FORMS: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "one scale": (scaled, (A, B, ONE * 2, ONE * 0.3)),
    "scales of rows": (scaled, (A, B, drawn(16, 1).abs(), drawn(1, 48).abs())),
    "bias": (scaled, (A, B, ONE, ONE, drawn(48).to(BF))),
    "two types": (scaled, (drawn(16, 32).to(E5), B, ONE, ONE)),
    "its own type": (of_own_type, (A, B, ONE, ONE)),
    "in rows": (scaled, (A, drawn(32, 48).to(E4), ONE, ONE)),
    "an odd size": (scaled, (A[:, :24], drawn(15, 24).to(E4).t(), ONE, ONE)),
    "other sizes": (scaled, (A, B.t(), ONE, ONE)),
    "a vector": (scaled, (A[0], B, ONE, ONE)),
    "wide": (scaled, (A.float(), B, ONE, ONE)),
    "a bias too short": (scaled, (A, B, ONE, ONE, drawn(15).to(BF))),
    "three scales": (scaled, (A, B, torch.ones(3), ONE)),
    "integers": (integers, (whole(17, 8), whole(16, 8).t())),
    "integers of other sizes": (integers, (whole(17, 8), whole(16, 8))),
    "a vector of integers": (integers, (whole(8), whole(16, 8).t())),
    "no integers": (integers, (drawn(17, 8), whole(16, 8).t())),
}


@pytest.mark.parametrize("name", FORMS)
def test_as_eager(name: str) -> None:
    fn, inputs = FORMS[name]
    compiled = dovetail.compile(fn, fullgraph=True, isolate_recompiles=True)
    assert outcome(compiled, inputs) == outcome(fn, inputs)


def test_sizes_that_change() -> None:
    compiled = dovetail.compile(scaled, fullgraph=True, dynamic=True, isolate_recompiles=True)
    for rows in (16, 17, 40):
        inputs = (drawn(rows, 32).to(E4), B, drawn(rows, 1).abs(), drawn(1, 48).abs())
        assert outcome(compiled, inputs) == outcome(scaled, inputs)


def to_float8(x: Tensor, kind: torch.dtype) -> tuple[Tensor, Tensor]:
    most = torch.finfo(kind).max
    scale = most / x.abs().amax().float().clamp(min=1e-12)
    return (x.float() * scale).clamp(-most, most).to(kind), scale.reciprocal()


class Float8Linear(torch.autograd.Function):
    """Activations and weights in e4m3, gradients in e5m2, one scale a tensor."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, w: Tensor) -> Tensor:
        ctx.save_for_backward(x, w)
        (a, s), (b, t) = to_float8(x, E4), to_float8(w, E4)
        return torch._scaled_mm(a, b.t(), s, t, out_dtype=x.dtype, use_fast_accum=True)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor]:
        (g, r), (a, s), (b, t) = (
            to_float8(v, kind)
            for v, kind in zip((gradient, *ctx.saved_tensors), (E5, E4, E4), strict=True)
        )
        of_x = torch._scaled_mm(g, b.t().contiguous().t(), r, t, out_dtype=BF)
        turned = g.t().contiguous(), a.t().contiguous().t()
        return of_x, torch._scaled_mm(*turned, r, s, out_dtype=BF)


def test_training_is_as_exact_as_eager() -> None:
    x, v, w = drawn(32, 64), drawn(96, 64, seed=1) / 8, drawn(48, 96, seed=2) / 8

    def step(linear: Callable[..., Tensor], dtype: torch.dtype, compiled: bool) -> list[Tensor]:
        def layers(x: Tensor, v: Tensor, w: Tensor) -> Tensor:
            return linear(F.silu(linear(x, v)), w)

        fn = dovetail.compile(layers, fullgraph=True) if compiled else layers
        leaves = [t.to(dtype).requires_grad_() for t in (x, v, w)]
        out = fn(*leaves)
        out.float().pow(2).mean().backward()
        return [out.detach(), *(t.grad for t in leaves if t.grad is not None)]

    exact = step(lambda x, w: x @ w.t(), torch.float64, False)
    eager, ours = (step(Float8Linear.apply, BF, compiled) for compiled in (False, True))
    for wanted, a, b in zip(exact, eager, ours, strict=True):
        errors = [float((t.double() - wanted).norm() / wanted.norm()) for t in (a, b)]
        assert errors[1] < 1.1 * errors[0]
