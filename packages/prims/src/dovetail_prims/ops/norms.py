"""Layer, root mean square and group normalisation, with their gradients."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from dovetail_prims.fake_tensor import FakeTensor, Size, Sizes, make
from dovetail_prims.ops.activations_backward import _Results
from dovetail_prims.ops.card import composed
from dovetail_prims.ops.common import (
    aten,
    cast,
    compute_dtype,
    contiguous,
    count,
    formatted,
    suggested_format,
    wide,
)
from dovetail_prims.ops.losses import alike
from dovetail_prims.shape_rules.layout import (
    channels_last,
    equal_sizes,
    fresh,
    suggests_channels_last,
)
from dovetail_prims.shape_rules.layout import contiguous as row_major
from dovetail_prims.shape_rules.promotion import REDUCED

# --- shapes ---------------------------------------------------------------------------------------


def like_contiguous(x: FakeTensor) -> FakeTensor:
    return fresh(x._sizes, x._dtype, x._device)


def suggested_strides(x: FakeTensor) -> Sizes:
    """Strides of an output in the input's suggested memory format."""
    return channels_last(x._sizes) if suggests_channels_last(x) else row_major(x._sizes)


def check_mixed(x: FakeTensor, *parameters: FakeTensor | None) -> None:
    """On CPU only reduced-precision data may come with parameters of another type: float32."""
    if x._device.type == "cpu":
        for p in parameters:
            if p is not None and p._dtype is not x._dtype:
                if x._dtype not in REDUCED or p._dtype is not torch.float32:
                    raise RuntimeError("mixed dtype (CPU): all inputs must share same datatype.")


def like_suggested(x: FakeTensor) -> FakeTensor:
    return make(x._sizes, suggested_strides(x), x._dtype, x._device)


def statistics_dtype(x: FakeTensor, *parameters: FakeTensor | None) -> torch.dtype:
    """dtype of saved means: float for reduced precision on CUDA; on CPU the parameters' dtype."""
    if x._dtype not in REDUCED:
        return x._dtype
    if x._device.type != "cpu":
        return torch.float32
    for p in parameters:
        if p is not None:
            return p._dtype
    return x._dtype


def layer_norm(
    x: FakeTensor,
    normalized_shape: Sequence[Size],
    weight: FakeTensor | None,
    bias: FakeTensor | None,
    eps: float,
) -> tuple[FakeTensor, FakeTensor, FakeTensor]:
    """`native_layer_norm`: output, mean, reciprocal deviation."""
    axis = len(x._sizes) - len(normalized_shape)
    if axis < 0 or tuple(normalized_shape) != x._sizes[axis:]:
        raise RuntimeError(
            f"Given normalized_shape={list(normalized_shape)}, expected input with shape [*, "
            f"{list(normalized_shape)}], but got input of size{list(x._sizes)}"
        )
    check_mixed(x, weight, bias)
    dtype = statistics_dtype(x, weight, bias)
    stat = x._sizes[:axis] + (1,) * len(normalized_shape)
    return like_contiguous(x), fresh(stat, dtype, x._device), fresh(stat, dtype, x._device)


def layer_norm_backward(
    grad: FakeTensor,
    x: FakeTensor,
    normalized_shape: Sequence[Size],
    mean: FakeTensor,
    rstd: FakeTensor,
    weight: FakeTensor | None,
    bias: FakeTensor | None,
    output_mask: Sequence[bool],
) -> tuple[FakeTensor | None, FakeTensor | None, FakeTensor | None]:
    """Gradients of input, weight and bias, as the mask asks for them."""
    shape = tuple(normalized_shape)
    return (
        like_contiguous(x) if output_mask[0] else None,
        parameter_gradient(weight, shape, x) if output_mask[1] else None,
        parameter_gradient(bias, shape, x) if output_mask[2] else None,
    )


def parameter_gradient(parameter: FakeTensor | None, shape: Sizes, x: FakeTensor) -> FakeTensor:
    if parameter is not None:
        return like_contiguous(parameter)
    return fresh(shape, x._dtype, x._device)


