"""`torch.ops.higher_order.cond(predicate, true_graph, false_graph, operands)` as a node of a graph.

The graphs are attributes of the module, read by `get_attr` nodes whose `meta["val"]` they are. Both
take the operands (tensors and whole numbers) and give a tuple of tensors, which is what the node
gives: shapes, strides, dtypes and devices of both are the same. `predicate` is a tensor of one
element.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.fx import GraphModule, Interpreter, Node

COND = torch.ops.higher_order.cond


def branches_of(node: Node) -> tuple[GraphModule, GraphModule] | None:
    """The graphs that a node chooses from; None for any other node."""
    if node.op != "call_function" or node.target is not COND:
        return None
    true, false = (graph.meta["val"] for graph in _nodes(node, 1, 3))
    return true, false


def operands_of(node: Node) -> tuple[Any, ...]:
    """The operands of a conditional: nodes, and plain numbers."""
    given: Any = node.args[3]
    return tuple(given)


class PlainConditionals(Interpreter):
    """Runs a graph, conditionals as Python's `if`: autograd sees the operators of the branch that
    runs. (Torch's own operator computes the branch again for the backward, random numbers too.)"""

    def call_function(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if target is not COND:
            return super().call_function(target, args, kwargs)
        predicate, true, false, operands = args
        return PlainConditionals(true if predicate else false).run(*operands)


def run_plainly(gm: GraphModule) -> Callable[..., Any]:
    """What runs a captured graph operator by operator."""
    if any(node.target is COND for node in gm.graph.nodes):
        return PlainConditionals(gm).run
    return gm.forward


def _nodes(node: Node, start: int, stop: int) -> list[Node]:
    return [arg for arg in node.args[start:stop] if isinstance(arg, Node)]


__all__ = ["COND", "PlainConditionals", "branches_of", "operands_of", "run_plainly"]
