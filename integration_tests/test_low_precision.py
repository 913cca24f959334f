"""Low precision: a rounding that the user wrote is made, wherever it is fused."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import dovetail

Rounds = Callable[[Tensor, Tensor], Tensor]

ROUNDINGS: dict[str, Rounds] = {
    "bfloat16": lambda x, other: x.bfloat16(),
    "half": lambda x, other: x.half(),
    "to a dtype": lambda x, other: x.to(torch.bfloat16),
    "to another": lambda x, other: x.to(other),
    "type_as": lambda x, other: x.type_as(other),
    "to a device": lambda x, other: x.to(x.device, torch.float16),
    "copied": lambda x, other: torch.empty_like(x, dtype=torch.bfloat16).copy_(x),
}


@pytest.mark.parametrize("name", ROUNDINGS)
def test_a_rounding_that_the_user_wrote(name: str) -> None:
    def fn(x: Tensor, other: Tensor) -> Tensor:
        return ROUNDINGS[name](x * 3, other).float() - x

    inputs = (torch.randn(300), torch.zeros(1, dtype=torch.bfloat16))
    got = dovetail.compile(fn, fullgraph=True)(*inputs)
    assert torch.equal(got, fn(*inputs))
    # It matters: without the rounding the result is another.
    assert not torch.allclose(got, inputs[0] * 2, rtol=0, atol=1e-5)


def test_a_rounding_before_arithmetic_in_its_type_is_left_to_memory() -> None:
    """The end of a norm: closer to the exact result than eager's, which rounds twice."""

    def fn(x: Tensor, scale: Tensor, weight: Tensor) -> Tensor:
        return (x.float() * scale).to(x.dtype) * weight

    inputs = (
        torch.randn(64, 300).bfloat16(), torch.rand(64, 1), torch.rand(300).bfloat16() + 1,
    )  # fmt: skip
    got = dovetail.compile(fn, fullgraph=True)(*inputs)
    exact = inputs[0].double() * inputs[1].double() * inputs[2].double()
    assert torch.equal(got, exact.float().bfloat16())
    assert not torch.equal(got, fn(*inputs))


def test_a_rounding_that_is_read_in_two_ways() -> None:
    """High and low halves of a number: the sum of both is the number."""

    def fn(x: Tensor) -> tuple[Tensor, Tensor]:
        high = x.bfloat16()
        low = (x - high.float()).bfloat16()
        return high * 2, low * 2

    x = torch.randn(300)
    got = dovetail.compile(fn, fullgraph=True)(x)
    for ours, eager in zip(got, fn(x), strict=True):
        assert torch.equal(ours, eager)


