"""Conditionals in graphs that are specialised, and run operator by operator."""

from __future__ import annotations

import torch
from dovetail_guards.shape_env import Dim, ShapeEnv
from dovetail_guards.source import LocalSource
from dovetail_prims.conditionals import COND, graphs_of, operands_of, run_plainly
from dovetail_prims.fake.from_real import from_real
from dovetail_prims.fake_tensor import make, propagate
from dovetail_prims.sizes.at_sizes import at_sizes
from torch.fx import Graph, GraphModule

aten = torch.ops.aten


def branch(operator: torch._ops.OpOverload, x: torch.Tensor) -> GraphModule:
    graph = Graph()
    given = graph.placeholder("x")
    given.meta["val"] = x
    made = graph.call_function(operator, (given,))
    made.meta["val"] = propagate(operator, (x,), {})
    graph.output((made,)).meta["val"] = (made.meta["val"],)
    return GraphModule(torch.nn.Module(), graph)


def choice(x: torch.Tensor) -> GraphModule:
    """(predicate, x) -> sin(x), or cos(x)."""
    root, graph = torch.nn.Module(), Graph()
    predicate, given = graph.placeholder("predicate"), graph.placeholder("x")
    predicate.meta["val"], given.meta["val"] = from_real(torch.tensor(True)), x
    names = []
    for name, operator in (("true", aten.sin.default), ("false", aten.cos.default)):
        root.add_module(name, branch(operator, x))
        names.append(graph.get_attr(name))
        names[-1].meta["val"] = root.get_submodule(name)
    found = graph.call_function(COND, (predicate, *names, (given,)))
    found.meta["val"] = (propagate(aten.sin.default, (x,), {}),)
    part = graph.call_function(getitem, (found, 0))
    part.meta["val"] = found.meta["val"][0]
    graph.output((part,)).meta["val"] = (part.meta["val"],)
    return GraphModule(root, graph)


def getitem(values: tuple[torch.Tensor, ...], i: int) -> torch.Tensor:
    return values[i]


def test_at_the_sizes_of_a_call() -> None:
    env = ShapeEnv()
    size = env.symint(env.create_size(5, LocalSource("x"), Dim.DYNAMIC))
    gm = choice(make((size, 3), (3, 1), torch.float32, torch.device("cpu")))
    x = torch.randn(4, 3)
    fixed = at_sizes(gm, [torch.tensor(False), x])
    (node,) = fixed.graph.find_nodes(op="call_function", target=COND)
    assert operands_of(node)[0].meta["val"].shape == (4, 3)
    branches = graphs_of(node)
    assert branches is not None
    for one in branches:
        assert all(tuple(n.meta["val"].shape) == (4, 3) for n in list(one.graph.nodes)[:-1])
    assert graphs_of(node.args[0]) == ()
    for which in (True, False):
        (found,) = fixed(torch.tensor(which), x)
        torch.testing.assert_close(found, x.sin() if which else x.cos())


def test_operator_by_operator() -> None:
    run = run_plainly(choice(from_real(torch.randn(2))))
    x = torch.randn(2, requires_grad=True)
    for which in (True, False):
        (found,) = run(torch.tensor(which), x)
        torch.testing.assert_close(found, x.sin() if which else x.cos())
        assert type(found.grad_fn).__name__ == ("SinBackward0" if which else "CosBackward0")
