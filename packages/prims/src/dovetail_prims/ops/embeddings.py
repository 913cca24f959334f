"""Rows of a table: bags of them, summed up or their maxima, and gradients.

(Long sums and means are the library's, which adds up as many rows as the data say in one pass: on a
CPU it is up to four times as fast as a sum into computed places, but for maxima and a few indices;
on a GPU 1.4 to 11 times as fast, for all of them.)
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from dovetail_prims.fake_tensor import FakeTensor, Size, Sizes
from dovetail_prims.ops.card import composed, library
from dovetail_prims.ops.common import aten, cast, constant, iota, of_known_sizes, where, zeros
from dovetail_prims.shape_rules.layout import fresh

# --- shapes ---------------------------------------------------------------------------------------


def embedding_backward(
    grad: FakeTensor, indices: FakeTensor, num_weights: Size, *rest: Any
) -> FakeTensor:
    """`embedding_dense_backward`: the gradient of the table."""
    return fresh((num_weights, grad._sizes[-1]), grad._dtype, grad._device)


_SUM, _MEAN, _MAX = 0, 1, 2


def embedding_bag_shape(
    weight: FakeTensor,
    indices: FakeTensor,
    offsets: FakeTensor,
    scale_grad_by_freq: bool = False,
    mode: int = _SUM,
    sparse: bool = False,
    per_sample_weights: FakeTensor | None = None,
    include_last_offset: bool = False,
    padding_idx: int = -1,
) -> tuple[FakeTensor, FakeTensor, FakeTensor, FakeTensor]:
    """Bags of rows, each summed up; then which bag an index is in, the bags' sizes, and where
    their maxima stand. On the CPU some are left out where its fast sum does without."""
    if weight._device.type != "cpu":
        return NotImplemented  # type: ignore[no-any-return]
    device, integer = weight._device, indices._dtype
    bags = offsets._sizes[0]
    if include_last_offset:
        bags = bags - 1
    fast = (
        mode == _SUM
        and weight._strides[1] == 1
        and padding_idx < 0
        and weight._dtype in (torch.float32, torch.float16, torch.bfloat16)
        and (per_sample_weights is None or per_sample_weights._strides[0] == 1)
    )
    where: Sizes = (0,) if fast else indices._sizes
    width = weight._sizes[1]
    return (
        fresh((bags, width), weight._dtype, device),
        fresh(where, integer, device),
        fresh((bags,), integer, device),
        fresh((bags, width) if mode == _MAX else (bags,), integer, device),
    )


def embedding_bag_forward_only_shape(
    weight: FakeTensor,
    indices: FakeTensor,
    offsets: FakeTensor,
    scale_grad_by_freq: bool = False,
    mode: int = _SUM,
    *rest: Any,
) -> Any:
    """The same without a gradient: a sum's last two results are as long as the offsets."""
    results = embedding_bag_shape(weight, indices, offsets, scale_grad_by_freq, mode, *rest)
    if results is NotImplemented or mode != _SUM:
        return results
    sizes, device = offsets._sizes, weight._device
    return (
        *results[:2],
        fresh(sizes, indices._dtype, device),
        fresh(sizes, indices._dtype, device),
    )


# --- decompositions -------------------------------------------------------------------------------


SUM, MEAN, MAX = 0, 1, 2

# Of how many indices a CPU computes sums and means faster than it calls the library.
FEW = {SUM: 600, MEAN: 1200}


def _bags(indices: Tensor, offsets: Tensor, bag_of: Tensor) -> Tensor:
    """The bag that each index is in: the forward's answer, where it has one"""
    count = indices.shape[0]
    if bag_of.shape[0] != 0 or count == 0:
        return bag_of
    # How many bags begin at each place, counted up.
    one = constant(1, offsets, torch.int64)
    begins = zeros([count + 1], offsets, torch.int64)
    begins = aten.index_put.default(begins, [offsets], one, True)
    begun = aten.cumsum.default(aten.slice.Tensor(begins, 0, 0, count), 0)
    return aten.sub.Tensor(begun, 1)


def _sizes(bag_of: Tensor, kept: Tensor | None, bags: int, indices: Tensor) -> Tensor:
    """How many rows each bag has"""
    one = constant(1, indices) if kept is None else cast(kept, indices.dtype)
    return aten.index_put.default(zeros([bags], indices), [bag_of], one, True)


