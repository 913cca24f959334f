"""Shape rules of normalisation, dropout and losses."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from dovetail_prims.fake_tensor import FakeTensor, Size, Sizes, make
from dovetail_prims.shape_rules.layout import (
    channels_last,
    contiguous,
    empty_like_strides,
    equal_sizes,
    fresh,
    insisted,
    is_channels_last,
    is_contiguous,
    pointwise_out,
    suggests_channels_last,
)
from dovetail_prims.shape_rules.promotion import REDUCED, promote


def _like_contiguous(x: FakeTensor) -> FakeTensor:
    return fresh(x._sizes, x._dtype, x._device)


def suggested_strides(x: FakeTensor) -> Sizes:
    """Strides of an output in the input's suggested memory format."""
    return channels_last(x._sizes) if suggests_channels_last(x) else contiguous(x._sizes)


def _check_mixed(x: FakeTensor, *parameters: FakeTensor | None) -> None:
    """On CPU only reduced-precision data may come with parameters of another type: float32."""
    if x._device.type == "cpu":
        for p in parameters:
            if p is not None and p._dtype is not x._dtype:
                if x._dtype not in REDUCED or p._dtype is not torch.float32:
                    raise RuntimeError("mixed dtype (CPU): all inputs must share same datatype.")


def _like_suggested(x: FakeTensor) -> FakeTensor:
    return make(x._sizes, suggested_strides(x), x._dtype, x._device)


def _statistics_dtype(x: FakeTensor, *parameters: FakeTensor | None) -> torch.dtype:
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
    _check_mixed(x, weight, bias)
    dtype = _statistics_dtype(x, weight, bias)
    stat = x._sizes[:axis] + (1,) * len(normalized_shape)
    return _like_contiguous(x), fresh(stat, dtype, x._device), fresh(stat, dtype, x._device)


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
        _like_contiguous(x) if output_mask[0] else None,
        _parameter_gradient(weight, shape, x) if output_mask[1] else None,
        _parameter_gradient(bias, shape, x) if output_mask[2] else None,
    )


def _parameter_gradient(parameter: FakeTensor | None, shape: Sizes, x: FakeTensor) -> FakeTensor:
    if parameter is not None:
        return _like_contiguous(parameter)
    return fresh(shape, x._dtype, x._device)


def fused_rms_norm(
    x: FakeTensor, normalized_shape: Sequence[Size], weight: FakeTensor | None, eps: float | None
) -> tuple[FakeTensor, FakeTensor]:
    """`_fused_rms_norm` on CUDA: output and reciprocal root mean square. On CPU it has parts."""
    if x._device.type == "cpu":
        return NotImplemented  # type: ignore[no-any-return]
    axis = len(x._sizes) - len(normalized_shape)
    stat = x._sizes[:axis] + (1,) * len(normalized_shape)
    return _like_contiguous(x), fresh(stat, _statistics_dtype(x), x._device)


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
    _check_mixed(x, weight, bias)
    dtype = _statistics_dtype(x, weight, bias)
    if x._device.type == "cpu":
        out = _like_suggested(x)
    else:
        out = make(x._sizes, suggested_strides(x), x._dtype, x._device)
        dtype = x._dtype
    return out, fresh((n, group), dtype, x._device), fresh((n, group), dtype, x._device)


