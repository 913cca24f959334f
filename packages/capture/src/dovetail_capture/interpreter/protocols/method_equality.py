"""`==` of methods."""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any

from dovetail_capture.interpreter.protocols.class_attributes import C_METHODS
from dovetail_capture.interpreter.signals import GraphBreakSignal
from dovetail_capture.interpreter.values.base import Constant, Value
from dovetail_capture.interpreter.values.functions import BoundMethod, NativeMethod


def _real_method(value: Value) -> Any:
    """The method of a C descriptor that a value stands for: `torch.Tensor.shape.__get__`; None if
    it is none."""
    if isinstance(value, NativeMethod) and isinstance(value.receiver, Constant):
        receiver = value.receiver.value
        if isinstance(receiver, (types.GetSetDescriptorType, *C_METHODS)):
            return value.descriptor.__get__(receiver)
    return value.value if isinstance(value, Constant) else None


def equal_methods(left: Value, right: Value, is_same: Callable[[Value, Value], bool]) -> bool:
    """Methods are equal that are one function of one object."""
    if left.python_type() is not right.python_type():
        return False
    sides = [_real_method(side) for side in (left, right)]
    if None not in sides:
        return bool(sides[0] == sides[1])
    parts: list[tuple[Value, Any]] = []
    for side in (left, right):
        if isinstance(side, NativeMethod):
            parts.append((side.receiver, side.descriptor))
        elif isinstance(side, BoundMethod):
            parts.append((side.receiver, side.function))
        else:
            raise GraphBreakSignal(f"`==` of {left.describe()} and {right.describe()}")
    (first, function), (second, other) = parts
    if isinstance(function, Value):
        return is_same(function, other) and is_same(first, second)
    return function is other and is_same(first, second)
