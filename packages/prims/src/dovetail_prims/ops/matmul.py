"""Products of matrices and vectors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from dovetail_prims.fake_tensor import FakeTensor
from dovetail_prims.ops.card import composed, library
from dovetail_prims.ops.common import Number, aten, cast, promoted_together, reshape, times, wide
from dovetail_prims.ops.operands import laid_out_by
from dovetail_prims.shape_rules.layout import broadcast, equal_sizes, fresh, is_canonical
from dovetail_prims.shape_rules.promotion import common_device, of_one_kind

# --- shapes ---------------------------------------------------------------------------------------


def _check_dtypes(a: FakeTensor, b: FakeTensor, op: str) -> None:
    if a._dtype is not b._dtype:
        raise RuntimeError(
            f"expected m1 and m2 to have the same dtype, but got: {a._dtype} != {b._dtype} ({op})"
        )


def mm(a: FakeTensor, b: FakeTensor) -> FakeTensor:
    """(n, k) @ (k, m)."""
    if len(a._sizes) != 2 or len(b._sizes) != 2:
        raise RuntimeError("mm expects two matrices")
    if a._sizes[1] != b._sizes[0]:
        raise RuntimeError(
            f"mat1 and mat2 shapes cannot be multiplied ({a._sizes[0]}x{a._sizes[1]} and "
            f"{b._sizes[0]}x{b._sizes[1]})"
        )
    _check_dtypes(a, b, "mm")
    device = a._device if a._device == b._device else common_device((a, b))
    return fresh((a._sizes[0], b._sizes[1]), a._dtype, device)


def of_bytes(a: FakeTensor, b: FakeTensor, *given: Any, **named: Any) -> FakeTensor:
    """(n, k) @ (k, m) of integers, `_int_mm`, or of 8-bit floats with scales, `_scaled_mm`. (What
    else a device asks of them, as sizes and strides, the call itself looks at.)"""
    if len(a._sizes) != 2 or len(b._sizes) != 2:
        raise RuntimeError(f"mat{1 if len(a._sizes) != 2 else 2} must be a matrix")
    if not equal_sizes(a._sizes[1:], b._sizes[:1]):
        raise RuntimeError(
            f"mat1 and mat2 shapes cannot be multiplied ({a._sizes[0]}x{a._sizes[1]} and "
            f"{b._sizes[0]}x{b._sizes[1]})"
        )
    dtype = torch.int32
    if a._dtype.is_floating_point:
        dtype = named.get("out_dtype", given[4] if len(given) > 4 else None) or a._dtype
    return fresh((a._sizes[0], b._sizes[1]), dtype, common_device((a, b)))


def addmm(
    bias: FakeTensor, a: FakeTensor, b: FakeTensor, *, beta: Any = 1, alpha: Any = 1, **rest: Any
) -> FakeTensor:
    """bias + a @ b."""
    out = mm(a, b)
    if broadcast((bias._sizes, out._sizes)) != out._sizes:
        raise RuntimeError(
            f"The expanded size of the tensor {list(out._sizes)} must match {list(bias._sizes)}"
        )
    if bias._dtype is not a._dtype:
        raise RuntimeError(
            f"self and mat2 must have the same dtype, but got {bias._dtype} and {a._dtype}"
        )
    return out


def bmm(a: FakeTensor, b: FakeTensor) -> FakeTensor:
    """(n, i, k) @ (n, k, j)."""
    if len(a._sizes) != 3 or len(b._sizes) != 3:
        raise RuntimeError("batch1 and batch2 must be 3D tensors")
    if a._sizes[0] != b._sizes[0] or a._sizes[2] != b._sizes[1]:
        raise RuntimeError(
            f"Expected size for first two dimensions of batch2 tensor to be: [{a._sizes[0]}, "
            f"{a._sizes[2]}] but got: [{b._sizes[0]}, {b._sizes[1]}]."
        )
    _check_dtypes(a, b, "bmm")
    device = a._device if a._device == b._device else common_device((a, b))
    return fresh((a._sizes[0], a._sizes[1], b._sizes[2]), a._dtype, device)


def baddbmm(bias: FakeTensor, a: FakeTensor, b: FakeTensor, **rest: Any) -> FakeTensor:
    """bias + bmm(a, b)."""
    out = bmm(a, b)
    if broadcast((bias._sizes, out._sizes)) != out._sizes:
        raise RuntimeError(
            f"The expanded size of the tensor {list(out._sizes)} must match {list(bias._sizes)}"
        )
    return out


def dot_shape(a: FakeTensor, b: FakeTensor) -> FakeTensor:
    """Inner product of two vectors."""
    if len(a._sizes) != 1 or len(b._sizes) != 1 or a._sizes[0] != b._sizes[0]:
        raise RuntimeError(f"inconsistent tensor size, {list(a._sizes)} and {list(b._sizes)}")
    _check_dtypes(a, b, "dot")
    return fresh((), a._dtype, common_device((a, b)))


def mv_shape(a: FakeTensor, b: FakeTensor) -> FakeTensor:
    """Matrix times vector."""
    if len(a._sizes) != 2 or len(b._sizes) != 1 or a._sizes[1] != b._sizes[0]:
        raise RuntimeError(f"size mismatch, got mat {list(a._sizes)}, vec {list(b._sizes)}")
    _check_dtypes(a, b, "mv")
    return fresh((a._sizes[0],), a._dtype, common_device((a, b)))


def linear(x: FakeTensor, weight: FakeTensor, bias: FakeTensor | None = None) -> FakeTensor:
    """x @ weight.T + bias over the last dimension."""
    if len(weight._sizes) != 2 or not x._sizes:
        return NotImplemented  # type: ignore[no-any-return]
    if x._sizes[-1] != weight._sizes[1]:
        raise RuntimeError(
            f"mat1 and mat2 shapes cannot be multiplied ({list(x._sizes)} and "
            f"{weight._sizes[1]}x{weight._sizes[0]})"
        )
    _check_dtypes(x, weight, "linear")
    return fresh((*x._sizes[:-1], weight._sizes[0]), x._dtype, x._device)


def inner_product(x: FakeTensor, y: FakeTensor) -> FakeTensor:
    """`vdot`."""
    if len(x._sizes) != 1 or not equal_sizes(x._sizes, y._sizes) or x._dtype is not y._dtype:
        return NotImplemented  # type: ignore[no-any-return]
    return fresh((), x._dtype, x._device) if x._device == y._device else NotImplemented


def matrix_times_vector_plus(
    x: FakeTensor, matrix: FakeTensor, vector: FakeTensor, **numbers: Any
) -> FakeTensor:
    """`addmv`."""
    if not of_one_kind(x, matrix, vector) or (len(matrix._sizes), len(vector._sizes)) != (2, 1):
        return NotImplemented  # type: ignore[no-any-return]
    rows, columns = matrix._sizes
    if not equal_sizes((columns,), vector._sizes) or not equal_sizes((rows,), x._sizes):
        return NotImplemented  # type: ignore[no-any-return]
    return fresh((rows,), x._dtype, x._device)


def outer_product_plus(
    x: FakeTensor, column: FakeTensor, row: FakeTensor, **numbers: Any
) -> FakeTensor:
    """`addr`."""
    if not of_one_kind(x, column, row) or not is_canonical(x):
        return NotImplemented  # type: ignore[no-any-return]
    if (len(column._sizes), len(row._sizes)) != (1, 1):
        return NotImplemented  # type: ignore[no-any-return]
    if not equal_sizes(x._sizes, (*column._sizes, *row._sizes)):
        return NotImplemented  # type: ignore[no-any-return]
    return fresh(x._sizes, x._dtype, x._device)


# --- decompositions -------------------------------------------------------------------------------


def mv(self: Tensor, vec: Tensor) -> Tensor:
    """Matrix times vector"""
    return aten.squeeze.dims(aten.mm.default(self, aten.unsqueeze.default(vec, 1)), [1])


def dot(self: Tensor, tensor: Tensor) -> Tensor:
    """Sum of products; of complex numbers a row times a column"""
    # (On a GPU a sum of so many elements as only a call tells would be one block's work.)
    cut = self.device.type == "cpu" or type(self.shape[0]) is int
    if cut and not self.is_complex():
        products = aten.sum.default(aten.mul.Tensor(wide(self), wide(tensor)))
        return cast(products, self.dtype)
    row, column = aten.unsqueeze.default(self, 0), aten.unsqueeze.default(tensor, 1)
    return aten.view.default(aten.mm.default(row, column), [])


def vdot(self: Tensor, other: Tensor) -> Tensor:
    """dot, of real vectors"""
    if self.is_complex():
        raise NotImplementedError("vdot of complex vectors")
    return dot(self, other)


def addmv(self: Tensor, mat: Tensor, vec: Tensor, *, beta: Number = 1, alpha: Number = 1) -> Tensor:
    """beta x + alpha mat vec"""
    column = aten.unsqueeze.default(vec, 1)
    base = aten.unsqueeze.default(self, 1) if self.dim() == 1 else self
    out = aten.addmm.default(base, mat, column, beta=beta, alpha=alpha)
    return aten.squeeze.dims(out, [1])


def addr(
    self: Tensor, vec1: Tensor, vec2: Tensor, *, beta: Number = 1, alpha: Number = 1
) -> Tensor:
    """beta x + alpha v wᵀ"""
    v, w = wide(aten.unsqueeze.default(vec1, 1)), wide(vec2)
    outer = aten.mul.Tensor(v, w)
    outer = times(outer, alpha)
    if beta == 0:
        out = cast(outer, promoted_together(self, vec1, vec2))
        return laid_out_by(out, self, aten.unsqueeze.default(vec1, 1), vec2)
    x = times(wide(self), beta)
    return cast(aten.add.Tensor(x, outer), promoted_together(self, vec1, vec2))


def addbmm(
    self: Tensor, batch1: Tensor, batch2: Tensor, *, beta: Number = 1, alpha: Number = 1
) -> Tensor:
    """beta x + alpha times the sum of the batch's products: one product over both dimensions"""
    b, n, k = batch1.shape
    left = reshape(aten.permute.default(batch1, [1, 0, 2]), [n, b * k])
    right = reshape(batch2, [b * k, batch2.shape[2]])
    return aten.addmm.default(self, left, right, beta=beta, alpha=alpha)


