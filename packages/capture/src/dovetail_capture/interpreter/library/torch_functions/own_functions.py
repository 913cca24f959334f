"""Tensors of the program's own classes, most of which have a `__torch_function__`.

A graph has plain tensors only. A value remembers the class that the program sees; what that class's
`__torch_function__` makes of an operation is captured with the program (`function_modes` finds out
what it is given), and in the end operations on plain tensors are recorded. `Tensor`'s own answer to
an operation, with which most classes end, is given here.
"""

from __future__ import annotations

import operator
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from dovetail_prims.wrappers import is_wrapper_type
from torch.overrides import get_default_nowrap_functions

from dovetail_capture.interpreter.library.torch_functions.made_tensors import parameter
from dovetail_capture.interpreter.machine.machine import PASS, Args, Handler, Interpreter, Kwargs
from dovetail_capture.interpreter.signals import GraphBreakSignal
from dovetail_capture.interpreter.values.base import (
    NONE,
    Constant,
    Value,
    boolean,
    is_not_implemented,
)
from dovetail_capture.interpreter.values.computed_sources import is_asked
from dovetail_capture.interpreter.values.containers import DictValue, ListValue, TupleValue
from dovetail_capture.interpreter.values.objects import ObjectValue
from dovetail_capture.interpreter.values.tensors import TensorValue

_C: Any = torch._C


def asked_classes(vm: Interpreter, args: Any) -> list[type]:
    """The classes that are asked about an operation with these arguments, in torch's order: left to
    right, a subclass before its bases."""
    found: list[type] = []
    if vm.session.modes.own_functions and not vm.session.modes.functions_off:
        _gather(args, found)
    return found


def _asked_objects(vm: Interpreter, args: Any) -> list[type]:
    """As `asked_classes`, with the classes of objects that are no tensors among them."""
    found: list[type] = []
    if not vm.session.modes.functions_off:
        _gather(args, found, _answers)
    return found


def _answers(value: Any) -> bool:
    if isinstance(value, ObjectValue):
        mro = type.__dict__["__mro__"].__get__(value.cls)
        answers = (vars(base).get("__torch_function__") for base in mro)
        return isinstance(next(filter(None, answers), None), classmethod)
    return isinstance(value, TensorValue) and value.overrides


def _is_own_tensor(value: Any) -> bool:
    return isinstance(value, TensorValue) and value.overrides


def _gather(
    values: Any, found: list[type], is_asked: Callable[[Any], bool] = _is_own_tensor
) -> None:
    for value in values:
        if isinstance(value, (TupleValue, ListValue)):
            _gather(value.items, found, is_asked)
        elif is_asked(value) and value.cls not in found:
            bases = [place for place, cls in enumerate(found) if issubclass(value.cls, cls)]
            found.insert(bases[0] if bases else len(found), value.cls)


def ask_objects(vm: Interpreter, function: Any, args: Args, kwargs: Kwargs) -> Value | None:
    """What an object that is no tensor makes of an operation of torch's that it is given to; None
    if none is asked. (A Python function of torch's asks by itself.)"""
    if not isinstance(function, (types.BuiltinFunctionType, types.MethodDescriptorType)):
        return None
    if getattr(function, "__module__", None) == operator.__name__:
        return None
    classes = _asked_objects(vm, [*args, *kwargs.values()])
    if not classes:
        return None
    given = TupleValue([vm.held(cls) for cls in classes])
    return ask(vm, classes, [vm.held(function), given, TupleValue(args), _as_dict(kwargs)])


def _as_dict(kwargs: Kwargs) -> DictValue:
    named = DictValue()
    named.entries = {name: (Constant(name), value) for name, value in kwargs.items()}
    return named


def ask(vm: Interpreter, classes: list[type], call: Args) -> Value:
    """What the first of the classes that answers makes of `call`: function, types, arguments."""
    for cls in classes:
        result = vm.call(vm.get_attr(vm.held(cls), "__torch_function__"), list(call), {})
        if not is_not_implemented(result):
            return result
    raise GraphBreakSignal("an operation to which no `__torch_function__` has an answer")


