"""Kernels of a CPU that read across their vectors: values in stripes of tiles, and what is left."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from dovetail_inductor import compile_graph
from dovetail_prims import trace_aten
from dovetail_runtime import load
from dovetail_runtime.plan import CppKernel
from torch import Tensor


def numbers(dtype: torch.dtype, *sizes: int) -> Tensor:
    """Numbers that every dtype holds; the same for equal sizes."""
    drawn = torch.randint(0, 100, sizes, generator=torch.Generator().manual_seed(sum(sizes)))
    return drawn.to(dtype)


def check(fn: Callable[..., Tensor], *inputs: Tensor, tiled: bool = True) -> None:
    plan = compile_graph(trace_aten(fn, *inputs))
    sources = [k.source for k in plan.kernels if isinstance(k, CppKernel)]
    assert any("transpose<" in source for source in sources) or not tiled
    (got,) = load(plan)(*inputs)
    wanted = fn(*inputs)
    assert torch.equal(got, wanted) and got.stride() == wanted.stride()


TYPES = (
    torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.uint8, torch.int64,
)  # fmt: skip


@pytest.mark.parametrize("dtype", TYPES)
def test_rows_become_columns(dtype: torch.dtype) -> None:
    """Of whole tiles, of whole stripes, and of parts of both."""
    for rows, columns in ((128, 64), (256, 256), (16, 65), (129, 300), (300, 129), (33, 2000)):
        x, y = numbers(dtype, rows, columns), numbers(dtype, columns, rows)
        check(lambda x, y: x.t() + y, x, y)


def test_several_operands_lie_across() -> None:
    x, y, z = (numbers(torch.float32, *s) for s in ((200, 333), (333, 200), (200, 333)))
    bias = numbers(torch.float32, 200)
    check(lambda x, y, z: torch.where(x.t() > 50, y, z.t().relu()) + bias, x, y, z)


def test_channels_become_last_and_first_again() -> None:
    images = numbers(torch.float32, 3, 40, 17, 19)
    check(lambda x: x.permute(0, 2, 3, 1).contiguous(), images)
    check(lambda x: x.permute(0, 3, 1, 2).contiguous(), images)
    check(lambda x: x.to(memory_format=torch.channels_last), images)


@pytest.mark.parametrize("dtype", TYPES)
def test_nothing_but_a_copy(dtype: torch.dtype) -> None:
    """Of which one side lies across, whichever is gone along; long rows, too."""
    for sizes in ((128, 64), (33, 65), (64, 9000), (9000, 64)):
        many_tiles = sizes[0] < 9000  # (else as many threads as there are may want blocks)
        check(lambda x: x.t().contiguous(), numbers(dtype, *sizes), tiled=many_tiles)
    check(lambda x: x.permute(2, 1, 0).contiguous(), numbers(dtype, 64, 7, 70))
