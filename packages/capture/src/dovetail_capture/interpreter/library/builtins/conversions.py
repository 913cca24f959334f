"""Classes called to convert: bool, int, float, str, list, tuple, set, dict, deque, slice."""

from __future__ import annotations

import collections
import types
from collections.abc import Callable
from typing import Any

import torch

from dovetail_capture.interpreter.library.builtins.type_functions import callable_
from dovetail_capture.interpreter.library.torch_functions import data_dependence as checks
from dovetail_capture.interpreter.machine.machine import Args, Handler, Interpreter, Kwargs
from dovetail_capture.interpreter.protocols import class_attributes, dicts, inlining, operands
from dovetail_capture.interpreter.protocols.constants import UNKNOWN
from dovetail_capture.interpreter.protocols.operands import returned
from dovetail_capture.interpreter.signals import GraphBreakSignal
from dovetail_capture.interpreter.values import containers
from dovetail_capture.interpreter.values.base import NONE, Constant, Value, boolean, is_none
from dovetail_capture.interpreter.values.objects import ObjectValue
from dovetail_capture.interpreter.values.symbolic import SymbolicNumber
from dovetail_capture.interpreter.values.tensors import TensorValue


def bool_(vm: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    truth = vm.truth_of(args[0]) if len(args) == 1 else None
    if truth is not None:
        return truth
    if len(args) == 1 and isinstance(args[0], TensorValue) and vm.depends_on_data(args[0]):
        if args[0].fake.numel() == 1:
            return checks.truth_number(vm, args[0])
    return boolean(bool(args) and vm.truth(args[0]))


def _as_int(value: Any) -> Any:
    """`int(x)` that stays symbolic where this can be expressed."""
    return int(value) if isinstance(value, torch.SymBool) else torch.sym_int(value)


_SYMBOLIC_CONVERSIONS: dict[type, Callable[[Any], Any]] = {int: _as_int, float: torch.sym_float}


def _whole_number(tensor: torch.Tensor) -> Any:
    """`int(tensor)` of a float that only the data tells: interpreted, the number as int64."""
    number = tensor.detach().reshape(())
    fits = (number > -(2.0**63)) & (number < 2.0**63)
    torch._check(fits.item(), lambda: "int() of a number that no int64 holds")  # type: ignore[arg-type]
    return number.to(torch.int64).item()


def number(cls: type, special: str) -> Handler:
    """`int(x)` and `float(x)`."""

    def handler(vm: Interpreter, args: Args, kwargs: Kwargs) -> Value:
        if len(args) == 1 and isinstance(args[0], TensorValue):
            if vm.data_of(args[0]) is not UNKNOWN:
                return vm.fold(cls, args, kwargs)
            if vm.session.recorder.data_env:
                if cls is int and args[0].fake.is_floating_point():
                    return inlining.inline(vm, _whole_number, args, {})
                args = [vm.record("call_method", "item", args, {})]
        if len(args) == 1 and isinstance(args[0], SymbolicNumber):
            if cls is int and isinstance(args[0].value, torch.SymFloat):
                if vm.depends_on_data(args[0]):
                    dtype: Kwargs = {"dtype": Constant(torch.float64)}
                    made = vm.record("call_function", torch.scalar_tensor, args, dtype)
                    return inlining.inline(vm, _whole_number, [made], {})
            try:
                return vm.constant(_SYMBOLIC_CONVERSIONS[cls](args[0].value))
            except (OverflowError, ValueError) as error:  # of an infinity or a NaN
                return vm.raise_real(error)
        if args and isinstance(args[0], TensorValue):
            raise GraphBreakSignal(
                f"{cls.__name__}() of a tensor", "keep the value a tensor, or compute it outside"
            )
        is_own = bool(args) and operands.has_own(vm, args[0], special)
        if args and (is_own or isinstance(args[0], ObjectValue)):
            method = operands.dunder(vm, args[0], special)
            if method is not None:
                of = "" if cls is int else f"{args[0].python_type().__name__}."
                text = f"{of}{special} returned non-{cls.__name__} (type {{}})"
                return returned(vm, vm.call(method, [], {}), cls, text)
        return vm.fold(cls, args, kwargs)

    return handler


def to_text(vm: Interpreter, value: Value, how: str, within: tuple[Value, ...] = ()) -> str:
    """`str(value)` or `repr(value)`; `within`: the containers that the value is in."""
    special = "__str__" if how == "str" else "__repr__"
    is_own = operands.has_own(vm, value, special, "__repr__")
    if is_own or isinstance(value, ObjectValue):
        for name in (special, "__repr__"):
            _, method = class_attributes.class_lookup(vm, value.python_type(), name)
            if isinstance(method, types.FunctionType):
                text = f"{name} returned non-string (type {{}})"
                made = returned(vm, vm.call(vm.held(method), [value], {}), str, text)
                return str(vm.as_python(made))
            if is_own and name == special and method is not object.__str__:
                break
    if isinstance(value, ObjectValue) and issubclass(value.cls, BaseException):
        usual = (BaseException.__str__, KeyError.__str__)
        if value.real is not None and how == "str" and value.cls.__str__ not in usual:
            raise GraphBreakSignal(f"the text of {value.describe()}")
        parts = [vm.as_python(part) for part in vm.iterate(vm.get_attr(value, "args"))]
        if not any(part is UNKNOWN for part in parts):
            plain = BaseException(*parts)
            if issubclass(value.cls, KeyError):
                plain = KeyError(*parts)
            text = str(plain) if how == "str" else repr(parts)
            class_attributes.read_names(vm, value.cls)
            return text if how == "str" else f"{value.cls.__name__}({text[1:-1]})"
    if isinstance(value, TensorValue):
        raise GraphBreakSignal("a tensor's text", "do not format tensors in compiled code")
    real = vm.as_python(value)
    if real is UNKNOWN or _holds_own_texts(vm, value):
        return _container_text(vm, value, within)
    class_attributes.note_classes(vm, real)
    return str(real) if how == "str" else repr(real)


def _holds_own_texts(vm: Interpreter, value: Value) -> bool:
    """Does a list or tuple hold a constant whose text is the program's?"""
    return isinstance(value, (containers.ListValue, containers.TupleValue)) and any(
        operands.has_own(vm, part, "__repr__") for part in vm.iterate(value)
    )


def _container_text(vm: Interpreter, value: Value, within: tuple[Value, ...]) -> str:
    """The text of a built-in container of objects whose own text is to be asked for."""
    cls = getattr(value, "cls", None)
    if cls not in (tuple, list, dict):
        raise GraphBreakSignal(f"the text of {value.describe()}")
    begin, end = {tuple: ("(", ")"), list: ("[", "]"), dict: ("{", "}")}[cls]
    if value in within:
        return f"{begin}...{end}"

    def text(part: Value) -> str:
        return to_text(vm, part, "repr", (*within, value))

    if isinstance(value, containers.DictValue):
        pairs = [(key, vm.getitem(value, key)) for key in vm.iterate(value)]
        return "{" + ", ".join(f"{text(key)}: {text(item)}" for key, item in pairs) + "}"
    parts = [text(part) for part in vm.iterate(value)]
    return begin + ", ".join(parts) + ("," if cls is tuple and len(parts) == 1 else "") + end


def format_(vm: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    """`format(value, spec)`, which f-strings call."""
    value = args[0]
    is_own = operands.has_own(vm, value, "__format__", "__str__", "__repr__")
    is_object = is_own or isinstance(value, (ObjectValue, TensorValue))
    if not is_object and vm.as_python(value) is not UNKNOWN:
        return vm.fold(format, args, kwargs)
    spec = args[1] if len(args) > 1 else Constant("")
    if is_own or isinstance(value, ObjectValue):
        _, method = class_attributes.class_lookup(vm, value.python_type(), "__format__")
        if isinstance(method, types.FunctionType):
            text = "__format__ must return a str, not {}"
            return returned(vm, vm.call(vm.held(method), [value, spec], {}), str, text)
        if method is not object.__format__:
            raise GraphBreakSignal(f"the text of {value.describe()}")
    if vm.as_python(spec) and not isinstance(value, TensorValue):
        name = value.python_type().__name__
        text = f"unsupported format string passed to {name}.__format__"
        return vm.raise_error(TypeError, text)
    return Constant(to_text(vm, value, "str"))


def str_(vm: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    if len(args) == 1 and not kwargs:
        return Constant(to_text(vm, args[0], "str"))
    return vm.fold(str, args, kwargs)


def repr_(vm: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    return Constant(to_text(vm, args[0], "repr"))


def list_(vm: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    return containers.ListValue(vm.iterate(args[0]) if args else [])


def tuple_(vm: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    if args and isinstance(args[0], containers.TupleValue) and args[0].cls is tuple:
        return args[0]
    return containers.TupleValue(vm.iterate(args[0]) if args else [])


def new_set_value(vm: Interpreter, args: Args, cls: type) -> containers.SetValue:
    """The set of what one argument, or none, gives."""
    made = containers.SetValue([], cls)
    if args:
        made.update(vm.iterate(args[0]), vm.native(args[0]))
    return made


def set_of(cls: type) -> Handler:
    """`set(x)` and `frozenset(x)`."""

    def handler(vm: Interpreter, args: Args, kwargs: Kwargs) -> Value:
        if args and cls is frozenset and args[0].python_type() is frozenset:
            return args[0]
        return new_set_value(vm, args, cls)

    return handler


def dict_of(cls: type) -> Handler:
    """`dict(...)` and `OrderedDict(...)`."""

    def handler(vm: Interpreter, args: Args, kwargs: Kwargs) -> Value:
        new = containers.DictValue(cls)
        if args:
            dicts.update(vm, new, args[0])
        for name, value in kwargs.items():
            dicts.put(vm, new, Constant(name), value)
        return new

    return handler


def defaultdict_(vm: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    if args and not is_none(args[0]) and not vm.truth(callable_(vm, args[:1], {})):
        vm.raise_error(TypeError, "first argument must be callable or None")
    new = dict_of(collections.defaultdict)(vm, args[1:], kwargs)
    assert isinstance(new, containers.DictValue)
    new.default_factory = args[0] if args else NONE
    return new


def deque_(vm: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    items = args[0] if args else kwargs.get("iterable")
    new = containers.ListValue([] if items is None else vm.iterate(items), collections.deque)
    maxlen = args[1] if len(args) > 1 else kwargs.get("maxlen", NONE)
    new.maxlen = vm.as_python(maxlen)
    if new.maxlen is not None and new.maxlen < 0:
        vm.raise_error(ValueError, "maxlen must be non-negative")
    if new.maxlen is not None:
        new.items = new.items[max(0, len(new.items) - new.maxlen) :]
    return new


def slice_(vm: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    if len(args) == 1:
        return containers.SliceValue(NONE, args[0], NONE)
    return containers.SliceValue(args[0], args[1], args[2] if len(args) > 2 else NONE)


HANDLERS: dict[Any, Handler] = {
    bool: bool_, int: number(int, "__int__"), float: number(float, "__float__"), str: str_,
    format: format_, repr: repr_, list: list_, tuple: tuple_, set: set_of(set),
    frozenset: set_of(frozenset), dict: dict_of(dict),
    collections.OrderedDict: dict_of(collections.OrderedDict),
    collections.defaultdict: defaultdict_, collections.deque: deque_, slice: slice_,
}  # fmt: skip
