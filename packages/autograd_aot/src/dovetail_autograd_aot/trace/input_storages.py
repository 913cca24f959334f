"""What stands for a graph's inputs while it is traced.

An input is usually a storage of its own. Where that is not enough (an input is written to whose
memory another input shares, or elements beside an input are asked for), the storage itself becomes
an input of the functional graph, and the inputs that lie in it become views of it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from dovetail_guards.shape_env import ShapeEnv
from dovetail_prims.fake_tensor import FakeTensor, make
from dovetail_prims.node_facts import STATIC
from torch import Tensor
from torch.fx import Graph, GraphModule, Node
from torch.nn import Parameter

from dovetail_autograd_aot.boundary import SharedStorage, ViewStep
from dovetail_autograd_aot.trace.autograd_queries import first_sharing, share_counter
from dovetail_autograd_aot.trace.storage import (
    TracedStorage,
    TraceError,
    in_dtype,
    reaches_into_itself,
    wrap,
)

aten = torch.ops.aten


def symbolic_values(gm: GraphModule) -> dict[int, Any]:
    """The inputs that the captured graph takes at several sizes, by position: what stands for
    them in `meta["val"]`. The examples are of one size each."""
    placeholders = [n for n in gm.graph.nodes if n.op == "placeholder"]
    found: dict[int, Any] = {}
    for position, node in enumerate(placeholders):
        val = node.meta.get("val")
        if isinstance(val, FakeTensor):
            if any(type(s) is not int for s in (*val._sizes, *val._strides)):
                found[position] = val
        elif isinstance(val, (torch.SymInt, torch.SymFloat, torch.SymBool)):
            found[position] = val
    return found


def static_inputs(gm: GraphModule, examples: Sequence[Any]) -> set[int]:
    """The positions, among the inputs and the attributes of the captured graph that are lifted
    after them, of parameters and buffers."""
    placeholders = [n for n in gm.graph.nodes if n.op == "placeholder"]
    found = {i for i, node in enumerate(placeholders) if STATIC.holds(node)}
    found.update(i for i, value in enumerate(examples) if isinstance(value, Parameter))
    return found.union(range(len(placeholders), len(examples)))


def of_sizes(gm: GraphModule, inputs: Sequence[Any]) -> GraphModule:
    """The captured graph for inputs of these sizes, and these numbers, alone."""
    graph = Graph()
    copies: dict[Node, Node] = {}
    graph.output(graph.graph_copy(gm.graph, copies))
    for node in graph.nodes:
        node.meta.pop("val", None)  # in terms of the symbols
    placeholders = [node for node in graph.nodes if node.op == "placeholder"]
    for node, value in zip(placeholders, inputs, strict=True):
        node.meta["val"] = snapshot(value) if isinstance(value, Tensor) else value
    made = GraphModule(gm, graph)
    made.meta = dict(gm.meta)
    return made


def symbols_of(gm: GraphModule) -> ShapeEnv | None:
    """Where the graph's symbols come from, if it has some."""
    for node in gm.graph.nodes:
        val = node.meta.get("val")
        parts = (*val._sizes, *val._strides) if isinstance(val, FakeTensor) else (val,)
        for part in parts:
            if isinstance(part, (torch.SymInt, torch.SymFloat, torch.SymBool)):
                symbolic: Any = part.node
                return symbolic.env  # type: ignore[no-any-return]
    return None


def snapshot(example: Tensor) -> FakeTensor:
    """The metadata of an example input, real or fake, as a fake of our own (never lazy)."""
    if type(example) is FakeTensor:
        return make(
            example._sizes, example._strides, example._dtype, example._device, example._offset
        )
    if example.layout is not torch.strided or example.is_quantized:
        raise TraceError(f"inputs of layout {example.layout} cannot be compiled")
    return make(
        tuple(example.shape),
        example.stride(),
        example.dtype,
        example.device,
        example.storage_offset(),
    )


class NonLeaf(torch.autograd.Function):
    """A primal that is no leaf in eager must not be one here: in-place operators ask."""

    @staticmethod
    def forward(
        ctx: Any, leaf: FakeTensor, node: Node, storage: TracedStorage, chain: tuple[ViewStep, ...]
    ) -> FakeTensor:
        ctx.set_materialize_grads(False)  # (a user's function may give None)
        return wrap(node, storage, chain)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor | None) -> tuple[Tensor | None, None, None, None]:
        return gradient, None, None, None


def storage_key(t: Tensor) -> int:
    """A number that tensors of one storage share."""
    return id(t._storage) if type(t) is FakeTensor else t.untyped_storage()._cdata


def memory_overlaps(a: Tensor, b: Tensor) -> bool:
    """Whether two tensors of one storage reach the same bytes (taken as ranges)."""
    start_a, end_a = extent(a)
    start_b, end_b = extent(b)
    return start_a < end_b and start_b < end_a


