"""Operators: arithmetic, comparison, containment, truth, subscripts."""

from __future__ import annotations

import functools
import operator
import types
import typing
from collections import OrderedDict, deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from dovetail_guards.shape_env import DataDependentError

from dovetail_capture.interpreter.protocols import attributes, dicts, method_equality
from dovetail_capture.interpreter.protocols.constants import UNKNOWN, as_python, from_python
from dovetail_capture.interpreter.protocols.operator_tables import BINARY, COMPARE, INPLACE, UNARY
from dovetail_capture.interpreter.protocols.tensor_index import tensor_key
from dovetail_capture.interpreter.recorder import NotAGraphArgument
from dovetail_capture.interpreter.signals import GraphBreakSignal
from dovetail_capture.interpreter.value_ranges import decided
from dovetail_capture.interpreter.values.arrays import ArrayValue
from dovetail_capture.interpreter.values.base import Constant, Value, boolean
from dovetail_capture.interpreter.values.containers import (
    DictValue,
    DictView,
    ListValue,
    SetValue,
    SliceValue,
    TupleValue,
    hash_key,
)
from dovetail_capture.interpreter.values.functions import (
    BoundMethod,
    GeneratorValue,
    HeldIterator,
    IteratorValue,
    NativeMethod,
)
from dovetail_capture.interpreter.values.objects import ObjectValue
from dovetail_capture.interpreter.values.symbolic import SymbolicNumber, floor_divide, power
from dovetail_capture.interpreter.values.tensors import TensorValue

if TYPE_CHECKING:
    from dovetail_capture.interpreter.machine import Interpreter

# Is a torch.Size plus a tuple a torch.Size? (of this version of torch)
_SIZE_KEEPS = type(torch.Size((1,)) + (1,)) is torch.Size
_SIZE_TAKES = type((1,) + torch.Size((1,))) is torch.Size
_SIZE_KEEPS_TIMES = type(torch.Size((1,)) * 2) is torch.Size


_ON_SYMBOLS: dict[Any, Callable[..., Any]] = {
    operator.floordiv: floor_divide, operator.ifloordiv: floor_divide,
    operator.pow: power, operator.ipow: power,
}  # fmt: skip


def _fold(vm: Interpreter, fn: Callable[..., Any], *args: Any) -> Value:
    try:
        result = _ON_SYMBOLS.get(fn, fn)(*args)
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


def _number(value: Any) -> Any:
    """What arithmetic is done with: torch's classes do not expect numbers that are settled."""
    number = value.value
    if value.__class__ is SymbolicNumber and number.node.constant is not None:
        return number.node.constant
    return number


def settled(number: Any) -> Any:
    """A number, or for a truth value that depends on sizes the one that it is in this call, by a
    guard: torch's class for those knows no arithmetic."""
    return bool(number) if type(number) is torch.SymBool else number


def _operands(symbol: str, left: Any, right: Any) -> tuple[Any, Any]:
    truths = (bool, torch.SymBool)
    if symbol in ("&", "|") and type(left) in truths and type(right) in truths:
        return left, right
    return settled(left), settled(right)


def concrete(value: Value) -> Value:
    """A symbolic number as the number it is in this call."""
    return Constant(value.concrete()) if isinstance(value, SymbolicNumber) else value


def _record(vm: Interpreter, fn: Any, args: list[Value]) -> Value:
    try:
        return vm.record("call_function", fn, args, {})
    except NotAGraphArgument as error:
        raise GraphBreakSignal(f"`{fn.__name__}` of a tensor and {error}") from None


def dunder(vm: Interpreter, obj: Value, name: str) -> Value | None:
    """A special method, looked up on the type alone."""
    owner, method = attributes.class_lookup(vm, obj.python_type(), name)
    if method is attributes.MISSING or method is None:
        return None
    return attributes.bind_to_instance(vm, obj, owner, name, method)