def _maxima(
    rows: Tensor, bag_of: Tensor, kept: Tensor | None, bags: int, indices: Tensor
) -> tuple[Tensor, Tensor]:
    """The largest of each column of a bag's rows, and the index of the first that has it
    (or 0). A number takes the place of a smaller one: a NaN stays if it is the first row's, and
    others are passed over."""
    count, width = rows.shape
    at = iota(count, rows)
    own = at if kept is None else where(kept, at, count)
    firsts = aten.full.default([bags], count, dtype=torch.int64, device=rows.device)
    firsts = aten.scatter_reduce.two(firsts, 0, bag_of, own, "amin")
    first = aten.eq.Tensor(aten.index_select.default(firsts, 0, bag_of), at)
    passed = aten.logical_and.default(
        aten.isnan.default(rows), aten.logical_not.default(aten.unsqueeze.default(first, 1))
    )
    if kept is not None:
        dropped = aten.unsqueeze.default(aten.logical_not.default(kept), 1)
        passed = aten.logical_or.default(passed, dropped)
    rows = where(passed, -math.inf, rows)
    wide = aten.expand.default(aten.unsqueeze.default(bag_of, 1), [count, width])
    least = aten.full.default([bags, width], -math.inf, dtype=rows.dtype, device=rows.device)
    top = aten.scatter_reduce.two(least, 0, wide, rows, "amax")
    best = aten.index_select.default(top, 0, bag_of)
    hit = aten.logical_or.default(aten.eq.Tensor(rows, best), aten.isnan.default(rows))
    place = where(hit, aten.unsqueeze.default(own, 1), count)
    nowhere = aten.full.default([bags, width], count, dtype=torch.int64, device=rows.device)
    place = aten.scatter_reduce.two(nowhere, 0, wide, place, "amin")
    some = aten.lt.Scalar(place, count)
    found = aten.index.Tensor(indices, [where(some, place, 0)])
    return where(some, top, 0.0), where(some, found, 0)


def _rows(weight: Tensor, indices: Tensor) -> Tensor:
    """Rows of a table. (Gathered: an index beyond it is a RuntimeError, here as in eager. PyTorch's
    kernel takes rows of int32 indices that repeat for int64.)"""
    wide = aten.expand.default(
        aten.unsqueeze.default(cast(indices, torch.int64), 1), [indices.shape[0], weight.shape[1]]
    )
    return aten.gather.default(weight, 0, wide)


def _check_offsets(offsets: Tensor, count: int) -> None:
    """The program ends with eager's class of error if the bags do not begin with the first index,
    or if one begins beyond the last."""
    first = aten.eq.Scalar(aten.select.int(offsets, 0, 0), 0)
    last = aten.le.Scalar(aten.select.int(offsets, 0, -1), count)
    message = (
        "offsets[0] has to be 0, i.e., the first sequence in the mini-batch has to start from "
        f"position 0; and offsets[-1] can not be greater than input's length {count}"
    )
    aten._assert_async.msg(aten.logical_and.default(first, last), message)


