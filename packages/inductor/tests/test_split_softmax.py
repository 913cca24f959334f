"""Softmax of few long rows, whose sums are cut into pieces: each piece takes powers of distances
from its own largest element, so that the elements are read once before they are divided."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from dovetail_inductor import InductorOptions, compile_graph
from dovetail_inductor.targets.cuda.cuda_target import SCHEDULING, SPLIT, CudaTarget
from dovetail_prims import trace_aten
from dovetail_prims.decompositions import core_aten_table
from dovetail_runtime import Plan
from dovetail_runtime.plan import TritonKernel
from kernel_interpreter import run_in_interpreter
from reference_executor import ReferenceExecutor
from torch import Tensor

INF, NAN = float("inf"), float("nan")
LENGTHS = {"even": 40_000, "uneven": 40_009}


def softmax(x: Tensor) -> Tensor:
    return torch.softmax(x, -1)


def log_softmax(x: Tensor) -> Tensor:
    return torch.log_softmax(x.float() * 2, -1)


def powers(x: Tensor) -> Tensor:
    return (x - x.amax(-1, keepdim=True)).exp().sum(-1)


def log_sum_exp(x: Tensor) -> Tensor:
    return torch.logsumexp(x, 1)


def planned(
    fn: Callable[..., Any], *inputs: Tensor, options: InductorOptions | None = None
) -> Plan:
    gm = trace_aten(fn, *inputs, decompositions=core_aten_table())
    return compile_graph(gm, options=options or InductorOptions(triton=True))


def interpreted(fn: Callable[..., Any], *inputs: Tensor) -> Tensor:
    plan = planned(fn, *inputs)
    assert len(plan.kernels) == (2 if fn in (powers, log_sum_exp) else 3)
    (found,) = ReferenceExecutor(plan, launch_triton=run_in_interpreter)(*inputs)
    assert isinstance(found, Tensor)
    return found


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("fn", [softmax, log_softmax, powers, log_sum_exp])
def test_pieces(length: str, fn: Callable[..., Any]) -> None:
    x = torch.randn(2, LENGTHS[length]) * 9
    torch.testing.assert_close(interpreted(fn, x), fn(x), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    "place, value",
    [(slice(0, 20_000), -INF), (slice(None), -INF), (7, NAN), (7, INF), (slice(9, None), -INF)],
    ids=["pieces of -inf", "nothing but -inf", "NaN", "inf", "few"],
)
@pytest.mark.parametrize("fn", [powers, log_sum_exp])
@pytest.mark.parametrize("length", LENGTHS)
def test_ends(length: str, fn: Callable[[Tensor], Tensor], place: Any, value: float) -> None:
    x = torch.randn(2, LENGTHS[length]) - 300  # 0 would be far above
    x[0, place] = value
    got = interpreted(fn, x)
    torch.testing.assert_close(got, fn(x), rtol=1e-5, atol=1e-6, equal_nan=True)


def test_long_pieces_are_read_once() -> None:
    rule = replace(SPLIT, aim=4)
    options = InductorOptions(target=CudaTarget(scheduling=replace(SCHEDULING, split=rule)))
    x = torch.full((2, 80_000), -INF)
    x[:, 50_000:] = torch.randn(2, 30_000)
    plan = planned(softmax, x, options=options)
    first, *_ = plan.kernels
    assert isinstance(first, TritonKernel)
    assert "for start in range" in first.source
    assert first.source.count("tl.load(") == 1
    (got,) = ReferenceExecutor(plan, launch_triton=run_in_interpreter)(x)
    torch.testing.assert_close(got, softmax(x), rtol=1e-5, atol=1e-9)


def test_kernels_build(build_for_h100: Callable[..., Any]) -> None:
    plans = [
        planned(fn, torch.empty(2, n)) for n in LENGTHS.values() for fn in (softmax, log_softmax)
    ]
    assert build_for_h100([kernel for plan in plans for kernel in plan.kernels])