def ask_about(vm: Interpreter, function: Any, args: Args) -> Value | None:
    """What classes make of a Python function of torch's; None if none of them is asked."""
    classes = asked_classes(vm, args)
    if not classes:
        return None
    given: list[Value] = [vm.held(cls) for cls in classes]
    return ask(vm, classes, [vm.held(function), TupleValue(given), TupleValue(args), DictValue()])


@contextmanager
def switched_off(vm: Interpreter) -> Iterator[None]:
    """While the program is in a `DisableTorchFunctionSubclass` block."""
    vm.session.modes.functions_off.append(vm.frames[0].steps)
    try:
        yield
    finally:
        vm.session.modes.functions_off.pop()


def default_function(
    vm: Interpreter, cls: Value, func: Value, classes: Value, args: Value = NONE,
    kwargs: Value = NONE,
) -> Value:  # fmt: skip
    """`torch.Tensor.__torch_function__`: the operation, its results of the class `cls`."""
    wanted = vm.as_python(cls)
    if not all(issubclass(wanted, vm.as_python(one)) for one in vm.iterate(classes)):
        return Constant(NotImplemented)
    given = [] if args is NONE else list(vm.iterate(args))
    with switched_off(vm):
        result = vm.call(func, given, _named(vm, kwargs))
    if vm.as_python(func) in get_default_nowrap_functions():
        return result
    return _converted(vm, result, wanted)


def _named(vm: Interpreter, kwargs: Value) -> Kwargs:
    if not isinstance(kwargs, DictValue):
        return {}
    return {vm.as_python(key): vm.getitem(kwargs, key) for key in vm.iterate(kwargs)}


def _converted(vm: Interpreter, result: Value, cls: type) -> Value:
    if isinstance(result, TensorValue):
        done = cls is torch.Tensor or issubclass(result.cls, cls)
        return result if done else of_class(vm, result, cls)
    if isinstance(result, TupleValue) and cls is not torch.Tensor:
        items = [_converted(vm, item, cls) for item in vm.iterate(result)]
        return TupleValue(items, result.cls)
    if isinstance(result, ListValue) and cls is not torch.Tensor:
        return ListValue([_converted(vm, item, cls) for item in vm.iterate(result)])
    return result


def of_class(vm: Interpreter, tensor: TensorValue, cls: type) -> TensorValue:
    """`tensor.as_subclass(cls)`: a tensor of its own over the same memory."""
    if vm.session.exports and cls is not torch.Tensor:
        raise GraphBreakSignal(f"a {cls.__name__} made in what is exported")
    alias: Any = torch.ops.aten.alias.default
    made = vm.session.recorder.record("call_function", alias, [tensor], {})
    assert isinstance(made, TensorValue)
    made.cls = cls
    made.overrides = is_asked(cls)
    vm.session.modes.own_functions |= made.overrides
    return made


def check_input_stays(target: Any, args: Args) -> None:
    """What changes the sizes of an input, or where its data lies, would change the plain tensor of
    the graph alone."""
    if target in _RESHAPES and isinstance(args[0], TensorValue):
        cls, passed = args[0].cls, args[0].source is not None
        if passed and cls not in (torch.Tensor, torch.nn.Parameter) and not is_wrapper_type(cls):
            raise GraphBreakSignal(f"`{target}` of a {args[0].cls.__name__} that was passed in")


_RESHAPES = frozenset({
    "resize_", "resize_as_", "set_", "t_", "transpose_", "squeeze_", "unsqueeze_", "swapaxes_",
    "swapdims_", "as_strided_", "detach_", "requires_grad_", "rename_",
})  # fmt: skip


# --- handlers -------------------------------------------------------------------------------------


