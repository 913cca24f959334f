"""What becomes memory while a graph is lowered, what is computed inside those who read it, and of
which values of half types a program asks what eager has in memory.

Fused arithmetic of half types goes on in float32, without the roundings and the overflows between
two operators: more exact than eager, and nobody sees the difference but by asking. `isinf(x * x)`,
a comparison, a conversion to an integer or the position of a maximum ask; an answer for the float32
number would contradict the result itself, which is rounded once it is stored. So what is asked
about, and what it is computed from element by element, is rounded as eager stores it.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator
from dataclasses import replace
from math import prod

import torch
from torch import fx

from dovetail_inductor.loop_ir.expr import Apply, Constant, Expr, Load
from dovetail_inductor.loop_ir.ops import ROUNDING, arithmetic_dtype
from dovetail_inductor.loop_ir.ranges import value_range
from dovetail_inductor.loop_ir.sizes import hint_of
from dovetail_inductor.lowering import indexing, pointwise, reductions, views
from dovetail_inductor.lowering.rules import RULES, rule_name
from dovetail_inductor.lowering.values import (
    Context,
    Value,
    fits_cache_wide,
    shape_of,
    strides_as_read,
)

# An inlined chain is cut when its body grows beyond this.
MAX_COST = 600
MAX_LOADS = 16
# So many buffers for narrow floats on a GPU: of the sums along a residual stream every fourth is
# stored. Reading again what is added to it takes a little more time than storing each sum, and a
# fourth of the roundings that its error comes from are left. Each is stored where even in float32
# it has few bytes: nothing is rounded then, what is added lives no longer than to the next sum, and
# who adds it needs no launch of its own.
MOST_LARGE_NARROW = 4
FEW_BYTES = 1 << 18
# What a library call reads is kept in float32, too, for loops that read it, up to so many bytes: a
# fourth of an H100's second-level cache.
UNROUNDED_BYTES = 50 * 2**20 // 4
CACHE_BYTES = 96 << 20  # written to other memory since, nothing of a value is in that cache
# A value that consumers expand is computed once, before, if an element costs at least this.
EXPANDED_COST = 5
EXPANDED_COST_IF_NARROW = 12  # the same of half types, which memory would round
# Expanded so many times, its bytes are few beside those of what reads it: half types are kept in
# float32, as they would be if each reader computed them.
WIDE_IF_EXPANDED = 16
EXPANDED_COST_OF_PLACES = 12  # the same of what is made of places alone, and reads nothing


_CHOOSING = frozenset({"abs", "maximum", "minimum", "neg", "relu", "where"})


def is_view(node: fx.Node) -> bool:
    """Whether a node is lowered to other indices into what it gets."""
    return rule_name(node) in views.RULES or node.target is operator.getitem


def nodes_in_memory(gm: fx.GraphModule) -> set[fx.Node]:
    """Nodes that an extern call or the caller reads, itself or through views."""
    found: set[fx.Node] = set()
    for node in reversed(list(gm.graph.nodes)):
        for user in node.users:
            extern = user.op == "output" or (
                user.target is not operator.getitem and rule_name(user) not in RULES
            )
            if extern or (user in found and is_view(user)):
                found.add(node)
                break
    return found


def _is_taken_apart(node: fx.Node) -> bool:
    """True if single elements are all that is read of a value, each by one reader at most: numbers
    that an optimizer stacked, say."""

    def by_one(user: fx.Node) -> bool:
        if not is_view(user):
            return False
        if isinstance(user.meta.get("val"), tuple | list):
            return _is_taken_apart(user)
        return _numel(user) == 1 and len(_consumers(user)) <= 1

    return bool(node.users) and all(map(by_one, node.users))


def _is_result(node: fx.Node) -> bool:
    """True for one of several results of an operator that computes them: windows' largest elements
    and where these lie, say; parts of a tensor are views."""
    whole = node.args[0] if node.target is operator.getitem else None
    return isinstance(whole, fx.Node) and not is_view(whole)


def _consumers(node: fx.Node) -> list[fx.Node]:
    """The users of a node; those of its views in the place of the views."""
    result: list[fx.Node] = []
    for user in node.users:
        result += _consumers(user) if is_view(user) else [user]
    return result


def bytes_until_read(gm: fx.GraphModule, in_memory: set[fx.Node]) -> dict[fx.Node, int]:
    """For each node that loops read, how many bytes are written to memory, by what `in_memory`
    has, from when it is made until loops have read it, or what is computed from it inside them."""
    written: dict[fx.Node, int] = {}
    total = 0
    for node in gm.graph.nodes:
        if node in in_memory and node.op == "call_function" and not is_view(node):
            total += _nbytes(node)
        written[node] = total
    last: dict[fx.Node, int] = {}
    for node in reversed(gm.graph.nodes):
        for user in node.users:
            if is_view(user) or rule_name(user) in RULES:
                last[node] = max(last.get(node, 0), written[user])
                if user not in in_memory and _numel(user) >= _numel(node):
                    last[node] = max(last[node], last.get(user, 0))
    return {node: end - written[node] for node, end in last.items()}


def realize_if_worth_it(
    ctx: Context,
    node: fx.Node,
    value: Value,
    in_memory: set[fx.Node],
    until_read: dict[fx.Node, int],
) -> None:
    """Decide whether a value just made becomes memory, or is computed inside its consumers;
    `until_read` is from `bytes_until_read` (on a CPU nothing asks it)."""
    if value.stored is not None or (is_view(node) and not _is_result(node)):
        return
    if node in in_memory:
        if _goes_on_unrounded(ctx, node, value, until_read.get(node)):
            unrounded = replace(value, dtype=arithmetic_dtype(value.dtype), _memo={})
            value.forms = replace(value.forms, unrounded=unrounded)
            ctx.realize(unrounded)
        ctx.realize(value)
        return
    if _is_taken_apart(node):
        return  # each reader computes its own element
    in_memory_form = value.forms.widened or value  # half the bytes say the same
    if in_memory_form.stored is not None:
        return
    cost = ctx.cost(value)
    consumers = _consumers(node)
    numel = hint_of(value.numel)
    large = ctx.large_reads(cost, value)
    stored = in_memory_form.dtype
    narrow = stored.is_floating_point and stored.itemsize == 2
    rounds = in_memory_form is not value or numel * torch.float32.itemsize > FEW_BYTES
    most_large = MOST_LARGE_NARROW if narrow and ctx.target.costs.memory_bound and rounds else 1
    # Two tensors of half types are as many bytes to read as one of float32, and nothing is written.
    few_bytes = ctx.target.costs.memory_bound and sum(large) <= stored.itemsize
    several = len(consumers) > 1 and (
        cost.cost - cost.loads > ctx.target.costs.cheap(stored)
        or (len(large) > most_large and not few_bytes)
        # Each reads it elsewhere, as along the other dimension of an image that is resized.
        or cost.loads * sum(rule_name(n) == "index.Tensor" for n in consumers) > MAX_LOADS
    )
    if cost.loads and (several or cost.cost > MAX_COST or cost.loads > MAX_LOADS):
        _realize(ctx, value, in_memory_form)
        return
    dear = EXPANDED_COST_IF_NARROW if narrow else EXPANDED_COST
    if cost.cost >= (dear if cost.loads else EXPANDED_COST_OF_PLACES):
        numels = [_numel(c) for c in consumers]
        if numels and max(numels) >= 4 * numel:
            # beside what it is expanded to, whose order is mostly that of what it is made of
            value.stride = strides_as_read(ctx, value)
        if numels and max(numels) >= WIDE_IF_EXPANDED * numel and in_memory_form is value:
            _realize_wide(ctx, value)
        elif numels and max(numels) >= 4 * numel:
            _realize(ctx, value, in_memory_form)


def _goes_on_unrounded(ctx: Context, node: fx.Node, value: Value, until_read: int | None) -> bool:
    """Whether memory would round a value that loops go on with, too, and few bytes more spare these
    the rounding: where library calls read the residual stream itself (what a layer norm of a BERT
    gives, say), its roundings are most of the error. What is added up, as the gradient of a bias
    is, hardly gains by it; and networks of convolutions give eager's very numbers without."""
    narrow = value.dtype.is_floating_point and value.dtype.itemsize == 2
    if (
        not (ctx.target.costs.unrounded_halves and narrow)
        or value.base is not None
        or is_view(node)
    ):
        return False
    if hint_of(value.numel) * torch.float32.itemsize > UNROUNDED_BYTES:
        return False
    if until_read is None or until_read > CACHE_BYTES:
        return False
    for reader in _consumers(node):
        name = rule_name(reader)
        if name.startswith("convolution") or (name in RULES and _numel(reader) < _numel(node)):
            return False
    return not _has_few_digits(ctx, ctx.body(value), value.dtype)


