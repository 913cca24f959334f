"""Loops whose operands lie a few elements apart: in vectors, which read no element beyond."""

from __future__ import annotations

import pytest
import torch
from dovetail_inductor import compile_graph
from dovetail_inductor.targets.cpu.shape import host_simd_bytes
from dovetail_prims import trace_aten
from dovetail_prims.decompositions import core_aten_table


def kernels(fn, *inputs):
    graph = trace_aten(fn, *inputs, decompositions=core_aten_table())
    return "\n".join(k.source for k in compile_graph(graph).kernels)


@pytest.mark.parametrize("stride", [2, 3, 4, 5, 7])
@pytest.mark.parametrize(
    "dtype",
    [
        torch.float32,
        torch.float64,
        torch.bfloat16,
        torch.int32,
        torch.int64,
        torch.uint8,
        torch.bool,
    ],
)
def test_reductions(check, stride, dtype):
    for count in (64, 131, 1000):
        x = torch.randint(0, 100, (count * stride,)).to(dtype)[::stride]

        def fn(x):
            place = x.float().argmax()
            return x.sum(), x.amax(), place, (x != 1).all(), x.float().exp2().amin()

        check(fn, x)


@pytest.mark.parametrize("columns", [2, 3, 4, 5])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int64])
def test_rows_of_few_columns(check, columns, dtype):
    x = torch.randint(-50, 50, (203, columns)).to(dtype)
    check(lambda x: (x.amax(1), x.amin(1), x.prod(1), x.argmax(1), x.cumsum(1)), x)


@pytest.mark.parametrize("stride", [2, 3, 4])
def test_what_lies_beyond_does_not_count(check, stride):
    whole = torch.full((999 * stride + 64,), torch.nan)
    x = whole[: 998 * stride + 1 : stride]
    x.copy_(torch.randn(999))
    check(lambda x: (x.sum(), x.amax()), x)


@pytest.mark.parametrize("stride", [2, 3, 4])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int32, torch.int64])
def test_the_rest_of_a_loop_reads_no_further(check, stride, dtype):
    for count in (1, 2, 3, 5, 8, 15, 17, 31, 50):
        x = torch.randint(-9, 9, ((count - 1) * stride + 1,)).to(dtype)
        check(lambda x: torch.maximum(x[::stride], x.flip(0)[::stride] * 2), x)


def test_they_are_vectors():
    x = torch.randn(100_000)[::2]
    assert "double acc" not in kernels(torch.sum, x)
    assert "lds<" in kernels(torch.sum, x) and "lds<" in kernels(torch.exp, x)
    assert "lds<" in kernels(lambda x: x.amax(1), torch.randn(999, 3))
    if host_simd_bytes() >= 32:  # whatever is computed of them
        assert "lds<" in kernels(lambda x: torch.maximum(x[::2], x[1::2]), torch.randn(1000))


def test_extremes_at_random_places_take_no_jump(check):
    """A scatter combines one number after the other: of floats without a jump, NaN wins."""
    x, at = torch.randn(5000), torch.randint(0, 300, (5000,))
    x[torch.rand(5000) < 0.01] = torch.nan
    for how in ("amax", "amin"):
        for dtype in (torch.float32, torch.float64):
            start = torch.zeros(300, dtype=dtype)
            check(lambda x, at, s, how=how: s.scatter_reduce(0, at, x, how), x.to(dtype), at, start)
