"""The attribute protocol: reading.

Follows CPython's rules: data descriptors of the type, then the instance dictionary, then other
class attributes, then `__getattr__`. What is found in an instance is guarded there; what is found
in a class is guarded to be absent from the instance where it could be shadowed.
"""

from __future__ import annotations

import collections
import functools
import threading
import types
from typing import TYPE_CHECKING, Any, NoReturn

import torch
from dovetail_guards import clauses as c
from dovetail_guards.clauses import MRO
from dovetail_guards.source import Source
from dovetail_prims.wrappers import is_wrapper_type

from dovetail_capture.interpreter.protocols import dicts
from dovetail_capture.interpreter.signals import GraphBreakSignal, ProgramException
from dovetail_capture.interpreter.values.arrays import ArrayValue
from dovetail_capture.interpreter.values.base import NONE, Constant, Lazy, Value, boolean
from dovetail_capture.interpreter.values.containers import (
    DictValue,
    ListValue,
    SliceValue,
    TupleValue,
)
from dovetail_capture.interpreter.values.functions import (
    BoundMethod,
    CellValue,
    FunctionValue,
    GeneratorValue,
    NativeMethod,
    SuperValue,
)
from dovetail_capture.interpreter.values.objects import ObjectValue
from dovetail_capture.interpreter.values.tensors import TensorValue

if TYPE_CHECKING:
    from dovetail_capture.interpreter.machine import Interpreter

C_METHODS = (types.MethodDescriptorType, types.WrapperDescriptorType)
MISSING = object()
_NAMED_TUPLE_FIELD: type = type(
    __import__("collections").namedtuple("_Probe", "a").__dict__["a"]  # the C field descriptor
)
_MODULE_GETATTR = torch.nn.Module.__getattr__
_EXCEPTION_FIELDS = {"args", "__cause__", "__context__", "__traceback__"}


def class_lookup(vm: Interpreter, cls: type, name: str) -> tuple[Any, Any]:
    """(owner, raw attribute) of `name` in the MRO of `cls`, or (None, MISSING)."""
    key = (cls, name)
    found = vm.class_attributes.get(key)
    if found is None:
        found = (None, MISSING)
        for owner in type.__dict__["__mro__"].__get__(cls):
            attributes = type.__dict__["__dict__"].__get__(owner)
            if id(owner) in vm.session.attribute_writes:
                written = vm.session.attribute_writes[id(owner)][1]
                if name in written.entries:
                    raise GraphBreakSignal(
                        f"the class attribute {owner.__name__}.{name}, assigned in this graph, "
                        "read through an instance"
                    )
            if name in attributes:
                found = (owner, attributes[name])
                break
        vm.class_attributes[key] = found
        vm.class_reads.setdefault(key, found[1])
    return found


def read_mro(vm: Interpreter, cls: type) -> tuple[type, ...]:
    """The MRO of a class, guarded."""
    mro: tuple[type, ...] = type.__dict__["__mro__"].__get__(cls)
    vm.class_reads[(cls, MRO)] = mro
    return mro


def is_data_descriptor(vm: Interpreter, attr: Any) -> bool:
    """Does the class attribute take precedence over the instance dictionary?"""
    return any(special_of(vm, attr, name) is not None for name in ("__set__", "__delete__"))


def special_of(vm: Interpreter, attr: Any, name: str) -> Any:
    """A method of the class of a raw class attribute, a descriptor maybe; None if it has none."""
    cls = type(attr)
    if cls.__flags__ & _IMMUTABLE_TYPE:
        return getattr(cls, name, None)
    found = class_lookup(vm, cls, name)[1]
    return None if found is MISSING else found


_IMMUTABLE_TYPE = 1 << 8  # Py_TPFLAGS_IMMUTABLETYPE: a class written in C


def get_attr(vm: Interpreter, obj: Value, name: str) -> Value:
    """`obj.name`."""
    reader = _READERS.get(obj.__class__)
    if reader is not None:
        return reader(vm, obj, name)  # type: ignore[no-any-return]
    return _native_attr(vm, obj, name)


