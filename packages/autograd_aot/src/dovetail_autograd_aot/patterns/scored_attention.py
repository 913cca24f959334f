"""The pass `recognise_scored_attention`: attention with a function of its scores, as one operator.

What stands between the product of queries and keys and the softmax may be any function of one score
and its place: a soft cap, a bias by the distance, masks of documents or windows, and what
`flex_attention` maps over the scores. Where that is no `scaled_dot_product_attention`, the whole
becomes a call of `dovetail_prims.graphs.scored_attention`, for which there are kernels that do not
keep scores in memory. The function is traced by itself, with its derivative.

What it reads (a bias, the documents of tokens) gets no gradient there. So the call looks at its
operands when it is traced: where one takes a gradient it computes what the program says.
"""

from __future__ import annotations

import logging
import math
import operator
from collections.abc import Callable, Collection
from math import prod
from typing import Any

import torch
from dovetail_prims.decompositions import core_aten_table
from dovetail_prims.fake_tensor import FakeTensor, make
from dovetail_prims.graphs.graph_text import NoText, text_of
from dovetail_prims.graphs.scored_attention import scored_attention
from torch import Tensor
from torch.fx import Graph, GraphModule, Interpreter, Node

from dovetail_autograd_aot.joint.joint_trace import trace_joint
from dovetail_autograd_aot.patterns.attention_steps import CASTS, HALVES, fake_of, is_pure, writes
from dovetail_autograd_aot.patterns.called_attention import Found
from dovetail_autograd_aot.patterns.score_patterns import match
from dovetail_autograd_aot.trace.constants import kind_of_constant
from dovetail_autograd_aot.trace.rewrites import what_is_hidden

# Of wider heads the backward takes longer than with the scores in memory.
WIDE = 128
# Operators that compute each element by itself, though they are not marked so.
_ELEMENTS = {
    f"aten::{name}"
    for name in (
        "_to_copy", "alias", "arange", "clone", "expand", "fill", "full", "full_like",
        "index", "iota", "ones", "ones_like", "permute", "scalar_tensor", "select", "slice",
        "squeeze", "transpose", "unsqueeze", "view", "_unsafe_view", "zeros", "zeros_like",
    )
}  # fmt: skip

_log = logging.getLogger(__name__)


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
        if one is not None and _trace_score(gm, one, order):
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
    captured = [copies[n] for n in found.function.captured]
    with graph.inserting_before(last):
        keys = copies[found.operands.key]
        if not found.operands.transposed:
            keys = graph.call_method("transpose", (keys, -2, -1))
        operands = (copies[found.operands.query], keys, copies[found.operands.value], *captured)
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
    given = (found.operands.query, found.operands.key, found.operands.value)
    inputs = [graph.placeholder(name) for name in ("query", "key", "value")]
    copies = dict(zip(given, inputs, strict=True))
    if not found.operands.transposed:
        copies[found.operands.key] = graph.call_method("transpose", (inputs[1], -2, -1))
    for number, node in enumerate(found.function.captured):
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
    score, derived, empty = found.function.text, found.function.derived, found.empty
    in_rows = found.product is not None and not _lies_anyhow(found.last)
    few, like = found.of_few_queries, found.last.meta["val"]

    def attention_with_scores(q: Tensor, k: Tensor, v: Tensor, *captured: Tensor) -> Any:
        """Attention with a function of its scores, and the logarithms of its sums."""
        own = torch.is_grad_enabled() and any(t.requires_grad for t in captured)
        trains = torch.is_grad_enabled() and any(t.requires_grad for t in (q, k, v))
        own |= trains and (few or not derived)
        # (What `flex_attention` is without the operator takes longer.)
        own |= trains and math.isnan(empty) and max(q.shape[-1], v.shape[-1]) > WIDE
        if mask is not None:  # the library may have a kernel for it
            own |= kind_of_constant(_run(mask), what_is_hidden) != ""
        if own:
            return _run(plain, q, k, v, *captured)
        rows, sums = scored_attention(q, k, v, captured, score, empty)
        # (They lie as queries do; what a product gives, row by row; what a kernel of the library's
        # gives, as that leaves it.)
        if few and found.product is None:
            rows = _laid_out(rows, like._strides)
        return rows.contiguous() if in_rows else rows, sums

    return attention_with_scores


def _laid_out(rows: Tensor, strides: tuple[int, ...]) -> Tensor:
    """The rows with such strides, where these count."""
    places = zip(rows.shape, rows.stride(), strides, strict=True)
    if all(size == 1 or is_ == wanted for size, is_, wanted in places):
        return rows
    return rows.new_empty_strided(rows.shape, strides).copy_(rows)


