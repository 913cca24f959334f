"""Reductions down the rows of a matrix: stripes of columns, as wide as the threads leave them."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch

R = torch.randn


@contextmanager
def threads(number: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def work_of(result) -> int:
    (step,) = [s for s in result.plan.steps if hasattr(s, "work")]
    return step.work


@pytest.mark.parametrize(("number", "stripes"), [(1, 2), (2, 4), (4, 8)])
def test_there_are_two_stripes_for_each_thread(check, number, stripes):
    with threads(number):
        result = check(lambda x: (x * 2).amax(0), R(600, 1024))
    assert work_of(result) == stripes


@pytest.mark.parametrize("shape", [(7, 1), (7, 15), (1, 700), (0, 40), (300, 1000), (700, 2049)])
@pytest.mark.parametrize("number", [1, 2, 16])
def test_shapes(check, shape, number):
    with threads(number):
        check(lambda x: ((x * 2).sum(0), x.tanh()), R(*shape), atol=1e-3)


@pytest.mark.parametrize("columns", [31, 1024, 1040])
@pytest.mark.parametrize(
    "dtype",
    [torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int64, torch.int8],
)
def test_dtypes(check, columns, dtype):
    x = (R(520, columns) * 8).to(dtype)
    with threads(1):
        check(
            lambda x: (x.sum(0), x.amax(0), x.amin(0)), x, atol=1.0 if x.is_floating_point() else 0
        )


@pytest.mark.parametrize("columns", [33, 1024, 1500])
def test_positions_and_truths(check, columns):
    x = R(520, columns)
    x[17, 5] = float("nan")
    x[18, 6] = float("inf")
    x[19, 7] = -float("inf")
    with threads(1):
        check(lambda x: (x.argmax(0), x.argmin(0)), x)
        check(lambda x: ((x > 3).any(0), (x > -3).all(0)), x)
        check(lambda x: x.amax(0), x)


def test_several_passes_and_strided_inputs(check):
    x = R(2 * 130, 3 * 1000)[::2, ::3]
    with threads(1):
        check(lambda x: torch.softmax(x, 0), x)
        check(lambda x: (x - x.mean(0)) * x.var(0).rsqrt(), x, rtol=1e-4, atol=1e-4)
        check(lambda x: (x.sum(0), (x * x).sum(0), x.relu()), x, rtol=1e-4, atol=1e-3)


def test_batches_of_matrices(check):
    with threads(1):
        check(lambda x: x.exp().sum(1), R(3, 200, 1000), rtol=1e-4)
        check(lambda x: x.exp().sum((0, 2)), R(3, 200, 7, 500), rtol=1e-4)


@pytest.mark.parametrize("rows", [1, 3, 4, 63, 65, 130, 4099])
def test_several_rows_at_a_time(check, rows):
    """Each sum in a register meanwhile; what is added, and in what order, stays as it was."""

    def fn(x, by):
        return x.sum(0), (x * by).sum(0), x.amax(0), x.argmin(0)

    with threads(1):
        result = check(fn, R(rows, 100), R(rows, 1), rtol=1e-4, atol=1e-3)
    if rows >= 4:
        assert any("row + 4" in kernel.source for kernel in result.plan.kernels)
