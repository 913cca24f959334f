"""Built-in functions and classes: isinstance, getattr, len, range, zip, super, type ..."""

from __future__ import annotations

import abc
import builtins
import collections
import inspect
import types
import typing
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from dovetail_guards.evaluate import counts_as

from dovetail_capture.interpreter.library import checks, local_classes
from dovetail_capture.interpreter.library.container_methods import (
    Args,
    Handler,
    Kwargs,
)
from dovetail_capture.interpreter.protocols import (
    assignment,
    attributes,
    class_attributes,
    comparison,
    dicts,
    instantiation,
    object_attributes,
    operands,
)
from dovetail_capture.interpreter.protocols.constants import UNKNOWN
from dovetail_capture.interpreter.signals import GraphBreakSignal
from dovetail_capture.interpreter.values.base import NONE, Constant, Value, boolean, is_none
from dovetail_capture.interpreter.values.containers import (
    DictValue,
    ListValue,
    SetValue,
    SliceValue,
    TupleValue,
)
from dovetail_capture.interpreter.values.functions import (
    BoundMethod,
    FunctionValue,
    NativeMethod,
    SuperValue,
)
from dovetail_capture.interpreter.values.objects import ObjectValue
from dovetail_capture.interpreter.values.symbolic import SymbolicNumber
from dovetail_capture.interpreter.values.tensors import TensorValue
from dovetail_capture.skip import module_of

if TYPE_CHECKING:
    from dovetail_capture.interpreter.machine import Interpreter


# --- types ---------------------------------------------------------------------------------------


def is_instance(vm: Interpreter, value: Value, classinfo: Value) -> bool:
    """`isinstance(value, classinfo)`."""
    if isinstance(classinfo, TupleValue):
        return any(
            is_instance(vm, value, vm.tuple_item(classinfo, index))
            for index in range(len(classinfo.items))
        )
    if not isinstance(classinfo, Constant):
        raise GraphBreakSignal(f"isinstance with {classinfo.describe()}")
    wanted = classinfo.value
    if isinstance(wanted, types.UnionType):
        return any(is_instance(vm, value, vm.held(part)) for part in wanted.__args__)
    if type(wanted) is _BARE_ALIAS:  # `typing.Mapping`
        return issubclass(value.python_type(), _origin(vm, value.python_type(), wanted))
    cls = value.python_type()
    if isinstance(wanted, type) and cls is not wanted:  # or no `__instancecheck__` is asked
        _, check = class_attributes.class_lookup(vm, type(wanted), "__instancecheck__")
        if isinstance(check, types.FunctionType) and not _is_library_check(check):
            return vm.truth(vm.call(vm.held(check), [classinfo, value], {}))
    if isinstance(value, Constant):
        try:
            return isinstance(value.value, wanted)
        except TypeError as error:
            vm.raise_real(error)
    if not isinstance(wanted, type):
        vm.raise_error(TypeError, "isinstance() arg 2 must be a type, a tuple of types, or a union")
    if isinstance(value, TensorValue):
        if issubclass(wanted, torch.nn.Parameter):
            return issubclass(cls, torch.nn.Parameter)
        if wanted.__module__ == "torch" and wanted.__name__.endswith("Tensor"):
            if wanted is not torch.Tensor:  # torch.FloatTensor and its like
                fake = value.fake
                on_cpu = fake.device.type == "cpu"
                return on_cpu and bool(fake.dtype == getattr(wanted, "dtype", None))
            return True
        return issubclass(cls, wanted)
    class_attributes.read_mro(vm, cls)
    if cls is wanted:
        return True
    if getattr(wanted, "_is_protocol", False):
        real = getattr(value, "real", None)
        if real is not None:
            return isinstance(real, wanted)
        return all(vm.find_attr(value, name) is not None for name in _protocol_members(wanted))
    _note_abstract(vm, cls, wanted)
    return issubclass(cls, wanted)


_BARE_ALIAS = type(typing.Sized)


def _origin(vm: Interpreter, cls: type, alias: Any) -> type:
    """The class that `typing`'s name for it, without parameters, stands for."""
    class_attributes.read_mro(vm, cls)
    _note_abstract(vm, cls, alias.__origin__)
    origin: type = alias.__origin__
    return origin


def _is_library_check(check: types.FunctionType) -> bool:
    """ABCMeta and the like: they decide by the class alone."""
    return module_of(check) in ("abc", "typing", "_py_abc", "torch", "torch._tensor") or (
        module_of(check).startswith("torch.")
    )


