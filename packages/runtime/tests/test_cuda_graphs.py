"""CUDA graphs, without a GPU: a pool whose graphs run the plan again, into the same memory."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any
from weakref import WeakKeyDictionary

import pytest
import torch
from dovetail_runtime import (
    Allocate,
    CallAten,
    CopyInto,
    Free,
    Plan,
    PlanInput,
    Ref,
    SizeExpr,
    SymbolBinding,
    TensorSpec,
    View,
    load,
)
from dovetail_runtime.artifact import CompiledArtifact
from dovetail_runtime.cuda_graphs import (
    GraphedArtifact,
    GraphPool,
    RecordingPolicy,
    mutated_inputs,
    reason_against,
    shape_key,
)
from dovetail_runtime.graph_recording import Timing
from dovetail_runtime.native import executor_module
from dovetail_runtime.plan import Bind

SPEC = TensorSpec((4,), (1,), torch.float32, torch.device("cpu"))


def plan() -> Plan:
    return Plan(
        "writes", "cpu", tuple(PlanInput(n, SPEC) for n in "abc"), (), (), (),
        (
            Allocate("t", SPEC, None),
            CallAten("aten::neg.out", (Ref("a"),), (("out", Ref("t")),)),
            View("cv", "c", SPEC),
            CopyInto("cv", "t"),
            CallAten("aten::add_.Tensor", (Ref("b"), 1)),
        ),
        (), ("t",), ("b",),
    )  # fmt: skip


def test_inputs_written_by_a_plan_are_known() -> None:
    assert mutated_inputs(plan()) == [1, 2]


def test_a_key_tells_shapes_strides_and_ints_apart() -> None:
    x = torch.randn(4, 4)
    assert shape_key((x, 1)) == shape_key((torch.zeros(4, 4), 1))
    others = [(x.t(), 1), (x, 2), (x.double(), 1), (x[:2], 1)]
    assert all(shape_key((x, 1)) != shape_key(other) for other in others)


@dataclass
class Again:
    """What a graph does: the same work on the same memory."""

    artifact: CompiledArtifact
    inputs: Sequence[Any]
    outputs: tuple[Any, ...]
    replays: int = 0

    def replay(self) -> None:
        self.replays += 1
        for mine, made in zip(self.outputs, self.artifact.run(*self.inputs), strict=True):
            if mine.data_ptr() != made.data_ptr():
                mine.copy_(made)


class CpuPool(GraphPool):
    target = "cpu"

    def __init__(self) -> None:
        self.device = torch.device("cpu")
        self.lock = threading.RLock()
        self.taken = WeakKeyDictionary()
        self.graphs: list[Again] = []

    def is_capturing(self) -> bool:
        return False

    def take_turn(self) -> int:
        return 0

    def warm_up(self, artifact: CompiledArtifact, inputs: Sequence[Any]) -> tuple[Any, ...]:
        before = [v.clone() for v in inputs]
        outputs = artifact.run(*inputs)
        for value, old in zip(inputs, before, strict=True):
            value.copy_(old)
        return outputs

    def capture(
        self, artifact: CompiledArtifact, inputs: Sequence[Any], held: Collection[int]
    ) -> tuple[Again, tuple[Any, ...]]:
        # As a capture, it leaves inputs and outputs as they are.
        graph = Again(artifact, inputs, self.warm_up(artifact, inputs))
        self.graphs.append(graph)
        return graph, graph.outputs

    @property
    def replays(self) -> int:
        return sum(graph.replays for graph in self.graphs)


def forward_plan() -> Plan:
    """Writes to `count`; its results: x + 1, w * 2 twice (the second a view), a view of w, x."""
    return Plan(
        "forward", "cpu", tuple(PlanInput(n, SPEC) for n in ("x", "w", "count")), (), (), (),
        (
            CallAten("aten::add_.Tensor", (Ref("count"), 1)),
            CallAten("aten::add.Tensor", (Ref("x"), 1), (), ("y",)),
            CallAten("aten::mul.Tensor", (Ref("w"), 2), (), ("s",)),
            View("half", "s", TensorSpec((2,), (2,), torch.float32, SPEC.device, 1)),
            View("part", "w", TensorSpec((3,), (1,), torch.float32, SPEC.device, 1)),
        ),
        (), ("y", "s", "half", "part", "x"), ("count",),
    )  # fmt: skip


class Caller:
    """Calls a graphed plan and compares each result with what it should be."""

    def __init__(
        self,
        held: Sequence[int],
        max_graphs: int = 8,
        large_output: int | None = None,
        kept_bytes: int = 0,
    ) -> None:
        self.pool = CpuPool()
        self.graphed = GraphedArtifact(
            load(forward_plan()),
            self.pool,
            RecordingPolicy(
                held_outputs=frozenset(held),
                large_output=large_output,
                kept_bytes=kept_bytes,
                max_graphs=max_graphs,
            ),
        )
        self.w, self.count, self.calls = torch.randn(4), torch.zeros(4), 0
        self.kept: list[tuple[torch.Tensor, torch.Tensor]] = []
        self.everywhere = [torch.randn(4) for _ in range(100)]  # `x` is never where it was

    def __call__(self) -> tuple[Any, ...]:
        x = self.everywhere[self.calls].clone()
        self.everywhere[self.calls] = x
        version = self.count._version
        got = self.graphed(x, self.w, self.count)
        self.calls += 1
        assert self.count.tolist() == [self.calls] * 4 and self.count._version > version
        s = self.w * 2
        for mine, wanted in zip(got, (x + 1, s, s[1::2], self.w[1:], x), strict=True):
            assert torch.equal(mine, wanted) and mine.stride() == wanted.stride()
        assert got[4] is x
        return got

    def keep(self, *results: torch.Tensor) -> None:
        self.kept += [(r, r.clone()) for r in results]

    def check_kept(self) -> None:
        assert all(torch.equal(a, b) for a, b in self.kept)


def test_inputs_that_stay_are_read_in_place_and_others_are_copied() -> None:
    call = Caller(held=())
    for _ in range(12):
        call.keep(*call()[:3])
    call.check_kept()
    assert call.pool.replays == 10 and call.graphed.recorded == 1 and not call.graphed.skips()
    call.w = torch.randn(4)  # moved: once the plan runs, then there is another graph
    for _ in range(3):
        call()
    assert call.pool.replays == 12 and call.graphed.recorded == 1 and len(call.pool.graphs) == 2
    (skip,) = call.graphed.skips()
    assert skip.startswith("forward: 1 calls ran the plan: inputs were elsewhere")


def test_held_results_lie_in_the_graph_s_memory() -> None:
    call = Caller(held=(1, 2, 3))
    for _ in range(6):
        result = call()
        memory = result[1].data_ptr()
        assert result[2].data_ptr() == memory + 4
        assert result[3].data_ptr() == call.w.data_ptr() + 4  # a view of an input: always its own
        del result
    assert call.pool.replays == 4 and not call.graphed.skips()
    assert call.pool.graphs[0].outputs[1].data_ptr() == memory
    (graph,) = call.pool.graphs
    assert graph.outputs[0].data_ptr() != call()[0].data_ptr()  # not held: a copy


def in_turn(call: Caller) -> None:
    """As a training loop that goes backward once in two forwards."""
    call.keep(call()[1])
    call.keep(call()[1])
    call.check_kept()
    call.kept.clear()


def test_a_result_that_is_still_in_use_is_not_overwritten() -> None:
    call = Caller(held=(1, 2))
    call()
    call()
    call.keep(call()[1])
    assert call.pool.replays == 1
    replays = call.pool.replays
    call.keep(call()[2])  # of a view alone, in the memory of another
    call.check_kept()
    assert call.pool.replays == replays and "still in use" in call.graphed.skips()[0]
    call.kept.clear()
    call()
    assert call.pool.replays == replays + 1


def test_results_that_are_often_in_use_are_copied() -> None:
    call = Caller(held=(1, 2))
    call()
    for _ in range(6):
        in_turn(call)
    assert len(call.pool.graphs) == 2
    before = call.pool.replays
    for _ in range(4):
        in_turn(call)
    assert call.pool.replays == before + 8 and call.graphed.recorded == 1


def test_large_results_are_not_copied_until_they_are_in_use() -> None:
    call = Caller(held=(), large_output=16)  # x + 1 and w * 2; the views of both are smaller
    for _ in range(4):
        result = call()
        memory = [r.data_ptr() for r in result[:3]]
        del result
    outputs = call.pool.graphs[0].outputs
    assert memory[:2] == [r.data_ptr() for r in outputs[:2]] and memory[2] != outputs[2].data_ptr()
    for _ in range(6):  # as a loop that assigns each result to the same name
        result = call()
        call.check_kept()
        call.kept.clear()
        call.keep(*result[:3])
    assert len(call.pool.graphs) == 2 and "still in use" in call.graphed.skips()[0]
    assert call.pool.replays == 2 + 1 + 3


def addresses_of_sums(call: Caller, drop: bool) -> list[int]:
    """Where x + 1 lies in ten calls; the last call's result is alive in the next, or dropped."""
    found = []
    for _ in range(10):
        result = call()
        found.append(result[0].data_ptr())
        if drop:
            del result
    return found


