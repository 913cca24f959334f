"""On a real GPU: what the CUDA graphs of a pool share, and what is a graph's own."""

from __future__ import annotations

import gc

import pytest
import torch
from dovetail_runtime import Allocate, CallAten, FreeSlab, Plan, PlanInput, Ref, TensorSpec, load
from dovetail_runtime.cuda_graphs import GraphedArtifact, GraphPool, RecordingPolicy
from torch import Tensor

pytestmark = pytest.mark.gpu

CUDA = torch.device("cuda:0")
MIB = 1 << 20


def plan(name: str, mib: int) -> Plan:
    """x + 1 by way of intermediate values of `mib` MiB, in a slab and of calls, and then x - 1: the
    memory of the first may be free again.
    """
    few = TensorSpec((MIB // 4,), (1,), torch.float32, CUDA)
    many = TensorSpec((mib, MIB // 4), (MIB // 4, 1), torch.float32, CUDA)
    return Plan(
        name, "cuda", (PlanInput("x", few),), (), (), (),
        (
            Allocate("wide", many, 0),
            CallAten("aten::fill_.Scalar", (Ref("wide"), 1)),
            CallAten("aten::mul_.Tensor", (Ref("wide"), Ref("x"))),
            CallAten("aten::add_.Scalar", (Ref("wide"), 1)),
            CallAten("aten::exp", (Ref("wide"),), (), ("large",), (many,)),
            CallAten("aten::log", (Ref("large"),), (), ("back",), (many,)),
            CallAten("aten::amax", (Ref("back"), (0,)), (), ("o",), (few,)),
            FreeSlab("cuda:0", 0),
            CallAten("aten::sub.Tensor", (Ref("x"), 1), (), ("p",), (few,)),
        ),
        (("cuda:0", mib * MIB),), ("o", "p"),
    )  # fmt: skip


def reserved() -> int:
    gc.collect()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    return torch.cuda.memory_reserved()


def recorded(graphed: GraphedArtifact, x: Tensor) -> None:
    for _ in range(4):
        graphed(x)
    assert graphed.recorded == 1, graphed.skips()


def right(results: tuple[object, ...], x: Tensor) -> None:
    o, p = results
    torch.testing.assert_close(o, x + 1)
    torch.testing.assert_close(p, x - 1)


@pytest.mark.parametrize("held", [(), (0, 1)])
def test_graphs_of_a_pool_work_in_the_same_memory(held: tuple[int, ...]) -> None:
    x = torch.rand(MIB // 4, device=CUDA)
    before = reserved()
    pool = GraphPool()
    first, second, third = (
        GraphedArtifact(
            load(plan(f"g{mib}", mib)), pool, RecordingPolicy(held_outputs=frozenset(held))
        )
        for mib in (64, 48, 64)
    )
    recorded(first, x)
    one = reserved() - before
    assert one > 3 * 64 * MIB  # `wide`, `large` and `back`
    recorded(second, x)
    recorded(third, x)
    # Their results, and what segments are rounded to.
    assert reserved() - before < one + 32 * MIB
    # What is alive is not written to by the replays of others.
    kept = first(x)
    y = x + 3
    results = second(y), third(y), second(y), third(x)
    right(kept, x)
    right(results[0], y)
    right(results[-1], x)
    del kept, results, first, second, third, pool
    assert reserved() - before < 48 * MIB  # its workplace, with 32 for cuBLAS


def test_what_is_handed_out_lies_where_no_graph_works() -> None:
    """Its memory is of none of the segments that the other graphs' intermediate values are in."""
    x = torch.rand(MIB // 4, device=CUDA)
    pool = GraphPool()
    graphs = [
        GraphedArtifact(
            load(plan(f"h{mib}", mib)), pool, RecordingPolicy(held_outputs=frozenset((0, 1)))
        )
        for mib in (8, 32)
    ]
    for graphed in graphs:
        recorded(graphed, x)
    results = [value for graphed in graphs for value in graphed(x)]
    pools = {}
    for segment in torch.cuda.memory_snapshot():
        for value in results:
            assert isinstance(value, Tensor)
            start = segment["address"]
            if start <= value.data_ptr() < start + segment["total_size"]:
                pools[value.data_ptr()] = segment["segment_pool_id"]
    assert len(pools) == 4 and pool.handle not in pools.values() and (0, 0) not in pools.values()
    assert pools[results[0].data_ptr()] == pools[results[1].data_ptr()]
    assert pools[results[0].data_ptr()] != pools[results[2].data_ptr()]


@pytest.mark.observes  # (a sanitizer reports what the driver refuses)
def test_a_recording_that_fails_leaves_the_allocator_as_it_was() -> None:
    """Reading a value waits for the GPU, which a capture forbids."""
    few = TensorSpec((4,), (1,), torch.float32, CUDA)
    waits = Plan(
        "waits", "cuda", (PlanInput("x", few),), (), (), (),
        (
            CallAten("aten::neg", (Ref("x"),), (), ("t",)),
            CallAten("aten::nonzero", (Ref("t"),), (), ("o",)),
        ),
        (), ("o",),
    )  # fmt: skip
    pool = GraphPool()
    graphed = GraphedArtifact(load(waits), pool, RecordingPolicy(held_outputs=frozenset((0,))))
    x = torch.rand(4, device=CUDA) + 1
    for _ in range(4):
        (found,) = graphed(x)
        assert isinstance(found, Tensor) and found.flatten().tolist() == [0, 1, 2, 3]
    assert graphed.recorded == 0 and "recording failed" in graphed.skips()[0]
    outside = torch.empty(64 * MIB, dtype=torch.uint8, device=CUDA)
    segments = {s["address"]: s["segment_pool_id"] for s in torch.cuda.memory_snapshot()}
    assert segments[outside.data_ptr()] == (0, 0)
    torch.manual_seed(1)
    drawn = torch.rand(4, device=CUDA)
    torch.manual_seed(1)
    assert torch.equal(torch.rand(4, device=CUDA), drawn)
    good = GraphedArtifact(
        load(plan("after", 8)), pool, RecordingPolicy(held_outputs=frozenset((0, 1)))
    )
    x = torch.rand(MIB // 4, device=CUDA)
    recorded(good, x)
    right(good(x), x)
