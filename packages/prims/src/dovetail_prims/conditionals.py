"""`torch.cond` and `torch.while_loop` as nodes of a graph, which hold graphs.

- `torch.ops.higher_order.cond(predicate, true_graph, false_graph, operands)`: both graphs take the
  operands and give a tuple of tensors, which is what the node gives: shapes, strides, dtypes and
  devices of both are the same. `predicate` is a tensor of one element.
- `torch.ops.higher_order.while_loop(condition, body, carried, additional)`: both graphs take the
  carried tensors and then the additional operands. The condition gives a tensor of one truth value,
  the body tensors like the carried ones, which take their place; the node gives a tuple of those
  that are left at the end.

Operands are tensors and whole numbers. The graphs are attributes of the module, read by `get_attr`
nodes whose `meta["val"]` they are.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.fx import GraphModule, Interpreter, Node

COND = torch.ops.higher_order.cond
WHILE = torch.ops.higher_order.while_loop
# Which of the arguments are graphs:
_GRAPHS: dict[Any, slice] = {COND: slice(1, 3), WHILE: slice(0, 2)}


def graph_nodes(node: Node) -> tuple[Node, ...]:
    """The nodes of the graphs that a node holds; none for any other node."""
    where = _GRAPHS.get(node.target) if node.op == "call_function" else None
    found = () if where is None else node.args[where]
    return tuple(arg for arg in found if isinstance(arg, Node))


def graphs_of(node: Node) -> tuple[GraphModule, ...]:
    """The graphs that a node holds; none for any other node."""
    return tuple(graph.meta["val"] for graph in graph_nodes(node))


def operands_of(node: Node) -> tuple[Any, ...]:
    """What the graphs of a node take: nodes, and plain numbers."""
    given: Sequence[Any] = node.args[3:] if node.target is COND else node.args[2:]
    return tuple(operand for part in given for operand in part)


class PlainControlFlow(Interpreter):
    """Runs a graph, conditionals as Python's `if` and loops as its `while`: autograd sees the
    operators that run. (Torch's own operator computes the branch again for the backward, random
    numbers too.)"""

    def call_function(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if target is COND:
            predicate, true, false, operands = args
            return PlainControlFlow(true if predicate else false).run(*operands)
        if target is WHILE:
            condition, body, given, additional = args
            carried = given
            while _only(PlainControlFlow(condition).run(*carried, *additional)):
                carried = PlainControlFlow(body).run(*carried, *additional)
            return tuple(v.clone() for v in carried) if carried is given else carried
        return super().call_function(target, args, kwargs)


def _only(result: Any) -> Any:
    """What a condition gives: a tensor, alone or in a tuple."""
    return result[0] if isinstance(result, (tuple, list)) else result


def run_plainly(gm: GraphModule) -> Callable[..., Any]:
    """What runs a captured graph operator by operator."""
    if any(graph_nodes(node) for node in gm.graph.nodes):
        return PlainControlFlow(gm).run
    # (Captured already: PyTorch's own mark keeps it from being captured once more.)
    getattr(gm.forward, "__func__", gm.forward).__dict__["_torchdynamo_disable"] = True
    return gm.forward