def test_small_results_lie_in_two_places_in_turns() -> None:
    call = Caller(held=(), kept_bytes=16 + 16 + 12)
    call()
    call()
    assert len(set(addresses_of_sums(call, drop=False))) == 2
    assert len(set(addresses_of_sums(call, drop=True))) <= 2
    for _ in range(20):  # however many are kept, none is written to again
        call.keep(*call()[:3])
    call.check_kept()
    assert call.pool.replays == 40 and not call.graphed.skips()


def test_one_result_in_use_keeps_all_of_its_call_from_being_written_to() -> None:
    call = Caller(held=(), kept_bytes=1 << 10)
    for _ in range(12):
        call.keep(call()[3][1:])
    call.check_kept()


def test_results_whose_memory_was_given_back_are_not_written_to() -> None:
    call = Caller(held=(), kept_bytes=1 << 10)
    for _ in range(8):
        call()[0].untyped_storage().resize_(0)
        call()[1].resize_(1000)
    assert call.pool.replays == 14


def test_many_results_are_not_kept() -> None:
    call = Caller(held=(), kept_bytes=16 + 16 + 11)
    kept = [call() for _ in range(6)]
    dropped = weakref.ref(kept[-1][0].untyped_storage())
    del kept
    assert call.pool.replays == 4 and dropped() is None


