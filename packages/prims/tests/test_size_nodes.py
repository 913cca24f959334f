"""Graph nodes for symbolic sizes compute what the symbolic expressions say."""

from __future__ import annotations

import math

import pytest
import torch
from dovetail_guards.shape_env import Dim, ShapeEnv
from dovetail_guards.source import LocalSource
from dovetail_prims.fake_tensor import make, propagate
from dovetail_prims.sizes.size_nodes import SizeNodes
from torch.fx import Graph, GraphModule, Node

EXPRESSIONS = {
    "size": lambda b, n: b,
    "sum": lambda b, n: b + n + 3,
    "product": lambda b, n: 2 * b * n - n * n,
    "difference": lambda b, n: n - b,
    "floordiv": lambda b, n: (b * n + 1) // 3,
    "mod": lambda b, n: (b + 7) % n,
    "min_max": lambda b, n: torch.sym_max(b, torch.sym_min(n, 5)) + 1,
    "nested": lambda b, n: ((b + 3) // 2) * (n % 4) + b * b,
    "float": lambda b, n: 1.0 / b,
    "scale": lambda b, n: torch.sym_float(n) * 0.5,
    "number": lambda b, n: n - n + 4,
}


def setup():
    env = ShapeEnv()
    b = env.symint(env.create_size(6, LocalSource("b"), Dim.DYNAMIC))
    n = env.symint(env.create_size(9, LocalSource("n"), Dim.DYNAMIC))
    graph = Graph()
    tensor, number = graph.placeholder("tensor"), graph.placeholder("number")
    tensor.meta["val"] = make((3, b), (b, 1), torch.float32, torch.device("cpu"))
    number.meta["val"] = n
    sizes = SizeNodes(graph)
    sizes.bind_sizes(tensor, tensor.meta["val"])
    sizes.bind(n, number)
    return env, graph, sizes, b, n


@pytest.mark.parametrize("name", sorted(EXPRESSIONS))
def test_expression(name):
    fn = EXPRESSIONS[name]
    _, graph, sizes, b, n = setup()
    value = fn(b, n)
    node = sizes.node(value) if isinstance(value, (torch.SymInt, torch.SymFloat)) else value
    graph.output((node,))
    run = GraphModule(torch.nn.Module(), graph)
    for actual_b, actual_n in ((6, 9), (2, 5), (31, 3)):
        (result,) = run(torch.empty(3, actual_b), actual_n)
        assert math.isclose(result, fn(actual_b, actual_n)), (actual_b, actual_n)


def test_nodes_are_shared():
    _, graph, sizes, b, n = setup()
    first = sizes.node(b * n + 1)
    count = len(graph.nodes)
    assert sizes.node(1 + n * b) is first and len(graph.nodes) == count


def test_a_size_found_equal_to_another_is_found():
    env, _, sizes, b, _ = setup()
    m = env.symint(env.create_size(6, LocalSource("m"), Dim.DYNAMIC))
    assert m == b  # decided by the hints, and assumed from here on
    assert isinstance(sizes.node(m * 2), Node)


def test_unknown_symbols_are_refused():
    env, _, sizes, b, _ = setup()
    other = env.symint(env.create_size(77, LocalSource("other"), Dim.DYNAMIC))
    with pytest.raises(RuntimeError, match="no input of the graph has the size"):
        sizes.node(other + b)


def test_sizes_of_what_changed_its_shape_are_read_before():
    _, graph, sizes, b, _ = setup()
    tensor = next(iter(graph.nodes))
    changed = graph.call_function(torch.ops.aten.t_.default, (tensor,))
    propagate(torch.ops.aten.t_.default, (tensor.meta["val"],), {})
    graph.output((changed, sizes.node(b)))
    graph.lint()
    result, size = GraphModule(torch.nn.Module(), graph)(torch.empty(3, 5), 1)
    assert size == 5 and result.shape == (5, 3)
