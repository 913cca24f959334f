"""Launches that begin while the one before them runs, as their kernels wait for it themselves."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from dovetail_runtime import (
    Allocate,
    CallAten,
    LaunchTriton,
    Plan,
    PlanInput,
    Ref,
    TensorSpec,
    TritonKernel,
    load,
)
from dovetail_runtime.lower import TritonBinary, lower
from dovetail_runtime.plan import Step
from kernel_interpreter import run_in_interpreter
from reference_executor import ReferenceExecutor

SIZE, BLOCK = 1 << 16, 1 << 10

# The last program's result is the next launch's first program's input.
FLIP = TritonKernel(
    symbol="flip",
    source=f"""
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait


@triton.jit
def flip(x, y):
    gdc_launch_dependents()
    gdc_wait()
    i = tl.program_id(0) * {BLOCK} + tl.arange(0, {BLOCK})
    tl.store(y + i, tl.load(x + {SIZE - 1} - i) * 0.5 + 1)
""",
    signature=(("x", "*fp32"), ("y", "*fp32")),
    constexprs=(),
    num_warps=4,
    num_stages=1,
)


def chain(device: torch.device, launches: int, call_after: int) -> Plan:
    """Flipped so often, and added to itself by a library's kernel in between."""
    spec = TensorSpec((SIZE,), (1,), torch.float32, device)
    steps: list[Step] = []
    for number in range(launches):
        name = "x" if number == 0 else f"y{number - 1}"
        if number == call_after:
            steps.append(CallAten("aten::add.Tensor", (Ref(name), Ref(name)), (), ("sum",)))
            name = "sum"
        steps.append(Allocate(f"y{number}", spec, None))
        grid = (SIZE // BLOCK, 1, 1)
        steps.append(LaunchTriton("flip", (name, f"y{number}"), grid, dependent=True))
    return Plan(
        "chain", device.type, (PlanInput("x", spec),), (), (), (FLIP,), tuple(steps), (),
        (f"y{launches - 1}",),
    )  # fmt: skip


def expected(x: torch.Tensor, launches: int, call_after: int) -> torch.Tensor:
    for number in range(launches):
        x = (x + x if number == call_after else x).flip(0) * 0.5 + 1
    return x


def early(plan: Plan) -> list[bool]:
    """Of each launch, whether it begins early."""
    binary = TritonBinary("flip", b"", ("pointer", "pointer"), 0, 128, 0)
    steps = lower(plan, {}, {"flip": binary})["steps"]
    return [step[11] for step in steps if step[1] == "flip"]


def test_a_launch_is_early_behind_another_that_waits() -> None:
    plan = chain(torch.device("cuda:0"), 5, call_after=3)
    assert early(plan) == [False, True, True, False, True]
    last = plan.steps[-1]
    assert isinstance(last, LaunchTriton)
    alone = replace(plan, steps=(*plan.steps[:-1], replace(last, dependent=False)))
    assert early(alone) == [False, True, True, False, False]
    evenly = replace(plan, steps=(*plan.steps[:-1], replace(last, evenly=True)))
    assert early(evenly) == [False, True, True, False, False]


def test_runs_in_the_interpreter() -> None:
    x = torch.randn(SIZE)
    plan = chain(torch.device("cpu"), 3, call_after=1)
    (y,) = ReferenceExecutor(plan, launch_triton=run_in_interpreter)(x)
    assert isinstance(y, torch.Tensor) and torch.equal(y, expected(x, 3, 1))


@pytest.mark.gpu
@pytest.mark.parametrize("recorded", [False, True])
def test_results_are_those_of_one_launch_after_the_other(recorded: bool) -> None:
    device = torch.device("cuda:0")
    if torch.cuda.get_device_capability(device) < (9, 0):
        pytest.skip("needs a CUDA device of compute capability 9.0")
    run = load(chain(device, 40, call_after=20)).run
    x = torch.randn(SIZE, device=device)
    (y,) = run(x)
    if recorded:
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            (y,) = run(x)
    for _ in range(20):
        x.normal_()
        if recorded:
            graph.replay()
        else:
            (y,) = run(x)
        assert torch.equal(y, expected(x, 40, 20))
