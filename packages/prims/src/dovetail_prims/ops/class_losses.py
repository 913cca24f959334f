"""Losses of classes: negative log likelihood, margins, CTC; with their gradients."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from dovetail_prims.fake_tensor import FakeTensor, Size, Sizes
from dovetail_prims.ops.card import also, composed, library
from dovetail_prims.ops.common import (
    MEAN,
    NONE,
    Number,
    aten,
    cast,
    constant,
    contiguous,
    iota,
    never_negative,
    reduce_loss,
    where,
    wide,
)
from dovetail_prims.ops.data_dependent import fresh_like
from dovetail_prims.ops.losses import alike, comes_from, mean_scale
from dovetail_prims.ops.norms import like_contiguous
from dovetail_prims.shape_rules.layout import equal_sizes, fresh, has_zero, insisted, pointwise_out
from dovetail_prims.shape_rules.promotion import name_in_kernels, of_one_kind
from dovetail_prims.sizes.data_sizes import new_size

# --- shapes ---------------------------------------------------------------------------------------


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
        names = (name_in_kernels(t._dtype) for t in (x, weight))
        raise RuntimeError("expected scalar type {} but found {}".format(*names))


def nll_loss(
    x: FakeTensor, target: FakeTensor, weight: FakeTensor | None, reduction: int, ignore_index: Size
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


def nll_loss_backward_shape(grad: FakeTensor, x: FakeTensor, *rest: Any) -> FakeTensor:
    """Gradient of the log-probabilities."""
    return like_contiguous(x)


def nll_loss2d(
    x: FakeTensor, target: FakeTensor, weight: FakeTensor | None, reduction: int, ignore_index: Size
) -> tuple[FakeTensor, FakeTensor]:
    """`nll_loss2d_forward`."""
    _check_class_weights(x, weight, of_images=True)
    sizes: Sizes = (x._sizes[0], *x._sizes[2:]) if reduction == 0 else ()
    return fresh(sizes, x._dtype, x._device), fresh((), x._dtype, x._device)


def soft_margin_shape(x: FakeTensor, target: FakeTensor, reduction: int = MEAN) -> FakeTensor:
    """`soft_margin_loss`."""
    if not alike(x, target):
        return NotImplemented  # type: ignore[no-any-return]
    return pointwise_out((x,), x._dtype) if reduction == NONE else fresh((), x._dtype, x._device)


def soft_margin_backward_shape(
    grad: FakeTensor, x: FakeTensor, target: FakeTensor, reduction: int
) -> FakeTensor:
    """Computed from the target and its product with the input."""
    if not alike(x, target) or not comes_from(grad, x):
        return NotImplemented  # type: ignore[no-any-return]
    return pointwise_out((target, x), x._dtype)


def multi_margin_loss_shape(
    x: FakeTensor,
    target: FakeTensor,
    p: Any = 1,
    margin: Any = 1,
    weight: FakeTensor | None = None,
    reduction: int = MEAN,
) -> FakeTensor:
    """`multi_margin_loss` of a batch: one number for each row."""
    if len(x._sizes) != 2 or not equal_sizes(target._sizes, x._sizes[:1]) or has_zero(x._sizes):
        return NotImplemented  # type: ignore[no-any-return]
    if not of_one_kind(x, weight) or target._dtype is not torch.int64:
        return NotImplemented  # type: ignore[no-any-return]
    if weight is not None and not equal_sizes(weight._sizes, x._sizes[1:]):
        return NotImplemented  # type: ignore[no-any-return]
    return fresh(x._sizes[:1] if reduction == NONE else (), x._dtype, x._device)


def multilabel_margin_loss(
    x: FakeTensor, target: FakeTensor, reduction: int
) -> tuple[FakeTensor, FakeTensor]:
    """The loss of each row, or of all, and which classes are labels."""
    loss = fresh(x._sizes[:-1] if reduction == NONE else (), x._dtype, x._device)
    return loss, fresh(target._sizes, x._dtype, x._device)


def margin_backward(grad: FakeTensor, x: FakeTensor, *rest: Any, **options: Any) -> FakeTensor:
    """Backward of the multi-class margin losses: the input's shape, contiguous."""
    return fresh(x._sizes, x._dtype, x._device)


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


def ctc_loss_of_tensors(
    log_probs: FakeTensor,
    targets: FakeTensor,
    input_lengths: FakeTensor,
    target_lengths: FakeTensor,
    blank: int = 0,
    zero_infinity: bool = False,
) -> Any:
    """The loss of each sequence, and the log probabilities of its prefixes: twice as many and one
    as the longest target is long."""
    if log_probs._device.type != "cpu" or len(log_probs._sizes) != 3:
        return NotImplemented
    steps, batch, _ = log_probs._sizes
    longest = targets._sizes[-1] if targets._sizes else 1
    most = 2 * longest + 1 if type(longest) is int else None
    width = new_size("aten._ctc_loss.Tensor", 1, most)
    losses = fresh_like((batch,), log_probs._dtype, log_probs)
    return losses, fresh_like((batch, steps, width), log_probs._dtype, log_probs)


# --- decompositions -------------------------------------------------------------------------------


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
    g = mean_scale(x, wide(grad_output), reduction)
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


# --- cards --------------------------------------------------------------------------------------

CARDS = (
    composed("nll_loss_forward", nll_loss, nll_loss_forward),
    composed("nll_loss_backward", nll_loss_backward_shape, nll_loss_backward),
    composed("nll_loss2d_forward", nll_loss2d, nll_loss_forward),
    composed("nll_loss2d_backward", nll_loss_backward_shape, nll_loss_backward),
    composed("soft_margin_loss", soft_margin_shape, soft_margin_loss),
    composed("multi_margin_loss", multi_margin_loss_shape, multi_margin_loss),
    composed("soft_margin_loss_backward", soft_margin_backward_shape, soft_margin_loss_backward),
    composed("multi_margin_loss_backward", margin_backward, multi_margin_loss_backward),
    library("multilabel_margin_loss_forward", multilabel_margin_loss),
    library("multilabel_margin_loss_backward", margin_backward),
    library("_ctc_loss", ctc_loss, None, also("Tensor", ctc_loss_of_tensors)),
    library("_ctc_loss_backward", ctc_loss_backward, None, also("Tensor", ctc_loss_backward)),
)
