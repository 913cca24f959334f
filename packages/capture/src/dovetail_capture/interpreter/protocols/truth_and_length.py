"""`bool(value)` and `len(value)`."""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING

import torch

from dovetail_capture.interpreter.machine.frame import GeneratorValue
from dovetail_capture.interpreter.protocols import class_attributes, dicts
from dovetail_capture.interpreter.protocols.constants import UNKNOWN
from dovetail_capture.interpreter.protocols.operands import dunder, fold, has_own
from dovetail_capture.interpreter.signals import GraphBreakSignal
from dovetail_capture.interpreter.values import containers
from dovetail_capture.interpreter.values.base import Constant, Value
from dovetail_capture.interpreter.values.functions import HeldIterator, IteratorValue
from dovetail_capture.interpreter.values.objects import ObjectValue
from dovetail_capture.interpreter.values.symbolic import SymbolicNumber
from dovetail_capture.interpreter.values.tensors import ArrayValue, TensorValue

if TYPE_CHECKING:
    from dovetail_capture.interpreter.machine import Interpreter


_TENSOR_LENGTH = torch.Tensor.__len__


def truth(vm: Interpreter, value: Value) -> bool:
    """`bool(value)`."""
    if type(value) is ArrayValue:
        raise GraphBreakSignal(f"a branch on {value.describe()}", "use np.where")
    own = has_own(vm, value, "__bool__", "__len__")
    if isinstance(value, (Constant, SymbolicNumber)) and not own:
        if value.value is NotImplemented:
            raise GraphBreakSignal("the truth of NotImplemented, which warns")
        return bool(value.value)
    if type(value) is TensorValue:
        known = vm.data_of(value)
        if known is not UNKNOWN and known.numel() == 1:
            return bool(known)
        answer: bool | None = value.answer
        if answer is not None and value.fake.numel() == 1:
            return answer
        raise GraphBreakSignal(
            "a branch on a tensor's value", "use torch.where, or make the condition a Python value"
        )
    if isinstance(value, (containers.ListValue, containers.TupleValue, containers.SetValue)):
        return bool(value.items)
    if isinstance(value, containers.DictValue):
        return bool(dicts.length(vm, value))
    if type(value) is containers.DictView:
        return bool(length(vm, value))
    if own or type(value) is ObjectValue:
        method = dunder(vm, value, "__bool__")
        if method is None:
            return dunder(vm, value, "__len__") is None or bool(length(vm, value))
        answer_of_method = vm.call(method, [], {})
        given = answer_of_method.python_type()
        if given is not bool:
            vm.raise_error(TypeError, f"__bool__ should return bool, returned {given.__name__}")
        return truth(vm, answer_of_method)
    return True


def length(vm: Interpreter, value: Value) -> int:
    """`len(value)`."""
    if isinstance(value, ArrayValue):
        return length(vm, value.tensor)
    if isinstance(value, (containers.ListValue, containers.TupleValue, containers.SetValue)):
        return len(value.items)
    if isinstance(value, containers.DictValue):
        return dicts.length(vm, value)
    if isinstance(value, containers.DictView):
        return length(vm, vm.native(value.dictionary))
    if isinstance(value, TensorValue) and (
        class_attributes.class_lookup(vm, value.cls, "__len__")[1] is _TENSOR_LENGTH
    ):
        if not len(value.sizes):
            vm.raise_error(TypeError, "len() of a 0-d tensor")
        return value.sizes[0]  # type: ignore[no-any-return]
    if isinstance(value, Constant) and not has_own(vm, value, "__len__"):
        if isinstance(value.value, type):
            class_attributes.read_members(vm, value.value)
        folded = fold(vm, len, value.value)
        assert isinstance(folded, Constant)
        return int(folded.value)
    method = dunder(vm, value, "__len__")
    if method is None or isinstance(value, (IteratorValue, GeneratorValue, HeldIterator)):
        vm.raise_error(TypeError, f"object of type '{value.python_type().__name__}' has no len()")
    assert method is not None
    result = vm.call(method, [], {})
    if isinstance(result, SymbolicNumber) and result.python_type() is int:
        if result.value < 0:
            vm.raise_error(ValueError, "__len__() should return >= 0")
        return result.value  # type: ignore[no-any-return]
    if not isinstance(result, Constant):
        raise GraphBreakSignal("a __len__ that gives no known number")
    number = fold(vm, operator.index, result.value)
    assert isinstance(number, Constant)
    if number.value < 0:
        vm.raise_error(ValueError, "__len__() should return >= 0")
    return int(number.value)
