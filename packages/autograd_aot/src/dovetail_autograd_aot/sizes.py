"""Graph nodes for symbolic sizes."""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch.fx import Graph, Node

aten = torch.ops.aten


class SizeNodes:
    """Finds or makes the node that computes a symbolic size from the graph's inputs."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self._nodes: dict[str, Node] = {}

    def bind(self, size: Any, node: Node) -> None:
        """`node` computes `size`."""
        self._nodes.setdefault(str(size), node)

    def bind_sizes(self, placeholder: Node, val: Any) -> None:
        """Remember where each symbolic size of a tensor input can be read."""
        for dim, size in enumerate(val._sizes):
            if type(size) is not int and str(size) not in self._nodes:
                node = self.graph.call_function(aten.sym_size.int, (placeholder, dim))
                node.meta["val"] = size
                self._nodes[str(size)] = node

    def end_of_inputs(self) -> None:
        """All inputs are bound."""

    def node(self, size: Any) -> Any:
        """The node for `size`."""
        known = self._nodes.get(str(size))
        if known is not None:
            return known
        raise NotImplementedError(f"no node computes the symbolic size {size}")


__all__ = ["SizeNodes", "operator"]
