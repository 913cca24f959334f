"""What a program asks of values of half types is answered for what eager has in memory."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from dovetail_inductor import InductorOptions, compile_graph
from dovetail_prims import trace_aten
from dovetail_prims.decompositions import core_aten_table
from dovetail_runtime.plan import TritonKernel
from kernel_interpreter import run_in_interpreter
from reference_executor import ReferenceExecutor
from torch import Tensor

INF = float("inf")
HALVES = [torch.float16, torch.bfloat16]
# Squares that overflow in float16, vanish in it, and are rounded in both types.
X = torch.tensor([300.0, 2.0, -1.14453125, 200.25, 1e-4, -1e-4, 0.1, -0.3, 255.9, 256.0, 3e-5, 7.0])


def _equal(y: Tensor) -> Tensor:
    return y == y.amax()


# Each asks something of a value, and gives the value itself too where the two can contradict.
QUESTIONS: dict[str, Callable[[Tensor], object]] = {
    "isinf": lambda x: ((x * x).isinf(), x * x),
    "isinf of a square": lambda x: x.square().isinf(),
    "isfinite": lambda x: ((x * x + x).isfinite(), (x * x).isfinite().all()),
    "isnan of zero times": lambda x: ((x * x) * 0).isnan(),
    "isinf behind a choice": lambda x: torch.maximum(x.square(), x).isinf(),
    "isinf behind clamp": lambda x: torch.clamp(x * x, min=1.0).isinf(),
    "isinf of a view": lambda x: (x * x).view(3, 4).mT.isinf(),
    "isinf behind cat": lambda x: torch.cat([x * x, x]).isinf(),
    "isinf behind flip": lambda x: (x * x).flip(0).isinf(),
    "isposinf, isneginf": lambda x: ((x * x).isposinf(), (-(x * x)).isneginf()),
    "isinf of a wider one": lambda x: (x * x).float().isinf(),
    "isinf of a sum": lambda x: ((x * x).sum(), (x * x).sum().isinf(), (x * 300).sum().isinf()),
    "isinf of a mean": lambda x: (x * x).mean().isinf(),
    "isinf of an extreme": lambda x: (x * x).amax().isinf(),
    "nan_to_num": lambda x: (torch.nan_to_num(x * x), torch.nan_to_num(x * x, posinf=1.0)),
    "minus itself": lambda x: (x * x) - (x * x),
    "minus itself, named": lambda x: (y := x * x, y - y, y - y.detach()),
    "by itself": lambda x: (y := x * x, y / y),
    "where": lambda x: torch.where((x * x).isinf(), torch.zeros_like(x), x),
    "masked_fill": lambda x: (y := x * x).masked_fill(y == INF, -1.0),
    "equal to a number": lambda x: (x * x == INF, x * x != 0, x * 0.1 == 0.01),
    "above a number": lambda x: (x * x > 65504, x * x > 0, x * 0.1 >= 0.01),
    "above a tensor": lambda x: (x * x > x * 3, x * x <= x.abs()),
    "to a reduction's result": lambda x: _equal(x * 0.1 + x),
    "any, all": lambda x: ((x * x).any(), (x * x * 0.01).all(), (x * x).isinf().any()),
    "argmax": lambda x: ((x * x).argmax(), (x * 1.001).argmin(), (x + 4096).argmax()),
    "argmax of rows": lambda x: (x + 4096).view(3, 4).argmax(1),
    "cummax": lambda x: (x + 4096).cummax(0).indices,
    "sort": lambda x: (y := x * x + x, torch.sort(y, stable=True), y.isinf()),
    "topk": lambda x: (y := x * x, y.topk(3).values, y.isinf()),
    "sign": lambda x: ((x * x).sign(), (x * 1e-4 * 1e-4).sign()),
    "floor, ceil": lambda x: ((x + 64.5).floor(), (x * 3 + 0.875).ceil()),
    "round, trunc": lambda x: ((x * 3).round(), (x * 7 / 3).trunc(), (x * 3).frac()),
    "to integers": lambda x: ((x.clamp(-2, 250) * 7 + 0.875).int(), (x * 1.5).clamp(0, 90).byte()),
    "to bool": lambda x: ((x * x).bool(), torch.logical_not(x * x), torch.logical_and(x * x, x)),
    "remainder": lambda x: (torch.remainder(x.clamp(-9, 9) * 3, 0.5), torch.fmod(x * 0.1, 0.25)),
    "floor divide": lambda x: torch.div(x.clamp(-9, 9) * 3, 0.3, rounding_mode="floor"),
    "clamp by a found inf": lambda x: torch.clamp(
        x * x, max=torch.where((x * x).isinf().any(), 64504.0, 65504.0).to(x.dtype)
    ),
}  # fmt: skip


def _flat(values: object) -> list[Tensor]:
    return [t for t in torch.utils._pytree.tree_leaves(values) if isinstance(t, Tensor)]


def _asked(names: list[str]) -> Callable[[Tensor], tuple[Tensor, ...]]:
    def fn(x: Tensor) -> tuple[Tensor, ...]:
        return tuple(t for name in names for t in _flat(QUESTIONS[name](x)))

    return fn


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("first", range(4))
def test_answers_are_those_of_eager(check, first: int, dtype: torch.dtype) -> None:
    for x in (X, X.repeat(5)[:59]) if first == 0 else (X,):
        names = [n for n in list(QUESTIONS)[first::4] if x is X or "view" not in n]
        check(_asked(names), x.to(dtype), rtol=0, atol=0)


def test_answers_of_gpu_kernels_are_those_of_eager() -> None:
    """In the interpreter, which cuts bfloat16 off where a GPU rounds."""
    x = X.half()
    for name in QUESTIONS:
        if name in ("sort", "topk"):
            continue  # library calls, as on a CPU
        fn = _asked([name])
        gm = trace_aten(fn, x, decompositions=core_aten_table())
        plan = compile_graph(gm, (x,), options=InductorOptions(triton=True))
        got = ReferenceExecutor(plan, launch_triton=run_in_interpreter)(x)
        for ours, eager in zip(got, fn(x), strict=True):
            torch.testing.assert_close(
                ours, eager, rtol=0, atol=0, equal_nan=True, msg=lambda m, n=name: f"{n}: {m}"
            )


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("triton", [False, True])
def test_norms_and_activations_are_not_rounded_inside(dtype: torch.dtype, triton: bool) -> None:
    """Nothing asks there, and they stay more exact than eager."""

    def fn(x: Tensor, weight: Tensor, other: Tensor) -> tuple[Tensor, ...]:
        return (
            torch.softmax(x * 0.125 + other, -1), F.layer_norm(x + other, x.shape[-1:], weight),
            F.rms_norm(x + other, x.shape[-1:], weight), F.gelu(x * other) + other,
            F.gelu(x + weight, approximate="tanh"), F.silu(x + weight) * other,
            F.dropout(x * weight + other, 0.0), F.relu(x * weight + other),
            torch.log_softmax(x + other, -1), F.group_norm(x[None] * weight, 1) + x,
        )  # fmt: skip

    inputs = [torch.randn(n).to(dtype) for n in ((8, 64), (64,), (8, 64))]
    gm = trace_aten(fn, *inputs, decompositions=core_aten_table())
    plan = compile_graph(gm, options=InductorOptions(triton=triton))
    name = "round_f16" if dtype is torch.float16 else "round_bf16"
    rounding = "float16).to(tl.float32)" if triton else f"{name}("
    assert plan.kernels
    for kernel in plan.kernels:
        assert rounding not in kernel.source, kernel.source


@pytest.mark.parametrize("dtype", HALVES)
def test_no_rounding_is_lost_to_a_fused_multiply_and_add(dtype: torch.dtype) -> None:
    """For a GPU: a square, rounded, minus itself is 0; where nothing is rounded, they may fuse."""

    def kernel(fn: Callable[[Tensor], object]) -> TritonKernel:
        gm = trace_aten(fn, X.to(dtype), decompositions=core_aten_table())
        (found,) = compile_graph(gm, options=InductorOptions(triton=True)).kernels
        assert isinstance(found, TritonKernel)
        return found

    assert not kernel(QUESTIONS["minus itself"]).fp_fusion
    assert kernel(lambda x: x * x - x).fp_fusion
