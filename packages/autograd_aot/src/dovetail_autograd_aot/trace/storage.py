"""Functional values behind mutable tensors: versioned storages and view chains.

Every traced tensor belongs to a `TracedStorage`, which holds one functional value (an FX node) for
the whole storage, and reaches its part of it through a chain of view steps. A write makes a new
value for the storage; a tensor read after that replays its chain on the new value.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from dovetail_prims.fake_tensor import FakeStorage, FakeTensor, make, set_lazy
from dovetail_prims.node_facts import Refusal, blame
from torch.fx import Node

from dovetail_autograd_aot.boundary import ViewStep

if TYPE_CHECKING:
    from dovetail_autograd_aot.trace.tracer import Tracer

aten = torch.ops.aten

_LAZY = (aten._conj.default, aten._neg_view.default)


class TraceError(Refusal):
    """The captured graph does something that cannot be traced ahead of time."""


def refusal(why: str, node: str | None) -> TraceError:
    """An error on account of the captured graph's `node`, if that is known."""
    error = TraceError(why)
    if node is not None:
        blame(error, node)
    return error


class TracedStorage(FakeStorage):
    """One storage: its current functional value and how often it was written."""

    __slots__ = (
        "constant", "grown", "lazy", "node", "part", "primal", "reshaped", "reshaper", "rewriter",
        "root", "shared", "version", "writer",
    )  # fmt: skip

    def __init__(
        self,
        node: Node,
        primal: int | None = None,
        constant: str | None = None,
        shared: bool = False,
    ) -> None:
        super().__init__()
        self.node = node
        self.version = 0
        self.writer: str | None = None  # the captured graph's node that wrote to it first
        self.rewriter: str | None = None  # that which first wrote what it held before
        self.lazy = (False, False)  # an input that is a lazy conjugate, a lazy negative
        self.reshaped = False  # a tensor of it changed its shape in place,
        self.reshaper: str | None = None  # at this node of the captured graph
        self.shared = shared  # an input that is a whole storage, other inputs lie in it
        self.primal = primal  # the index of the input whose storage this is
        self.constant = constant  # the name of the attribute whose storage this is
        # Sizes and strides of the only elements that anybody gave values to.
        self.part: tuple[tuple[Any, ...], tuple[Any, ...]] | None = None
        self.root: FakeTensor | None = None  # the tensor that is the whole storage
        # Each time that it was given more memory: where what had been the whole lies in it.
        self.grown: list[ViewStep] = []

    def count_write(self, tracer: Tracer) -> None:
        """There is a new version of it, by the node that runs."""
        self.version += 1
        self.writer = self.writer or tracer.running


class Track:
    """How a traced tensor sees its storage: `node` is its value as of version `seen`."""

    __slots__ = ("_chain", "_grown", "node", "seen", "storage")

    def __init__(self, storage: TracedStorage, chain: tuple[ViewStep, ...], node: Node) -> None:
        self.storage = storage
        self.chain = chain
        self.node = node
        self.seen = storage.version

    @property
    def chain(self) -> tuple[ViewStep, ...]:
        """The steps that lead to it from its storage, as large as that is now."""
        grown = self.storage.grown
        if len(grown) != self._grown:
            self.chain = (*reversed(grown[self._grown :]), *self._chain)
        return self._chain

    @chain.setter
    def chain(self, chain: tuple[ViewStep, ...]) -> None:
        self._chain = chain
        self._grown = len(self.storage.grown)


def track_of(tensor: FakeTensor) -> Track:
    """The tracking state of a traced tensor."""
    track = tensor.__dict__.get("_aot_track")
    if track is None:
        raise TraceError("a fake tensor from outside the trace was used inside it")
    return track  # type: ignore[no-any-return]


def lazy_bits(storage: TracedStorage, chain: tuple[ViewStep, ...]) -> tuple[bool, bool]:
    """Whether autograd, and the user, see a lazy conjugate, a lazy negative. (Values of the graph
    are never lazy.)"""
    conj, neg = storage.lazy
    for step in chain:
        conj ^= step.op is aten._conj.default
        neg ^= step.op is aten._neg_view.default
    return conj, neg


def wrap(
    node: Node,
    storage: TracedStorage,
    chain: tuple[ViewStep, ...] = (),
    like: FakeTensor | None = None,
) -> FakeTensor:
    """A new traced tensor for the value `node`, that lies in memory as `like` does, if given."""
    val = node.meta["val"] if like is None else like
    tensor = make(val._sizes, val._strides, val._dtype, val._device, val._offset, storage)
    conj, neg = lazy_bits(storage, chain)
    if conj or neg:
        set_lazy(tensor, conj and val._dtype.is_complex, neg)
    tensor.__dict__["_aot_track"] = Track(storage, chain, node)
    if not chain and storage.root is None:
        storage.root = tensor
    return tensor