def test_what_is_alive_from_a_dropped_graph_is_never_written_to() -> None:
    call = Caller(held=(1, 2))
    call()
    call.keep(*call()[1:3])
    for _ in range(10):
        call()
        call.check_kept()
    assert call.pool.replays > 5


def test_inputs_given_away_are_dropped_after_a_replay() -> None:
    call = Caller(held=(1, 2))
    for _ in range(5):
        inputs = [call.everywhere[0], call.w, call.count]
        call.graphed.run_consuming(inputs)
        assert inputs == []
    assert call.pool.replays == 4


def taken(pool: GraphPool) -> int:
    return pool.bytes_with(0, 0)


def test_memory_is_counted_and_given_back() -> None:
    call = Caller(held=())
    for _ in range(3):
        call()
    pool = call.pool
    first = taken(pool)
    assert first >= 4 * 16
    call.w = torch.randn(4)
    call()
    call()
    assert taken(pool) == first
    del call
    gc.collect()
    assert taken(pool) == 0  # with the last call of it
    budget = GraphedArtifact(load(plan()), CpuPool(), RecordingPolicy(memory_budget=15))
    for _ in range(3):
        budget(*torch.ones(3, 4).unbind())
    assert budget.recorded == 0 and "exceed the budget of 15" in budget.skips()[0]


def of_any_size() -> Plan:
    """x - x, beside four rows of memory."""
    n = SizeExpr("sym", ("n",))
    one = replace(SPEC, shape=(n,))
    return Plan(
        "any", "cpu", (PlanInput("x", one),), (SymbolBinding("n", 0, 0),), (), (),
        (
            Allocate("four", replace(SPEC, shape=(4, n), stride=(n, 1)), None),
            CallAten("aten::zero_", (Ref("four"),)),
            Free(("four",)),
            Allocate("o", one, None),
            CallAten("aten::sub.out", (Ref("x"), Ref("x")), (("out", Ref("o")),)),
        ),
        (), ("o",),
    )  # fmt: skip


