"""Copies that a program makes of its inputs: a graph that writes to nothing needs none, but the
program may write to the input, a queue or a buffer, before the backward reads the copy."""

from __future__ import annotations

from typing import Any

import torch
from torch._ops import OpOverload
from torch.fx import Node

from dovetail_autograd_aot.graph.node_facts import WHOLE_STORAGE
from dovetail_autograd_aot.graph.op_info import OpKind, op_info
from dovetail_autograd_aot.trace.node_values import same_metadata, same_size

aten = torch.ops.aten


def views_memory(node: Node) -> bool:
    """Whether a node's result may share memory with its first argument."""
    target = node.target
    if node.op != "call_function" or not isinstance(target, OpOverload):
        return False
    kind = op_info(target).kind
    return kind in (OpKind.VIEW, OpKind.ALIAS) or target is aten._unsafe_view.default


# What they give lies as their first argument does, of which they copy all the memory.
_SCATTERS = frozenset(
    {
        aten.select_scatter.default, aten.slice_scatter.default, aten.diagonal_scatter.default,
        aten.as_strided_scatter.default,
    }
)  # fmt: skip


def begins_its_memory(node: Node) -> bool:
    """Whether a node's value is known to begin where its memory does."""
    while same_size(node.meta["val"]._offset, 0):
        if node.op == "placeholder":
            return WHOLE_STORAGE.holds(node)
        if node.target not in _SCATTERS and not views_memory(node):
            return True
        node = node.args[0]  # type: ignore[assignment]
    return False


def copies_input(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Is it a copy of an input, or of a view of one, in the layout that it has?"""
    if func is not aten.clone.default:
        return False
    if kwargs.get("memory_format") not in (None, torch.preserve_format):
        return False
    source = args[0]
    while type(source) is Node and views_memory(source):
        source = source.args[0]
    return type(source) is Node and source.op == "placeholder"


def is_copy_of_input(node: Node) -> bool:
    """`copies_input` of a node."""
    return node.op == "call_function" and copies_input(node.target, node.args, node.kwargs)


def can_be_read_from_input(node: Node) -> bool:
    """Whether everybody who reads a copy of an input can as well read what it is a copy of: its
    values alone, in the same layout. A copy that is written to, or counted in from the beginning of
    its memory, is needed as it is."""
    if not is_copy_of_input(node):
        return False
    source = node.args[0]
    assert isinstance(source, Node)
    return same_metadata(node.meta["val"], source.meta["val"]) and all(
        user.op == "output" or _reads_values(user.target) for user in node.users
    )


def _reads_values(target: Any) -> bool:
    functional = isinstance(target, OpOverload) and not target._schema.is_mutable
    return functional and target not in _FROM_THE_BEGINNING


# They count from the beginning of their argument's memory.
_FROM_THE_BEGINNING = (
    aten.as_strided.default,
    aten.as_strided_copy.default,
    aten.as_strided_scatter.default,
)

__all__ = [
    "begins_its_memory", "can_be_read_from_input", "copies_input", "is_copy_of_input",
    "views_memory",
]  # fmt: skip
