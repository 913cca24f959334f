"""Tensors that become something else in place: another view of their storage (`t_`, `resize_`,
`out=` of another size), or of another one (`set_`)."""

from __future__ import annotations

import gc
import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from dovetail_prims.fake_tensor import FakeTensor, set_lazy, set_metadata
from torch._ops import OpOverload
from torch.utils._pytree import tree_leaves

from dovetail_autograd_aot.boundary import ViewStep
from dovetail_autograd_aot.graph.op_info import OpInfo
from dovetail_autograd_aot.trace.node_values import same_metadata, same_sizes
from dovetail_autograd_aot.trace.storage import (
    ConstantWrittenError,
    StorageNeededError,
    TracedStorage,
    TraceError,
    refusal,
    track_of,
    wrap,
)
from dovetail_autograd_aot.trace.views import as_strided, is_dense, take_step, take_view

if TYPE_CHECKING:
    from dovetail_autograd_aot.trace.tracer import Tracer

aten = torch.ops.aten


def change_metadata(
    tracer: Tracer, info: OpInfo, func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> FakeTensor:
    """t_, squeeze_ ...: the tensor becomes another view of its storage."""
    form = info.functional
    assert form is not None
    _note_reshape(tracer, args[0], func, args[1:], kwargs)
    return _become_view(tracer, args[0], lambda tensor: take_view(tracer, form, args, kwargs))


def _note_reshape(
    tracer: Tracer, tensor: Any, func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> None:
    primal = track_of(tensor).storage.primal if type(tensor) is FakeTensor else None
    if primal is not None:
        tracer.shape_changes.setdefault(primal, tracer.running)
    if primal is not None and id(tensor) in tracer.inputs:
        if any(isinstance(leaf, torch.SymInt) for leaf in tree_leaves((args, kwargs))):
            raise refusal(f"{func} of an input, in place, with symbolic sizes", tracer.running)
        step = ViewStep(func, args, tuple(kwargs.items()))
        tracer.reshapers.setdefault(id(tensor), tracer.running)
        noted = tracer.reshaped.setdefault(id(tensor), [])
        noted.append((step, torch.is_grad_enabled()))


def resize(tracer: Tracer, func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """resize_, resize_as_: another view of as many elements or fewer; of an empty tensor,
    uninitialised memory."""
    tensor, wanted = args[0], args[1]
    if type(tensor) is not FakeTensor:
        raise ConstantWrittenError("")
    sizes = list(wanted._sizes if type(wanted) is FakeTensor else wanted)
    if same_sizes(tuple(sizes), tensor._sizes):
        return tensor
    memory_format = args[2] if len(args) > 2 else kwargs.get("memory_format")
    if memory_format not in (None, torch.contiguous_format, torch.preserve_format):
        raise TraceError("resize_ in place to a memory format cannot be compiled")
    if any(type(s) is not int for s in (*sizes, *tensor._sizes)):
        storage = track_of(tensor).storage
        if not _is_empty(storage.root) or storage.primal is not None:
            raise TraceError("resize_ in place with symbolic sizes cannot be compiled")
    return resized(tracer, tensor, sizes, func)


def resized(
    tracer: Tracer,
    tensor: FakeTensor,
    sizes: list[Any],
    func: OpOverload,
    strides: Sequence[Any] | None = None,
) -> FakeTensor:
    """Give `tensor` other sizes in place, with these strides or contiguous ones."""
    storage = track_of(tensor).storage
    change = ViewStep(aten.resize_.default, (sizes,))
    if strides is None:
        strides = [math.prod(sizes[d + 1 :]) for d in range(len(sizes))]
    else:
        change = ViewStep(aten.as_strided_.default, (sizes, list(strides), tensor._offset))
    if _is_empty(storage.root) and 0 not in sizes and storage.primal is None:
        with tracer:
            new = torch.empty_strided(sizes, strides, dtype=tensor._dtype, device=tensor._device)
        return become(tracer, tensor, tracer.traced(new))
    make_room(tracer, tensor, sizes, strides, tensor._offset, func)
    _note_reshape(tracer, tensor, change.op, change.args, {})
    return _become_view(tracer, tensor, lambda t: as_strided(tracer, t, sizes, strides, t._offset))


def make_room(
    tracer: Tracer,
    tensor: FakeTensor,
    sizes: Sequence[Any],
    strides: Sequence[Any],
    offset: Any,
    func: OpOverload,
) -> None:
    """Let the storage of a tensor, on account of `func`, have the memory that a view of it with
    these sizes, strides and offset shows, as eager does: all else stays, and what is new is not
    initialised."""
    storage = track_of(tensor).storage
    if storage.primal is not None and not storage.shared:
        raise StorageNeededError(storage.primal, tracer.running)
    end: Any = 0
    if 0 not in sizes:
        end = offset + 1 + sum((n - 1) * d for n, d in zip(sizes, strides, strict=True))
    root = storage.root
    if root is None or any(type(n) is not int for n in (end, *root._sizes)):
        raise TraceError(f"{func} of a tensor the storage of which is not known as a whole")
    end = -(-end * tensor._dtype.itemsize // root._dtype.itemsize)  # in elements of the whole
    if end <= math.prod(root._sizes):
        return
    if storage.constant is not None:
        raise ConstantWrittenError(storage.constant)
    if not storage.shared and not is_dense(root):
        raise TraceError(f"{func} to more elements than a storage with gaps has")
    _grow(tracer, storage, root, end)


def _grow(tracer: Tracer, storage: TracedStorage, root: FakeTensor, count: int) -> None:
    """Let a storage have `count` elements, of which `root`, the whole so far, are the first."""
    held = math.prod(root._sizes)
    before = ViewStep(aten.as_strided.default, (list(root._sizes), list(root._strides), 0))
    placed = {"dtype": root._dtype, "device": root._device}
    new = tracer.node_op(aten.empty.memory_format, ([count - held],), placed)
    if held:
        flat = ViewStep(aten.as_strided.default, ([held], [1], 0))
        new = tracer.node_op(aten.cat.default, ([tracer.apply_view(flat, storage.node), new],), {})
    storage.root = None
    storage.node = new
    storage.grown.append(before)
    storage.count_write(tracer)
    wrap(new, storage)


def _is_empty(root: FakeTensor | None) -> bool:
    """Is it known of a whole storage that it holds nothing?"""
    return root is not None and any(type(size) is int and size == 0 for size in root._sizes)


def set_(tracer: Tracer, func: OpOverload, tensor: Any, *source: Any) -> FakeTensor:
    """set_: the tensor becomes another one's alias, or a view of a storage."""
    if type(tensor) is not FakeTensor:
        raise ConstantWrittenError("")
    other = _set_to(tracer, func, tensor, *source)
    if track_of(other).storage.constant is not None:
        raise ConstantWrittenError(track_of(other).storage.constant or "")
    # (whether values are lazily conjugated or negated is not taken over)
    if other.is_conj() != tensor.is_conj():
        other = take_step(tracer, other, aten._conj.default, ())
    if other.is_neg() != tensor.is_neg():
        other = take_step(tracer, other, aten._neg_view.default, ())
    if id(tensor) in tracer.inputs:
        if tensor.is_conj() or tensor.is_neg():
            raise TraceError(f"{func} of an input that is a lazy conjugate or negative")
        tracer.set_inputs.setdefault(id(tensor), tracer.running)
    if other is tensor:
        return tensor
    _leave_whole(tensor)
    return become(tracer, tensor, other)


def _set_to(tracer: Tracer, func: OpOverload, tensor: FakeTensor, *source: Any) -> FakeTensor:
    """What `set_` makes a tensor an alias of."""
    if func is aten.set_.source_Tensor:
        return tracer.traced(source[0])
    if func is aten.set_.default:
        with tracer:
            return tracer.traced(torch.empty((0,), dtype=tensor._dtype, device=tensor._device))
    holder = _tensor_in(source[0])
    if holder is None:
        raise TraceError(f"{func} of a storage that no tensor of the graph lies in")
    storage = track_of(holder).storage
    if storage.primal is not None and not storage.shared:
        raise StorageNeededError(storage.primal, tracer.running)
    if storage.root is None:
        raise TraceError(f"{func} of a storage that is not known as a whole")
    whole: list[Any] = list(storage.root._sizes)
    held = math.prod(whole) * storage.root._dtype.itemsize  # bytes
    if holder._dtype is not tensor._dtype:
        unit = max(holder._dtype.itemsize, tensor._dtype.itemsize)
        count = held // unit * unit // holder._dtype.itemsize
        holder = as_strided(tracer, holder, [count], [1], 0)
        holder = take_step(tracer, holder, aten.view.dtype, (tensor._dtype,))
    if func is aten.set_.source_Storage:
        offset, sizes, strides = 0, [held // tensor._dtype.itemsize], [1]
    else:
        offset, sizes = source[1], list(source[2])
        strides = list(source[3]) if len(source) > 3 else []
        strides = strides or [math.prod(sizes[d + 1 :]) for d in range(len(sizes))]
    make_room(tracer, holder, sizes, strides, offset, func)
    return as_strided(tracer, holder, sizes, strides, offset)


def _tensor_in(storage: torch.UntypedStorage) -> FakeTensor | None:
    """A traced tensor whose storage, for PyTorch, this is. (Views of it have others.)"""
    for value in gc.get_objects():
        if type(value) is FakeTensor and "_aot_track" in value.__dict__:
            if value.untyped_storage()._cdata == storage._cdata:
                return value
    return None


def _leave_whole(tensor: FakeTensor) -> None:
    """Let another tensor be the whole storage, if this one, which is about to move, is that. It
    lies as this one did: its value, after a write, may lie otherwise, and begins where an input
    does, not the input's memory."""
    storage = track_of(tensor).storage
    if storage.root is tensor:
        storage.root = None
        wrap(storage.node, storage, like=tensor)


def _become_view(
    tracer: Tracer, tensor: Any, as_view: Callable[[FakeTensor], FakeTensor]
) -> FakeTensor:
    """Make a tensor in place the view of itself that `as_view` gives."""
    if type(tensor) is not FakeTensor:
        raise ConstantWrittenError("")
    storage = track_of(tensor).storage
    if storage.root is tensor and storage.constant is not None:
        raise TraceError("changing the shape of a constant in place cannot be compiled")
    _leave_whole(tensor)
    # (A change in place makes no view: none that autograd would say was made under no_grad.)
    with torch.set_grad_enabled(torch.is_grad_enabled() or not tensor.requires_grad):
        view = as_view(tensor)
    return tensor if same_metadata(view, tensor) else become(tracer, tensor, view)


def become(tracer: Tracer, tensor: FakeTensor, other: FakeTensor) -> FakeTensor:
    """Make a tensor in place what another one is."""
    moved, track = track_of(other), track_of(tensor)
    if not same_metadata(tensor, other):
        moved.storage.reshaped, moved.storage.reshaper = True, tracer.running
    set_metadata(tensor, other._sizes, other._strides, other._offset, moved.storage)
    set_lazy(tensor, other.is_conj(), other.is_neg())
    track.storage, track.chain = moved.storage, moved.chain
    track.node, track.seen = moved.node, moved.seen
    return tensor
