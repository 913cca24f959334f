"""An FX graph whose nodes are cheap to make, and what passes tell one another of nodes.

`Graph.create_node` looks through each argument as a pytree and parses each name; on graphs that
only this package fills that is most of the cost of a trace. The nodes are ordinary FX nodes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from dovetail_prims.node_facts import Fact
from torch.fx import Graph, Node
from torch.fx.node import map_arg

# --- facts of nodes (see `dovetail_prims.node_facts`) ---

# The tangents, as a bit set, of which a call must have one for the node's value, a gradient, to be
# there at all.
GIVEN_WITH: Fact[int] = Fact("given_with")
# The backward computes it in eager, be it that the forward does, too.
ASKED_BY_BACKWARD: Fact[bool] = Fact("asked_by_backward")
# It draws random numbers, or checks, for what nobody reads.
UNUSED: Fact[bool] = Fact("unused")
# A placeholder: the whole storage of an input, not the input.
WHOLE_STORAGE: Fact[bool] = Fact("whole_storage")
# The tangent whose output's whole gradient the value is: of that tangent, and by way of others.
WHOLE_GRADIENT: Fact[int] = Fact("whole_gradient")
# What constant the value is made of; "" for none (see `constants`).
CONSTANT_KIND: Fact[str] = Fact("constant_kind")


class FastGraph(Graph):
    """A `Graph` with a quick `create_node`. Arguments must be FX arguments already: nodes, plain
    values, and tuples, lists and dicts of them."""

    def __init__(self) -> None:
        super().__init__()
        self._bases: dict[Any, str] = {}  # a target's name, as an identifier
        self._counts: dict[str, int] = {}

    def create_node(
        self,
        op: str,
        target: Any,
        args: tuple[Any, ...] | None = None,
        kwargs: dict[str, Any] | None = None,
        name: str | None = None,
        type_expr: Any | None = None,
    ) -> Node:
        """A new node at the insertion point."""
        namespace = self._graph_namespace
        used = namespace._used_names
        if name is None or name in used:
            name = self._unused_name(target if name is None else name, used)
        node = Node(self, name, op, target, args or (), kwargs or {}, type_expr)
        namespace._used_names.add(name)
        namespace.associate_name_with_obj(name, node)
        self._insert(node)
        self._find_nodes_lookup_table.insert(node)
        self._len += 1
        return node

    def _unused_name(self, target: Any, used: set[str]) -> str:
        base = self._bases.get(target)
        if base is None:
            # FX's own rules, once for each target.
            base = self._graph_namespace.create_name(self._target_to_str(target), None)
            self._bases[target] = base
            return base
        while True:
            count = self._counts.get(base, 0) + 1
            self._counts[base] = count
            name = f"{base}_{count}"
            if name not in used:
                return name


def copy_node(graph: Graph, node: Node, env: Mapping[Node, Node]) -> Node:
    """A copy of `node` in `graph`, with its arguments looked up in `env`."""
    args = map_arg(node.args, env.__getitem__)
    kwargs = map_arg(node.kwargs, env.__getitem__) if node.kwargs else {}
    copied = graph.create_node(node.op, node.target, args, kwargs, node.name)
    copied.meta.update(node.meta)
    return copied


def hold(root: torch.nn.Module, name: str, value: Any) -> None:
    """Let a graph's module hold what the graph reads: a tensor, or a graph."""
    if isinstance(value, torch.nn.Module):
        root.add_module(name, value)
    else:
        root.register_buffer(name, value)
