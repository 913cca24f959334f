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