def _lies_anyhow(node: Node) -> bool:
    """Whether nobody can tell how a tensor lies in memory: it is copied, and the copies lie as they
    are told."""
    for user in node.users:
        if user.op != "call_method":
            return False
        copied = user.target == "copy_" and user.args[0] is not node
        if copied or user.target == "new_empty_strided":
            continue
        if user.target == "contiguous" and len(user.args) == 1 and not user.kwargs:
            continue
        if user.target not in ("transpose", "permute") or not _lies_anyhow(user):
            return False
    return True


def _run(gm: GraphModule, *inputs: Tensor) -> Any:
    return Interpreter(gm).run(*inputs)


def _constant_mask(gm: GraphModule, found: Found) -> GraphModule | None:
    """What computes the mask, if it is the same for every call."""
    if found.mask is None or found.function.captured:
        return None
    graph = Graph()
    copies: dict[Node, Node] = {}
    for node in found.function.sunk:
        copies[node] = graph.node_copy(node, copies.__getitem__)
    graph.output(copies[found.mask])
    return GraphModule(gm, graph)


# --- the function of scores, traced by itself with its derivative, as text ------------------------


def _trace_score(gm: GraphModule, found: Found, order: dict[Node, int]) -> bool:
    """Trace the function and its derivative; False if it is not one of a score and its place, as
    far as can be told without its kernel."""
    function = found.function
    for sunk in (function.sunk, []):
        if not sunk and function.sunk:
            if found.mask is not None:
                return False  # reading it takes as long as the library's kernels do
            reads = {n for node in function.path for n in node.all_input_nodes}
            reads |= set() if found.mask is None else {found.mask}
            apart = reads - {*function.path, *([] if found.product is None else [found.product])}
            function.captured = sorted(apart, key=order.__getitem__)
        function.sunk = sunk
        if not all(_is_readable(fake_of(n), found) for n in function.captured):
            continue
        module = _score_module(gm, found)
        strides = [prod(found.operands.shape[d + 1 :]) for d in range(4)]
        scores = make(found.operands.shape, tuple(strides), torch.float32, found.operands.device)
        examples = [scores.requires_grad_(), *(_like(node) for node in function.captured)]
        try:
            with torch.enable_grad():
                joint = trace_joint(module, examples, decompositions=core_aten_table())
            function.text, function.derived, read = _score_text(joint.gm.graph, len(examples))
        except Exception as error:  # whatever no trace holds: the program stays as it is
            _log.debug("no function of scores: %s", error)
            continue
        if function.text:
            function.captured = [function.captured[number] for number in read]
            return True
    return False


def _is_readable(fake: FakeTensor | None, found: Found) -> bool:
    """Whether a kernel can read a tensor."""
    if fake is None or fake._device != found.operands.device or fake._dtype.is_complex:
        return False
    return all(type(n) is int for n in (*fake._sizes, *fake._strides))


def _like(node: Node) -> FakeTensor:
    fake = fake_of(node)
    assert fake is not None
    return make(fake._sizes, fake._strides, fake._dtype, fake._device)


def _score_module(gm: GraphModule, found: Found) -> GraphModule:
    """The function of scores in float32, and of what is captured: in wide steps throughout."""
    graph, function = Graph(), found.function
    scores = graph.placeholder("scores")
    read = [graph.placeholder(f"captured{number}") for number in range(len(function.captured))]
    given = scores
    if any(map(writes, function.path)):  # what takes a gradient may not be written to
        given = graph.call_function(torch.clone, (scores,))
    copies = dict(zip(function.captured, read, strict=True))
    if found.product is not None:
        copies[found.product] = given
    computed = {*function.sunk, *function.path}
    for node in gm.graph.nodes:
        if node not in computed:
            continue
        narrowed = node in function.path and node.op == "call_method" and node.target in CASTS
        if narrowed and node.meta["val"]._dtype.is_floating_point:
            copies[node] = copies[node.all_input_nodes[0]]
        else:
            copies[node] = graph.node_copy(node, copies.__getitem__)
    if found.product is None:
        scores = graph.call_function(torch.mul, (scores, found.scale))
    if found.mask is not None and found.mask.meta["val"]._dtype is torch.bool:
        scores = graph.call_function(torch.where, (copies[found.mask], scores, -math.inf))
    elif found.mask is not None:
        scores = graph.call_function(operator.add, (scores, copies[found.mask]))
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
