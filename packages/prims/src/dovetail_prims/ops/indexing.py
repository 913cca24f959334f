"""Indexing and the gradients of views, in terms of index, index_put and the scatter views."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from dovetail_prims.fake_tensor import ShapeRule
from dovetail_prims.ops import indexing_in_prims as prims
from dovetail_prims.ops.card import Card, Dialect, Form, Kind, also, moving
from dovetail_prims.ops.common import (
    Number,
    aten,
    broadcast,
    cast,
    constant,
    contiguous,
    depends_on_data,
    iota,
    never_negative,
    reshape,
    times,
    where,
    wrap,
    zeros,
)
from dovetail_prims.ops.scatters import scatter_by_name, scatter_value_by_name
from dovetail_prims.ops.views import slice_of
from dovetail_prims.shape_rules import indexing as rules

Indices = Sequence[Tensor | None]


def _at(dim: int, index: Tensor) -> list[Tensor | None]:
    """The index list that reaches one dimension"""
    return [*[None] * dim, index]


def index_select(self: Tensor, dim: int, index: Tensor) -> Tensor:
    """Chosen slices, row-major. (On a CPU eager has another kernel for dimension 1, which raises
    RuntimeError for what is out of bounds, as gather does.)"""
    if self.dim() == 0:
        index = never_negative(aten.view.default(index, []), 1)
        return aten.index.Tensor(aten.view.default(self, [1]), [index])
    index = aten.unsqueeze.default(index, 0) if index.dim() == 0 else index
    dim = wrap(dim, self.dim())
    if dim == 1 and self.device.type == "cpu":
        sizes = [*self.shape[:1], index.shape[0], *self.shape[2:]]
        return aten.gather.default(self, dim, _along(dim, cast(index, torch.int64), sizes))
    index = never_negative(index, self.shape[dim])
    return contiguous(aten.index.Tensor(self, _at(dim, index)))


def _along(dim: int, index: Tensor, sizes: Sequence[int]) -> Tensor:
    """Indices of slices as indices of elements of a tensor of these sizes"""
    beside = [n if d == dim else 1 for d, n in enumerate(sizes)]
    return aten.expand.default(aten.view.default(index, beside), sizes)


def _put(self: Tensor, dim: int, index: Tensor, values: Tensor, accumulate: bool) -> Tensor:
    """Slices written or added at one dimension; a 0-dim tensor is taken as one element"""
    if self.dim() == 0:
        flat = aten.view.default(self, [1])
        values = values if values.dim() else aten.unsqueeze.default(values, 0)
        put = aten.index_put.default(flat, [aten.view.default(index, [-1])], values, accumulate)
        return aten.view.default(put, [])
    index = aten.unsqueeze.default(index, 0) if index.dim() == 0 else index
    return aten.index_put.default(self, _at(wrap(dim, self.dim()), index), values, accumulate)


def _into(self: Tensor, dim: int, index: Tensor) -> Tensor:
    """Indices of slices, none of which may be negative"""
    return never_negative(index, self.shape[wrap(dim, self.dim())] if self.dim() else 1)


def index_add(
    self: Tensor, dim: int, index: Tensor, source: Tensor, *, alpha: Number = 1
) -> Tensor:
    """Slices added at given places. (On a CPU eager scatters into the first and the last dimension,
    which raises RuntimeError for what is out of bounds; elsewhere it is an IndexError.)"""
    rank = self.dim()
    scatters = alpha == 1 and rank > 1 and wrap(dim, rank) in (0, rank - 1)
    if scatters and index.dtype is torch.int64 and self.device.type == "cpu":
        places = _along(wrap(dim, rank), index, source.shape)
        return contiguous(aten.scatter_add.default(self, dim, places, source))
    source = times(source, alpha)
    return contiguous(_put(self, dim, _into(self, dim, index), source, True))


def index_copy(self: Tensor, dim: int, index: Tensor, source: Tensor) -> Tensor:
    """Slices written at given places"""
    return contiguous(_put(self, dim, _into(self, dim, index), source, False))


def index_fill_number(self: Tensor, dim: int, index: Tensor, value: Number) -> Tensor:
    """A number written at given slices"""
    return _put(self, dim, index, constant(value, self), False)


def index_fill_tensor(self: Tensor, dim: int, index: Tensor, value: Tensor) -> Tensor:
    """A 0-dim tensor written at given slices"""
    return _put(self, dim, index, cast(value, self.dtype), False)


def index_put_impl(
    self: Tensor, indices: Indices, values: Tensor, accumulate: bool = False, unsafe: bool = False
) -> Tensor:
    """index_put, as the gradient of indexing calls it"""
    return aten.index_put.default(self, indices, values, accumulate)


def index_put(self: Tensor, indices: Indices, values: Tensor, accumulate: bool = False) -> Any:
    """Of values added where a mask holds, each place reads its own: it has as many before it as
    the mask holds there."""
    places = [(d, m) for d, m in enumerate(indices) if m is not None]
    if not accumulate or len(places) != 1 or places[0][1].dtype != torch.bool:
        return NotImplemented
    ((first, mask),) = places
    rank = mask.dim()
    if rank == 0 or values.dim() != self.dim() - rank + 1 or mask.device != self.device:
        return NotImplemented
    if depends_on_data(values.shape[first]):
        return NotImplemented  # there may be none, and what is not used is read, too
    if type(values.shape[first]) is int and values.shape[first] in (0, 1):
        return NotImplemented
    held = aten.sum.default(cast(mask, torch.int64))
    aten._assert_async.msg(
        aten.eq.Scalar(held, values.shape[first]),
        f"shape mismatch: value tensor of shape {list(values.shape)} cannot be broadcast to "
        "indexing result",
    )
    before = aten.cumsum.default(cast(reshape(mask, [-1]), torch.int64), 0)
    place = where(mask, aten.sub.Tensor(aten.view.default(before, mask.shape), 1), 0)
    place = aten.minimum.default(place, constant(values.shape[first] - 1, place))
    lead, rest = list(self.shape[:first]), list(self.shape[first + rank :])
    read = aten.index.Tensor(values, [*[None] * first, place])
    mask = aten.view.default(mask, [*[1] * first, *mask.shape, *[1] * len(rest)])
    read = aten.expand.default(read, [*lead, *self.shape[first : first + rank], *rest])
    return where(mask, aten.add.Tensor(self, read), self)


def unsafe_index_put(
    self: Tensor, indices: Indices, values: Tensor, accumulate: bool = False
) -> Tensor:
    """index_put, its indices known to be in bounds"""
    return aten.index_put.default(self, indices, values, accumulate)


def unsafe_index(self: Tensor, indices: Indices) -> Tensor:
    """index, its indices known to be in bounds"""
    return aten.index.Tensor(self, indices)


def _held(self: Tensor, indices: Indices) -> list[Tensor | None]:
    """Indices with those out of bounds at the nearest end"""
    held: list[Tensor | None] = []
    for dim, index in enumerate(indices):
        if index is not None:
            last = self.shape[dim] - 1
            index = aten.minimum.default(index, constant(last, index))
            index = aten.maximum.default(index, constant(-last - 1, index))
        held.append(index)
    return held


def unsafe_masked_index(self: Tensor, mask: Tensor, indices: Indices, fill: Number) -> Any:
    """index where a mask holds, a number elsewhere"""
    if 0 in self.shape:
        return NotImplemented
    return contiguous(where(mask, aten.index.Tensor(self, _held(self, indices)), fill))


def unsafe_masked_index_put_accumulate(
    self: Tensor, mask: Tensor, indices: Indices, values: Tensor
) -> Tensor:
    """Values added where a mask holds"""
    if 0 in self.shape:
        return aten.clone.default(self)
    return aten.index_put.default(self, _held(self, indices), where(mask, values, 0), True)


def take(self: Tensor, index: Tensor) -> Tensor:
    """Elements by their place in row-major order"""
    return contiguous(aten.index.Tensor(reshape(self, [-1]), [index]))


def select_backward(
    grad_output: Tensor, input_sizes: Sequence[int], dim: int, index: int
) -> Tensor:
    """The gradient at one slice, 0 elsewhere"""
    return aten.select_scatter.default(zeros(input_sizes, grad_output), grad_output, dim, index)


def slice_backward(
    grad_output: Tensor, input_sizes: Sequence[int], dim: int, start: int, end: int, step: int
) -> Tensor:
    """The gradient at a range of slices, 0 elsewhere"""
    nothing = zeros(input_sizes, grad_output)
    return aten.slice_scatter.default(nothing, grad_output, dim, start, end, step)


def diagonal_backward(
    grad_output: Tensor, input_sizes: Sequence[int], offset: int, dim1: int, dim2: int
) -> Tensor:
    """The gradient on a diagonal, 0 elsewhere"""
    nothing = zeros(input_sizes, grad_output)
    return aten.diagonal_scatter.default(nothing, grad_output, offset, dim1, dim2)


def unfold_backward(
    grad_in: Tensor, input_sizes: Sequence[int], dim: int, size: int, step: int
) -> Tensor:
    """Each window's gradient added where the window lay"""
    rank = len(input_sizes)
    nothing = zeros(input_sizes, grad_in)
    if rank == 0:
        return aten.view.default(aten.sum.dim_IntList(grad_in, [0]), [])
    dim = wrap(dim, rank)
    places = aten.unfold.default(iota(input_sizes[dim], grad_in), 0, size, step)
    # The window's own dimension is last in grad_in; it belongs beside the windows' dimension.
    order = [*range(dim + 1), rank, *range(dim + 1, rank)]
    moved = aten.permute.default(grad_in, order)
    return aten.index_put.default(nothing, _at(dim, places), moved, True)


