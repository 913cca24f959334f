"""Batch norm with cumulative averages (`momentum=None`): PyTorch makes a Python number of the count
of batches; here the weight of a batch in the averages stays a tensor."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.nn.modules.batchnorm import _BatchNorm

from dovetail_capture.interpreter.machine.handler_types import Args, Kwargs
from dovetail_capture.interpreter.protocols import inlining
from dovetail_capture.interpreter.values.base import Value

if TYPE_CHECKING:
    from dovetail_capture.interpreter.machine import Interpreter


# --- interpreted ----------------------------------------------------------------------------------


def is_cumulative(module: Any) -> bool:
    return bool(
        module.momentum is None
        and module.training
        and module.track_running_stats
        and module.num_batches_tracked is not None
    )


def cumulative(module: Any, input: Any) -> Any:
    """`_BatchNorm.forward` in training: what is normalized is as ever, by the batch itself."""
    module._check_input_dim(input)
    module.num_batches_tracked.add_(1)
    result = torch.nn.functional.batch_norm(
        input, None, None, module.weight, module.bias, True, 0.0, module.eps
    )
    mean, var = module.running_mean, module.running_var
    with torch.no_grad():
        weight = (1.0 / module.num_batches_tracked.double()).to(mean.dtype)
        wide, dims = input.detach().to(mean.dtype), [0, *range(2, input.dim())]
        mean.mul_(1 - weight).add_(wide.mean(dims) * weight)
        var.mul_(1 - weight).add_(wide.var(dims) * weight)
    return result


# --- handlers -------------------------------------------------------------------------------------


def _forward(vm: Interpreter, real: Any, args: Args, kwargs: Kwargs) -> Value | None:
    """`_BatchNorm.forward(module, input)`; None for PyTorch's own."""
    asked = inlining.inline(vm, is_cumulative, args[:1], {})
    if not vm.truth(asked):
        return None
    return inlining.inline(vm, cumulative, args, kwargs)


CODE_HANDLERS = {_BatchNorm.forward.__code__: _forward}
