"""Batch normalisation in ATen's several spellings, and its backward.

The spellings that mutate running statistics do so by `copy_`; the functional ones return the new
values. Statistics are per channel (dimension 1).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from dovetail_prims.ops.common import (
    Family,
    along,
    aten,
    cast,
    compute_dtype,
    count,
    formatted,
    suggested_format,
    wide,
)

from .normalisation import _affine, saved_dtype

Norm = tuple[Tensor, Tensor, Tensor]


def _blend(running: Tensor, new: Tensor, momentum: float) -> Tensor:
    """(1 - momentum) running + momentum new, in running's dtype"""
    new = cast(new, compute_dtype(running.dtype))
    kept = aten.mul.Tensor(wide(running), 1 - momentum)
    return cast(aten.add.Tensor(kept, aten.mul.Tensor(new, momentum)), running.dtype)


def _laid_out(out: Tensor, input: Tensor) -> Tensor:
    """On a CPU: row-major where the input can be read so, else channels_last where it can be read
    so or has such strides, else row-major"""
    if input.device.type != "cpu":
        return out
    if input.is_contiguous():
        return formatted(out, torch.contiguous_format)
    last = {4: torch.channels_last, 5: torch.channels_last_3d}.get(input.dim())
    if last is not None and input.is_contiguous(memory_format=last):
        return formatted(out, last)
    return formatted(out, suggested_format(input))


def _train(
    input: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    momentum: float,
    eps: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor | None, Tensor | None]:
    """Normalised by the batch's own statistics: out, mean, rstd, new running mean and variance"""
    x = wide(input)
    rank = x.dim()
    dims = [0, *range(2, rank)]
    var, mean = aten.var_mean.correction(x, dims, correction=0, keepdim=True)
    rstd = aten.rsqrt.default(aten.add.Tensor(var, eps))
    normal = aten.mul.Tensor(aten.sub.Tensor(x, mean), rstd)
    w = None if weight is None else along(weight, 1, rank)
    b = None if bias is None else along(bias, 1, rank)
    out = _laid_out(cast(_affine(normal, w, b), input.dtype), input)
    mean, var, rstd = (aten.squeeze.dims(s, dims) for s in (mean, var, rstd))
    new_mean = new_var = None
    if running_mean is not None:
        new_mean = _blend(running_mean, mean, momentum)
    if running_var is not None:
        n = count(x, dims)
        unbiased = aten.mul.Tensor(var, n / (n - 1))
        new_var = _blend(running_var, unbiased, momentum)
    kept = saved_dtype(input, weight, bias, running_mean)
    return out, cast(mean, kept), cast(rstd, kept), new_mean, new_var


def _evaluate(
    input: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    running_mean: Tensor,
    running_var: Tensor,
    eps: float,
) -> Norm:
    """Normalised by the running statistics; on a CPU nothing is saved but two empty tensors"""
    x = wide(input)
    rank = x.dim()
    mean = cast(along(running_mean, 1, rank), x.dtype)
    var = cast(along(running_var, 1, rank), x.dtype)
    scale = aten.rsqrt.default(aten.add.Tensor(var, eps))
    if weight is not None:
        scale = aten.mul.Tensor(scale, cast(along(weight, 1, rank), x.dtype))
    out = aten.mul.Tensor(aten.sub.Tensor(x, mean), scale)
    if bias is not None:
        out = aten.add.Tensor(out, cast(along(bias, 1, rank), x.dtype))
    if input.device.type == "cuda":
        rstd = aten.rsqrt.default(aten.add.Tensor(cast(running_var, x.dtype), eps))
        used = aten.clone.default(cast(running_mean, x.dtype))
        return cast(out, input.dtype), used, rstd
    kept = saved_dtype(input, weight, bias, running_mean)
    nothing = aten.full.default([0], 0, dtype=kept, device=input.device)
    return (
        _laid_out(cast(out, input.dtype), input),
        nothing,
        aten.full.default([0], 0, dtype=kept, device=input.device),
    )