def binary(vm: Interpreter, symbol: str, left: Value, right: Value, inplace: bool) -> Value:
    """`left <symbol> right`, or the augmented assignment's value."""
    fn = BINARY[symbol][0]
    left_class, right_class = left.__class__, right.__class__
    if left_class is Constant and right_class is Constant:
        folded = INPLACE[symbol] if inplace else fn  # constants do not change: errors tell of it
        return _fold(vm, folded, left.value, right.value)  # type: ignore[attr-defined]
    if isinstance(left, SymbolicNumber) or isinstance(right, SymbolicNumber):
        if is_number(left) and is_number(right):
            return _fold(vm, fn, *_operands(symbol, _number(left), _number(right)))
        if left_class is not TensorValue and right_class is not TensorValue:
            return binary(vm, symbol, concrete(left), concrete(right), inplace)
    if left_class is ArrayValue or right_class is ArrayValue:
        return vm.arrays.binary(vm, symbol, left, right, inplace)  # type: ignore[no-any-return]
    if left_class is TensorValue or right_class is TensorValue:
        if left_class is TensorValue and inplace:
            return _record(vm, INPLACE[symbol], [left, right])
        if left_class is not ObjectValue and right_class is not ObjectValue:
            return _record(vm, fn, [left, right])
    if left_class is ObjectValue or right_class is ObjectValue:
        found = by_methods(vm, symbol, BINARY[symbol][1], left, right, inplace)
        if found is not None:
            return found
    found = _container_operation(vm, symbol, left, right, inplace)
    if found is not None:
        return found
    real_left, real_right = as_python(vm, left), as_python(vm, right)
    if real_left is not UNKNOWN and real_right is not UNKNOWN:
        return _fold(vm, INPLACE[symbol] if inplace else fn, real_left, real_right)
    if symbol == "*":
        if TensorValue in (left_class, right_class):
            raise GraphBreakSignal("a sequence repeated as often as a tensor says")
        indexed = _repeated(vm, left, right)
        if indexed is not None:
            return binary(vm, symbol, *indexed, inplace)
    refuse_opaque(symbol, left, right)
    if symbol == "%" and issubclass(left.python_type(), (str, bytes)):
        raise GraphBreakSignal(f"a text formatted with {right.describe()}")
    left_name, right_name = _type_name(left), _type_name(right)
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


def _repeated(vm: Interpreter, left: Value, right: Value) -> tuple[Value, Value] | None:
    """The operands of a sequence repeated as often as the `__index__` of an object says."""
    sides = [left, right]
    for place, value in enumerate(sides):
        sequence = sides[1 - place].python_type()
        if isinstance(value, ObjectValue) and issubclass(
            sequence, (list, tuple, deque, str, bytes)
        ):
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
            attributes.class_lookup(vm, right_type, reflected)[1]
            is not attributes.class_lookup(vm, left_type, reflected)[1]
        )
        asked.insert(0 if overrides else 1, (right, reflected, left))
    if inplace:
        asked.insert(0, (left, f"__i{name}__", right))
    return [
        (receiver, attributes.class_lookup(vm, receiver.python_type(), method)[1], method, other)
        for receiver, method, other in asked
    ]


def by_methods(
    vm: Interpreter, symbol: str, name: str, left: Value, right: Value, inplace: bool
) -> Value | None:
    """What the special methods of the operands' classes give; None if none of them answers."""
    is_number_method = symbol not in ("+", "*")  # lists and tuples are joined after all others
    for receiver, method, special, other in _attempts(vm, name, left, right, inplace):
        if method is attributes.MISSING or method is None:
            continue
        is_object = receiver.__class__ is ObjectValue
        native = not is_object or vm.native(receiver) is not receiver
        if isinstance(method, attributes.C_METHODS) and native:
            if receiver.__class__ is TensorValue and not _unknown_to_tensors(vm, other):
                result = vm.call(dunder(vm, receiver, special), [other], {})  # type: ignore[arg-type]
                if not (isinstance(result, Constant) and result.value is NotImplemented):
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
        if not (isinstance(result, Constant) and result.value is NotImplemented):
            return result
    return None


_NUMBER_LIKE = ("__torch_function__", "__index__", "__float__", "__complex__", "__array__",
                "__len__", "__getitem__")  # fmt: skip


