"""Elements written to places: of a whole tensor, under a mask, on diagonals; and stacks."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from dovetail_prims.fake_tensor import FakeTensor
from dovetail_prims.ops.card import Kind, composed
from dovetail_prims.ops.common import Number, aten, cast, constant, reshape, where, wrap, zeros
from dovetail_prims.shape_rules.layout import fresh, wrap_dim

# --- shapes ---------------------------------------------------------------------------------------


def diag_embed_shape(x: FakeTensor, offset: int = 0, dim1: int = -2, dim2: int = -1) -> FakeTensor:
    """Rows as diagonals of matrices in two new dimensions: row-major."""
    rank = len(x._sizes) + 1
    if rank == 1:
        return NotImplemented  # type: ignore[no-any-return]
    first, second = wrap_dim(dim1, rank), wrap_dim(dim2, rank)
    if first == second:
        raise RuntimeError(f"diagonal dimensions cannot be identical {dim1}, {dim2}")
    sizes = list(x._sizes[:-1])
    for dim in sorted((first, second)):
        sizes.insert(dim, x._sizes[-1] + abs(offset))
    return fresh(tuple(sizes), x._dtype, x._device)


# --- decompositions -------------------------------------------------------------------------------


def stack(tensors: Sequence[Tensor], dim: int = 0) -> Tensor:
    """stack, as ATen names it inside"""
    return aten.stack.default(tensors, dim)


def diag_embed(self: Tensor, offset: int = 0, dim1: int = -2, dim2: int = -1) -> Tensor:
    """The last dimension laid on a diagonal of two"""
    rank = self.dim() + 1
    first, second = wrap(dim1, rank), wrap(dim2, rank)
    size = self.shape[-1] + abs(offset)
    shape = list(self.shape[:-1])
    for d in sorted((first, second)):
        shape.insert(d, size)
    nothing = zeros(shape, self)
    return aten.diagonal_scatter.default(nothing, self, offset, first, second)


def put(self: Tensor, index: Tensor, source: Tensor, accumulate: bool = False) -> Tensor:
    """Elements written by their place in row-major order; memory keeps its own"""
    values = reshape(source, list(index.shape))
    if self.is_contiguous():
        out = aten.index_put.default(reshape(self, [-1]), [index], values, accumulate)
        return aten.view.default(out, self.shape)
    rest = aten.where.self(aten.lt.Scalar(index, 0), aten.add.Tensor(index, self.numel()), index)
    places: list[Tensor] = []
    for size in reversed(self.shape[1:]):
        places.insert(0, aten.remainder.Scalar(rest, size))
        rest = aten.div.Tensor_mode(rest, size, rounding_mode="floor")
    return aten.index_put.default(self, [rest, *places], values, accumulate)


def masked_scatter_backward(grad_output: Tensor, mask: Tensor, sizes: Sequence[int]) -> Tensor:
    """The gradients where the mask holds, in order, at the front of a tensor of `sizes`"""
    shape = list(grad_output.shape)
    chosen = reshape(aten.expand.default(mask, shape), [-1])
    place = aten.sub.Tensor(aten.cumsum.default(cast(chosen, torch.int64), 0), 1)
    length = 1
    for size in sizes:
        length = length * size
    # What the mask leaves out goes to one place past the end, which is cut off again.
    place = where(chosen, place, length)
    flat = zeros([length + 1], grad_output)
    put_there = aten.index_put.default(flat, [place], reshape(grad_output, [-1]))
    return aten.view.default(aten.slice.Tensor(put_there, 0, 0, length), sizes)


def scatter_by_name(self: Tensor, dim: int, index: Tensor, src: Tensor, *, reduce: str) -> Tensor:
    """The older spelling of scatter_reduce: add or multiply"""
    if reduce == "add":
        return aten.scatter_add.default(self, dim, index, src)
    return aten.scatter_reduce.two(self, dim, index, src, "prod")


def scatter_value_by_name(
    self: Tensor, dim: int, index: Tensor, value: Number, *, reduce: str
) -> Tensor:
    """The same with one number"""
    src = aten.expand.default(constant(value, self), index.shape)
    return scatter_by_name(self, dim, index, src, reduce=reduce)


# --- cards ----------------------------------------------------------------------------------------

CARDS = (
    composed("diag_embed", diag_embed_shape, diag_embed, kind=Kind.MOVED),
    composed("put", None, put, kind=Kind.MOVED),
    composed("masked_scatter_backward", None, masked_scatter_backward, kind=Kind.MOVED),
    composed("_stack", None, stack, kind=Kind.MOVED),
)
