"""Operators: arithmetic on numbers, tensors and containers, and by special methods."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any, TypeGuard

import torch

from dovetail_capture.interpreter.protocols import (
    choices,
    class_attributes,
    dicts,
    numpy_scalars,
    sequences,
)
from dovetail_capture.interpreter.protocols.choices import BINARY, INPLACE, UNARY
from dovetail_capture.interpreter.protocols.constants import UNKNOWN, as_python
from dovetail_capture.interpreter.protocols.operands import (
    concrete,
    dunder,
    fold,
    has_own,
    is_number,
    is_opaque,
    plain_number,
    record_call,
    refuse_opaque,
    settled_operands,
)
from dovetail_capture.interpreter.protocols.subscripts import index_of
from dovetail_capture.interpreter.signals import GraphBreakSignal
from dovetail_capture.interpreter.values.base import Constant, Value, is_not_implemented
from dovetail_capture.interpreter.values.containers import (
    DictValue,
    DictView,
    ListValue,
    SetValue,
    TupleValue,
    hash_key,
)
from dovetail_capture.interpreter.values.objects import ObjectValue
from dovetail_capture.interpreter.values.symbolic import SymbolicNumber
from dovetail_capture.interpreter.values.tensors import ArrayValue, Chosen, TensorValue

if TYPE_CHECKING:
    from dovetail_capture.interpreter.machine import Interpreter

# Is a torch.Size plus a tuple a torch.Size? (of this version of torch)
_SIZE_KEEPS = type(torch.Size((1,)) + (1,)) is torch.Size
_SIZE_TAKES = type((1,) + torch.Size((1,))) is torch.Size
_SIZE_KEEPS_TIMES = type(torch.Size((1,)) * 2) is torch.Size


def binary(vm: Interpreter, symbol: str, left: Value, right: Value, inplace: bool) -> Value:
    """`left <symbol> right`, or the augmented assignment's value."""
    fn = BINARY[symbol][0]
    left_class, right_class = left.__class__, right.__class__
    if left_class is Chosen or right_class is Chosen:
        return choices.binary(vm, symbol, left, right, inplace)
    own = _has_own_operator(vm, symbol, left, right)
    if symbol == "*" and any(has_own(vm, side, "__index__") for side in (left, right)):
        counted = None if own else _repeated(vm, left, right)
        if counted is not None:
            return binary(vm, symbol, *counted, inplace)
    if symbol == "%" and _is_formatted(vm, left, right):
        raise GraphBreakSignal(f"a text formatted with {right.describe()}")
    if getattr(left, "unread", None) is not None or getattr(right, "unread", None) is not None:
        computed = None if own else numpy_scalars.arithmetic(vm.session, symbol, left, right)
        if computed is not None:
            return computed
    if isinstance(left, Constant) and isinstance(right, Constant) and not own:
        folded = INPLACE[symbol] if inplace else fn  # constants do not change: errors tell of it
        return fold(vm, folded, left.value, right.value)
    if isinstance(left, SymbolicNumber) or isinstance(right, SymbolicNumber):
        if is_number(left) and is_number(right):
            return fold(vm, fn, *settled_operands(symbol, plain_number(left), plain_number(right)))
        if left_class is not TensorValue and right_class is not TensorValue:
            return binary(vm, symbol, concrete(left), concrete(right), inplace)
    if left_class is ArrayValue or right_class is ArrayValue:
        return vm.arrays.binary(vm, symbol, left, right, inplace)  # type: ignore[no-any-return]
    if left_class is TensorValue or right_class is TensorValue:
        if left_class is TensorValue and inplace:
            return record_call(vm, INPLACE[symbol], [left, right])
        if left_class is not ObjectValue and right_class is not ObjectValue:
            return record_call(vm, fn, [left, right])
    if own or left_class is ObjectValue or right_class is ObjectValue:
        found = by_methods(vm, symbol, BINARY[symbol][1], left, right, inplace)
        if found is not None:
            return found
    found = _container_operation(vm, symbol, left, right, inplace)
    if found is not None:
        return found
    real_left, real_right = as_python(vm, left), as_python(vm, right)
    if real_left is not UNKNOWN and real_right is not UNKNOWN:
        return fold(vm, INPLACE[symbol] if inplace else fn, real_left, real_right)
    if symbol == "*":
        if TensorValue in (left_class, right_class):
            raise GraphBreakSignal("a sequence repeated as often as a tensor says")
        indexed = _repeated(vm, left, right)
        if indexed is not None:
            return binary(vm, symbol, *indexed, inplace)
    refuse_opaque(symbol, left, right)
    if symbol == "%" and left.python_type() in (str, bytes):
        formatted: Any = left.python_type()
        return vm.fold(formatted.__mod__, [left, right], {})
    if symbol == "%" and issubclass(left.python_type(), (str, bytes)):
        raise GraphBreakSignal(f"a text formatted with {right.describe()}")
    left_name, right_name = _type_name(left), _type_name(right)
    for one, name in ((left, right_name), (right, left_name)):
        if symbol == "*" and issubclass(one.python_type(), _SEQUENCES):
            text = f"can't multiply sequence by non-int of type '{name}'"
            return vm.raise_error(TypeError, text)
    if symbol == "+" and left.python_type() is str:
        text = f'can only concatenate str (not "{right_name}") to str'
        return vm.raise_error(TypeError, text)
    if symbol == "+" and isinstance(vm.native(left), (ListValue, TupleValue)):
        text = f'can only concatenate {left_name} (not "{right_name}") to {left_name}'
        return vm.raise_error(TypeError, text)
    sign = f"{symbol}=" if inplace else "** or pow()" if symbol == "**" else symbol
    return vm.raise_error(
        TypeError, f"unsupported operand type(s) for {sign}: '{left_name}' and '{right_name}'"
    )