def masked_scatter(self: Tensor, mask: Tensor, source: Tensor) -> Tensor:
    """Elements of source, in order, at the places the mask holds"""
    shape = broadcast(self.shape, mask.shape)
    mask = reshape(aten.expand.default(mask, shape), [-1])
    base = reshape(aten.expand.default(self, shape), [-1])
    rank = aten.cumsum.default(cast(mask, torch.int64), 0)
    # Places that the mask leaves out read an element in front: source may be empty.
    behind = aten.cat.default([zeros([1], source), reshape(source, [-1])])
    # (Gathered: too few elements are a RuntimeError, as in eager.)
    taken = aten.gather.default(behind, 0, where(mask, rank, 0))
    return aten.view.default(where(mask, taken, base), shape)


def nonzero_static(self: Tensor, *, size: int, fill_value: int = -1) -> Any:
    """Each true place's number, counted in row-major order, put where it stands among them"""
    shape = self.shape
    if any(type(n) is not int for n in (*shape, size)):
        return NotImplemented
    if 0 in (*shape, size) or not shape:
        return aten.full.default(
            [size, len(shape)], fill_value, dtype=torch.int64, device=self.device
        )
    holds = reshape(aten.ne.Scalar(self, 0), [-1])
    before = aten.sub.Tensor(aten.cumsum.default(cast(holds, torch.int64), 0), 1)
    fits = aten.logical_and.default(holds, aten.lt.Scalar(before, size))
    place = where(fits, before, size)  # (what is not wanted goes behind the end)
    numbers = aten.full.default([size + 1], -1, dtype=torch.int64, device=self.device)
    numbers = aten.index_put.default(numbers, [place], iota(holds.shape[0], self))
    numbers = aten.slice.Tensor(numbers, 0, 0, size)
    columns, step = [], 1
    for n in reversed(shape):
        own = aten.div.Tensor_mode(numbers, step, rounding_mode="floor")
        own = where(aten.lt.Scalar(numbers, 0), fill_value, aten.remainder.Scalar(own, n))
        columns.append(aten.unsqueeze.default(own, 1))
        step *= n
    return aten.cat.default(columns[::-1], 1)


