"""What may be computed again in the backward although it costs, to save memory: in which order;
and what costs no more than to read a saved copy.

An `activation_memory_budget` below one lets operators run twice that otherwise do not: those
first that cost least for each byte of their result.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from dovetail_prims.fake_tensor import FakeTensor
from dovetail_prims.node_facts import CHECKED, IN_BACKWARD
from torch._ops import OpOverload
from torch.fx import Node

from dovetail_autograd_aot.graph.fast_graph import ASKED_BY_BACKWARD
from dovetail_autograd_aot.graph.op_info import draws_random_numbers
from dovetail_autograd_aot.trace.node_values import hint, value_bytes

aten = torch.ops.aten

_NEVER = (torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape)
_NUMBERS = (torch.int64, torch.int32)
SECTOR = 32  # bytes that memory gives at least
LARGE_BYTES = 1 << 16
# The dimension that a product sums over, of its first factor; and which argument that is.
_PRODUCTS: dict[Any, int] = {
    aten.mm.default: 0,
    aten.bmm.default: 0,
    aten.addmm.default: 1,
    aten.baddbmm.default: 1,
}


def may_run_twice(node: Node) -> bool:
    """Whether a second run gives the same: no random numbers, nothing that data decides the shape
    of, no operator of the user's (it may do more than it tells)."""
    target = node.target
    if node.op != "call_function" or not isinstance(target, OpOverload):
        return False
    if target.namespace not in ("aten", "prims") or any(t in target.tags for t in _NEVER):
        return False
    return not draws_random_numbers(node) and not CHECKED.is_told(node)


def gathers_rows(node: Node) -> bool:
    """Whether a node reads whole rows by their numbers, as a graph network does its nodes' for each
    edge: read from where they lie, they cost what reading a copy of them would."""
    found = _gathered(node)
    if found is None:
        return False
    source, numbers = found
    value = source.meta["val"]
    row = math.prod(hint(n) for n in value._sizes[len(numbers) :]) * value.dtype.itemsize
    return row >= SECTOR and bool(value.is_contiguous())


def _gathered(node: Node) -> tuple[Node, list[Node | None]] | None:
    """What a node reads elements of by their numbers, and these, for each dimension."""
    arguments: Any = node.args
    if node.target is aten.index.Tensor:
        source, numbers = arguments[:2]
    elif node.target is aten.index_select.default:
        source, numbers = arguments[0], [*[None] * arguments[1], arguments[2]]
    else:
        return None
    if any(isinstance(i, Node) and i.meta["val"].dtype not in _NUMBERS for i in numbers):
        return None  # how many are true is known on the way only
    return source, numbers


def is_backwards_own(node: Node) -> bool:
    """Whether eager's backward computes a node, of some size, and what may run twice: no other
    needs it, or it gathers what the forward has gathered, as the gradient of an interpolation
    does. (To save the smaller ones is a launch less.)"""
    if not ASKED_BY_BACKWARD.is_told(node) or value_bytes(node.meta.get("val")) < LARGE_BYTES:
        return False
    return _gathered(node) is not None or (IN_BACKWARD.is_told(node) and may_run_twice(node))


def work_for_a_byte(node: Node) -> float:
    """About how many multiplications an operator does for each byte of its result."""
    return _work(node) / max(1, value_bytes(node.meta.get("val")))


def _work(node: Node) -> int:
    read = [
        n.meta["val"] for n in node.all_input_nodes if isinstance(n.meta.get("val"), FakeTensor)
    ]
    made = _elements(node.meta.get("val"))
    position = _PRODUCTS.get(node.target)
    if position is not None:
        factor: Any = node.args[position]
        return made * hint(factor.meta["val"]._sizes[-1])
    if node.target is aten.convolution.default:
        weight: Any = node.args[1]
        sizes = weight.meta["val"]._sizes
        return made * math.prod(hint(s) for s in sizes[1:])
    if "scaled_dot_product" in str(node.target) and len(read) >= 2:
        return _elements(read[0]) * hint(read[1]._sizes[-2]) * 2
    return made + sum(map(_elements, read))


def _elements(value: Any) -> int:
    if isinstance(value, FakeTensor):
        return math.prod(hint(s) for s in value._sizes)
    if isinstance(value, (tuple, list)):
        return sum(map(_elements, value))
    return 0