def trilinear(
    i1: Tensor,
    i2: Tensor,
    i3: Tensor,
    expand1: Sequence[int],
    expand2: Sequence[int],
    expand3: Sequence[int],
    sumdim: Sequence[int],
    unroll_dim: int = 1,
) -> Tensor:
    """The product of three tensors, each given extra dimensions, summed over some"""
    parts = []
    for x, extra in zip((i1, i2, i3), (expand1, expand2, expand3), strict=True):
        for dim in sorted(extra):
            x = aten.unsqueeze.default(x, dim)
        parts.append(x)
    product = aten.mul.Tensor(aten.mul.Tensor(parts[0], parts[1]), parts[2])
    return aten.sum.dim_IntList(product, sumdim)


def linalg_cross(self: Tensor, other: Tensor, *, dim: int = -1) -> Tensor:
    """The vector at right angles to both, of three components along `dim`"""

    def component(x: Tensor, i: int) -> Tensor:
        return aten.slice.Tensor(x, dim, i % 3, i % 3 + 1)

    def product(i: int, j: int) -> Tensor:
        return aten.mul.Tensor(component(self, i), component(other, j))

    parts = [aten.sub.Tensor(product(i + 1, i + 2), product(i + 2, i + 1)) for i in range(3)]
    return aten.cat.default(parts, dim)


# --- cards --------------------------------------------------------------------------------------

CARDS = (
    library("mm", mm),
    library("_int_mm", of_bytes),
    library("_scaled_mm", of_bytes),
    library("addmm", addmm),
    library("bmm", bmm),
    library("baddbmm", baddbmm),
    composed("dot", dot_shape, dot),
    composed("mv", mv_shape, mv),
    composed("linear", linear),
    composed("vdot", inner_product, vdot),
    composed("addmv", matrix_times_vector_plus, addmv),
    composed("addr", outer_product_plus, addr),
    composed("addbmm", None, addbmm),
    composed("_trilinear", None, trilinear),
    composed("linalg_cross", None, linalg_cross),
)
