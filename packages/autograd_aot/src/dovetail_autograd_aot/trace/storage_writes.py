"""Writes to traced tensors: the new value of a storage, of which each of its tensors is a view.

What is written to a view goes back through the steps that lead to it. A view that shows an element
of memory more than once, an expanded tensor or overlapping windows, cannot be given new values as a
whole, but a part of it that shows each element once can: by its offset in the storage.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from dovetail_prims.fake_tensor import FakeTensor
from torch.fx import Node

from dovetail_autograd_aot.boundary import ViewStep
from dovetail_autograd_aot.trace.node_values import (
    hint,
    same_size,
    same_sizes,
    same_strides,
    viewable,
)
from dovetail_autograd_aot.trace.node_values import values as sizes_of
from dovetail_autograd_aot.trace.storage import (
    ConstantWrittenError,
    StorageNeededError,
    TracedStorage,
    TraceError,
    effective,
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
_ELSEWHERE = (
    "a write through as_strided of a tensor that does not begin where its storage does, with "
    "gradients; clone() it first"
)
_RESHAPED = "a write to a view after a change of shape in place, with gradients"


# --- the new value of a storage -------------------------------------------------------------------


def write(tracer: Tracer, tensor: FakeTensor, value: Node, uniform: bool = False) -> None:
    """Make `value` the new contents of `tensor`, visible through every view of its storage. Its
    elements may lie on one another if the value is `uniform`."""
    track = track_of(tensor)
    storage = track.storage
    if storage.constant is not None:
        raise ConstantWrittenError(storage.constant)
    if tracer.in_backward and storage in tracer.seen_outside:
        raise TraceError(
            "the backward of an autograd.Function writes in place to an input or an output of the "
            "graph; call the function outside of the compiled one, or return what it would write"
        )
    if storage.reshaped and tensor._is_view():
        tracer.written_without_gradients.append((tensor, _RESHAPED, tracer.running))
    if _by_offsets_of_others(tensor):
        if tracer.in_backward:
            raise TraceError(_ELSEWHERE)
        tracer.written_without_gradients.append((tensor, _ELSEWHERE, tracer.running))
    pattern = track.node.meta["val"]
    if any(type(n) is int and n == 0 for n in pattern._sizes):
        storage.count_write(tracer)  # nothing is written, but autograd may have seen it
        return
    whole = storage.node.meta["val"]
    chain = effective(storage, track.chain)
    # (What is written into a copy of an input, or of a part of one, lies in memory of its own.)
    before = storage.node
    own = storage.primal is not None or not chain
    values = [before if own else tracer.beginning_its_memory(before)]
    for step in chain:
        values.append(tracer.apply_view(step, values[-1]))
    if _shows_twice(storage, chain, values):
        storage.node = _written_by_offset(tracer, tensor, value, chain, uniform)
        storage.count_write(tracer)
        return
    if not chain:
        storage.node = as_it_lay(tracer, shaped_like(tracer, value, pattern), pattern)
        storage.count_write(tracer)
        track.node = storage.node
        track.seen = storage.version
        return
    new = shaped_like(tracer, value, pattern, strides=False)
    for step, base in zip(reversed(chain), reversed(values[:-1]), strict=True):
        new = _scatter(tracer, step, base, new)
    storage.node = as_it_lay(tracer, shaped_like(tracer, new, whole), whole)
    # The tensor itself is stale now, like every other view: its strides come from the storage.
    storage.count_write(tracer)


def _by_offsets_of_others(tensor: FakeTensor) -> bool:
    """Whether autograd, which replays an as_strided on a gradient that begins where its memory
    does, would do so with the offset in the storage that the program gave."""
    base: Any = tensor._base
    begins_there = base is None or (type(base._offset) is int and base._offset == 0)
    if begins_there or not torch.is_grad_enabled():
        return False
    later = track_of(tensor).chain[len(track_of(base).chain) :]
    return any(step.op is aten.as_strided.default for step in later)


def _scatter(tracer: Tracer, step: ViewStep, base: Node, new: Node) -> Node:
    """The value of `base` after its view by `step`, which shows each of its elements once at most,
    became `new`."""
    op, args, kwargs = step.op, step.args, dict(step.kwargs)
    val = base.meta["val"]
    if op is aten.alias.default:
        return new
    if op is aten.slice.Tensor:
        return tracer.node_op(aten.slice_scatter.default, (base, new, *args), kwargs)
    if op is aten.select.int:
        return tracer.node_op(aten.select_scatter.default, (base, new, *args), kwargs)
    if op is aten.diagonal.default:
        return tracer.node_op(aten.diagonal_scatter.default, (base, new, *args), kwargs)
    if op is aten.as_strided.default:
        base = tracer.with_own_memory(base)
        return tracer.node_op(aten.as_strided_scatter.default, (base, new, *args), kwargs)
    if op in (aten.view.default, aten._reshape_alias.default):
        return reshape(tracer, new, val._sizes)
    if op in (aten.unsqueeze.default, aten.squeeze.default, aten.squeeze.dim, aten.squeeze.dims):
        return reshape(tracer, new, val._sizes)
    if op is aten.t.default:
        return tracer.node_op(aten.t.default, (new,), {}) if len(val._sizes) == 2 else new
    if op is aten.transpose.int:
        return tracer.node_op(aten.transpose.int, (new, *args), kwargs)
    if op is aten.permute.default:
        dims = [d % len(args[0]) for d in args[0]]  # type: ignore[arg-type, attr-defined]
        inverse = [dims.index(i) for i in range(len(dims))]
        return tracer.node_op(aten.permute.default, (new, inverse), {})
    if op is aten.expand.default:  # (to the same shape, or it would show elements twice)
        return new
    if op is aten.view.dtype:
        new = _contiguous(tracer, new)
        return tracer.node_op(aten.view.dtype, (new, val._dtype), {})
    if op is aten.view_as_real.default:
        new = _contiguous(tracer, new)
        return tracer.node_op(aten.view_as_complex.default, (new,), {})
    if op is aten.view_as_complex.default:
        return tracer.node_op(aten.view_as_real.default, (new,), {})
    if op is aten._conj.default:
        return tracer.node_op(aten._conj_physical.default, (new,), {})
    if op is aten._neg_view.default:
        return tracer.node_op(aten.neg.default, (new,), {})
    if op is aten.unfold.default:
        return _unfold_scatter(tracer, base, new, step)
    raise TraceError(f"writing through a view made by {op} is not supported; clone() it first")


def _contiguous(tracer: Tracer, value: Node) -> Node:
    """`value`, with its elements in order, to be seen as elements of another size."""
    kwargs = {"memory_format": torch.contiguous_format}
    return tracer.node_op(aten.clone.default, (value,), kwargs)


def _unfold_scatter(tracer: Tracer, base: Node, new: Node, step: ViewStep) -> Node:
    """Windows that do not overlap: their n-th elements are a slice of the base, for each n."""
    dim, size, hop = (int(a) for a in step.args)  # type: ignore[call-overload]
    rank = len(base.meta["val"]._sizes)
    if rank == 0:
        return reshape(tracer, new, ())
    dim %= rank
    count = new.meta["val"]._sizes[dim]
    for n in range(size):
        part = tracer.node_op(aten.select.int, (new, rank, n), {})
        stop = tracer.nodes(n + (count - 1) * hop + 1)
        base = tracer.node_op(aten.slice_scatter.default, (base, part, dim, n, stop, hop), {})
    return base


# --- elements that lie on one another -------------------------------------------------------------


def _shows_twice(storage: TracedStorage, chain: Sequence[ViewStep], values: Sequence[Node]) -> bool:
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


def _written_by_offset(
    tracer: Tracer, tensor: FakeTensor, value: Node, chain: Sequence[ViewStep], uniform: bool
) -> Node:
    """The new value of a tensor's storage. Elements of the tensor that lie on one another, because
    it is expanded, may only be given a `uniform` value."""
    storage = track_of(tensor).storage
    root = storage.root
    sizes, strides = list(tensor._sizes), list(tensor._strides)
    pattern = shaped_like(tracer, value, tensor, strides=False)
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
    fixed = root is not None and all(type(n) is int for n in (*root._sizes, *root._strides))
    if root is None or not fixed or not (storage.shared or is_dense(root)):
        raise TraceError(_REFUSED)
    base = tracer.with_own_memory(storage.node)
    args: tuple[Any, ...] = (base, pattern, sizes, strides, tensor._offset)
    new = tracer.node_op(aten.as_strided_scatter.default, args, {})
    whole = storage.node.meta["val"]
    return as_it_lay(tracer, shaped_like(tracer, new, whole), whole)


# --- shaping values -------------------------------------------------------------------------------


def as_it_lay(tracer: Tracer, value: Node, before: FakeTensor) -> Node:
    """`value`, where dimensions of one element have the strides that `before` has there if a new
    dimension gets these somewhere: other strides show in views, and in how results of it lie."""
    for dim in reversed(range(len(before._sizes))):
        now = value.meta["val"]
        size = before._sizes[dim]
        one = type(size) is int and size == 1
        if not one or same_size(now._strides[dim], before._strides[dim]):
            continue
        rest = [d for d in range(len(now._sizes)) if d != dim]
        natural = [*(now._sizes[d] * now._strides[d] for d in rest), 1]
        for place in sorted(range(len(natural)), key=lambda place: place != dim):
            if same_size(natural[place], before._strides[dim]):
                part = tracer.node_op(aten.select.int, (value, dim, 0), {})
                value = tracer.node_op(aten.unsqueeze.default, (part, place), {})
                if place != dim:
                    order = list(range(len(natural)))
                    order.insert(dim, order.pop(place))
                    value = tracer.node_op(aten.permute.default, (value, order), {})
                break
    return value


def shaped_like(tracer: Tracer, value: Node, pattern: FakeTensor, *, strides: bool = True) -> Node:
    """`value` with the dtype, shape (broadcast), device and strides of `pattern`."""
    val = value.meta["val"]
    if val._dtype != pattern._dtype:
        value = tracer.node_op(aten._to_copy.default, (value,), {"dtype": pattern._dtype})
        val = value.meta["val"]
    if val._device != pattern._device:
        value = tracer.node_op(aten._to_copy.default, (value,), {"device": pattern._device})
        val = value.meta["val"]
    if not same_sizes(val._sizes, pattern._sizes):
        sizes = [tracer.nodes(s) for s in pattern._sizes]
        value = tracer.node_op(aten.expand.default, (value, sizes), {})
        val = value.meta["val"]
    if strides and not same_strides(val, pattern):
        value = _restride(tracer, value, pattern)
    return value


def _restride(tracer: Tracer, value: Node, pattern: FakeTensor) -> Node:
    """The same values laid out in the order of `pattern`'s strides, without gaps."""
    order = sorted(range(len(pattern._sizes)), key=lambda d: (-hint(pattern._strides[d]), d))
    inverse = [order.index(d) for d in range(len(order))]
    permuted = tracer.node_op(aten.permute.default, (value, order), {})
    return tracer.node_op(aten.permute.default, (_contiguous(tracer, permuted), inverse), {})


def reshape(tracer: Tracer, value: Node, sizes: tuple[Any, ...]) -> Node:
    """`value` in another shape: a view if its strides allow, else a copy."""
    size_nodes = [tracer.nodes(s) for s in sizes]
    if not viewable(value.meta["val"], sizes):
        value = _contiguous(tracer, value)
    return tracer.node_op(aten.view.default, (value, size_nodes), {})
