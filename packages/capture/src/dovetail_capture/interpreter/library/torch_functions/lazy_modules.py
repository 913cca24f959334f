"""First calls of lazy modules (`torch.nn.LazyLinear` and its like) in what is to be one graph."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.nn.modules.lazy import LazyModuleMixin

from dovetail_capture.errors import ModuleToInitialise
from dovetail_capture.interpreter.graph.random_tensors import may_draw
from dovetail_capture.interpreter.machine.handler_types import Args, Kwargs
from dovetail_capture.interpreter.protocols.constants import UNKNOWN
from dovetail_capture.interpreter.values.base import Value
from dovetail_capture.interpreter.values.objects import ObjectValue
from dovetail_capture.interpreter.values.tensors import TensorValue

if TYPE_CHECKING:
    from dovetail_capture.interpreter.machine import Interpreter


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


CODE_HANDLERS = {LazyModuleMixin._infer_parameters.__code__: _infer_parameters}
