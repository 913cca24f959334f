"""Kernels that make descriptors of tensors, in scratch memory that each launch is given: what is
built and lowered, and on a GPU from Hopper on what runs."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
import torch
from dovetail_runtime import Allocate, LaunchTriton, Plan, PlanInput, TensorSpec, TritonKernel, load
from dovetail_runtime.cuda_graphs import GraphedArtifact, GraphPool
from dovetail_runtime.knobs import Knobs
from dovetail_runtime.lower import ALIGNED_POINTER, lower
from dovetail_runtime.plan import Step
from dovetail_runtime.triton_build import TritonBuilder
from kernel_interpreter import run_in_interpreter
from reference_executor import ReferenceExecutor
from torch import Tensor

ROWS, COLUMNS = 72, 40

# Every program turns one tile: what lies outside of the matrix is neither read nor written.
TURN = TritonKernel(
    symbol="turn",
    source=f"""
import triton
import triton.language as tl


@triton.jit
def turn(x, y):
    down = tl.program_id(0) % {-(-ROWS // 16)} * 16
    right = tl.program_id(0) // {-(-ROWS // 16)} * 16
    source = tl.make_tensor_descriptor(x, [{ROWS}, {COLUMNS}], [{COLUMNS}, 1], [16, 16])
    target = tl.make_tensor_descriptor(y, [{COLUMNS}, {ROWS}], [{ROWS}, 1], [16, 16])
    target.store([right, down], source.load([down, right]).T)
""",
    signature=(("x", "*fp32"), ("y", "*fp32")),
    constexprs=(),
    num_warps=4,
    num_stages=1,
    aligned=("x", "y"),
)
GRID = (-(-ROWS // 16) * -(-COLUMNS // 16), 1, 1)


def matrix(rows: int, columns: int, device: torch.device) -> TensorSpec:
    return TensorSpec((rows, columns), (columns, 1), torch.float32, device)


def turned(device: torch.device, launches: int = 1) -> Plan:
    """A matrix turned, so often."""
    steps: list[Step] = []
    for number in range(launches):
        steps.append(Allocate(f"y{number}", matrix(COLUMNS, ROWS, device), None))
        steps.append(LaunchTriton("turn", ("x", f"y{number}"), GRID))
    return Plan(
        "turned", "cuda" if device.type == "cuda" else "cpu",
        (PlanInput("x", matrix(ROWS, COLUMNS, device)),), (), (), (TURN,), tuple(steps), (),
        tuple(f"y{number}" for number in range(launches)),
    )  # fmt: skip


def test_runs_in_the_interpreter() -> None:
    x = torch.randn(ROWS, COLUMNS)
    executor = ReferenceExecutor(turned(torch.device("cpu")), launch_triton=run_in_interpreter)
    (y,) = executor(x)
    assert isinstance(y, Tensor) and torch.equal(y, x.t())


def test_what_a_launch_is_given(tmp_path: Path) -> None:
    knobs = Knobs.from_environment(
        {"DOVETAIL_CACHE_DIR": str(tmp_path), "DOVETAIL_COMPILE_WORKERS": "1"}
    )
    builder = TritonBuilder(knobs, arch=90)
    try:
        binary = builder.build([TURN])["turn"]
    finally:
        builder.close()
    assert binary.scratch_bytes == 2 * 128 and binary.scratch_parameters >= 1
    assert binary.parameters == ("aligned pointer", "aligned pointer")
    launch = lower(turned(torch.device("cuda:0")), {}, {"turn": binary})["steps"][1]
    assert launch[4] == ((ALIGNED_POINTER, 0), (ALIGNED_POINTER, 1))  # both are checked
    assert launch[8:10] == (binary.scratch_parameters, binary.scratch_bytes)


# --- on a GPU -------------------------------------------------------------------------------------

CUDA = torch.device("cuda:0")
needs_hopper = pytest.mark.skipif(
    not torch.cuda.is_available() or torch.cuda.get_device_capability() < (9, 0),
    reason="needs a CUDA device of compute capability 9.0",
)


@pytest.mark.gpu
@needs_hopper
def test_launches_have_scratch_memory() -> None:
    run = load(turned(CUDA, launches=3)).run
    x = torch.randn(ROWS, COLUMNS, device=CUDA)
    assert all(torch.equal(y, x.t()) for y in run(x))
    before = torch.cuda.memory_allocated()
    for _ in range(100):
        run(x)
    assert torch.cuda.memory_allocated() == before


@pytest.mark.gpu
@needs_hopper
def test_calls_at_the_same_time_share_none() -> None:
    artifact = load(turned(CUDA))
    wrong: list[int] = []

    def work(number: int) -> None:
        with torch.cuda.stream(torch.cuda.Stream()):  # type: ignore[no-untyped-call]
            for call in range(200):
                x = torch.randn(ROWS, COLUMNS, device=CUDA)
                (y,) = artifact(x)
                if not isinstance(y, Tensor) or not torch.equal(y, x.t()):
                    wrong.append(call)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


@pytest.mark.gpu
@needs_hopper
def test_recorded_launches_make_their_descriptors() -> None:
    graphed = GraphedArtifact(load(turned(CUDA, launches=2)), GraphPool())
    for _ in range(6):
        x = torch.randn(ROWS, COLUMNS, device=CUDA)
        kept = torch.empty(1 << 16, device=CUDA).normal_()  # something else in freed memory
        for y in graphed(x):
            assert isinstance(y, Tensor) and torch.equal(y, x.t())
        assert not kept.isnan().any()
    assert graphed.recorded == 1


@pytest.mark.gpu
@needs_hopper
def test_memory_that_begins_between_16_bytes_is_copied() -> None:
    """As that of a tensor which was taken out of the middle of another."""
    artifact, memory = load(turned(CUDA)), torch.empty(ROWS * COLUMNS + 1, device=CUDA)
    shifted = memory[1:].view(ROWS, COLUMNS)
    for _ in range(3):
        memory.normal_()
        (y,) = artifact.run(shifted)
        assert isinstance(y, Tensor) and torch.equal(y, shifted.t())