def extent(t: Tensor) -> tuple[int, int]:
    """The byte range a tensor spans within its storage."""
    start = int(t.storage_offset())
    if any(s == 0 for s in t.shape):
        return start * t.dtype.itemsize, start * t.dtype.itemsize
    span = 1 + sum((int(s) - 1) * int(d) for s, d in zip(t.shape, t.stride(), strict=True))
    return start * t.dtype.itemsize, (start + span) * t.dtype.itemsize


# --- storages as inputs ---------------------------------------------------------------------------


def shared_storage(members: Sequence[int], examples: Sequence[Any]) -> SharedStorage:
    """The storage of the inputs number `members`, to become an input itself."""
    first = examples[members[0]]
    tensors = [examples[i] for i in members]
    if any(type(t) is FakeTensor for t in tensors):
        raise TraceError("inputs that share memory are needed as real tensors to be compiled")
    own = first.dtype
    several = any(t.dtype != own for t in tensors)
    if several:  # (floating-point numbers might not be kept to the bit)
        own = _BITS[min(t.dtype.itemsize for t in tensors)]
    size = first.untyped_storage().nbytes() // own.itemsize
    return SharedStorage(tuple(members), size, own if several else None)


_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def base_of(shared: SharedStorage, inputs: Sequence[Any]) -> Tensor:
    """The whole storage, as a tensor with a version counter of its own."""
    member: Tensor = inputs[shared.members[0]]
    if shared.dtype is not None:
        whole = torch.empty((0,), dtype=shared.dtype, device=member.device)
        return whole.set_(member.untyped_storage(), 0, (shared.size,), (1,))
    return member.data.as_strided((shared.size,), (1,), 0)


def view_in(whole: FakeTensor, example: Tensor) -> tuple[ViewStep, ...]:
    """The view of its storage that an input is."""
    args = (list(example.shape), list(example.stride()), example.storage_offset())
    return in_dtype(whole, example.dtype, ViewStep(aten.as_strided.default, args))


def layouts_in(shared: Sequence[SharedStorage], inputs: Sequence[Any]) -> tuple[Any, ...]:
    """How the members lie in storages, and which share a version counter: a graph that was made for
    it holds only for that. (It knows their sizes by number, whatever is symbolic elsewhere.)"""
    order: dict[int, int] = {}
    found: list[Any] = []
    for storage in shared:
        for index in storage.members:
            t = inputs[index]
            number = order.setdefault(storage_key(t), len(order))
            found.append((number, *_layout(t)))
        counters: list[int] = []  # a member for each
        for index in storage.members:
            first = first_sharing(index, counters, inputs)
            found.append(first)
            counters += [index] if first == index else []
    return tuple(found)


def overlapping(apart: Sequence[tuple[int, int]], inputs: Sequence[Any]) -> tuple[Any, ...]:
    """How those inputs lie that overlap although those of the first call did not, which of the
    others are views of one tensor, and which share a version counter."""
    found: list[Any] = []
    for pair in apart:
        a, b = (inputs[index] for index in pair)
        if storage_key(a) != storage_key(b):
            continue
        if memory_overlaps(a, b):
            found.append((*pair, _layout(a), _layout(b)))
        elif are_relatives(a, b):
            found.append(pair)
        if share_counter(a, b):
            found.append("counted together")
    return tuple(found)


def _layout(t: Tensor) -> tuple[Any, ...]:
    return t.storage_offset(), tuple(t.shape), t.stride(), t.untyped_storage().nbytes()


def lies_on_itself(shape: Sequence[int], stride: Sequence[int]) -> bool:
    """Whether several elements of a tensor lie on one another in memory."""
    count = math.prod(shape)
    if count == 0 or not reaches_into_itself(shape, stride):
        return False
    if count > 1 + sum((n - 1) * s for n, s in zip(shape, stride, strict=True)):
        return True  # more elements than memory
    offsets = {0}  # dimensions that reach into one another may still miss each other's elements
    for step, size in zip(stride, shape, strict=True):
        offsets = {offset + i * step for offset in offsets for i in range(size)}
    return len(offsets) != count


def refuse_inner_overlap(example: Tensor, index: int) -> None:
    """An input several elements of which are one (of `expand`, of `unfold`) cannot be written
    back."""
    if lies_on_itself([int(n) for n in example.shape], [int(s) for s in example.stride()]):
        raise TraceError(
            f"input {index} is written to, but more than one of its elements refers to a single "
            "memory location; clone() it first"
        )


def are_relatives(a: Tensor, b: Tensor) -> bool:
    """Whether autograd knows two tensors as views of one (or one as a view of the other)."""
    own, other = (t._base if t._base is not None else t for t in (a, b))
    return own is other


def refuse_graded_relatives(example: Tensor, others: Sequence[Tensor], index: int) -> None:
    """A write that autograd sees changes the history of every view of the tensor, also of those
    that had none before."""
    for other in others:
        if other is not example and are_relatives(example, other):
            raise TraceError(
                f"input {index} is written to with gradients, and another input is a view of the "
                "same tensor: take the view inside the compiled function"
            )
