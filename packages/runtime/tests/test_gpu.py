"""On a real GPU: launches through the driver, the slab, streams, CUDA graphs."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest
import torch
from dovetail_runtime import (
    Allocate,
    CallAten,
    Free,
    LaunchTriton,
    Plan,
    PlanInput,
    Ref,
    SizeExpr,
    SymbolBinding,
    TensorSpec,
    TritonKernel,
    View,
    load,
)
from dovetail_runtime.cuda_graphs import GraphedArtifact, GraphPool, RecordingPolicy, reason_against
from dovetail_runtime.graph_recording import Timing
from dovetail_runtime.plan import Step

pytestmark = pytest.mark.gpu

CUDA = torch.device("cuda:0")
N = SizeExpr("sym", ("n",))

AXPY = TritonKernel(
    symbol="axpy",
    source="""
import triton
import triton.language as tl


@triton.jit
def axpy(x_ptr, y_ptr, n, BLOCK: tl.constexpr, A: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + i, mask=i < n)
    tl.store(y_ptr + i, x * A + 1.0, mask=i < n)
""",
    signature=(
        ("x_ptr", "*fp32"), ("y_ptr", "*fp32"), ("n", "i32"),
        ("BLOCK", "constexpr"), ("A", "constexpr"),
    ),
    constexprs=(("BLOCK", 256), ("A", 2.0)),
    num_warps=4,
    num_stages=1,
    aligned=("x_ptr", "y_ptr"),
)  # fmt: skip

# More than 48 KiB of shared memory: needs the driver's permission first.
DOT = TritonKernel(
    symbol="big_dot",
    source="""
import triton
import triton.language as tl


@triton.jit
def big_dot(a_ptr, b_ptr, c_ptr, B: tl.constexpr):
    i = tl.arange(0, B)
    at = i[:, None] * B + i[None, :]
    a = tl.load(a_ptr + at)
    b = tl.load(b_ptr + at)
    tl.store(c_ptr + at, tl.dot(a, b, input_precision="ieee"))
""",
    signature=(("a_ptr", "*fp32"), ("b_ptr", "*fp32"), ("c_ptr", "*fp32"), ("B", "constexpr")),
    constexprs=(("B", 128),),
    num_warps=8,
    num_stages=1,
    aligned=("a_ptr", "b_ptr", "c_ptr"),
)


def close(actual: torch.Tensor, expected: torch.Tensor, tolerance: float = 1e-6) -> None:
    """(torch.testing would import sympy.)"""
    assert (actual.dtype, actual.shape) == (expected.dtype, expected.shape)
    assert torch.allclose(actual, expected, rtol=tolerance, atol=tolerance)


def row(size: Any) -> TensorSpec:
    return TensorSpec((size,), (1,), torch.float32, CUDA)


def chain(count: int) -> Plan:
    """`count` launches through the slab, then one ATen call."""
    steps: list[Step] = []
    previous = "x"
    bytes_: Any = SizeExpr("mul", (SizeExpr("ceildiv", (SizeExpr("mul", (N, 4)), 256)), 256))
    for i in range(count):
        steps.append(Allocate(f"t{i}", row(N), 0 if i % 2 == 0 else bytes_))
        grid = (SizeExpr("ceildiv", (N, 256)), 1, 1)
        steps.append(LaunchTriton("axpy", (previous, f"t{i}", N), grid))
        previous = f"t{i}"
    steps.append(CallAten("aten::neg", (Ref(previous),), (), ("o",)))
    steps.append(Free(tuple(f"t{i}" for i in range(count))))
    return Plan(
        "gpu_chain", "cuda", (PlanInput("x", row(N)),), (SymbolBinding("n", 0, 0),), (), (AXPY,),
        tuple(steps), (("cuda:0", SizeExpr("mul", (2, bytes_))),), ("o",),
    )  # fmt: skip


def expected(x: torch.Tensor, count: int) -> torch.Tensor:
    for _ in range(count):
        x = x * 2.0 + 1.0
    return -x


def test_launches_match_eager_on_any_stream() -> None:
    run = load(chain(4))
    for size in (1, 255, 100_000):
        x = torch.randn(size, device=CUDA)
        close(run(x)[0], expected(x, 4))
    stream = torch.cuda.Stream()
    x = torch.randn(1000, device=CUDA)
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        (o,) = run(x)
    stream.synchronize()
    close(o, expected(x, 4))


def test_large_shared_memory() -> None:
    square = TensorSpec((128, 128), (128, 1), torch.float32, CUDA)
    plan = Plan(
        "dot", "cuda", (PlanInput("a", square), PlanInput("b", square)), (), (), (DOT,),
        (Allocate("c", square, None), LaunchTriton("big_dot", ("a", "b", "c"), (1, 1, 1))),
        (), ("c",),
    )  # fmt: skip
    a, b = torch.randn(128, 128, device=CUDA), torch.randn(128, 128, device=CUDA)
    (c,) = load(plan)(a, b)
    close(c.double(), a.double() @ b.double(), 1e-4)


def test_memory_goes_back() -> None:
    run = load(chain(2)).run
    x = torch.randn(100_000, device=CUDA)
    run(x)
    before = torch.cuda.memory_allocated()
    for _ in range(1000):
        run(x)
    torch.cuda.synchronize()
    assert torch.cuda.memory_allocated() == before


def test_graphs_replay_new_inputs() -> None:
    graphed = GraphedArtifact(load(chain(4)), GraphPool())
    for size in (1000, 50) * 5:
        x = torch.randn(size, device=CUDA)
        (o,) = graphed(x)
        close(o, expected(x, 4))
    # The allocator decides where `x` lies: an input that seemed to stay may move after all.
    assert graphed.recorded == 2 and all("inputs were elsewhere" in s for s in graphed.skips())


def replayed(graphed: GraphedArtifact, x: torch.Tensor, count: int, calls: int = 6) -> None:
    """Calls until the fate of `x`'s shapes is decided, each compared with eager."""
    for _ in range(calls):
        close(graphed(x)[0], expected(x, count))
        torch.cuda.synchronize()


