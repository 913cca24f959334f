"""What `torch.optim` needs to have its `step` captured as one graph.

Steps count in tensors, so that a number of steps is no constant of the graph. Operators that take
a plain number as a factor get such a tensor there: they are spelled out.
"""

from __future__ import annotations

import contextlib
import inspect
from typing import Any

import torch
from torch.optim._adafactor import adafactor
from torch.optim.asgd import asgd
from torch.optim.optimizer import _get_value, _use_grad_for_differentiable
from torch.optim.radam import radam
from torch.utils._foreach_utils import _group_tensors_by_device_and_dtype

from dovetail_capture.extensions.optimizers import optimizer_steps
from dovetail_capture.extensions.optimizers.driven_steps import DRIVEN
from dovetail_capture.interpreter.machine.machine import PASS, Args, Handler, Kwargs
from dovetail_capture.interpreter.protocols import inlining, sequences
from dovetail_capture.interpreter.signals import GraphBreakSignal
from dovetail_capture.interpreter.values.base import Constant, Value
from dovetail_capture.interpreter.values.containers import ListValue, TupleValue
from dovetail_capture.interpreter.values.tensors import TensorValue
from dovetail_capture.skip import module_of


def in_grad_mode_of(step: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
    """A `step` that `torch.optim` wraps: autograd sees it if the optimizer is differentiable."""
    with torch.set_grad_enabled(optimizer.defaults["differentiable"]):
        return step(optimizer, *args, **kwargs)


def get_value(x: Any) -> Any:
    """A number of steps or a rate that may be a tensor: eager goes on with a Python float, and so
    with its precision."""
    return x.double() if isinstance(x, torch.Tensor) else x


def add_(self: Any, other: Any, *, alpha: Any) -> Any:
    if isinstance(other, torch.Tensor):  # (or the product would be of its precision only)
        other = other.to(torch.promote_types(self.dtype, other.dtype))
    return self.add_(alpha * other)


def addcmul_(self: Any, tensor1: Any, tensor2: Any, *, value: Any) -> Any:
    return self.add_(value * tensor1 * tensor2)


def addcdiv_(self: Any, tensor1: Any, tensor2: Any, *, value: Any) -> Any:
    return self.add_(value * tensor1 / tensor2)


def full_like(self: Any, fill_value: Any, **options: Any) -> Any:
    return torch.empty_like(self, **options).copy_(fill_value)


def foreach_addcmul_(self: Any, tensors1: Any, tensors2: Any, scalars: Any) -> None:
    for i in range(len(self)):
        self[i].add_(scalars[i] * tensors1[i] * tensors2[i])


def foreach_addcdiv_(self: Any, tensors1: Any, tensors2: Any, scalars: Any) -> None:
    for i in range(len(self)):
        self[i].add_(scalars[i] * tensors1[i] / tensors2[i])


def group_tensors(tensorlistlist: Any, with_indices: Any = False) -> Any:
    """Lists of tensors, side by side, cut up by the device and dtype of the first."""
    groups: dict[Any, Any] = {}
    for index, first in enumerate(tensorlistlist[0]):
        key = (first.device, first.dtype)
        if key not in groups:
            groups[key] = ([[] for _ in tensorlistlist], [])
        lists, indices = groups[key]
        for own, every in zip(lists, tensorlistlist, strict=True):
            if every:
                own.append(every[index])
        if with_indices:
            indices.append(index)
    return groups


def _holds_tensor(vm: Any, value: Any) -> bool:
    if isinstance(value, ListValue):
        return any(isinstance(item, TensorValue) for item in sequences.items(vm, value))
    if isinstance(value, TupleValue):
        return any(
            isinstance(sequences.item(vm, value, i), TensorValue) for i in range(len(value.items))
        )
    return isinstance(value, TensorValue)


def _spelled_out(function: Any, position: int, *names: str) -> Handler:
    """The operator by its formula, where the factor (number `position`, or a keyword) is a tensor
    or some of several are."""

    def handler(vm: Any, args: Args, kwargs: Kwargs) -> Any:
        given = [kwargs[name] for name in names if name in kwargs]
        given += args[position : position + 1]
        if not any(_holds_tensor(vm, value) for value in given):
            return PASS
        return inlining.inline(vm, function, args, kwargs)

    return handler


def _optimizer_step(vm: Any, real: Any, args: Args, kwargs: Kwargs) -> Any:
    return inlining.inline(vm, in_grad_mode_of, [vm.held(real.__wrapped__), *args], kwargs)


def _undisabled(vm: Any, real: Any, args: Args, kwargs: Kwargs) -> Any:
    """What PyTorch disables for its own compiler: of `torch.optim`, captured all the same."""
    if not module_of(real).startswith("torch.optim."):
        raise GraphBreakSignal(f"a call of `{real.__qualname__}`, which PyTorch disables")
    return vm.call(vm.held(real.__wrapped__), args, kwargs)


def _said(function: Any) -> Handler:
    """`function`, interpreted, in place of what it is the handler of."""

    def handler(vm: Any, args: Args, kwargs: Kwargs) -> Any:
        return inlining.inline(vm, function, args, kwargs)

    return handler


def _by_name(original: Any, function: Any) -> Handler:
    """`function`, interpreted, which is given all arguments of the original by their names."""
    takes = inspect.signature(original)

    def handler(vm: Any, args: Args, kwargs: Kwargs) -> Any:
        try:
            bound = takes.bind(*args, **kwargs)
        except TypeError:
            return PASS  # torch's own raises
        bound.apply_defaults()
        named = {
            name: value if isinstance(value, Value) else Constant(value)
            for name, value in bound.arguments.items()
        }
        return inlining.inline(vm, function, [], named)

    return handler


def _unprofiled(vm: Any, args: Args, kwargs: Kwargs) -> Any:
    """`record_function(name)`: names a stretch of time to a profiler, and does nothing else."""
    return vm.call(Constant(contextlib.nullcontext), [], {})


def _driven(vm: Any, real: Any, args: Args, kwargs: Kwargs) -> Any:
    """A step that Python drives (`driven_steps`): the graph ends before it."""
    step = DRIVEN[real.__code__]
    raise GraphBreakSignal(step.reason, step.hint)


# Functions of torch.optim, by their code.
CODE_HANDLERS = {
    **dict.fromkeys(DRIVEN, _driven),
    _use_grad_for_differentiable(len).__code__: _optimizer_step,
    torch.optim.Optimizer.zero_grad.__code__: _undisabled,
}

_NEVER = 1 << 10  # keyword only

HANDLERS: dict[Any, Handler] = {
    _get_value: _said(get_value),
    _group_tensors_by_device_and_dtype: _said(group_tensors),
    radam: _by_name(radam, optimizer_steps.radam),
    asgd: _by_name(asgd, optimizer_steps.asgd),
    adafactor: _by_name(adafactor, optimizer_steps.adafactor),
    torch.autograd.profiler.record_function: _unprofiled,
    torch.full_like: _spelled_out(full_like, 1, "fill_value"),
    torch.Tensor.add_: _spelled_out(add_, _NEVER, "alpha"),
    torch.Tensor.addcmul_: _spelled_out(addcmul_, _NEVER, "value"),
    torch.Tensor.addcdiv_: _spelled_out(addcdiv_, _NEVER, "value"),
    torch._foreach_addcmul_: _spelled_out(foreach_addcmul_, 3, "scalars"),
    torch._foreach_addcdiv_: _spelled_out(foreach_addcdiv_, 3, "scalars"),
}
