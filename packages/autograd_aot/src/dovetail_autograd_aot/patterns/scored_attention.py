"""The pass `recognise_scored_attention`: attention with a function of its scores, as one operator.

What stands between the product of queries and keys and the softmax may be any function of one score
and its place: a soft cap, a bias by the distance, masks of documents or windows, and what
`flex_attention` maps over the scores. Where that is no `scaled_dot_product_attention`, the whole
becomes a call of `dovetail_prims.scored_attention`, for which there are kernels that do not keep
scores in memory. The function is traced by itself, with its derivative.

What it reads (a bias, the documents of tokens) gets no gradient there. So the call looks at its
operands when it is traced: where one takes a gradient it computes what the program says.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Collection
from typing import Any

import torch
from dovetail_prims.scored_attention import scored_attention
from torch import Tensor
from torch.fx import Graph, GraphModule, Interpreter, Node

from dovetail_autograd_aot.patterns.attention_pattern import HALVES
from dovetail_autograd_aot.patterns.score_functions import trace_score
from dovetail_autograd_aot.patterns.score_patterns import Found, is_pure, lies_anyhow, match
from dovetail_autograd_aot.trace.attention_kernels import what_is_hidden
from dovetail_autograd_aot.trace.constants import kind_of_constant

# Of wider heads the backward takes longer than with the scores in memory.
WIDE = 128


def recognise_scored_attention(
    gm: GraphModule, device_type: str = "cuda", dtypes: Collection[torch.dtype] = HALVES
) -> GraphModule:
    """The graph with attention with a function of scores in calls of one operator; itself where
    there is none of tensors of these types on such a device. Needs `meta["val"]` (fakes of
    `dovetail_prims`)."""
    order = {node: position for position, node in enumerate(gm.graph.nodes)}
    found: list[Found] = []
    for node in gm.graph.nodes:
        one = match(node, order, device_type, dtypes)
        if one is not None and trace_score(gm, one, order):
            found.append(one)
    if not found:
        return gm
    copies: dict[Node, Node] = {}
    graph = Graph()
    graph.output(graph.graph_copy(gm.graph, copies))
    for one in found:
        _replace(gm, graph, copies, one)
    graph.eliminate_dead_code(lambda node: node.op == "placeholder" or not is_pure(node))
    made = GraphModule(gm, graph)
    made.meta = dict(gm.meta)
    return made


def _replace(gm: GraphModule, graph: Graph, copies: dict[Node, Node], found: Found) -> None:
    """Put the call in the place of the last product."""
    last = copies[found.last]
    captured = [copies[n] for n in found.captured]
    with graph.inserting_before(last):
        keys = copies[found.key]
        if not found.transposed:
            keys = graph.call_method("transpose", (keys, -2, -1))
        operands = (copies[found.query], keys, copies[found.value], *captured)
        call = graph.call_function(_attention(gm, found), operands)
        call.meta = {k: v for k, v in last.meta.items() if k != "val"}
        call.meta["val"] = (last.meta["val"], None)
        rows = graph.call_function(operator.getitem, (call, 0))
        rows.meta = dict(last.meta)
        if found.sums is not None:
            sums = graph.call_function(operator.getitem, (call, 1))
            old = copies[found.sums]
            sums.meta = dict(old.meta)
            _read_instead(graph, old, sums, last)
    last.replace_all_uses_with(rows)
    graph.erase_node(last)


def _read_instead(graph: Graph, old: Node, new: Node, last: Node) -> None:
    """Whoever comes after `last` reads `new` in place of `old`."""
    after = False
    for node in graph.nodes:
        after |= node is last
        if after and old in node.all_input_nodes:
            node.replace_input_with(old, new)


def _plain(gm: GraphModule, found: Found) -> GraphModule:
    """What the program says, from queries, keys, values and what is captured."""
    graph = Graph()
    given = (found.query, found.key, found.value)
    inputs = [graph.placeholder(name) for name in ("query", "key", "value")]
    copies = dict(zip(given, inputs, strict=True))
    if not found.transposed:
        copies[found.key] = graph.call_method("transpose", (inputs[1], -2, -1))
    for number, node in enumerate(found.captured):
        copies.setdefault(node, graph.placeholder(f"captured{number}"))
    needed: set[Node] = set()
    roots = [found.last] if found.sums is None else [found.last, found.sums]
    stack = list(roots)
    while stack:
        node = stack.pop()
        if node not in needed and node not in copies:
            needed.add(node)
            stack.extend(node.all_input_nodes)
    for node in gm.graph.nodes:
        if node in needed:
            copies[node] = graph.node_copy(node, copies.__getitem__)
    sums = None if found.sums is None else copies[found.sums]
    graph.output((copies[found.last], sums))
    return GraphModule(gm, graph)


def _attention(gm: GraphModule, found: Found) -> Callable[..., Any]:
    """What the call calls: the operator, or what the program says."""
    plain, mask = _plain(gm, found), _constant_mask(gm, found)
    score, derived, empty = found.score, found.derived, found.empty
    in_rows = found.product is not None and not lies_anyhow(found.last)

    def attention_with_scores(q: Tensor, k: Tensor, v: Tensor, *captured: Tensor) -> Any:
        """Attention with a function of its scores, and the logarithms of its sums."""
        own = torch.is_grad_enabled() and any(t.requires_grad for t in captured)
        trains = torch.is_grad_enabled() and any(t.requires_grad for t in (q, k, v))
        own |= trains and not derived
        # (What `flex_attention` is without the operator takes longer.)
        own |= trains and math.isnan(empty) and max(q.shape[-1], v.shape[-1]) > WIDE
        if mask is not None:  # the library may have a kernel for it
            own |= kind_of_constant(_run(mask), what_is_hidden) != ""
        if own:
            return _run(plain, q, k, v, *captured)
        rows, sums = scored_attention(q, k, v, captured, score, empty)
        # (They lie as queries do; what a product gives, row by row.)
        return rows.contiguous() if in_rows else rows, sums

    return attention_with_scores


def _run(gm: GraphModule, *inputs: Tensor) -> Any:
    return Interpreter(gm).run(*inputs)


def _constant_mask(gm: GraphModule, found: Found) -> GraphModule | None:
    """What computes the mask, if it is the same for every call."""
    if found.mask is None or found.captured:
        return None
    graph = Graph()
    copies: dict[Node, Node] = {}
    for node in found.sunk:
        copies[node] = graph.node_copy(node, copies.__getitem__)
    graph.output(copies[found.mask])
    return GraphModule(gm, graph)


__all__ = ["recognise_scored_attention"]
