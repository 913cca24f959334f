"""The attribute protocol: setting and deleting."""

from __future__ import annotations

import inspect
import types
from collections import OrderedDict
from typing import TYPE_CHECKING, Any, NoReturn, TypeGuard

import torch
from dovetail_prims.fake_tensor import FakeTensor
from dovetail_prims.wrappers import is_wrapper_type

from dovetail_capture.interpreter.machine.decoding import VERSION
from dovetail_capture.interpreter.protocols import builtin_attributes, class_attributes, dicts
from dovetail_capture.interpreter.protocols.weak_targets import is_proxy, target_of_proxy
from dovetail_capture.interpreter.signals import GraphBreakSignal
from dovetail_capture.interpreter.values.base import NONE, Constant, Value, boolean, is_none
from dovetail_capture.interpreter.values.containers import DictValue, TupleValue
from dovetail_capture.interpreter.values.functions import CellValue, FunctionValue
from dovetail_capture.interpreter.values.objects import ObjectValue
from dovetail_capture.interpreter.values.tensors import TensorValue

if TYPE_CHECKING:
    from dovetail_capture.interpreter.machine import Interpreter

# What `save_for_backward` and its like set, on the context of a function of autograd.
_CONTEXT_FIELDS = ("to_save", "dirty_tensors", "non_differentiable", "materialize_grads")
# Fields of classes that change nothing but themselves.
_NAMES_OF_CLASSES = ("__name__", "__qualname__", "__module__", "__doc__")
_CHECKED = ("__traceback__", "__cause__", "__context__")  # fields of exceptions
_REQUIRES_GRAD = inspect.getattr_static(torch.Tensor, "requires_grad")
_DATA = inspect.getattr_static(torch.Tensor, "data")
_PARTS = [inspect.getattr_static(torch.Tensor, name) for name in ("real", "imag")]


def set_attr(vm: Interpreter, obj: Value, name: str, value: Value) -> None:
    """`obj.name = value`."""
    if isinstance(obj, ObjectValue):
        if is_proxy(obj.cls):
            set_attr(vm, target_of_proxy(vm, obj), name, value)
            return
        _, setter = class_attributes.class_lookup(vm, obj.cls, "__setattr__")
        if type(setter) is types.FunctionType or _is_borrowed(setter, object.__setattr__):
            vm.call(vm.held(setter), [obj, Constant(name), value], {})
        else:
            generic_set_attr(vm, obj, name, value)
        return
    if isinstance(obj, FunctionValue):
        _set_function_attr(vm, obj, name, value)
        return
    if isinstance(obj, TensorValue):
        name = builtin_attributes.SECOND_NAMES.get(name, name)
        _, attr = class_attributes.class_lookup(vm, obj.cls, name)
        slot = type(attr) is types.MemberDescriptorType
        if is_wrapper_type(obj.cls) and (slot or not class_attributes.is_data_descriptor(vm, attr)):
            _set_on_wrapper(obj, name, value)
            return
        if attr is not class_attributes.MISSING and obj.overrides:  # its class is asked
            raise GraphBreakSignal(f"assignment to attribute `{name}` of a {obj.cls.__name__}")
        if attr is _REQUIRES_GRAD and isinstance(value, Constant) and type(value.value) is bool:
            vm.call(vm.get_attr(obj, "requires_grad_"), [value], {})
            return
        if attr is _DATA and _fits_data(value, vm, obj):
            _set_data(vm, obj, value)
            return
        complex_ = isinstance(value, TensorValue) and obj.fake.dtype.is_complex
        if attr in _PARTS and complex_:
            vm.call_method(vm.get_attr(obj, name), "copy_", [value])
            return
        if attr is not class_attributes.MISSING and not (name == "grad" and _fits_grad(obj, value)):
            raise GraphBreakSignal(f"assignment to tensor attribute `{name}`")
        obj.attributes[name] = value
        return
    if isinstance(obj, CellValue) and name == "cell_contents":
        obj.content = value
        obj.mutated = True
        return
    if isinstance(obj, Constant):
        _set_constant_attr(vm, obj, name, value)
        return
    if isinstance(obj, DictValue) and obj.cls is OrderedDict and obj.source is None:
        _, attr = class_attributes.class_lookup(vm, OrderedDict, name)
        if attr is class_attributes.MISSING:
            obj.attributes[name] = value
            return
    raise GraphBreakSignal(f"assignment to attribute `{name}` of {obj.describe()}")