# --- tensors and indices without dimensions -------------------------------------------------------
# (Of vectors a call says where an index must lie.)


def _vector(x: Tensor) -> Tensor:
    return x if x.dim() else aten.view.default(x, [1])


def _by_vectors(op: Any, self: Tensor, dim: int, index: Tensor, *given: Any, **options: Any) -> Any:
    """The call by vectors, if the tensor or the index is a number"""
    if self.dim() and index.dim():
        return NotImplemented
    rest = [_vector(x) if isinstance(x, Tensor) else x for x in given]
    found = op(_vector(self), dim, _vector(index), *rest, **options)
    return aten.view.default(found, list((index if op is aten.gather.default else self).shape))


def gather(self: Tensor, dim: int, index: Tensor, *, sparse_grad: bool = False) -> Any:
    """Elements of a number, or one of a vector"""
    return _by_vectors(aten.gather.default, self, dim, index)


def scatter(self: Tensor, dim: int, index: Tensor, src: Tensor) -> Any:
    """An element written to a number, or one to a vector"""
    return _by_vectors(aten.scatter.src, self, dim, index, src)


def scatter_number(self: Tensor, dim: int, index: Tensor, value: Number) -> Any:
    """The same, of a number that the program gives"""
    return _by_vectors(aten.scatter.value, self, dim, index, value)


def scatter_add(self: Tensor, dim: int, index: Tensor, src: Tensor) -> Any:
    """Elements added to a number, or one to a vector"""
    return _by_vectors(aten.scatter_add.default, self, dim, index, src)


def scatter_reduce(
    self: Tensor, dim: int, index: Tensor, src: Tensor, reduce: str, *, include_self: bool = True
) -> Any:
    """Elements combined with a number, or one with a vector's"""
    op = aten.scatter_reduce.two
    return _by_vectors(op, self, dim, index, src, reduce, include_self=include_self)


def index_reduce(
    self: Tensor, dim: int, index: Tensor, source: Tensor, reduce: str, *, include_self: bool = True
) -> Any:
    """Slices combined with a number, or one with a tensor's"""
    op = aten.index_reduce.default
    return _by_vectors(op, self, dim, index, source, reduce, include_self=include_self)