def _unknown_to_tensors(vm: Interpreter, value: Value) -> bool:
    """Would a tensor's operator answer NotImplemented for this object?"""
    if not isinstance(value, ObjectValue) or _is_opaque(value):
        return False
    cls = value.python_type()
    return all(
        attributes.class_lookup(vm, cls, name)[1] is attributes.MISSING for name in _NUMBER_LIKE
    )


def _is_opaque(value: Value) -> bool:
    """An instance of a class whose C base holds data that capture does not know: an int's or a
    string's subclass, a date."""
    if not isinstance(value, ObjectValue) or value.native is not None:
        return False
    return any(
        base.__flags__ & _IMMUTABLE_TYPE and base not in _KNOWN_BASES and not _is_exception(base)
        for base in type.__dict__["__mro__"].__get__(value.cls)
    )


_PROXY = types.MappingProxyType
_IMMUTABLE_TYPE = 1 << 8  # Py_TPFLAGS_IMMUTABLETYPE: a class written in C
_KNOWN_BASES: frozenset[type] = frozenset({object, types.SimpleNamespace, typing.Generic})


def _is_exception(base: type) -> bool:
    return issubclass(base, BaseException)


def refuse_opaque(symbol: str, *operands: Value) -> None:
    """Break where C code would answer for an operand."""
    for operand in operands:
        if _is_opaque(operand):
            raise GraphBreakSignal(f"`{symbol}` of {operand.describe()}")


def _is_itself_alone(vm: Interpreter, value: Value) -> bool:
    """An instance of a class that inherits `==` and `!=` from `object`: a partial, say."""
    return isinstance(value, ObjectValue) and all(
        attributes.class_lookup(vm, value.cls, name)[1] is getattr(object, name)
        for name in ("__eq__", "__ne__")
    )


def _container_operation(
    vm: Interpreter, symbol: str, left: Value, right: Value, inplace: bool
) -> Value | None:
    """`+`, `*` of lists and tuples; `|`, `&`, `-`, `^` of sets; `|` of dicts."""
    left_native, right_native = vm.native(left), vm.native(right)
    if symbol == "+":
        if isinstance(left_native, ListValue):
            if inplace:
                vm.list_extend(left_native, right)
                return left
            if isinstance(right_native, ListValue) and left_native.cls is right_native.cls:
                items = vm.list_items(left_native) + vm.list_items(right_native)
                return _new_list(left, left_native, items)
        if isinstance(left_native, TupleValue) and isinstance(right_native, TupleValue):
            items = [vm.tuple_item(left_native, i) for i in range(len(left_native.items))]
            items += [vm.tuple_item(right_native, i) for i in range(len(right_native.items))]
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
                    left_native.items = vm.list_items(left_native) * times
                    left_native.mutated = True
                    return left
                return _new_list(left, left_native, vm.list_items(left_native) * times)
            if isinstance(left_native, TupleValue):
                count = len(left_native.items)
                items = [vm.tuple_item(left_native, i) for i in range(count)] * times
                size = _SIZE_KEEPS_TIMES and left_native.cls is torch.Size
                return TupleValue(items, torch.Size if size else tuple)
    elif symbol == "|" and isinstance(left_native, DictValue):
        if inplace and not isinstance(right, Constant):
            vm.dict_update(left_native, right)
            return left
        if isinstance(right_native, DictValue):
            if (left_native.cls, right_native.cls) != (dict, dict) and (
                left is not left_native or left_native.cls is not right_native.cls
            ):
                raise GraphBreakSignal("`|` of dictionaries of different classes")
            merged = dicts.copy_entries(vm, left_native)
            vm.dict_update(merged, right_native)
            return merged
    elif symbol in "|&-^":
        return _set_operation(vm, symbol, left_native, right_native, inplace)
    return None


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
        left.items, left.mutated, left.copied = items, True, copied
        return left
    both = isinstance(left, SetValue) and isinstance(right, SetValue)
    return SetValue(items.values(), left.cls if both else set, copied=copied)  # type: ignore[union-attr]


