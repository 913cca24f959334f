"""Batch normalisation."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from dovetail_prims.fake_tensor import FakeTensor, Sizes, make
from dovetail_prims.ops import norms
from dovetail_prims.ops.card import also, composed
from dovetail_prims.ops.common import (
    along,
    aten,
    cast,
    compute_dtype,
    count,
    formatted,
    suggested_format,
    wide,
)
from dovetail_prims.shape_rules import layout
from dovetail_prims.shape_rules.promotion import REDUCED

# --- shapes ---------------------------------------------------------------------------------------


def batch_norm_shape(
    x: FakeTensor,
    weight: FakeTensor | None,
    bias: FakeTensor | None,
    running_mean: FakeTensor | None,
    running_var: FakeTensor | None,
    training: bool,
    momentum: float,
    eps: float,
) -> tuple[FakeTensor, FakeTensor, FakeTensor]:
    """`native_batch_norm` and the `_native_batch_norm_legit` forms with statistics."""
    norms.check_mixed(x, weight, bias, running_mean, running_var)
    # Data that can be read as contiguous is.
    if x._device.type != "cpu":
        out = make(x._sizes, layout.empty_like_strides(x), x._dtype, x._device)
    elif layout.is_contiguous(x._sizes, x._strides):
        out = norms.like_contiguous(x)
    elif layout.is_channels_last(x._sizes, x._strides):
        out = make(x._sizes, layout.channels_last(x._sizes), x._dtype, x._device)
    else:
        out = norms.like_suggested(x)
    saved: Sizes = (x._sizes[1],) if training or x._device.type != "cpu" else (0,)
    dtype = x._dtype
    if dtype in REDUCED:
        if x._device.type != "cpu":
            dtype = torch.float32
        else:
            dtype = norms.statistics_dtype(x, weight, bias, running_mean)
    return out, layout.fresh(saved, dtype, x._device), layout.fresh(saved, dtype, x._device)


def batch_norm_no_stats_shape(
    x: FakeTensor,
    weight: FakeTensor | None,
    bias: FakeTensor | None,
    training: bool,
    momentum: float,
    eps: float,
) -> tuple[FakeTensor, FakeTensor, FakeTensor]:
    """`_native_batch_norm_legit.no_stats`."""
    return batch_norm_shape(x, weight, bias, None, None, training, momentum, eps)


def batch_norm_with_update_shape(
    x: FakeTensor,
    weight: FakeTensor | None,
    bias: FakeTensor | None,
    running_mean: FakeTensor,
    running_var: FakeTensor,
    momentum: float,
    eps: float,
) -> Any:
    """`_batch_norm_with_update`; on a CPU nothing is reserved for the backward."""
    if x._device.type != "cpu":
        return NotImplemented
    found = batch_norm_shape(x, weight, bias, running_mean, running_var, True, momentum, eps)
    return *found, layout.fresh((0,), torch.uint8, x._device)


def cudnn_batch_norm_shape(
    x: FakeTensor,
    weight: FakeTensor,
    bias: FakeTensor | None,
    running_mean: FakeTensor | None,
    running_var: FakeTensor | None,
    training: bool,
    momentum: float,
    eps: float,
) -> tuple[FakeTensor, FakeTensor, FakeTensor, FakeTensor]:
    """`cudnn_batch_norm`. The reserve's size is cuDNN's secret; it only passes to the backward."""
    saved: Sizes = (x._sizes[1],) if training else (0,)
    return (
        norms.like_suggested(x),
        layout.fresh(saved, weight._dtype, x._device),
        layout.fresh(saved, weight._dtype, x._device),
        layout.fresh((0,), torch.uint8, x._device),
    )


# --- decompositions -------------------------------------------------------------------------------


Norm = tuple[Tensor, Tensor, Tensor]


def _blend(running: Tensor, new: Tensor, momentum: float) -> Tensor:
    """(1 - momentum) running + momentum new, in running's dtype"""
    new = cast(new, compute_dtype(running.dtype))
    kept = aten.mul.Tensor(wide(running), 1 - momentum)
    return cast(aten.add.Tensor(kept, aten.mul.Tensor(new, momentum)), running.dtype)


def in_format(out: Tensor, input: Tensor) -> Tensor:
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
    out = in_format(cast(norms.affine(normal, w, b), input.dtype), input)
    mean, var, rstd = (aten.squeeze.dims(s, dims) for s in (mean, var, rstd))
    new_mean = new_var = None
    if running_mean is not None:
        new_mean = _blend(running_mean, mean, momentum)
    if running_var is not None:
        n = count(x, dims)
        unbiased = aten.mul.Tensor(var, n / (n - 1))
        new_var = _blend(running_var, unbiased, momentum)
    kept = norms.saved_dtype(input, weight, bias, running_mean)
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
    kept = norms.saved_dtype(input, weight, bias, running_mean)
    nothing = aten.full.default([0], 0, dtype=kept, device=input.device)
    return (
        in_format(cast(out, input.dtype), input),
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


# --- cards --------------------------------------------------------------------------------------

CARDS = (
    composed("native_batch_norm", batch_norm_shape, native_batch_norm),
    composed(
        "_native_batch_norm_legit",
        batch_norm_shape,
        native_batch_norm,
        also("no_stats", batch_norm_no_stats_shape, native_batch_norm_no_stats),
    ),
    composed("_batch_norm_with_update", batch_norm_with_update_shape, batch_norm_with_update),
    composed("cudnn_batch_norm", cudnn_batch_norm_shape, cudnn_batch_norm),
    composed("_native_batch_norm_legit_no_training", None, native_batch_norm_no_training),
    composed("_native_batch_norm_legit_functional", None, native_batch_norm_functional),
    composed("_batch_norm_with_update_functional", None, batch_norm_with_update_functional),
    composed("_batch_norm_no_update", None, batch_norm_no_update),
)
