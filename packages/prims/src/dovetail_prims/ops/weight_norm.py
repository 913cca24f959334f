"""Weights with a norm of their own, and with norms bounded."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from dovetail_prims.fake_tensor import FakeTensor
from dovetail_prims.ops.activations_backward import _Results
from dovetail_prims.ops.card import composed
from dovetail_prims.ops.common import Number, aten, cast, contiguous, where, wide, wrap
from dovetail_prims.ops.reductions import linalg_vector_norm
from dovetail_prims.shape_rules.layout import fresh, is_canonical, wrap_dim
from dovetail_prims.shape_rules.promotion import of_one_kind

# --- shapes ---------------------------------------------------------------------------------------


def renorm_shape(x: FakeTensor, p: Any, dim: int, maxnorm: Any) -> FakeTensor:
    """Slices scaled down to a norm: row-major."""
    if isinstance(p, complex) or p <= 0 or maxnorm < 0 or len(x._sizes) < 2:
        return NotImplemented  # type: ignore[no-any-return]
    wrap_dim(dim, len(x._sizes))
    return fresh(x._sizes, x._dtype, x._device)


def weight_norm_shape(v: FakeTensor, g: FakeTensor, dim: int = 0) -> _Results:
    """`_weight_norm_interface`: weights, and their norms before."""
    if not of_one_kind(v, g) or g._dtype not in (torch.float32, torch.float64):
        return NotImplemented  # type: ignore[no-any-return]
    if dim not in (0, len(v._sizes) - 1) or not is_canonical(g):
        return NotImplemented  # type: ignore[no-any-return]
    return fresh(v._sizes, v._dtype, v._device), fresh(g._sizes, g._dtype, g._device)


# --- decompositions -------------------------------------------------------------------------------


def weight_norm(v: Tensor, g: Tensor, dim: int = 0) -> tuple[Tensor, Tensor]:
    """v g / |v|, the norm over all dimensions but one"""
    dims = [d for d in range(v.dim()) if d != wrap(dim, v.dim())]
    x = wide(v)
    norm = aten.sqrt.default(aten.sum.dim_IntList(aten.mul.Tensor(x, x), dims, True))
    out = aten.mul.Tensor(x, aten.div.Tensor(wide(g), norm))
    return contiguous(cast(out, v.dtype)), cast(norm, g.dtype)


def weight_norm_backward(
    grad_w: Tensor, saved_v: Tensor, saved_g: Tensor, saved_norms: Tensor, dim: int
) -> tuple[Tensor, Tensor]:
    """g / |v| (w̄ - v (w̄·v) / |v|²), and (w̄·v) / |v|"""
    w, v, g, norm = (wide(x) for x in (grad_w, saved_v, saved_g, saved_norms))
    dims = [d for d in range(v.dim()) if d != wrap(dim, v.dim())]
    along_v = aten.sum.dim_IntList(aten.mul.Tensor(w, v), dims, True)
    to_g = aten.div.Tensor(along_v, norm)
    bent = aten.sub.Tensor(w, aten.mul.Tensor(v, aten.div.Tensor(to_g, norm)))
    to_v = aten.mul.Tensor(aten.div.Tensor(g, norm), bent)
    return contiguous(cast(to_v, saved_v.dtype)), cast(to_g, saved_g.dtype)


def renorm(self: Tensor, p: Number, dim: int, maxnorm: Number) -> Tensor:
    """Each slice across `dim` scaled down to the p-norm `maxnorm`, if it is longer"""
    dims = [d for d in range(self.dim()) if d != wrap(dim, self.dim())]
    length = linalg_vector_norm(wide(self), p, dims, True)
    scale = aten.div.Tensor(maxnorm, aten.add.Tensor(length, 1e-7))
    scale = where(aten.gt.Scalar(length, maxnorm), scale, 1.0)
    return contiguous(aten.mul.Tensor(self, cast(scale, self.dtype)))


# --- cards ----------------------------------------------------------------------------------------

CARDS = (
    composed("renorm", renorm_shape, renorm),
    composed("_weight_norm_interface", weight_norm_shape, weight_norm),
    composed("_weight_norm_interface_backward", None, weight_norm_backward),
)