def unary(vm: Interpreter, symbol: str, operand: Value) -> Value:
    """`-x`, `+x`, `~x`."""
    fn, name = UNARY[symbol]
    if isinstance(operand, SymbolicNumber) and (symbol == "~" or operand.python_type() is bool):
        operand = concrete(operand)
    if isinstance(operand, (Constant, SymbolicNumber)):
        return _fold(vm, fn, _number(operand))
    if isinstance(operand, TensorValue):
        return _record(vm, fn, [operand])
    if isinstance(operand, ArrayValue):
        return vm.arrays.unary(vm, symbol, operand)  # type: ignore[no-any-return]
    method = dunder(vm, operand, name)
    if method is not None:
        return vm.call(method, [], {})
    return vm.raise_error(
        TypeError, f"bad operand type for unary {symbol}: '{operand.python_type().__name__}'"
    )


def compare(vm: Interpreter, symbol: str, left: Value, right: Value) -> Value:
    """`left <symbol> right`."""
    fn, name, reflected = COMPARE[symbol]
    left_class, right_class = left.__class__, right.__class__
    if left_class is Constant and right_class is Constant:
        return _fold(vm, fn, left.value, right.value)  # type: ignore[attr-defined]
    if left_class is ArrayValue or right_class is ArrayValue:
        return vm.arrays.compare(vm, symbol, left, right)  # type: ignore[no-any-return]
    if isinstance(left, SymbolicNumber) or isinstance(right, SymbolicNumber):
        if is_number(left) and is_number(right):
            result = _fold(vm, fn, settled(left.value), settled(right.value))  # type: ignore[attr-defined]
            if vm.session.draws and isinstance(result, SymbolicNumber):
                return vm.decided(result)
            return result
        other = right if isinstance(left, SymbolicNumber) else left
        if isinstance(other, Constant) and isinstance(other.value, (int, float)):
            return compare(vm, symbol, concrete(left), concrete(right))
    if left_class is TensorValue or right_class is TensorValue:
        other = right if left_class is TensorValue else left
        if isinstance(other, Constant) and not isinstance(other.value, (int, float, complex)):
            if symbol in ("==", "!="):  # a tensor never equals None, a string, a class ...
                return boolean(symbol == "!=")
        answer = None
        if isinstance(other, Constant):
            tensor = left if left_class is TensorValue else right
            answer = decided(symbol, tensor, other.value, tensor is right)  # type: ignore[arg-type]
        result = _record(vm, fn, [left, right])
        if answer is not None and isinstance(result, TensorValue):
            result.answer = answer
        return result
    if symbol in ("==", "!=") and _PROXY in (left.python_type(), right.python_type()):
        behind = vm.behind_proxy(left), vm.behind_proxy(right)
        if behind[0] is not left or behind[1] is not right:
            return compare(vm, symbol, *behind)
    asked = [(left, name, right), (right, reflected, left)]
    left_type, right_type = left.python_type(), right.python_type()
    if left_type is not right_type and issubclass(right_type, left_type):
        asked.reverse()
    for receiver, method_name, other in asked:
        if receiver.__class__ is ObjectValue:
            _, method = attributes.class_lookup(vm, receiver.python_type(), method_name)
            if isinstance(method, types.FunctionType):
                result = vm.call(vm.held(method), [receiver, other], {})
                if not (isinstance(result, Constant) and result.value is NotImplemented):
                    return result
            elif method is object.__ne__:  # it inverts `__eq__`
                _, equal = attributes.class_lookup(vm, receiver.python_type(), "__eq__")
                if isinstance(equal, types.FunctionType):
                    result = vm.call(vm.held(equal), [receiver, other], {})
                    if not (isinstance(result, Constant) and result.value is NotImplemented):
                        return boolean(not truth(vm, result))
    if symbol in ("==", "!="):
        refuse_opaque(symbol, *(v for v in (left, right) if not _is_itself_alone(vm, v)))
        equal_now = _equal(vm, vm.native(left), vm.native(right))
        return boolean(equal_now == (symbol == "=="))
    refuse_opaque(symbol, left, right)
    return _order(vm, symbol, vm.native(left), vm.native(right))


