"""Rows that norms make, computed by the products that read them: as eager in Triton's interpreter,
how many launches are left, what stays as it is; compiled for an H100."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from dovetail_inductor import InductorOptions, compile_graph
from dovetail_inductor.options import Gpu
from dovetail_inductor.products import computed_rows
from dovetail_prims.decompositions import core_aten_table
from dovetail_prims.graphs.record import trace_aten
from dovetail_runtime import load
from dovetail_runtime.plan import LaunchTriton, Plan, TritonKernel
from kernel_interpreter import run_in_interpreter
from reference_executor import ReferenceExecutor
from torch import Tensor

Fn = Callable[..., Any]
DRAWN = torch.Generator().manual_seed(0)


def half(*shape: int) -> Tensor:
    # not bfloat16: Triton's interpreter truncates to it, where a GPU rounds
    return torch.randn(*shape, generator=DRAWN).half() / 4


def plan_of(fn: Fn, inputs: Sequence[Tensor]) -> Plan:
    gm = trace_aten(fn, *inputs, decompositions=core_aten_table())
    return compile_graph(gm, list(inputs), options=InductorOptions(triton=True, gpu=Gpu()))


def normed(x: Tensor, g: Tensor) -> Tensor:
    wide = x.float()
    return (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-5)).type_as(x) * g


def rms(x: Tensor, g: Tensor, w: Tensor) -> Tensor:
    return F.linear(normed(x, g), w)


def layer_norm(x: Tensor, g: Tensor, b: Tensor, w: Tensor, c: Tensor) -> Tensor:
    return F.gelu(F.linear(F.layer_norm(x, x.shape[-1:], g, b), w, c))


def gated(x: Tensor, g: Tensor, w: Tensor, v: Tensor, u: Tensor) -> Tensor:
    y = normed(x, g)
    return x + F.linear(F.silu(F.linear(y, w)) * F.linear(y, v), u)


def block(x: Tensor, o: Tensor, g: Tensor, w: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    x = x + F.linear(x, o)
    return x + F.linear(F.relu(F.linear(normed(x, g), w)), v), x


def three(x: Tensor, g: Tensor, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, ...]:
    y = normed(x, g)
    return F.linear(y, q), F.linear(y, k), F.linear(y, v)


def of_bytes(x: Tensor, g: Tensor, w: Tensor, s: Tensor) -> Tensor:
    return F.linear(normed(x, g), w.to(x.dtype)) * s


def of_halves_of_bytes(x: Tensor, g: Tensor, w: Tensor, s: Tensor) -> Tensor:
    both = torch.stack((w & 15, w >> 4), -1).view(*s.shape, -1).to(x.dtype) - 8
    return F.linear(normed(x, g), (both * s[..., None]).flatten(1))


def kept(x: Tensor, g: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    y = normed(x, g)
    return F.linear(y, w), y


def residual_of_what_is_stored(x: Tensor, r: Tensor, g: Tensor, w: Tensor) -> tuple[Tensor, ...]:
    x = x + r
    return x, x + F.linear(normed(x, g), w)


def scaled_by_largest(x: Tensor, w: Tensor) -> Tensor:
    return F.linear(x / x.abs().amax(-1, keepdim=True), w)


def whole(high: int, *shape: int) -> Tensor:
    return torch.randint(0, high, shape, generator=DRAWN, dtype=torch.uint8)


# name -> function, inputs, launches
CASES: dict[str, tuple[Fn, tuple[Tensor, ...], int]] = {
    "rms norm": (rms, (half(1, 256), half(256), half(40, 256)), 1),
    "of no power of two": (rms, (half(1, 200), half(200), half(24, 200)), 1),
    "in three dimensions": (rms, (half(1, 1, 64), half(64), half(48, 64)), 1),
    "layer norm, bias, gelu": (
        layer_norm,
        (half(1, 72), half(72), half(72), half(48, 72), half(48)),
        1,
    ),
    "gated": (gated, (half(1, 64), half(64), half(96, 64), half(96, 64), half(64, 96)), 2),
    "a residual before it": (
        block,
        (half(1, 64), half(64, 64), half(64), half(96, 64), half(64, 96)),
        3,
    ),
    "three products": (
        three,
        (half(1, 64), half(64), half(512, 64), half(256, 64), half(256, 64)),
        1,
    ),
    "weights of 8 bits": (of_bytes, (half(1, 64), half(64), whole(9, 48, 64), half(48)), 1),
    "weights of 4 bits": (
        of_halves_of_bytes,
        (half(1, 128), half(128), whole(256, 48, 64), half(48, 2)),
        1,
    ),
    "weights of 4 bits, groups of no power of two": (
        of_halves_of_bytes,
        (half(1, 144), half(144), whole(256, 48, 72), half(48, 3)),
        1,
    ),
    "the largest": (scaled_by_largest, (half(1, 96), half(24, 96)), 1),
    "a row that is kept": (kept, (half(1, 64), half(64), half(24, 64)), 2),
    "two rows": (rms, (half(2, 64), half(64), half(24, 64)), 2),
    "read where it is stored": (
        residual_of_what_is_stored,
        (half(1, 64), half(1, 64), half(64), half(64, 64)),
        2,
    ),
}


def check(got: Sequence[object], wanted: Any) -> None:
    wanted = wanted if isinstance(wanted, tuple) else (wanted,)
    torch.testing.assert_close(tuple(got), wanted, rtol=6e-3, atol=6e-3, check_stride=True)


@pytest.fixture(autouse=True)
def of_any_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(computed_rows, "LEAST_COLUMNS", 1)


@pytest.mark.parametrize("name", CASES)
def test_as_eager(name: str) -> None:
    fn, inputs, launches = CASES[name]
    plan = plan_of(fn, inputs)
    assert sum(isinstance(s, LaunchTriton) for s in plan.steps) == launches
    check(ReferenceExecutor(plan, launch_triton=run_in_interpreter)(*inputs), fn(*inputs))


@pytest.mark.parametrize("bits, launches", [(4, 1), (8, 2)])
def test_rows_of_programs_of_many_columns_alone(
    bits: int, launches: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.undo()
    fn, inputs, _ = CASES[f"weights of {bits} bits"]
    assert sum(isinstance(s, LaunchTriton) for s in plan_of(fn, inputs).steps) == launches


def test_a_residual_stays_with_the_norm_behind_the_library() -> None:
    """As nothing follows a product of the library's in its kernel."""
    fn, inputs, _ = CASES["a residual before it"]
    plan = plan_of(fn, [t.float() for t in inputs])
    assert sum(isinstance(s, LaunchTriton) for s in plan.steps) == 3


def test_what_is_no_number_stays_so() -> None:
    inputs = (half(1, 200), half(200), half(24, 200))
    inputs[0][0, 3] = float("nan")
    (got,) = ReferenceExecutor(plan_of(rms, inputs), launch_triton=run_in_interpreter)(*inputs)
    assert isinstance(got, Tensor) and got.isnan().all()


@pytest.mark.parametrize("name", CASES)
def test_they_compile_for_a_gpu(name: str, build_for_h100: Any) -> None:
    fn, inputs, _ = CASES[name]
    build_for_h100(k for k in plan_of(fn, inputs).kernels if isinstance(k, TritonKernel))


@pytest.mark.gpu
@pytest.mark.parametrize("name", CASES)
def test_on_a_gpu(name: str) -> None:
    fn, inputs, _ = CASES[name]
    made = [i.cuda() for i in inputs]
    check(load(plan_of(fn, made)).run(*made), fn(*made))