def embedding_bag_of(
    weight: Tensor,
    indices: Tensor,
    offsets: Tensor,
    mode: int,
    per_sample_weights: Tensor | None,
    include_last_offset: bool,
    padding_idx: int,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The bags; which bag an index is in; how many rows a bag has; of maxima, where they stand"""
    bags = offsets.shape[0] - include_last_offset
    bag_of = _bags(indices, offsets, zeros([0], offsets))
    rows = _rows(weight, indices)
    kept = aten.ne.Scalar(indices, padding_idx) if padding_idx >= 0 else None
    sizes = _sizes(bag_of, kept, bags, indices)
    names = cast(bag_of, indices.dtype)
    if mode == MAX:
        top, place = _maxima(rows, bag_of, kept, bags, indices)
        return top, names, sizes, place
    if per_sample_weights is not None:
        rows = aten.mul.Tensor(rows, aten.unsqueeze.default(per_sample_weights, 1))
    if kept is not None:
        rows = where(aten.unsqueeze.default(kept, 1), rows, 0.0)
    total = aten.index_put.default(zeros([bags, weight.shape[1]], weight), [bag_of], rows, True)
    if mode == MEAN:
        divisor = aten.unsqueeze.default(aten.clamp_min.default(sizes, 1), 1)
        total = aten.div.Tensor(total, divisor)
    return total, names, sizes, aten.clone.default(sizes)


def _sums(bags: Tensor, names: Tensor, whole: bool, nothing: Tensor) -> tuple[Tensor, ...]:
    """What the library gives of sums on a CPU: it counts no rows, and where its fast sum does
    (`whole`) it names no bags."""
    empty = aten.slice.Tensor(names, 0, 0, 0) if whole else names
    return bags, empty, nothing, aten.clone.default(nothing)


def embedding_bag(
    weight: Tensor,
    indices: Tensor,
    offsets: Tensor,
    scale_grad_by_freq: bool = False,
    mode: int = SUM,
    sparse: bool = False,
    per_sample_weights: Tensor | None = None,
    include_last_offset: bool = False,
    padding_idx: int = -1,
) -> Any:
    """Of maxima, and of sums and means of few, rows compared or added into their bags; on a CPU"""
    if weight.device.type != "cpu" or indices.numel() == 0:
        return NotImplemented
    count = indices.shape[0]
    exact = weight.dtype in (torch.float32, torch.float64)
    few = (mode == MEAN or exact) and isinstance(count, int) and count <= FEW.get(mode, 0)
    if not (mode == MAX or few) or offsets.numel() <= include_last_offset:
        return NotImplemented
    _check_offsets(offsets, count)
    last = include_last_offset
    given = (weight, indices, offsets, mode, per_sample_weights, last, padding_idx)
    results = embedding_bag_of(*given)
    if mode != SUM:
        return results
    fast = padding_idx < 0 and weight.stride(1) == 1 and weight.dtype is torch.float32
    if per_sample_weights is not None:
        fast = fast and per_sample_weights.stride(0) == 1
    return _sums(results[0], results[1], fast, zeros([offsets.shape[0] - last], indices))


def embedding_bag_forward_only(
    weight: Tensor,
    indices: Tensor,
    offsets: Tensor,
    scale_grad_by_freq: bool = False,
    mode: int = SUM,
    sparse: bool = False,
    per_sample_weights: Tensor | None = None,
    include_last_offset: bool = False,
    padding_idx: int = -1,
) -> Any:
    """The same; what is left empty beside sums on a CPU is as long as the offsets"""
    given = (weight, indices, offsets, scale_grad_by_freq, mode, sparse, per_sample_weights)
    results = embedding_bag(*given, include_last_offset, padding_idx)
    if results is NotImplemented or mode != SUM:
        return results
    return _sums(results[0], results[1], False, zeros([offsets.shape[0]], indices))


def embedding_bag_backward(
    grad: Tensor,
    indices: Tensor,
    offsets: Tensor,
    offset2bag: Tensor,
    bag_size: Tensor,
    maximum_indices: Tensor,
    num_weights: int,
    scale_grad_by_freq: bool,
    mode: int,
    sparse: bool,
    per_sample_weights: Tensor | None,
    padding_idx: int = -1,
) -> Any:
    """Each row's part of its bag's gradient, added to the row; of a maximum, to where it stood"""
    if sparse:
        return NotImplemented
    if mode == MAX:
        some = aten.unsqueeze.default(aten.ne.Scalar(bag_size, 0), 1)
        place = cast(where(some, maximum_indices, 0), torch.int64)
        nothing = zeros([num_weights, grad.shape[1]], grad)
        return aten.scatter_add.default(nothing, 0, place, where(some, grad, 0.0))
    bags = _bags(indices, offsets, offset2bag)
    brought = aten.index_select.default(grad, 0, bags)
    if mode == MEAN:
        sizes = aten.index_select.default(aten.clamp_min.default(bag_size, 1), 0, bags)
        brought = aten.div.Tensor(brought, aten.unsqueeze.default(sizes, 1))
    if per_sample_weights is not None:
        brought = aten.mul.Tensor(brought, aten.unsqueeze.default(per_sample_weights, 1))
    return aten.embedding_dense_backward.default(
        brought, indices, num_weights, padding_idx, scale_grad_by_freq
    )


def per_sample_weights_backward(
    grad: Tensor,
    weight: Tensor,
    indices: Tensor,
    offsets: Tensor,
    offset2bag: Tensor,
    mode: int,
    padding_idx: int = -1,
) -> Tensor:
    """Each row times its bag's gradient, added up; 0 for a row that pads"""
    rows = aten.index_select.default(weight, 0, indices)
    own = aten.index_select.default(grad, 0, _bags(indices, offsets, offset2bag))
    found = aten.sum.dim_IntList(aten.mul.Tensor(own, rows), [1])
    if padding_idx < 0:
        return found
    return where(aten.eq.Scalar(indices, padding_idx), 0.0, found)


# --- cards --------------------------------------------------------------------------------------

CARDS = (
    library("embedding_dense_backward", embedding_backward),
    library("_embedding_bag", embedding_bag_shape, of_known_sizes(embedding_bag)),
    composed(
        "_embedding_bag_forward_only",
        embedding_bag_forward_only_shape,
        of_known_sizes(embedding_bag_forward_only),
    ),
    library("_embedding_bag_dense_backward"),
    composed("_embedding_bag_backward", None, embedding_bag_backward),
    composed("_embedding_bag_per_sample_weights_backward", None, per_sample_weights_backward),
)