def test_a_rounding_behind_a_view_and_in_wider_arithmetic() -> None:
    def fn(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        narrow = x.bfloat16().view(30, 10).t()
        return narrow.float() * 3, x.half() * y

    inputs = (torch.randn(300), torch.randn(300))
    for ours, eager in zip(dovetail.compile(fn, fullgraph=True)(*inputs), fn(*inputs), strict=True):
        assert torch.equal(ours, eager)


def test_what_is_expanded_far_is_not_rounded_in_memory() -> None:
    """Points of rays times high frequencies: a rounded point is another point."""

    def waves(origin: Tensor, direction: Tensor, depth: Tensor) -> Tensor:
        points = origin[:, None] + direction[:, None] * depth[..., None]
        angles = points[..., None] * 2.0 ** torch.arange(10, dtype=depth.dtype)
        both = torch.cat([angles.sin(), angles.cos()], -1).flatten(-2)
        return torch.cat([points, both], -1)

    inputs = (torch.randn(4, 3), torch.randn(4, 3), torch.rand(4, 9))
    half = [x.bfloat16() for x in inputs]
    exact = waves(*(x.double() for x in half))

    def error(got: Tensor) -> float:
        return float((got.double() - exact).abs().max())

    assert error(dovetail.compile(waves, fullgraph=True)(*half)) < 1e-2 < error(waves(*half))


def test_what_a_backward_reads_again_is_not_rounded_once_more() -> None:
    """A product's result is saved, not the half type that a sigmoid of it would be."""

    def fn(x: Tensor, w: Tensor) -> Tensor:
        weights = (x @ w).sigmoid().float()
        return (weights - weights.mean(0)).pow(2).sum()

    torch.manual_seed(0)
    x, w = torch.randn(64, 16).bfloat16(), 0.05 * torch.randn(16, 8)
    exact, eager, compiled = (
        w.bfloat16().to(dtype).requires_grad_() for dtype in (torch.float64, *2 * [torch.bfloat16])
    )
    weights = (x.double() @ exact).sigmoid()
    (weights - weights.mean(0)).pow(2).sum().backward()
    fn(x, eager).backward()
    dovetail.compile(fn, fullgraph=True)(x, compiled).backward()

    def error(of: Tensor) -> float:
        assert of.grad is not None and exact.grad is not None
        return float((of.grad.double() - exact.grad).norm() / exact.grad.norm())

    assert error(compiled) < 0.5 * error(eager)


@pytest.mark.parametrize("kind", [torch.nn.LSTM, torch.nn.GRU])
def test_recurrent_layers_under_autocast_are_one_graph(kind: type[torch.nn.Module]) -> None:
    layer, x = kind(4, 6, bidirectional=True), torch.randn(5, 2, 4)
    compiled = dovetail.compile(layer, fullgraph=True)
    for enabled in (True, False, True):
        with torch.autocast("cpu", torch.bfloat16, enabled=enabled):
            try:
                theirs = layer(x)[0]
            except RuntimeError as error:  # (eager's LSTM, on a CPU that knows no halves)
                with pytest.raises(RuntimeError, match=re.escape(str(error).splitlines()[0])):
                    compiled(x)
                continue
            mine = compiled(x)[0]
        torch.testing.assert_close(mine, theirs, rtol=3e-2, atol=3e-2)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_what_a_norm_has_rounded_the_mean_of_is_not_computed_again(dtype: torch.dtype) -> None:
    """Where a row's elements are equal, all deviations from its mean are zero in the backward, too;
    by the smallest other one, times some 300, gradients would be off."""

    def fn(x: Tensor) -> tuple[Tensor, Tensor]:
        rows = (x * 3).tile(2)
        scaled = rows + x / 7
        return F.layer_norm(scaled, (2,)), F.group_norm(scaled[:, None], 1)

    generator = torch.Generator().manual_seed(0)
    values = torch.randn(16, 1, generator=generator).to(dtype)
    weights = [torch.randn(s, generator=generator).to(dtype) for s in ((16, 2), (16, 1, 2))]

    def gradient(call: Callable[[Tensor], tuple[Tensor, Tensor]]) -> Tensor:
        x = values.clone().requires_grad_()
        found = sum((out * w).sum() for out, w in zip(call(x), weights, strict=True))
        assert isinstance(found, Tensor)
        return torch.autograd.grad(found, x)[0]

    assert gradient(fn).abs().max() < 1
    torch.testing.assert_close(gradient(dovetail.compile(fn, fullgraph=True)), gradient(fn))


@pytest.mark.parametrize("power", [3, 60])
def test_a_gradient_that_overflows_skips_the_step(power: int) -> None:
    """GradScaler's found-inf of a whole compiled step, and the scale that it halves."""

    def trained(compiled: Callable[..., Any]) -> tuple[Tensor, float, Tensor]:
        torch.manual_seed(0)
        net = torch.nn.Linear(4, 3)
        optimizer = torch.optim.SGD(net.parameters(), 0.1)
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0**power)

        def step(x: Tensor) -> Tensor:
            optimizer.zero_grad()
            with torch.autocast("cpu", torch.float16):
                loss = net(x).float().square().sum()
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            scaler.step(optimizer)
            scaler.update()
            return loss.detach()

        return compiled(step)(torch.ones(2, 4)), scaler.get_scale(), net.weight.detach()

    ours, eager = trained(dovetail.compile), trained(lambda fn: fn)
    assert ours[1] == eager[1] and (ours[1] < 2.0**power) == (power == 60)
    torch.testing.assert_close((ours[0], ours[2]), (eager[0], eager[2]))


def test_the_check_of_scaled_gradients_sees_what_they_are_made_of() -> None:
    def fn(x: Tensor, inverse: Tensor) -> tuple[Tensor, ...]:
        gradients, found = [x * x, x + 1], torch.zeros(())
        torch._amp_foreach_non_finite_check_and_unscale_(gradients, found, inverse)
        return found, *gradients, (x * x).isfinite().all()

    inputs = torch.tensor([300.0, 2.0, -1.0]).half(), torch.tensor(0.5)
    got = dovetail.compile(fn, fullgraph=True)(*inputs)
    torch.testing.assert_close(got, fn(*inputs), rtol=0, atol=0)
    assert got[0].item() == 1


def test_clipping_raises_for_a_norm_that_overflows() -> None:
    def clip(weight: Tensor, x: Tensor) -> Tensor:
        weight.grad = (x * x).sum(0)
        return torch.nn.utils.clip_grad_norm_([weight], 1.0, error_if_nonfinite=True)

    for size in (1.0, 300.0):
        x = torch.full((2, 4), size).half()
        weights = [torch.nn.Parameter(torch.ones(4).half()) for _ in range(2)]
        if size == 300:
            for fn in (clip, dovetail.compile(clip)):
                with pytest.raises(RuntimeError, match="non-finite"):
                    fn(weights[0], x)
            continue
        norms = [fn(w, x) for fn, w in zip((clip, dovetail.compile(clip)), weights, strict=True)]
        torch.testing.assert_close(*norms)
        torch.testing.assert_close(weights[0].grad, weights[1].grad)