def _equal(vm: Interpreter, left: Value, right: Value) -> bool:
    if left is right:
        return True
    if isinstance(left, ListValue) and isinstance(right, ListValue) and left.cls is not right.cls:
        return False  # a list and a deque
    if isinstance(left, DictView) and "values" in (left.kind, getattr(right, "kind", "")):
        return False  # views of values are equal to themselves alone
    for kind in (ListValue, TupleValue):
        if isinstance(left, kind) and isinstance(right, kind):
            if len(left.items) != len(right.items):
                return False
            pairs = zip(vm.iterate(left), vm.iterate(right), strict=True)
            return all(
                is_same(vm, first, second) or truth(vm, compare(vm, "==", first, second))
                for first, second in pairs
            )
    if isinstance(left, DictValue) and isinstance(right, DictValue):
        first_items = {hash_key(key): item for key, item in dicts.items(vm, left)}
        second_items = {hash_key(key): item for key, item in dicts.items(vm, right)}
        if first_items.keys() != second_items.keys():
            return False
        ordered = issubclass(left.cls, OrderedDict) and issubclass(right.cls, OrderedDict)
        if ordered and list(first_items) != list(second_items):
            return False
        return all(
            is_same(vm, item, second_items[key])
            or truth(vm, compare(vm, "==", item, second_items[key]))
            for key, item in first_items.items()
        )
    if _is_like_a_set(left) and _is_like_a_set(right):
        return {hash_key(i) for i in vm.iterate(left)} == {hash_key(i) for i in vm.iterate(right)}
    if isinstance(left, _METHODS) or isinstance(right, _METHODS):
        return method_equality.equal_methods(left, right, functools.partial(is_same, vm))
    if isinstance(left, ObjectValue) and isinstance(right, ObjectValue):
        namespace = types.SimpleNamespace
        if issubclass(left.cls, namespace) and issubclass(right.cls, namespace):
            return _equal(vm, left.fields, right.fields)
    if isinstance(left, SliceValue) or isinstance(right, SliceValue):
        return bool(as_python(vm, left) == as_python(vm, right))
    real_left, real_right = as_python(vm, left), as_python(vm, right)
    if real_left is not UNKNOWN and real_right is not UNKNOWN:
        return bool(real_left == real_right)
    return is_same(vm, left, right)  # what else is compared is equal to itself alone


_METHODS = (BoundMethod, NativeMethod)


def _is_like_a_set(value: Value) -> bool:
    return isinstance(value, SetValue) or (isinstance(value, DictView) and value.kind != "values")


def _order(vm: Interpreter, symbol: str, left: Value, right: Value) -> Value:
    fn = COMPARE[symbol][0]
    if _is_like_a_set(left) and _is_like_a_set(right):
        sets = [frozenset(hash_key(item) for item in vm.iterate(side)) for side in (left, right)]
        return boolean(fn(*sets))
    real_left, real_right = as_python(vm, left), as_python(vm, right)
    if real_left is not UNKNOWN and real_right is not UNKNOWN:
        return _fold(vm, fn, real_left, real_right)
    kinds = (ListValue, TupleValue)
    if isinstance(left, kinds) and isinstance(right, kinds):
        for first, second in zip(vm.iterate(left), vm.iterate(right), strict=False):
            same = is_same(vm, first, second) or truth(vm, compare(vm, "==", first, second))
            if not same:
                return compare(vm, symbol, first, second)
        return boolean(fn(len(left.items), len(right.items)))
    return vm.raise_error(
        TypeError,
        f"'{symbol}' not supported between instances of '{left.python_type().__name__}' and "
        f"'{right.python_type().__name__}'",
    )