def native_batch_norm(
    input: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    training: bool,
    momentum: float,
    eps: float,
) -> Norm:
    """Out, saved mean, saved rstd; in training the running statistics are written"""
    if not training:
        assert running_mean is not None and running_var is not None
        return _evaluate(input, weight, bias, running_mean, running_var, eps)
    out, mean, rstd, new_mean, new_var = _train(
        input, weight, bias, running_mean, running_var, momentum, eps
    )
    if running_mean is not None and new_mean is not None:
        running_mean.copy_(new_mean)
    if running_var is not None and new_var is not None:
        running_var.copy_(new_var)
    return out, mean, rstd


def native_batch_norm_no_stats(
    input: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    training: bool,
    momentum: float,
    eps: float,
) -> Norm:
    """Without running statistics the batch's own are used, training or not"""
    return _train(input, weight, bias, None, None, momentum, eps)[:3]


def native_batch_norm_no_training(
    input: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    running_mean: Tensor,
    running_var: Tensor,
    momentum: float,
    eps: float,
) -> Norm:
    """By the running statistics"""
    return _evaluate(input, weight, bias, running_mean, running_var, eps)


def native_batch_norm_functional(
    input: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    running_mean: Tensor,
    running_var: Tensor,
    training: bool,
    momentum: float,
    eps: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """As native_batch_norm, the new running statistics returned"""
    if not training:
        norm = _evaluate(input, weight, bias, running_mean, running_var, eps)
        return *norm, aten.clone.default(running_mean), aten.clone.default(running_var)
    results = _train(input, weight, bias, running_mean, running_var, momentum, eps)
    out, mean, rstd, new_mean, new_var = results
    assert new_mean is not None and new_var is not None
    return out, mean, rstd, new_mean, new_var


def _reserve(input: Tensor) -> Tensor:
    """The empty work space ATen's newer spellings return"""
    return aten.full.default([0], 0, dtype=torch.uint8, device=input.device)


def batch_norm_with_update(
    input: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    running_mean: Tensor,
    running_var: Tensor,
    momentum: float,
    eps: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Training; the running statistics are written"""
    norm = native_batch_norm(input, weight, bias, running_mean, running_var, True, momentum, eps)
    return *norm, _reserve(input)


def batch_norm_with_update_functional(
    input: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    running_mean: Tensor,
    running_var: Tensor,
    momentum: float,
    eps: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Training; the new running statistics are returned"""
    out, mean, rstd, new_mean, new_var = native_batch_norm_functional(
        input, weight, bias, running_mean, running_var, True, momentum, eps
    )
    return out, mean, rstd, _reserve(input), new_mean, new_var


def batch_norm_no_update(
    input: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    momentum: float,
    eps: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """By the running statistics, or by the batch's own where there are none"""
    if running_mean is None or running_var is None:
        norm = native_batch_norm_no_stats(input, weight, bias, True, momentum, eps)
    else:
        norm = _evaluate(input, weight, bias, running_mean, running_var, eps)
    return *norm, _reserve(input)


def cudnn_batch_norm(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    training: bool,
    exponential_average_factor: float,
    epsilon: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """cuDNN's spelling: the same, and a reserve"""
    norm = native_batch_norm(
        input,
        weight,
        bias,
        running_mean,
        running_var,
        training,
        exponential_average_factor,
        epsilon,
    )
    return *norm, _reserve(input)


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


TABLE: Family = {
    "native_batch_norm.default": native_batch_norm,
    "_native_batch_norm_legit.default": native_batch_norm,
    "_native_batch_norm_legit.no_stats": native_batch_norm_no_stats,
    "_native_batch_norm_legit_no_training.default": native_batch_norm_no_training,
    "_native_batch_norm_legit_functional.default": native_batch_norm_functional,
    "_batch_norm_with_update.default": batch_norm_with_update,
    "_batch_norm_with_update_functional.default": batch_norm_with_update_functional,
    "_batch_norm_no_update.default": batch_norm_no_update,
    "cudnn_batch_norm.default": cudnn_batch_norm,
    "native_batch_norm_backward.default": native_batch_norm_backward,
    "batch_norm_backward.default": batch_norm_backward,
    "cudnn_batch_norm_backward.default": cudnn_batch_norm_backward,
}
