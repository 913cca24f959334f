"""Losses and their gradients. Reductions are ATen's numbers: 0 none, 1 mean, 2 sum."""

from __future__ import annotations

from torch import Tensor

from ._common import Family, aten, cast, constant, count, iota, reduce_loss, where, wide

NONE, MEAN, SUM = 0, 1, 2


def _class_weights(
    target: Tensor, weight: Tensor | None, ignore_index: int, like: Tensor
) -> tuple[Tensor, Tensor]:
    """Targets with the ignored ones made 0 (a legal class), and each one's weight, 0 if ignored"""
    kept = aten.ne.Scalar(target, ignore_index)
    safe = where(kept, target, 0)
    if weight is None:
        return safe, cast(kept, like.dtype)
    picked = cast(aten.index.Tensor(weight, [safe]), like.dtype)
    return safe, where(kept, picked, 0)


def nll_loss_forward(
    self: Tensor, target: Tensor, weight: Tensor | None, reduction: int, ignore_index: int
) -> tuple[Tensor, Tensor]:
    """-weight[t] x[t], and the sum of the weights (0 where nothing is reduced)"""
    class_dim = 0 if self.dim() == 1 else 1
    x = wide(self)
    safe, weights = _class_weights(target, weight, ignore_index, x)
    picked = aten.squeeze.dims(
        aten.gather.default(x, class_dim, aten.unsqueeze.default(safe, class_dim)), [class_dim]
    )
    kept = aten.ne.Scalar(target, ignore_index)
    loss = where(kept, aten.neg.default(aten.mul.Tensor(picked, weights)), 0)
    if reduction == NONE and self.dim() > 1:
        total = aten.full.default([], 0, dtype=self.dtype, device=self.device)
        return cast(loss, self.dtype), total
    dims = list(range(loss.dim()))
    total = aten.sum.dim_IntList(weights, dims)
    if reduction != NONE:
        loss = aten.sum.dim_IntList(loss, dims)
        if reduction == MEAN:
            loss = aten.div.Tensor(loss, total)
    return cast(loss, self.dtype), cast(total, self.dtype)


def nll_loss_backward(
    grad_output: Tensor,
    self: Tensor,
    target: Tensor,
    weight: Tensor | None,
    reduction: int,
    ignore_index: int,
    total_weight: Tensor,
) -> Tensor:
    """-weight[t] g at class t, 0 elsewhere: a comparison with the class index, not a scatter, so
    that it fuses with the log_softmax it nearly always follows"""
    class_dim = 0 if self.dim() == 1 else 1
    g = wide(grad_output)
    safe, weights = _class_weights(target, weight, ignore_index, g)
    if reduction == MEAN:
        g = aten.div.Tensor(g, wide(total_weight))
    kept = aten.ne.Scalar(target, ignore_index)
    slope = where(kept, aten.neg.default(aten.mul.Tensor(weights, g)), 0)
    shape = [1] * self.dim()
    shape[class_dim] = self.shape[class_dim]
    classes = aten.view.default(iota(self.shape[class_dim], self), shape)
    here = aten.eq.Tensor(aten.unsqueeze.default(safe, class_dim), classes)
    slope = cast(slope, self.dtype)
    return where(here, aten.unsqueeze.default(slope, class_dim), 0)


def _mean_scale(loss_like: Tensor, grad: Tensor, reduction: int) -> Tensor:
    """The incoming gradient, divided by the count for the mean"""
    if reduction != MEAN:
        return grad
    return aten.div.Tensor(grad, count(loss_like, range(loss_like.dim())))


def mse_loss(self: Tensor, target: Tensor, reduction: int = MEAN) -> Tensor:
    """(x - t)²"""
    difference = aten.sub.Tensor(wide(self), wide(target))
    loss = aten.mul.Tensor(difference, difference)
    return cast(reduce_loss(loss, reduction), self.dtype)


def mse_loss_backward(grad_output: Tensor, self: Tensor, target: Tensor, reduction: int) -> Tensor:
    """2 (x - t) g"""
    difference = aten.sub.Tensor(wide(self), wide(target))
    g = _mean_scale(difference, wide(grad_output), reduction)
    return cast(aten.mul.Tensor(aten.mul.Tensor(difference, 2.0), g), self.dtype)


def smooth_l1_loss(
    self: Tensor, target: Tensor, reduction: int = MEAN, beta: float = 1.0
) -> Tensor:
    """d² / (2 beta) below beta, else d - beta / 2"""
    d = aten.abs.default(aten.sub.Tensor(wide(self), wide(target)))
    if beta == 0:
        return cast(reduce_loss(d, reduction), self.dtype)
    parabola = aten.div.Tensor(aten.mul.Tensor(aten.mul.Tensor(d, d), 0.5), beta)
    loss = where(aten.lt.Scalar(d, beta), parabola, aten.sub.Tensor(d, 0.5 * beta))
    return cast(reduce_loss(loss, reduction), self.dtype)