def find_attr(vm: Interpreter, obj: Value, name: str) -> Value | None:
    """`getattr(obj, name, None)` that tells absence by None."""
    try:
        return get_attr(vm, obj, name)
    except ProgramException as error:
        if issubclass(error.value.python_type(), AttributeError):
            return None
        raise


def missing(vm: Interpreter, obj: Value, name: str) -> NoReturn:
    """Raise AttributeError."""
    cls = obj.python_type()
    kind = "_thread._local" if cls is threading.local else cls.__name__
    text = f"'{kind}' object has no attribute '{name}'"
    if isinstance(obj, Constant) and isinstance(obj.value, types.ModuleType):
        text = f"module '{obj.value.__name__}' has no attribute '{name}'"
    elif isinstance(obj, Constant) and isinstance(obj.value, type):
        text = f"type object '{obj.value.__name__}' has no attribute '{name}'"
    vm.raise_error(AttributeError, text, name=name)


# --- constants: modules, classes, functions, numbers ---------------------------------------------


def _constant_attr(vm: Interpreter, obj: Constant, name: str) -> Value:
    real = obj.value
    writes = vm.session.attribute_writes
    if writes and id(real) in writes:
        found = dicts.get(vm, writes[id(real)][1], name)
        if found is not None:
            return found
    if isinstance(real, types.ModuleType):
        return _module_attr(vm, obj, real, name)
    if isinstance(real, type):
        return _class_attr(vm, obj, real, name)
    owner, attr = class_lookup(vm, type(real), name)
    kind = type(attr)
    if kind in C_METHODS:
        return NativeMethod(attr, obj, name)
    if kind is types.FunctionType:
        return BoundMethod(vm.wrap_class_attr(owner, name, attr), obj)
    if kind is classmethod:
        return BoundMethod(vm.held(attr.__func__), vm.held(type(real)))
    if kind is staticmethod:
        return vm.held(attr.__func__)
    source = obj.source if obj.source is not None else vm.session.sources.held(real)
    try:
        found = getattr(real, name)
    except AttributeError:
        if hasattr(real, "__dict__"):
            vm.session.guard(c.HasInstanceAttr, source, name, False)
        return missing(vm, obj, name)
    if isinstance(real, (int, float, str, bytes, torch.dtype, torch.device, range)):
        return vm.constant(found)
    if callable(found) and isinstance(found, (types.MethodType, types.BuiltinMethodType)):
        return vm.held(found)
    return vm.wrap(found, vm.session.sources.attr(source, name))


def _module_attr(vm: Interpreter, obj: Constant, module: types.ModuleType, name: str) -> Value:
    attributes = module.__dict__
    sources = vm.session.sources
    base = sources.held(attributes, f"module {module.__name__}")
    key = (id(attributes), name)
    if key in vm.session.global_writes:
        written = vm.session.global_writes[key]
        return written if written is not None else missing(vm, obj, name)
    if name in attributes:
        return vm.wrap(attributes[name], sources.item(base, name))
    vm.session.guard(c.HasKey, base, name, False)
    if "__getattr__" in attributes:
        vm.session.pin(sources.item(base, "__getattr__"), attributes["__getattr__"])
    else:
        vm.session.guard(c.HasKey, base, "__getattr__", False)
    try:
        found = getattr(module, name)
    except AttributeError:
        return missing(vm, obj, name)
    return vm.wrap(found, sources.attr(sources.held(module, module.__name__), name))


