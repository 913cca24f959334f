"""Low precision: a rounding that the user wrote is made, wherever it is fused."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
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
