"""Views of traced tensors, and tensors that become other views of their storage in place.

A view is a node and a chain of steps from its storage (see `storage.py`); `as_strided` starts from
the storage again, whatever view it is taken of.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import torch
from dovetail_prims.fake_tensor import FakeTensor, make, propagate
from torch import Tensor
from torch._ops import OpOverload
from torch.fx import Node

from dovetail_autograd_aot.boundary import ViewsAtOnce, ViewStep
from dovetail_autograd_aot.trace import node_values
from dovetail_autograd_aot.trace.constants import untraced
from dovetail_autograd_aot.trace.storage import (
    StorageNeededError,
    TracedStorage,
    TraceError,
    effective,
    reaches_into_itself,
    read,
    track_of,
    wrap,
)

if TYPE_CHECKING:
    from dovetail_autograd_aot.trace.tracer import Tracer

aten = torch.ops.aten

# Lazy views whose values are computed at once in the graph: other views of them can be taken there.
PHYSICAL = {
    aten._conj.default: aten._conj_physical.default,
    aten._neg_view.default: aten.neg.default,
}


def is_dense(val: FakeTensor) -> bool:
    """Whether a tensor fills its memory from the beginning, without gaps."""
    if val._offset != 0:
        return False
    order = sorted(range(len(val._sizes)), key=lambda d: node_values.hint(val._strides[d]))
    expected: Any = 1
    for d in order:
        if node_values.same_size(val._sizes[d], 1):
            continue
        if not node_values.same_size(val._strides[d], expected):
            return False
        expected = expected * val._sizes[d]
    return True


def take_view(
    tracer: Tracer, func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """The view, or views, that an operator takes of its first argument."""
    if not isinstance(args[0], Tensor):  # a number, of which autograd takes the conjugate
        return func(torch.tensor(args[0]), *args[1:]).resolve_conj()
    base = tracer.traced(args[0])
    several = _SEVERAL.get(func)
    if several is not None:
        return _take_several(tracer, base, func, several(base, *args[1:], **kwargs), args, kwargs)
    if func is aten.as_strided.default:
        return as_strided(tracer, base, *args[1:], **kwargs)
    # (The gradient of what was written through `.real` of a lazy conjugate is not one itself.)
    if func is aten.view_as_real.default and base.is_conj() and not tracer.in_backward:
        raise TraceError("view_as_real of a lazy conjugate: resolve_conj() it first")
    return take_step(tracer, base, func, args[1:], kwargs)


def take_step(
    tracer: Tracer,
    base: FakeTensor,
    func: OpOverload,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any] | None = None,
    of: tuple[ViewsAtOnce | None, int] = (None, 0),
) -> FakeTensor:
    """The view that one more step makes of `base`."""
    args = tuple(tracer.nodes(a) for a in args)
    step = ViewStep(func, args, tuple((kwargs or {}).items()), torch.is_grad_enabled(), *of)
    value = read(tracer, base)
    node = tracer.apply_view(step, value)
    track = track_of(base)
    like = base if func in PHYSICAL else None
    if like is None and not node_values.same_metadata(value.meta["val"], base):
        # After a write the value may lie otherwise in memory than the tensor does.
        lying = make(base._sizes, base._strides, base._dtype, base._device, base._offset)
        like = propagate(func, (lying, *node_values.values(args)), dict(kwargs or {}))
    return wrap(node, track.storage, (*track.chain, step), like)


Single = tuple[OpOverload, tuple[Any, ...]]
"""A view operator with its arguments after the tensor."""


def _take_several(
    tracer: Tracer,
    base: FakeTensor,
    func: OpOverload,
    singles: list[Single],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> list[FakeTensor]:
    """The views that one operator takes at once, each by an operator for one."""
    tracer.views_at_once += 1
    given = (*args[1:], *kwargs.values())  # (the schemas' order: at most `dim` has a name)
    numbers = tuple(tracer.nodes(a) for a in given)
    call = ViewsAtOnce(func, numbers, len(singles), tracer.views_at_once)
    known = None if func in _NO_VIEWS else call
    return [
        take_step(tracer, base, op, rest, of=(known, i)) for i, (op, rest) in enumerate(singles)
    ]


def _split(base: FakeTensor, size: Any, dim: int = 0) -> list[Single]:
    total = base._sizes[dim]
    if total == 0 or size == 0:
        return [(aten.slice.Tensor, (dim, 0, total))]
    pieces: list[Single] = []
    start: Any = 0
    # (Of symbolic sizes, how many pieces there are becomes a guard; how long the last one is, not.)
    while (end := start + size) < total:
        pieces.append((aten.slice.Tensor, (dim, start, end)))
        start = end
    return [*pieces, (aten.slice.Tensor, (dim, start, total))]


def _split_sizes(base: FakeTensor, sizes: list[Any], dim: int = 0) -> list[Single]:
    pieces: list[Single] = []
    start: Any = 0
    for size in sizes:
        pieces.append((aten.slice.Tensor, (dim, start, start + size)))
        start = start + size
    return pieces


_SEVERAL: Mapping[OpOverload, Callable[..., list[Single]]] = {
    aten.split.Tensor: _split,
    aten.unsafe_split.Tensor: _split,
    aten.split_with_sizes.default: _split_sizes,
    aten.unsafe_split_with_sizes.default: _split_sizes,
    aten.unbind.int: lambda base, dim=0: [
        (aten.select.int, (dim, i)) for i in range(int(base._sizes[dim]))
    ],
}
# Autograd does not take their results for views.
_NO_VIEWS = frozenset({aten.unsafe_split.Tensor, aten.unsafe_split_with_sizes.default})


def as_strided(
    tracer: Tracer, base: FakeTensor, size: Any, stride: Any, storage_offset: Any = None
) -> FakeTensor:
    """as_strided looks at the storage, whatever view it is applied to."""
    track = track_of(base)
    storage = track.storage
    counted = storage_offset is not None  # from the beginning of the storage, by the program
    if storage_offset is None:
        storage_offset = base._offset
    sizes, strides = list(size), list(stride)
    if storage.primal is not None and not storage.shared:
        # Where in its storage an input begins is not known, and may differ from call to call.
        # (Autograd counts from where its fakes begin.)
        known = all(type(n) is int for n in (*base._sizes, *sizes, *strides, storage_offset))
        if known or (counted and not tracer.in_backward):
            raise StorageNeededError(storage.primal, tracer.running)
    root = storage.root
    if root is None:
        raise TraceError("as_strided of a view whose base is gone")
    if not storage.shared and not is_dense(root):
        raise TraceError("as_strided of a tensor with gaps; contiguous() it first")
    if tracer.in_backward and base._dtype is not root._dtype:
        raise TraceError("a write to an as_strided view that is seen as another dtype")
    if tracer.in_backward and not _has_values(storage, sizes, strides, storage_offset):
        raise TraceError(
            "a write to an as_strided view that reaches beyond the tensor it is taken of: its "
            "gradient would be read from memory that holds none; take the view of the whole tensor"
        )
    args = tuple(tracer.nodes(a) for a in (sizes, strides, storage_offset))
    step = ViewStep(aten.as_strided.default, args, grad_mode=torch.is_grad_enabled())
    chain = (*track.chain, step)
    node = read(tracer, root)
    for each in effective(storage, chain):
        node = tracer.apply_view(each, node)
    lying = make(tuple(sizes), tuple(strides), base._dtype, base._device, storage_offset)
    return wrap(node, storage, chain, like=lying)


def _has_values(storage: TracedStorage, sizes: list[Any], strides: list[Any], offset: Any) -> bool:
    """Whether a view of a storage, of which maybe a part was given values, shows only those. (Taken
    for granted of symbolic sizes.)"""
    root = storage.root
    assert root is not None
    numbers = (*root._sizes, *sizes, *strides, offset)
    if storage.shared or not all(type(n) is int for n in numbers) or 0 in sizes:
        return True
    last = offset + sum((n - 1) * s for n, s in zip(sizes, strides, strict=True))
    if storage.part is None or (tuple(sizes), tuple(strides), offset) == (*storage.part, 0):
        return bool(last < math.prod(root._sizes))
    with untraced():
        known = torch.zeros(max(last + 1, math.prod(root._sizes)), dtype=torch.bool)
        known.as_strided(*storage.part).fill_(True)
        shown: bool = bool(known.as_strided(sizes, strides, offset).all())
        return shown


def memory_of_overlapping(node: Node) -> Node | None:
    """The tensor without gaps that `node` is a view of, if elements of `node` lie on others
    (but for those of expanded dimensions)."""
    val = node.meta["val"]
    numbers = (*val._sizes, *val._strides, val._offset)
    if 0 in val._sizes or not all(type(n) is int for n in numbers):
        return None
    dims = [(n, d) for n, d in zip(val._sizes, val._strides, strict=True) if n > 1 and d != 0]
    if not reaches_into_itself([n for n, _ in dims], [d for _, d in dims]):
        return None
    root = node
    while node_values.views_memory(root):
        root = root.args[0]  # type: ignore[assignment]
    memory = root.meta["val"]
    known = all(type(n) is int for n in memory._sizes)
    return root if known and memory._dtype is val._dtype and is_dense(memory) else None


def of_each_element_once(tracer: Tracer, func: OpOverload, base: Node) -> Node:
    """A pointwise operator of an expanded tensor is expanded, too: what is computed from it
    lies in memory as eager's does."""
    val = base.meta["val"]
    memory = memory_of_overlapping(base)
    if memory is not None:
        where = (tracer.node_op(func, (memory,), {}), val._sizes, val._strides, val._offset)
        return tracer.node_op(aten.as_strided.default, where, {})
    one = base
    for dim, (size, stride) in enumerate(zip(val._sizes, val._strides, strict=True)):
        if type(stride) is int and stride == 0 and not node_values.same_size(size, 1):
            one = tracer.node_op(aten.slice.Tensor, (one, dim, 0, 1), {})
    result = tracer.node_op(func, (one,), {})
    if one is base:
        return result
    return tracer.node_op(aten.expand.default, (result, [tracer.nodes(s) for s in val._sizes]), {})


def strided_part(tracer: Tracer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
    """(new_)empty_strided with gaps or overlaps: a view of all its memory, so that what is
    written there lies as the strides say."""
    sizes, strides = args[-2:]
    if len(args) == 3:
        given = {k: v for k, v in kwargs.items() if v is not None}
        kwargs = {"dtype": args[0].dtype, "device": args[0].device, **given}
    count = 1 + sum((n - 1) * s for n, s in zip(sizes, strides, strict=True))
    with tracer:
        whole = aten.empty.memory_format([count], **kwargs)
        track_of(whole).storage.part = tuple(sizes), tuple(strides)
        part: Tensor = aten.as_strided.default(whole, sizes, strides)
    return part