@pytest.mark.observes
def test_few_numbers_wait_for_launches() -> None:
    """By the clock: in one of many calls, as others may use the GPU, too."""
    artifact, x = load(chain(60)), torch.randn(1000, device=CUDA)
    artifact.run(x)
    reasons = []
    for _ in range(50):
        timing = Timing()
        timing.run(artifact, (x,))
        torch.cuda.synchronize()
        assert timing.is_over()
        reasons.append(reason_against(timing))
    assert None in reasons, reasons


@pytest.mark.observes
def test_what_launches_bound_is_recorded_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    # On a GPU that others use, too, launches do not seem to take the time.
    with monkeypatch.context() as alone:
        alone.setattr(Timing, "gpu_seconds", lambda timing: timing.seconds)
        check_recorded_by_itself()
    busy = GraphedArtifact(load(chain(6)), GraphPool(), RecordingPolicy(only_launch_bound=True))
    replayed(busy, torch.randn(100_000_000, device=CUDA), 6)
    assert busy.recorded == 0 and "are not what takes the time" in busy.skips()[0]
    # (Recorded whatever takes the time.)
    small = GraphedArtifact(load(chain(60)), GraphPool(), RecordingPolicy(memory_budget=100))
    replayed(small, torch.randn(1000, device=CUDA), 60)
    assert small.recorded == 0 and "budget" in small.skips()[0]


def check_recorded_by_itself() -> None:
    """A chain that launches bound, with inputs that stay and with such as move."""
    graphed = GraphedArtifact(load(chain(60)), GraphPool(), RecordingPolicy(only_launch_bound=True))
    x = torch.randn(1000, device=CUDA)
    replayed(graphed, x, 60)
    assert graphed.recorded == 1 and graphed.skips() == []
    x.normal_()
    replayed(graphed, x, 60, 1)
    for _ in range(5):  # elsewhere: recorded again, then copied
        replayed(graphed, torch.randn(1000, device=CUDA), 60, 1)
    (skip,) = graphed.skips()
    assert graphed.recorded == 1 and "calls ran the plan: inputs were elsewhere" in skip


def test_replays_on_two_streams_and_inside_a_recording() -> None:
    graphed = GraphedArtifact(load(chain(60)), GraphPool())
    streams = [torch.cuda.Stream() for _ in range(2)]
    for round_ in range(20):
        x = torch.randn(50_000, device=CUDA)
        torch.cuda.synchronize()
        results = []
        for stream in streams:
            with torch.cuda.stream(stream):
                results.append(graphed(x + round_)[0])
        torch.cuda.synchronize()
        for result in results:
            close(result, expected(x + round_, 60))
    x = torch.randn(1000, device=CUDA)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        (y,) = graphed(x)
    x.normal_()
    graph.replay()
    close(y, expected(x, 60))