_PRIMS, _CORE = Dialect.PRIMS, Dialect.CORE_ATEN
indexing = partial(moving, kind=Kind.INDEXING)


def _kept(name: str, says: str, shape: ShapeRule, meaning: Callable[..., Any]) -> Card:
    return indexing(name, says, Form("default", _PRIMS, shape), meaning=meaning)


def _written(view: str, says: str, part: Callable[..., Tensor]) -> Card:
    """A tensor in which what a view shows is replaced."""
    return _kept(f"{view}_scatter", says, rules.like_view_scatter, prims.into_of(part))


def _backward(view: str, decomposition: Callable[..., Any]) -> Card:
    return indexing(f"{view}_backward", "the gradient of a view",
                    also("default", rules.zeros_of_size, decomposition))  # fmt: skip


CARDS = (
    indexing("cat", "one after the other along a dimension",
             Form("default", _PRIMS, rules.cat, to_prims=prims.cat), meaning=prims.cat_of),
    _kept("constant_pad_nd", "edges filled or cut off", rules.constant_pad, prims.pad_of),
    _kept("flip", "dimensions in reverse", rules.like_clone, prims.flip_of),
    indexing("index", "elements at lists of indices", Form("Tensor", _PRIMS, rules.index),
             meaning=prims.index_of),
    indexing("index_put", "elements at lists of indices replaced, or added to",
             Form("default", _PRIMS, rules.like_clone, index_put), in_place=("default",),
             meaning=prims.index_put_of),
    indexing("gather", "elements at an index along a dimension",
             Form("default", _PRIMS, rules.gather, gather), meaning=prims.gather_of),
    indexing("scatter", "elements at an index along a dimension replaced",
             Form("src", _PRIMS, rules.scatter, scatter),
             Form("value", _CORE, rules.scatter, scatter_number, prims.scatter_number,
                  says="The number as a tensor"),
             also("reduce", rules.scatter, scatter_by_name),
             also("value_reduce", rules.scatter, scatter_value_by_name),
             in_place=("src", "value", "reduce", "value_reduce"), meaning=prims.scatter_src_of),
    indexing("scatter_add", "elements at an index along a dimension added to",
             Form("default", _PRIMS, rules.scatter, scatter_add), in_place=("default",),
             meaning=prims.scatter_add_of),
    indexing("embedding", "Rows of the weight",
             Form("default", _CORE, rules.embedding, to_prims=prims.embedding)),
    _written("slice", "a slice replaced", slice_of),
    indexing("select_scatter", "slice_scatter of one slice",
             Form("default", _CORE, rules.like_view_scatter, to_prims=prims.select_scatter)),
    _written("as_strided", "what strides see replaced", torch.as_strided),
    _written("diagonal", "a diagonal replaced", torch.diagonal),
    indexing("scatter_reduce", "elements combined with those at an index",
             Form("two", _PRIMS, rules.scatter, scatter_reduce, of_complex=True), in_place=("two",),
             kind=Kind.LIBRARY),
    indexing("index_reduce", "slices combined with others",
             Form("default", _PRIMS, None, index_reduce, of_complex=True), kind=Kind.LIBRARY),
    indexing("nonzero_static", "places of what is not 0",
             also("default", rules.nonzero_static, nonzero_static)),
    indexing("index_select", "chosen slices", also("default", rules.index_select, index_select)),
    indexing("index_add", "slices added", also("default", rules.index_add, index_add),
             in_place=("default",)),
    indexing("index_copy", "slices written", also("default", None, index_copy),
             in_place=("default",)),
    indexing("index_fill", "slices filled", also("int_Scalar", rules.like_clone, index_fill_number),
             also("int_Tensor", rules.like_clone, index_fill_tensor), in_place=("int_Scalar",)),
    indexing("_index_put_impl", "index_put", also("default", None, index_put_impl),
             in_place=("default",)),
    indexing("_unsafe_index_put", "index_put", also("default", rules.like_clone, unsafe_index_put)),
    indexing("_unsafe_index", "index", also("Tensor", rules.index, unsafe_index)),
    indexing("_unsafe_masked_index", "index, masked", also("default", None, unsafe_masked_index)),
    indexing("_unsafe_masked_index_put_accumulate", "index_put under a mask",
             also("default", None, unsafe_masked_index_put_accumulate)),
    indexing("take", "elements by their places", also("default", None, take)),
    _backward("select", select_backward),
    _backward("slice", slice_backward),
    _backward("diagonal", diagonal_backward),
    _backward("unfold", unfold_backward),
    indexing("masked_scatter", "elements written under a mask",
             also("default", None, masked_scatter)),
)  # fmt: skip
