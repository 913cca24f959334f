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
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field
from math import prod
from typing import Any

import torch
from dovetail_prims.decompositions import core_aten_table
from dovetail_prims.fake_tensor import FakeTensor, make
from dovetail_prims.graph_text import NoText, text_of
from dovetail_prims.scored_attention import scored_attention
from torch import Tensor
from torch.fx import Graph, GraphModule, Interpreter, Node

from dovetail_autograd_aot.written_attention import (
    CASTS,
    HALVES,
    Written,
    dropped_nothing,
    fake_of,
    operands_of,
    softmax_of,
    writes,
)

# Of fewer scores the library's products and a softmax in memory take less time.
WORTH_SCORES = 1 << 20
LEAST_LENGTH = 64
HEAD_SIZES = range(16, 257)

# What gives a view of its first argument.
_VIEWS: Collection[Any] = {
    "expand", "view", "unsqueeze", "squeeze", "transpose", "permute", "reshape", "expand_as",
    operator.getitem,
}  # fmt: skip
# Pointwise functions of masks and places, which take less time than reading what they give.
_SUNK: Collection[Any] = {
    torch.arange, torch.full, torch.ones, torch.zeros, torch.tril, torch.triu, "tril", "triu",
    operator.lt, operator.le, operator.gt, operator.ge, operator.eq, operator.ne,
    operator.and_, operator.or_, operator.invert, operator.add, operator.sub, operator.mul,
    operator.neg, torch.where, torch.logical_and, torch.logical_or, torch.logical_not, torch.abs,
    "logical_and", "logical_or", "logical_not", "abs", "to", "float", "bool", "int", "long",
    "lt", "le", "gt", "ge", "eq", "ne", "masked_fill", "where", *_VIEWS,
}  # fmt: skip
# Operators that compute each element by itself, though they are not marked so.
_ELEMENTS = {
    f"aten::{name}"
    for name in (
        "_to_copy", "alias", "arange", "as_strided", "clone", "expand", "fill", "full", "full_like",
        "index", "iota", "ones", "ones_like", "permute", "scalar_tensor", "select", "slice",
        "squeeze", "transpose", "unsqueeze", "view", "_unsafe_view", "zeros", "zeros_like",
    )
}  # fmt: skip
_MAPPED = "vmap_of_graph"  # the name of a function that was captured to be mapped


@dataclass
class _Found:
    """Attention in a graph: `last` is the product that ends it, `sums` what gives the logarithms of
    the sums of exponentials, if something does. `path` leads from the first product to the scores
    that shares are made of; `sunk` is computed with it, `captured` read by it."""

    last: Node
    query: Node
    key: Node
    value: Node
    transposed: bool  # the key is as it is
    product: Node
    scores: Node
    sums: Node | None
    empty: float
    path: list[Node] = field(default_factory=list)
    sunk: list[Node] = field(default_factory=list)
    captured: list[Node] = field(default_factory=list)
    score: str = ""


def recognise_scored_attention(
    gm: GraphModule, device_type: str = "cuda", dtypes: Collection[torch.dtype] = HALVES
) -> GraphModule:
    """The graph with attention with a function of scores in calls of one operator; itself where
    there is none of tensors of these types on such a device. Needs `meta["val"]` (fakes of
    `dovetail_prims`)."""
    order = {node: position for position, node in enumerate(gm.graph.nodes)}
    found: list[_Found] = []
    for node in gm.graph.nodes:
        match = _match(node, order, device_type, dtypes)
        if match is not None and _trace_score(gm, match, order):
            found.append(match)
    if not found:
        return gm
    copies: dict[Node, Node] = {}
    graph = Graph()
    graph.output(graph.graph_copy(gm.graph, copies))
    for match in found:
        _replace(gm, graph, copies, match)
    graph.eliminate_dead_code(lambda node: node.op == "placeholder" or not _is_pure(node))
    made = GraphModule(gm, graph)
    made.meta = dict(gm.meta)
    return made