def _class_attr(vm: Interpreter, obj: Value, cls: type, name: str) -> Value:
    meta = type(cls)
    meta_owner, meta_attr = class_lookup(vm, meta, name)
    if meta is not type:
        getter = class_lookup(vm, meta, "__getattribute__")[1]
        if isinstance(getter, types.FunctionType):
            return vm.call(vm.held(getter), [obj, Constant(name)], {})
    if meta_attr is not MISSING and is_data_descriptor(vm, meta_attr):
        if isinstance(meta_attr, property) and isinstance(meta_attr.fget, types.FunctionType):
            return vm.call(vm.held(meta_attr.fget), [obj], {})
        return _class_metadata(vm, cls, name)
    owner, attr = class_lookup(vm, cls, name)
    if attr is not MISSING:
        return bind_to_class(vm, owner, name, attr, obj, cls)
    if meta_attr is not MISSING:
        if isinstance(meta_attr, types.FunctionType):
            return BoundMethod(vm.wrap_class_attr(meta_owner, name, meta_attr), obj)
        if type(meta_attr) in C_METHODS:
            return NativeMethod(meta_attr, obj, name)
        return vm.held(getattr(cls, name))
    fallback = class_lookup(vm, meta, "__getattr__")[1]
    if isinstance(fallback, types.FunctionType):
        return vm.call(vm.held(fallback), [obj, Constant(name)], {})
    if fallback is not MISSING:
        try:
            return vm.held(getattr(cls, name))
        except AttributeError:
            pass
    return missing(vm, obj, name)


def _class_metadata(vm: Interpreter, cls: type, name: str) -> Value:
    """`__name__`, `__mro__`, `__bases__`, `__dict__` ... of a class."""
    try:
        return vm.held(getattr(cls, name))
    except AttributeError:
        vm.raise_error(AttributeError, name, name=name)


def bind_to_class(
    vm: Interpreter, owner: type, name: str, attr: Any, receiver: Value, cls: type
) -> Value:
    """A raw class attribute as read through the class."""
    kind = type(attr)
    if kind is staticmethod:
        return vm.wrap_class_attr(owner, name, attr.__func__)
    if kind is classmethod:
        return BoundMethod(vm.held(attr.__func__), receiver)
    if kind is types.ClassMethodDescriptorType:
        return NativeMethod(attr, receiver, name)
    if kind is types.FunctionType or kind in C_METHODS:
        return vm.wrap_class_attr(owner, name, attr)
    if not hasattr(kind, "__get__") or kind in (property, types.MemberDescriptorType):
        return vm.wrap_class_attr(owner, name, attr)
    return vm.held(attr.__get__(None, cls))  # through `super`, cls.name may be another


# --- objects -------------------------------------------------------------------------------------


def _object_attr(vm: Interpreter, obj: ObjectValue, name: str) -> Value:
    cls = obj.cls
    _, getter = class_lookup(vm, cls, "__getattribute__")
    if type(getter) is types.FunctionType:
        try:
            return vm.call(vm.held(getter), [obj, Constant(name)], {})
        except ProgramException as error:
            if not issubclass(error.value.python_type(), AttributeError):
                raise
            return _fallback(vm, obj, name)
    found = generic_lookup(vm, obj, name)
    if found is not None:
        return found
    if obj.real is not None and class_lookup(vm, cls, "__getattr__")[1] is MISSING:
        # Only code of C runs here: that of a class which finds attributes in its own way.
        found_by_c = hasattr(obj.real, name)
        if found_by_c and cls.__dictoffset__ and name in obj.real.__dict__:
            found_by_c = False
        if found_by_c:
            raise GraphBreakSignal(f"the attribute `{name}` that C code of {cls.__name__} gives")
    return _fallback(vm, obj, name)


def generic_get_attr(vm: Interpreter, obj: Value, name: str) -> Value:
    """`object.__getattribute__(obj, name)`."""
    if isinstance(obj, ObjectValue):
        found = generic_lookup(vm, obj, name)
        return found if found is not None else missing(vm, obj, name)
    return get_attr(vm, obj, name)


def generic_lookup(vm: Interpreter, obj: ObjectValue, name: str) -> Value | None:
    """`object.__getattribute__` without the AttributeError."""
    cls = obj.cls
    owner, attr = class_lookup(vm, cls, name)
    if name == "__dict__" and not isinstance(attr, property):
        has_dict = getattr(cls, "__dictoffset__", 0) or not obj.fields.is_instance_dict
        return obj.fields if has_dict else None
    if attr is not MISSING and is_data_descriptor(vm, attr):
        return _data_descriptor(vm, obj, owner, name, attr)
    if attr is MISSING and obj.fields.origin is not None and name not in obj.fields.origin:
        # Nothing on the class: `__getattr__` decides, and only then is absence guarded.
        if name not in obj.fields.entries:
            if _finds_module_child(obj, name):
                return _fallback(vm, obj, name)
    found = dicts.get(vm, obj.fields, name)
    if found is not None:
        return found
    if attr is MISSING:
        return None
    return bind_to_instance(vm, obj, owner, name, attr)


