"""Operators of other libraries that write to an argument and give nothing need no fake kernel."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

import dovetail


@pytest.fixture(scope="module")
def library() -> Iterator[None]:
    lib = torch.library.Library("only_writes", "FRAGMENT")
    lib.define("scale_into(Tensor(a!) out, Tensor x, float s) -> ()")

    def scale_into(out: Tensor, x: Tensor, s: float) -> None:
        out.copy_(x * s)

    lib.impl("scale_into", scale_into, "CPU")
    yield
    lib._destroy()


def into_a_new_one(x: Tensor, out: Tensor) -> Tensor:
    made = torch.empty_like(x)
    torch.ops.only_writes.scale_into(made, x, 2.0)
    return made + 1


def into_a_view_of_an_input(x: Tensor, out: Tensor) -> Tensor:
    torch.ops.only_writes.scale_into(out[1:], x.sin()[1:], 2.0)
    return out * 2


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "dovetail"])
@pytest.mark.parametrize("function", [into_a_new_one, into_a_view_of_an_input])
def test_one_graph(function: object, backend: str, library: None) -> None:
    assert callable(function)
    compiled = dovetail.compile(function, backend=backend, fullgraph=True)
    for size in (3, 5, 6):
        x, out = torch.randn(size), torch.ones(size)
        plain = out.clone()
        torch.testing.assert_close(compiled(x, out), function(x, plain))
        torch.testing.assert_close(out, plain)
