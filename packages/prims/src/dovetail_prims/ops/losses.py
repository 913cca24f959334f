"""Losses of numbers: squares, absolute differences, probabilities; with their gradients."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from dovetail_prims.fake_tensor import FakeTensor, make
from dovetail_prims.ops.card import composed
from dovetail_prims.ops.common import (
    MEAN,
    NONE,
    aten,
    cast,
    constant,
    contiguous,
    count,
    promoted_together,
    reduce_loss,
    where,
    wide,
)
from dovetail_prims.shape_rules import layout
from dovetail_prims.shape_rules.promotion import of_one_kind, promote

# --- shapes ---------------------------------------------------------------------------------------


def pointwise_loss(
    x: FakeTensor, target: FakeTensor, reduction: int = 1, *rest: Any, **options: Any
) -> FakeTensor:
    """A loss that compares element by element (`mse_loss`, `smooth_l1_loss`, `huber_loss`)."""
    dtype = promote((x, target))
    if reduction == 0:
        return layout.pointwise_out((x, target), dtype)
    layout.pointwise_out((x, target), dtype)  # the shapes must broadcast
    return layout.fresh((), dtype, x._device)


def huber_loss_shape(
    x: FakeTensor, target: FakeTensor, reduction: int = 1, delta: float = 1.0
) -> FakeTensor:
    """`huber_loss`: of the input's type, and without reduction laid out as it."""
    if reduction != 0:
        layout.pointwise_out((x, target), x._dtype)  # the shapes must broadcast
        return layout.fresh((), x._dtype, x._device)
    if not layout.equal_sizes(x._sizes, target._sizes) or x._dtype is not target._dtype:
        return NotImplemented  # type: ignore[no-any-return]
    return make(x._sizes, layout.empty_like_strides(x), x._dtype, x._device)


def alike(*tensors: FakeTensor | None) -> bool:
    """Whether all are of one floating dtype, on one device and of the first one's sizes."""
    given = [t for t in tensors if t is not None]
    return of_one_kind(*given) and all(layout.equal_sizes(t._sizes, given[0]._sizes) for t in given)


def empty_like(x: FakeTensor) -> FakeTensor:
    return make(x._sizes, layout.empty_like_strides(x), x._dtype, x._device)


def bce_shape(
    x: FakeTensor, target: FakeTensor, weight: FakeTensor | None = None, reduction: int = MEAN
) -> FakeTensor:
    """`binary_cross_entropy`, laid out as the input."""
    if not alike(x, target, weight):
        return NotImplemented  # type: ignore[no-any-return]
    return empty_like(x) if reduction == NONE else layout.fresh((), x._dtype, x._device)


def bce_backward_shape(
    grad: FakeTensor,
    x: FakeTensor,
    target: FakeTensor,
    weight: FakeTensor | None = None,
    reduction: int = MEAN,
) -> FakeTensor:
    """Laid out as the input, too."""
    if not alike(x, target, weight) or not comes_from(grad, x):
        return NotImplemented  # type: ignore[no-any-return]
    return empty_like(x)


def comes_from(grad: FakeTensor, x: FakeTensor) -> bool:
    """Whether `grad` may be that of a loss of `x`: of all its elements, or of one number."""
    return of_one_kind(grad, x) and (not grad._sizes or layout.equal_sizes(grad._sizes, x._sizes))


def logits_shape(
    x: FakeTensor,
    target: FakeTensor,
    weight: FakeTensor | None = None,
    pos_weight: FakeTensor | None = None,
    reduction: int = MEAN,
) -> FakeTensor:
    """`binary_cross_entropy_with_logits`, laid out as the target; what is given of weights
    broadcasts."""
    given = [t for t in (weight, pos_weight) if t is not None]
    if not alike(x, target) or not of_one_kind(x, *given):
        return NotImplemented  # type: ignore[no-any-return]
    if not layout.equal_sizes(layout.broadcast([t._sizes for t in (x, *given)]), x._sizes):
        return NotImplemented  # type: ignore[no-any-return]
    if reduction != NONE:
        return layout.fresh((), x._dtype, x._device)
    return layout.pointwise_out((target,), x._dtype)