def _finds_module_child(obj: ObjectValue, name: str) -> bool:
    """Is `name` a parameter, buffer or submodule? nn.Module keeps these apart from its
    instance attributes, so that finding one needs no guard that the others lack it."""
    if not isinstance(obj.real, torch.nn.Module):
        return False
    fields = obj.fields.origin
    assert fields is not None
    return any(name in fields.get(kind, ()) for kind in ("_parameters", "_buffers", "_modules"))


def bind_to_instance(vm: Interpreter, obj: Value, owner: type, name: str, attr: Any) -> Value:
    """A non-data class attribute as read through an instance."""
    kind = type(attr)
    if kind is types.FunctionType:
        return BoundMethod(vm.wrap_class_attr(owner, name, attr), obj)
    if kind in C_METHODS:
        return NativeMethod(attr, obj, name)
    if kind is staticmethod:
        return vm.wrap_class_attr(owner, name, attr.__func__)
    cls = obj.python_type()
    if kind is classmethod:
        return BoundMethod(vm.held(attr.__func__), vm.held(cls))
    if kind is types.ClassMethodDescriptorType:
        return NativeMethod(attr, vm.held(cls), name)
    if kind is functools.cached_property:
        value = vm.call(vm.held(attr.func), [obj], {})
        vm.set_attr(obj, name, value)
        return value
    if kind is functools._lru_cache_wrapper:
        return BoundMethod(vm.held(attr), obj)
    if kind is functools.partialmethod:
        call = [vm.held(attr), obj, vm.held(cls)]
        return vm.call(Constant(_partial_method), call, {})
    if kind is functools.singledispatchmethod:
        return vm.call(Constant(_dispatching_method), [vm.held(attr), obj, vm.held(cls)], {})
    getter = special_of(vm, attr, "__get__")
    if isinstance(getter, types.FunctionType):
        return vm.call(vm.held(getter), [vm.held(attr), obj, vm.held(cls)], {})
    if getter is not None and not isinstance(attr, type):
        raise GraphBreakSignal(f"the descriptor {kind.__name__} of {cls.__name__}.{name}")
    return vm.wrap_class_attr(owner, name, attr)


def _partial_method(method: Any, obj: Any, cls: Any) -> Any:
    """Interpreted: what a `functools.partialmethod` in a class gives, read through an instance."""
    return functools.partial(method.func.__get__(obj, cls), *method.args, **method.keywords)


def _dispatching_method(method: Any, obj: Any, cls: Any) -> Any:
    """Interpreted: what a `functools.singledispatchmethod` in a class gives."""
    return lambda *args, **kwargs: method.dispatcher.dispatch(args[0].__class__).__get__(obj, cls)(
        *args, **kwargs
    )


# What guards read as `obj.name`, which only gives what this descriptor does if no class hides it.
_KNOWN_BY_NAME = (types.MemberDescriptorType, types.GetSetDescriptorType)