def _type_name(value: Value) -> str:
    """The name of its type in errors: that of a class written in C has its module in it."""
    cls = value.python_type()
    written_in_c = not cls.__flags__ & _HEAP_TYPE and cls.__module__ != "builtins"
    return f"{cls.__module__}.{cls.__name__}" if written_in_c else cls.__name__


_HEAP_TYPE = 1 << 9  # Py_TPFLAGS_HEAPTYPE


def _has_own_operator(vm: Interpreter, symbol: str, left: Value, right: Value) -> bool:
    """Has one of two operands an operator of the program's, though it is a constant?"""
    name = BINARY[symbol][1]
    return has_own(vm, left, f"__{name}__", f"__i{name}__") or has_own(vm, right, f"__r{name}__")


def _is_formatted(vm: Interpreter, left: Value, right: Value) -> bool:
    """Is a text formatted with a constant whose text is the program's?"""
    parts = right.items if isinstance(right, TupleValue) else [right]
    return issubclass(left.python_type(), (str, bytes)) and any(
        isinstance(part, Value) and has_own(vm, part, "__str__", "__repr__") for part in parts
    )


_SEQUENCES = (list, tuple, deque, str, bytes)


def _repeated(vm: Interpreter, left: Value, right: Value) -> tuple[Value, Value] | None:
    """The operands of a sequence repeated as often as the `__index__` of an object says."""
    sides = [left, right]
    for place, value in enumerate(sides):
        sequence = sides[1 - place].python_type()
        is_object = isinstance(value, ObjectValue) or has_own(vm, value, "__index__")
        if is_object and issubclass(sequence, _SEQUENCES):
            if dunder(vm, value, "__index__") is not None:
                sides[place] = Constant(index_of(vm, value))
                return sides[0], sides[1]
    return None


