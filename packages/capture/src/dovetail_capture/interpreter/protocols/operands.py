"""Operands: known and symbolic numbers, special methods, objects whose data only C code knows."""

from __future__ import annotations

import operator
import types
import typing
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from dovetail_guards.shape_env import DataDependentError

from dovetail_capture.interpreter.graph.graph_values import NotAGraphArgument
from dovetail_capture.interpreter.inputs.rebound_names import is_settled
from dovetail_capture.interpreter.protocols import (
    class_attributes,
    numpy_scalars,
    object_attributes,
)
from dovetail_capture.interpreter.protocols.constants import from_python
from dovetail_capture.interpreter.signals import GraphBreakSignal
from dovetail_capture.interpreter.values.base import Constant, Value
from dovetail_capture.interpreter.values.objects import ObjectValue
from dovetail_capture.interpreter.values.symbolic import SymbolicNumber, floor_divide, power

if TYPE_CHECKING:
    from dovetail_capture.interpreter.machine import Interpreter


_ON_SYMBOLS: dict[Any, Callable[..., Any]] = {
    operator.floordiv: floor_divide, operator.ifloordiv: floor_divide,
    operator.pow: power, operator.ipow: power,
}  # fmt: skip


def fold(vm: Interpreter, fn: Callable[..., Any], *args: Any) -> Value:
    """The result of a function of known or symbolic numbers; its error is the program's."""
    try:
        result = numpy_scalars.call(vm.session, _ON_SYMBOLS.get(fn, fn), args)
        if type(result) is torch.SymInt and not _fits(result):
            result = fn(*(int(arg) if type(arg) is torch.SymInt else arg for arg in args))
    except DataDependentError:
        raise
    except Exception as error:
        return vm.raise_real(error)
    return from_python(vm, result)


_MOST = 2**62  # of numbers that guards compute with, in 64 bits


def _fits(number: torch.SymInt) -> bool:
    """Can guards compute a symbolic number, as it is in this call?"""
    node = number.node
    coefficients = [coefficient for _, coefficient in getattr(node.expr, "terms", ())]
    return all(-_MOST < part < _MOST for part in (node.hint or 0, *coefficients))


def is_number(value: Value) -> bool:
    """An int, float or bool, known or symbolic: arithmetic on it may stay symbolic. (Not one of a
    subclass, an enum's member say, which symbols know nothing of.)"""
    cls = value.__class__
    if cls is Constant:
        number = value.value  # type: ignore[attr-defined]
        return type(number) in (float, bool) or (type(number) is int and -_MOST < number < _MOST)
    return isinstance(value, SymbolicNumber)


def plain_number(value: Any) -> Any:
    """What arithmetic is done with: torch's classes do not expect numbers that are settled."""
    number = value.value
    if value.__class__ is SymbolicNumber and number.node.constant is not None:
        return number.node.constant
    return number


def settled(number: Any) -> Any:
    """A number, or for a truth value that depends on sizes the one that it is in this call, by a
    guard: torch's class for those knows no arithmetic."""
    return bool(number) if type(number) is torch.SymBool else number


def settled_operands(symbol: str, left: Any, right: Any) -> tuple[Any, Any]:
    """Operands as Python's operators take them; two truth values stay symbolic under `&`, `|`."""
    truths = (bool, torch.SymBool)
    if symbol in ("&", "|") and type(left) in truths and type(right) in truths:
        return left, right
    return settled(left), settled(right)


def concrete(value: Value) -> Value:
    """A symbolic number as the number it is in this call."""
    return Constant(value.concrete()) if isinstance(value, SymbolicNumber) else value


def record_call(vm: Interpreter, fn: Any, args: list[Value]) -> Value:
    """A call of `fn` on tensors as a node of the graph."""
    try:
        return vm.record("call_function", fn, args, {})
    except NotAGraphArgument as error:
        raise GraphBreakSignal(f"`{fn.__name__}` of a tensor and {error}") from None


def dunder(vm: Interpreter, obj: Value, name: str) -> Value | None:
    """A special method, looked up on the type alone."""
    owner, method = class_attributes.class_lookup(vm, obj.python_type(), name)
    if method is class_attributes.MISSING or method is None:
        return None
    return object_attributes.bind_to_instance(vm, obj, owner, name, method)


def has_own(vm: Interpreter, value: Value, *names: str) -> bool:
    """Has the class of a constant one of these special methods in the program's Python: a member of
    an enumeration, a class with a metaclass? Then that is captured, not asked."""
    if value.__class__ is not Constant:
        return False
    cls = value.python_type()
    if cls.__flags__ & _IMMUTABLE_TYPE or id(cls) in vm.session.objects.stand_ins:
        return False
    found = (class_attributes.class_lookup(vm, cls, name)[1] for name in names)
    return any(
        isinstance(method, types.FunctionType) and not is_settled(method.__module__ or "")
        for method in found
    )


def is_opaque(value: Value) -> bool:
    """An instance of a class whose C base holds data that capture does not know: an int's or a
    string's subclass, a date."""
    if not isinstance(value, ObjectValue) or value.native is not None:
        return False
    bases = type.__dict__["__mro__"].__get__(value.cls)
    native = {base for base in bases if base.__flags__ & _IMMUTABLE_TYPE} - _KNOWN_BASES
    return not all(issubclass(base, BaseException) for base in native)


_IMMUTABLE_TYPE = 1 << 8  # Py_TPFLAGS_IMMUTABLETYPE: a class written in C
_KNOWN_BASES: frozenset[type] = frozenset({object, types.SimpleNamespace, typing.Generic})


def refuse_opaque(symbol: str, *operands: Value) -> None:
    """Break where C code would answer for an operand."""
    for operand in operands:
        if is_opaque(operand):
            raise GraphBreakSignal(f"`{symbol}` of {operand.describe()}")


def returned(vm: Interpreter, value: Value, wanted: type, text: str) -> Value:
    """What a special method returned; TypeError, naming its type, if it is no `wanted`."""
    cls = value.python_type()
    if wanted not in cls.__mro__:
        vm.raise_error(TypeError, text.format(cls.__name__))
    return value