def _data_descriptor(vm: Interpreter, obj: ObjectValue, owner: type, name: str, attr: Any) -> Value:
    kind = type(attr)
    if isinstance(attr, property):
        if attr.fget is None:
            return missing(vm, obj, name)
        return vm.call(vm.held(attr.fget), [obj], {})
    if kind is types.GetSetDescriptorType:
        if name == "__dict__":
            return obj.fields
        if name == "__class__":
            return vm.held(obj.cls)
    if kind in _KNOWN_BY_NAME and class_lookup(vm, obj.cls, name)[1] is not attr:
        raise GraphBreakSignal(
            f"the attribute {owner.__name__}.{name} that {obj.cls.__name__} hides"
        )
    if kind is types.MemberDescriptorType or kind is _NAMED_TUPLE_FIELD:
        return _member(vm, obj, name, attr)
    if kind is types.GetSetDescriptorType:
        if name in obj.slots:
            return obj.slots[name]
        if name in _EXCEPTION_FIELDS and obj.real is None:
            return NONE
        if obj.real is not None and obj.source is not None:
            source = vm.session.sources.attr(obj.source, name)
            return vm.wrap(attr.__get__(obj.real), source)
        raise GraphBreakSignal(f"the C attribute {owner.__name__}.{name}")
    getter = special_of(vm, attr, "__get__")
    if isinstance(getter, types.FunctionType):
        return vm.call(vm.held(getter), [vm.held(attr), obj, vm.held(obj.cls)], {})
    if name == "__class__":
        return vm.held(obj.cls)
    if getter is None or getter is MISSING:  # it is written through alone
        own = obj.fields.is_instance_dict and dicts.get(vm, obj.fields, name)
        return own if isinstance(own, Value) else vm.wrap_class_attr(owner, name, attr)
    raise GraphBreakSignal(f"the descriptor {kind.__name__} of {owner.__name__}.{name}")


def _member(vm: Interpreter, obj: ObjectValue, name: str, attr: Any) -> Value:
    """A `__slots__` member or the field of a named tuple."""
    if type(attr) is _NAMED_TUPLE_FIELD:
        assert isinstance(obj.native, TupleValue)
        index: Any = attr.__reduce__()[1][0]
        return vm.tuple_item(obj.native, index)
    if name in obj.slots:
        return obj.slots[name]
    if obj.real is not None and obj.source is not None:
        try:
            real = attr.__get__(obj.real)
        except AttributeError:
            vm.session.guard(c.SlotIsEmpty, obj.source, name)
            return missing(vm, obj, name)
        value = vm.wrap(real, vm.session.sources.attr(obj.source, name))
        obj.slots[name] = value
        return value
    if issubclass(obj.cls, BaseException):
        if name == "__suppress_context__":
            return boolean(False)
        parts = obj.slots.get("args")
        if isinstance(parts, TupleValue) and parts.items and name not in ("name", "path", "obj"):
            raise GraphBreakSignal(f"`{name}` of a {obj.cls.__name__} made in the graph")
        return NONE
    return missing(vm, obj, name)


def _fallback(vm: Interpreter, obj: ObjectValue, name: str) -> Value:
    """`__getattr__`, or AttributeError."""
    _, getter = class_lookup(vm, obj.cls, "__getattr__")
    if getter is MISSING:
        return missing(vm, obj, name)
    if getter is _MODULE_GETATTR:
        return _module_child(vm, obj, name)
    return vm.call(vm.held(getter), [obj, Constant(name)], {})


def _module_child(vm: Interpreter, obj: ObjectValue, name: str) -> Value:
    """nn.Module.__getattr__: parameters, buffers, submodules."""
    session = vm.session
    absent: list[Source] = []
    for kind in ("_parameters", "_buffers", "_modules"):
        origin = obj.fields.origin
        real = None if origin is None else origin.get(kind)
        known = session.known.get(id(real)) if real is not None else None
        if real is None or kind in obj.fields.entries or known is not None:
            holder = known if known is not None else dicts.get(vm, obj.fields, kind)
            if isinstance(holder, DictValue):
                found = dicts.get(vm, holder, name)
                if found is not None:
                    return found
            continue
        assert obj.source is not None
        base = session.sources.instance_attr(obj.source, kind)
        if name in real:
            return vm.wrap(real[name], session.sources.item(base, name))
        absent.append(base)
    # A name lives in one of the three only (nn.Module sees to that), so absence is guarded
    # just where nothing was found.
    for base in absent:
        session.guard(c.HasKey, base, name, False)
    return missing(vm, obj, name)


# --- other values --------------------------------------------------------------------------------


