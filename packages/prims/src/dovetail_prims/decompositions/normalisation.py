"""Layer, group, RMS and batch normalisation. Statistics are taken in the compute dtype.

Saved statistics have the dtype the eager kernel saves: on the CPU that of the parameters (of the
input where there are none), on other devices float32 for the half types.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from dovetail_prims.ops.common import (
    Family,
    aten,
    cast,
    compute_dtype,
    contiguous,
    count,
    formatted,
    suggested_format,
    wide,
)

Norm = tuple[Tensor, Tensor, Tensor]


def saved_dtype(x: Tensor, *parameters: Tensor | None) -> torch.dtype:
    """The dtype of the saved statistics."""
    if x.device.type != "cpu":
        return compute_dtype(x.dtype)
    return next((p.dtype for p in parameters if p is not None), x.dtype)


def _affine(x: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
    """x weight + bias, of what is there, in x's dtype"""
    if weight is not None:
        x = aten.mul.Tensor(x, cast(weight, x.dtype))
    return x if bias is None else aten.add.Tensor(x, cast(bias, x.dtype))


def _statistics(x: Tensor, dims: Sequence[int], eps: float) -> tuple[Tensor, Tensor, Tensor]:
    """variance, mean and 1 / sqrt(variance + eps), reduced dimensions kept"""
    var, mean = aten.var_mean.correction(x, dims, correction=0, keepdim=True)
    return var, mean, aten.rsqrt.default(aten.add.Tensor(var, eps))


def native_layer_norm(
    input: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float,
) -> Norm:
    """(x - mean) rstd weight + bias over the trailing dimensions; mean and rstd come too"""
    x = wide(contiguous(input))
    rank = x.dim()
    dims = list(range(rank - len(normalized_shape), rank))
    _, mean, rstd = _statistics(x, dims, eps)
    out = _affine(aten.mul.Tensor(aten.sub.Tensor(x, mean), rstd), weight, bias)
    kept = saved_dtype(input, weight, bias)
    return cast(out, input.dtype), cast(mean, kept), cast(rstd, kept)


def _parameter_gradients(
    grad: Tensor,
    normal: Tensor,
    dims: Sequence[int],
    dtype: torch.dtype,
    wanted: Sequence[bool],
) -> tuple[Tensor | None, Tensor | None]:
    """Gradients to weight and bias: g x̂ and g, summed over everything else"""
    to_weight = aten.mul.Tensor(grad, normal) if wanted[0] else None
    to_bias = grad if wanted[1] else None
    if dims:
        to_weight = None if to_weight is None else aten.sum.dim_IntList(to_weight, dims)
        to_bias = None if to_bias is None else aten.sum.dim_IntList(to_bias, dims)
    return (
        None if to_weight is None else cast(to_weight, dtype),
        None if to_bias is None else cast(to_bias, dtype),
    )


def _centred_gradient(g: Tensor, normal: Tensor, rstd: Tensor, dims: Sequence[int]) -> Tensor:
    """rstd (g - mean(g) - x̂ mean(g x̂)): the gradient through mean and variance"""
    n = count(g, dims)
    if type(n) is int and n == 1:
        # g less its mean is nothing, and must not be a rounding's rest where a GPU computes
        # g, a product, once rounded and once not.
        bent = aten.mul.Tensor(normal, aten.mul.Tensor(g, normal))
        return aten.neg.default(aten.mul.Tensor(bent, rstd))
    mean_g = aten.div.Tensor(aten.sum.dim_IntList(g, dims, True), n)
    mean_gx = aten.div.Tensor(aten.sum.dim_IntList(aten.mul.Tensor(g, normal), dims, True), n)
    inner = aten.sub.Tensor(aten.sub.Tensor(g, mean_g), aten.mul.Tensor(normal, mean_gx))
    return aten.mul.Tensor(inner, rstd)