def _default(vm: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    names = ("cls", "func", "types", "args", "kwargs")
    given = dict(zip(names, args, strict=False)) | kwargs
    given["classes"] = given.pop("types")
    return default_function(vm, **given)


def as_subclass(vm: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    """`tensor.as_subclass(cls)`."""
    tensor, cls = args[0], vm.as_python(args[1] if len(args) > 1 else kwargs["cls"])
    known = isinstance(cls, type) and issubclass(cls, torch.Tensor)
    if not known or not isinstance(tensor, TensorValue):
        return PASS
    plain = cls.__torch_dispatch__ is torch.Tensor.__torch_dispatch__
    if not plain or issubclass(cls, (torch.nn.Parameter, torch.nn.Buffer)):
        raise GraphBreakSignal(f"a tensor as one of the class {cls.__name__}")
    return of_class(vm, tensor, cls)


def _make_subclass(vm: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    """`torch.Tensor._make_subclass(cls, tensor)`: of the tensor, detached. A parameter is made with
    `requires_grad`, too."""
    if len(args) == 3 and not kwargs and vm.as_python(args[0]) is torch.nn.Parameter:
        return parameter(vm, args[1], vm.truth(args[2]))
    if len(args) != 2 or kwargs:
        raise GraphBreakSignal("_make_subclass with options")
    with switched_off(vm):
        detached = vm.call_method(args[1], "detach", [])
    return as_subclass(vm, [detached, args[0]], {})


def _new(vm: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    """`torch.Tensor.__new__(cls, tensor)`: what `cls(tensor)` makes, if its class has no own."""
    cls: Any = vm.as_python(args[0]) if len(args) == 2 and not kwargs else None
    if not isinstance(cls, type) or not issubclass(cls, torch.Tensor) or is_wrapper_type(cls):
        return PASS
    if not isinstance(args[1], TensorValue):
        return PASS
    if cls is torch.Tensor or issubclass(cls, (torch.nn.Parameter, torch.nn.Buffer)):
        return PASS
    return vm.tensor_of_class(args[1], cls)


def _make_off(vm: Interpreter, cls: type, args: Args, kwargs: Kwargs) -> Value:
    made = ObjectValue(cls)
    made.base_new = cls
    return made


def _enter_off(vm: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    vm.session.modes.functions_off.append(vm.frames[0].steps)
    return NONE


def _leave_off(vm: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    if not vm.session.modes.functions_off:
        raise GraphBreakSignal("the end of a block that was entered before the graph")
    vm.session.modes.functions_off.pop()
    return boolean(False)


def _has_own(vm: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    """`has_torch_function(...)`, which Python code of torch asks first."""
    return boolean(bool(_asked_objects(vm, args)))


def _handle(vm: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    """`handle_torch_function(function, relevant, *args, **kwargs)`."""
    function, relevant, *given = args
    classes = _asked_objects(vm, [relevant])
    if not classes:
        return PASS
    named = _as_dict(kwargs)
    asked = [vm.held(cls) for cls in classes]
    if any(isinstance(v, TensorValue) and v.cls is torch.Tensor for v in vm.iterate(relevant)):
        asked.append(vm.held(torch.Tensor))
    return ask(vm, classes, [function, TupleValue(asked), TupleValue(given), named])


_OFF: Any = _C.DisableTorchFunctionSubclass

HANDLERS: dict[Any, Handler] = {
    torch.Tensor.__torch_function__.__func__: _default,  # type: ignore[attr-defined]
    torch.Tensor.as_subclass: as_subclass,
    torch.Tensor._make_subclass: _make_subclass,
    torch.Tensor.__new__: _new,
    _OFF.__enter__: _enter_off,
    _OFF.__exit__: _leave_off,
    _C._has_torch_function: _has_own,
    _C._has_torch_function_unary: _has_own,
    _C._has_torch_function_variadic: _has_own,
    torch.overrides.has_torch_function: _has_own,
    torch.overrides.has_torch_function_unary: _has_own,
    torch.overrides.has_torch_function_variadic: _has_own,
    torch.overrides.handle_torch_function: _handle,
    _C._is_torch_function_enabled: lambda vm, args, kw: boolean(not vm.session.modes.functions_off),
}
NEW_HANDLERS: dict[Any, Any] = {_OFF: _make_off}
