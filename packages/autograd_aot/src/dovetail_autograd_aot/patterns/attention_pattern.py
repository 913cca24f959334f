"""The pass `recognise_attention`: attention that a program writes out is attention.

`softmax(q @ k.transpose(-2, -1) * scale) @ v`, maybe with a boolean mask that fills scores in
between or a mask that is added to them, becomes a call of `attention_as_written`: as
`scaled_dot_product_attention` is, it is computed without the scores in memory, forward and
backward. So is the attention of `torch.nn.MultiheadAttention` whose weights nobody reads. A pass
over the captured graph, before it is differentiated: there each step stands as the user wrote it.

Only where the results are the same but for rounding: dropout stays, which draws other numbers in
the kernels of attention, as does a mask that is added where there are gradients: of a row hidden by
numbers beside which its scores vanish, the kernels do not keep what its backward needs. A row of
whose scores nothing is left is given what the formula gives it.
"""

from __future__ import annotations

import inspect
import math
import operator
from collections.abc import Collection
from dataclasses import replace
from math import prod
from typing import Any

import torch
import torch.nn.functional as F
from dovetail_prims.fake_tensor import FakeTensor, hint_of
from dovetail_prims.ops.sdpa import choose_backend
from torch import Tensor
from torch.fx import Graph, GraphModule, Node

from dovetail_autograd_aot.patterns.attention_steps import (
    HALVES,
    Written,
    cast_source,
    dropped_nothing,
    fake_of,
    operands_of,
    read_once,
    softmax_of,
    writes,
)

# A score filled with so little has no share beside any that is not filled.
_NOTHING = -1e4
# Beside so much a score vanishes in float32.
_VANISHING = -1e30
# Of fewer scores in all, laying out the mask as the kernels want it takes longer than they gain (3
# million: 0.93x in inference, 6 million: 1.33x, 200 million: 2.1x, on an H100).
WORTH_A_MASK = 1 << 22

_FACTORS = {
    operator.mul: False, torch.mul: False, operator.imul: False, "mul": False, "mul_": False,
    operator.truediv: True, torch.div: True, operator.itruediv: True, "div": True, "div_": True,
}  # fmt: skip
_SUMS: Collection[Any] = {operator.add, torch.add, operator.iadd, "add", "add_"}
_FILLS: Collection[Any] = {torch.masked_fill, "masked_fill", "masked_fill_"}


def recognise_attention(
    gm: GraphModule, device_type: str = "cuda", dtypes: Collection[torch.dtype] = HALVES
) -> GraphModule:
    """The graph with attention that is written out in calls of `attention_as_written`; itself
    where there is none of tensors of these types on such a device. Needs `meta["val"]` (fakes of
    `dovetail_prims`)."""
    matches = [
        (node, found)
        for node in gm.graph.nodes
        if (found := _match(node, device_type, dtypes)) is not None
    ]
    unread = [node for node in gm.graph.nodes if _weights_unread(node, device_type, dtypes)]
    if not matches and not unread:
        return gm
    copies: dict[Node, Node] = {}
    graph = Graph()
    graph.output(graph.graph_copy(gm.graph, copies))
    for node in unread:
        copies[node].update_kwarg("need_weights", False)
    for node, (query, key, value, written) in matches:
        last = copies[node]
        hidden = None if written.hidden is None else copies[written.hidden]
        added = None if written.added is None else copies[written.added]
        with graph.inserting_before(last):
            rows = copies[key]
            if not written.transposed:
                rows = graph.call_method("transpose", (rows, -2, -1))
            call = graph.call_function(
                attention_as_written,
                (copies[query], rows, copies[value], hidden),
                {
                    "inverted": written.inverted,
                    "fill": written.fill,
                    "added": added,
                    "scale": written.scale,
                },
            )
        call.meta = dict(last.meta)
        last.replace_all_uses_with(call)
        graph.erase_node(last)
        for mine in written.chain:
            graph.erase_node(copies[mine])
    made = GraphModule(gm, graph)
    made.meta = dict(gm.meta)
    return made


