"""Losses and their gradients. Reductions are ATen's numbers: 0 none, 1 mean, 2 sum."""

from __future__ import annotations

import torch
from torch import Tensor

from dovetail_prims.ops.common import (
    Family,
    Number,
    aten,
    cast,
    constant,
    contiguous,
    count,
    iota,
    never_negative,
    promoted_together,
    reduce_loss,
    where,
    wide,
)

NONE, MEAN, SUM = 0, 1, 2


def _class_weights(
    target: Tensor, weight: Tensor | None, ignore_index: int, like: Tensor
) -> tuple[Tensor, Tensor]:
    """Targets with the ignored ones made 0 (a legal class), and each one's weight, 0 if ignored"""
    kept = aten.ne.Scalar(target, ignore_index)
    safe = where(kept, target, 0)
    if weight is None:
        return safe, cast(kept, like.dtype)
    classes = never_negative(safe, weight.shape[0])
    picked = cast(aten.index.Tensor(weight, [classes]), like.dtype)
    return safe, where(kept, picked, 0)


def _of_classes(x: Tensor, class_dim: int, target: Tensor) -> Tensor:
    """Each row's element of its target class. (Not a gather: an index beyond is an IndexError.)"""
    places: list[Tensor | None] = [iota(n, x) for n in x.shape]
    rank = target.dim()
    for d, place in enumerate(places):
        at = d - (d > class_dim)
        if place is not None and d != class_dim:
            places[d] = aten.view.default(place, [-1, *[1] * (rank - at - 1)])
    places[class_dim] = never_negative(target, x.shape[class_dim])
    return aten.index.Tensor(x, places)


def nll_loss_forward(
    self: Tensor, target: Tensor, weight: Tensor | None, reduction: int, ignore_index: int
) -> tuple[Tensor, Tensor]:
    """-weight[t] x[t], and the sum of the weights (0 where nothing is reduced)"""
    class_dim = 0 if self.dim() == 1 else 1
    x = wide(self)
    if self.dim() == 1 and target.dim() == 1:
        target = aten.view.default(target, [])
    safe, weights = _class_weights(target, weight, ignore_index, x)
    picked = _of_classes(x, class_dim, safe)
    kept = aten.ne.Scalar(target, ignore_index)
    loss = where(kept, aten.neg.default(aten.mul.Tensor(picked, weights)), 0)
    if reduction == NONE and self.dim() > 1:
        total = aten.full.default([], 0, dtype=self.dtype, device=self.device)
        return contiguous(cast(loss, self.dtype)), total  # (wherever the targets lie)
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
    return cast(reduce_loss(loss, reduction), promoted_together(self, target))


def mse_loss_backward(grad_output: Tensor, self: Tensor, target: Tensor, reduction: int) -> Tensor:
    """2 (x - t) g, row-major as eager's"""
    difference = aten.sub.Tensor(wide(self), wide(target))
    g = _mean_scale(difference, wide(grad_output), reduction)
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
    g = _mean_scale(d, wide(grad_output), reduction)
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
    g = _mean_scale(d, wide(grad_output), reduction)
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
    g = _mean_scale(x, wide(grad_output), reduction)
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


def _rows(x: Tensor) -> Tensor:
    """A vector as a matrix of one row"""
    return x if x.dim() == 2 else aten.view.default(x, [1, -1])