# --- what is recognised ---------------------------------------------------------------------------


def _match(
    last: Node, order: dict[Node, int], device_type: str, dtypes: Collection[torch.dtype]
) -> _Found | None:
    """The parts of attention that ends with a product, if their shapes and types are those that
    kernels are written for."""
    factors = operands_of(last)
    if factors is None:
        return None
    shares, value = factors
    ends = _softmax_in_one(shares) or _softmax_in_parts(shares)
    if ends is None:
        return None
    scores, sums, readers, empty = ends
    product = _product_below(scores)
    if product is None:
        return None
    written = Written()
    first = operands_of(product, written)
    if first is None:
        return None
    query = _narrow_source(first[0])
    key, transposed = _keys(first[1], written.transposed)
    found = _Found(last, query, key, _unrepeated(value), transposed, product, scores, sums, empty)
    if not _fits(found, device_type, dtypes):
        return None
    if not _find_path(found, readers, order):
        return None
    return found


def _softmax_in_one(shares: Node) -> tuple[Node, None, set[Node], float] | None:
    """The scores of which `shares` are the softmax, and who reads them for it."""
    written = Written()
    node = dropped_nothing(_float_source(shares), written)
    if node is None:
        return None
    softmax = _float_source(node)
    source = softmax_of(softmax, written)
    return None if source is None else (source, None, {softmax}, math.nan)


def _softmax_in_parts(shares: Node) -> tuple[Node, Node, set[Node], float] | None:
    """The same of exp(scores - logsumexp(scores)), of which a row of nothing is 0."""
    node = _float_source(shares)
    if node.target is not torch.exp or not isinstance(node.args[0], Node):
        return None
    less = node.args[0]
    if less.target is not operator.sub or len(less.users) != 1 or len(node.users) != 1:
        return None
    scores, row = less.args
    if not isinstance(row, Node) or row.target != "unsqueeze" or row.args[1:] != (-1,):
        return None
    start = row.args[0]
    if not isinstance(start, Node) or start.target is not torch.where or len(start.args) != 3:
        return None
    nothing, zero, sums = start.args
    if zero != 0.0 or not isinstance(sums, Node) or sums.target is not torch.logsumexp:
        return None
    if not isinstance(nothing, Node) or nothing.target != "isneginf" or nothing.args != (sums,):
        return None
    if sums.args != (scores, -1) or sums.kwargs or not isinstance(scores, Node):
        return None
    return scores, sums, {less, sums}, 0.0


def _float_source(node: Node) -> Node:
    """What was converted between floating types, if that is all."""
    while node.target in CASTS and node.op == "call_method" and len(node.users) == 1:
        source = node.args[0]
        before, after = fake_of(source), fake_of(node)
        if before is None or after is None or not isinstance(source, Node):
            break
        if not (before._dtype.is_floating_point and after._dtype.is_floating_point):
            break
        node = source
    return node


def _narrow_source(node: Node) -> Node:
    """What was converted to a wider floating type."""
    while node.target in CASTS and node.op == "call_method":
        source = node.args[0]
        before, after = fake_of(source), fake_of(node)
        if before is None or after is None or not isinstance(source, Node):
            break
        if before._dtype is not after._dtype and before._dtype not in HALVES:
            break
        node = source
    return node


def _keys(node: Node, transposed: bool) -> tuple[Node, bool]:
    """The keys in a right factor, each head once; and whether they are as they are, not turned."""
    node = _narrow_source(node)
    turned = node.args[1:] in ((-2, -1), (-1, -2), (2, 3), (3, 2))
    if not transposed and node.target in ("transpose", torch.transpose) and turned:
        source = node.args[0]
        if isinstance(source, Node):
            return _unrepeated(_narrow_source(source)), True
    return node, transposed


