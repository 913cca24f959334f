"""CUDA graphs: what can be decided without a GPU."""

from __future__ import annotations

import torch
from dovetail_runtime import (
    Allocate,
    CallAten,
    CopyInto,
    Plan,
    PlanInput,
    Ref,
    TensorSpec,
    View,
    load,
)
from dovetail_runtime.cuda_graphs import GraphedArtifact, GraphPool, mutated_inputs, shape_key

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


def test_without_a_gpu_the_plan_runs_and_says_why() -> None:
    pool = GraphPool.__new__(GraphPool)
    graphed = GraphedArtifact(load(plan()), pool)
    for _ in range(2):
        a, b, c = torch.ones(4), torch.ones(4), torch.ones(4)
        (out,) = graphed(a, b, c)
        assert out.tolist() == [-1.0] * 4 == c.tolist() and b.tolist() == [2.0] * 4
    assert graphed.skip_reasons == ["writes: the plan does not run on a GPU"]