def _has_few_digits(ctx: Context, expr: Expr, dtype: torch.dtype) -> bool:
    """Whether a half type holds a number as it is: it is chosen from what is in that type."""
    stack, seen = [expr], set()
    while stack:
        part = stack.pop()
        if part.uid in seen:
            continue
        seen.add(part.uid)
        if isinstance(part, Load):
            if ctx.buffers[part.buffer].dtype is not dtype:
                return False
        elif isinstance(part, Apply) and part.op in _CHOOSING:
            stack += part.args[1:] if part.op == "where" else part.args
        elif not isinstance(part, Constant) and not (
            isinstance(part, Apply) and part.op == ROUNDING.get(dtype)
        ):
            return False
    return True


def _realize(ctx: Context, value: Value, form: Value) -> None:
    """Put a value in memory in the form chosen for it: what loops alone read, as was found out."""
    if form is not value:
        ctx.realize(form)
        value.forget_memo()  # it is read from there now
    elif value.dtype is torch.int64 or fits_cache_wide(value):
        _realize_wide(ctx, value)
    else:
        ctx.realize(value)


def _realize_wide(ctx: Context, value: Value) -> None:
    """Keep a value in memory for loops as what it is in registers, float32 for half types; places
    that fit in as int32, of which vectors have more lanes.

    Whoever wants the value itself in memory still gets it in its own type, as a copy of that.
    """
    made, own = value.loader, arithmetic_dtype(value.dtype)
    low, high = value_range(ctx.builder, ctx.body(value), ctx.nodes)
    small = own is torch.int64 and -(2**31) <= low <= high < 2**31
    dtype = torch.int32 if small else own
    if dtype is value.dtype or made is None:
        ctx.realize(value)
        return
    kept = replace(value, dtype=dtype, _memo={})
    kept.loader = lambda indices, mask: ctx.builder.apply("cast", [made(indices, mask)], dtype)
    name = ctx.realize(kept).buffer
    if not small:
        ctx.buffers[name] = replace(ctx.buffers[name], eager_dtype=value.dtype)
    value.loader = lambda indices, mask: ctx.builder.apply(
        "cast", [ctx.load(kept, indices, mask)], own
    )
    value.forget_memo()