def fresh(node: Node) -> FakeTensor:
    """A traced tensor with a storage of its own."""
    return wrap(node, TracedStorage(node))


def effective(storage: TracedStorage, chain: tuple[ViewStep, ...]) -> tuple[ViewStep, ...]:
    """The steps that tell what is seen: as_strided looks at the storage, whatever came before, but
    keeps what is lazy, and the dtype. (Autograd does not: the gradient goes back through all of
    them.)"""
    for i in reversed(range(len(chain))):
        if chain[i].op is aten.as_strided.default:
            before = [step.op for step in chain[:i]]
            kept = [ViewStep(op, ()) for op in _LAZY if before.count(op) % 2]
            seen = in_dtype(storage.node.meta["val"], seen_dtype(storage, chain[:i]), chain[i])
            return (*seen, *kept, *chain[i + 1 :])
    return chain


def seen_dtype(storage: TracedStorage, chain: tuple[ViewStep, ...]) -> torch.dtype:
    """The dtype that these steps show a storage's elements as."""
    dtype: Any = storage.node.meta["val"]._dtype
    for step in chain:
        if step.op is aten.view.dtype:
            dtype = step.args[0]
        elif step.op is aten.view_as_real.default:
            dtype = dtype.to_real()
        elif step.op is aten.view_as_complex.default:
            dtype = dtype.to_complex()
    return dtype  # type: ignore[no-any-return]


def in_dtype(whole: FakeTensor, dtype: torch.dtype, strided: ViewStep) -> tuple[ViewStep, ...]:
    """The steps that lead from a whole storage to what `strided`, an as_strided, shows that counts
    elements of a `dtype`, which may be another one than the whole has."""
    own: torch.dtype = whole._dtype
    if dtype is own:
        return (strided,)
    sizes, strides, offset = strided.args
    numbers = [*sizes, *strides, offset, *whole._sizes]  # type: ignore[misc]
    if not all(type(n) is int for n in numbers):
        raise TraceError("as_strided of a tensor that is seen as another dtype, of symbolic sizes")
    seen = ViewStep(aten.view.dtype, (dtype,))
    if dtype.itemsize == own.itemsize:
        return strided, seen
    if dtype.itemsize < own.itemsize:
        flat = ViewStep(aten.as_strided.default, ([math.prod(whole._sizes)], [1], 0))
        return flat, seen, strided
    parts = dtype.itemsize // own.itemsize  # of each element, along another dimension
    args = ([*sizes, parts], [*(n * parts for n in strides), 1], offset * parts)  # type: ignore
    one = ViewStep(aten.squeeze.dim, (len(sizes),))  # type: ignore[arg-type]
    return ViewStep(aten.as_strided.default, args), seen, one


def read(tracer: Tracer, tensor: FakeTensor) -> Node:
    """The current value of a traced tensor."""
    track = track_of(tensor)
    storage = track.storage
    if track.seen != storage.version:
        refuse_strided_views(tensor)
        node = storage.node
        for step in effective(storage, track.chain):
            node = tracer.apply_view(step, node)
        track.node = node
        track.seen = storage.version
    return track.node


def refuse_strided_views(tensor: FakeTensor) -> None:
    """Once its base is written to, autograd takes a view anew, by one as_strided of the base; the
    gradient of as_strided of another view is another."""
    track = track_of(tensor)
    if track.seen == track.storage.version:
        return
    # (The first lead to where its memory was as a whole, or to an input that lies in it.)
    later = track.chain[1 + track.storage.shared + len(track.storage.grown) :]
    if tensor.requires_grad and any(step.op is aten.as_strided.default for step in later):
        why = "a tensor that is as_strided of another view, and its base written to"
        raise refusal(why, track.storage.writer)


class ConstantWrittenError(Exception):
    """A tensor held as an attribute is written to: it must become an input (the trace restarts)."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.name = name


class StorageNeededError(Exception):
    """Input `primal` is not enough: its storage must become an input (the trace restarts), on
    account of the captured graph's `node`."""

    def __init__(self, primal: int, node: str | None) -> None:
        super().__init__(primal)
        self.primal = primal
        self.node = node


def reaches_into_itself(sizes: Sequence[Any], strides: Sequence[Any]) -> bool:
    """Whether elements may lie on one another: some stride leads no farther than the dimensions of
    smaller strides reach."""
    span = 0
    pairs = zip(sizes, strides, strict=True)
    for size, stride in sorted((p for p in pairs if p[0] != 1), key=lambda p: p[1]):
        if stride <= span and size != 0:
            return True
        span += (size - 1) * stride
    return False
