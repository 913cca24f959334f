"""`at_sizes`: a graph over symbolic sizes as the graph for the sizes of one call."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.fx import Graph, GraphModule, Node
from torch.fx.node import map_arg

from dovetail_prims.conditionals import COND, graph_nodes, graphs_of, operands_of
from dovetail_prims.fake_tensor import FakeTensor, make, propagate

_SYMBOLIC = (torch.SymInt, torch.SymFloat, torch.SymBool)


def symbolic_inputs(gm: GraphModule) -> tuple[int, ...]:
    """Positions of the inputs that have a symbolic size, or are a symbolic number."""
    found: list[int] = []
    placeholders = [node for node in gm.graph.nodes if node.op == "placeholder"]
    for position, node in enumerate(placeholders):
        val = node.meta.get("val")
        if isinstance(val, FakeTensor):
            if any(type(s) is not int for s in (*val._sizes, *val._strides)):
                found.append(position)
        elif isinstance(val, _SYMBOLIC):
            found.append(position)
    return tuple(found)


def exactly(number: Any) -> tuple[type, Any]:
    """A key for what is compiled for one number: 0.0 and -0.0, or 1 and True, are equal, but not
    the same, and a NaN is the same, but not equal."""
    return type(number), number.hex() if isinstance(number, float) else number


def is_symbolic(gm: GraphModule) -> bool:
    """Whether an input of the graph has a symbolic size, or is a symbolic number."""
    return bool(symbolic_inputs(gm))


def at_sizes(gm: GraphModule, inputs: Sequence[Any]) -> GraphModule:
    """A functional ATen graph whose sizes are those of `inputs` (tensors and numbers).

    The placeholders stay the same; what computes sizes becomes numbers.
    """
    graph = Graph()
    env: dict[Node, Any] = {}
    fakes: dict[Node, Any] = {}
    values = iter(inputs)
    chosen: dict[str, GraphModule] = {}  # graphs that a node holds

    def fake(arg: Any) -> Any:
        return fakes[arg] if isinstance(arg, Node) else arg

    for node in gm.graph.nodes:
        if node.op == "placeholder":
            value = next(values)
            new = graph.placeholder(node.name)
            if isinstance(value, Tensor):
                fakes[node] = make(tuple(value.shape), value.stride(), value.dtype, value.device)
                env[node] = new
            else:
                fakes[node] = env[node] = value
            new.meta["val"] = fakes[node]
            continue
        if node.op == "output":
            result = map_arg(node.args[0], env.__getitem__)
            output = graph.output(result)
            output.meta["val"] = map_arg(node.args[0], fakes.__getitem__)
            continue
        inner = graphs_of(node)
        if inner:
            operands = [fake(operand) for operand in operands_of(node)]
            graphs = [at_sizes(graph, operands) for graph in inner]
            for read, own in zip(graph_nodes(node), graphs, strict=True):
                chosen[str(read.target)] = env[read].meta["val"] = own
            new = graph.call_function(node.target, map_arg(node.args, env.__getitem__))
            gives = graphs[0 if node.target is COND else 1]
            fakes[node] = next(iter(reversed(gives.graph.nodes))).meta["val"]
        elif node.op == "get_attr":
            new = graph.get_attr(node.target)
            fakes[node] = node.meta["val"]
        else:
            args = map_arg(node.args, fake)
            kwargs = map_arg(node.kwargs, fake)
            if isinstance(node.target, torch._ops.OpOverload):
                fakes[node] = propagate(node.target, args, kwargs)
            else:
                fakes[node] = node.target(*args, **kwargs)
            if isinstance(fakes[node], bool | int | float):
                env[node] = fakes[node]
                continue
            new_args = map_arg(node.args, env.__getitem__)
            new_kwargs = map_arg(node.kwargs, env.__getitem__)
            new = graph.call_function(node.target, new_args, new_kwargs)
        new.meta["val"] = fakes[node]
        new.name = node.name
        env[node] = new
    result = GraphModule(gm, graph)
    for name, branch in chosen.items():
        result.add_module(name, branch)
    return result