def _set_on_wrapper(obj: TensorValue, name: str, value: Value) -> None:
    """Set an attribute of a tensor that wraps others: its class does, of one that it makes."""
    if obj.make_node is None or obj.has_node:
        raise GraphBreakSignal(
            f"assignment to `{name}` of a {obj.cls.__name__} that is part of the graph"
        )
    obj.attributes[name] = value


def _fits_grad(obj: TensorValue, value: Value) -> bool:
    """Can `value` become the gradient of a leaf, or of what the frame made? (What cannot, PyTorch
    refuses.)"""
    if is_none(value):
        return True
    if not isinstance(value, TensorValue) or value is obj:
        return False
    if not obj.fake.is_leaf and obj.source is not None:
        return False
    ours, theirs = obj.fake, value.fake
    same = tuple(obj.sizes) == tuple(value.sizes) and type(ours) is type(theirs)
    return same and ours.dtype is theirs.dtype and bool(ours.device == theirs.device)


def _fits_data(value: Value, vm: Interpreter, obj: TensorValue) -> TypeGuard[TensorValue]:
    """Can `value` become the data of a tensor that existed before, or of one that the frame made
    and that has no history, with all of its metadata as it was?"""
    recorder = vm.session.recorder
    if not isinstance(value, TensorValue) or recorder.inference:
        return False
    ours, theirs = obj.fake, value.fake
    made = obj.source is None
    is_leaf = not ours.requires_grad or id(obj) in vm.session.effects.made_leaves
    if made and (not is_leaf or obj.cls is not torch.Tensor or obj.inference):
        return False
    if type(ours) is not FakeTensor or type(theirs) is not FakeTensor or value.inference:
        return False
    if recorder.checkpoint is not None or not recorder.owns(value.node) or value is obj:
        return False
    if not recorder.owns(obj.node) or value.overrides:
        return False
    if ours.requires_grad and torch.is_grad_enabled() and not made:
        # What it was used for keeps it for the backward, in eager partly with the data of then.
        results = [user.meta.get("val") for user in obj.node.users]
        if any(isinstance(one, torch.Tensor) and one.requires_grad for one in results):
            return False
    return _same_metadata(ours, theirs)


def _same_metadata(ours: FakeTensor, theirs: FakeTensor) -> bool:
    lazy = (*(t.is_conj() for t in (ours, theirs)), *(t.is_neg() for t in (ours, theirs)))
    return (
        ours._dtype is theirs._dtype
        and bool(ours._device == theirs._device)
        and not any(lazy)
        and len(ours._sizes) == len(theirs._sizes)
        and all(a == b for a, b in zip(ours._sizes, theirs._sizes, strict=True))
        and all(a == b for a, b in zip(ours._strides, theirs._strides, strict=True))
    )


def _set_data(vm: Interpreter, obj: TensorValue, value: TensorValue) -> None:
    """`obj.data = value`: from now on another tensor of the graph stands for `obj`, which is given
    its memory when the graph has run if it existed before. (`data` of a tensor has a version
    counter of its own, as `obj` keeps its own.) Of a leaf that the frame made that is another leaf:
    what is computed with the one before breaks the graph if it is differentiated."""
    data = vm.get_attr(value, "data")
    assert isinstance(data, TensorValue)
    values = vm.session.recorder.values
    if obj.source is None:
        if obj.fake.requires_grad:
            vm.record("call_method", "requires_grad_", [data], {})
            vm.session.effects.left_nodes.setdefault(id(obj), []).append(obj.node)
        values.pop(id(obj.fake), None)
        obj.node, obj.fake, obj.drawn, obj.answer = data.node, data.fake, None, None
    else:
        obj.data = data
    values[id(data.fake)] = obj  # which in-place operations give back


def _is_borrowed(method: object, usual: object) -> bool:
    """Is it a C method put there by the program, like `__setattr__ = dict.__setitem__`?"""
    name = getattr(usual, "__name__", "")
    return type(method) in class_attributes.C_METHODS and getattr(method, "__name__", name) != name


