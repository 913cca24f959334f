"""Comparisons: `==`, `<`; and `is`, where capture may have made anew what the program has as one
object."""

from __future__ import annotations

import functools
import types
import weakref
from collections import OrderedDict
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from dovetail_capture.interpreter.graph.random_tensors import decided
from dovetail_capture.interpreter.protocols import choices, class_attributes, dicts, operands
from dovetail_capture.interpreter.protocols.choices import COMPARE
from dovetail_capture.interpreter.protocols.class_attributes import C_METHODS
from dovetail_capture.interpreter.protocols.constants import UNKNOWN, as_python
from dovetail_capture.interpreter.protocols.truth_and_length import truth
from dovetail_capture.interpreter.protocols.weak_targets import is_proxy
from dovetail_capture.interpreter.signals import GraphBreakSignal
from dovetail_capture.interpreter.values.base import Constant, Value, boolean, is_not_implemented
from dovetail_capture.interpreter.values.containers import (
    DictValue,
    DictView,
    ListValue,
    SetValue,
    SliceValue,
    TupleValue,
    hash_key,
)
from dovetail_capture.interpreter.values.functions import BoundMethod, NativeMethod
from dovetail_capture.interpreter.values.objects import ObjectValue
from dovetail_capture.interpreter.values.symbolic import IdOf, SymbolicNumber
from dovetail_capture.interpreter.values.tensors import ArrayValue, Chosen, TensorValue
from dovetail_capture.interpreter.values.texts import LateText

if TYPE_CHECKING:
    from dovetail_capture.interpreter.machine import Interpreter


_PROXY = types.MappingProxyType


def _is_itself_alone(vm: Interpreter, value: Value) -> bool:
    """An instance of a class that inherits `==` and `!=` from `object`: a partial, say."""
    return isinstance(value, ObjectValue) and all(
        class_attributes.class_lookup(vm, value.cls, name)[1] is getattr(object, name)
        for name in ("__eq__", "__ne__")
    )


def compare(vm: Interpreter, symbol: str, left: Value, right: Value) -> Value:
    """`left <symbol> right`."""
    fn = COMPARE[symbol][0]
    left_class, right_class = left.__class__, right.__class__
    if left_class is Chosen or right_class is Chosen:
        return choices.compare(vm, symbol, left, right)
    own = _has_own_comparison(vm, symbol, left, right)
    if isinstance(left, Constant) and isinstance(right, Constant) and not own:
        return operands.fold(vm, fn, left.value, right.value)
    if left_class is ArrayValue or right_class is ArrayValue:
        return vm.arrays.compare(vm, symbol, left, right)  # type: ignore[no-any-return]
    if isinstance(left, SymbolicNumber) or isinstance(right, SymbolicNumber):
        if operands.is_number(left) and operands.is_number(right):
            numbers = [operands.settled(side.value) for side in (left, right)]  # type: ignore[attr-defined]
            result = operands.fold(vm, fn, *numbers)
            if vm.session.draws.calls and isinstance(result, SymbolicNumber):
                return vm.decided(result)
            return result
        other = right if isinstance(left, SymbolicNumber) else left
        if isinstance(other, Constant) and isinstance(other.value, (int, float)):
            return compare(vm, symbol, operands.concrete(left), operands.concrete(right))
    if left_class is TensorValue or right_class is TensorValue:
        return _compare_tensor(vm, symbol, left, right)
    if symbol in ("==", "!=") and _PROXY in (left.python_type(), right.python_type()):
        behind = vm.behind_proxy(left), vm.behind_proxy(right)
        if behind[0] is not left or behind[1] is not right:
            return compare(vm, symbol, *behind)
    if symbol in ("==", "!=") and IdOf in (left_class, right_class):
        return boolean(_equal_ids(vm, left, right) == (symbol == "=="))
    answer = _answer_of_methods(vm, symbol, left, right)
    if answer is not None:
        return answer
    if symbol in ("==", "!="):
        operands.refuse_opaque(symbol, *(v for v in (left, right) if not _is_itself_alone(vm, v)))
        equal_now = _equal(vm, vm.native(left), vm.native(right))
        return boolean(equal_now == (symbol == "=="))
    operands.refuse_opaque(symbol, left, right)
    return _order(vm, symbol, vm.native(left), vm.native(right))


def _equal_ids(vm: Interpreter, left: Value, right: Value) -> bool:
    """Is the `id()` of an object, of which no number is known, that of another, or a number?"""
    if isinstance(left, IdOf) and isinstance(right, IdOf):
        return is_same(vm, left.of, right.of)
    found, other = (left, right) if isinstance(left, IdOf) else (right, left)
    assert isinstance(found, IdOf)
    if issubclass(other.python_type(), (int, float)) and found.of.source is not None:
        found.refuse()
    return False  # what is made in the frame is no object that a number tells of


def _has_own_comparison(vm: Interpreter, symbol: str, left: Value, right: Value) -> bool:
    """Has one of two operands a comparison of the program's, though it is a constant?"""
    _, name, reflected = COMPARE[symbol]
    equal = ("__eq__",) if symbol == "!=" else ()
    return operands.has_own(vm, left, name, *equal) or operands.has_own(
        vm, right, reflected, *equal
    )


def _compare_tensor(vm: Interpreter, symbol: str, left: Value, right: Value) -> Value:
    tensor, other = (left, right) if left.__class__ is TensorValue else (right, left)
    if isinstance(other, Constant) and not isinstance(other.value, (int, float, complex)):
        if symbol in ("==", "!="):  # a tensor never equals None, a string, a class ...
            return boolean(symbol == "!=")
    answer = None
    if isinstance(other, Constant):
        answer = decided(symbol, tensor, other.value, tensor is right)  # type: ignore[arg-type]
    result = operands.record_call(vm, COMPARE[symbol][0], [left, right])
    if answer is not None and isinstance(result, TensorValue):
        result.answer = answer
    return result


