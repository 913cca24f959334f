"""SparseAdam: the rows that a sparse gradient tells of are updated by one graph a parameter."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from dovetail_capture.extensions.optimizers import step_parts as parts


def sparse_adam(
    params: Sequence[Tensor],
    grads: Sequence[Tensor],
    exp_avgs: Sequence[Tensor],
    exp_avg_sqs: Sequence[Tensor],
    state_steps: Sequence[int],
    *,
    eps: float,
    beta1: float,
    beta2: float,
    lr: float,
    maximize: bool,
) -> None:
    """`torch.optim._functional.sparse_adam`: sparse gradients (COO), dense parameters and means."""
    for param, grad, mean, square, count in zip(
        params, grads, exp_avgs, exp_avg_sqs, state_steps, strict=True
    ):
        if torch.are_deterministic_algorithms_enabled():
            grad = grad.coalesce()  # (which adds up in a fixed order)
        values = grad._values()
        if values.numel() == 0:
            continue
        if not grad.is_coalesced():
            sizes = tuple(grad.shape[: grad.sparse_dim()])
            values = parts.summed_in_place(grad._indices(), values, sizes)
        unbias = math.sqrt(1 - beta2**count) / (1 - beta1**count)
        parts.adam_of_rows(
            param,
            mean,
            square,
            grad._indices().unbind(),
            -values if maximize else values,
            (beta1, beta2),
            lr * unbias,
            eps,
        )