def _unrepeated(node: Node) -> Node:
    """What heads were repeated of, each in turn; `node` if none were."""
    node = _narrow_source(node)
    if node.target in ("repeat_interleave", torch.repeat_interleave):
        source = node.args[0]
        if len(node.args) == 3 and node.args[2] == 1 and type(node.args[1]) is int:
            return _narrow_source(source) if isinstance(source, Node) else node
    if node.target in ("reshape", "view"):  # [b, h, n, d] -> [b, h, 1, n, d] -> expanded -> here
        wide = node.args[0]
        if isinstance(wide, Node) and wide.target == "expand" and isinstance(wide.args[0], Node):
            source = _lifted_from(wide.args[0])
            before, between, after = (fake_of(n) for n in (wide.args[0], wide, node))
            if source is None or before is None or between is None or after is None:
                return node
            (b, h, _, n, d), times = before._sizes, between._sizes[2]
            grouped = tuple(between._sizes) == (b, h, times, n, d)
            if grouped and tuple(after._sizes) == (b, h * times, n, d):
                return _narrow_source(source)
    return node


def _lifted_from(node: Node) -> Node | None:
    """x of `x[:, :, None, :, :]` or `x.unsqueeze(2)`, of four dimensions."""
    source = node.args[0] if node.args else None
    value = fake_of(source)
    if not isinstance(source, Node) or value is None or len(value._sizes) != 4:
        return None
    after = fake_of(node)
    if after is None or len(after._sizes) != 5 or after._sizes[2] != 1:
        return None
    whole = slice(None)
    if node.target is operator.getitem:
        parts = node.args[1]
        lifts = isinstance(parts, tuple) and parts in (
            (whole, whole, None), (whole, whole, None, whole), (whole, whole, None, whole, whole)
        )  # fmt: skip
        return source if lifts else None
    return source if node.target == "unsqueeze" and node.args[1] == 2 else None


def _product_below(scores: Node) -> Node | None:
    """The product of which some scores of its size are a function: the only one."""
    sizes = fake_of(scores)
    if sizes is None:
        return None
    found: set[Node] = set()
    seen: set[Node] = set()
    stack = [scores]
    while stack:
        node = stack.pop()
        value = fake_of(node)
        if node in seen or value is None or value._sizes != sizes._sizes:
            continue
        seen.add(node)
        if operands_of(node, Written()) is not None:
            found.add(node)
        else:
            stack.extend(node.all_input_nodes)
    return found.pop() if len(found) == 1 else None


def _fits(found: _Found, device_type: str, dtypes: Collection[torch.dtype]) -> bool:
    """Whether there are kernels for such operands, and these gain something."""
    fakes = [fake_of(n) for n in (found.query, found.key, found.value, found.scores, found.last)]
    if any(f is None or len(f._sizes) != 4 for f in fakes):
        return False
    q, k, v, scores, out = (f for f in fakes if f is not None)
    if any(type(n) is not int for f in (q, k, v, scores) for n in (*f._sizes, *f._strides)):
        return False
    if not (q._dtype is k._dtype is v._dtype is out._dtype) or q._dtype not in dtypes:
        return False
    if any(f._device != q._device or f._device.type != device_type for f in (q, k, v, scores)):
        return False
    batch, heads, m, d = q._sizes
    keys, n, e = k._sizes[1], v._sizes[2], v._sizes[3]
    turned = (n, d) if found.transposed else (d, n)
    alike = (k._sizes[0], v._sizes[0], v._sizes[1]) == (batch, batch, keys)
    if not alike or tuple(k._sizes[2:]) != turned or not keys or heads % keys:
        return False
    if tuple(scores._sizes) != (batch, heads, m, n) or tuple(out._sizes) != (batch, heads, m, e):
        return False
    if d not in HEAD_SIZES or e not in HEAD_SIZES or min(m, n) < LEAST_LENGTH:
        return False
    return bool(prod(scores._sizes) >= WORTH_SCORES)


