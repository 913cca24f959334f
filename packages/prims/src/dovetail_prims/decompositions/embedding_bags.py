"""Gradients of embedding_bag: bags of a table's rows, summed up or their maxima.

(The bags themselves are the library's: it adds up as many rows as the data say, in one pass.)
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ._common import Family, aten, cast, constant, where, zeros

SUM, MEAN, MAX = 0, 1, 2


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


TABLE: Family = {
    "_embedding_bag_backward.default": embedding_bag_backward,
    "_embedding_bag_per_sample_weights_backward.default": per_sample_weights_backward,
}