def _margins(
    self: Tensor, target: Tensor, margin: Number, weight: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    """margin - x[t] + x, whether it counts (positive, and not the target's own), and the rows'
    weights over the number of classes"""
    x, t = wide(_rows(self)), aten.view.default(target, [-1, 1])
    gap = aten.add.Tensor(aten.sub.Tensor(margin, aten.gather.default(x, 1, t)), x)
    other = aten.ne.Tensor(t, aten.unsqueeze.default(iota(x.shape[1], x), 0))
    counts = aten.logical_and.default(other, aten.gt.Scalar(gap, 0))
    if weight is None:
        share = constant(1 / x.shape[1], x)
    else:
        own = aten.gather.default(weight, 0, aten.view.default(target, [-1]))
        share = aten.div.Tensor(wide(aten.unsqueeze.default(own, 1)), x.shape[1])
    return gap, counts, share


def multi_margin_loss(
    self: Tensor,
    target: Tensor,
    p: Number = 1,
    margin: Number = 1,
    weight: Tensor | None = None,
    reduction: int = MEAN,
) -> Tensor:
    """max(0, margin - x[t] + x[i])^p, the mean over the classes i but t"""
    gap, counts, share = _margins(self, target, margin, weight)
    if p == 2:
        gap = aten.mul.Tensor(gap, gap)
    loss = where(counts, aten.mul.Tensor(gap, share), 0.0)
    loss = reduce_loss(aten.sum.dim_IntList(loss, [1]), reduction)
    if reduction == NONE:
        loss = aten.view.default(loss, target.shape)
    return cast(loss, self.dtype)


def multi_margin_loss_backward(
    grad_output: Tensor,
    self: Tensor,
    target: Tensor,
    p: Number,
    margin: Number,
    weight: Tensor | None = None,
    reduction: int = MEAN,
) -> Tensor:
    """Each class pushed down that counts, the target up by the sum of that"""
    gap, counts, share = _margins(self, target, margin, weight)
    g = aten.mul.Tensor(aten.view.default(wide(grad_output), [-1, 1]), share)
    if reduction == MEAN:
        g = aten.div.Tensor(g, gap.shape[0])
    slope = g if p == 1 else aten.mul.Tensor(aten.mul.Tensor(gap, 2.0), g)
    slope = where(counts, slope, 0.0)
    own = aten.neg.default(aten.sum.dim_IntList(slope, [1], True))
    t = aten.view.default(target, [-1, 1])
    here = aten.eq.Tensor(t, aten.unsqueeze.default(iota(gap.shape[1], gap), 0))
    return cast(aten.view.default(where(here, own, slope), self.shape), self.dtype)


def _label_pairs(self: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """(row, place in the list of labels, class): whether the class is that label, and
    1 - x[label] + x[class]; labels count up to the first negative one (-1, or the read of it tells
    that it is none)"""
    x, t = wide(_rows(self)), _rows(target)
    ended = aten.cumsum.default(cast(aten.lt.Scalar(t, 0), torch.int64), 1)
    valid = aten.eq.Scalar(ended, 0)
    label = where(aten.eq.Scalar(t, -1), 0, t)
    hit = aten.eq.Tensor(aten.unsqueeze.default(label, 2), iota(x.shape[1], x))
    hit = aten.logical_and.default(hit, aten.unsqueeze.default(valid, 2))
    labelled = aten.unsqueeze.default(aten.gather.default(x, 1, label), 2)
    gap = aten.add.Tensor(aten.sub.Tensor(1.0, labelled), aten.unsqueeze.default(x, 1))
    outside = aten.logical_not.default(aten.any.dims(hit, [1], True))
    counts = aten.logical_and.default(aten.unsqueeze.default(valid, 2), outside)
    return hit, where(counts, aten.relu.default(gap), 0.0)


def multilabel_margin_loss_forward(
    self: Tensor, target: Tensor, reduction: int
) -> tuple[Tensor, Tensor]:
    """max(0, 1 - x[label] + x[i]) summed over the labels and the classes i that are none, over the
    number of classes; and which classes are labels"""
    hit, gap = _label_pairs(self, target)
    loss = aten.div.Tensor(aten.sum.dim_IntList(gap, [1, 2]), gap.shape[2])
    loss = reduce_loss(loss, reduction)
    if reduction == NONE:
        loss = aten.view.default(loss, target.shape[:-1])
    labels = cast(aten.any.dims(hit, [1]), self.dtype)
    return cast(loss, self.dtype), aten.view.default(labels, target.shape)


def multilabel_margin_loss_backward(
    grad_output: Tensor, self: Tensor, target: Tensor, reduction: int, is_target: Tensor
) -> Tensor:
    """Classes that count are pushed down for each label, and the label up"""
    hit, gap = _label_pairs(self, target)
    g = aten.div.Tensor(aten.view.default(wide(grad_output), [-1, 1]), gap.shape[2])
    if reduction == MEAN:
        g = aten.div.Tensor(g, gap.shape[0])
    pairs = cast(aten.gt.Scalar(gap, 0), gap.dtype)
    up = aten.mul.Tensor(cast(hit, gap.dtype), aten.sum.dim_IntList(pairs, [2], True))
    total = aten.sum.dim_IntList(aten.sub.Tensor(pairs, up), [1])
    return cast(aten.view.default(aten.mul.Tensor(total, g), self.shape), self.dtype)


TABLE: Family = {
    "multi_margin_loss.default": multi_margin_loss,
    "multi_margin_loss_backward.default": multi_margin_loss_backward,
    "multilabel_margin_loss_forward.default": multilabel_margin_loss_forward,
    "multilabel_margin_loss_backward.default": multilabel_margin_loss_backward,
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