def _weights_unread(node: Node, device_type: str, dtypes: Collection[torch.dtype]) -> bool:
    """True for a call of multi-head attention without masks and dropout, of whose results nobody
    reads the second."""
    if node.target is not F.multi_head_attention_forward:
        return False
    names = list(inspect.signature(F.multi_head_attention_forward).parameters)
    named = dict(zip(names, node.args, strict=False)) | node.kwargs
    query = fake_of(named.get("query"))
    masked = named.get("key_padding_mask") is not None or named.get("attn_mask") is not None
    drops = named.get("training", True) is not False and named.get("dropout_p") != 0
    if masked or drops or query is None or len(node.args) > names.index("need_weights"):
        return False
    if query._device.type != device_type or query._dtype not in dtypes:
        return False
    reads = [user for user in node.users if user.users or user.op == "output"]
    return all(u.target is operator.getitem and u.args[1] == 0 for u in reads)


def attention_as_written(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    hidden: Tensor | None,
    *,
    inverted: bool = False,
    fill: float = 0.0,
    added: Tensor | None = None,
    scale: float = 1.0,
) -> Tensor:
    """`softmax(fill(query @ key.mT * scale)) @ value` for query [..., m, d], key [..., n, d]
    and value [..., n, e]; scores are filled with `fill` where `hidden` holds (`inverted`: where it
    does not), or `added` is added to them; both broadcast to [..., m, n]."""
    if hidden is not None and inverted:
        hidden = ~hidden
    q, k, v = query, key, value
    if q.dim() == 3:
        q, k, v = q.unsqueeze(0), k.unsqueeze(0), v.unsqueeze(0)
    dead = bias = None
    if hidden is not None:
        dead, bias = _of_hidden(hidden, q.dtype)
    elif added is not None:
        dead, bias = _of_added(added)
    if bias is not None:
        while bias.dim() < 4:
            bias = bias.unsqueeze(0)
        bias = bias.expand(*bias.shape[:-2], q.shape[-2], k.shape[-2])
    masks = () if added is None else (added,)
    needs_grad = torch.is_grad_enabled() and any(t.requires_grad for t in (q, k, v, *masks))
    if (masks and needs_grad) or choose_backend(q, k, v, bias, 0.0, False, needs_grad) == "math":
        scores = torch.matmul(query, key.transpose(-2, -1)) * scale
        if hidden is not None:
            scores = scores.masked_fill(hidden, fill)
        if added is not None:
            scores = scores + added
        return torch.matmul(scores.softmax(-1), value)
    out = F.scaled_dot_product_attention(q, k, v, bias, scale=scale)
    if query.dim() == 3:
        out = out.squeeze(0)
    if dead is None:
        return out
    # Of equal scores the shares are equal; of infinite ones there is no number. Those that were
    # filled get no gradient, and the gradient of their values is none.
    if hidden is not None and not math.isinf(fill):
        return torch.where(dead, value.mean(-2, keepdim=True), out)
    if hidden is not None and needs_grad:
        out = torch.where(dead, value.mean(-2, keepdim=True), out)
    return out * torch.ones_like(dead, dtype=out.dtype).masked_fill(dead, torch.nan)