def test_layouts_of_replayed_outputs() -> None:
    matrix = TensorSpec((8, 6), (6, 1), torch.float32, CUDA)
    steps = (
        CallAten("aten::add.Tensor", (Ref("x"), 1), (), ("y",)),
        View("turned", "y", TensorSpec((6, 8), (1, 6), torch.float32, CUDA)),
        View("part", "y", TensorSpec((8, 3), (6, 2), torch.float32, CUDA, 1)),
        View("repeated", "y", TensorSpec((4, 6), (0, 1), torch.float32, CUDA)),
    )
    names = ("turned", "part", "repeated")
    plan = Plan("views", "cuda", (PlanInput("x", matrix),), (), (), (), steps, (), names)
    graphed = GraphedArtifact(load(plan), GraphPool())
    for _ in range(3):
        x = torch.randn(8, 6, device=CUDA)
        y = x + 1
        kept = graphed(x)
        graphed(torch.zeros_like(x))
        for got, wanted in zip(kept, (y.t(), y[:, 1::2], y[:1].expand(4, 6)), strict=True):
            close(got, wanted)
            assert got.stride() == wanted.stride()


def test_graphs_with_static_and_mutated_inputs() -> None:
    plan = Plan(
        "counter", "cuda", (PlanInput("x", row(8)), PlanInput("count", row(8))), (), (), (),
        (
            CallAten("aten::add_.Tensor", (Ref("count"), 1)),
            CallAten("aten::add.Tensor", (Ref("x"), Ref("count")), (), ("o",)),
        ),
        (), ("o", "count"), ("count",),
    )  # fmt: skip
    for static in (frozenset({1}), frozenset()):
        count = torch.zeros(8, device=CUDA)
        graphed = GraphedArtifact(load(plan), GraphPool(), RecordingPolicy(static_inputs=static))
        for call in range(1, 5):
            x = torch.randn(8, device=CUDA)
            version = count._version
            o, same_count = graphed(x, count)
            close(o, x + call)
            assert same_count is count and count._version > version
            assert count.tolist() == [float(call)] * 8
        assert graphed.skips() == []


def test_random_numbers_go_on_under_replay() -> None:
    plan = Plan(
        "noise", "cuda", (PlanInput("x", row(64)),), (), (), (),
        (CallAten("aten::rand_like", (Ref("x"),), (), ("o",)),), (), ("o",),
    )  # fmt: skip
    x = torch.empty(64, device=CUDA)
    torch.manual_seed(5)
    eager = [torch.rand_like(x) for _ in range(3)]
    # (A replay that does not wait for what the recording left to do was wrong in one of three.)
    for _ in range(20):
        torch.manual_seed(5)
        graphed = GraphedArtifact(load(plan), GraphPool())
        numbers = [graphed(x)[0] for _ in eager]
        assert graphed.recorded == 1
        for found, wanted in zip(numbers, eager, strict=True):
            assert isinstance(found, torch.Tensor)
            close(found, wanted)


@pytest.mark.parametrize("op", ["mm", "addmm"])
def test_what_others_free_is_not_written_to_by_replays(op: str) -> None:
    """Workspaces of cuBLAS and cublasLt: torch.compile has PyTorch free them when it records."""
    shapes = ((64, 65536), (65536, 64)) if op == "mm" else ((64,), (64, 65536), (65536, 64))
    dtype = torch.float32 if op == "mm" else torch.bfloat16
    specs = [TensorSpec(s, (1,) if len(s) == 1 else (s[1], 1), dtype, CUDA) for s in shapes]
    inputs = tuple(PlanInput(f"x{i}", spec) for i, spec in enumerate(specs))
    call = CallAten(f"aten::{op}", tuple(Ref(x.name) for x in inputs), (), ("o",))
    plan = Plan("long", "cuda", inputs, (), (), (), (call,), (), ("o",))
    values = [torch.randn(shape, device=CUDA, dtype=dtype) for shape in shapes]
    for _ in range(2):  # the second pool has what the first one left behind
        pool = GraphPool()
        graphed = GraphedArtifact(load(plan), pool)
        for _ in range(4):
            (wanted,) = graphed(*values)
        assert graphed.recorded == 1
        torch.cuda.synchronize()
        everyone_has = [
            segment
            for segment in torch.cuda.memory_snapshot()
            if segment["stream"] == pool.stream.cuda_stream
            and segment["segment_pool_id"] == (0, 0)
            and segment["allocated_size"] > 1 << 20  # (states of random numbers are small)
        ]
        assert not everyone_has
        torch._C._cuda_clearCublasWorkspaces()
        torch.cuda.empty_cache()
        others = [torch.full((2 << 20,), 7.0, device=CUDA) for _ in range(256)]
        for _ in range(3):
            close(graphed(*values)[0], wanted)
        torch.cuda.synchronize()
        assert all(bool((other == 7).all()) for other in others)
        del graphed, pool, others


