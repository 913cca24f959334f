"""The largest and smallest elements with their places, as Triton kernels: of equal ones the first,
NaN before all, and the element itself, sign of zero included."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from dovetail_inductor.options import InductorOptions
from dovetail_inductor.pipeline import compile_graph
from dovetail_prims.decompositions import core_aten_table
from dovetail_prims.graphs.record import trace_aten
from dovetail_runtime.plan import TritonKernel
from kernel_interpreter import run_in_interpreter
from reference_executor import ReferenceExecutor
from torch import Tensor

LAYOUTS: dict[str, tuple[tuple[int, ...], int]] = {
    "rows": ((5, 70), 1),
    "long rows": ((2, 20000), 1),
    "columns": ((300, 37), 0),
    "middle": ((2, 300, 33), 1),
    "middle of a few": ((3, 7, 50), 1),
    "aligned middle": ((2, 130, 64), 1),
    "one": ((4, 1), 1),
}
KINDS = ("ties", "zeros", "nan", "infinite", "least")


def elements(kind: str, dtype: torch.dtype, shape: tuple[int, ...]) -> Tensor:
    x = torch.randint(0 if dtype is torch.bool else -3, 4, shape).to(dtype)
    if not dtype.is_floating_point:
        least = False if dtype is torch.bool else torch.iinfo(dtype).min
        return x.fill_(least) if kind == "least" else x
    if kind == "zeros":
        return torch.where(x > 0, 0.0, -0.0).to(dtype)
    if kind == "nan":
        return torch.where(torch.rand(shape) < 0.01, float("nan"), x).to(dtype)
    if kind == "infinite":
        return torch.where(x > 2, float("inf"), x).to(dtype)
    return x.fill_(float("-inf")) if kind == "least" else x


def plan_and_results(fn: Callable[..., Any], x: Tensor) -> tuple[Any, tuple[Tensor, ...]]:
    gm = trace_aten(fn, x, decompositions=core_aten_table())
    plan = compile_graph(gm, options=InductorOptions(triton=True))
    kernels = [k for k in plan.kernels if isinstance(k, TritonKernel)]
    assert kernels and len(kernels) == len(plan.kernels)
    return plan, ReferenceExecutor(plan, launch_triton=run_in_interpreter)(x)


def check(fn: Callable[..., Any], x: Tensor) -> Any:
    plan, got = plan_and_results(fn, x)
    for found, wanted in zip(got, fn(x), strict=True):
        torch.testing.assert_close(found, wanted, rtol=0, atol=0, equal_nan=True)
        assert found.stride() == wanted.stride()
        if wanted.is_floating_point():
            known = ~wanted.isnan()
            assert torch.equal(found.signbit()[known], wanted.signbit()[known])
    return plan


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int32, torch.int8])
def test_layouts_and_dtypes(layout: str, dtype: torch.dtype) -> None:
    shape, dim = LAYOUTS[layout]
    for seed, kind in enumerate(KINDS[: 5 if layout != "long rows" else 1]):
        torch.manual_seed(seed)
        x = elements(kind, dtype, shape)
        check(lambda x: (*x.max(dim), *x.min(dim)), x)
        check(lambda x: (x.argmax(dim), x.argmin(dim)), x)


def test_elements_that_do_not_lie_in_a_row() -> None:
    x = elements("ties", torch.float32, (66, 3, 80)).transpose(0, 2)[::2]
    check(lambda x: (*x.max(1), *x.min(0)), x)
    check(lambda x: (*x.max(2), x.amax(2), x.sum(2)), x)


def test_all_elements_and_truths() -> None:
    x = elements("nan", torch.float32, (40, 50))
    check(lambda x: (x.argmax(), x.argmin(), x.amax()), x)
    check(lambda x: (x > 0).max(1), x)


def test_what_is_computed_of_both() -> None:
    x = elements("ties", torch.float32, (2, 300, 33)) + torch.rand(2, 300, 33)

    def call(x: Tensor) -> tuple[Tensor, ...]:
        values, places = (x * 2).max(1)
        return values + places, (x * 2).amax(1) - values

    check(call, x)


@pytest.mark.parametrize("shape", [(2, 300, 33), (5, 70)])
def test_an_element_and_its_place_are_found_once(shape: tuple[int, ...]) -> None:
    plan = check(lambda x: x.max(1), torch.randn(shape))
    (kernel,) = plan.kernels
    assert kernel.source.count("tl.reduce(") == 1
    assert kernel.source.count("tl.load(") == 1


def test_softmax_beside_the_place_of_its_maximum() -> None:
    x = torch.randn(2, 20000)
    _, got = plan_and_results(lambda x: (x.softmax(1), x.argmax(1), x.amax(1)), x)
    for found, wanted in zip(got, (x.softmax(1), x.argmax(1), x.amax(1)), strict=True):
        torch.testing.assert_close(found, wanted)
