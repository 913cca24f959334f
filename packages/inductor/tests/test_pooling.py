"""Max pooling as on a GPU: windows are read in loops, forward and backward."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from dovetail_inductor import InductorOptions, compile_graph
from dovetail_prims.decompositions import core_aten_table
from dovetail_prims.record import trace_aten
from dovetail_runtime.plan import CallAten, LaunchTriton, Plan, TritonKernel
from dovetail_runtime.reference import ReferenceExecutor
from dovetail_runtime.triton_build import run_in_interpreter
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


def check(fn: Any, *inputs: Tensor) -> Plan:
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
    check(lambda x, g: (*pooled(x, *geometry), *gradient(x, g, *geometry)), x, grad)


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
    check(lambda x: pooled(x, [2, 2]), torch.randn(3, 8, 8))
    check(lambda x: pooled(x, [3, 3], [2, 2], [1, 1]), torch.randint(-9, 9, (2, 3, 8, 8)))


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
    plan = check(stem, x, scale)
    assert sum(isinstance(s, LaunchTriton) for s in plan.steps) == 1

    def back(x: Tensor, grad: Tensor, index: Tensor) -> tuple[Tensor]:
        geometry = ([3, 3], [2, 2], [1, 1], [1, 1], False)
        made = aten.max_pool2d_with_indices_backward.default(grad, x, *geometry, index)
        return (torch.where(x > 0, made, 0),)

    index = pooled(x, [3, 3], [2, 2], [1, 1])[1]
    plan = check(back, x, torch.randn(2, 4, 6, 6), index)
    assert sum(isinstance(s, LaunchTriton) for s in plan.steps) == 1


def test_large_and_dilated_windows_stay_library_calls() -> None:
    x = torch.randn(1, 2, 16, 16)
    plan, _ = run(lambda x: pooled(x, [6, 6]), x)
    assert externs(plan) == ["aten::max_pool2d_with_indices"]
    geometry = ([2, 2], [2, 2], [0, 0], [2, 2], False)
    plan, _ = run(lambda x, g: gradient(x, g, *geometry), x, torch.randn(1, 2, 7, 7))
    assert externs(plan) == ["aten::max_pool2d_with_indices_backward"]


def test_the_kernels_compile_for_an_h100(build_for_h100: Any) -> None:
    x = torch.randn(2, 16, 8, 8, dtype=torch.bfloat16).contiguous(memory_format=LAST)
    grad = torch.randn(2, 16, 4, 4, dtype=torch.bfloat16).contiguous(memory_format=LAST)
    geometry = ([3, 3], [2, 2], [1, 1], [1, 1], False)
    gm = trace_aten(
        lambda x, g: gradient(x, g, *geometry), x, grad, decompositions=core_aten_table()
    )
    plan = compile_graph(gm, (x, grad), options=InductorOptions(triton=True))
    build_for_h100([k for k in plan.kernels if isinstance(k, TritonKernel)])
