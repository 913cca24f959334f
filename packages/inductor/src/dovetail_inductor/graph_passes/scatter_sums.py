"""What is scattered into zeros and then added to a half type is scattered into the sum itself: a
pass over a functional graph.

The gradient of what is read at computed places is such a scatter, and of what is read so several
times (at every step of a recurrence, say) a sum of several, each of the whole tensor's size. Half
types are scattered in float32, so that one tensor of that takes them all: each begins as what the
one before left, and the sum is rounded once, at its end. (In one type the order of additions would
be another: many small numbers would be added to a large one, one after another.)
"""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node
from torch.utils import _pytree as pytree

from dovetail_inductor.fx_nodes import call_at, is_view, layout_of

aten = torch.ops.aten


def scatter_sums(gm: GraphModule) -> GraphModule:
    """The graph where scatters go on in sums; `gm` itself if it has none."""
    if not any(_chain(p, n) for n in gm.graph.nodes if _is_sum(n) for p in n.args):
        return gm
    graph = Graph()
    graph.output(graph.graph_copy(gm.graph, {}))
    places = {node: i for i, node in enumerate(graph.nodes)}
    for node in list(graph.nodes):
        if _is_sum(node):
            _scatter_into_sum(graph, node, places)
    return GraphModule(gm, graph)


def _scatter_into_sum(graph: Graph, total: Node, places: dict[Node, int]) -> None:
    """Let the scatter that `total` adds, the later one of two, begin as the other addend."""
    first: Any
    second: Any
    first, second = total.args[:2]
    pairs = [(first, second), (second, first)]
    found = [(base, part, chain) for base, part in pairs if (chain := _chain(part, total))]
    for base, part, chain in sorted(found, key=lambda f: -places[f[2][0]]):
        rounded = _unrounded(base)
        begin = base if rounded is None else rounded
        if not isinstance(begin, Node) or places[begin] > places[chain[0]]:
            continue
        if rounded is None:
            with graph.inserting_before(chain[0]):
                dtype = _dtype(chain[0])
                begin = call_at(total, graph, aten._to_copy.default, base, dtype=dtype)
            places[begin] = places[chain[0]]
        chain[0].args = (begin, *chain[0].args[1:])
        total.replace_all_uses_with(part)
        graph.erase_node(total)
        if rounded is not None:
            graph.erase_node(base)
        return


def _is_sum(node: Node) -> bool:
    return node.target is aten.add.Tensor and len(node.args) == 2 and not node.kwargs


def _chain(part: Any, total: Node) -> list[Node]:
    """The scatters, first to last, that `part` is the rounded result of, which `total` alone reads;
    the first one goes into zeros. None at all if `part` is anything else."""
    node = _unrounded(part)
    if node is None or total.args[0] is total.args[1]:
        return []
    if list(part.users) != [total] or not (
        layout_of(part) == layout_of(total) and _dtype(part) is _dtype(total)
    ):
        return []
    chain: list[Node] = []
    while _accumulates(node):
        chain.insert(0, node)
        base: Any = node.args[0]
        if _is_zero(base):
            return chain
        if len(base.users) != 1 or pytree.tree_leaves((node.args, node.kwargs)).count(base) != 1:
            return []
        node = base
    return []


def _unrounded(node: Any) -> Node | None:
    """What `node` is the half-type copy of, if that was scattered and nobody else reads either."""
    if not isinstance(node, Node) or node.target is not aten._to_copy.default:
        return None
    wide = node.args[0]
    if not isinstance(wide, Node) or not _accumulates(wide) or len(wide.users) != 1:
        return None
    narrow = _dtype(node).is_floating_point and _dtype(node).itemsize == 2
    same = layout_of(wide) == layout_of(node)
    return wide if narrow and len(node.users) == 1 and same and _dtype(wide).itemsize == 4 else None


def _accumulates(node: Node) -> bool:
    if node.target is aten.index_put.default:
        return bool(node.args[3] if len(node.args) > 3 else node.kwargs.get("accumulate", False))
    return node.target is aten.scatter_add.default


def _is_zero(node: Node) -> bool:
    if is_view(node):
        return _is_zero(node.all_input_nodes[0])
    if node.target in (aten.zeros.default, aten.zeros_like.default):
        return True
    number = node.args[1] if node.target is aten.full.default else None
    return isinstance(number, int | float) and number == 0


def _dtype(node: Node) -> torch.dtype:
    return node.meta["val"].dtype  # type: ignore[no-any-return]
