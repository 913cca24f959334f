"""Vector and rank-one products in terms of the matrix products."""

from __future__ import annotations

from torch import Tensor

from dovetail_prims.ops.common import (
    Family,
    Number,
    aten,
    cast,
    promoted_together,
    reshape,
    times,
    wide,
)

from .operand_layouts import laid_out_by


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


TABLE: Family = {
    "mv.default": mv,
    "dot.default": dot,
    "vdot.default": vdot,
    "addmv.default": addmv,
    "addr.default": addr,
    "addbmm.default": addbmm,
}
