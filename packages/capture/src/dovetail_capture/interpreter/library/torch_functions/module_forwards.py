"""Methods of modules that PyTorch writes for eager alone: the first call of lazy modules, and batch
norm with cumulative averages (`momentum=None`), where the weight of a batch stays a tensor.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.lazy import LazyModuleMixin

from dovetail_capture.errors import ModuleToInitialise
from dovetail_capture.interpreter.graph.random_tensors import may_draw
from dovetail_capture.interpreter.machine.machine import Args, Interpreter, Kwargs
from dovetail_capture.interpreter.protocols import inlining
from dovetail_capture.interpreter.protocols.constants import UNKNOWN
from dovetail_capture.interpreter.values.base import Value
from dovetail_capture.interpreter.values.objects import ObjectValue
from dovetail_capture.interpreter.values.tensors import TensorValue


def _infer_parameters(vm: Interpreter, real: Any, args: Args, kwargs: Kwargs) -> Value | None:
    """`LazyModuleMixin._infer_parameters(self, module, args, kwargs)`: have the module initialised,
    and the frame captured anew. None where the graph may break, where what the module is
    initialised by is not known to be sizes (the program's own classes may read the data), and
    where the frame has drawn random numbers before."""
    module = args[1].real if len(args) > 2 and isinstance(args[1], ObjectValue) else None
    if not vm.options.fullgraph or vm.session.exports or module is None:
        return None
    if not type(module).initialize_parameters.__module__.startswith("torch.nn.modules."):
        return None
    positional = tuple(_as_sizes(vm, value) for value in vm.iterate(args[2]))
    if any(arg is UNKNOWN for arg in positional) or any(map(vm.as_python, args[3:])):
        return None
    if may_draw(vm.session.recorder.graph) or vm.session.draws.calls:
        return None  # initialising would draw before what the frame has drawn by then
    raise ModuleToInitialise(module, positional, {})


def _as_sizes(vm: Interpreter, value: Value) -> Any:
    if isinstance(value, TensorValue):
        return torch.empty([int(size) for size in value.fake.shape], device="meta")
    return vm.as_python(value)


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


CODE_HANDLERS = {
    LazyModuleMixin._infer_parameters.__code__: _infer_parameters,
    _BatchNorm.forward.__code__: _forward,
}
