"""Running sums, products and extremes against eager: as Triton kernels, in its interpreter, and as
C++ loops, without library calls. And writes to diagonals."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from dovetail_inductor import InductorOptions, compile_graph
from dovetail_prims import trace_aten
from dovetail_prims.decompositions import core_aten_table
from dovetail_runtime.plan import CallAten, LaunchTriton
from kernel_interpreter import run_in_interpreter
from reference_executor import ReferenceExecutor
from torch import Tensor


def check_scans(check: Any, fn: Callable[..., Any], *inputs: Tensor, tol: float = 1e-4) -> None:
    assert check(fn, *inputs, rtol=tol, atol=tol).externs == []
    gm = trace_aten(fn, *inputs, decompositions=core_aten_table())
    plan = compile_graph(gm, inputs, options=InductorOptions(triton=True))
    assert not any(isinstance(s, CallAten) for s in plan.steps)
    got = ReferenceExecutor(plan, launch_triton=run_in_interpreter)(*inputs)
    for mine, wanted in zip(got, fn(*inputs), strict=True):
        assert mine.stride() == wanted.stride()
        torch.testing.assert_close(mine, wanted, rtol=tol, atol=tol, equal_nan=True)


def launched(fn: Callable[..., Any], *inputs: Tensor) -> int:
    """How many Triton kernels it takes."""
    gm = trace_aten(fn, *inputs, decompositions=core_aten_table())
    plan = compile_graph(gm, inputs, options=InductorOptions(triton=True))
    assert not any(isinstance(s, CallAten) for s in plan.steps)
    return sum(isinstance(s, LaunchTriton) for s in plan.steps)


def test_a_scan_is_one_kernel_with_what_is_around_it() -> None:
    x = torch.empty(512, 2000)
    assert launched(lambda x: (x.relu().cumsum(1).exp(),), x) == 1
    assert launched(lambda x: (x.flip(1).cumsum(1).flip(1),), x) == 1
    assert launched(lambda x: ((x / x.sum(1, keepdim=True)).cumsum(1),), x) == 1
    assert launched(lambda x: x.cummax(1), x) == 1
    assert launched(lambda x: (x.cumsum(0),), torch.empty(300, 9000)) == 1
    assert launched(lambda x: (x.cumsum(1),), torch.empty(8192, 32768)) == 1
    # Few long rows: totals of pieces, their running totals, and the pieces.
    assert launched(lambda x: (x.relu().cumsum(1).exp(),), torch.empty(8, 1 << 20)) == 3


@pytest.mark.parametrize("shape", [(2, 1536), (2, 1061), (1100, 3)])
def test_few_long_rows_go_in_pieces(check, shape):
    """In pieces of one length, with a shorter last one, and side by side."""
    dim = int(shape[0] < shape[1])

    def fn(x, k):
        several = x.cumsum(dim), *x.cummin(dim)
        return several if shape[1] != 1061 else (*several, x.logcumsumexp(dim), k.cumprod(dim) + 1)

    x = torch.randn(shape) * 0.5
    x[1, 1] = torch.nan
    k = torch.randint(-2, 3, shape, dtype=torch.int32)
    check_scans(check, fn, x, k, tol=1e-3)


@pytest.mark.parametrize("length", [1, 7, 16, 17, 300])
def test_scans(check, length):
    def fn(x, k, m):
        return x.cumsum(1), x.cumprod(1), k.cumsum(0), m.cumsum(1), x.cumsum(-1), x.sum(2).cumsum(1)

    x = torch.randn(2, length, 2) * 0.5 + 1
    check_scans(check, fn, x, torch.randint(-9, 9, (length, 4)), torch.rand(2, length) > 0.5)


def test_scans_of_other_types(check):
    def fn(x, k):
        return (
            x.bfloat16().cumsum(1),
            x.double().cumsum(1),
            k.cumsum(0),
            k.cumsum(0, dtype=torch.float32),
        )

    x = torch.randn(4, 70)
    check_scans(check, fn, x, torch.arange(40, dtype=torch.int32), tol=4e-2)
    check(lambda x: (x.cumsum(0), x[0, 0].cumsum(0)), torch.randn(0, 3).new_ones(1, 3))


@pytest.mark.parametrize("length", [1, 16, 70])
def test_running_extremes(check, length):
    def fn(x, k):
        return *x.cummax(1), *x.cummin(0), *k.cummax(-1), *x.relu().cummin(1)

    x = torch.randint(-9, 9, (3, length, 2)) / 4  # with equal elements
    x[0, length // 2] = torch.nan
    x[1, : length // 3] = -torch.inf
    check_scans(check, fn, x, torch.randint(-3, 3, (2, length), dtype=torch.int32))
    check(lambda x: (*x.cummax(0), *x[0].cummin(0)), torch.randn(3, 0))
    check(lambda x: (*x.cummax(0), x.logcumsumexp(0)), torch.tensor(2.0))


@pytest.mark.parametrize(("length", "rows"), [(1, 2), (17, 2), (300, 2), (70, 40), (64, 17)])
def test_running_logarithms(check, length, rows):
    """Along rows, and side by side."""
    x = torch.randn(3, length, rows) * 20
    x[0, : length // 2] = -torch.inf
    x[1, length // 2] = torch.inf
    x[2, length // 2, 1] = torch.nan
    check_scans(check, lambda x: (x.logcumsumexp(1), x.double().logcumsumexp(1)), x)


def test_positions_of_a_mask(check):
    """As a model makes them of its attention mask."""

    def fn(mask):
        return ((torch.cumsum(mask, dim=1) * mask).long() - 1,)

    check_scans(check, fn, (torch.rand(4, 512) > 0.2).long())


def test_writes_to_diagonals(check):
    def fn(x, y, s):
        return (
            torch.diagonal_scatter(x, s[:5]),
            torch.diagonal_scatter(x, s[:4], 1),
            torch.diagonal_scatter(x, s[:3], -2),
            torch.diagonal_scatter(y, x[:, :5], 0, 2, 0),
        )

    checked = check(fn, torch.randn(5, 5), torch.randn(5, 5, 5), torch.randn(5))
    assert checked.externs == []
