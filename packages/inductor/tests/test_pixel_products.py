"""Small convolutions by one pixel: as products, with the values and strides of convolutions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from dovetail_inductor import InductorOptions, compile_graph
from dovetail_prims import trace_aten
from dovetail_runtime import load
from dovetail_runtime.plan import CallAten
from torch import Tensor

aten = torch.ops.aten
LAST, ROWS = torch.channels_last, torch.contiguous_format


def calls(fn: Callable[..., Any], *inputs: Tensor) -> set[str]:
    """The library's calls of the compiled function, which agrees with eager."""
    plan = compile_graph(trace_aten(fn, *inputs))
    for got, wanted in zip(load(plan)(*inputs), fn(*inputs), strict=True):
        torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-4)
        places = zip(wanted.shape, got.stride(), wanted.stride(), strict=True)
        assert all(n == 1 or a == b for n, a, b in places)
    return {step.op for step in plan.steps if isinstance(step, CallAten)}


def drawn(*sizes: int) -> Tensor:
    return torch.randn(sizes, generator=torch.Generator().manual_seed(sum(sizes)))


def both(x: Tensor, w: Tensor, b: Tensor, d: Tensor) -> tuple[Tensor, ...]:
    """A convolution and its gradients."""
    y = F.conv2d(x, w, b)
    masks = [True, True, True]
    zeros = [0] * (x.dim() - 2)
    ones = [1] * (x.dim() - 2)
    grads = aten.convolution_backward(
        d, x, w, [w.shape[0]], ones, zeros, ones, False, zeros, 1, masks
    )
    return y.relu(), F.conv2d(x, w).tanh(), *grads


@pytest.mark.parametrize("layout", [LAST, ROWS])
@pytest.mark.parametrize("sizes", [(2, 17, 1, 1), (1, 16, 1, 1), (5, 8, 1, 7), (3, 7, 5, 4)])
def test_values_and_strides(sizes: tuple[int, ...], layout: torch.memory_format) -> None:
    images, channels, *pixels = sizes
    x, w, b = drawn(*sizes).to(memory_format=layout), drawn(9, channels, 1, 1), drawn(9)
    d = drawn(images, 9, *pixels).to(memory_format=layout)
    found = calls(both, x, w, b, d)
    if layout is LAST or pixels == [1, 1]:
        assert not any("convolution" in name for name in found)


def test_what_is_no_product_stays() -> None:
    x, w = drawn(2, 8, 6, 6).to(memory_format=LAST), drawn(8, 8, 1, 1)
    others: tuple[Callable[..., Tensor], ...] = (
        lambda x, w: F.conv2d(x, w, stride=2),
        lambda x, w: F.conv2d(x, w, padding=1),
        lambda x, w: F.conv2d(x, w[:, :2], groups=4),
        lambda x, w: F.conv_transpose2d(x, w),
        lambda x, w: F.conv2d(x.double(), w.double()),
        lambda x, w: F.conv2d(x, w.expand(8, 8, 3, 3), padding=1),
    )
    for other in others:
        assert "aten::convolution" in calls(lambda x, w, f=other: (f(x, w),), x, w)


def test_many_multiplications_are_a_convolution() -> None:
    x, w = drawn(2, 256, 16, 16).to(memory_format=LAST), drawn(256, 256, 1, 1)
    assert "aten::convolution" in calls(lambda x, w: (F.conv2d(x, w),), x, w)


def test_on_a_gpu_it_is_a_convolution() -> None:
    gm = trace_aten(lambda x, w: F.conv2d(x, w), drawn(2, 8, 1, 1), drawn(8, 8, 1, 1))
    plan = compile_graph(gm, options=InductorOptions(triton=True))
    assert any(isinstance(s, CallAten) and s.op == "aten::convolution" for s in plan.steps)


def test_sequences_of_one_place() -> None:
    """Over one dimension, and over three."""
    found = calls(lambda x, w: (F.conv1d(x, w),), drawn(3, 8, 1), drawn(4, 8, 1))
    found |= calls(lambda x, w: (F.conv3d(x, w),), drawn(3, 8, 1, 1, 1), drawn(4, 8, 1, 1, 1))
    assert not any("convolution" in name for name in found)
