"""Functional values behind mutable tensors: versioned storages and view chains.

Every traced tensor belongs to a `TracedStorage`, which holds one functional value (an FX node) for
the whole storage, and reaches its part of it through a chain of view steps. A write makes a new
value for the storage; a tensor read after that replays its chain on the new value.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from dovetail_prims.fake_tensor import FakeStorage, FakeTensor, make
from torch.fx import Node

from dovetail_autograd_aot.graphs import ViewStep

if TYPE_CHECKING:
    from dovetail_autograd_aot.tracer import Tracer

aten = torch.ops.aten


class TraceError(RuntimeError):
    """The captured graph does something that cannot be traced ahead of time."""


class TracedStorage(FakeStorage):
    """One storage: its current functional value and how often it was written."""

    __slots__ = ("constant", "node", "primal", "root", "version")

    def __init__(self, node: Node, primal: int | None = None, constant: str | None = None) -> None:
        self.node = node
        self.version = 0
        self.primal = primal  # the index of the input whose storage this is
        self.constant = constant  # the name of the attribute whose storage this is
        self.root: FakeTensor | None = None  # the tensor that is the whole storage


class Track:
    """How a traced tensor sees its storage: `node` is its value as of version `seen`."""

    __slots__ = ("chain", "node", "seen", "storage")

    def __init__(self, storage: TracedStorage, chain: tuple[ViewStep, ...], node: Node) -> None:
        self.storage = storage
        self.chain = chain
        self.node = node
        self.seen = storage.version


def track_of(tensor: FakeTensor) -> Track:
    """The tracking state of a traced tensor."""
    track = tensor.__dict__.get("_aot_track")
    if track is None:
        raise TraceError("a fake tensor from outside the trace was used inside it")
    return track  # type: ignore[no-any-return]


def wrap(node: Node, storage: TracedStorage, chain: tuple[ViewStep, ...] = ()) -> FakeTensor:
    """A new traced tensor for the value `node`."""
    val = node.meta["val"]
    tensor = make(val._sizes, val._strides, val._dtype, val._device, val._offset, storage)
    tensor.__dict__["_aot_track"] = Track(storage, chain, node)
    if not chain and storage.root is None:
        storage.root = tensor
    return tensor


def fresh(node: Node) -> FakeTensor:
    """A traced tensor with a storage of its own."""
    return wrap(node, TracedStorage(node))


def read(tracer: Tracer, tensor: FakeTensor) -> Node:
    """The current value of a traced tensor."""
    track = track_of(tensor)
    storage = track.storage
    if track.seen != storage.version:
        node = storage.node
        for step in track.chain:
            node = tracer.apply_view(step, node)
        track.node = node
        track.seen = storage.version
    return track.node


def write(tracer: Tracer, tensor: FakeTensor, value: Node) -> None:
    """Make `value` the new contents of `tensor`, visible through every view of its storage."""
    track = track_of(tensor)
    storage = track.storage
    if storage.constant is not None:
        raise ConstantWrittenError(storage.constant)
    pattern = track.node.meta["val"]
    if not track.chain:
        storage.node = tracer.like(value, pattern)
        storage.version += 1
        track.node = storage.node
        track.seen = storage.version
        return
    values = [storage.node]
    for step in track.chain[:-1]:
        values.append(tracer.apply_view(step, values[-1]))
    new = tracer.like(value, pattern, strides=False)
    for step, base in zip(reversed(track.chain), reversed(values), strict=True):
        new = _scatter(tracer, step, base, new)
    storage.node = tracer.like(new, storage.node.meta["val"])
    # The tensor itself is stale now, like every other view: its strides come from the storage.
    storage.version += 1


class ConstantWrittenError(Exception):
    """A tensor held as an attribute is written to: it must become an input (the trace restarts)."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.name = name


def _scatter(tracer: Tracer, step: ViewStep, base: Node, new: Node) -> Node:
    """The value of `base` after its view by `step` became `new`."""
    from dovetail_autograd_aot.values import same_sizes

    op, args, kwargs = step.op, step.args, dict(step.kwargs)
    val = base.meta["val"]
    if op is aten.slice.Tensor:
        return tracer.node_op(aten.slice_scatter.default, (base, new, *args), kwargs)
    if op is aten.select.int:
        return tracer.node_op(aten.select_scatter.default, (base, new, *args), kwargs)
    if op is aten.diagonal.default:
        return tracer.node_op(aten.diagonal_scatter.default, (base, new, *args), kwargs)
    if op is aten.as_strided.default:
        return tracer.node_op(aten.as_strided_scatter.default, (base, new, *args), kwargs)
    if op in (aten.view.default, aten._reshape_alias.default):
        return tracer.reshape(new, val._sizes)
    if op in (
        aten.unsqueeze.default,
        aten.squeeze.default,
        aten.squeeze.dim,
        aten.squeeze.dims,
    ):
        return tracer.reshape(new, val._sizes)
    if op is aten.t.default:
        return tracer.node_op(aten.t.default, (new,), {}) if len(val._sizes) == 2 else new
    if op is aten.transpose.int:
        return tracer.node_op(aten.transpose.int, (new, *args), kwargs)
    if op is aten.permute.default:
        dims = [d % len(args[0]) for d in args[0]]  # type: ignore[arg-type, attr-defined]
        inverse = [dims.index(i) for i in range(len(dims))]
        return tracer.node_op(aten.permute.default, (new, inverse), {})
    if op is aten.expand.default:
        if same_sizes(new.meta["val"]._sizes, val._sizes):
            return new
        raise TraceError(
            "unsupported operation: more than one element of the written-to tensor refers to a "
            "single memory location (a write to an expanded tensor); clone() it first"
        )
    if op is aten.view.dtype:
        return tracer.node_op(aten.view.dtype, (new, val._dtype), {})
    if op is aten.view_as_real.default:
        return tracer.node_op(aten.view_as_complex.default, (new,), {})
    if op is aten.view_as_complex.default:
        return tracer.node_op(aten.view_as_real.default, (new,), {})
    if op in (aten._conj.default, aten._neg_view.default):
        return tracer.node_op(op, (new,), {})  # each undoes itself
    if op is aten.unfold.default:
        return _unfold_scatter(tracer, base, new, step)
    raise TraceError(f"writing through a view made by {op} is not supported; clone() it first")


def _unfold_scatter(tracer: Tracer, base: Node, new: Node, step: ViewStep) -> Node:
    """Windows that do not overlap are a strided part of the base."""
    _, size, hop = step.args
    if size > hop:  # type: ignore[operator]
        raise TraceError("a write to overlapping windows (unfold); clone() them first")
    window = new.meta["val"]
    return tracer.node_op(
        aten.as_strided_scatter.default,
        (base, new, list(window._sizes), list(window._strides), window._offset),
        {},
    )