def test_graphs_of_symbolic_sizes_count_what_they_work_in() -> None:
    """The largest of them, as they run one after the other; and each one's results."""
    pool = CpuPool()
    graphed = GraphedArtifact(load(of_any_size()), pool, RecordingPolicy(memory_budget=4000))
    for size in (50, 100, 200):
        x = torch.ones(size)
        for _ in range(3):
            graphed(x)
    assert graphed.recorded == 2 and taken(pool) == 4 * (50 + 100 + 4 * 100)
    assert "exceed the budget of 4000" in graphed.skips()[0]


def refused(change: Callable[[Plan], Plan]) -> str:
    (reason,) = GraphedArtifact(load(change(plan())), CpuPool()).skips()
    return reason


def test_sizes_that_depend_on_data_are_not_recorded() -> None:
    bound = refused(lambda p: replace(p, steps=(*p.steps, Bind("n", "t", 0))))
    assert "sizes depend on data" in bound


def test_few_launches_are_not_recorded_unasked() -> None:
    few = GraphedArtifact(load(plan()), CpuPool(), RecordingPolicy(only_launch_bound=True))
    assert few.skips() == ["writes: 2 launches take no longer than a replay"]
    assert GraphedArtifact(load(plan()), CpuPool()).skips() == []


@pytest.mark.parametrize(
    ("launching", "gpu", "result_bytes", "reason"),
    [
        (1e-3, 1.2e-3, 1000, None),
        (1e-3, 2.5e-3, 1000, "launches (1.00 ms) are not what takes the time (2.50 ms on the GPU)"),
        (1e-3, 1.2e-3, 10**9, "copying 1000000000 bytes of results would take longer"),
    ],
)
def test_a_recording_must_pay(
    launching: float, gpu: float, result_bytes: int, reason: str | None
) -> None:
    timing = Timing.__new__(Timing)
    timing.seconds, timing.result_bytes = launching, result_bytes
    timing.gpu_seconds = lambda: gpu  # type: ignore[method-assign]
    found = reason_against(timing)
    assert found == reason or (found is not None and reason is not None and reason in found)


def test_without_a_gpu_the_plan_runs_and_says_why() -> None:
    pool = GraphPool.__new__(GraphPool)
    graphed = GraphedArtifact(load(plan()), pool)
    for _ in range(2):
        a, b, c = torch.ones(4), torch.ones(4), torch.ones(4)
        (out,) = graphed(a, b, c)
        assert out.tolist() == [-1.0] * 4 == c.tolist() and b.tolist() == [2.0] * 4
    assert graphed.skips() == ["writes: the plan does not run on a GPU"]


def test_copies_keep_contents_and_strides_whatever_the_layouts() -> None:
    native = executor_module()
    x = torch.randn(2, 3, 4)
    sources = (
        x,
        x.transpose(0, 2),
        x[:, ::2],
        x.double(),
        x[0:0],
        torch.randn(5, dtype=torch.cfloat).conj(),
    )
    targets = tuple(
        torch.empty_like(v, dtype=torch.cfloat if v.is_complex() else torch.float32)
        for v in sources
    )
    gaps = torch.zeros(4, 6)[:, ::2]
    native.copy_into((*targets, gaps), tuple(range(7)), (*sources, torch.ones(4, 3)), 0)
    for target, source in zip(targets, sources, strict=True):
        assert torch.equal(target, source.to(target.dtype))
    assert gaps.sum() == 12
    for value in (x, x.transpose(0, 2), x[0:0], torch.tensor(3), sources[-1]):
        made = native.copy_of(value, 0)
        assert torch.equal(made, value) and made.stride() == value.stride()
        assert made.numel() == 0 or made.data_ptr() != value.data_ptr()
    with torch.inference_mode():
        assert native.copy_of(x, 0).is_inference()
    with pytest.raises(ValueError, match="gaps"):
        native.copy_of(x[:, ::2], 0)
    with pytest.raises(IndexError, match="position 1 of 1"):
        native.copy_into((x,), (1,), (x,), 0)
    with pytest.raises(TypeError, match="a tensor is wanted"):
        native.copy_of(1, 0)
