"""Writes to views of tensors of which some show an element of memory more than once.

Such a view, an expanded tensor or overlapping windows, cannot be given new values as a whole, but a
part of it that shows each element once can: by where it lies in the storage.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from dovetail_prims.fake_tensor import FakeTensor
from torch.fx import Node

from dovetail_autograd_aot.boundary import ViewStep
from dovetail_autograd_aot.trace.node_values import same_sizes
from dovetail_autograd_aot.trace.node_values import values as sizes_of
from dovetail_autograd_aot.trace.storage import (
    StorageNeededError,
    TracedStorage,
    TraceError,
    as_it_lay,
    reaches_into_itself,
    track_of,
)
from dovetail_autograd_aot.trace.views import PHYSICAL, is_dense

if TYPE_CHECKING:
    from dovetail_autograd_aot.trace.tracer import Tracer

aten = torch.ops.aten

_REFUSED = (
    "unsupported operation: more than one element of the written-to tensor refers to a single "
    "memory location (it is expanded, shows overlapping windows, or overlaps itself otherwise); "
    "clone() it first"
)
_OTHER_ELEMENTS = frozenset(
    {aten.view.dtype, aten.view_as_real.default, aten.view_as_complex.default}
)


def shows_twice(storage: TracedStorage, chain: Sequence[ViewStep], values: Sequence[Node]) -> bool:
    """Whether a tensor's storage, or one of the views that lead to it, whose `values` these are,
    shows elements of memory more than once."""
    whole = storage.node.meta["val"]
    pairs = zip(whole._sizes, whole._strides, strict=True)
    if any(type(n) is int and n > 1 and type(d) is int and d == 0 for n, d in pairs):
        return True
    for step, before, after in zip(chain, values[:-1], values[1:], strict=True):
        if step.op is aten.expand.default:
            if not same_sizes(before.meta["val"]._sizes, after.meta["val"]._sizes):
                return True
        elif step.op is aten.unfold.default:
            if int(step.args[1]) > int(step.args[2]):  # type: ignore[call-overload]
                return True
        elif step.op is aten.as_strided.default:
            # (The strides of symbolic sizes are nodes.)
            if reaches_into_itself(after.meta["val"]._sizes, sizes_of(step.args[1])):
                return True
    return False


def write_by_place(
    tracer: Tracer, tensor: FakeTensor, value: Node, chain: Sequence[ViewStep], uniform: bool
) -> Node:
    """The new value of a tensor's storage. Elements of the tensor that lie on one another, because
    it is expanded, may only be given a `uniform` value."""
    storage = track_of(tensor).storage
    root = storage.root
    sizes, strides = list(tensor._sizes), list(tensor._strides)
    pattern = tracer.like(value, tensor, strides=False)
    if uniform:
        for dim, stride in enumerate(strides):
            if type(stride) is int and stride == 0:
                sizes[dim] = 1
                pattern = tracer.node_op(aten.slice.Tensor, (pattern, dim, 0, 1), {})
    known = all(type(n) is int for n in (*sizes, *strides, tensor._offset))
    seen_otherwise = any(step.op in PHYSICAL or step.op in _OTHER_ELEMENTS for step in chain)
    if seen_otherwise or not known or reaches_into_itself(sizes, strides):
        raise TraceError(_REFUSED)
    if storage.primal is not None and not storage.shared:
        raise StorageNeededError(storage.primal, tracer.running)
    if root is None or not (storage.shared or is_dense(root)) or not _is_fixed(root):
        raise TraceError(_REFUSED)
    base = tracer.with_own_memory(storage.node)
    args: tuple[Any, ...] = (base, pattern, sizes, strides, tensor._offset)
    new = tracer.node_op(aten.as_strided_scatter.default, args, {})
    whole = storage.node.meta["val"]
    return as_it_lay(tracer, tracer.like(new, whole), whole)


def _is_fixed(val: FakeTensor) -> bool:
    return all(type(n) is int for n in (*val._sizes, *val._strides))


__all__ = ["shows_twice", "write_by_place"]
