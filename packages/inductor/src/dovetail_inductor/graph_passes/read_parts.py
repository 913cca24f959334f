"""A part of a tensor that was just written is read where it came from: a pass over a functional
graph.

`keys[i] = new` is, without writes, a whole tensor with another part (`select_scatter`), and a
`keys[i]` after it a part of that. So a cache of all layers in one tensor would be copied whole in
every layer, as each layer reads its own part. Read from `new`, or from the tensor before where it
is another part, nobody needs the whole but the one at the end.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node

from dovetail_inductor.fx_nodes import is_given_out, layout_of

aten = torch.ops.aten

# What these read depends on the memory around a part.
_STRIDED = (aten.as_strided.default, aten.as_strided_scatter.default)


def read_parts(gm: GraphModule) -> GraphModule:
    """The graph with such reads replaced; `gm` itself if it has none."""
    if not any(_source(node) is not None for node in gm.graph.nodes):
        return gm
    graph = Graph()
    graph.output(graph.graph_copy(gm.graph, {}))
    for node in list(graph.nodes):
        source = _source(node)
        if source is None:
            continue
        if source.is_part:
            node.replace_all_uses_with(source.node)
            graph.erase_node(node)
        else:
            node.args = (source.node, *node.args[1:])
    return GraphModule(gm, graph)


@dataclass(frozen=True)
class _Source:
    """What a part is read from: another tensor that has it, or (`is_part`) the part itself."""

    node: Node
    is_part: bool


def _source(node: Node) -> _Source | None:
    """For a part of a tensor with replaced parts: what was put in there, or else what is the same
    there from further back. None if there is nothing to gain."""
    if node.target is not aten.select.int or any(u.target in _STRIDED for u in node.users):
        return None
    if is_given_out(node):
        return None
    begin = base = node.args[0]
    place = _place(node, node.args[1:])
    while isinstance(base, Node) and base.target is aten.select_scatter.default:
        before, part = base.args[:2]
        other = _place(base, base.args[2:])
        if place is None or other is None or place[0] != other[0]:
            break
        if place == other:
            return _Source(part, True) if isinstance(part, Node) and _alike(part, node) else None
        if not _alike(before, base):
            break
        base = before
    return _Source(base, False) if isinstance(base, Node) and base is not begin else None


def _place(node: Node, arguments: Any) -> tuple[int, int] | None:
    """Dimension and index, counted from the front, if they are known."""
    sizes, _ = layout_of(node.args[0])
    dim, index = arguments
    if not isinstance(dim, int) or type(index) is not int:
        return None
    dim %= len(sizes)
    size = sizes[dim]
    if index >= 0:
        return dim, index
    return (dim, index + size) if isinstance(size, int) else None


def _alike(a: Any, b: Any) -> bool:
    """Whether two tensors are of one type and laid out alike, in known sizes."""
    x, y = layout_of(a), layout_of(b)
    known = all(type(n) is int for sizes in (*x, *y) for n in sizes)
    return known and a.meta["val"].dtype is b.meta["val"].dtype and x == y