def generic_set_attr(vm: Interpreter, obj: Value, name: str, value: Value) -> None:
    """`object.__setattr__(obj, name, value)`."""
    if not isinstance(obj, ObjectValue):
        set_attr(vm, obj, name, value)
        return
    owner, attr = class_attributes.class_lookup(vm, obj.cls, name)
    if attr is not class_attributes.MISSING and class_attributes.is_data_descriptor(vm, attr):
        kind = type(attr)
        if isinstance(attr, property):
            if attr.fset is None:
                vm.raise_error(AttributeError, _property_text(obj, name, "setter"))
            vm.call(vm.held(attr.fset), [obj, value], {})
            return
        if kind is types.MemberDescriptorType:
            obj.slots[name] = value
            obj.slots_mutated.add(name)
            return
        if kind is types.GetSetDescriptorType and issubclass(obj.cls, BaseException):
            value = _checked_exception_field(vm, name, value)
            _set_exception_field(obj, name, value)
            if name == "__cause__":
                obj.slots.pop("__suppress_context__", None)  # (it is written after the cause)
                _set_exception_field(obj, "__suppress_context__", boolean(True))
            return
        if name in _CONTEXT_FIELDS and issubclass(obj.cls, torch._C._FunctionBase):
            obj.slots[name] = value
            obj.slots_mutated.add(name)
            return
        if name == "__dict__" and isinstance(value, DictValue) and obj.fields.is_instance_dict:
            dicts.clear(vm, obj.fields)
            for key, item in dicts.items(vm, value):
                dicts.put(vm, obj.fields, key, item)
            return
        setter = getattr(kind, "__set__", None)
        if isinstance(setter, types.FunctionType):
            vm.call(vm.held(setter), [vm.held(attr), obj, value], {})
            return
        raise GraphBreakSignal(f"assignment to {owner.__name__}.{name}")
    if not _has_instance_dict(obj):
        _refuse_what_c_does(vm, obj.cls, "__setattr__", name)
        _cannot_change(vm, obj, name, attr)
    dicts.put(vm, obj.fields, Constant(name), value)


def _checked_exception_field(vm: Interpreter, name: str, value: Value) -> Value:
    """What a field of an exception becomes, or the TypeError of what it cannot be."""
    if name == "args":
        return value if value.python_type() is tuple else TupleValue(vm.iterate(value))
    allowed = types.TracebackType if name == "__traceback__" else BaseException
    if name not in _CHECKED or issubclass(value.python_type(), (allowed, types.NoneType)):
        return value
    try:
        setattr(Exception(), name, object())
    except TypeError as error:
        vm.raise_error(TypeError, str(error))
    raise AssertionError(name)


def _set_exception_field(obj: ObjectValue, name: str, value: Value) -> None:
    obj.slots[name] = value
    if obj.real is not None:
        obj.slots_mutated.add(name)


def _cannot_change(
    vm: Interpreter, obj: ObjectValue, name: str, attr: object, delete: bool = False
) -> NoReturn:
    """Raise what Python raises where an object has no dictionary for its attributes."""
    known = {} if attr is class_attributes.MISSING else {name: None}
    probe = type(obj.cls.__name__, (), {"__slots__": (), **known})()
    try:
        delattr(probe, name) if delete else setattr(probe, name, None)
    except AttributeError as error:
        of: dict[str, Any] = {"name": name, "obj": obj} if error.name is not None else {}
        vm.raise_error(AttributeError, str(error), **of)
    raise AssertionError(name)


def _refuse_what_c_does(vm: Interpreter, cls: type, method: str, name: str) -> None:
    """Break where C code keeps the attributes of a class (`threading.local`, in each thread)."""
    if class_attributes.class_lookup(vm, cls, method)[1] is not getattr(object, method):
        raise GraphBreakSignal(f"`{method}` of `{name}`, which C code of {cls.__name__} does")


def _property_text(obj: ObjectValue, name: str, what: str) -> str:
    return f"property '{name}' of '{obj.cls.__qualname__}' object has no {what}"


def _has_instance_dict(obj: ObjectValue) -> bool:
    return getattr(obj.cls, "__dictoffset__", 0) != 0 or not obj.fields.is_instance_dict


def _set_function_attr(vm: Interpreter, obj: FunctionValue, name: str, value: Value) -> None:
    if name == "__name__" and isinstance(value, Constant):
        obj.name = value.value
    if name in ("__code__", "__defaults__", "__kwdefaults__", "__dict__") or obj.source is not None:
        raise GraphBreakSignal(f"assignment to a function's {name}")
    if name in builtin_attributes.FUNCTION_FIELDS:
        obj.special[name] = value
    else:
        dicts.put(vm, builtin_attributes.function_fields(obj), Constant(name), value)


def _set_by_descriptor(vm: Interpreter, obj: Constant, name: str, value: Value) -> bool:
    """Has a descriptor of a module's class, written in Python, taken what is assigned, as those of
    `torch.backends.cudnn` do?"""
    cls = type(obj.value)
    _, method = class_attributes.class_lookup(vm, cls, "__setattr__")
    _, attr = class_attributes.class_lookup(vm, cls, name)
    setter = getattr(type(attr), "__set__", None)
    if isinstance(method, types.FunctionType) or not isinstance(setter, types.FunctionType):
        return False
    vm.call(vm.held(setter), [vm.held(attr), obj, value], {})
    return True


