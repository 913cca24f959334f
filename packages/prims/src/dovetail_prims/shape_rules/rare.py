"""Shape rules of library ops whose meta kernel PyTorch lacks, or which gives up too early."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from dovetail_prims.fake_fallback import run_on_meta
from dovetail_prims.fake_tensor import (
    FakeTensor,
    Size,
    Sizes,
    make,
)
from dovetail_prims.shape_rules.copies import clone
from dovetail_prims.shape_rules.layout import (
    broadcast,
    channels_last,
    fresh,
    has_zero,
    insisted,
    suggests_channels_last,
    wrap_dim,
)
from dovetail_prims.shape_rules.parts import slice_
from dovetail_prims.shape_rules.pointwise import binary

_SUM, _MEAN, _MAX = 0, 1, 2


def embedding_bag(
    weight: FakeTensor,
    indices: FakeTensor,
    offsets: FakeTensor,
    scale_grad_by_freq: bool = False,
    mode: int = _SUM,
    sparse: bool = False,
    per_sample_weights: FakeTensor | None = None,
    include_last_offset: bool = False,
    padding_idx: int = -1,
) -> tuple[FakeTensor, FakeTensor, FakeTensor, FakeTensor]:
    """Bags of rows, each summed up; then which bag an index is in, the bags' sizes, and where
    their maxima stand. On the CPU some are left out where its fast sum does without."""
    if weight._device.type != "cpu":
        return NotImplemented  # type: ignore[no-any-return]
    device, integer = weight._device, indices._dtype
    bags = offsets._sizes[0]
    if include_last_offset:
        bags = bags - 1
    fast = (
        mode == _SUM
        and weight._strides[1] == 1
        and padding_idx < 0
        and weight._dtype in (torch.float32, torch.float16, torch.bfloat16)
        and (per_sample_weights is None or per_sample_weights._strides[0] == 1)
    )
    where: Sizes = (0,) if fast else indices._sizes
    width = weight._sizes[1]
    return (
        fresh((bags, width), weight._dtype, device),
        fresh(where, integer, device),
        fresh((bags,), integer, device),
        fresh((bags, width) if mode == _MAX else (bags,), integer, device),
    )


def embedding_bag_forward_only(
    weight: FakeTensor,
    indices: FakeTensor,
    offsets: FakeTensor,
    scale_grad_by_freq: bool = False,
    mode: int = _SUM,
    *rest: Any,
) -> Any:
    """The same without a gradient: a sum's last two results are as long as the offsets."""
    results = embedding_bag(weight, indices, offsets, scale_grad_by_freq, mode, *rest)
    if results is NotImplemented or mode != _SUM:
        return results
    sizes, device = offsets._sizes, weight._device
    return (
        *results[:2],
        fresh(sizes, indices._dtype, device),
        fresh(sizes, indices._dtype, device),
    )


def histogram(x: FakeTensor, bins: Any = 100, **options: Any) -> tuple[FakeTensor, FakeTensor]:
    """Counts and bin edges, for a number of bins or for given edges."""
    if isinstance(bins, FakeTensor):
        return (
            fresh((bins._sizes[0] - 1,), x._dtype, x._device),
            fresh(bins._sizes, x._dtype, x._device),
        )
    return fresh((bins,), x._dtype, x._device), fresh((bins + 1,), x._dtype, x._device)


def margin_backward(grad: FakeTensor, x: FakeTensor, *rest: Any, **options: Any) -> FakeTensor:
    """Backward of the multi-class margin losses: the input's shape, contiguous."""
    return fresh(x._sizes, x._dtype, x._device)


def fractional_pool_backward(grad: FakeTensor, x: FakeTensor, *rest: Any) -> FakeTensor:
    """Backward of the fractional poolings."""
    return fresh(x._sizes, grad._dtype, grad._device)