def _of_hidden(hidden: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """The rows without any score, which no kernel needs to know, and what to add to the others."""
    dead = hidden.all(-1, keepdim=True)
    bias = torch.zeros_like(hidden, dtype=dtype)
    return dead, bias.masked_fill(hidden & ~dead, -torch.inf)


def _of_added(added: Tensor) -> tuple[Tensor, Tensor]:
    """The same of a mask that is added. For numbers beside which scores vanish smaller ones do as
    well: kernels multiply by the logarithm of e, which the least number does not bear."""
    nothing = added == -torch.inf
    dead = nothing.all(-1, keepdim=True)
    least = max(_VANISHING, torch.finfo(added.dtype).min)
    finite = torch.where(nothing, added, added.clamp(min=least))
    return dead, finite.masked_fill(dead, 0.0)


def _match(
    last: Node, device_type: str, dtypes: Collection[torch.dtype]
) -> tuple[Node, Node, Node, Written] | None:
    """The query, the transposed key and the value of a second product, and what is between."""
    operands = operands_of(last)
    if operands is None:
        return None
    node, value = operands
    written = Written()
    for step in (dropped_nothing, cast_source, softmax_of, cast_source):
        after = step(node, written)
        if after is None:
            return None
        node = after
    filled = _filled(node, written)
    found = _first_product(filled, written) or _beside_a_mask(cast_source(filled, written), written)
    if found is None:
        return None
    node, first = found
    written.chain.append(node)
    if _may_change(node, last, written):
        return None
    query, key = first
    tensors = [fake_of(n) for n in (query, key, value, node)]
    if any(t is None or t._device.type != device_type for t in tensors):
        return None
    q, k, v, scores = (t for t in tensors if t is not None)
    same = len(q._sizes) == len(k._sizes) == len(v._sizes) in (3, 4)
    same = same and q._sizes[:-2] == k._sizes[:-2] == v._sizes[:-2]
    same = same and q._dtype == k._dtype == v._dtype == scores._dtype and q._dtype in dtypes
    if not same or not _mask_fits(written, scores):
        return None
    return query, key, value, written


def _first_product(node: Node, written: Written) -> tuple[Node, tuple[Node, Node]] | None:
    """The product of which `node` are the scaled scores, and its operands; `written` is as it was
    where there is none."""
    before = replace(written, chain=list(written.chain))
    node = _scaled(cast_source(node, written), written)
    first = operands_of(node, written) if read_once(node) else None
    if first is None:
        vars(written).update(vars(before))
        return None
    return node, first


def _beside_a_mask(node: Node, written: Written) -> tuple[Node, tuple[Node, Node]] | None:
    """The same for the sum of scores and a mask."""
    if node.target not in _SUMS or not read_once(node) or written.hidden is not None:
        return None
    if node.kwargs or len(node.args) != 2:
        return None
    written.chain.append(node)
    for scores, mask in (node.args, node.args[::-1]):
        if not isinstance(scores, Node) or fake_of(mask) is None:
            continue
        found = _first_product(scores, written)
        if found is not None:
            if node.meta["val"]._sizes != found[0].meta["val"]._sizes:
                return None  # for several masks the scores are repeated
            assert isinstance(mask, Node)
            written.added = mask
            return found
    return None


def _may_change(first: Node, last: Node, written: Written) -> bool:
    """True if something in between writes to memory, or enters or leaves a mode: all is computed at
    the last of the nodes."""
    node = first.next
    while node is not last:
        if node not in written.chain and (writes(node) or node.meta.get("val") is None):
            return True
        node = node.next
    return False


def _mask_fits(written: Written, scores: FakeTensor) -> bool:
    if written.hidden is None and written.added is None:
        return True
    mask = fake_of(written.hidden or written.added)
    dtype = torch.bool if written.added is None else scores._dtype
    fits = mask is not None and mask._dtype is dtype and mask._device == scores._device
    many = prod(map(hint_of, scores._sizes)) >= WORTH_A_MASK
    return many and fits and mask is not None and 2 <= len(mask._sizes) <= len(scores._sizes)


def _filled(node: Node, written: Written) -> Node:
    """What a mask fills with next to nothing."""
    if not read_once(node) or node.kwargs or len(node.args) != 3:
        return node
    if node.target in _FILLS:
        source, mask, value = node.args
        inverted = False
    elif node.target is torch.where or node.target == "where":
        mask, source, value = node.args
        if node.target == "where":  # x.where(mask, value)
            source, mask, value = node.args
        inverted = True
    else:
        return node
    scores = fake_of(source)
    small = isinstance(value, float | int) and value <= _NOTHING
    same = scores is not None and scores._sizes == node.meta["val"]._sizes
    if not small or not same or not isinstance(mask, Node) or not isinstance(source, Node):
        return node
    # What is no number of the scores' type is filled in as another one.
    assert scores is not None and isinstance(value, float | int)
    if not math.isinf(value) and value < torch.finfo(scores._dtype).min:
        return node
    written.hidden, written.inverted, written.fill = mask, inverted, float(value)
    written.chain.append(node)
    return source


def _scaled(node: Node, written: Written) -> Node:
    """What was multiplied by a number, or divided by one."""
    while node.target in _FACTORS and read_once(node) and not node.kwargs and len(node.args) == 2:
        source, factor = node.args
        if isinstance(source, float | int) and not _FACTORS[node.target]:
            source, factor = factor, source
        if not isinstance(factor, float | int) or not isinstance(source, Node) or factor <= 0:
            return node
        written.scale = written.scale / factor if _FACTORS[node.target] else written.scale * factor
        written.chain.append(node)
        node = source
    return node
