"""Gradients of batch normalisation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from dovetail_prims.fake_tensor import FakeTensor
from dovetail_prims.ops.card import composed
from dovetail_prims.ops.common import along, aten, cast, count, wide
from dovetail_prims.ops.norms import like_contiguous, like_suggested, saved_dtype, statistics_dtype
from dovetail_prims.shape_rules.layout import fresh

# --- shapes ---------------------------------------------------------------------------------------


def batch_norm_backward_shape(
    grad: FakeTensor,
    x: FakeTensor,
    weight: FakeTensor | None,
    running_mean: FakeTensor | None,
    running_var: FakeTensor | None,
    save_mean: FakeTensor | None,
    save_invstd: FakeTensor | None,
    train: bool,
    eps: float,
    output_mask: Sequence[bool],
) -> tuple[FakeTensor | None, FakeTensor | None, FakeTensor | None]:
    """Gradients of input, weight, bias."""
    channels = (x._sizes[1],)
    dtype = weight._dtype if weight is not None else statistics_dtype(x, running_mean)
    # Eager's CUDA kernel for given statistics knows one layout.
    plain = x._device.type == "cuda" and not train
    grad = like_contiguous(x) if plain else like_suggested(x)
    return (
        grad if output_mask[0] else None,
        fresh(channels, dtype, x._device) if output_mask[1] else None,
        fresh(channels, dtype, x._device) if output_mask[2] else None,
    )


def cudnn_batch_norm_backward_shape(
    x: FakeTensor, grad: FakeTensor, weight: FakeTensor, *rest: Any
) -> tuple[FakeTensor, FakeTensor, FakeTensor]:
    """Gradients of input, weight, bias."""
    return like_suggested(x), like_contiguous(weight), like_contiguous(weight)


# --- decompositions -------------------------------------------------------------------------------


def native_batch_norm_backward(
    grad_out: Tensor,
    input: Tensor,
    weight: Tensor | None,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    save_mean: Tensor | None,
    save_invstd: Tensor | None,
    train: bool,
    eps: float,
    output_mask: Sequence[bool],
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """Gradients to input, weight and bias"""
    g, x = wide(grad_out), wide(input)
    rank = x.dim()
    dims = [0, *range(2, rank)]
    if train:
        assert save_mean is not None and save_invstd is not None
        mean, rstd = (cast(along(s, 1, rank), x.dtype) for s in (save_mean, save_invstd))
    else:
        assert running_mean is not None and running_var is not None
        mean, var = (cast(along(s, 1, rank), x.dtype) for s in (running_mean, running_var))
        rstd = aten.rsqrt.default(aten.add.Tensor(var, eps))
    normal = aten.mul.Tensor(aten.sub.Tensor(x, mean), rstd)
    dtype = saved_dtype(input, weight)
    to_input: Tensor | None = None
    # The weight is the same along what is summed: two sums serve all three gradients.
    of_product = aten.sum.dim_IntList(aten.mul.Tensor(g, normal), dims, True)
    of_gradient = aten.sum.dim_IntList(g, dims, True)
    if output_mask[0]:
        bent = g
        if train:
            number = count(x, dims)
            bent = aten.sub.Tensor(bent, aten.div.Tensor(of_gradient, number))
            along_normal = aten.mul.Tensor(normal, aten.div.Tensor(of_product, number))
            bent = aten.sub.Tensor(bent, along_normal)
        scale = rstd
        if weight is not None:
            scale = aten.mul.Tensor(rstd, cast(along(weight, 1, rank), x.dtype))
        to_input = cast(aten.mul.Tensor(bent, scale), input.dtype)
    to_weight, to_bias = (
        cast(aten.squeeze.dims(total, dims), dtype) if wanted else None
        for total, wanted in zip((of_product, of_gradient), output_mask[1:], strict=True)
    )
    return to_input, to_weight, to_bias


def batch_norm_backward(
    grad_out: Tensor,
    input: Tensor,
    weight: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    save_mean: Tensor | None,
    save_var: Tensor | None,
    update: bool,
    eps: float,
    output_mask: Sequence[bool],
    reserve: Tensor,
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """As native_batch_norm_backward; `save_var` holds the reciprocal root there too"""
    statistics = (running_mean, running_var, save_mean, save_var)
    return native_batch_norm_backward(
        grad_out, input, weight, *statistics, update, eps, output_mask
    )


def cudnn_batch_norm_backward(
    input: Tensor,
    grad_output: Tensor,
    weight: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    save_mean: Tensor | None,
    save_var: Tensor | None,
    epsilon: float,
    reserveSpace: Tensor,
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """cuDNN's spelling: always by the batch's own statistics"""
    statistics = (running_mean, running_var, save_mean, save_var)
    return native_batch_norm_backward(
        grad_output, input, weight, *statistics, True, epsilon, (True, True, True)
    )


# --- cards --------------------------------------------------------------------------------------

CARDS = (
    composed("native_batch_norm_backward", batch_norm_backward_shape, native_batch_norm_backward),
    composed(
        "cudnn_batch_norm_backward", cudnn_batch_norm_backward_shape, cudnn_batch_norm_backward
    ),
    composed("batch_norm_backward", None, batch_norm_backward),
)
