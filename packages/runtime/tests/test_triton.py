"""Triton kernels compiled for an H100 without one, and run by Triton's interpreter."""

import importlib.util
from pathlib import Path
from typing import Any

import pytest
import torch
from dovetail_runtime import (
    Allocate,
    LaunchTriton,
    Plan,
    PlanInput,
    SizeExpr,
    SymbolBinding,
    TensorSpec,
    TritonKernel,
    View,
)
from dovetail_runtime.knobs import Knobs
from dovetail_runtime.plan_text import as_python
from dovetail_runtime.triton_build import TritonBuilder, TritonCompileError
from kernel_interpreter import run_in_interpreter
from reference_executor import ReferenceExecutor

pytestmark = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="no Triton")

CPU = torch.device("cpu")

ADD = TritonKernel(
    symbol="scale_rows",
    source="""
import triton
import triton.language as tl


@triton.jit
def scale_rows(x_ptr, y_ptr, columns, BLOCK: tl.constexpr, FACTOR: tl.constexpr):
    row = tl.program_id(0)
    i = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + row * columns + i, mask=i < columns, other=0.0)
    y = x * FACTOR / tl.sum(x, axis=0)
    tl.store(y_ptr + row * columns + i, y, mask=i < columns)
""",
    signature=(
        ("x_ptr", "*fp32"),
        ("y_ptr", "*fp32"),
        ("columns", "i32"),
        ("BLOCK", "constexpr"),
        ("FACTOR", "constexpr"),
    ),
    constexprs=(("BLOCK", 16), ("FACTOR", 2.0)),
    num_warps=2,
    num_stages=1,
    aligned=("x_ptr", "y_ptr"),
)


def close(actual: torch.Tensor, expected: torch.Tensor, tolerance: float = 1e-6) -> None:
    """(torch.testing would import sympy.)"""
    assert (actual.dtype, actual.shape) == (expected.dtype, expected.shape)
    assert torch.allclose(actual, expected, rtol=tolerance, atol=tolerance)


def knobs(directory: Path) -> Knobs:
    return Knobs.from_environment(
        {"DOVETAIL_CACHE_DIR": str(directory), "DOVETAIL_COMPILE_WORKERS": "1"}
    )


def test_a_kernel_under_way_is_joined(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    builder = TritonBuilder(knobs(tmp_path), arch=90)
    jobs: list[Any] = []
    submit = builder._pool.submit
    monkeypatch.setattr(builder._pool, "submit", lambda job: submit((jobs.append(job), job)[1]))
    first, second = builder.start([ADD]), builder.start([ADD, ADD])
    assert first["scale_rows"] is second["scale_rows"] and len(jobs) == 1
    binary = first["scale_rows"].result()
    assert builder.start([ADD])["scale_rows"].result() == binary and len(jobs) == 1
    builder.close()


def test_compiles_for_sm_90_and_is_cached(tmp_path: Path) -> None:
    builder = TritonBuilder(knobs(tmp_path), arch=90)
    try:
        assert "empty" in builder.explain_miss(ADD)
        binary = builder.build([ADD])["scale_rows"]
        assert binary.cubin[:4] == b"\x7fELF"
        # (compiled for what begins at a multiple of 16 bytes: a launch sees to it)
        assert binary.parameters == ("aligned pointer", "aligned pointer", "i32")
        assert binary.threads == 64
        assert 0 <= binary.scratch_parameters <= 2
        again = TritonBuilder(knobs(tmp_path), arch=90)
        assert again.build([ADD])["scale_rows"] == binary
        assert not again._pool._threads  # no worker was needed
        for name in ("kernel.cubin", "kernel.json"):
            (damaged,) = tmp_path.rglob(name)
            damaged.write_bytes(damaged.read_bytes()[:-1])
            with pytest.warns(RuntimeWarning, match=f"{name} is not what was stored"):
                assert builder.build([ADD])["scale_rows"] == binary
        other = TritonBuilder(knobs(tmp_path), arch=80)
        assert "arch: '90' there, '80' here" in other.explain_miss(ADD)
        source = "import triton\n@triton.jit\ndef nope(x):\n    y = undefined\n"
        broken = TritonKernel("nope", source, (("x", "*fp32"),), (), 4, 1)
        with pytest.raises(TritonCompileError, match="undefined"):
            builder.build([broken])
    finally:
        builder.close()


def test_interpreter_runs_a_plan() -> None:
    rows = SizeExpr("sym", ("n",))
    spec = TensorSpec((rows, 12), (12, 1), torch.float32, CPU)
    plan = Plan(
        "triton",
        "cpu",
        inputs=(PlanInput("x", spec),),
        symbols=(SymbolBinding("n", 0, 0),),
        constants=(),
        kernels=(ADD,),
        steps=(
            Allocate("y", spec, None),
            LaunchTriton("scale_rows", ("x", "y", 12), (rows, 1, 1)),
        ),
        slab_bytes=(),
        outputs=("y",),
    )
    x = torch.rand(5, 12) + 0.5
    (y,) = ReferenceExecutor(plan, launch_triton=run_in_interpreter)(x)
    close(y, x * 2 / x.sum(1, keepdim=True))


def test_interpreter_sees_aliases() -> None:
    """Two arguments over one storage stay over one storage."""
    memory = torch.rand(24) + 0.5
    expected = memory.clone()
    run_in_interpreter(ADD, [memory[:12], memory[12:], 12], (1, 1, 1))
    expected[12:] = expected[:12] * 2 / expected[:12].sum()
    close(memory, expected)


def test_elements_of_cpu_tensors_are_passed_by_value() -> None:
    """Also those of a view; a float as its bits."""
    source = """
import triton
import triton.language as tl


@triton.jit
def scaled(p0, p1, factor, shift):
    i = tl.arange(0, 4)
    scale = tl.full([1], factor, tl.int64).to(tl.float64, bitcast=True).to(tl.float32)
    tl.store(p1 + i, tl.load(p0 + i) * scale + shift)
"""
    signature = (("p0", "*fp32"), ("p1", "*fp32"), ("factor", "i64"), ("shift", "i64"))
    four = TensorSpec((4,), (1,), torch.float32, CPU)
    steps = (
        Allocate("y", four, None),
        View("third", "factors", TensorSpec((), (), torch.float32, CPU, 2)),
        LaunchTriton("scaled", ("x", "y", "third", "shift"), (1, 1, 1)),
    )
    inputs = (
        PlanInput("x", four),
        PlanInput("factors", four),
        PlanInput("shift", TensorSpec((), (), torch.int32, CPU)),
    )
    kernel = TritonKernel("scaled", source, signature, (), 1, 1)
    plan = Plan("values", "cpu", inputs, (), (), (kernel,), steps, (), ("y",))
    x, factors = torch.randn(4), torch.tensor([1.0, 2.0, 0.1, 4.0])
    run = ReferenceExecutor(plan, launch_triton=run_in_interpreter)
    for shift in (3, -7):
        (y,) = run(x, factors, torch.tensor(shift, dtype=torch.int32))
        close(y, x * 0.1 + shift)
    assert "factor=rt.element(third), shift=rt.element(shift)" in as_python(plan)