def _find_path(found: _Found, readers: set[Node], order: dict[Node, int]) -> bool:
    """Fill in what is computed of scores and what is read for it; False if something else reads
    scores, or something changes in between."""
    above: set[Node] = set()
    stack = [found.scores]
    while stack:
        node = stack.pop()
        if node not in above and order[node] > order[found.product]:
            above.add(node)
            stack.extend(node.all_input_nodes)
    reached = {found.product}
    for node in sorted(above, key=order.__getitem__):
        if reached.intersection(node.all_input_nodes):
            reached.add(node)
    found.path = sorted(reached - {found.product}, key=order.__getitem__)
    inside = reached | readers
    ends = {found.scores: readers}
    if found.scores is found.product and not found.path:
        return False  # no function at all
    for node in reached:
        if any(user not in (inside if node in ends else reached) for user in node.users):
            return False
    between = [n for n in order if order[found.product] < order[n] < order[found.last]]
    if any(n not in reached and not _is_pure(n) for n in between):
        return False
    before = [n for n in order if order[n] < order[found.product] and _is_barrier(n)]
    barrier = max((order[n] for n in before), default=-1)
    side = {n for node in found.path for n in node.all_input_nodes} - reached
    _sink(found, side, order, barrier)
    return True


def _sink(found: _Found, side: Iterable[Node], order: dict[Node, int], barrier: int) -> None:
    """Decide of what the path reads what is computed with it."""
    sunk: set[Node] = set()
    captured: set[Node] = set()
    stack = list(side)
    while stack:
        node = stack.pop()
        if node in sunk or node in captured:
            continue
        if _may_sink(node) and (order[node] > barrier or not node.all_input_nodes):
            sunk.add(node)
            stack.extend(node.all_input_nodes)
        else:
            captured.add(node)
    found.sunk = sorted(sunk, key=order.__getitem__)
    found.captured = sorted(captured, key=order.__getitem__)


def _may_sink(node: Node) -> bool:
    if node.op not in ("call_function", "call_method") or fake_of(node) is None:
        return False
    return node.target in _SUNK or getattr(node.target, "__name__", "") == _MAPPED


def _is_pure(node: Node) -> bool:
    """False for what writes, or enters or leaves a mode, or does anything but give a value."""
    if node.op in ("placeholder", "get_attr", "output"):
        return node.op != "output"
    return not writes(node) and node.meta.get("val") is not None


def _is_barrier(node: Node) -> bool:
    """Whether what was computed before may differ from what is computed after. (To leave autocast
    makes no difference to functions of places.)"""
    if node.target is torch.amp.autocast_mode._enter_autocast and node.args[2:3] == (False,):
        return False
    return not _is_pure(node)


# --- the function of scores -----------------------------------------------------------------------


def _trace_score(gm: GraphModule, found: _Found, order: dict[Node, int]) -> bool:
    """Trace the function and its derivative; False if it is not one of a score and its place, as
    far as can be told without its kernel."""
    from dovetail_autograd_aot.joint import trace_joint

    for sunk in (found.sunk, []):
        if not sunk and found.sunk:
            reads = {n for node in found.path for n in node.all_input_nodes}
            apart = reads - {*found.path, found.product}
            found.captured = sorted(apart, key=order.__getitem__)
        found.sunk = sunk
        if not all(_is_readable(fake_of(n), found) for n in found.captured):
            continue
        module = _score_module(gm, found)
        examples = [_like(found.scores, torch.float32).requires_grad_()]
        examples += [_like(node, None) for node in found.captured]
        try:
            with torch.enable_grad():
                joint = trace_joint(module, examples, decompositions=core_aten_table())
            found.score = _score_text(joint.gm.graph, len(examples))
        except Exception:  # whatever it is that no trace holds: the program stays as it is
            continue
        if found.score:
            return True
    return False


def _is_readable(fake: FakeTensor | None, found: _Found) -> bool:
    """Whether a kernel can read a tensor."""
    scores = fake_of(found.scores)
    if fake is None or scores is None or fake._device != scores._device or fake._dtype.is_complex:
        return False
    return all(type(n) is int for n in (*fake._sizes, *fake._strides))


