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
from dovetail_prims.node_error import Refusal, blame
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
            place = place_in_elements(
                storage.node.meta["val"], seen_dtype(storage, chain[:i]), chain[i]
            )
            return (*place, *kept, *chain[i + 1 :])
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


def place_in_elements(
    whole: FakeTensor, dtype: torch.dtype, place: ViewStep
) -> tuple[ViewStep, ...]:
    """The steps that lead from a whole storage to a `place` in it, an as_strided that counts
    elements of a `dtype`, which may be another one than the whole has."""
    own: torch.dtype = whole._dtype
    if dtype is own:
        return (place,)
    sizes, strides, offset = place.args
    numbers = [*sizes, *strides, offset, *whole._sizes]  # type: ignore[misc]
    if not all(type(n) is int for n in numbers):
        raise TraceError("as_strided of a tensor that is seen as another dtype, of symbolic sizes")
    seen = ViewStep(aten.view.dtype, (dtype,))
    if dtype.itemsize == own.itemsize:
        return place, seen
    if dtype.itemsize < own.itemsize:
        flat = ViewStep(aten.as_strided.default, ([math.prod(whole._sizes)], [1], 0))
        return flat, seen, place
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


def _by_places_of_others(tensor: FakeTensor) -> bool:
    """Whether autograd, which replays an as_strided on a gradient that begins where its memory
    does, would do so with the place in the storage that the program gave."""
    base: Any = tensor._base
    begins_there = base is None or (type(base._offset) is int and base._offset == 0)
    if begins_there or not torch.is_grad_enabled():
        return False
    later = track_of(tensor).chain[len(track_of(base).chain) :]
    return any(step.op is aten.as_strided.default for step in later)


_ELSEWHERE = (
    "a write through as_strided of a tensor that does not begin where its storage does, with "
    "gradients; clone() it first"
)
_RESHAPED = "a write to a view after a change of shape in place, with gradients"


def write(tracer: Tracer, tensor: FakeTensor, value: Node, uniform: bool = False) -> None:
    """Make `value` the new contents of `tensor`, visible through every view of its storage. Its
    elements may lie on one another if the value is `uniform`."""
    from dovetail_autograd_aot.trace import overlapping_writes

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
    if _by_places_of_others(tensor):
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
    if overlapping_writes.shows_twice(storage, chain, values):
        storage.node = overlapping_writes.write_by_place(tracer, tensor, value, chain, uniform)
        storage.count_write(tracer)
        return
    if not chain:
        storage.node = as_it_lay(tracer, tracer.like(value, pattern), pattern)
        storage.count_write(tracer)
        track.node = storage.node
        track.seen = storage.version
        return
    new = tracer.like(value, pattern, strides=False)
    for step, base in zip(reversed(chain), reversed(values[:-1]), strict=True):
        new = _scatter(tracer, step, base, new)
    storage.node = as_it_lay(tracer, tracer.like(new, whole), whole)
    # The tensor itself is stale now, like every other view: its strides come from the storage.
    storage.count_write(tracer)


def _is_one(number: Any) -> bool:
    return type(number) is int and number == 1


def as_it_lay(tracer: Tracer, value: Node, before: FakeTensor) -> Node:
    """`value`, where dimensions of one element have the strides that `before` has there if a new
    dimension gets these somewhere: other strides show in views, and in how results of it lie."""
    from dovetail_autograd_aot.trace.node_values import same_size

    for dim in reversed(range(len(before._sizes))):
        now = value.meta["val"]
        if not _is_one(before._sizes[dim]) or same_size(now._strides[dim], before._strides[dim]):
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


def _unfold_scatter(tracer: Tracer, base: Node, new: Node, step: ViewStep) -> Node:
    """Windows that do not overlap: their n-th elements are a slice of the base, for each n."""
    dim, size, hop = (int(a) for a in step.args)  # type: ignore[call-overload]
    rank = len(base.meta["val"]._sizes)
    if rank == 0:
        return tracer.reshape(new, ())
    dim %= rank
    count = new.meta["val"]._sizes[dim]
    for n in range(size):
        part = tracer.node_op(aten.select.int, (new, rank, n), {})
        stop = tracer.nodes(n + (count - 1) * hop + 1)
        base = tracer.node_op(aten.slice_scatter.default, (base, part, dim, n, stop, hop), {})
    return base
