"""Convolutions of few taps and by one pixel by loops of ours: values, borders, what joins them."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from dovetail_inductor import InductorOptions, compile_graph
from dovetail_prims import trace_aten
from dovetail_prims.decompositions import core_aten_table


def images(*sizes: int) -> torch.Tensor:
    return torch.randn(*sizes).to(memory_format=torch.channels_last)


@pytest.mark.parametrize("channels", [8, 16, 21, 72])
@pytest.mark.parametrize("size", [(1, 1), (3, 2), (14, 13), (1, 29)])
@pytest.mark.parametrize("window", [(3, 3), (5, 5), (7, 7), (1, 5), (3, 1), (1, 1), (2, 4)])
def test_windows_of_all_kinds(check, channels, size, window):
    x, w, b = images(2, channels, *size), torch.randn(channels, 1, *window), torch.randn(channels)
    pad = tuple(n // 2 for n in window)
    result = check(lambda x, w, b: F.hardswish(F.conv2d(x, w, b, 1, pad, 1, channels)), x, w, b)
    assert not result.externs
    check(lambda x, w: F.conv2d(x, w, None, (2, 3), (4, 6), (1, 2), channels), x, w)


def test_what_follows_joins_the_loops(check):
    x, w, b, y = (
        images(1, 24, 14, 14),
        torch.randn(24, 1, 5, 5),
        torch.randn(24),
        images(1, 24, 7, 7),
    )

    def fn(x, w, b, y):
        return F.relu(F.conv2d(x, w, b, 2, 2, 1, 24)) + y

    result = check(fn, x, w, b, y)
    assert not result.externs and result.launches == 2  # (one lays the weight out)


def test_several_convolutions_and_their_sums(check):
    x, w, v = images(2, 16, 9, 9), torch.randn(16, 1, 3, 3), torch.randn(16, 1, 5, 5)

    def fn(x, w, v):
        one = F.conv2d(x, w, None, 1, 1, 1, 16)
        other = F.conv2d(one.relu(), v, None, 1, 2, 1, 16)
        return one + other, other.mean((2, 3)), other.flip(2)

    assert not check(fn, x, w, v).externs


def test_nan_and_infinity_go_where_eager_has_them(check):
    x, w = images(1, 16, 8, 8), torch.randn(16, 1, 3, 3)
    x[0, 3, 4, 4], x[0, 5, 0, 0] = float("nan"), float("inf")
    check(lambda x, w: F.conv2d(x, w, None, 1, 1, 1, 16).relu(), x, w)


@pytest.mark.parametrize("taken", [1, 3, 16, 40])
@pytest.mark.parametrize("given", [8, 16, 24, 72, 112])
@pytest.mark.parametrize("size", [(1, 1), (1, 5), (14, 13)])
def test_pixels_by_themselves(check, taken, given, size):
    # As constant weights are laid out.
    w, b = torch.randn(taken, given).t()[:, :, None, None], torch.randn(given)
    x = torch.empty(2, *size, taken).normal_().permute(0, 3, 1, 2)

    def fn(x, w, b):
        return F.relu(F.conv2d(x, w, b)) + x.sum(1, keepdim=True)

    assert not check(fn, x, w, b).externs


@pytest.mark.parametrize("simd_bytes", [16, 32, 64])
def test_vectors_of_any_width(check, simd_bytes):
    x, w, v = images(2, 40, 9, 9), torch.randn(40, 1, 3, 3), torch.randn(40, 56)

    def fn(x, w, v):
        return F.conv2d(F.conv2d(x, w, None, 1, 1, 1, 40).relu(), v.t()[:, :, None, None])

    assert not check(fn, x, w, v, options=InductorOptions(simd_bytes=simd_bytes)).externs


@pytest.mark.parametrize("channels", [3, 5])
def test_windows_of_few_channels(check, channels):
    x, w, b = images(2, channels, 17, 12), torch.randn(24, channels, 3, 3), torch.randn(24)
    result = check(lambda x, w, b: F.hardswish(F.conv2d(x, w, b, 2, 1)), x, w, b)
    assert not result.externs


def test_what_is_left_to_the_library(check):
    w = torch.randn(16, 1, 3, 3)
    for x, weight, groups in (
        (torch.randn(1, 16, 8, 8), w, 16),  # not by channels
        (images(1, 8, 8, 8), w, 8),  # two results a channel
        (images(1, 4, 8, 8), w[:4], 4),
        (images(1, 16, 12, 12), torch.randn(16, 1, 9, 9), 16),
        (images(1, 16, 8, 8), torch.randn(16, 16, 3, 3), 1),
    ):
        assert check(lambda x, w, n=groups: F.conv2d(x, w, groups=n), x, weight).externs


def test_borders_are_asked_for_by_rows_alone():
    x, w = images(1, 32, 14, 14), torch.randn(32, 1, 5, 5)
    fn = lambda x, w: F.conv2d(x, w, None, 1, 2, 1, 32)  # noqa: E731
    plan = compile_graph(trace_aten(fn, x, w, decompositions=core_aten_table()))
    source = plan.kernels[-1].source
    assert "fma_(" in source and "decltype" not in source and "sel(" not in source
