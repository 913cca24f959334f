"""`torch.while_loop` by a tensor: one node with two graphs, or a break that says why not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import dovetail_capture as dc
import pytest
import torch
from dovetail_capture import optimize
from dovetail_prims.conditionals import WHILE, run_plainly
from torch import Tensor, nn
from torch._higher_order_ops import while_loop
from torch.fx import GraphModule

LINEAR = nn.Linear(4, 4)


class Graphs(list[GraphModule]):
    """A backend that keeps the graphs, and runs them."""

    def __init__(self, run: Callable[[GraphModule], Any] = run_plainly) -> None:
        self.run = run

    def __call__(self, gm: GraphModule, example_inputs: Any) -> Callable[..., Any]:
        self.append(gm)
        found: Callable[..., Any] = self.run(gm)
        return found

    @property
    def loops(self) -> list[torch.fx.Node]:
        return [n for gm in self for n in gm.graph.nodes if n.target is WHILE]


def plainly(condition: Any, body: Any, carried: Any) -> Any:
    values = tuple(value.clone() for value in carried)
    while condition(*values):
        values = body(*values)
    return values


def counted(loop: Any, x: Tensor, y: Tensor) -> Any:
    outside = y * 2

    def condition(i: Tensor, z: Tensor) -> Tensor:
        return (i < 5) & (z.sum() < outside.sum() + 9)

    def body(i: Tensor, z: Tensor) -> Any:
        return i + 1, (LINEAR(z) * x.shape[0]).relu() + z + y

    with torch.no_grad():
        i, z = loop(condition, body, (torch.zeros((), dtype=torch.int64), x))
    return i * 2, z + outside


def the_same_tensor(loop: Any, x: Tensor, y: Tensor) -> Any:
    """What is carried is what the body takes from around it."""
    return loop(lambda a, b: a.sum() < 50, lambda a, b: (a + b + x.abs() + 1, x * 2), (x, x))


def exchanged(loop: Any, x: Tensor, y: Tensor) -> Any:
    return loop(lambda a, b: a.sum() < b.sum() + 1, lambda a, b: (b + 1, a - 1), (x, y))


def layouts(loop: Any, x: Tensor, y: Tensor) -> Any:
    """Transposed; with gaps; expanded."""
    given = (x.t(), x[:, ::2], y[:1].expand(3, 4))
    return loop(
        lambda a, b, c: a.sum() + b.sum() + c.sum() < 90,
        lambda a, b, c: (a * 2 + 1, b + 2, c + 3),
        given,
    )


def nested(loop: Any, x: Tensor, y: Tensor) -> Any:
    def body(a: Tensor) -> Any:
        (inner,) = loop(lambda b: b.sum() < a.sum() + 5, lambda b: (b + y.abs() + 1,), (a,))
        return (torch.cond(inner.sum() > 40, lambda: inner + 3, lambda: inner + 4),)

    return loop(lambda a: a.sum() < 60, body, (x,))


PROGRAMS = [counted, the_same_tensor, exchanged, layouts, nested]


@pytest.mark.parametrize("run", [run_plainly, lambda gm: gm.forward], ids=["plainly", "torch"])
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("program", PROGRAMS)
def test_one_node(program: Callable[..., Any], dynamic: bool, run: Any) -> None:
    graphs = Graphs(run)
    compiled = optimize(
        lambda x, y: program(while_loop, x, y), backend=graphs, fullgraph=True, dynamic=dynamic
    )
    for rows in (3, 5) if dynamic else (3,):
        for start in (0, 100):
            x, y = torch.rand(rows, 4) + start, torch.rand(rows, 4)
            before = x.clone()
            found, wanted = compiled(x, y), program(plainly, x, y)
            torch.testing.assert_close(found, wanted)
            assert [v.stride() for v in found] == [v.stride() for v in wanted]
            for value in found:
                value.zero_()
            assert torch.equal(x, before)
    assert len(graphs) == 1
    assert len(graphs.loops) == 1


def test_operands_are_what_both_graphs_take() -> None:
    graphs = Graphs()
    compiled = optimize(
        lambda x, y: counted(while_loop, x, y), backend=graphs, fullgraph=True, dynamic=True
    )
    compiled(torch.rand(3, 4), torch.rand(3, 4))
    (node,) = graphs.loops
    condition, body = (graphs[0].get_submodule(str(n.target)) for n in node.args[:2])
    operands = [*node.args[2], *node.args[3]]
    for graph in (condition, body):
        given = graph.graph.find_nodes(op="placeholder")
        assert len(given) == len(operands)
        for inner, outer in zip(given, operands, strict=True):
            value = getattr(outer, "meta", {}).get("val")
            assert not isinstance(value, Tensor) or inner.meta["val"].shape == value.shape
    assert isinstance(condition.graph.find_nodes(op="output")[0].args[0], torch.fx.Node)


def test_what_python_decides_is_unrolled() -> None:
    graphs = Graphs()

    def program(x: Tensor) -> Any:
        return while_loop(lambda i, z: i < 3, lambda i, z: (i + 1, z * 2), (0, x))

    count, result = optimize(program, backend=graphs, fullgraph=True)(torch.ones(3))
    assert count == 3
    assert result.tolist() == [8, 8, 8]
    assert not graphs.loops


# --- what is no node ------------------------------------------------------------------------------


def _appends(x: Tensor) -> Any:
    found: list[int] = []

    def body(a: Tensor) -> Any:
        found.append(1)
        return (a + 2,)

    return while_loop(lambda a: a.sum() < 30, body, (x,)), found


def _raises(x: Tensor) -> Any:
    def body(a: Tensor) -> Any:
        raise ValueError("no")

    return while_loop(lambda a: a.sum() < 30, body, (x,))


def _writes(x: Tensor) -> Any:
    count = torch.zeros(())

    def body(a: Tensor) -> Any:
        count.add_(1)
        return (a + 2,)

    return while_loop(lambda a: a.sum() < 30, body, (x,)), count


def _loop(condition: Any, body: Any) -> Callable[[Tensor], Any]:
    return lambda x: while_loop(condition, body, (x,))


def _low(a: Tensor) -> Tensor:
    return a.sum() < 30


REFUSED = {
    "the body changes what was there before": _appends,
    "the body raises ValueError": _raises,
    "the body writes to a tensor that it did not make": _writes,
    "the body writes to a tensor": _loop(_low, lambda a: (a.add_(2),)),
    "its condition gives no tensor of one truth value": _loop(lambda a: a.sum(), lambda a: (a,)),
    "its body gives no tuple of 1 tensors": _loop(_low, lambda a: a + 1),
    r"in place 0 changes: dtype": _loop(_low, lambda a: (a.double(),)),
    r"in place 0 changes: shape": _loop(_low, lambda a: (torch.cat([a, a]),)),
    r"in place 0 changes: strides": _loop(_low, lambda a: ((a.t() + 1).contiguous().t(),)),
    "it takes a tensor that needs a gradient": _loop(_low, lambda a: (LINEAR(a) + 9,)),
    "inside of a transformed function": lambda x: torch.vmap(_loop(_low, lambda a: (a + 1,)))(x),
}


@pytest.mark.parametrize("reason", sorted(REFUSED))
def test_why_it_is_no_node(reason: str) -> None:
    x = torch.rand(2, 4)
    with pytest.raises(dc.CaptureError, match=f"(?s)a torch.while_loop that cannot.*{reason}"):
        optimize(REFUSED[reason], backend=Graphs(), fullgraph=True)(x)


class Settling(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 4, bias=False)

    def forward(self, x: Tensor) -> Any:
        return while_loop(lambda a: a.norm() > 0.1, lambda a: (self.inner(a) * 0.1,), (x,))


def test_exported() -> None:
    net = Settling().requires_grad_(False)
    exported = dc.export(net, (torch.rand(2, 4),))
    assert exported.gm.get_parameter("inner.weight") is net.inner.weight
    for size in (1.0, 0.0):
        x = torch.rand(2, 4) * size
        wanted = plainly(lambda a: a.norm() > 0.1, lambda a: (net.inner(a) * 0.1,), (x,))
        torch.testing.assert_close(exported(x), wanted)