def loss_backward(grad: FakeTensor, x: FakeTensor, target: FakeTensor, *rest: Any) -> FakeTensor:
    """The gradient of the squared, the smooth and Huber's loss: row-major."""
    if not alike(x, target) or not comes_from(grad, x):
        return NotImplemented  # type: ignore[no-any-return]
    return layout.fresh(x._sizes, x._dtype, x._device)


# --- decompositions -------------------------------------------------------------------------------


def mean_scale(loss_like: Tensor, grad: Tensor, reduction: int) -> Tensor:
    """The incoming gradient, divided by the count for the mean"""
    if reduction != MEAN:
        return grad
    return aten.div.Tensor(grad, count(loss_like, range(loss_like.dim())))


def mse_loss(self: Tensor, target: Tensor, reduction: int = MEAN) -> Tensor:
    """(x - t)²"""
    difference = aten.sub.Tensor(wide(self), wide(target))
    loss = aten.mul.Tensor(difference, difference)
    return cast(reduce_loss(loss, reduction), promoted_together(self, target))


def mse_loss_backward(grad_output: Tensor, self: Tensor, target: Tensor, reduction: int) -> Tensor:
    """2 (x - t) g, row-major as eager's"""
    difference = aten.sub.Tensor(wide(self), wide(target))
    g = mean_scale(difference, wide(grad_output), reduction)
    slope = aten.mul.Tensor(aten.mul.Tensor(difference, 2.0), g)
    return contiguous(cast(slope, self.dtype))


def smooth_l1_loss(
    self: Tensor, target: Tensor, reduction: int = MEAN, beta: float = 1.0
) -> Tensor:
    """d² / (2 beta) below beta, else d - beta / 2"""
    dtype = promoted_together(self, target)
    d = aten.abs.default(aten.sub.Tensor(wide(self), wide(target)))
    if beta == 0:
        return cast(reduce_loss(d, reduction), dtype)
    parabola = aten.div.Tensor(aten.mul.Tensor(aten.mul.Tensor(d, d), 0.5), beta)
    loss = where(aten.lt.Scalar(d, beta), parabola, aten.sub.Tensor(d, 0.5 * beta))
    return cast(reduce_loss(loss, reduction), dtype)


def smooth_l1_loss_backward(
    grad_output: Tensor, self: Tensor, target: Tensor, reduction: int, beta: float
) -> Tensor:
    """d / beta, at most 1 in size (NaN of NaN; -1 of 0 where beta is 0), row-major as eager's"""
    d = aten.sub.Tensor(wide(self), wide(target))
    g = mean_scale(d, wide(grad_output), reduction)
    slope = where(aten.ge.Scalar(d, beta), 1.0, aten.div.Tensor(d, beta))
    slope = where(aten.le.Scalar(d, -beta), -1.0, slope)
    return contiguous(cast(aten.mul.Tensor(slope, g), self.dtype))


def huber_loss(self: Tensor, target: Tensor, reduction: int = MEAN, delta: float = 1.0) -> Tensor:
    """d² / 2 up to delta, else delta (d - delta / 2)"""
    d = aten.abs.default(aten.sub.Tensor(wide(self), wide(target)))
    line = aten.mul.Tensor(aten.sub.Tensor(d, 0.5 * delta), delta)
    parabola = aten.mul.Tensor(aten.mul.Tensor(d, d), 0.5)
    loss = where(aten.lt.Scalar(d, delta), parabola, line)
    return cast(reduce_loss(loss, reduction), self.dtype)


def huber_loss_backward(
    grad_output: Tensor, self: Tensor, target: Tensor, reduction: int, delta: float
) -> Tensor:
    """d, at most delta in size, row-major as eager's"""
    d = aten.sub.Tensor(wide(self), wide(target))
    g = mean_scale(d, wide(grad_output), reduction)
    held = aten.minimum.default(aten.maximum.default(d, constant(-delta, d)), constant(delta, d))
    return contiguous(cast(aten.mul.Tensor(held, g), self.dtype))