_HALVES = (torch.float16, torch.bfloat16)
_COMPARISONS = frozenset(f"{op}.Tensor" for op in ("eq", "ne", "lt", "le", "gt", "ge"))
# Operators whose results jump where their operands pass a number, or that pick one of them.
# (Library calls read memory; they are here for what the loops beside them read.)
OBSERVERS = _COMPARISONS | {
    "isnan.default", "isinf.default", "sign.default", "floor.default", "ceil.default",
    "round.default", "trunc.default", "div.Tensor_mode", "remainder.Tensor", "fmod.Tensor",
    "logical_and.default", "logical_or.default", "logical_xor.default", "logical_not.default",
    "any.default", "any.dim", "any.dims", "all.default", "all.dim", "all.dims",
    "argmax.default", "argmin.default", "cummax.default", "cummin.default",
    "sort.default", "sort.stable", "topk.default", "kthvalue.default", "median.default",
    "median.dim", "nanmedian.default", "nanmedian.dim", "mode.default", "nonzero.default",
    "searchsorted.Tensor", "bucketize.Tensor", "unique_dim.default", "_unique2.default",
    "_amp_foreach_non_finite_check_and_unscale.default", "_local_scalar_dense.default",
}  # fmt: skip
# Infinite where the other is: inf - inf and inf / inf are NaN, whatever they are in float32.
_CANCELLING = frozenset({"sub.Tensor", "div.Tensor"})
_ELEMENTWISE = frozenset(pointwise.RULES) | frozenset(indexing.RULES)
# What a sum makes of an infinity is infinite; only in float16 are there more of them in eager.
_REDUCTIONS = frozenset(reductions.RULES) - OBSERVERS