def _protocol_members(cls: Any) -> set[str]:
    members = getattr(cls, "__protocol_attrs__", None)
    if members is not None:
        return set(members)
    from typing import _get_protocol_attrs  # type: ignore[attr-defined]

    return set(_get_protocol_attrs(cls))


def isinstance_(vm: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    return boolean(is_instance(vm, args[0], args[1]))


def _note_abstract(vm: Interpreter, cls: type, wanted: Any) -> None:
    """Guard that no class is registered with an abstract one, where that may decide."""
    if isinstance(wanted, tuple):
        for part in wanted:
            _note_abstract(vm, cls, part)
    elif isinstance(wanted, abc.ABCMeta) and wanted not in class_attributes.read_mro(vm, cls):
        if id(cls) not in vm.session.stand_ins:  # whose classes are others in each call
            vm.session.abstract_answers[cls, wanted] = counts_as(cls, wanted)


def issubclass_(vm: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    cls, wanted = vm.as_python(args[0]), vm.as_python(args[-1])
    if isinstance(cls, type):
        class_attributes.read_mro(vm, cls)
        _note_abstract(vm, cls, wanted)
    return vm.fold(issubclass, args, kwargs)


def type_(vm: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    if len(args) == 3 and not kwargs:
        return local_classes.type_three(vm, args)
    if len(args) != 1:
        raise GraphBreakSignal("creation of a class with keyword arguments")
    return vm.held(args[0].python_type())


def super_(vm: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    if len(args) == 1:
        raise GraphBreakSignal("super() of a class alone")
    if args:
        cls = vm.as_python(args[0])
        return SuperValue(cls, args[1])
    frame = vm.frames[-1]
    if not frame.code.co_argcount and not frame.code.co_flags & inspect.CO_VARARGS:
        vm.raise_error(RuntimeError, "super(): no arguments")
    slot = frame.decoded.slot_of.get("__class__")
    if slot is None:
        vm.raise_error(RuntimeError, "super(): __class__ cell not found")
    cls = vm.as_python(vm.resolve_cell(frame.slots[slot]))
    if frame.slots[0] is None:
        raise GraphBreakSignal("super() without a receiver")
    receiver = attributes.resolve(vm, frame.slots[0])
    from dovetail_capture.interpreter.values.functions import CellValue

    if isinstance(receiver, CellValue):
        receiver = vm.resolve_cell(receiver)
    return SuperValue(cls, receiver)


def callable_(vm: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    value = args[0]
    if isinstance(value, Constant):
        return boolean(callable(value.value))
    if isinstance(value, (BoundMethod, NativeMethod, FunctionValue)):
        return boolean(True)
    _, method = class_attributes.class_lookup(vm, value.python_type(), "__call__")
    return boolean(method is not class_attributes.MISSING)


# A guard on one of these lets an equal one pass.
_HELD_BY_VALUE = (int, float, complex, str, bytes, tuple, frozenset, range, torch.device)


def id_(vm: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    value = args[0]
    if isinstance(value, Constant) and not isinstance(value.value, _HELD_BY_VALUE):
        return Constant(id(value.value))
    if isinstance(value, ObjectValue) and value.pinned:
        return Constant(id(value.real))
    if isinstance(value, TensorValue) and value.node.meta.get("static"):  # a module's, guarded
        return Constant(id(value.real))
    raise GraphBreakSignal(f"id() of {value.describe()}")


class _Hashed:
    """An object with a given hash, to hash a tuple of."""

    def __init__(self, value: int) -> None:
        self.value = value

    def __hash__(self) -> int:
        return self.value


def hash_(vm: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    if isinstance(args[0], TupleValue) and args[0].cls is tuple:
        if not kwargs and vm.as_python(args[0]) is UNKNOWN:
            parts = [vm.as_python(hash_(vm, [part], {})) for part in vm.iterate(args[0])]
            return Constant(hash(tuple(map(_Hashed, parts))))
    method = operands.dunder(vm, args[0], "__hash__")
    if isinstance(method, BoundMethod):
        return vm.call(method, [], {})
    return vm.fold(hash, args, kwargs)


# --- attributes ----------------------------------------------------------------------------------


def _name(vm: Interpreter, value: Value) -> str:
    if not isinstance(value, Constant) or not isinstance(value.value, str):
        kind = value.python_type().__name__
        vm.raise_error(TypeError, f"attribute name must be string, not '{kind}'")
    assert isinstance(value, Constant)
    return value.value


def getattr_(vm: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    name = _name(vm, args[1])
    if len(args) == 2:
        return vm.get_attr(args[0], name)
    value = vm.find_attr(args[0], name)
    return args[2] if value is None else value


def hasattr_(vm: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    return boolean(vm.find_attr(args[0], _name(vm, args[1])) is not None)


def setattr_(vm: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    vm.set_attr(args[0], _name(vm, args[1]), args[2])
    return NONE


def delattr_(vm: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    vm.del_attr(args[0], _name(vm, args[1]))
    return NONE


def object_getattribute(vm: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    return object_attributes.generic_get_attr(vm, args[0], _name(vm, args[1]))


def object_setattr(vm: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    assignment.generic_set_attr(vm, args[0], _name(vm, args[1]), args[2])
    return NONE


def object_delattr(vm: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    assignment.generic_del_attr(vm, args[0], _name(vm, args[1]))
    return NONE


def object_init(vm: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    return NONE


def object_new(vm: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    from dovetail_capture.interpreter.protocols.instantiation import native_new

    return native_new(vm, object, vm.as_python(args[0]), args[1:], kwargs)


def object_eq(vm: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    same = comparison.is_same(vm, args[0], args[1])
    return boolean(True) if same else Constant(NotImplemented)


def vars_(vm: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    if not args:
        return locals_(vm, args, kwargs)
    return vm.get_attr(args[0], "__dict__")


def locals_(vm: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    frame = vm.frames[-1]
    result = DictValue()
    for name, item in zip(frame.decoded.slot_names, frame.slots, strict=True):
        if item is None:
            continue
        value = attributes.resolve(vm, item)
        from dovetail_capture.interpreter.values.functions import CellValue

        if isinstance(value, CellValue):
            if value.content is None:
                continue
            value = vm.resolve_cell(value)
        dicts.put(vm, result, Constant(name), value)
    return result


def globals_(vm: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    real = vm.frames[-1].globals_
    if any(place == id(real) for place, _ in vm.session.global_writes):
        raise GraphBreakSignal("globals() where a global was assigned in this graph")
    return vm.held(real)


# --- conversion ----------------------------------------------------------------------------------


def bool_(vm: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    if len(args) == 1 and isinstance(args[0], TensorValue) and vm.depends_on_data(args[0]):
        if args[0].fake.numel() == 1:
            return checks.truth_number(vm, args[0])
    return boolean(bool(args) and vm.truth(args[0]))


def _as_int(value: Any) -> Any:
    """`int(x)` that stays symbolic where this can be expressed."""
    return int(value) if isinstance(value, torch.SymBool) else torch.sym_int(value)


_SYMBOLIC_CONVERSIONS: dict[type, Callable[[Any], Any]] = {int: _as_int, float: torch.sym_float}


def number(cls: type, special: str) -> Handler:
    """`int(x)` and `float(x)`."""

    def handler(vm: Interpreter, args: Args, kwargs: Kwargs) -> Value:
        if len(args) == 1 and isinstance(args[0], TensorValue):
            if vm.data_of(args[0]) is not UNKNOWN:
                return vm.fold(cls, args, kwargs)
            if vm.session.recorder.data_env:
                args = [vm.record("call_method", "item", args, {})]
        if len(args) == 1 and isinstance(args[0], SymbolicNumber):
            return vm.constant(_SYMBOLIC_CONVERSIONS[cls](args[0].value))
        if args and isinstance(args[0], TensorValue):
            raise GraphBreakSignal(
                f"{cls.__name__}() of a tensor", "keep the value a tensor, or compute it outside"
            )
        if args and isinstance(args[0], ObjectValue):
            method = operands.dunder(vm, args[0], special)
            if method is not None:
                return vm.call(method, [], {})
        return vm.fold(cls, args, kwargs)

    return handler


def to_text(vm: Interpreter, value: Value, how: str, within: tuple[Value, ...] = ()) -> str:
    """`str(value)` or `repr(value)`; `within`: the containers that the value is in."""
    special = "__str__" if how == "str" else "__repr__"
    if isinstance(value, ObjectValue):
        for name in (special, "__repr__"):
            _, method = class_attributes.class_lookup(vm, value.cls, name)
            if isinstance(method, types.FunctionType):
                return str(vm.as_python(vm.call(vm.held(method), [value], {})))
        if issubclass(value.cls, BaseException):
            usual = (BaseException.__str__, KeyError.__str__)
            if value.real is not None and how == "str" and value.cls.__str__ not in usual:
                raise GraphBreakSignal(f"the text of {value.describe()}")
            parts = [vm.as_python(part) for part in vm.iterate(vm.get_attr(value, "args"))]
            if not any(part is UNKNOWN for part in parts):
                plain = BaseException(*parts)
                if issubclass(value.cls, KeyError):
                    plain = KeyError(*parts)
                text = str(plain) if how == "str" else repr(parts)
                return text if how == "str" else f"{value.cls.__name__}({text[1:-1]})"
    if isinstance(value, TensorValue):
        raise GraphBreakSignal("a tensor's text", "do not format tensors in compiled code")
    real = vm.as_python(value)
    if real is UNKNOWN:
        return _container_text(vm, value, within)
    return str(real) if how == "str" else repr(real)


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

    if isinstance(value, DictValue):
        pairs = [(key, vm.getitem(value, key)) for key in vm.iterate(value)]
        return "{" + ", ".join(f"{text(key)}: {text(item)}" for key, item in pairs) + "}"
    parts = [text(part) for part in vm.iterate(value)]
    return begin + ", ".join(parts) + ("," if cls is tuple and len(parts) == 1 else "") + end


def format_(vm: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    """`format(value, spec)`, which f-strings call."""
    value = args[0]
    if not isinstance(value, (ObjectValue, TensorValue)) and vm.as_python(value) is not UNKNOWN:
        return vm.fold(format, args, kwargs)
    spec = args[1] if len(args) > 1 else Constant("")
    if isinstance(value, ObjectValue):
        _, method = class_attributes.class_lookup(vm, value.cls, "__format__")
        if isinstance(method, types.FunctionType):
            return vm.call(vm.held(method), [value, spec], {})
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
    return ListValue(vm.iterate(args[0]) if args else [])


def tuple_(vm: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    if args and isinstance(args[0], TupleValue) and args[0].cls is tuple:
        return args[0]
    return TupleValue(vm.iterate(args[0]) if args else [])


def new_set_value(vm: Interpreter, args: Args, cls: type) -> SetValue:
    """The set of what one argument, or none, gives."""
    made = SetValue([], cls)
    if args:
        made.update(vm.iterate(args[0]), vm.native(args[0]))
    return made


def set_of(cls: type) -> Handler:
    """`set(x)` and `frozenset(x)`."""

    def handler(vm: Interpreter, args: Args, kwargs: Kwargs) -> Value:
        return new_set_value(vm, args, cls)

    return handler


def dict_of(cls: type) -> Handler:
    """`dict(...)` and `OrderedDict(...)`."""

    def handler(vm: Interpreter, args: Args, kwargs: Kwargs) -> Value:
        new = DictValue(cls)
        if args:
            vm.dict_update(new, args[0])
        for name, value in kwargs.items():
            dicts.put(vm, new, Constant(name), value)
        return new

    return handler


def defaultdict_(vm: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    if args and not is_none(args[0]) and not vm.truth(callable_(vm, args[:1], {})):
        vm.raise_error(TypeError, "first argument must be callable or None")
    new = dict_of(collections.defaultdict)(vm, args[1:], kwargs)
    assert isinstance(new, DictValue)
    new.default_factory = args[0] if args else NONE
    return new


def deque_(vm: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    items = args[0] if args else kwargs.get("iterable")
    new = ListValue([] if items is None else vm.iterate(items), collections.deque)
    maxlen = args[1] if len(args) > 1 else kwargs.get("maxlen", NONE)
    new.maxlen = vm.as_python(maxlen)
    if new.maxlen is not None:
        new.items = new.items[max(0, len(new.items) - new.maxlen) :]
    return new


def slice_(vm: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    if len(args) == 1:
        return SliceValue(NONE, args[0], NONE)
    return SliceValue(args[0], args[1], args[2] if len(args) > 2 else NONE)


# --- exceptions, functions, types -----------------------------------------------------------------


def exception_init(vm: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    assert isinstance(args[0], ObjectValue)
    if len(args) > 2 and issubclass(args[0].cls, (OSError, SyntaxError, UnicodeError)):
        # C code takes these apart; an OSError even becomes one of another class.
        raise GraphBreakSignal(f"creation of a {args[0].cls.__name__} of several parts")
    args[0].slots["args"] = TupleValue(args[1:])
    if issubclass(args[0].cls, StopIteration):
        args[0].slots["value"] = args[1] if len(args) > 1 else NONE
    for name, value in kwargs.items():
        args[0].slots[name] = value
    return NONE


def exception_with_traceback(vm: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    vm.set_attr(args[0], "__traceback__", args[1])
    return args[0]


def exception_str(vm: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    return Constant(to_text(vm, args[0], "str"))


def function_get(vm: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    if isinstance(args[1], Constant) and args[1].value is None:
        return args[0]
    return BoundMethod(args[0], args[1])


def method_type(vm: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    return BoundMethod(args[0], args[1])


def type_call(vm: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    """`type.__call__(cls, ...)`: what a metaclass's own `__call__` builds upon."""
    cls = vm.as_python(args[0])
    return instantiation.instantiate(vm, cls, args[1:], kwargs, args[0], by_type=True)


def namespace_init(vm: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    target = args[0]
    assert isinstance(target, ObjectValue)
    for other in args[1:]:
        vm.dict_update(target.fields, other)
    for name, value in kwargs.items():
        dicts.put(vm, target.fields, Constant(name), value)
    return NONE


HANDLERS: dict[Any, Handler] = {
    type.__call__: type_call, types.SimpleNamespace.__init__: namespace_init,
    isinstance: isinstance_, issubclass: issubclass_, type: type_, super: super_,
    callable: callable_, id: id_, hash: hash_, getattr: getattr_, hasattr: hasattr_,
    setattr: setattr_, delattr: delattr_, vars: vars_, locals: locals_, globals: globals_,
    object.__getattribute__: object_getattribute, object.__setattr__: object_setattr,
    object.__delattr__: object_delattr, object.__init__: object_init,
    object.__new__: object_new, object.__eq__: object_eq,
    bool: bool_, int: number(int, "__int__"), float: number(float, "__float__"),
    str: str_, format: format_,
    repr: repr_, list: list_, tuple: tuple_, set: set_of(set), frozenset: set_of(frozenset),
    dict: dict_of(dict), collections.OrderedDict: dict_of(collections.OrderedDict),
    collections.defaultdict: defaultdict_, collections.deque: deque_, slice: slice_,
    BaseException.__init__: exception_init,
    StopIteration.__init__: exception_init,
    BaseException.with_traceback: exception_with_traceback, BaseException.__str__: exception_str,
    types.FunctionType.__get__: function_get, types.MethodType: method_type,
    builtins.__import__: lambda vm, args, kwargs: vm.fold(__import__, args, kwargs),
}  # fmt: skip
for _cls in list(vars(builtins).values()):
    if isinstance(_cls, type) and issubclass(_cls, BaseException):
        if "__init__" in _cls.__dict__:
            HANDLERS[_cls.__dict__["__init__"]] = exception_init
        if "__str__" in _cls.__dict__:
            HANDLERS[_cls.__dict__["__str__"]] = exception_str


def new_dict(vm: Interpreter, cls: type, args: Args, kwargs: Kwargs) -> Value:
    """`dict.__new__(cls)` and its like for a subclass."""
    base = next(b for b in cls.__mro__ if b in (collections.OrderedDict, collections.defaultdict,
                                                dict))  # fmt: skip
    value = ObjectValue(cls, native=DictValue(base))
    value.base_new = base
    return value


def new_namespace(vm: Interpreter, cls: type, args: Args, kwargs: Kwargs) -> Value:
    value = ObjectValue(cls)
    value.base_new = types.SimpleNamespace
    return value


def new_list(vm: Interpreter, cls: type, args: Args, kwargs: Kwargs) -> Value:
    value = ObjectValue(cls, native=ListValue([]))
    value.base_new = list
    return value


def new_tuple(vm: Interpreter, cls: type, args: Args, kwargs: Kwargs) -> Value:
    items = list(vm.iterate(args[0])) if args else []
    if cls is tuple:
        return TupleValue(items)
    value = ObjectValue(cls, native=TupleValue(items))
    value.base_new = tuple
    return value


def new_set(vm: Interpreter, cls: type, args: Args, kwargs: Kwargs) -> Value:
    value = ObjectValue(cls, native=new_set_value(vm, args, set))
    value.base_new = set
    return value


def tuple_new(vm: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    """`tuple.__new__(cls, items)` called by name, as named tuples do."""
    return new_tuple(vm, vm.as_python(args[0]), args[1:], kwargs)


def dict_new(vm: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    return new_dict(vm, vm.as_python(args[0]), args[1:], kwargs)


HANDLERS[tuple.__new__] = tuple_new
HANDLERS[dict.__new__] = dict_new

NEW_HANDLERS: dict[type, Any] = {
    dict: new_dict, collections.OrderedDict: new_dict, collections.defaultdict: new_dict,
    types.SimpleNamespace: new_namespace, list: new_list, tuple: new_tuple, set: new_set,
}  # fmt: skip