def binary_cross_entropy(
    self: Tensor, target: Tensor, weight: Tensor | None = None, reduction: int = MEAN
) -> Tensor:
    """-(t log x + (1 - t) log(1 - x)), each logarithm at least -100; on a CPU the program ends with
    eager's error if a number is no probability"""
    if self.device.type == "cpu":
        for name, given in (("input", self), ("target", target)):
            within = aten.logical_and.default(aten.ge.Scalar(given, 0), aten.le.Scalar(given, 1))
            message = f"all elements of {name} should be between 0 and 1"
            aten._assert_async.msg(aten.all.default(within), message)
    x, t = wide(self), wide(target)
    floor = constant(-100.0, x)
    log_x = aten.maximum.default(aten.log.default(x), floor)
    log_1x = aten.maximum.default(aten.log1p.default(aten.neg.default(x)), floor)
    # (the input first: the loss is laid out as it is)
    loss = aten.sub.Tensor(
        aten.mul.Tensor(log_1x, aten.sub.Tensor(t, 1.0)), aten.mul.Tensor(log_x, t)
    )
    if weight is not None:
        loss = aten.mul.Tensor(loss, wide(weight))
    return cast(reduce_loss(loss, reduction), self.dtype)


def binary_cross_entropy_backward(
    grad_output: Tensor,
    self: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    reduction: int = MEAN,
) -> Tensor:
    """(x - t) / max(x (1 - x), 1e-12)"""
    x, t = wide(self), wide(target)
    spread = aten.mul.Tensor(aten.sub.Tensor(1.0, x), x)
    spread = aten.maximum.default(spread, constant(1e-12, x))
    slope = aten.div.Tensor(aten.sub.Tensor(x, t), spread)
    if weight is not None:
        slope = aten.mul.Tensor(slope, wide(weight))
    g = mean_scale(x, wide(grad_output), reduction)
    return cast(aten.mul.Tensor(slope, g), self.dtype)


def binary_cross_entropy_with_logits(
    self: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    pos_weight: Tensor | None = None,
    reduction: int = MEAN,
) -> Tensor:
    """(1 - t) x - (1 + (p - 1) t) log σ(x), of the target's type: PyTorch computes in `1 - t`."""
    if not target.dtype.is_floating_point:
        raise RuntimeError(f"binary_cross_entropy_with_logits of targets of {target.dtype}")
    x, t = wide(self), wide(target)
    z = aten.exp.default(aten.neg.default(aten.abs.default(x)))
    log_sigmoid = aten.sub.Tensor(aten.minimum.default(x, constant(0, x)), aten.log1p.default(z))
    if pos_weight is not None:
        factor = aten.mul.Tensor(aten.sub.Tensor(wide(pos_weight), 1.0), t)
        log_sigmoid = aten.mul.Tensor(log_sigmoid, aten.add.Tensor(factor, 1.0))
    loss = aten.sub.Tensor(aten.mul.Tensor(aten.sub.Tensor(1.0, t), x), log_sigmoid)
    if weight is not None:
        loss = aten.mul.Tensor(loss, wide(weight))
    return cast(reduce_loss(loss, reduction), target.dtype)


# --- cards --------------------------------------------------------------------------------------

CARDS = (
    composed("mse_loss", pointwise_loss, mse_loss),
    composed("smooth_l1_loss", pointwise_loss, smooth_l1_loss),
    composed("huber_loss", huber_loss_shape, huber_loss),
    composed("binary_cross_entropy", bce_shape, binary_cross_entropy),
    composed("binary_cross_entropy_backward", bce_backward_shape, binary_cross_entropy_backward),
    composed("binary_cross_entropy_with_logits", logits_shape, binary_cross_entropy_with_logits),
    composed("mse_loss_backward", loss_backward, mse_loss_backward),
    composed("smooth_l1_loss_backward", loss_backward, smooth_l1_loss_backward),
    composed("huber_loss_backward", loss_backward, huber_loss_backward),
)
