"""Weights packed for a CPU's library: which calls take them, and that results stay eager's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from dovetail_inductor import compile_graph, prefer_channels_last, prepare_weights
from dovetail_prims import trace_aten
from dovetail_runtime import load
from torch import Tensor

F = torch.nn.functional
IMAGES = torch.randn(4, 6, 40, 40).to(memory_format=torch.channels_last)


def packed(fn: Callable[..., Any], x: Tensor, *weights: Tensor) -> list[str]:
    """The library's calls that take packed weights; checks what the graph gives."""
    gm = prefer_channels_last(trace_aten(fn, x, *weights))
    split = prepare_weights(gm, range(1, len(weights) + 1))
    if split is None:
        return []
    made = [
        new
        if new.is_mkldnn
        else torch.empty_strided(f._sizes, f._strides, dtype=f._dtype).copy_(new)
        for new, f in zip(split.prepare(*weights), split.prepared, strict=True)
    ]
    plan = compile_graph(split.rest)
    for _ in range(2):
        (got,) = load(plan).run(x, *weights, *made)
        expected = fn(x, *weights)
        torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-4, equal_nan=True)
        assert got.stride() == expected.stride()
        x = torch.where(x > 1.5, torch.nan, x)
    targets = (str(n.target) for n in split.rest.graph.nodes)
    return [t for t in targets if t.startswith("mkldnn")]


def test_convolutions() -> None:
    w, b = torch.randn(12, 6, 3, 3), torch.randn(12)

    def fn(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
        y = F.conv2d(x, w, b, padding=1)
        return F.conv2d(y.relu(), w[:, :2], stride=2, dilation=2, groups=6)

    assert packed(fn, IMAGES, w, b) == ["mkldnn._convolution_pointwise.default"] * 2


def test_a_channel_takes_scale_and_shift() -> None:
    w, scale, shift = torch.randn(12, 6, 3, 3), torch.rand(12, 1, 1), torch.randn(12, 1, 1)

    def fn(x: Tensor, w: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
        return (F.conv2d(x, w) * scale + shift).relu()

    assert packed(fn, IMAGES, w, scale, shift) == ["mkldnn._convolution_pointwise.default"]


@pytest.mark.parametrize(("rows", "found"), [(64, 2), (8, 0)])
def test_products(rows: int, found: int) -> None:
    w, b = torch.randn(700, 512) / 20, torch.randn(700)

    def fn(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
        return F.linear(F.gelu(F.linear(x, w, b)), w.t())

    assert packed(fn, torch.randn(rows, 512), w, b) == ["mkldnn._linear_pointwise.default"] * found


@pytest.mark.parametrize(
    "fn",
    [
        lambda x, w: F.conv_transpose2d(x, w),
        lambda x, w: F.conv2d(x, w.transpose(0, 1) * x.mean()),
        lambda x, w: F.conv2d(x.double(), w.transpose(0, 1).double()),
    ],
)
def test_what_stays(fn: Callable[..., Any]) -> None:
    assert packed(fn, IMAGES, torch.randn(6, 4, 3, 3)) == []
