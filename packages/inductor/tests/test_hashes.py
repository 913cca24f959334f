"""`hash_tensor`: exclusive or of the bits of all elements, as loops on a CPU and on a GPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from dovetail_inductor import InductorOptions, compile_graph
from dovetail_prims import trace_aten
from dovetail_prims.decompositions import core_aten_table
from dovetail_runtime import load
from dovetail_runtime.plan import CallAten, Plan
from kernel_interpreter import run_in_interpreter
from reference_executor import ReferenceExecutor
from torch import Tensor

DTYPES = [
    torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int32,
    torch.int16, torch.int8, torch.uint8, torch.bool,
]  # fmt: skip


def _plan(fn: Callable[..., Any], inputs: tuple[Tensor, ...], triton: bool) -> Plan:
    gm = trace_aten(fn, *inputs, decompositions=core_aten_table())
    return compile_graph(gm, inputs, options=InductorOptions(triton=triton))


def check(fn: Callable[..., Any], *inputs: Tensor, triton: bool = True) -> None:
    """The hashes are eager's to the last bit, and no call of the library."""
    wanted = fn(*inputs)
    plans = [_plan(fn, inputs, False)]
    runs: list[Callable[..., Any]] = [load(plans[0])]
    if triton:
        plans.append(_plan(fn, inputs, True))
        runs.append(ReferenceExecutor(plans[1], launch_triton=run_in_interpreter))
    assert not any(isinstance(step, CallAten) for plan in plans for step in plan.steps)
    for run in runs:
        for got, expected in zip(run(*inputs), wanted, strict=True):
            assert got.dtype == expected.dtype and got.stride() == expected.stride()
            assert torch.equal(got.view(torch.int64), expected.view(torch.int64))


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_dtype_and_dimension(dtype: torch.dtype) -> None:
    torch.manual_seed(0)

    def fn(x: Tensor) -> list[Tensor]:
        found = [torch.hash_tensor(x, dim) for dim in ((), 0, 1, 2, (0, 2), (0, 1, 2))]
        return [*found, torch.hash_tensor(x, 1, keepdim=True), torch.hash_tensor(x[0, 0, 0])]

    check(fn, (torch.randn(5, 3, 37) * 50).to(dtype))


def test_parts_expansions_and_nothing() -> None:
    torch.manual_seed(0)
    x = torch.randn(6, 8, 20)
    check(lambda x: [torch.hash_tensor(x.transpose(0, 2)[::3, 1:], 1)], x)
    check(lambda x: [torch.hash_tensor(x[:1].expand(3, 8, 20), (0, 2))], x)
    check(lambda x: [torch.hash_tensor(x, 1, keepdim=True)], torch.randn(0, 3))
    check(lambda x: [torch.hash_tensor(x)], torch.randn(1 << 19), triton=False)


def test_not_a_number_keeps_its_bits() -> None:
    bits = torch.tensor([0x7FC00123, 0x7F800001, -4194000] * 7, dtype=torch.int32)
    check(lambda x: [torch.hash_tensor(x[:, None], 1)], bits.view(torch.float32), triton=False)
    halves = torch.tensor([0x7E01, 0x7C01, -511] * 7, dtype=torch.int16)
    for dtype in (torch.float16, torch.bfloat16):
        check(lambda x: [torch.hash_tensor(x[:, None], 1)], halves.view(dtype), triton=False)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_what_is_computed_is_hashed_as_it_is_in_memory(dtype: torch.dtype) -> None:
    def fn(x: Tensor) -> list[Tensor]:
        y = (x * 3 + 1).sin()
        z = y * y
        return [y, torch.hash_tensor(y, 1), z, torch.hash_tensor(z)]

    x = torch.randn(9, 33).to(dtype)
    plan = _plan(fn, (x,), True)
    interpreted = ReferenceExecutor(plan, launch_triton=run_in_interpreter)
    for run in (load(_plan(fn, (x,), False)), interpreted):
        y, rows, squares, whole = run(x)
        assert torch.equal(rows, torch.hash_tensor(y, 1))
        assert torch.equal(whole, torch.hash_tensor(squares))


def test_a_mode_that_is_none_is_the_librarys_error() -> None:
    run = load(_plan(lambda x: [torch.hash_tensor(x)], (torch.ones(3),), False))
    assert int(run(torch.ones(3))[0]) == 0x3FF0000000000000
    gm = trace_aten(lambda x: [torch.hash_tensor(x, mode=1)], torch.ones(3))
    with pytest.raises(RuntimeError, match="Unknown hash_tensor mode: 1"):
        load(compile_graph(gm))(torch.ones(3))
