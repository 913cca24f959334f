"""Numbers at the edges, as Triton kernels compute them: quotients that are rounded down,
remainders, shifts by any number, zeros of both signs. As eager does, in the interpreter."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from dovetail_inductor.options import InductorOptions
from dovetail_inductor.pipeline import compile_graph
from dovetail_prims.decompositions import core_aten_table
from dovetail_prims.graphs.record import trace_aten
from dovetail_runtime.plan import LaunchTriton, Plan, TritonKernel
from kernel_interpreter import run_in_interpreter
from reference_executor import ReferenceExecutor
from torch import Tensor
from typed_kernels import typed_kernels

INF, NAN = float("inf"), float("nan")
Fn = Callable[..., Tensor]


def interpreted(fn: Fn, *inputs: Tensor) -> tuple[Plan, Tensor]:
    """The plan for a GPU, and the first output that it gives in the interpreter."""
    gm = trace_aten(fn, *inputs, decompositions=core_aten_table())
    plan = compile_graph(gm, inputs, options=InductorOptions(triton=True))
    assert any(isinstance(s, LaunchTriton) for s in plan.steps)
    got = ReferenceExecutor(plan, launch_triton=run_in_interpreter)(*inputs)[0]
    assert isinstance(got, Tensor)
    return plan, got


def same(got: Tensor, wanted: Tensor) -> None:
    """Equal, with zeros of one sign."""
    assert got.dtype == wanted.dtype
    torch.testing.assert_close(got, wanted, rtol=0, atol=0, equal_nan=True)
    if got.is_floating_point():
        known = ~wanted.isnan()
        assert torch.equal(got.signbit()[known], wanted.signbit()[known])


ODD = torch.tensor([5.5, -5.5, 1.0, -1.0, 0.0, -0.0, 3e7, 1e30, INF, -INF, NAN])
BY = torch.tensor([3.0, -3.0, 0.1, 0.0, -0.0, 1e-3, INF, -INF, NAN])
FLOATS: dict[str, Fn] = {
    "fmod": torch.fmod,
    "remainder": torch.remainder,
    "floor": lambda x, y: torch.div(x, y, rounding_mode="floor"),
    "trunc": lambda x, y: torch.div(x, y, rounding_mode="trunc"),
    "quotient": lambda x, y: x / y,
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", FLOATS)
def test_quotients_and_remainders(name: str, dtype: torch.dtype) -> None:
    x, y = ODD.to(dtype)[:, None], BY.to(dtype)[None]
    same(interpreted(FLOATS[name], x, y)[1], FLOATS[name](x, y))


def test_quotients_are_rounded_to_the_nearest(build_for_h100: Any) -> None:
    """Triton's own division is up to two units off: 41 / 41 would not be 1."""
    x, y = torch.randn(40), torch.randn(40)
    functions: list[Fn] = [lambda x, y: torch.floor(x / y), lambda x, y: x.reciprocal() % y]
    for fn in functions:
        kernels = [k for k in interpreted(fn, x, y)[0].kernels if isinstance(k, TritonKernel)]
        assert all("tl.div_rn" in k.source and " / t" not in k.source for k in kernels)
        build_for_h100(kernels)


@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64])
def test_shifts_by_any_number(dtype: torch.dtype, build_for_h100: Any) -> None:
    x = torch.tensor([1, -1, 77, -128, 100], dtype=torch.int64).to(dtype)[:, None]
    n = torch.tensor([0, 1, 3, 7, 8, 31, 32, 63, 64, 100, -1], dtype=torch.int64).to(dtype)[None]
    for fn in (torch.bitwise_left_shift, torch.bitwise_right_shift):
        plan, got = interpreted(fn, x, n)
        same(got, fn(x, n))
        kernels = [k for k in plan.kernels if isinstance(k, TritonKernel)]
        # (what the compiler makes of such a shift is undefined, and the interpreter does not show)
        assert all("tl.where(gone, 0, b)" in k.source for k in kernels)
        build_for_h100(kernels)


@pytest.mark.parametrize("name", ["round", "trunc", "floor", "ceil", "log10", "frac", "sign"])
def test_what_is_rounded_keeps_its_sign(name: str) -> None:
    fn: Fn = getattr(torch, name)
    x = torch.tensor([-0.3, 0.5, 1.5, -2.5, 1000.0, 8388609.0, -0.0, INF, NAN])
    same(interpreted(fn, x)[1], fn(x))
    same(interpreted(fn, x.double())[1], fn(x.double()))


