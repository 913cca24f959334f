"""Attention with a function of its scores in a captured graph: its parts, where they are told apart
without their function.

`match` finds, back from the product that ends attention, the softmax and the first product, and
what leads from the one to the other. What that reads is computed with it where this is cheap (masks
of places), and read by it where not.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Collection, Iterable
from typing import Any

import torch
from torch.fx import Node

from dovetail_autograd_aot.patterns import attention_steps as steps
from dovetail_autograd_aot.patterns import called_attention

# Of fewer scores the library's products and a softmax in memory take less time.
WORTH_SCORES = 1 << 20
# Of more elements of keys and values, if all are read, the library's kernels take as long.
MOST_READ = 1 << 23
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
    torch.ones_like, torch.zeros_like, "new_ones", "new_zeros", "new_full",
    operator.lt, operator.le, operator.gt, operator.ge, operator.eq, operator.ne,
    operator.and_, operator.or_, operator.invert, operator.add, operator.sub, operator.mul,
    operator.neg, torch.where, torch.logical_and, torch.logical_or, torch.logical_not, torch.abs,
    "logical_and", "logical_or", "logical_not", "abs", "to", "float", "bool", "int", "long",
    "lt", "le", "gt", "ge", "eq", "ne", "masked_fill", "where", *_VIEWS,
}  # fmt: skip
_MAPPED = "vmap_of_graph"  # the name of a function that was captured to be mapped


def match(
    last: Node, order: dict[Node, int], device_type: str, dtypes: Collection[torch.dtype]
) -> called_attention.Found | None:
    """The parts of attention that ends with a node, if their shapes and types are those that
    kernels are written for."""
    found = called_attention.call_with_a_mask(last)
    if found is not None:
        if not _fits(found, device_type, dtypes) or found.mask is None:
            return None
        _sink(found, [found.mask], order, _barrier(order, last))
        return found
    found = called_attention.called_by_program(last, order)
    if found is not None:
        fits = _fits(found, device_type, dtypes) and found.of_few_queries
        return found if fits and (found.mask is not None or found.reads <= MOST_READ) else None
    factors = steps.operands_of(last)
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
    written = steps.Written()
    first = steps.operands_of(product, written)
    if first is None:
        return None
    query = steps.narrow_source(first[0])
    key, transposed = _keys(first[1], written.transposed)
    operands = called_attention.Operands(query, key, steps.unrepeated(value), transposed)
    found = called_attention.Found(last, operands, empty, product, scores, sums)
    if not _fits(found, device_type, dtypes) or not _find_path(found, readers, order):
        return None
    return found


def _softmax_in_one(shares: Node) -> tuple[Node, None, set[Node], float] | None:
    """The scores of which `shares` are the softmax, and who reads them for it."""
    written = steps.Written()
    node = steps.dropped_nothing(steps.float_source(shares), written)
    if node is None:
        return None
    softmax = steps.float_source(node)
    source = steps.softmax_of(softmax, written)
    return None if source is None else (source, None, {softmax}, math.nan)


def _softmax_in_parts(shares: Node) -> tuple[Node, Node, set[Node], float] | None:
    """The same of exp(scores - logsumexp(scores)), of which a row of nothing is 0."""
    node = steps.float_source(shares)
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


def _keys(node: Node, transposed: bool) -> tuple[Node, bool]:
    """The keys in a right factor, each head once; and whether they are as they are, not turned."""
    node = steps.narrow_source(node)
    turned = node.args[1:] in ((-2, -1), (-1, -2), (2, 3), (3, 2))
    if not transposed and node.target in ("transpose", torch.transpose) and turned:
        source = node.args[0]
        if isinstance(source, Node):
            return steps.unrepeated(steps.narrow_source(source)), True
    return node, transposed


def _product_below(scores: Node) -> Node | None:
    """The product of which some scores of its size are a function: the only one."""
    sizes = steps.fake_of(scores)
    if sizes is None:
        return None
    found: set[Node] = set()
    seen: set[Node] = set()
    stack = [scores]
    while stack:
        node = stack.pop()
        value = steps.fake_of(node)
        if node in seen or value is None or value._sizes != sizes._sizes:
            continue
        seen.add(node)
        if steps.operands_of(node, steps.Written()) is not None:
            found.add(node)
        else:
            stack.extend(node.all_input_nodes)
    return found.pop() if len(found) == 1 else None


def _fits(found: called_attention.Found, device_type: str, dtypes: Collection[torch.dtype]) -> bool:
    """Whether there are kernels for such operands, and these gain something."""
    fakes = [
        steps.fake_of(n)
        for n in (found.operands.query, found.operands.key, found.operands.value, found.last)
    ]
    if any(f is None or len(f._sizes) != 4 for f in fakes):
        return False
    q, k, v, out = (f for f in fakes if f is not None)
    if any(type(n) is not int for f in (q, k, v) for n in (*f._sizes, *f._strides)):
        return False
    if not (q._dtype is k._dtype is v._dtype is out._dtype) or q._dtype not in dtypes:
        return False
    if any(f._device != q._device or f._device.type != device_type for f in (q, k, v)):
        return False
    batch, heads, m, d = q._sizes
    keys, n, e = k._sizes[1], v._sizes[2], v._sizes[3]
    turned = (n, d) if found.operands.transposed else (d, n)
    alike = (k._sizes[0], v._sizes[0], v._sizes[1]) == (batch, batch, keys)
    if not alike or tuple(k._sizes[2:]) != turned or not keys or heads % keys:
        return False
    scores = steps.fake_of(found.scores)
    if scores is not None and tuple(scores._sizes) != (batch, heads, m, n):
        return False
    if tuple(out._sizes) != (batch, heads, m, e):
        return False
    if d not in HEAD_SIZES or e not in HEAD_SIZES or n < LEAST_LENGTH:
        return False
    many = m >= LEAST_LENGTH and batch * heads * m * n >= WORTH_SCORES
    return found.of_few_queries or bool(many)


def _find_path(found: called_attention.Found, readers: set[Node], order: dict[Node, int]) -> bool:
    """Fill in what is computed of scores and what is read for it; False if something else reads
    scores, or something changes in between."""
    assert found.product is not None and found.scores is not None
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
    found.function.path = sorted(reached - {found.product}, key=order.__getitem__)
    inside = reached | readers
    ends = {found.scores: readers}
    if found.scores is found.product and not found.function.path:
        return False  # no function at all
    for node in reached:
        if any(user not in (inside if node in ends else reached) for user in node.users):
            return False
    between = [n for n in order if order[found.product] < order[n] < order[found.last]]
    if any(n not in reached and not steps.is_pure(n) for n in between):
        return False
    side = {n for node in found.function.path for n in node.all_input_nodes} - reached
    _sink(found, side, order, _barrier(order, found.product))
    return True


def _sink(
    found: called_attention.Found, side: Iterable[Node], order: dict[Node, int], barrier: int
) -> None:
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
    found.function.sunk = sorted(sunk, key=order.__getitem__)
    found.function.captured = sorted(captured, key=order.__getitem__)


def _may_sink(node: Node) -> bool:
    if node.op not in ("call_function", "call_method") or steps.fake_of(node) is None:
        return False
    return node.target in _SUNK or getattr(node.target, "__name__", "") == _MAPPED


def _barrier(order: dict[Node, int], before: Node) -> int:
    """The position of the last node before another which what was computed earlier may not pass."""
    found = [order[n] for n in order if order[n] < order[before] and _is_barrier(n)]
    return max(found, default=-1)


def _is_barrier(node: Node) -> bool:
    """Whether what was computed before may differ from what is computed after. (To leave autocast
    makes no difference to functions of places.)"""
    if node.target is torch.amp.autocast_mode._enter_autocast and node.args[2:3] == (False,):
        return False
    return not steps.is_pure(node)
