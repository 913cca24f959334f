"""Conversions to and from 8-bit floats in kernels: every number as eager has it, in C++ and on a
GPU; quantisation is one pass over what is quantised."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from dovetail_inductor import InductorOptions, compile_graph
from dovetail_prims.decompositions import core_aten_table
from dovetail_prims.graphs.record import trace_aten
from dovetail_runtime import load
from dovetail_runtime.plan import CallAten, LaunchTriton, TritonKernel
from kernel_interpreter import run_in_interpreter
from reference_executor import ReferenceExecutor
from torch import Tensor

E4, E5 = torch.float8_e4m3fn, torch.float8_e5m2
KINDS = pytest.mark.parametrize("kind", [E4, E5], ids=str)


def numbers() -> Tensor:
    """Every bfloat16, numbers between them, and those next to what is too large."""
    every = torch.arange(1 << 16, dtype=torch.int32).to(torch.int16).view(torch.bfloat16).float()
    draw = torch.rand(1 << 16, generator=torch.Generator().manual_seed(0))
    edges = (448, 463.9, 464, 464.1, 479, 480, 500, 57344, 61439, 61440, 61441, 65536)
    return torch.cat([every, every * (1 + draw * 0.01), torch.tensor(edges), -torch.tensor(edges)])


def check(got: Sequence[Any], wanted: Sequence[Tensor]) -> None:
    for mine, eager in zip(got, wanted, strict=True):
        assert mine.dtype == eager.dtype and mine.stride() == eager.stride()
        a, b = mine.cpu().double(), eager.cpu().double()
        same = (a == b) & (a.signbit() == b.signbit())
        assert bool((same | (a.isnan() & b.isnan())).all())


def narrowed(kind: torch.dtype) -> Callable[[Tensor], tuple[Tensor, ...]]:
    """To a kind, from several types, and on from there in the same kernel."""

    def fn(x: Tensor) -> tuple[Tensor, ...]:
        rounded = (x + 0).to(kind)
        turned = x[: 1 << 16].to(kind).view(256, 256).t().contiguous()
        return (
            rounded,
            (x * 1).to(kind).float() * 2,
            x.bfloat16().to(kind),
            x.double().to(kind),
            turned,
        )

    return fn


def widened(q: Tensor) -> tuple[Tensor, ...]:
    other = E5 if q.dtype is E4 else E4
    return q.float(), q.bfloat16(), q.double(), q.to(torch.int32), q.to(other)


def every_number(kind: torch.dtype) -> Tensor:
    return torch.arange(256, dtype=torch.uint8).view(kind)


def run(fn: Callable[..., Any], *inputs: Tensor) -> Sequence[Any]:
    plan = compile_graph(trace_aten(fn, *inputs, decompositions=core_aten_table()), list(inputs))
    assert not any(isinstance(s, CallAten) for s in plan.steps), "by kernels of ours"
    return load(plan).run(*inputs)


@KINDS
def test_as_eager_in_cpp(kind: torch.dtype) -> None:
    x, q = numbers(), every_number(kind)
    check(run(narrowed(kind), x), narrowed(kind)(x))
    finite = q[q.float().isfinite()]
    check(run(widened, finite), widened(finite))


@pytest.mark.gpu
@KINDS
def test_as_eager_on_a_gpu(kind: torch.dtype) -> None:
    x, q = numbers().cuda(), every_number(kind).cuda()
    check(run(narrowed(kind), x), narrowed(kind)(x))
    finite = q[q.float().isfinite()]
    check(run(widened, finite), widened(finite))


def quantised(x: Tensor) -> tuple[Tensor, Tensor]:
    scale = 448 / x.abs().amax(-1, keepdim=True).float().clamp(min=1e-12)
    return (x.float() * scale).clamp(-448, 448).to(E4), scale.reciprocal()


def norm_and_quantisation(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    y = x.float()
    return quantised((y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + 1e-6)).to(x.dtype) * w)


def for_a_gradient(x: Tensor) -> Tensor:
    return (x.float() * 0.5).to(E5)


@pytest.mark.parametrize(
    "fn, inputs",
    [
        (norm_and_quantisation, (torch.randn(40, 96).half(), torch.rand(96).half())),
        (quantised, (torch.randn(33, 40).half(),)),
        (for_a_gradient, (torch.randn(32, 64).half(),)),
    ],
    ids=["norm", "rows", "gradient"],
)
def test_quantisation_is_one_kernel(
    fn: Callable[..., Any], inputs: tuple[Tensor, ...], build_for_h100: Any
) -> None:
    gm = trace_aten(fn, *inputs, decompositions=core_aten_table())
    plan = compile_graph(gm, list(inputs), options=InductorOptions(triton=True))
    assert sum(isinstance(s, LaunchTriton) for s in plan.steps) == 1
    assert not any(isinstance(s, CallAten) for s in plan.steps)
    build_for_h100([k for k in plan.kernels if isinstance(k, TritonKernel)])
    got = ReferenceExecutor(plan, launch_triton=run_in_interpreter)(*inputs)
    wanted = fn(*inputs) if isinstance(fn(*inputs), tuple) else (fn(*inputs),)
    pairs = zip(got, wanted, strict=True)
    # What is rounded up to a power of two, or is less than normal, the interpreter rounds down.
    far = [(a.float() - b.float()).abs() > 0.02 * b.float().abs() for a, b in pairs]
    assert all(f.float().mean() < 0.13 for f in far)