def _answer_of_methods(vm: Interpreter, symbol: str, left: Value, right: Value) -> Value | None:
    """What the special methods of the program's classes answer; None if they do not."""
    _, name, reflected = COMPARE[symbol]
    asked = [(left, name, right), (right, reflected, left)]
    left_type, right_type = left.python_type(), right.python_type()
    if left_type is not right_type and left_type in right_type.__mro__:
        asked.reverse()
    for receiver, method_name, other in asked:
        if receiver.__class__ is ObjectValue or operands.has_own(
            vm, receiver, method_name, "__eq__"
        ):
            _, method = class_attributes.class_lookup(vm, receiver.python_type(), method_name)
            if isinstance(method, types.FunctionType):
                result = vm.call(vm.held(method), [receiver, other], {})
                if not is_not_implemented(result):
                    return result
            elif method is object.__ne__:  # it inverts `__eq__`
                _, equal = class_attributes.class_lookup(vm, receiver.python_type(), "__eq__")
                if isinstance(equal, types.FunctionType):
                    result = vm.call(vm.held(equal), [receiver, other], {})
                    if not is_not_implemented(result):
                        return boolean(not truth(vm, result))
    return None


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
    if is_like_a_set(left) and is_like_a_set(right):
        return {hash_key(i) for i in vm.iterate(left)} == {hash_key(i) for i in vm.iterate(right)}
    if isinstance(left, _METHODS) or isinstance(right, _METHODS):
        return equal_methods(left, right, functools.partial(is_same, vm))
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


def is_like_a_set(value: Value) -> bool:
    """Sets, and views of the keys or the items of a dictionary."""
    return isinstance(value, SetValue) or (isinstance(value, DictView) and value.kind != "values")


def holds_symbol(value: Any) -> bool:
    """Whether it is, or is a sequence that holds, a symbolic number: what asks for its Python value
    would fix that."""
    if isinstance(value, (TupleValue, ListValue)):
        return any(map(holds_symbol, value.items))
    return isinstance(value, SymbolicNumber)


def _order(vm: Interpreter, symbol: str, left: Value, right: Value) -> Value:
    fn = COMPARE[symbol][0]
    if is_like_a_set(left) and is_like_a_set(right):
        sets = [frozenset(hash_key(item) for item in vm.iterate(side)) for side in (left, right)]
        return boolean(fn(*sets))
    if not holds_symbol(left) and not holds_symbol(right):
        real_left, real_right = as_python(vm, left), as_python(vm, right)
        if real_left is not UNKNOWN and real_right is not UNKNOWN:
            return operands.fold(vm, fn, real_left, real_right)
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
    if isinstance(left, TensorValue) and isinstance(right, TensorValue):
        vm.session.shapes.env.close_asked()  # (`contiguous` may give back what it was given)
    both_fixed = isinstance(left, Constant) and isinstance(right, Constant)
    if not both_fixed and left.python_type() is right.python_type():
        vm.session.guards.distinct(left.source, right.source)
    if isinstance(left, Constant) and isinstance(right, Constant):
        # Numbers and strings that capture made anew; equal ones count as one object.
        return left.python_type() is right.python_type() and (
            left.value is right.value
            or (isinstance(left.value, (int, str, bytes)) and left.value == right.value)
        )
    return False


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


_MADE_ANEW = (int, float, complex, str, bytes, tuple)
_EMPTY = ("", b"", ())
_SMALLEST, _SMALL = -5, 256  # the numbers of which Python has one object each


def is_object(vm: Interpreter, left: Value, right: Value) -> bool:
    """The program's `left is right`. Whether equal numbers, strings and the like are one object
    is known of small numbers and of what comes from one place, and guarded where it can be."""
    if left is right or (left.source is not None and left.source is right.source):
        return True
    cls = left.python_type()
    if cls is not right.python_type() and LateText in (left.__class__, right.__class__):
        return False
    if cls is right.python_type() and (cls is weakref.ReferenceType or is_proxy(cls)):
        # (Of an object there is one of each.)
        if (left.source is None) is not (right.source is None):
            raise GraphBreakSignal("whether a weak reference made here is one that there was")
    if cls is not right.python_type() or cls not in _MADE_ANEW:
        return is_same(vm, left, right)
    if isinstance(left, Constant) and isinstance(right, Constant):
        made = left.source is None and right.source is None
        same = left.value is right.value
        if same and (made or left.value in _EMPTY):
            return True
        if vm.session.guards.can_relate(left.source, right.source):
            relate = vm.session.guards.same if same else vm.session.guards.distinct
            relate(left.source, right.source)  # type: ignore[arg-type]
            return same
        equal = left.value == right.value or left.value != left.value
    elif isinstance(left, TupleValue) and isinstance(right, TupleValue):
        return (not left.items and not right.items) or is_same(vm, left, right)
    elif isinstance(left, (Constant, SymbolicNumber)) and isinstance(
        right, (Constant, SymbolicNumber)
    ):
        equal = truth(vm, compare(vm, "==", left, right))
    else:
        return is_same(vm, left, right)
    if not equal:
        return False
    if cls is int:
        number = as_python(vm, left)
        if _SMALLEST <= number <= _SMALL:
            as_python(vm, right)
            return True
    raise GraphBreakSignal(f"whether {left.describe()} is the same object as an equal one")
