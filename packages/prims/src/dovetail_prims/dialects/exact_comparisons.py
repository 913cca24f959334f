"""Comparisons of a value with what a reduction took from it: `x == x.amax()`.

They hold for the very bits that the reduction saw, not for a value computed a second time with
other roundings. So such a value is computed once: whoever computes values again must ask here.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch.fx import Node

from dovetail_prims.dialects.opsets import POINTWISE_BINARY, POINTWISE_OTHER, POINTWISE_UNARY
from dovetail_prims.ops import catalog
from dovetail_prims.ops.card import Kind

aten = torch.ops.aten

COMPARISONS = frozenset(
    {aten.eq.Tensor, aten.ne.Tensor, aten.ge.Tensor, aten.gt.Tensor, aten.le.Tensor, aten.lt.Tensor}
)
_VIEWS = frozenset(catalog.of_kind(Kind.VIEW))
_PICKING = frozenset(("gather.default", "index.Tensor", "index_select.default"))
_POINTWISE = frozenset(POINTWISE_UNARY + POINTWISE_BINARY + POINTWISE_OTHER)
_NEAR = 12  # nodes between a comparison and the reduction that it belongs to


def exact_comparisons(nodes: Iterable[Node]) -> Iterator[tuple[Node, Node]]:
    """Each such comparison, and the value that must be computed once only."""
    for node in nodes:
        if node.target not in COMPARISONS or len(node.args) != 2:
            continue
        left, right = node.args
        if not (_is_float(left) and _is_float(right)):
            continue
        for value, other in ((left, right), (right, left)):
            found = _reduced(other, _made_from(value))  # type: ignore[arg-type]
            if found is not None:
                yield node, found


# Library calls that compare inside: the arguments' places, and where the norm is that matters.
_COMPARING_CALLS = {
    aten._cdist_backward.default: ((1, 2), 3),
    aten._pdist_backward.default: ((1,), 2),
    aten._segment_reduce_backward.default: ((2,), None),
}


def compared_in_calls(nodes: Iterable[Node]) -> set[Node]:
    """Values that library calls compare with what other library calls took from them."""
    found: set[Node] = set()
    for node in nodes:
        places, norm = _COMPARING_CALLS.get(node.target, ((), None))  # type: ignore[call-overload]
        if norm is None or node.args[norm] == float("inf"):
            found |= {base_of_views(n) for i in places if isinstance(n := node.args[i], Node)}
    return found


def _is_float(value: Any) -> bool:
    if not isinstance(value, Node):
        return False
    val = value.meta.get("val")
    return isinstance(val, Tensor) and val.dtype.is_floating_point


def _name(node: Node) -> str:
    return node.target.__name__ if isinstance(node.target, OpOverload) else ""


def base_of_views(node: Node) -> Node:
    """The node that views were taken of."""
    while _name(node) in _VIEWS:
        node = node.all_input_nodes[0]
    return node


def _made_from(node: Node) -> dict[Node, None]:
    """A value and what it is computed from element by element, in that order."""
    found: dict[Node, None] = {}
    queue = [node]
    for node in queue:
        node = base_of_views(node)
        if node not in found and len(found) < _NEAR:
            found[node] = None
            if _name(node) in _POINTWISE:
                queue += node.all_input_nodes
    return found


def _reduced(node: Node, values: Container[Node]) -> Node | None:
    """Which of `values` a reduction was taken of that `node` is computed from."""
    stack, seen = [node], 0
    while stack and seen < _NEAR:
        node = base_of_views(stack.pop())
        seen += 1
        if node.op != "call_function":
            continue
        if _name(node) in _PICKING:  # of what a scatter made, each place reads its own
            stack.append(node.all_input_nodes[0])
        if _name(node) in _POINTWISE or not isinstance(node.target, OpOverload):
            stack += node.all_input_nodes  # (a getitem too)
            continue
        for read in node.all_input_nodes:
            for found in _made_from(read):
                if found in values and found.op == "call_function":
                    return found
    return None