@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8, torch.int16])
def test_numbers_beyond_a_narrow_integer_wrap_around(dtype: torch.dtype) -> None:
    def fn(x: Tensor) -> Tensor:
        return (x * 100000 + 300) ^ -70000

    x = torch.tensor([1, 2, 77, 127], dtype=dtype)
    same(interpreted(fn, x)[1], fn(x))


@pytest.mark.parametrize("reduction", ["amin", "amax", "sum", "prod", "cumsum", "cummax"])
@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8, torch.int16])
def test_reductions_of_narrow_integers_are_of_their_type(
    dtype: torch.dtype, reduction: str, build_for_h100: Any
) -> None:
    """Triton's own make int32 of them, in which what follows would not wrap around."""
    sums = reduction in ("sum", "prod", "cumsum")

    def fn(x: Tensor) -> Tensor:
        found = getattr(torch, reduction)(x, -1, **({"dtype": dtype} if sums else {}))
        one: Tensor = found if isinstance(found, Tensor) else found[0]
        return (one * 100 < 0) ^ (7 // (one | 1) > one)

    x = torch.randint(0, 100, (5, 33)).to(dtype)
    with typed_kernels():
        plan, got = interpreted(fn, x)
    same(got, fn(x))
    build_for_h100([k for k in plan.kernels if isinstance(k, TritonKernel)])


def _gated(x: Tensor, y: Tensor) -> Tensor:
    return torch.where(y > 0, x / y.abs(), x.reciprocal()) * 2


@pytest.mark.parametrize(
    ("fn", "dtype", "exact"),
    [
        (_gated, torch.bfloat16, False),
        (_gated, torch.float16, False),
        (_gated, torch.float32, True),
        (lambda x, y: torch.softmax(x, -1), torch.bfloat16, False),
        (lambda x, y: torch.softmax(x, -1), torch.float32, True),
        (lambda x, y: x / y - 1, torch.bfloat16, True),
        (lambda x, y: (x / y).floor(), torch.bfloat16, True),
        (lambda x, y: torch.where(x / y > 1, x, y), torch.bfloat16, True),
        (lambda x, y: (x / y).sum(-1), torch.float32, True),
        (lambda x, y: (x / y).sum(-1), torch.bfloat16, False),
        (lambda x, y: (x / y - 1).sum(-1), torch.bfloat16, False),
        (lambda x, y: (x / y, (x / y).sum(-1)), torch.bfloat16, False),
        (lambda x, y: (x / y - 1, (x / y - 1).sum(-1)), torch.bfloat16, True),
        (lambda x, y: (x / y).sum(-1, dtype=torch.float32), torch.bfloat16, False),
        (lambda x, y: (x / y.float()).sum(-1), torch.bfloat16, False),
        (lambda x, y: (x / y).floor().sum(-1), torch.bfloat16, True),
        (lambda x, y: torch.where(x / y == 0, x, y), torch.bfloat16, False),
        (lambda x, y: torch.where(x / y == 0, x, y).sum(-1), torch.bfloat16, False),
        (lambda x, y: torch.where(x / y - 1 == 0, x, y).sum(-1), torch.bfloat16, True),
        (lambda x, y: torch.where((x / y - 1) * y == 0, x, y).sum(-1), torch.bfloat16, True),
        (lambda x, y: x / 64.0, torch.float32, False),
        (lambda x, y: x / 65.0, torch.float32, True),
    ],
)
def test_quotients_that_are_stored_in_two_bytes_are_the_fast_ones(
    fn: Fn, dtype: torch.dtype, exact: bool, build_for_h100: Any
) -> None:
    x, y = torch.randn(4, 70, dtype=dtype), torch.randn(4, 70, dtype=dtype)
    plan, got = interpreted(fn, x, y)
    kernels = [k for k in plan.kernels if isinstance(k, TritonKernel)]
    assert any("dv_div(" in k.source or "tl.div_rn(1.0" in k.source for k in kernels) == exact
    wanted = fn(x.float(), y.float())
    # What floor is taken of is rounded first (the interpreter cuts bfloat16 off).
    near = 1.0 if any("floor(" in k.source for k in kernels) else 2e-2
    torch.testing.assert_close(
        got.float(), (wanted if isinstance(wanted, Tensor) else wanted[0]), rtol=2e-2, atol=near
    )
    build_for_h100(kernels)