def native_layer_norm_backward(
    grad_out: Tensor,
    input: Tensor,
    normalized_shape: Sequence[int],
    mean: Tensor,
    rstd: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    output_mask: Sequence[bool],
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """Gradients to input, weight and bias"""
    g, x = wide(contiguous(grad_out)), wide(contiguous(input))
    rank = x.dim()
    split = rank - len(normalized_shape)
    inner, outer = list(range(split, rank)), list(range(split))
    rstd = cast(rstd, x.dtype)
    normal = aten.mul.Tensor(aten.sub.Tensor(x, cast(mean, x.dtype)), rstd)
    to_input = None
    if output_mask[0]:
        scaled = g if weight is None else aten.mul.Tensor(g, cast(weight, x.dtype))
        to_input = cast(_centred_gradient(scaled, normal, rstd, inner), input.dtype)
    dtype = weight.dtype if weight is not None else input.dtype
    wanted = [output_mask[1] and weight is not None, output_mask[2] and bias is not None]
    to_weight, to_bias = _parameter_gradients(g, normal, outer, dtype, wanted)
    return to_input, to_weight, to_bias


def fused_rms_norm(
    input: Tensor, normalized_shape: Sequence[int], weight: Tensor | None, eps: float | None
) -> tuple[Tensor, Tensor]:
    """x / sqrt(mean(x²) + eps) weight, and the reciprocal root"""
    x = wide(contiguous(input))
    rank = x.dim()
    dims = list(range(rank - len(normalized_shape), rank))
    square = aten.sum.dim_IntList(aten.mul.Tensor(x, x), dims, True)
    mean = aten.div.Tensor(square, count(x, dims))
    eps = torch.finfo(x.dtype).eps if eps is None else eps
    rstd = aten.rsqrt.default(aten.add.Tensor(mean, eps))
    out = _affine(aten.mul.Tensor(x, rstd), weight, None)
    return cast(out, input.dtype), rstd


def fused_rms_norm_backward(
    grad_out: Tensor,
    input: Tensor,
    normalized_shape: Sequence[int],
    rstd: Tensor,
    weight: Tensor | None,
    output_mask: Sequence[bool],
) -> tuple[Tensor | None, Tensor | None]:
    """rstd (g w - x̂ mean(g w x̂)), and g x̂ summed"""
    g, x = wide(contiguous(grad_out)), wide(contiguous(input))
    rank = x.dim()
    split = rank - len(normalized_shape)
    inner, outer = list(range(split, rank)), list(range(split))
    rstd = cast(rstd, x.dtype)
    normal = aten.mul.Tensor(x, rstd)
    to_input = None
    if output_mask[0]:
        scaled = g if weight is None else aten.mul.Tensor(g, cast(weight, x.dtype))
        total = aten.sum.dim_IntList(aten.mul.Tensor(scaled, normal), inner, True)
        mean = aten.div.Tensor(total, count(x, inner))
        bent = aten.sub.Tensor(scaled, aten.mul.Tensor(normal, mean))
        to_input = cast(aten.mul.Tensor(bent, rstd), input.dtype)
    wanted = [output_mask[1] and weight is not None, False]
    dtype = weight.dtype if weight is not None else input.dtype
    return to_input, _parameter_gradients(g, normal, outer, dtype, wanted)[0]


def _grouped(x: Tensor, group: int) -> Tensor:
    """(N, C, ...) seen as (N, group, C / group, ...): splitting a dimension is always a view"""
    shape = x.shape
    return aten.view.default(x, [shape[0], group, shape[1] // group, *shape[2:]])


def _group_parameter(p: Tensor, group: int, rank: int, dtype: torch.dtype) -> Tensor:
    """A parameter of length C laid over (1, group, C / group, 1, ...)"""
    return cast(aten.view.default(p, [1, group, p.shape[0] // group, *[1] * (rank - 3)]), dtype)


def native_group_norm(
    input: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    N: int,
    C: int,
    HxW: int,
    group: int,
    eps: float,
) -> Norm:
    """Normalisation over each sample's groups of channels; mean and rstd are (N, group)"""
    x = wide(_grouped(input, group))
    rank = x.dim()
    _, mean, rstd = _statistics(x, list(range(2, rank)), eps)
    out = aten.mul.Tensor(aten.sub.Tensor(x, mean), rstd)
    w = None if weight is None else _group_parameter(weight, group, rank, x.dtype)
    b = None if bias is None else _group_parameter(bias, group, rank, x.dtype)
    out = aten.view.default(cast(_affine(out, w, b), input.dtype), input.shape)
    if input.device.type == "cpu":
        out = formatted(out, suggested_format(input))
    kept = saved_dtype(input, weight, bias)
    stats = [cast(aten.view.default(s, [N, group]), kept) for s in (mean, rstd)]
    return out, stats[0], stats[1]


def native_group_norm_backward(
    grad_out: Tensor,
    input: Tensor,
    mean: Tensor,
    rstd: Tensor,
    weight: Tensor | None,
    N: int,
    C: int,
    HxW: int,
    group: int,
    output_mask: Sequence[bool],
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """Gradients to input, weight and bias"""
    g, x = wide(_grouped(grad_out, group)), wide(_grouped(input, group))
    rank = x.dim()
    kept = [N, group, *[1] * (rank - 2)]
    mean = cast(aten.view.default(mean, kept), x.dtype)
    rstd = cast(aten.view.default(rstd, kept), x.dtype)
    normal = aten.mul.Tensor(aten.sub.Tensor(x, mean), rstd)
    to_input = None
    if output_mask[0]:
        w = None if weight is None else _group_parameter(weight, group, rank, x.dtype)
        scaled = g if w is None else aten.mul.Tensor(g, w)
        bent = _centred_gradient(scaled, normal, rstd, list(range(2, rank)))
        to_input = aten.view.default(cast(bent, input.dtype), input.shape)
    dtype = weight.dtype if weight is not None else input.dtype
    to_weight, to_bias = _parameter_gradients(
        g, normal, [0, *range(3, rank)], dtype, output_mask[1:]
    )
    return (
        to_input,
        None if to_weight is None else aten.view.default(to_weight, [C]),
        None if to_bias is None else aten.view.default(to_bias, [C]),
    )


TABLE: Family = {
    "native_layer_norm.default": native_layer_norm,
    "native_layer_norm_backward.default": native_layer_norm_backward,
    "_fused_rms_norm.default": fused_rms_norm,
    "_fused_rms_norm_backward.default": fused_rms_norm_backward,
    "native_group_norm.default": native_group_norm,
    "native_group_norm_backward.default": native_group_norm_backward,
}