def _tensor_attr(vm: Interpreter, obj: TensorValue, name: str) -> Value:
    if name in obj.attributes:
        return obj.attributes[name]
    if name == "__class__":
        return vm.held(obj.cls)
    owner, attr = class_lookup(vm, obj.cls, name)
    if attr is MISSING:
        if is_wrapper_type(obj.cls):
            # What it wraps is known of a value made in the frame, too.
            if isinstance(getattr(obj.fake, name, None), torch.Tensor):
                run = vm.session.recorder.record
                return run("call_function", getattr, [obj, Constant(name)], {}, getattr)
            if obj.real is None:
                raise GraphBreakSignal(f"the attribute `{name}` of a {obj.cls.__name__}")
        if obj.real is not None and obj.source is not None:
            fields = obj.real.__dict__
            if name in fields:
                source = vm.session.sources.instance_attr(obj.source, name)
                return vm.wrap(fields[name], source)
            vm.session.guard(c.HasInstanceAttr, obj.source, name, False)
        return missing(vm, obj, name)
    kind = type(attr)
    if kind in C_METHODS:
        return NativeMethod(attr, obj, name)
    if kind is types.FunctionType:
        return BoundMethod(vm.held(attr), obj)
    if kind is property and obj.overrides and not issubclass(torch.Tensor, owner):
        return vm.call(vm.held(attr.fget), [obj], {})
    if kind is types.GetSetDescriptorType or kind is property:
        return vm.tensor_property(obj, name)
    return bind_to_instance(vm, obj, owner, name, attr)


def _native_attr(vm: Interpreter, obj: Value, name: str) -> Value:
    """Attributes of lists, tuples, dicts, iterators ...: methods of their C type."""
    cls = obj.python_type()
    _, attr = class_lookup(vm, cls, name)
    kind = type(attr)
    if isinstance(obj, ArrayValue):
        found = vm.arrays.array_attr(vm, obj, name)
        if found is not None:
            return found  # type: ignore[no-any-return]
    if kind in C_METHODS:
        return NativeMethod(attr, obj, name)
    if name == "__class__":
        return vm.held(cls)
    if kind is types.ClassMethodDescriptorType:
        return NativeMethod(attr, vm.held(cls), name)
    if isinstance(obj, TupleValue) and attr is not MISSING:
        # The field of a struct sequence: ask the class which position the name stands for.
        try:
            position = getattr(cls(range(len(obj.items))), name)
        except (TypeError, AttributeError):
            position = None
        if isinstance(position, int):
            return vm.tuple_item(obj, position)
    if isinstance(obj, SliceValue) and name in ("start", "stop", "step"):
        return getattr(obj, name)  # type: ignore[no-any-return]
    if isinstance(obj, CellValue) and name == "cell_contents":
        if obj.content is None:
            return vm.raise_error(ValueError, "Cell is empty")
        return vm.resolve_cell(obj)
    if isinstance(obj, ListValue) and name == "maxlen" and obj.cls is collections.deque:
        return Constant(obj.maxlen)
    if isinstance(obj, DictValue) and name == "default_factory":
        return obj.default_factory or NONE
    if attr is MISSING:
        return missing(vm, obj, name)
    raise GraphBreakSignal(f"the attribute {cls.__name__}.{name}")


def _bound_method_attr(vm: Interpreter, obj: BoundMethod, name: str) -> Value:
    if name == "__func__":
        return obj.function
    if name == "__self__":
        return obj.receiver
    if name == "__class__":
        return Constant(types.MethodType)
    if name == "__call__":
        return obj
    if name in types.MethodType.__dict__ and name != "__doc__":
        return _native_attr(vm, obj, name)
    return get_attr(vm, obj.function, name)


def _native_method_attr(vm: Interpreter, obj: NativeMethod, name: str) -> Value:
    if name == "__self__":
        return obj.receiver
    if name in ("__name__", "__qualname__", "__doc__"):
        return Constant(getattr(obj.descriptor, name))
    return _native_attr(vm, obj, name)