def _attempts(
    vm: Interpreter, name: str, left: Value, right: Value, inplace: bool
) -> list[tuple[Value, Any, str, Value]]:
    """Receiver, raw method, its name, and argument of the methods to ask, in Python's order: a
    subclass that overrides the reflected method goes first, and equal types are asked once."""
    left_type, right_type = left.python_type(), right.python_type()
    asked = [(left, f"__{name}__", right)]
    if right_type is not left_type:
        reflected = f"__r{name}__"
        numbers = (int, float, complex)
        if left.__class__ is Constant and issubclass(left_type, numbers):
            if issubclass(right_type, numbers) and not issubclass(right_type, left_type):
                return []  # the left number's C method knows what to do with the right one
        overrides = issubclass(right_type, left_type) and (
            class_attributes.class_lookup(vm, right_type, reflected)[1]
            is not class_attributes.class_lookup(vm, left_type, reflected)[1]
        )
        asked.insert(0 if overrides else 1, (right, reflected, left))
    if inplace:
        asked.insert(0, (left, f"__i{name}__", right))
    return [
        (
            receiver,
            class_attributes.class_lookup(vm, receiver.python_type(), method)[1],
            method,
            other,
        )
        for receiver, method, other in asked
    ]


def by_methods(
    vm: Interpreter, symbol: str, name: str, left: Value, right: Value, inplace: bool
) -> Value | None:
    """What the special methods of the operands' classes give; None if none of them answers."""
    is_number_method = symbol not in ("+", "*")  # lists and tuples are joined after all others
    for receiver, method, special, other in _attempts(vm, name, left, right, inplace):
        if method is class_attributes.MISSING or method is None:
            continue
        is_object = receiver.__class__ is ObjectValue or has_own(vm, receiver, special)
        native = not is_object or vm.native(receiver) is not receiver
        if isinstance(method, class_attributes.C_METHODS) and native:
            if receiver.__class__ is TensorValue and not _unknown_to_tensors(vm, other):
                result = vm.call(dunder(vm, receiver, special), [other], {})  # type: ignore[arg-type]
                if not is_not_implemented(result):
                    return result
                continue
            if receiver is left and (is_number_method or special.startswith("__i")):
                found = _container_operation(vm, symbol, left, right, inplace)
                if found is not None:
                    return found
            continue
        if receiver.__class__ is TensorValue:
            if _unknown_to_tensors(vm, other):
                continue
        elif not is_object:
            continue
        result = vm.call(dunder(vm, receiver, special), [other], {})  # type: ignore[arg-type]
        if not is_not_implemented(result):
            return result
    return None


_NUMBER_LIKE = ("__torch_function__", "__index__", "__float__", "__complex__", "__array__",
                "__len__", "__getitem__")  # fmt: skip


def _unknown_to_tensors(vm: Interpreter, value: Value) -> bool:
    """Would a tensor's operator answer NotImplemented for this object?"""
    if not isinstance(value, ObjectValue) or is_opaque(value):
        return False
    cls = value.python_type()
    return all(
        class_attributes.class_lookup(vm, cls, name)[1] is class_attributes.MISSING
        for name in _NUMBER_LIKE
    )


def _container_operation(
    vm: Interpreter, symbol: str, left: Value, right: Value, inplace: bool
) -> Value | None:
    """`+`, `*` of lists and tuples; `|`, `&`, `-`, `^` of sets; `|` of dicts."""
    left_native, right_native = vm.native(left), vm.native(right)
    if symbol == "+":
        if isinstance(left_native, ListValue):
            if inplace:
                sequences.extend(vm, left_native, right)
                return left
            if isinstance(right_native, ListValue) and left_native.cls is right_native.cls:
                items = sequences.items(vm, left_native) + sequences.items(vm, right_native)
                return _new_list(left, left_native, items)
        if isinstance(left_native, TupleValue) and isinstance(right_native, TupleValue):
            for one, other in ((left, right), (right, left)):
                if _is_tuple(one) and other.python_type() is tuple and not one.items:
                    return other
            items = sequences.items(vm, left_native) + sequences.items(vm, right_native)
            both = left_native.cls is right_native.cls
            size = _SIZE_KEEPS and left_native.cls is torch.Size
            size |= _SIZE_TAKES and right_native.cls is torch.Size and left_native.cls is tuple
            return TupleValue(items, torch.Size if size else left_native.cls if both else tuple)
    elif symbol == "*":
        if isinstance(right_native, (ListValue, TupleValue)):
            left, left_native, right_native = right, right_native, left_native
            inplace = False
        if isinstance(right_native, Constant) and isinstance(right_native.value, int):
            times = right_native.value
            if isinstance(left_native, ListValue):
                if inplace:
                    left_native.items = sequences.items(vm, left_native) * times
                    left_native.mutated = True
                    return left
                return _new_list(left, left_native, sequences.items(vm, left_native) * times)
            if isinstance(left_native, TupleValue):
                count = len(left_native.items)
                if _is_tuple(left) and (times == 1 or not count):
                    return left
                items = sequences.items(vm, left_native) * times
                size = _SIZE_KEEPS_TIMES and left_native.cls is torch.Size
                return TupleValue(items, torch.Size if size else tuple)
    elif symbol == "|" and isinstance(left_native, DictValue):
        if inplace and not isinstance(right, Constant):
            dicts.update(vm, left_native, right)
            return left
        if isinstance(right_native, DictValue):
            own = (left, right) != (left_native, right_native)
            if (left_native.cls, right_native.cls) != (dict, dict) and own:
                raise GraphBreakSignal("`|` of dictionaries of classes of the program")
            merged = dicts.copy_entries(vm, left_native)
            if left_native.cls is dict:  # `__ror__` of an OrderedDict or defaultdict is asked first
                merged.cls, merged.default_factory = right_native.cls, right_native.default_factory
            dicts.update(vm, merged, right)
            return merged
    elif symbol in "|&-^":
        return _set_operation(vm, symbol, left_native, right_native, inplace)
    return None