def smooth_l1_loss_backward(
    grad_output: Tensor, self: Tensor, target: Tensor, reduction: int, beta: float
) -> Tensor:
    """d / beta, at most 1 in size"""
    d = aten.sub.Tensor(wide(self), wide(target))
    g = _mean_scale(d, wide(grad_output), reduction)
    slope = aten.sign.default(d)
    if beta != 0:
        inside = aten.lt.Scalar(aten.abs.default(d), beta)
        slope = where(inside, aten.div.Tensor(d, beta), slope)
    return cast(aten.mul.Tensor(slope, g), self.dtype)


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
    """d, at most delta in size"""
    d = aten.sub.Tensor(wide(self), wide(target))
    g = _mean_scale(d, wide(grad_output), reduction)
    held = aten.minimum.default(aten.maximum.default(d, constant(-delta, d)), constant(delta, d))
    return cast(aten.mul.Tensor(held, g), self.dtype)


def binary_cross_entropy(
    self: Tensor, target: Tensor, weight: Tensor | None = None, reduction: int = MEAN
) -> Tensor:
    """-(t log x + (1 - t) log(1 - x)), each logarithm at least -100"""
    x, t = wide(self), wide(target)
    floor = constant(-100.0, x)
    log_x = aten.maximum.default(aten.log.default(x), floor)
    log_1x = aten.maximum.default(aten.log1p.default(aten.neg.default(x)), floor)
    loss = aten.sub.Tensor(
        aten.mul.Tensor(aten.sub.Tensor(t, 1.0), log_1x), aten.mul.Tensor(t, log_x)
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
    g = _mean_scale(x, wide(grad_output), reduction)
    return cast(aten.mul.Tensor(slope, g), self.dtype)


def binary_cross_entropy_with_logits(
    self: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    pos_weight: Tensor | None = None,
    reduction: int = MEAN,
) -> Tensor:
    """(1 - t) x - (1 + (p - 1) t) log σ(x)"""
    x, t = wide(self), wide(target)
    z = aten.exp.default(aten.neg.default(aten.abs.default(x)))
    log_sigmoid = aten.sub.Tensor(aten.minimum.default(x, constant(0, x)), aten.log1p.default(z))
    if pos_weight is not None:
        factor = aten.mul.Tensor(aten.sub.Tensor(wide(pos_weight), 1.0), t)
        log_sigmoid = aten.mul.Tensor(log_sigmoid, aten.add.Tensor(factor, 1.0))
    loss = aten.sub.Tensor(aten.mul.Tensor(aten.sub.Tensor(1.0, t), x), log_sigmoid)
    if weight is not None:
        loss = aten.mul.Tensor(loss, wide(weight))
    return cast(reduce_loss(loss, reduction), self.dtype)


def soft_margin_loss(self: Tensor, target: Tensor, reduction: int = MEAN) -> Tensor:
    """log(1 + exp(-t x))"""
    z = aten.exp.default(aten.neg.default(aten.mul.Tensor(wide(self), wide(target))))
    return cast(reduce_loss(aten.log1p.default(z), reduction), self.dtype)


def soft_margin_loss_backward(
    grad_output: Tensor, self: Tensor, target: Tensor, reduction: int
) -> Tensor:
    """-t σ(-t x)"""
    x, t = wide(self), wide(target)
    slope = aten.mul.Tensor(
        aten.neg.default(t), aten.sigmoid.default(aten.neg.default(aten.mul.Tensor(x, t)))
    )
    g = _mean_scale(x, wide(grad_output), reduction)
    return cast(aten.mul.Tensor(slope, g), self.dtype)


TABLE: Family = {
    "nll_loss_forward.default": nll_loss_forward,
    "nll_loss_backward.default": nll_loss_backward,
    "nll_loss2d_forward.default": nll_loss_forward,
    "nll_loss2d_backward.default": nll_loss_backward,
    "mse_loss.default": mse_loss,
    "mse_loss_backward.default": mse_loss_backward,
    "smooth_l1_loss.default": smooth_l1_loss,
    "smooth_l1_loss_backward.default": smooth_l1_loss_backward,
    "huber_loss.default": huber_loss,
    "huber_loss_backward.default": huber_loss_backward,
    "binary_cross_entropy.default": binary_cross_entropy,
    "binary_cross_entropy_backward.default": binary_cross_entropy_backward,
    "binary_cross_entropy_with_logits.default": binary_cross_entropy_with_logits,
    "soft_margin_loss.default": soft_margin_loss,
    "soft_margin_loss_backward.default": soft_margin_loss_backward,
}
