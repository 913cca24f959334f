"""Max pooling as on a GPU: windows are read in loops, forward and backward."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from dovetail_inductor import InductorOptions, compile_graph
from dovetail_inductor.lowering.lower import lower
from dovetail_inductor.targets import CPU, CUDA
from dovetail_prims.decompositions import core_aten_table
from dovetail_prims.graphs.record import trace_aten
from dovetail_runtime.plan import CallAten, LaunchTriton, Plan, TritonKernel
from kernel_interpreter import run_in_interpreter
from reference_executor import ReferenceExecutor
from torch import Tensor

aten = torch.ops.aten
LAST = torch.channels_last
SPECIAL = torch.tensor([1.0, -torch.inf, torch.nan, 2.0, 2.0, torch.inf, -3.0])

# kernel, stride, padding, dilation, ceil_mode
GEOMETRIES: list[tuple[Any, ...]] = [
    ([2, 2], [], 0, 1, False), ([3, 3], [2, 2], [1, 1], [1, 1], False), ([3], [2], [1], [1], True),
    ([3, 2], [1, 2], [1, 0], [1, 1], False), ([5, 5], [3, 4], [2, 2], [1, 1], True),
    ([1, 1], [2, 2], [0, 0], [1, 1], False), ([2, 3], [2, 1], [0, 1], [1, 1], True),
]  # fmt: skip


def pooled(x: Tensor, *geometry: Any) -> tuple[Tensor, Tensor]:
    made: tuple[Tensor, Tensor] = aten.max_pool2d_with_indices.default(x, *geometry)
    return made


def gradient(x: Tensor, grad: Tensor, *geometry: Any) -> tuple[Tensor]:
    indices = pooled(x, *geometry)[1]
    return (aten.max_pool2d_with_indices_backward.default(grad, x, *geometry, indices),)


def run(fn: Any, *inputs: Tensor) -> tuple[Plan, tuple[Any, ...]]:
    gm = trace_aten(fn, *inputs, decompositions=core_aten_table())
    plan = compile_graph(gm, inputs, options=InductorOptions(triton=True))
    return plan, ReferenceExecutor(plan, launch_triton=run_in_interpreter)(*inputs)


def externs(plan: Plan) -> list[str]:
    return [step.op for step in plan.steps if isinstance(step, CallAten)]


def check_on_gpu(fn: Any, *inputs: Tensor) -> Plan:
    plan, got = run(fn, *inputs)
    assert not externs(plan)
    for mine, wanted in zip(got, fn(*inputs), strict=True):
        assert mine.dtype is wanted.dtype and mine.stride() == wanted.stride()
        torch.testing.assert_close(mine, wanted, equal_nan=True)
    return plan


@pytest.mark.parametrize("case", range(len(GEOMETRIES)))
def test_equal_to_eager(case: int) -> None:
    geometry = GEOMETRIES[case]
    layout = LAST if case % 2 else torch.contiguous_format
    x = torch.randn(2, 3, 7, 9).contiguous(memory_format=layout)
    grad = torch.randn_like(pooled(x, *geometry)[0])
    check_on_gpu(lambda x, g: (*pooled(x, *geometry), *gradient(x, g, *geometry)), x, grad)


def test_ties_nan_and_infinities() -> None:
    generator = torch.Generator().manual_seed(3)
    x = SPECIAL[torch.randint(0, len(SPECIAL), (1, 2, 12, 12), generator=generator)]
    x[0, 0, :6, :6] = -torch.inf  # whole windows of it
    for geometry in GEOMETRIES[1::2]:
        plan, (value, index) = run(lambda x, g=geometry: pooled(x, *g), x)
        wanted = pooled(x, *geometry)
        assert not externs(plan)
        assert torch.equal(index, wanted[1]), geometry
        torch.testing.assert_close(value, wanted[0], equal_nan=True)


def test_without_a_batch_and_of_integers() -> None:
    check_on_gpu(lambda x: pooled(x, [2, 2]), torch.randn(3, 8, 8))
    check_on_gpu(lambda x: pooled(x, [3, 3], [2, 2], [1, 1]), torch.randint(-9, 9, (2, 3, 8, 8)))


def test_half_precision_adds_in_float32() -> None:
    x = torch.randn(2, 4, 10, 10).half()
    grad = torch.randn(2, 4, 10, 10).half()
    geometry = ([3, 3], [1, 1], [1, 1], [1, 1], False)
    _, (got,) = run(lambda x, g: gradient(x, g, *geometry), x, grad)
    (exact,) = gradient(x.double(), grad.double(), *geometry)
    assert got.dtype is torch.float16 and torch.equal(got, exact.half())


def test_fused_with_what_is_around() -> None:
    def stem(x: Tensor, scale: Tensor) -> tuple[Tensor, Tensor]:
        value, index = pooled(torch.relu(x * scale), [3, 3], [2, 2], [1, 1])
        return value + 1, index

    x, scale = torch.randn(2, 4, 12, 12), torch.randn(4, 1, 1)
    plan = check_on_gpu(stem, x, scale)
    assert sum(isinstance(s, LaunchTriton) for s in plan.steps) == 1

    def back(x: Tensor, grad: Tensor, index: Tensor) -> tuple[Tensor]:
        geometry = ([3, 3], [2, 2], [1, 1], [1, 1], False)
        made = aten.max_pool2d_with_indices_backward.default(grad, x, *geometry, index)
        return (torch.where(x > 0, made, 0),)

    index = pooled(x, [3, 3], [2, 2], [1, 1])[1]
    plan = check_on_gpu(back, x, torch.randn(2, 4, 6, 6), index)
    assert sum(isinstance(s, LaunchTriton) for s in plan.steps) == 1


def test_large_and_dilated_windows() -> None:
    x = SPECIAL[torch.randint(0, len(SPECIAL), (1, 2, 9, 8))]
    x[0, 0] = -torch.inf
    for geometry in (
        ([6, 7], [2, 3], [3, 2], [1, 1], True), ([2, 3], [2, 1], [1, 1], [2, 3], False),
    ):  # fmt: skip
        grad = torch.randn_like(pooled(x, *geometry)[0])
        plan, (value, index, back) = run(
            lambda x, g, q=geometry: (*pooled(x, *q), *gradient(x, g, *q)), x, grad
        )
        assert not externs(plan)
        assert torch.equal(index, pooled(x, *geometry)[1])
        torch.testing.assert_close(value, pooled(x, *geometry)[0], equal_nan=True)
        torch.testing.assert_close(back, gradient(x, grad, *geometry)[0])


# kernel, stride, padding, ceil_mode, count_include_pad, divisor_override
AVERAGES: list[tuple[Any, ...]] = [
    ([3, 3], [2, 2], [1, 1], False, True, None), ([3, 2], [], [0, 0], True, False, None),
    ([2, 3], [1, 2], [1, 1], True, True, None), ([2, 2], [3, 3], [1, 1], True, False, 7),
    ([7, 5], [2, 1], [3, 2], False, False, None), ([1, 1], [2, 2], [0, 0], False, True, None),
]  # fmt: skip


def averaged(x: Tensor, g: Tensor, *geometry: Any) -> tuple[Tensor, Tensor]:
    ops = (aten.avg_pool2d, aten.avg_pool2d_backward)
    if len(geometry[0]) == 3:
        ops = (aten.avg_pool3d, aten.avg_pool3d_backward)
    return ops[0].default(x, *geometry), ops[1].default(g, x, *geometry)


@pytest.mark.parametrize("case", range(len(AVERAGES)))
@pytest.mark.parametrize("triton", (True, False))
def test_averages(case: int, triton: bool, check: Any) -> None:
    geometry = AVERAGES[case]
    layout = LAST if case % 2 else torch.contiguous_format
    x = torch.randn(2, 3, 7, 9).contiguous(memory_format=layout)
    if triton:
        grad = torch.randn_like(aten.avg_pool2d.default(x, *geometry))
        check_on_gpu(lambda x, g: averaged(x, g, *geometry), x, grad)
        if case != 4:
            return
    x = x.double()
    grad = torch.randn_like(aten.avg_pool2d.default(x, *geometry))
    made = check(lambda x, g: averaged(x, g, *geometry), x, grad)
    assert not made.externs


def test_averages_in_three_dimensions_and_of_halves() -> None:
    geometry = ([3, 2, 2], [2, 1, 2], [1, 0, 1], True, False, None)
    x = torch.randn(1, 2, 5, 4, 6)
    grad = torch.randn_like(aten.avg_pool3d.default(x, *geometry))
    check_on_gpu(lambda x, g: averaged(x, g, *geometry), x, grad)
    x = torch.randn(1, 2, 9, 9).half()
    _, got = run(lambda x: (aten.avg_pool2d.default(x, [3, 3]),), x)
    assert torch.equal(got[0], aten.avg_pool2d.default(x.double(), [3, 3]).half())


def adaptive(x: Tensor, g: Tensor, size: list[int]) -> tuple[Tensor, ...]:
    rank = len(size)
    average = getattr(aten, f"_adaptive_avg_pool{rank}d").default
    largest = getattr(aten, f"adaptive_max_pool{rank}d").default
    value, index = largest(x, size)
    return (
        average(x, size), getattr(aten, f"_adaptive_avg_pool{rank}d_backward").default(g, x),
        value, index, getattr(aten, f"adaptive_max_pool{rank}d_backward").default(g, x, index),
    )  # fmt: skip


@pytest.mark.parametrize("size", ([3, 4], [7, 9], [12, 5], [1, 9], [5, 1], [2, 3, 4]), ids=str)
def test_adaptive(size: list[int], check: Any) -> None:
    x = torch.randn(2, 2, *(5, 7, 9)[-len(size) :])
    grad = torch.randn(2, 2, *size)
    check_on_gpu(lambda x, g: adaptive(x, g, size), x, grad)
    made = check(lambda x, g: adaptive(x, g, size)[:2], x, grad)
    assert not made.externs
    # Of maxima the library's kernels are faster on a CPU.
    assert len(check(lambda x, g: adaptive(x, g, size)[2:], x, grad).externs) == 2


def test_maxima_in_three_dimensions() -> None:
    geometry = ([3, 2, 2], [2, 1, 2], [1, 0, 1], [1, 2, 1], True)
    pool = aten.max_pool3d_with_indices.default
    back = aten.max_pool3d_with_indices_backward.default
    x = torch.randn(1, 2, 5, 4, 6).round()
    grad = torch.randn_like(pool(x, *geometry)[0])

    def both(x: Tensor, g: Tensor) -> tuple[Tensor, ...]:
        value, index = pool(x, *geometry)
        return value, index, back(g, x, *geometry, index)

    check_on_gpu(both, x, grad)


def test_what_is_faster_on_a_cpu(check: Any) -> None:
    for kernel, layout, calls in ((2, LAST, 0), (3, LAST, 1), (2, torch.contiguous_format, 1)):
        geometry = ([kernel] * 2, [2, 2], [1, 1], [1, 1], False)
        x = torch.randn(2, 8, 9, 9).contiguous(memory_format=layout)
        grad = torch.randn_like(pooled(x, *geometry)[0])
        both = lambda x, g, geometry=geometry: (  # noqa: E731
            *pooled(x, *geometry), *gradient(x, g, *geometry),
        )  # fmt: skip
        assert len(check(both, x, grad).externs) == calls
    large = ([5, 5], [1, 1], [2, 2], [1, 1], False)
    assert check(lambda x: pooled(x, *large), x).externs


def test_columns(check: Any) -> None:
    for kernel, dilation, pad, step in (
        ([2, 3], [1, 1], [1, 0], [1, 2]), ([3, 2], [2, 1], [2, 1], [2, 3]),
        ([6, 5], [1, 1], [3, 3], [1, 1]),
    ):  # fmt: skip
        x = torch.randn(2, 2, 7, 6)
        columns = aten.im2col.default(x, kernel, dilation, pad, step)
        geometry = (kernel, dilation, pad, step)
        fold = lambda c, g=geometry: (aten.col2im.default(c, [7, 6], *g),)  # noqa: E731
        check_on_gpu(fold, torch.randn_like(columns))
        assert not check(fold, torch.randn_like(columns)).externs
        unfold = lambda x, g=geometry: aten.im2col.default(x, *g)  # noqa: E731
        assert not check(unfold, x).externs


# kernel, dilation, padding, stride
WINDOWS = [
    ((3, 3), (1, 1), (1, 1), (1, 1)),
    ((3, 2), (1, 1), (0, 1), (1, 1)),
    ((2, 3), (2, 1), (1, 0), (1, 1)),
    ((3, 3), (2, 2), (2, 2), (1, 1)),
    ((3, 3), (1, 1), (1, 1), (2, 2)),
    ((4, 3), (1, 2), (2, 1), (3, 2)),
    ((2, 2), (1, 1), (0, 0), (3, 3)),
    ((8, 7), (1, 1), (2, 2), (1, 1)),
]


@pytest.mark.parametrize("window", WINDOWS, ids=str)
def test_columns_are_added_up(check: Any, window: tuple[tuple[int, int], ...]) -> None:
    """Of windows side by side, apart and dilated, and of long ones."""
    fold = lambda c: (aten.col2im.default(c, (9, 11), *window),)  # noqa: E731
    for dtype in (torch.float64, torch.float32, torch.bfloat16):
        image = torch.randn(2, 3, 9, 11).to(dtype)
        columns = torch.nn.functional.unfold(image, *window)
        tol = 5e-2 if dtype is torch.bfloat16 else None  # (eager rounds each sum)
        for own in (columns, columns[0], columns.mT.contiguous().mT):
            assert not check(fold, own, rtol=tol, atol=tol).externs
    check_on_gpu(fold, torch.randn_like(columns.float()))


def test_the_kernels_compile_for_an_h100(build_for_h100: Any) -> None:
    x = torch.randn(2, 16, 8, 8, dtype=torch.bfloat16).contiguous(memory_format=LAST)
    grad = torch.randn(2, 16, 4, 4, dtype=torch.bfloat16).contiguous(memory_format=LAST)
    geometry = ([3, 3], [2, 2], [1, 1], [1, 1], False)
    gm = trace_aten(
        lambda x, g: gradient(x, g, *geometry), x, grad, decompositions=core_aten_table()
    )
    plan = compile_graph(gm, (x, grad), options=InductorOptions(triton=True))
    build_for_h100([k for k in plan.kernels if isinstance(k, TritonKernel)])


def test_windows_that_several_read_are_gone_through_once(check: Any) -> None:
    def fn(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        largest = pooled(x.relu(), [3, 3], [2, 2], [1, 1])[0]
        return torch.cat([largest, y], 1).exp(), torch.cat([y, largest], 1).sin(), y.cos()

    inputs = torch.randn(2, 4, 9, 9), torch.randn(2, 3, 5, 5)
    gm = trace_aten(fn, *inputs, decompositions=core_aten_table())
    for target in (CPU, CUDA):
        buffers = lower(gm, target).buffers.values()
        assert sum(buffer.shape == (2, 4, 5, 5) for buffer in buffers) == 1
    check(fn, *inputs)