def ctc_loss(
    log_probs: FakeTensor,
    targets: FakeTensor,
    input_lengths: Sequence[int],
    target_lengths: Sequence[int],
    blank: int = 0,
    zero_infinity: bool = False,
) -> tuple[FakeTensor, FakeTensor]:
    """The loss of each sequence, and the log probabilities of its prefixes."""
    if log_probs._device.type != "cpu" or len(log_probs._sizes) != 3:
        return NotImplemented  # type: ignore[no-any-return]
    steps, batch, _ = log_probs._sizes
    width = 2 * max(target_lengths, default=0) + 1
    dtype, device = log_probs._dtype, log_probs._device
    return fresh((batch,), dtype, device), fresh((batch, steps, width), dtype, device)


def ctc_loss_backward(grad: FakeTensor, log_probs: FakeTensor, *rest: Any) -> FakeTensor:
    """Its gradient has the shape of the log probabilities."""
    if log_probs._device.type != "cpu":
        return NotImplemented  # type: ignore[no-any-return]
    return fresh(log_probs._sizes, log_probs._dtype, log_probs._device)


def max_unpool2d(x: FakeTensor, indices: FakeTensor, output_size: Sequence[Size]) -> FakeTensor:
    """The maxima put back where they stood, in the input's memory format."""
    sizes = (*x._sizes[:-2], *output_size)
    if len(sizes) == 4 and suggests_channels_last(x):
        return make(sizes, channels_last(sizes), x._dtype, x._device)
    return fresh(sizes, x._dtype, x._device)


def _in_format(name: str) -> dict[str, Callable[..., Any]]:
    """The rule of an op whose kernel for the CPU keeps channels-last, of which its meta kernel does
    not know."""

    def rule(x: FakeTensor, *args: Any) -> Any:
        found = run_on_meta(getattr(torch.ops.aten, name).default, (x, *args), {})
        if x._device.type != "cpu" or len(x._sizes) < 4 or not suggests_channels_last(x):
            return found
        return make(found._sizes, channels_last(found._sizes), x._dtype, x._device)

    return {f"{name}.default": rule}


