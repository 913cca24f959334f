"""`torch.cond` by a tensor: one node with a graph for each branch, or a break that says why not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import dovetail_capture as dc
import pytest
import torch
from dovetail_capture import optimize
from dovetail_prims.conditionals import COND, run_plainly
from torch import Tensor, nn
from torch.fx import GraphModule

LINEAR = nn.Linear(4, 4)


class Graphs(list[GraphModule]):
    """A backend that keeps the graphs, and runs them."""

    def __call__(self, gm: GraphModule, example_inputs: Any) -> Callable[..., Any]:
        self.append(gm)
        return run_plainly(gm)

    @property
    def conditionals(self) -> list[torch.fx.Node]:
        return [n for gm in self for n in gm.graph.nodes if n.target is COND]


def both_ways(function: Callable[..., Any], plain: Callable[..., Any], dynamic: bool) -> Graphs:
    graphs = Graphs()
    compiled = optimize(function, backend=graphs, fullgraph=True, dynamic=dynamic)
    for rows in (2, 4):
        for sign in (1, -1):
            x, y = torch.rand(rows, 4) * sign, torch.rand(rows, 4)
            torch.testing.assert_close(compiled(x, y), plain(x, y))
    assert len(graphs) == (1 if dynamic else 2)
    return graphs


def structures(x: Tensor, y: Tensor) -> Tensor:
    outside = y * 2
    found = torch.cond(
        x.sum() > 0,
        lambda a, b: {"a": (LINEAR(a) * b).sin(), "b": [outside + 1], "n": 3, "none": None},
        lambda a, b: {"a": a - b, "b": [a * 3], "n": 3, "none": None},
        (x, y),
    )
    assert found["none"] is None
    return found["a"] * found["n"] + found["b"][0]


def structures_plain(x: Tensor, y: Tensor) -> Tensor:
    if x.sum() > 0:
        return (LINEAR(x) * y).sin() * 3 + y * 2 + 1
    return (x - y) * 3 + x * 3


@pytest.mark.parametrize("dynamic", [False, True])
def test_one_node_whose_operands_are_what_the_branches_take(dynamic: bool) -> None:
    graphs = both_ways(structures, structures_plain, dynamic)
    (node,) = graphs[:1][0].graph.find_nodes(op="call_function", target=COND)
    gm = graphs[0]
    assert [str(n) for n in node.args[1:3]] == ["true_graph_0", "false_graph_0"]
    for name in ("true_graph_0", "false_graph_0"):
        given = gm.get_submodule(name).graph.find_nodes(op="placeholder")
        assert [n.meta["val"].shape for n in given] == [n.meta["val"].shape for n in node.args[3]]
    assert "torch.ops.higher_order.cond" in gm.code


def nested(x: Tensor, y: Tensor) -> Tensor:
    def true(a: Tensor) -> Tensor:
        inner: Tensor = torch.cond(y.sum() > 1, lambda: a * y, lambda: a.cos())
        return inner + 1

    found: Tensor = torch.cond(x.sum() > 0, true, lambda a: a.exp(), (x,))
    return found


def nested_plain(x: Tensor, y: Tensor) -> Tensor:
    if x.sum() > 0:
        return (x * y if y.sum() > 1 else x.cos()) + 1
    return x.exp()


@pytest.mark.parametrize("dynamic", [False, True])
def test_conditionals_in_branches(dynamic: bool) -> None:
    graphs = both_ways(nested, nested_plain, dynamic)
    assert graphs[0].true_graph_0.graph.find_nodes(op="call_function", target=COND)


def test_torch_runs_the_graph_as_it_is() -> None:
    """Its operator, not ours."""
    compiled = optimize(structures, backend=lambda gm, inputs: gm.forward, fullgraph=True)
    for sign in (1, -1):
        x, y = torch.rand(2, 4) * sign, torch.rand(2, 4)
        torch.testing.assert_close(compiled(x, y), structures_plain(x, y))


def test_results_have_memory_of_their_own() -> None:
    def twice(a: Tensor) -> tuple[Tensor, Tensor]:
        b = a + 1
        return b, b.view(-1)

    def program(x: Tensor) -> Any:
        return torch.cond(x.sum() > 0, twice, lambda a: (a, a.view(-1)), (x,))

    compiled = optimize(program, backend=Graphs(), fullgraph=True)
    for sign in (1, -1):
        x = torch.rand(2, 4) * sign
        first, second = compiled(x)
        first.zero_()
        torch.testing.assert_close(second, x.view(-1) + (sign > 0))
        assert x.any()


def test_a_branch_may_write_to_what_it_made() -> None:
    def true(a: Tensor) -> Tensor:
        made = torch.zeros_like(a)
        made[0] = 1
        return made.add_(a)

    def program(x: Tensor) -> Tensor:
        found: Tensor = torch.cond(x.sum() > 0, true, torch.sin, (x,))
        return found

    compiled = optimize(program, backend=Graphs(), fullgraph=True)
    x = torch.rand(2, 4)
    torch.testing.assert_close(compiled(x), true(x))
    torch.testing.assert_close(compiled(-x), -x.sin())


# --- what is no node ------------------------------------------------------------------------------


def _appends(x: Tensor) -> Any:
    found: list[int] = []

    def true(a: Tensor) -> Tensor:
        found.append(1)
        return a * 2

    return torch.cond(x.sum() > 0, true, lambda a: a * 3, (x,)), found


def _raises(x: Tensor) -> Any:
    def true(a: Tensor) -> Tensor:
        raise ValueError("no")

    return torch.cond(x.sum() > 0, true, lambda a: a * 3, (x,))


def _changes_grad_mode(x: Tensor) -> Any:
    def true(a: Tensor) -> Tensor:
        torch._C._set_grad_enabled(False)
        return a * 2

    return torch.cond(x.sum() > 0, true, lambda a: a * 3, (x,))


def _checks(x: Tensor) -> Any:
    rows = x[x[:, 0] > -9]

    def true(a: Tensor) -> Tensor:
        b = a + 1
        torch._check(b.shape[0] > 1)
        return b.sum(0)

    return torch.cond(x.sum() > 0, true, lambda a: a.sum(0), (rows,))


def _checks_a_number(x: Tensor) -> Any:
    count = (x > 0).sum().item()

    def true() -> Tensor:
        torch._check(count > 3)
        return x * 2

    return torch.cond(x.sum() > 0, true, lambda: x * 3)


NORM = nn.BatchNorm1d(4)

REFUSED = {
    "the true branch changes what was there before": _appends,
    "the true branch raises ValueError": _raises,
    "the true branch checks what only the data tells": _checks,
    "a check that a graph cannot make": _checks_a_number,
    "the true branch leaves torch in another state": _changes_grad_mode,
    "the false branch writes to a tensor that it did not make": lambda x: torch.cond(
        x.sum() > 0, torch.sin, lambda a: a.mul_(2) + 1, (x,)
    ),
    "the true branch writes to a tensor": lambda x: torch.cond(
        x.sum() > 0, lambda a: nn.functional.batch_norm(a, NORM.running_mean, NORM.running_var,
                                                        training=True), torch.sin, (x,)
    ),
    r"result 0: dtype \(torch.float32, torch.float64\)": lambda x: torch.cond(
        x.sum() > 0, torch.sin, lambda a: a.double(), (x,)
    ),
    r"result 1: shape \(\(2, 4\), \(4,\)\)": lambda x: torch.cond(
        x.sum() > 0, lambda a: (a + 1, a + 2), lambda a: (a + 1, a[0] + 2), (x,)
    ),
    r"result 0: strides": lambda x: torch.cond(
        x.sum() > 0, lambda a: a + 1, lambda a: (a.t() + 1).contiguous().t(), (x,)
    ),
    "different structure": lambda x: torch.cond(
        x.sum() > 0, lambda a: (a + 1,), lambda a: [a + 1], (x,)
    ),
    "different numbers": lambda x: torch.cond(
        x.sum() > 0, lambda a: (a + 1, 3), lambda a: (a + 1, 4), (x,)
    ),
    "no tensor": lambda x: torch.cond(x.sum() > 0, lambda a: None, lambda a: None, (x,)),
    "must have one element": lambda x: torch.cond(x > 0, torch.sin, torch.cos, (x,)),
}  # fmt: skip


@pytest.mark.parametrize("reason", sorted(REFUSED))
def test_why_it_is_no_node(reason: str) -> None:
    x = torch.rand(2, 4)
    with pytest.raises(dc.CaptureError, match=f"(?s)a torch.cond that cannot be.*{reason}.*cond"):
        optimize(REFUSED[reason], backend=Graphs(), fullgraph=True)(x)


def test_sizes_and_numbers_choose_while_capturing() -> None:
    def program(x: Tensor) -> Tensor:
        a: Tensor = torch.cond(x.shape[0] > 2, torch.sin, torch.cos, (x,))
        b: Tensor = torch.cond(True, torch.exp, torch.cos, (x,))
        return a + b

    graphs = Graphs()
    compiled = optimize(program, backend=graphs, fullgraph=True, dynamic=True)
    for rows in (2, 4):
        x = torch.rand(rows, 4)
        torch.testing.assert_close(compiled(x), (x.sin() if rows > 2 else x.cos()) + x.exp())
    assert not graphs.conditionals


class Gated(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = torch.cond(x.sum() > 0, self.inner, lambda a: a.sin(), (x,))
        return found


def test_exported() -> None:
    net = Gated()
    exported = dc.export(net, (torch.rand(2, 4),))
    assert exported.gm.get_parameter("inner.weight") is net.inner.weight
    for sign in (1, -1):
        x = torch.rand(2, 4) * sign
        torch.testing.assert_close(exported(x), net.inner(x) if sign > 0 else x.sin())


def test_the_operator_itself() -> None:
    def branch(x: torch.Tensor) -> torch.Tensor:
        return torch.ops.higher_order.cond(x.sum() > 0, lambda v: v + 1, lambda v: v - 1, (x,))

    run = dc.optimize(branch, dc.run_graph, fullgraph=True)
    for x in (torch.ones(3), -torch.ones(3)):
        torch.testing.assert_close(run(x), x + 1 if x.sum() > 0 else x - 1)