def _refuse_own_setter(vm: Interpreter, obj: Constant, name: str) -> None:
    """Break where the class of a module, or of a class, says what an assignment does:
    `torch.backends.cudnn.benchmark = True` calls a function."""
    cls = type(obj.value)
    _, setter = class_attributes.class_lookup(vm, cls, "__setattr__")
    _, attr = class_attributes.class_lookup(vm, cls, name)
    is_taken = attr is not class_attributes.MISSING and class_attributes.is_data_descriptor(
        vm, attr
    )
    if isinstance(setter, types.FunctionType) or (is_taken and name not in _NAMES_OF_CLASSES):
        raise GraphBreakSignal(f"assignment to `{name}` of {obj.describe()}, which its class does")


def _set_constant_attr(vm: Interpreter, obj: Constant, name: str, value: Value) -> None:
    real = obj.value
    is_local = id(real) in vm.session.objects.stand_ins
    if isinstance(real, types.ModuleType) and _set_by_descriptor(vm, obj, name, value):
        return
    if isinstance(real, (types.ModuleType, type)) and not is_local:
        _refuse_own_setter(vm, obj, name)
    if isinstance(real, types.ModuleType):
        vm.session.effects.write_global(real.__dict__, name, value)
        return
    if is_local and isinstance(real, type):
        vm.set_stand_in_attr(real, name, value)
        return
    if not isinstance(real, (type, types.FunctionType)):
        raise GraphBreakSignal(f"assignment to attribute `{name}` of {obj.describe()}")
    writes = vm.session.effects.attribute_writes
    if id(real) not in writes:
        writes[id(real)] = (obj, DictValue())
    dicts.put(vm, writes[id(real)][1], Constant(name), value)
    vm.class_attributes.clear()


def del_attr(vm: Interpreter, obj: Value, name: str) -> None:
    """`del obj.name`."""
    if isinstance(obj, ObjectValue):
        if is_proxy(obj.cls):
            del_attr(vm, target_of_proxy(vm, obj), name)
            return
        _, deleter = class_attributes.class_lookup(vm, obj.cls, "__delattr__")
        if type(deleter) is types.FunctionType or _is_borrowed(deleter, object.__delattr__):
            vm.call(vm.held(deleter), [obj, Constant(name)], {})
        else:
            generic_del_attr(vm, obj, name)
        return
    if isinstance(obj, FunctionValue):
        if name in builtin_attributes.FUNCTION_FIELDS:
            raise GraphBreakSignal(f"deletion of a function's {name}")
        if not dicts.delete(vm, builtin_attributes.function_fields(obj), name):
            class_attributes.missing(vm, obj, name)
        return
    if isinstance(obj, TensorValue) and builtin_attributes.SECOND_NAMES.get(name, name) == "grad":
        set_attr(vm, obj, name, NONE)  # which is what it does
        return
    raise GraphBreakSignal(f"deletion of attribute `{name}` of {obj.describe()}")


def generic_del_attr(vm: Interpreter, obj: Value, name: str) -> None:
    """`object.__delattr__(obj, name)`."""
    if not isinstance(obj, ObjectValue):
        del_attr(vm, obj, name)
        return
    _, attr = class_attributes.class_lookup(vm, obj.cls, name)
    if isinstance(attr, property):
        if attr.fdel is None:
            vm.raise_error(AttributeError, _property_text(obj, name, "deleter"))
        vm.call(vm.held(attr.fdel), [obj], {})
        return
    deleter = getattr(type(attr), "__delete__", None)
    if isinstance(deleter, types.FunctionType):
        vm.call(vm.held(deleter), [vm.held(attr), obj], {})
        return
    if type(attr) is types.MemberDescriptorType:
        if obj.slots.pop(name, None) is None or obj.source is not None:
            raise GraphBreakSignal(f"deletion of the slot `{name}`")
        return
    if type(attr) is types.GetSetDescriptorType and issubclass(obj.cls, BaseException):
        vm.raise_error(TypeError, f"{name} may not be deleted")
    if not dicts.delete(vm, obj.fields, name):
        if not _has_instance_dict(obj):
            _refuse_what_c_does(vm, obj.cls, "__delattr__", name)
            _cannot_change(vm, obj, name, attr, delete=True)
        class_attributes.missing(vm, obj, name, VERSION >= (3, 12))