def pixel_unshuffle(x: FakeTensor, factor: int) -> FakeTensor:
    """Squares of pixels as channels; the kernel for the CPU keeps channels-last."""
    if len(x._sizes) < 3 or factor < 1:
        return NotImplemented  # type: ignore[no-any-return]
    *batch, channels, height, width = x._sizes
    if height % factor != 0 or width % factor != 0:
        if not has_zero(x._sizes):
            return NotImplemented  # type: ignore[no-any-return]
        raise RuntimeError(  # (PyTorch's own rule lets tensors without elements pass)
            f"pixel_unshuffle expects height and width to be divisible by downscale_factor, but "
            f"{height} and {width} are not divisible by {factor}"
        )
    if x._device.type == "cpu" and has_zero(x._sizes):
        return clone(x)
    sizes = (*batch, channels * factor**2, height // factor, width // factor)
    if x._device.type == "cpu" and len(sizes) == 4 and suggests_channels_last(x):
        return make(sizes, channels_last(sizes), x._dtype, x._device)
    return fresh(sizes, x._dtype, x._device)


_KEEPING_FORMAT = (
    "pixel_shuffle", "channel_shuffle", "replication_pad2d", "replication_pad3d",
    "reflection_pad2d", "reflection_pad3d",
)  # fmt: skip


def nonzero_static(x: FakeTensor, *, size: Size, fill_value: int = -1) -> FakeTensor:
    """Positions of what is not zero, as many as asked for."""
    return fresh((size, len(x._sizes)), torch.int64, x._device)


def drawn(*parameters: Any, **options: Any) -> FakeTensor:
    """Random numbers for a distribution's parameters, or their derivatives: contiguous ones."""
    tensors = [p for p in parameters if isinstance(p, FakeTensor)]
    sizes = broadcast([t._sizes for t in tensors])
    return fresh(sizes, tensors[0]._dtype, tensors[0]._device)


_DRAWN = (
    "_sample_dirichlet", "_dirichlet_grad", "_standard_gamma", "_standard_gamma_grad", "binomial",
    "poisson",
)  # fmt: skip


def isin(elements: FakeTensor, others: FakeTensor, **options: Any) -> FakeTensor:
    """Whether each element is one of the others: row-major."""
    return fresh(elements._sizes, torch.bool, elements._device)


def truth_of_all(x: FakeTensor) -> FakeTensor:
    """Whether all elements, or any, are true."""
    if x._dtype is not torch.bool:
        return NotImplemented  # type: ignore[no-any-return]
    return fresh((), torch.bool, x._device)


def only_written(*args: Any, **kwargs: Any) -> None:
    """Steps of optimizers, which give nothing and change the shape of nothing."""


# (Adam's have meta kernels where the learning rate is a number only.)
_STEPS = ("_fused_sgd_", "_fused_adagrad_", "_fused_adam_", "_fused_adamw_")


def glu(x: FakeTensor, dim: int = -1) -> FakeTensor:
    """As one half times the other."""
    if not x._sizes:
        raise RuntimeError("glu does not support 0-dimensional tensors")
    dim = wrap_dim(dim, len(x._sizes))
    size = x._sizes[dim]
    if not insisted(size % 2 == 0):
        raise RuntimeError(f"Halving dimension must be even, but dimension {dim} is size {size}")
    half = size // 2
    return binary(slice_(x, dim, 0, half), slice_(x, dim, half, size))


def glu_backward(grad: FakeTensor, x: FakeTensor, dim: int) -> FakeTensor:
    """Row-major, as both halves are written into one tensor."""
    return fresh(x._sizes, x._dtype, x._device)


def diag_embed(x: FakeTensor, offset: int = 0, dim1: int = -2, dim2: int = -1) -> FakeTensor:
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


def dist(a: FakeTensor, b: FakeTensor, p: Any = 2) -> FakeTensor:
    """A norm of a difference."""
    difference = binary(a, b)
    dtype = difference._dtype
    if not (dtype.is_floating_point or dtype.is_complex):
        return NotImplemented  # type: ignore[no-any-return]
    return fresh((), dtype.to_real() if dtype.is_complex else dtype, difference._device)


def renorm(x: FakeTensor, p: Any, dim: int, maxnorm: Any) -> FakeTensor:
    """Slices scaled down to a norm: row-major."""
    if isinstance(p, complex) or p <= 0 or maxnorm < 0 or len(x._sizes) < 2:
        return NotImplemented  # type: ignore[no-any-return]
    wrap_dim(dim, len(x._sizes))
    return fresh(x._sizes, x._dtype, x._device)


def rules() -> dict[str, Callable[..., Any]]:
    """The table of this family."""
    return {
        **{f"{name}.{way}": only_written for name in _STEPS for way in ("default", "tensor_lr")},
        **{f"{name}.default": drawn for name in _DRAWN},
        **{op: rule for name in _KEEPING_FORMAT for op, rule in _in_format(name).items()},
        "_is_all_true.default": truth_of_all,
        "_is_any_true.default": truth_of_all,
        "isin.Tensor_Tensor": isin,
        "max_unpool2d.default": max_unpool2d,
        "_embedding_bag.default": embedding_bag,
        "_embedding_bag_forward_only.default": embedding_bag_forward_only,
        "histogram.bin_ct": histogram,
        "histogram.bins_tensor": histogram,
        "multi_margin_loss_backward.default": margin_backward,
        "multilabel_margin_loss_backward.default": margin_backward,
        "fractional_max_pool2d_backward.default": fractional_pool_backward,
        "fractional_max_pool3d_backward.default": fractional_pool_backward,
        "diag_embed.default": diag_embed,
        "renorm.default": renorm,
        "_ctc_loss.default": ctc_loss,
        "_ctc_loss_backward.default": ctc_loss_backward,
        "_ctc_loss_backward.Tensor": ctc_loss_backward,
    }
