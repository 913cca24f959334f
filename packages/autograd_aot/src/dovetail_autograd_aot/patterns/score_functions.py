"""The function of scores of recognised attention, traced by itself with its derivative, as text."""

from __future__ import annotations

import logging
import math
from math import prod

import torch
from dovetail_prims.decompositions import core_aten_table
from dovetail_prims.fake_tensor import FakeTensor, make
from dovetail_prims.graph_text import NoText, text_of
from torch.fx import Graph, GraphModule, Node

from dovetail_autograd_aot.joint.joint_trace import trace_joint
from dovetail_autograd_aot.patterns.attention_pattern import CASTS, fake_of, writes
from dovetail_autograd_aot.patterns.score_patterns import Found

_log = logging.getLogger(__name__)

# Operators that compute each element by itself, though they are not marked so.
_ELEMENTS = {
    f"aten::{name}"
    for name in (
        "_to_copy", "alias", "arange", "clone", "expand", "fill", "full", "full_like",
        "index", "iota", "ones", "ones_like", "permute", "scalar_tensor", "select", "slice",
        "squeeze", "transpose", "unsqueeze", "view", "_unsafe_view", "zeros", "zeros_like",
    )
}  # fmt: skip


def trace_score(gm: GraphModule, found: Found, order: dict[Node, int]) -> bool:
    """Trace the function and its derivative; False if it is not one of a score and its place, as
    far as can be told without its kernel."""
    for sunk in (found.sunk, []):
        if not sunk and found.sunk:
            if found.mask is not None:
                return False  # reading it takes as long as the library's kernels do
            reads = {n for node in found.path for n in node.all_input_nodes}
            reads |= set() if found.mask is None else {found.mask}
            apart = reads - {*found.path, *([] if found.product is None else [found.product])}
            found.captured = sorted(apart, key=order.__getitem__)
        found.sunk = sunk
        if not all(_is_readable(fake_of(n), found) for n in found.captured):
            continue
        module = _score_module(gm, found)
        strides = [prod(found.shape[d + 1 :]) for d in range(4)]
        scores = make(found.shape, tuple(strides), torch.float32, found.device)
        examples = [scores.requires_grad_(), *(_like(node) for node in found.captured)]
        try:
            with torch.enable_grad():
                joint = trace_joint(module, examples, decompositions=core_aten_table())
            found.score, found.derived, read = _score_text(joint.gm.graph, len(examples))
        except Exception as error:  # whatever no trace holds: the program stays as it is
            _log.debug("no function of scores: %s", error)
            continue
        if found.score:
            found.captured = [found.captured[number] for number in read]
            return True
    return False


def _is_readable(fake: FakeTensor | None, found: Found) -> bool:
    """Whether a kernel can read a tensor."""
    if fake is None or fake._device != found.device or fake._dtype.is_complex:
        return False
    return all(type(n) is int for n in (*fake._sizes, *fake._strides))


def _like(node: Node) -> FakeTensor:
    fake = fake_of(node)
    assert fake is not None
    return make(fake._sizes, fake._strides, fake._dtype, fake._device)


def _score_module(gm: GraphModule, found: Found) -> GraphModule:
    """The function of scores in float32, and of what is captured: in wide steps throughout."""
    graph = Graph()
    scores = graph.placeholder("scores")
    read = [graph.placeholder(f"captured{number}") for number in range(len(found.captured))]
    given = scores
    if any(map(writes, found.path)):  # what takes a gradient may not be written to
        given = graph.call_function(torch.clone, (scores,))
    copies = dict(zip(found.captured, read, strict=True))
    if found.product is not None:
        copies[found.product] = given
    computed = {*found.sunk, *found.path}
    for node in gm.graph.nodes:
        if node not in computed:
            continue
        narrowed = node in found.path and node.op == "call_method" and node.target in CASTS
        if narrowed and node.meta["val"]._dtype.is_floating_point:
            copies[node] = copies[node.all_input_nodes[0]]
        else:
            copies[node] = graph.node_copy(node, copies.__getitem__)
    if found.mask is not None:
        scores = graph.call_function(torch.mul, (scores, found.scale))
        scores = graph.call_function(torch.where, (copies[found.mask], scores, -math.inf))
    elif found.scores is not None:
        scores = copies[found.scores]
    graph.output((scores,))
    return GraphModule(gm, graph)


def _score_text(graph: Graph, inputs: int) -> tuple[str, bool, list[int]]:
    """The text of a joint graph, whose inputs are these and the gradient of what it gives: the
    gradient of the first is what it is to give besides. And whether it has one; else what it makes
    of scores stands for that. And which inputs after the first it reads: it takes no others. (""
    where it is no function of scores.)"""
    placeholders = [n for n in graph.nodes if n.op == "placeholder"]
    (output,) = (n for n in graph.nodes if n.op == "output")
    results = list(output.args[0])
    derived = len(placeholders) == inputs + 1 and isinstance(results[1], Node)
    if not isinstance(results[0], Node) or any(r is not None for r in results[2:]):
        return "", False, []
    if not derived and len(placeholders) != inputs:
        return "", False, []
    made = results[0]
    if made.meta["val"]._dtype is not torch.float32:
        return "", False, []
    if tuple(made.meta["val"]._sizes) != tuple(placeholders[0].meta["val"]._sizes):
        return "", False, []
    copy = Graph()
    copies: dict[Node, Node] = {}
    for node in placeholders:
        copies[node] = copy.node_copy(node)
    if not derived:
        copy.placeholder("slopes")
    copy.graph_copy(graph, copies)
    copy.output((copies[made], copies[results[1] if derived else made]))
    copy.eliminate_dead_code(lambda node: node.op in ("placeholder", "output"))
    if not all(node.op != "call_function" or _is_pointwise(node) for node in copy.nodes):
        return "", False, []
    read = []
    for number, node in enumerate(placeholders[1:inputs]):
        if copies[node].users:
            read.append(number)
        else:
            copy.erase_node(copies[node])
    try:
        return text_of(copy), derived, read
    except NoText:
        return "", False, []


def _is_pointwise(node: Node) -> bool:
    """True for an operator whose kernel computes each element by itself."""
    if not isinstance(node.target, torch._ops.OpOverload):
        return False
    tags = node.target.tags
    if torch.Tag.nondeterministic_seeded in tags:
        return False
    return torch.Tag.pointwise in tags or node.target._schema.name in _ELEMENTS


__all__ = ["trace_score"]