def _is_tuple(value: Value) -> TypeGuard[TupleValue]:
    """Is it a tuple of no class of its own? What is equal to such an operand is that operand."""
    return isinstance(value, TupleValue) and value.cls is tuple


def _new_list(left: Value, native: ListValue, items: list[Value]) -> ListValue:
    """A list joined of others, or a deque of no more items than the left one may have."""
    if native.cls is list:
        return ListValue(items)
    if left is not native:
        raise GraphBreakSignal(f"a new {left.python_type().__name__} made of another")
    new = ListValue(items if native.maxlen is None else items[-native.maxlen :], native.cls)
    new.maxlen = native.maxlen
    return new


def _set_operation(
    vm: Interpreter, symbol: str, left: Value, right: Value, inplace: bool
) -> Value | None:
    kinds = (SetValue, DictView)
    if not isinstance(left, kinds) or not isinstance(right, kinds):
        return None
    first = {hash_key(item): item for item in vm.iterate(left)}
    second = {hash_key(item): item for item in vm.iterate(right)}
    if symbol == "|":
        items = {**first, **second}
    elif symbol == "&":
        items = {key: item for key, item in first.items() if key in second}
    else:
        items = {key: item for key, item in first.items() if key not in second}
        if symbol == "^":
            items |= {key: item for key, item in second.items() if key not in first}
    copied: Any = None
    if isinstance(left, SetValue) and isinstance(right, SetValue):
        function = INPLACE[symbol] if inplace else BINARY[symbol][0]
        copied = function(left.table(), right.table())
    if inplace and isinstance(left, SetValue) and left.cls is set:
        left.left += any(key not in items for key in left.items)
        left.items, left.mutated, left.copied = items, True, copied
        return left
    both = isinstance(left, SetValue) and isinstance(right, SetValue)
    return SetValue(items.values(), left.cls if both else set, copied=copied)  # type: ignore[union-attr]


def unary(vm: Interpreter, symbol: str, operand: Value) -> Value:
    """`-x`, `+x`, `~x`."""
    fn, name = UNARY[symbol]
    if isinstance(operand, SymbolicNumber) and (symbol == "~" or operand.python_type() is bool):
        operand = concrete(operand)
    if isinstance(operand, (Constant, SymbolicNumber)) and not has_own(vm, operand, name):
        return fold(vm, fn, plain_number(operand))
    if isinstance(operand, TensorValue):
        return record_call(vm, fn, [operand])
    if isinstance(operand, ArrayValue):
        return vm.arrays.unary(vm, symbol, operand)  # type: ignore[no-any-return]
    method = dunder(vm, operand, name)
    if method is not None:
        return vm.call(method, [], {})
    return vm.raise_error(
        TypeError, f"bad operand type for unary {symbol}: '{operand.python_type().__name__}'"
    )