def is_same(vm: Interpreter, left: Value, right: Value) -> bool:
    """`left is right`. Guards that pre-existing objects that differ go on to differ."""
    if left is right:
        return True
    if isinstance(left, SymbolicNumber) or isinstance(right, SymbolicNumber):
        # Ints that are equal count as one object; so do floats only if they come from one place.
        if left.python_type() is not right.python_type() or left.python_type() is float:
            return False
        return truth(vm, compare(vm, "==", left, right))
    both_fixed = isinstance(left, Constant) and isinstance(right, Constant)
    if not both_fixed and left.python_type() is right.python_type():
        vm.session.distinct(left.source, right.source)
    if isinstance(left, Constant) and isinstance(right, Constant):
        return left.value is right.value or (
            # Numbers and strings that capture made anew; equal ones count as one object.
            type(left.value) is type(right.value)
            and isinstance(left.value, (int, str, bytes))
            and left.value == right.value
        )
    return False


def truth(vm: Interpreter, value: Value) -> bool:
    """`bool(value)`."""
    cls = value.__class__
    if cls is ArrayValue:
        raise GraphBreakSignal(f"a branch on {value.describe()}", "use np.where")
    if cls is Constant or isinstance(value, SymbolicNumber):
        return bool(value.value)  # type: ignore[attr-defined]
    if cls is TensorValue:
        known = vm.data_of(value)
        if known is not UNKNOWN and known.numel() == 1:
            return bool(known)
        answer: bool | None = value.answer  # type: ignore[attr-defined]
        if answer is not None and value.fake.numel() == 1:  # type: ignore[attr-defined]
            return answer
        raise GraphBreakSignal(
            "a branch on a tensor's value",
            "use torch.where, or make the condition a Python value",
        )
    if cls in (ListValue, TupleValue, SetValue):
        return bool(value.items)  # type: ignore[attr-defined]
    if cls is DictValue:
        return bool(dicts.length(vm, value))  # type: ignore[arg-type]
    if cls is DictView:
        return bool(length(vm, value))
    if cls is ObjectValue:
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
    if isinstance(value, (ListValue, TupleValue, SetValue)):
        return len(value.items)
    if isinstance(value, DictValue):
        return dicts.length(vm, value)
    if isinstance(value, DictView):
        return length(vm, vm.native(value.dictionary))
    if isinstance(value, TensorValue):
        if not len(value.sizes):
            vm.raise_error(TypeError, "len() of a 0-d tensor")
        return value.sizes[0]  # type: ignore[no-any-return]
    if isinstance(value, Constant):
        folded = _fold(vm, len, value.value)
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
    number = _fold(vm, operator.index, result.value)
    assert isinstance(number, Constant)
    if number.value < 0:
        vm.raise_error(ValueError, "__len__() should return >= 0")
    return int(number.value)


def getitem(vm: Interpreter, obj: Value, key: Value) -> Value:
    """`obj[key]`."""
    cls = obj.__class__
    if cls is ArrayValue:
        return vm.arrays.getitem(vm, obj, key)  # type: ignore[no-any-return]
    if isinstance(obj, TensorValue):
        if (
            isinstance(key, SymbolicNumber)
            and key.python_type() is int
            and key.value.node.hint is None
        ):
            return _record(vm, torch.select, [obj, Constant(0), key])
        return _record(vm, operator.getitem, [obj, tensor_key(vm, obj, key)])
    if isinstance(obj, (ListValue, TupleValue)):
        return _sequence_item(vm, obj, key)
    if isinstance(obj, DictValue):
        return vm.dict_lookup(obj, key)
    if isinstance(obj, Constant):
        real = obj.value
        real_key = as_python(vm, key)
        if real_key is not UNKNOWN:
            return _fold(vm, operator.getitem, real, real_key)
    method = dunder(vm, obj, "__getitem__")
    if method is None or isinstance(obj, (NativeMethod, BoundMethod)):
        return vm.raise_error(
            TypeError, f"'{obj.python_type().__name__}' object is not subscriptable"
        )
    return vm.call(method, [key], {})