def _function_attr(vm: Interpreter, obj: FunctionValue, name: str) -> Value:
    found = obj.special.get(name)
    if found is None and name not in FUNCTION_FIELDS and obj.attributes is not None:
        found = dicts.get(vm, obj.attributes, name)
    if found is not None:
        return found
    if obj.source is not None and name == "__dict__":
        raise GraphBreakSignal("the __dict__ of a function that is given")
    match name:
        case "__name__":
            return Constant(obj.name)
        case "__qualname__":
            return Constant(obj.code.co_qualname)
        case "__code__":
            return Constant(obj.code)
        case "__dict__":
            return function_fields(obj)
        case "__module__":
            return vm.constant(obj.globals_.get("__name__"))
        case "__doc__":
            consts = obj.code.co_consts
            text = consts[0] if consts and isinstance(consts[0], str) else None
            return Constant(text)
        case "__defaults__":
            return TupleValue(obj.defaults) if obj.defaults else NONE
        case "__kwdefaults__":
            return obj.kwdefaults or NONE
        case "__closure__":
            return TupleValue(obj.closure) if obj.closure else NONE
        case "__annotations__":
            if isinstance(obj.annotations, TupleValue):  # names and values in turn
                flat = [
                    vm.tuple_item(obj.annotations, i) for i in range(len(obj.annotations.items))
                ]
                obj.annotations = DictValue()
                for of_what, annotation in zip(flat[::2], flat[1::2], strict=True):
                    dicts.put(vm, obj.annotations, of_what, annotation)
            elif obj.source is not None:
                raise GraphBreakSignal("the __annotations__ of a function that is given")
            elif obj.annotations is None:
                obj.annotations = DictValue()
            return obj.annotations
        case "__type_params__":
            return TupleValue([])
        case "__class__":
            return Constant(types.FunctionType)
        case "__get__":
            return NativeMethod(types.FunctionType.__get__, obj, name)
        case "__call__":
            return obj
    if hasattr(types.FunctionType, name):
        raise GraphBreakSignal(f"a function's {name}")
    return missing(vm, obj, name)


FUNCTION_FIELDS = frozenset(
    name for name, attr in vars(types.FunctionType).items() if hasattr(attr, "__set__")
)
"""The attributes of functions that are not in their `__dict__`."""


def function_fields(obj: FunctionValue) -> DictValue:
    """The `__dict__` of a function made in the frame."""
    if obj.attributes is None:
        obj.attributes = DictValue()
    return obj.attributes


def _super_attr(vm: Interpreter, obj: SuperValue, name: str) -> Value:
    receiver = obj.receiver
    is_class = isinstance(receiver, Constant) and isinstance(receiver.value, type)
    start = receiver.value if is_class else receiver.python_type()  # type: ignore[attr-defined]
    if is_class and not issubclass(start, obj.cls):
        is_class, start = False, type(start)
    mro = read_mro(vm, start)
    for owner in mro[mro.index(obj.cls) + 1 :]:
        attributes = type.__dict__["__dict__"].__get__(owner)
        class_lookup(vm, owner, name)  # also where it is absent: the guards are to know
        if name not in attributes:
            continue
        attr = attributes[name]
        if is_class:
            return bind_to_class(vm, owner, name, attr, receiver, start)
        if is_data_descriptor(vm, attr) and isinstance(receiver, ObjectValue):
            return _data_descriptor(vm, receiver, owner, name, attr)
        return bind_to_instance(vm, receiver, owner, name, attr)
    return missing(vm, obj, name)


def _generator_attr(vm: Interpreter, obj: GeneratorValue, name: str) -> Value:
    if name in ("gi_running", "gi_frame", "gi_code", "gi_yieldfrom"):
        raise GraphBreakSignal(f"a generator's {name}")
    return _native_attr(vm, obj, name)


def resolve(vm: Interpreter, item: Any) -> Value:
    """Look at a lazy child."""
    return vm.wrap(item.real, item.source) if isinstance(item, Lazy) else item


_READERS: dict[type, Any] = {
    Constant: _constant_attr,
    ObjectValue: _object_attr,
    TensorValue: _tensor_attr,
    BoundMethod: _bound_method_attr,
    NativeMethod: _native_method_attr,
    FunctionValue: _function_attr,
    SuperValue: _super_attr,
    GeneratorValue: _generator_attr,
}
