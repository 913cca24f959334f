"""A recorded backward pass: its graph, and what is to be done with the graph's results."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum

import torch
from torch import Tensor
from torch.fx import Graph, GraphModule, Node

from dovetail_autograd_aot.compiled_backward.opaque import OpaqueCall


class LeafAction(Enum):
    """What becomes of a leaf's gradient after the graph ran."""

    SET = "set"  # the graph gives the new `.grad`
    ADD = "add"  # the graph gives what to add to `.grad`
    IN_GRAPH = "in graph"  # the graph has added to `.grad`
    NONE = "none"


@dataclass(frozen=True)
class LeafStep:
    """One leaf, in the engine's order: its gradient, the graph output it comes from, and the slots
    of the functions that are called then (with the output that hooks of the node are given)."""

    leaf: int
    action: LeafAction
    output: int = -1
    slots: tuple[int, ...] = ()
    given: int = -1


@dataclass(frozen=True)
class Program:
    """`graph` takes the description's tensors and gives what `returned` and `leaves` point to.

    `returned` are the gradients that the engine returns, as graph outputs or None; `passed` which
    gradients each compiled function of the forward did not get, and for which inputs it was asked.
    """

    graph: Graph
    returned: tuple[int | None, ...] | None
    leaves: tuple[LeafStep, ...]
    opaque: dict[int, OpaqueCall]
    passed: tuple[tuple[int, int], ...]

    def module(self) -> GraphModule:
        """The graph, callable."""
        return GraphModule(torch.nn.Module(), self.graph, "Backward")

    def replayed(self) -> Program:
        """What is kept to replay it: all but the graph."""
        return replace(self, graph=Graph())


def accumulate(variable: Tensor, gradient: Tensor) -> None:
    """What autograd does with a leaf's gradient."""
    if variable.grad is None:
        variable.grad = gradient
    else:
        variable.grad += gradient


def output_of(node: Node | None, outputs: list[Node]) -> int:
    """The position of a graph output, added if it is new."""
    assert node is not None
    if node not in outputs:
        outputs.append(node)
    return outputs.index(node)


def drop_unused(graph: Graph, kept: Sequence[Node]) -> None:
    """Take out operators that only compute, for nothing."""
    needed = set(kept)
    for node in reversed(graph.nodes):
        if node.op == "call_function" and not node.users and node not in needed:
            graph.erase_node(node)