def observed_values(gm: fx.GraphModule) -> set[fx.Node]:
    """The nodes of half types to round as eager does, wherever they are read."""
    found: set[fx.Node] = set()
    seen: set[fx.Node] = set()
    stack = [operand for node in gm.graph.nodes for operand in _asked_about(node)]
    while stack:
        node = stack.pop()
        if node in seen or node.op != "call_function" or not _is_float(node):
            continue
        seen.add(node)
        if _dtype(node) in _HALVES and _is_loop(node):
            found.add(node)
        name = rule_name(node)
        if name in _ELEMENTWISE or is_view(node):
            stack += node.all_input_nodes
        elif name in _REDUCTIONS:
            stack += [n for n in node.all_input_nodes if _dtype(n) is torch.float16]
    return found


def _is_loop(node: fx.Node) -> bool:
    """True for what loops compute and for views of that: what is in memory is rounded there."""
    while is_view(node) and node.all_input_nodes:
        node = node.all_input_nodes[0]
    return node.op == "call_function" and rule_name(node) in RULES


def _asked_about(node: fx.Node) -> Iterator[fx.Node]:
    """The operands whose exact values the result of an operator tells."""
    name = rule_name(node)
    if name in _CANCELLING:
        left, right = node.args[:2]
        if isinstance(left, fx.Node) and _are_equal(left, right):
            yield left
            if isinstance(right, fx.Node):
                yield right
    elif name in OBSERVERS:
        if name in _COMPARISONS and node.args[1] == 0:
            # A number keeps its sign in bfloat16, which has the exponents of float32.
            yield from (n for n in node.all_input_nodes if _dtype(n) is not torch.bfloat16)
        else:
            yield from node.all_input_nodes
    elif name == "_to_copy.default" and not _is_float(node):
        yield from node.all_input_nodes


def _are_equal(left: object, right: object, depth: int = 4) -> bool:
    """True if two operands are the same elements by the same elementwise operators."""
    if not isinstance(left, fx.Node) or not isinstance(right, fx.Node):
        return left == right
    if left is right:
        return True
    return (
        depth > 0
        and left.target is right.target
        and rule_name(left) in _ELEMENTWISE
        and left.kwargs == right.kwargs
        and len(left.args) == len(right.args)
        and all(_are_equal(a, b, depth - 1) for a, b in zip(left.args, right.args, strict=True))
    )


def _dtype(node: fx.Node) -> torch.dtype | None:
    val = _result(node)
    return None if val is None else val.dtype


def _is_float(node: fx.Node) -> bool:
    dtype = _dtype(node)
    return dtype is not None and dtype.is_floating_point


def _result(node: fx.Node) -> torch.Tensor | None:
    """The tensor that a node computes, of several the first."""
    val = node.meta.get("val")
    if isinstance(val, tuple | list):
        val = next((v for v in val if v is not None), None)
    return val if isinstance(val, torch.Tensor) else None


def _nbytes(node: fx.Node) -> int:
    val = node.meta.get("val")
    return _numel(node) * val.dtype.itemsize if isinstance(val, torch.Tensor) else 0


def _numel(node: fx.Node) -> int:
    val = _result(node)
    return 0 if val is None else hint_of(prod(shape_of(val, node.name)))
