"""Values of half types of which a program asks what eager has in memory.

Fused arithmetic of half types goes on in float32, without the roundings and the overflows between
two operators: more exact than eager, and nobody sees the difference but by asking. `isinf(x * x)`,
a comparison, a conversion to an integer or the position of a maximum ask; an answer for the float32
number would contradict the result itself, which is rounded once it is stored. So what is asked
about, and what it is computed from element by element, is rounded as eager stores it.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import fx

from dovetail_inductor.lowering import indexing, pointwise, reductions
from dovetail_inductor.lowering.in_memory import is_view
from dovetail_inductor.lowering.rules import RULES, rule_name

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
    val = node.meta.get("val")
    if isinstance(val, tuple | list):  # of several results the first
        val = next((v for v in val if v is not None), None)
    return val.dtype if isinstance(val, torch.Tensor) else None


def _is_float(node: fx.Node) -> bool:
    dtype = _dtype(node)
    return dtype is not None and dtype.is_floating_point


__all__ = ["OBSERVERS", "observed_values"]
