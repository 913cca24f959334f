"""Parameters that a frame makes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch.nn import Parameter

from dovetail_capture.interpreter.library.torch_functions.inner_recorder import InnerRecorder
from dovetail_capture.interpreter.signals import GraphBreakSignal
from dovetail_capture.interpreter.values.base import Value
from dovetail_capture.interpreter.values.tensors import TensorValue

if TYPE_CHECKING:
    from dovetail_capture.interpreter.machine import Interpreter


def parameter(vm: Interpreter, data: Value, requires_grad: bool) -> Value:
    """A parameter with the memory of `data`: a leaf of its own. (It may leave the frame if nothing
    is computed with it that needs a gradient: `recipes`.)"""
    recorder = vm.session.recorder
    if isinstance(recorder, InnerRecorder) or recorder.checkpoint is not None:
        raise GraphBreakSignal("creation of a Parameter in a transformed function")
    plain = isinstance(data, TensorValue) and data.fake.layout == torch.strided
    if recorder.inference or not plain:
        raise GraphBreakSignal(f"creation of a Parameter of {data.describe()}")
    new = vm.record("call_method", "detach", [data], {})
    assert isinstance(new, TensorValue)
    new.cls = Parameter
    if requires_grad:
        vm.session.effects.make_leaf(new, vm.frames[0].steps)
        vm.record("call_method", "requires_grad_", [new], {})
    return new