def batch_norm(
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
    _check_mixed(x, weight, bias, running_mean, running_var)
    # Data that can be read as contiguous is.
    if x._device.type != "cpu":
        out = make(x._sizes, empty_like_strides(x), x._dtype, x._device)
    elif is_contiguous(x._sizes, x._strides):
        out = _like_contiguous(x)
    elif is_channels_last(x._sizes, x._strides):
        out = make(x._sizes, channels_last(x._sizes), x._dtype, x._device)
    else:
        out = _like_suggested(x)
    saved: Sizes = (x._sizes[1],) if training or x._device.type != "cpu" else (0,)
    dtype = x._dtype
    if dtype in REDUCED:
        if x._device.type != "cpu":
            dtype = torch.float32
        else:
            dtype = _statistics_dtype(x, weight, bias, running_mean)
    return out, fresh(saved, dtype, x._device), fresh(saved, dtype, x._device)


def batch_norm_no_stats(
    x: FakeTensor,
    weight: FakeTensor | None,
    bias: FakeTensor | None,
    training: bool,
    momentum: float,
    eps: float,
) -> tuple[FakeTensor, FakeTensor, FakeTensor]:
    """`_native_batch_norm_legit.no_stats`."""
    return batch_norm(x, weight, bias, None, None, training, momentum, eps)


def batch_norm_with_update(
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
    found = batch_norm(x, weight, bias, running_mean, running_var, True, momentum, eps)
    return *found, fresh((0,), torch.uint8, x._device)


def cudnn_batch_norm(
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
        _like_suggested(x),
        fresh(saved, weight._dtype, x._device),
        fresh(saved, weight._dtype, x._device),
        fresh((0,), torch.uint8, x._device),
    )


def batch_norm_backward(
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
    dtype = weight._dtype if weight is not None else _statistics_dtype(x, running_mean)
    # Eager's CUDA kernel for given statistics knows one layout.
    plain = x._device.type == "cuda" and not train
    grad = _like_contiguous(x) if plain else _like_suggested(x)
    return (
        grad if output_mask[0] else None,
        fresh(channels, dtype, x._device) if output_mask[1] else None,
        fresh(channels, dtype, x._device) if output_mask[2] else None,
    )


def cudnn_batch_norm_backward(
    x: FakeTensor, grad: FakeTensor, weight: FakeTensor, *rest: Any
) -> tuple[FakeTensor, FakeTensor, FakeTensor]:
    """Gradients of input, weight, bias."""
    return _like_suggested(x), _like_contiguous(weight), _like_contiguous(weight)


# --- dropout --------------------------------------------------------------------------------------


def native_dropout(x: FakeTensor, p: float, train: bool | None) -> tuple[FakeTensor, FakeTensor]:
    """Output and mask, laid out as the input."""
    mask = make(x._sizes, empty_like_strides(x), torch.bool, x._device)
    if x._device.type == "cpu" and train is not False:
        return pointwise_out((x, mask), x._dtype), mask  # a product there, one kernel on CUDA
    return make(x._sizes, mask._strides, x._dtype, x._device), mask


# --- losses ---------------------------------------------------------------------------------------


_SCALAR_NAMES = {
    torch.float32: "Float", torch.float64: "Double", torch.float16: "Half",
    torch.bfloat16: "BFloat16",
}  # fmt: skip


def _check_class_weights(x: FakeTensor, weight: FakeTensor | None, of_images: bool) -> None:
    """One weight for each class, in the dtype of the log-probabilities."""
    if weight is None:
        return
    classes = x._sizes[1] if of_images else x._sizes[-1]
    count: Size = 1
    for size in weight._sizes:
        count = count * size
    if not insisted(count == classes) or not (of_images or len(weight._sizes) == 1):
        said = (
            "all or no classes"
            if of_images
            else f"all {classes} classes or no classes but got weight tensor of shape: "
            f"{list(weight._sizes)}"
        )
        raise RuntimeError(f"weight tensor should be defined either for {said}")
    if weight._dtype is not x._dtype:
        names = (_SCALAR_NAMES.get(t._dtype, str(t._dtype)) for t in (x, weight))
        raise RuntimeError("expected scalar type {} but found {}".format(*names))


def nll_loss(
    x: FakeTensor,
    target: FakeTensor,
    weight: FakeTensor | None,
    reduction: int,
    ignore_index: Size,
) -> tuple[FakeTensor, FakeTensor]:
    """`nll_loss_forward`: loss and total weight."""
    if not 1 <= len(x._sizes) <= 2:
        raise RuntimeError("input tensor should be 1D or 2D")
    if len(target._sizes) > 1 or (len(x._sizes) == 2 and x._sizes[0] != target._sizes[0]):
        raise RuntimeError(
            f"size mismatch (got input: {list(x._sizes)} , target: {list(target._sizes)})"
        )
    _check_class_weights(x, weight, of_images=False)
    sizes: Sizes = (x._sizes[0],) if reduction == 0 and len(x._sizes) == 2 else ()
    return fresh(sizes, x._dtype, x._device), fresh((), x._dtype, x._device)


def nll_loss_backward(grad: FakeTensor, x: FakeTensor, *rest: Any) -> FakeTensor:
    """Gradient of the log-probabilities."""
    return _like_contiguous(x)


def nll_loss2d(
    x: FakeTensor,
    target: FakeTensor,
    weight: FakeTensor | None,
    reduction: int,
    ignore_index: Size,
) -> tuple[FakeTensor, FakeTensor]:
    """`nll_loss2d_forward`."""
    _check_class_weights(x, weight, of_images=True)
    sizes: Sizes = (x._sizes[0], *x._sizes[2:]) if reduction == 0 else ()
    return fresh(sizes, x._dtype, x._device), fresh((), x._dtype, x._device)


def pointwise_loss(
    x: FakeTensor, target: FakeTensor, reduction: int = 1, *rest: Any, **options: Any
) -> FakeTensor:
    """A loss that compares element by element (`mse_loss`, `smooth_l1_loss`, `huber_loss`)."""
    dtype = promote((x, target))
    if reduction == 0:
        return pointwise_out((x, target), dtype)
    pointwise_out((x, target), dtype)  # the shapes must broadcast
    return fresh((), dtype, x._device)


def huber_loss(
    x: FakeTensor, target: FakeTensor, reduction: int = 1, delta: float = 1.0
) -> FakeTensor:
    """`huber_loss`: of the input's type, and without reduction laid out as it."""
    if reduction != 0:
        pointwise_out((x, target), x._dtype)  # the shapes must broadcast
        return fresh((), x._dtype, x._device)
    if not equal_sizes(x._sizes, target._sizes) or x._dtype is not target._dtype:
        return NotImplemented  # type: ignore[no-any-return]
    return make(x._sizes, empty_like_strides(x), x._dtype, x._device)


def rules() -> dict[str, Callable[..., Any]]:
    """The table of this family."""
    return {
        "native_layer_norm.default": layer_norm,
        "native_layer_norm_backward.default": layer_norm_backward,
        "_fused_rms_norm.default": fused_rms_norm,
        "native_group_norm.default": group_norm,
        "native_batch_norm.default": batch_norm,
        "_native_batch_norm_legit.default": batch_norm,
        "_batch_norm_with_update.default": batch_norm_with_update,
        "_native_batch_norm_legit.no_stats": batch_norm_no_stats,
        "native_batch_norm_backward.default": batch_norm_backward,
        "cudnn_batch_norm.default": cudnn_batch_norm,
        "cudnn_batch_norm_backward.default": cudnn_batch_norm_backward,
        "native_dropout.default": native_dropout,
        "nll_loss_forward.default": nll_loss,
        "nll_loss_backward.default": nll_loss_backward,
        "nll_loss2d_forward.default": nll_loss2d,
        "nll_loss2d_backward.default": nll_loss_backward,
        "mse_loss.default": pointwise_loss,
        "smooth_l1_loss.default": pointwise_loss,
        "huber_loss.default": huber_loss,
    }