def fused_rms_norm_shape(
    x: FakeTensor, normalized_shape: Sequence[Size], weight: FakeTensor | None, eps: float | None
) -> tuple[FakeTensor, FakeTensor]:
    """`_fused_rms_norm` on CUDA: output and reciprocal root mean square. On CPU it has parts."""
    if x._device.type == "cpu":
        return NotImplemented  # type: ignore[no-any-return]
    axis = len(x._sizes) - len(normalized_shape)
    stat = x._sizes[:axis] + (1,) * len(normalized_shape)
    return like_contiguous(x), fresh(stat, statistics_dtype(x), x._device)


def group_norm(
    x: FakeTensor,
    weight: FakeTensor | None,
    bias: FakeTensor | None,
    n: Size,
    c: Size,
    hxw: Size,
    group: int,
    eps: float,
) -> tuple[FakeTensor, FakeTensor, FakeTensor]:
    """`native_group_norm`."""
    check_mixed(x, weight, bias)
    dtype = statistics_dtype(x, weight, bias)
    if x._device.type == "cpu":
        out = like_suggested(x)
    else:
        out = make(x._sizes, suggested_strides(x), x._dtype, x._device)
        dtype = x._dtype
    return out, fresh((n, group), dtype, x._device), fresh((n, group), dtype, x._device)


def group_norm_backward(
    grad: FakeTensor,
    x: FakeTensor,
    mean: FakeTensor,
    rstd: FakeTensor,
    weight: FakeTensor | None,
    n: Size,
    c: Size,
    hxw: Size,
    group: int,
    output_mask: Sequence[bool],
) -> _Results:
    """Gradients of input, laid out as the result, weight and bias."""
    if not alike(grad, x) or not equal_sizes(mean._sizes, (n, group)):
        return NotImplemented  # type: ignore[no-any-return]
    dtype = x._dtype if weight is None else weight._dtype
    of_input = group_norm(x, weight, None, n, c, hxw, group, 0.0)[0]
    return (
        of_input if output_mask[0] else None,
        fresh((c,), dtype, x._device) if output_mask[1] else None,
        fresh((c,), dtype, x._device) if output_mask[2] else None,
    )


# --- decompositions -------------------------------------------------------------------------------


Norm = tuple[Tensor, Tensor, Tensor]


def saved_dtype(x: Tensor, *parameters: Tensor | None) -> torch.dtype:
    """The dtype of the saved statistics."""
    if x.device.type != "cpu":
        return compute_dtype(x.dtype)
    return next((p.dtype for p in parameters if p is not None), x.dtype)


def affine(x: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
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
    out = affine(aten.mul.Tensor(aten.sub.Tensor(x, mean), rstd), weight, bias)
    kept = saved_dtype(input, weight, bias)
    return cast(out, input.dtype), cast(mean, kept), cast(rstd, kept)


def _gradients_of_parameters(
    grad: Tensor, normal: Tensor, dims: Sequence[int], dtype: torch.dtype, wanted: Sequence[bool]
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
    to_weight, to_bias = _gradients_of_parameters(g, normal, outer, dtype, wanted)
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
    out = affine(aten.mul.Tensor(x, rstd), weight, None)
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
    return to_input, _gradients_of_parameters(g, normal, outer, dtype, wanted)[0]


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
    out = aten.view.default(cast(affine(out, w, b), input.dtype), input.shape)
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
    to_weight, to_bias = _gradients_of_parameters(
        g, normal, [0, *range(3, rank)], dtype, output_mask[1:]
    )
    return (
        to_input,
        None if to_weight is None else aten.view.default(to_weight, [C]),
        None if to_bias is None else aten.view.default(to_bias, [C]),
    )


# --- cards --------------------------------------------------------------------------------------

CARDS = (
    composed("native_layer_norm", layer_norm, native_layer_norm),
    composed("native_layer_norm_backward", layer_norm_backward, native_layer_norm_backward),
    composed("_fused_rms_norm", fused_rms_norm_shape, fused_rms_norm),
    composed("native_group_norm", group_norm, native_group_norm),
    composed("native_group_norm_backward", group_norm_backward, native_group_norm_backward),
    composed("_fused_rms_norm_backward", None, fused_rms_norm_backward),
)
