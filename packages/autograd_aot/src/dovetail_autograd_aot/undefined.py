"""The backward for a call in which some tangents are undefined.

An output that the loss does not use has no gradient: eager computes nothing for it. Zeros in its
place would cost their memory, and the work of everything that is linear in them. So the backward
is specialised: what is zero because a tangent is missing is not computed.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node
from torch.fx._lazy_graph_module import _LazyGraphModule
from torch.fx.node import map_arg

from dovetail_autograd_aot.fast_graph import FastGraph
from dovetail_autograd_aot.outputs import is_view_node

aten = torch.ops.aten

# Zero if their first argument is zero; so is what takes a gradient first, by its schema.
_LINEAR_IN_FIRST = frozenset({aten.neg, aten.clone, aten._to_copy, aten.sum, aten.mean, aten.div})
_GRADIENT_NAMES = frozenset({"grad", "grad_out", "grad_output", "grad_out_"})
# Zero if any of their tensors is zero.
_PRODUCTS = frozenset({aten.mul, aten.mm, aten.bmm})


def backward_without(
    gm: GraphModule, missing: frozenset[int], unreached: frozenset[int]
) -> tuple[GraphModule, list[bool]]:
    """`gm`, a backward graph, with the placeholders number `missing` taken for zero and the
    gradients number `unreached` left out (None).

    Where an operator needs the zeros as a tensor, the placeholder stays. The second result tells
    for each placeholder whether it is left.
    """
    nodes: list[Node] = list(gm.graph.nodes)
    placeholders = [n for n in nodes if n.op == "placeholder"]
    zero = {placeholders[i] for i in missing}
    stands_for: dict[Node, Node] = {}  # the sum with a zero is its other term

    for node in nodes:
        if node.op != "call_function":
            continue
        inputs = [stands_for.get(n, n) for n in node.all_input_nodes]
        if not any(n in zero for n in inputs):
            continue
        if _is_zero(node, zero, stands_for):
            zero.add(node)
            continue
        term = _other_term(node, zero, stands_for)
        if term is not None:
            stands_for[node] = term
    found: tuple[Any, ...] = nodes[-1].args[0]  # type: ignore[assignment]
    gradients = [
        None if i in unreached or g is None else stands_for.get(g, g) for i, g in enumerate(found)
    ]
    dispensable = {placeholders[i] for i in missing}
    return _rebuilt(gm, nodes, gradients, stands_for, dispensable)


def _is_zero(node: Node, zero: set[Node], stands_for: dict[Node, Node]) -> bool:
    packet = getattr(node.target, "overloadpacket", None)
    tensors = [stands_for.get(a, a) for a in node.args if isinstance(a, Node)]
    first = node.args[0] if node.args else None
    first_is_zero = isinstance(first, Node) and stands_for.get(first, first) in zero
    if packet is None:  # an item of several results
        return first_is_zero
    if is_view_node(node) or packet in _LINEAR_IN_FIRST:
        return first_is_zero
    if node.target._schema.arguments[0].name in _GRADIENT_NAMES:  # type: ignore[union-attr]
        return first_is_zero
    if packet in _PRODUCTS:
        return any(t in zero for t in tensors)
    if packet in (aten.add, aten.sub):
        return len(tensors) == 2 and all(t in zero for t in tensors)
    return False


def _other_term(node: Node, zero: set[Node], stands_for: dict[Node, Node]) -> Node | None:
    """What a sum with a zero is equal to, if it also lies in memory as the sum would."""
    packet = getattr(node.target, "overloadpacket", None)
    if packet not in (aten.add, aten.sub) or len(node.args) < 2:
        return None
    left, right = node.args[0], node.args[1]
    if not isinstance(left, Node) or not isinstance(right, Node):
        return None
    left, right = stands_for.get(left, left), stands_for.get(right, right)
    if right in zero:
        term = left
    elif packet is aten.add and not node.kwargs:
        term = right
    else:
        return None
    return term if _same_layout(term, node) else None


def _same_layout(a: Node, b: Node) -> bool:
    x, y = a.meta["val"], b.meta["val"]
    keys = [(v._sizes, v._strides) for v in (x, y)]
    static = all(type(n) is int for pair in keys for part in pair for n in part)
    return static and keys[0] == keys[1] and x._dtype == y._dtype and x._device == y._device


def _rebuilt(
    gm: GraphModule,
    nodes: list[Node],
    gradients: list[Node | None],
    stands_for: dict[Node, Node],
    dispensable: set[Node],
) -> tuple[GraphModule, list[bool]]:
    """The graph of what `gradients` need; of the placeholders, `dispensable` ones only if used."""
    needed: set[Node] = set()
    stack = [g for g in gradients if g is not None]
    while stack:
        node = stack.pop()
        if node not in needed:
            needed.add(node)
            stack.extend(stands_for.get(n, n) for n in node.all_input_nodes)
    graph: Graph = FastGraph()
    env: dict[Node, Node] = {}
    kept: list[bool] = []
    for node in nodes[:-1]:
        if node.op == "placeholder":
            kept.append(node in needed or node not in dispensable)
            if not kept[-1]:
                continue
        elif node not in needed:
            continue
        args = map_arg(node.args, lambda n: env[stands_for.get(n, n)])
        kwargs = map_arg(node.kwargs, lambda n: env[stands_for.get(n, n)])
        env[node] = graph.create_node(node.op, node.target, args, kwargs, node.name)
        env[node].meta.update(node.meta)
    results = tuple(None if g is None else env[g] for g in gradients)
    output = graph.output(results)
    output.meta["val"] = tuple(None if r is None else r.meta["val"] for r in results)
    root = torch.nn.Module()
    for name in {str(n.target) for n in graph.nodes if n.op == "get_attr"}:
        root.register_buffer(name, getattr(gm, name))
    return _LazyGraphModule(root, graph, "Backward"), kept


__all__ = ["backward_without"]
