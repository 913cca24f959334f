"""A node that chooses between graphs: a step of the plan, between plans."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import pytest
import torch
from dovetail_inductor import InductorOptions, compile_graph
from dovetail_prims import trace_aten
from dovetail_prims.conditionals import COND
from dovetail_prims.decompositions import core_aten_table
from dovetail_prims.fake.from_real import from_real
from dovetail_runtime import Choose, LaunchCpp, LaunchTriton, Plan, load
from torch import Tensor
from torch.fx import Graph, GraphModule

Branch = Callable[[Tensor, Tensor], Any]
TABLE = core_aten_table()


def traced(function: Branch, x: Tensor, y: Tensor) -> GraphModule:
    return trace_aten(function, x, y, decompositions=TABLE)


def choice(true: Branch, false: Branch, x: Tensor, y: Tensor) -> GraphModule:
    """(predicate, x, y) -> the results of a branch of (x * 2, y), and x * 2."""
    root, graph = torch.nn.Module(), Graph()
    given = [graph.placeholder(name) for name in ("predicate", "x", "y")]
    for node, value in zip(given, (torch.tensor(True), x, y), strict=True):
        node.meta["val"] = from_real(value)
    twice = graph.call_function(torch.ops.aten.mul.Tensor, (given[1], 2))
    twice.meta["val"] = from_real(x * 2)
    names = []
    for name, function in (("true", true), ("false", false)):
        root.add_module(name, traced(function, x * 2, y))
        names.append(graph.get_attr(name))
        names[-1].meta["val"] = root.get_submodule(name)
    found = graph.call_function(COND, (given[0], *names, (twice, given[2])))
    found.meta["val"] = tuple(map(from_real, true(x * 2, y)))
    parts = []
    for i, value in enumerate(found.meta["val"]):
        parts.append(graph.call_function(operator.getitem, (found, i)))
        parts[-1].meta["val"] = value
    graph.output((*parts, twice)).meta["val"] = (*found.meta["val"], twice.meta["val"])
    return GraphModule(root, graph)


NUMBERS = torch.tensor([1.0, 2.0, 3.0])
PAIRS: dict[str, tuple[Branch, Branch]] = {
    "loops": (lambda x, y: (x.sin() + y,), lambda x, y: ((x * y).softmax(-1),)),
    "products": (lambda x, y: (x @ y.t(), y + 1), lambda x, y: (y @ x.t(), x * x)),
    "constants": (lambda x, y: (x * NUMBERS,), lambda x, y: (y + NUMBERS * 2,)),
    "operands": (lambda x, y: (x.clone(), y.clone()), lambda x, y: (y.clone(), x.clone())),
}


def chosen(plan: Plan) -> Choose:
    (step,) = (step for step in plan.steps if isinstance(step, Choose))
    return step


@pytest.mark.parametrize("name", PAIRS)
def test_as_the_branch(name: str) -> None:
    true, false = PAIRS[name]
    x, y = torch.randn(4, 3), torch.randn(4, 3)
    plan = compile_graph(choice(true, false, x, y))
    assert not any(branch.kernels or branch.constants for branch in chosen(plan).branches)
    run = load(plan)
    for which in (True, False, True):
        *found, twice = run(torch.tensor(which), x, y)
        wanted = (true if which else false)(x * 2, y)
        torch.testing.assert_close(tuple(found), tuple(wanted))
        torch.testing.assert_close(twice, x * 2)
        for value in found:
            assert isinstance(value, Tensor)
            value.zero_()
        assert x.any() and y.any()  # results have memory of their own


def test_operands_in_another_layout_are_copied() -> None:
    """The branch was compiled for strides, and gets them."""
    x, y = torch.randn(4, 3).t().contiguous().t(), torch.randn(4, 3)
    plan = compile_graph(choice(lambda a, b: (a + b,), lambda a, b: (a - b,), x, y))
    found, _ = load(plan)(torch.tensor(False), x, y)
    torch.testing.assert_close(found, x * 2 - y)


def test_a_gpu_s_kernels_stand_in_one_place() -> None:
    x, y = torch.randn(64, 3), torch.randn(64, 3)
    gm = choice(*PAIRS["loops"], x, y)
    plan = compile_graph(gm, options=InductorOptions(triton=True))
    launches = [s for branch in chosen(plan).branches for s in branch.steps]
    names = {s.kernel for s in launches if isinstance(s, LaunchTriton | LaunchCpp)}
    assert len(names) == 2 and names <= {kernel.symbol for kernel in plan.kernels}
