"""Steps of optimizers that ask for the value of a tensor in PyTorch, without asking.

RAdam, ASGD and Adafactor choose by how many steps there were, or by a norm. Here the choice is an
operation of the graph, and numbers that eager has as Python floats are tensors of one double. The
interpreter runs these bodies where `torch.optim` calls its functions of the same names; `rule` has
the further arguments of these.
"""

from __future__ import annotations

from typing import Any

import torch


def _as_real(tensors: tuple[Any, ...]) -> tuple[Any, ...]:
    """Complex tensors as pairs of real numbers; others as they are."""
    return tuple(torch.view_as_real(t) if torch.is_complex(t) else t for t in tensors)


def radam(
    params: Any, grads: Any, exp_avgs: Any, exp_avg_sqs: Any, state_steps: Any, **rule: Any
) -> None:
    """Adam, rectified by the variance of its rate once the average is long enough to have one."""
    beta1, beta2, lr, weight_decay = (
        rule["beta1"],
        rule["beta2"],
        rule["lr"],
        rule["weight_decay"],
    )
    for param, grad, mean, square, count in zip(
        params, grads, exp_avgs, exp_avg_sqs, state_steps, strict=True
    ):
        param, grad, mean, square = _as_real((param, grad, mean, square))
        if rule["maximize"]:
            grad = -grad
        count.add_(1)
        step = count.double()
        if weight_decay != 0:
            if rule["decoupled_weight_decay"]:
                param.mul_(1 - lr * weight_decay)
            else:
                grad = grad + weight_decay * param
        mean.lerp_(grad, 1 - beta1)
        square.mul_(beta2).addcmul_(grad, grad, value=1 - beta2)
        unbias = 1 - beta2**step
        longest = 2 / (1 - beta2) - 1
        length = longest - 2 * step * beta2**step / unbias
        long_enough = length > 5.0
        length = torch.where(long_enough, length, 6.0)  # (no root of what is negative)
        rectified = (
            (length - 4) * (length - 2) * longest / ((longest - 4) * (longest - 2) * length)
        ).sqrt()
        adapted = rectified * unbias.sqrt() / (square.sqrt() + rule["eps"])
        update = mean / (1 - beta1**step) * lr
        param.sub_(update * torch.where(long_enough, adapted, 1.0))


def asgd(
    params: Any, grads: Any, axs: Any, mus: Any, etas: Any, state_steps: Any, **rule: Any
) -> None:
    """Gradient descent whose parameters are averaged from step `t0` on."""
    lambd, lr, weight_decay = (rule["lambd"], rule["lr"], rule["weight_decay"])
    for param, grad, average, mu, eta, count in zip(
        params, grads, axs, mus, etas, state_steps, strict=True
    ):
        param, grad, average = _as_real((param, grad, average))
        if rule["maximize"]:
            grad = -grad
        count.add_(1)
        step = count.double()
        if weight_decay != 0:
            grad = grad + weight_decay * param
        # (Both are written to below, but what autograd keeps of them, eager has as numbers.)
        rate, weight = eta.clone().double(), mu.clone()
        param.mul_(1 - lambd * rate)
        param.sub_(rate * grad)
        average.copy_(torch.where(weight == 1, param, average + (param - average) * weight))
        eta.copy_(lr / (1 + lambd * lr * step) ** rule["alpha"])
        mu.copy_(1 / (step - rule["t0"]).clamp(min=1))


def adafactor(
    params: Any,
    grads: Any,
    row_vars: Any,
    col_vars: Any,
    variances: Any,
    state_steps: Any,
    **rule: Any,
) -> None:
    """Second moments of matrices by row and by column; the rate follows the parameter's size."""
    lr, eps1, eps2, weight_decay = (rule["lr"], rule["eps1"], rule["eps2"], rule["weight_decay"])
    if rule["grad_scale"] is not None or rule["found_inf"] is not None:
        raise AssertionError("Grad scaling should occur outside of optimizer.step()")
    if isinstance(lr, torch.Tensor):
        lr = lr.reshape(())
    for param, grad, rows, columns, variance, count in zip(
        params, grads, row_vars, col_vars, variances, state_steps, strict=True
    ):
        if rule["maximize"]:
            grad = -grad
        if eps1 is None:
            eps1 = torch.finfo(param.dtype).eps
        count.add_(1)
        step = count.double()
        fresh = step ** rule["beta2_decay"]
        root = param.numel() ** 0.5
        rate = torch.minimum(torch.zeros_like(step) + lr, step.rsqrt())
        rate = rate * (param.norm(2).double() / root).clamp(min=eps2)
        if weight_decay != 0:
            param.mul_(1 - lr * weight_decay)
        squared = grad.square()
        if grad.dim() > 1:
            rows.add_((squared.mean(-1, keepdim=True) - rows) * fresh)
            columns.add_((squared.mean(-2, keepdim=True) - columns) * fresh)
            estimate = rows @ columns / rows.mean(-2, keepdim=True).clamp(min=eps1)
        else:
            variance.add_((squared - variance) * fresh)
            estimate = variance
        update = grad * estimate.clamp(min=eps1 * eps1).rsqrt()
        length = (update.norm(2).double() / (root * rule["d"])).clamp(min=1.0)
        param.sub_(update * (rate / length))