def _like(node: Node, dtype: torch.dtype | None) -> FakeTensor:
    fake = fake_of(node)
    assert fake is not None
    return make(fake._sizes, fake._strides, dtype or fake._dtype, fake._device)


def _score_module(gm: GraphModule, found: _Found) -> GraphModule:
    """The function of scores in float32, and of what is captured: in wide steps throughout."""
    graph = Graph()
    copies = {found.product: graph.placeholder("scores")}
    for number, node in enumerate(found.captured):
        copies[node] = graph.placeholder(f"captured{number}")
    computed = {*found.sunk, *found.path}
    for node in gm.graph.nodes:
        if node not in computed:
            continue
        narrowed = node in found.path and node.op == "call_method" and node.target in CASTS
        if narrowed and node.meta["val"]._dtype.is_floating_point:
            copies[node] = copies[node.all_input_nodes[0]]
        else:
            copies[node] = graph.node_copy(node, copies.__getitem__)
    graph.output((copies[found.scores],))
    return GraphModule(gm, graph)


def _score_text(graph: Graph, inputs: int) -> str:
    """The text of a joint graph, whose inputs are these and the gradient of what it gives. The
    gradient of the first is what it is to give besides."""
    placeholders = [n for n in graph.nodes if n.op == "placeholder"]
    (output,) = (n for n in graph.nodes if n.op == "output")
    results = list(output.args[0])
    if len(placeholders) != inputs + 1 or not all(isinstance(r, Node) for r in results[:2]):
        return ""
    made, gradient = results[:2]
    if any(r is not None for r in results[2:]):
        return ""
    if made.meta["val"]._dtype is not torch.float32:
        return ""
    if tuple(made.meta["val"]._sizes) != tuple(placeholders[0].meta["val"]._sizes):
        return ""
    copy = Graph()
    copies: dict[Node, Node] = {}
    copy.graph_copy(graph, copies)
    copy.output((copies[made], copies[gradient]))
    copy.eliminate_dead_code(lambda node: node.op in ("placeholder", "output"))
    if not all(node.op != "call_function" or _is_pointwise(node) for node in copy.nodes):
        return ""
    try:
        return text_of(copy)
    except NoText:
        return ""


def _is_pointwise(node: Node) -> bool:
    """True for an operator whose kernel computes each element by itself."""
    if not isinstance(node.target, torch._ops.OpOverload):
        return False
    tags = node.target.tags
    if torch.Tag.nondeterministic_seeded in tags:
        return False
    return torch.Tag.pointwise in tags or node.target._schema.name in _ELEMENTS


# --- the call -------------------------------------------------------------------------------------


def _replace(gm: GraphModule, graph: Graph, copies: dict[Node, Node], found: _Found) -> None:
    """Put the call in the place of the last product."""
    last = copies[found.last]
    captured = [copies[n] for n in found.captured]
    with graph.inserting_before(last):
        keys = copies[found.key]
        if not found.transposed:
            keys = graph.call_method("transpose", (keys, -2, -1))
        operands = (copies[found.query], keys, copies[found.value], *captured)
        call = graph.call_function(_attention(_plain(gm, found), found), operands)
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


def _plain(gm: GraphModule, found: _Found) -> GraphModule:
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


def _attention(plain: GraphModule, found: _Found) -> Callable[..., Any]:
    """What the call calls: the operator, or what the program says."""
    score, empty = found.score, found.empty

    def attention_with_scores(q: Tensor, k: Tensor, v: Tensor, *captured: Tensor) -> Any:
        """Attention with a function of its scores, and the logarithms of its sums."""
        if torch.is_grad_enabled() and any(t.requires_grad for t in captured):
            return Interpreter(plain).run(q, k, v, *captured)
        return scored_attention(q, k, v, captured, score, empty)

    return attention_with_scores


__all__ = ["recognise_scored_attention"]