def index_of(vm: Interpreter, key: Value, of: str = "list") -> int:
    """An integer index (`__index__`) of a sequence, or with an empty `of` an integer argument."""
    key = concrete(key)
    if isinstance(key, Constant) and hasattr(key.value, "__index__"):
        return operator.index(key.value)
    if isinstance(key, TensorValue):
        known = vm.data_of(key)
        if known is not UNKNOWN:
            return operator.index(known)
        raise GraphBreakSignal("a tensor used as the index of a Python sequence")
    method = dunder(vm, key, "__index__")
    if method is not None:
        return index_of(vm, vm.call(method, [], {}), of)
    if of in ("", "deque"):  # not a subscript, or one of a class that says so
        kind = key.python_type().__name__
        vm.raise_error(TypeError, f"'{kind}' object cannot be interpreted as an integer")
    return vm.raise_error(
        TypeError, f"{of} indices must be integers or slices, not {key.python_type().__name__}"
    )


def _sequence_item(vm: Interpreter, obj: ListValue | TupleValue, key: Value) -> Value:
    if isinstance(key, SliceValue):
        where = slice_of(vm, key)
        if isinstance(obj, ListValue):
            return ListValue(vm.list_items(obj)[where])
        count = len(obj.items)
        items = [vm.tuple_item(obj, i) for i in range(count)[where]]
        keeps = obj.cls.__name__ == "Size"
        return TupleValue(items, obj.cls if keeps else tuple)
    kind = obj.python_type().__name__
    index = index_of(vm, key, kind)
    count = len(obj.items)
    if not -count <= index < count:
        vm.raise_error(IndexError, f"{kind} index out of range")
    index %= count
    return vm.list_item(obj, index) if isinstance(obj, ListValue) else vm.tuple_item(obj, index)


def slice_of(vm: Interpreter, key: SliceValue) -> slice:
    """A slice of known bounds."""
    real = as_python(vm, key)
    if real is UNKNOWN:
        raise GraphBreakSignal("a slice whose bounds are not known")
    if real.step == 0:
        vm.raise_error(ValueError, "slice step cannot be zero")
    return real  # type: ignore[no-any-return]


def setitem(vm: Interpreter, obj: Value, key: Value, value: Value) -> None:
    """`obj[key] = value`."""
    if isinstance(obj, TensorValue):
        _record(vm, operator.setitem, [obj, tensor_key(vm, obj, key), value])
    elif isinstance(obj, ArrayValue):
        vm.arrays.setitem(vm, obj, key, value)
    elif isinstance(obj, ListValue):
        obj.mutated = True
        if isinstance(key, SliceValue):
            if not isinstance(value, ObjectValue) and not hasattr(value.python_type(), "__iter__"):
                try:
                    [*obj.items][slice_of(vm, key)] = None  # type: ignore[call-overload]
                except TypeError as error:  # in the words of this Python
                    vm.raise_real(error)
            items = list(vm.iterate(value))
            try:
                obj.items[slice_of(vm, key)] = items
            except ValueError as error:  # an extended slice of another length
                vm.raise_real(error)
            return
        index, count = index_of(vm, key), len(obj.items)
        if not -count <= index < count:
            vm.raise_error(IndexError, "list assignment index out of range")
        obj.items[index] = value
    elif isinstance(obj, DictValue):
        dicts.put(vm, obj, key, value)
    else:
        method = dunder(vm, obj, "__setitem__")
        if method is None:
            vm.raise_error(
                TypeError,
                f"'{obj.python_type().__name__}' object does not support item assignment",
            )
        assert method is not None
        vm.call(method, [key, value], {})


def delitem(vm: Interpreter, obj: Value, key: Value) -> None:
    """`del obj[key]`."""
    if isinstance(obj, ListValue):
        obj.mutated = True
        if isinstance(key, SliceValue):
            del obj.items[slice_of(vm, key)]
            return
        index, count = index_of(vm, key), len(obj.items)
        if not -count <= index < count:
            vm.raise_error(IndexError, "list assignment index out of range")
        del obj.items[index]
    elif isinstance(obj, DictValue):
        if not dicts.delete(vm, obj, hash_key(key)):
            vm.raise_exception(KeyError, [key])
    else:
        method = dunder(vm, obj, "__delitem__")
        if method is None:
            vm.raise_error(
                TypeError,
                f"'{obj.python_type().__name__}' object does not support item deletion",
            )
        assert method is not None
        vm.call(method, [key], {})
