"""Which operators raise for what their arguments hold, beyond what metadata tells.

Eager raises whether or not anybody reads the result. So a call of such an operator must not be
dropped as dead code, unless what it checks is checked otherwise: `indices_of` and `divisor_of` name
what that is, where it is less than the whole call.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch._ops import OpOverload
from torch.fx import Node

from dovetail_prims.fake_tensor import FakeTensor

aten = torch.ops.aten

# Operators that take an index for each of several dimensions, as their second argument.
_BY_SEVERAL = frozenset({"index.Tensor", "index_put.default"})
# (self, dim, index, ...): `index` has as many dimensions as `self`.
_ALONG_ONE = frozenset(
    {
        "gather.default", "scatter.src", "scatter.value", "scatter.reduce", "scatter.value_reduce",
        "scatter_add.default", "scatter_reduce.two",
    }
)  # fmt: skip
_EMBEDDING = "embedding.default"
# (self, other): on a CPU, an integer divided by zero is an error.
_DIVISIONS = frozenset(
    {
        "div.Tensor_mode", "div.Scalar_mode", "floor_divide.default", "floor_divide.Scalar",
        "remainder.Tensor", "remainder.Scalar", "remainder.Scalar_Tensor", "fmod.Tensor",
        "fmod.Scalar",
    }
)  # fmt: skip
# Checked in the midst of their work.
_WHOLE = frozenset(
    {
        "_linalg_eigh.default", "_linalg_svd.default", "linalg_eig.default",
        "linalg_eigvals.default", "_linalg_eigvals.default", "linalg_lstsq.default",
        "_linalg_check_errors.default", "repeat_interleave.Tensor", "bincount.default",
        "histc.default", "_ctc_loss.default", "_ctc_loss.Tensor", "index_reduce.default",
        "_embedding_bag.default", "_embedding_bag_forward_only.default",
        "searchsorted.Tensor", "searchsorted.Scalar", "masked_scatter.default", "put.default",
        "take.default", "index_select.default", "index_add.default", "index_copy.default",
        "index_fill.int_Scalar", "index_fill.int_Tensor", "nll_loss_forward.default",
        "nll_loss2d_forward.default", "multi_margin_loss.default",
        "multilabel_margin_loss_forward.default", "binary_cross_entropy.default",
    }
)  # fmt: skip
# Operators of other namespaces are somebody's own, and may raise anything.
_KNOWN_NAMESPACES = ("aten", "prim", "prims")


@dataclass(frozen=True)
class CheckedIndex:
    """An index tensor that a call holds against the size of one dimension.

    `op` is the operator by which it is read: `aten.index.Tensor` (negative numbers count from the
    end), `aten.gather.default` or `aten.embedding.default` (they are refused).
    """

    op: OpOverload
    index: Node
    dim: int
    size: int | torch.SymInt


def _name_of(node: Node) -> str:
    return _name(node.target) if isinstance(node.target, OpOverload) else ""


@functools.cache
def _name(op: OpOverload) -> str:
    """The name of an ATen operator; nothing of another."""
    return str(op).removeprefix("aten.") if op.namespace == "aten" else ""


@functools.cache
def may_raise(target: Any) -> bool:
    """Whether calls of an operator may raise for what their arguments hold."""
    if not isinstance(target, OpOverload):
        return False
    if target.namespace not in _KNOWN_NAMESPACES:
        return not target.namespace.startswith("dovetail")
    name = _name(target)
    tables = (_BY_SEVERAL, _ALONG_ONE, (_EMBEDDING,), _DIVISIONS, _WHOLE)
    return any(name in table for table in tables)


def indices_of(node: Node) -> Iterator[CheckedIndex]:
    """The indices that a call checks, if that is all it raises for."""
    name = _name_of(node)
    if name in _BY_SEVERAL:
        own = _value(node.args[0])
        picks: Any = node.args[1]
        for dim, pick in enumerate(picks):
            if isinstance(pick, Node) and _value(pick)._dtype not in (torch.bool, torch.uint8):
                yield CheckedIndex(aten.index.Tensor, pick, dim, own._sizes[dim])
    elif name in _ALONG_ONE:
        own, given, index = _value(node.args[0]), node.args[1], node.args[2]
        if isinstance(index, Node) and isinstance(given, int) and own._sizes:
            dim = given % len(own._sizes)
            yield CheckedIndex(aten.gather.default, index, dim, own._sizes[dim])
    elif name == _EMBEDDING and isinstance(node.args[1], Node):
        size = _value(node.args[0])._sizes[0]
        yield CheckedIndex(aten.embedding.default, node.args[1], 0, size)


def divisor_of(node: Node) -> Node | None:
    """The divisor of a division of integers that may raise for it alone."""
    if _name_of(node) not in _DIVISIONS or len(node.args) < 2:
        return None
    divisor, value = node.args[1], node.meta["val"]
    whole = isinstance(value, FakeTensor) and not value._dtype.is_floating_point
    if not whole or value.device.type != "cpu" or not isinstance(divisor, Node):
        return None
    return divisor if isinstance(divisor.meta["val"], FakeTensor) else None


def raises_in_its_work(node: Node) -> bool:
    """Whether a call may raise for data, and what it checks cannot be told from the call: it must
    stay as it is."""
    target = node.target
    if not isinstance(target, OpOverload):
        return False
    namespace = target.namespace
    if namespace not in _KNOWN_NAMESPACES:
        return not namespace.startswith("dovetail")
    return _name_of(node) in _WHOLE or _divides_by_zero(node)


def _divides_by_zero(node: Node) -> bool:
    """Whether a call divides integers by the number 0."""
    if _name_of(node) not in _DIVISIONS or len(node.args) < 2:
        return False
    value, divisor = _value(node), node.args[1]
    whole = not value._dtype.is_floating_point and value.device.type == "cpu"
    return whole and isinstance(divisor, int) and divisor == 0


def _value(node: Any) -> FakeTensor:
    value: FakeTensor = node.meta["val"]
    return value