@pytest.mark.observes
def test_launch_overhead() -> None:
    """A launch costs a few microseconds of CPU at most (the number is printed with -s)."""
    count = 200
    run = load(chain(count)).run
    x = torch.randn(256, device=CUDA)
    times = []
    for _ in range(20):
        torch.cuda.synchronize()
        start = time.perf_counter()
        run(x)
        times.append(time.perf_counter() - start)
    per_launch = min(times) / count * 1e6
    print(f"\n{per_launch:.2f} us per Triton launch")
    assert per_launch < 10


def test_a_thread_without_a_context_gets_one() -> None:
    plan = Plan(
        name="thread",
        target="cuda",
        inputs=(PlanInput("x", row(512)),),
        symbols=(),
        constants=(),
        kernels=(AXPY,),
        steps=(
            Allocate("y", row(512), None),
            LaunchTriton("axpy", ("x", "y", 512), (2, 1, 1)),
        ),
        slab_bytes=(),
        outputs=("y",),
    )
    x = torch.randn(512, device=CUDA)
    # The caching allocator has room, so that no call of CUDA's runtime makes a context.
    spare = torch.empty(512, device=CUDA)
    del spare
    for artifact in (load(plan), load(plan)):
        results: list[torch.Tensor] = []
        thread = threading.Thread(target=lambda: results.append(artifact.run(x)[0]))  # noqa: B023
        thread.start()
        thread.join()
        close(results[0], x * 2 + 1)


def test_elements_of_cpu_tensors_are_passed_by_value() -> None:
    """What they hold when the launch is made; of a plan that reads them nothing is recorded."""
    source = """
import triton
import triton.language as tl


@triton.jit
def scaled(p0, p1, factor, shift, on):
    i = tl.arange(0, 512)
    scale = tl.full([1], factor, tl.int64).to(tl.float64, bitcast=True).to(tl.float32)
    tl.store(p1 + i, tl.load(p0 + i) * scale + shift + on)
"""
    kinds = ("*fp32", "*fp32", "i64", "i64", "i64")
    names = ("p0", "p1", "factor", "shift", "on")
    kernel = TritonKernel("scaled", source, tuple(zip(names, kinds, strict=True)), (), 4, 1)
    numbers = (("factors", (4,), torch.float16), ("shift", (), torch.int8), ("on", (), torch.bool))
    plan = Plan(
        name="values",
        target="cuda",
        inputs=(
            PlanInput("x", row(512)),
            *(
                PlanInput(name, TensorSpec(shape, (1,) * len(shape), dtype, torch.device("cpu")))
                for name, shape, dtype in numbers
            ),
        ),
        symbols=(),
        constants=(),
        kernels=(kernel,),
        steps=(
            Allocate("y", row(512), None),
            View("third", "factors", TensorSpec((), (), torch.float16, torch.device("cpu"), 2)),
            LaunchTriton("scaled", ("x", "y", "third", "shift", "on"), (1, 1, 1)),
        ),
        slab_bytes=(),
        outputs=("y",),
    )
    run = load(plan).run
    x = torch.randn(512, device=CUDA)
    for factor, shift, on in ((0.5, -3, True), (2.0, 100, False)):
        factors = torch.full((4,), factor, dtype=torch.float16)
        got = run(x, factors, torch.tensor(shift, dtype=torch.int8), torch.tensor(on))[0]
        close(got, x * factor + shift + on)
