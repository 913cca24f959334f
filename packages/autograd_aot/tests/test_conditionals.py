"""Conditionals in joint traces: one node each in the forward and the backward."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from aot_testing import run_fx
from dovetail_autograd_aot import aot_compile, min_cut_partition
from dovetail_autograd_aot.joint.joint_trace import trace_joint
from dovetail_autograd_aot.trace.storage import TraceError
from dovetail_prims.conditionals import COND, graphs_of
from dovetail_prims.decompositions import core_aten_table
from dovetail_prims.fake.from_real import from_real
from torch import Tensor
from torch.fx import Graph, GraphModule, Node, symbolic_trace

Branch = Callable[[Tensor, Tensor], tuple[Tensor, ...]]


def choice(true: Branch, false: Branch) -> GraphModule:
    """(predicate, a, b) -> the results of a branch of (a, b)."""
    root = torch.nn.Module()
    graph = Graph()
    given = [graph.placeholder(name) for name in ("predicate", "a", "b")]
    graphs = []
    for name, function in (("true", true), ("false", false)):
        root.add_module(name, symbolic_trace(function))
        graphs.append(graph.get_attr(name))
    found = graph.call_function(COND, (given[0], *graphs, tuple(given[1:])))
    count = len(true(torch.ones(2, 2), torch.ones(2, 2)))
    parts = [graph.call_function(lambda values, i: values[i], (found, i)) for i in range(count)]
    graph.output(tuple(parts))
    return GraphModule(root, graph)


def conditionals(gm: GraphModule | None) -> list[Node]:
    assert gm is not None
    return [node for node in gm.graph.nodes if node.target is COND]


def examples(graded: bool = True) -> list[Tensor]:
    a, b = torch.rand(3, 3), torch.rand(3, 3)
    return [torch.tensor(True), a.requires_grad_(graded), b.requires_grad_(graded)]


def test_branches_share_the_memory_of_what_they_save() -> None:
    gm = choice(lambda a, b: ((a @ b).sin() @ b,), lambda a, b: ((b @ a).exp() @ (a @ a),))
    parts = min_cut_partition(trace_joint(gm, examples(), decompositions=core_aten_table()))
    (forward,), (backward,) = conditionals(parts.forward), conditionals(parts.backward)
    found = graphs_of(forward)
    assert found is not None
    outputs = [len(next(iter(reversed(branch.graph.nodes))).args[0]) for branch in found]
    assert outputs == [3, 3]  # the result, and the two products that the second branch saves
    assert sum("empty" in str(n.target) for n in found[0].graph.nodes) == 1
    assert len(backward.meta["val"]) == 2


def test_without_gradients_nothing_is_saved() -> None:
    gm = choice(lambda a, b: (a.sin(),), lambda a, b: (b.exp() * a,))
    parts = min_cut_partition(trace_joint(gm, examples(False), decompositions=core_aten_table()))
    (node,) = conditionals(parts.forward)
    assert parts.backward is None and len(node.meta["val"]) == 1


@pytest.mark.parametrize("which", [True, False])
@pytest.mark.parametrize(
    ("true", "false"),
    [
        (lambda a, b: (a * b.sin(),), lambda a, b: (torch.ones_like(a),)),
        (lambda a, b: (a.exp(), b * b), lambda a, b: (b.sin(), a @ a)),
        (lambda a, b: (a.t() @ b,), lambda a, b: ((b @ a).t().contiguous() * 2,)),
        (lambda a, b: (a.clone(),), lambda a, b: (b.clone(),)),
    ],
)
def test_as_the_branch_alone(which: bool, true: Branch, false: Branch) -> None:
    gm = choice(true, false)
    given = examples()
    run = aot_compile(gm, given, forward_compiler=run_fx, decompositions=core_aten_table())
    given[0] = torch.tensor(which)
    found, wanted = run(*given), (true if which else false)(*given[1:])
    torch.testing.assert_close(tuple(found), wanted)
    graded = [value for value in wanted if value.requires_grad]
    if graded:
        total, expected = (sum(v.sum() for v in values) for values in (found, graded))
        gradients: list[Any] = [
            torch.autograd.grad(value, given[1:], materialize_grads=True)
            for value in (total, expected)
        ]
        torch.testing.assert_close(*gradients)


def test_what_cannot_be_a_branch() -> None:
    with pytest.raises(TraceError, match="writes to its operands"):
        trace_joint(choice(lambda a, b: (a.add_(1) * 1,), lambda a, b: (b * 2,)), examples(False))
    with pytest.raises(TraceError, match="not all tensors of its own"):
        trace_joint(
            choice(lambda a, b: (a.view(-1),), lambda a, b: (b.exp().view(-1),)), examples()
        )


def test_symbolic_examples_are_not_needed() -> None:
    """Fakes do as well as tensors."""
    gm = choice(lambda a, b: (a.sin(),), lambda a, b: (b.exp(),))
    joint = trace_joint(gm, [from_real(t) for t in examples()], decompositions=core_aten_table())
    assert joint.signature.needs_backward
