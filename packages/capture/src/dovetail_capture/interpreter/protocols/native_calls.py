"""C functions called: by a handler, folded, or recorded; their arguments are checked first."""

from __future__ import annotations

import collections
import dis
import functools
import inspect
import re
import types
from typing import TYPE_CHECKING, Any

import torch
from dovetail_prims.graphs.functional_forms import has_functional_form

from dovetail_capture.interpreter.graph.graph_values import NotAGraphArgument
from dovetail_capture.interpreter.protocols import class_attributes
from dovetail_capture.interpreter.signals import GraphBreakSignal
from dovetail_capture.interpreter.values.base import Value, is_numpy
from dovetail_capture.interpreter.values.containers import ListValue, TupleValue
from dovetail_capture.interpreter.values.tensors import TensorValue

if TYPE_CHECKING:
    from dovetail_capture.interpreter.machine import Interpreter
    from dovetail_capture.interpreter.machine.machine import Args, Kwargs


def _storages(vm: Interpreter, value: Value) -> list[Any]:
    """The memory of the tensors in an argument."""
    if isinstance(value, TensorValue):
        return [value.fake._storage]
    if isinstance(value, (ListValue, TupleValue)):
        return [storage for item in vm.iterate(value) for storage in _storages(vm, item)]
    return []


def _refuse_custom_write(vm: Interpreter, real: Any, args: Args, kwargs: Kwargs) -> None:
    """Graphs are made functional: refuse custom operators that write so that no functional twin
    can stand for them, or to memory that another argument shows, too."""
    if isinstance(real, torch._ops.OpOverloadPacket):
        names: list[str] = real.overloads()  # type: ignore[no-untyped-call]
        overloads = [getattr(real, name) for name in names]
    elif isinstance(real, torch._ops.OpOverload):
        overloads = [real]
    else:
        return
    for op in overloads:
        if op.namespace == "aten" or not op._schema.is_mutable:
            continue
        storages = [s for value in (*args, *kwargs.values()) for s in _storages(vm, value)]
        if not has_functional_form(op) or len(set(map(id, storages))) < len(storages):
            raise GraphBreakSignal(
                f"a call of `{op}`, a custom operator that writes to its arguments",
                "write a custom operator that returns the new values, and copy_ them",
            )


def call_handler(vm: Interpreter, handler: Any, real: Any, args: Args, kwargs: Kwargs) -> Value:
    """What the handler of a function gives; NotImplemented if it leaves the call as it is."""
    if kwargs and not (_reads_keywords(handler) or vm.is_operation(real)):
        args, kwargs = _by_place(real, args, kwargs)
    answer = vm.answer_of_modes(real, args, kwargs)
    if answer is not None:
        return answer  # type: ignore[no-any-return]
    name = getattr(real, "__qualname__", repr(real))
    try:
        return handler(vm, args, kwargs)  # type: ignore[no-any-return]
    except (IndexError, KeyError):  # a handler takes what it needs by place or name
        raise GraphBreakSignal(f"{name} with fewer arguments than it takes") from None
    except NotAGraphArgument as error:
        raise GraphBreakSignal(f"`{name}` called with {error}") from None


@functools.cache
def _reads_keywords(handler: Any) -> bool:
    """Does a handler of a C function look at its keyword arguments at all?"""
    code = getattr(handler, "__code__", None)
    if code is None or code.co_argcount < 3:
        return True
    name = code.co_varnames[2]
    loads = (i.argval for i in dis.get_instructions(code) if i.opname.startswith("LOAD"))
    return any(name in (read if isinstance(read, tuple) else (read,)) for read in loads)


def _by_place(real: Any, args: Args, kwargs: Kwargs) -> tuple[list[Value], dict[str, Value]]:
    """The arguments of a C function with those given by name put in their places."""
    args, kwargs = list(args), dict(kwargs)
    try:
        parameters = list(inspect.signature(real).parameters.values())
    except (TypeError, ValueError):
        parameters = []
    for parameter in parameters[len(args) :]:
        name = parameter.name
        if name not in kwargs or parameter.kind is not parameter.POSITIONAL_OR_KEYWORD:
            break
        args.append(kwargs.pop(name))
    if kwargs:
        name = getattr(real, "__qualname__", repr(real))
        raise GraphBreakSignal(f"keyword arguments of the C function {name}")
    return args, kwargs


_COUNTED = frozenset(
    {list, dict, set, frozenset, tuple, collections.OrderedDict, collections.defaultdict,
     collections.deque}
)  # fmt: skip
# Built-in functions and classes that do nothing to a None; nor do those of itertools and operator.
_PLAIN: frozenset[Any] = _COUNTED | {
    enumerate, reversed, zip, map, filter, slice, range, bool, int, float, len, abs, isinstance,
    issubclass, callable, id, hash, getattr, hasattr, sum, min, max, any, all, iter, next, sorted,
    divmod, pow, round, repr,
}  # fmt: skip
_OF_THEIR_NUMBER = re.compile(
    r"(takes|expected) (at|exactly|no|\d)|must have at least|missing required|keyword"
)


def check_arguments(vm: Interpreter, real: Any, args: Args, kwargs: Kwargs) -> None:
    """Raise the error of a call with so many arguments, or with such names, as never can be."""
    if args and type(real) in class_attributes.C_METHODS and real.__objclass__ in _COUNTED:
        cls = vm.native(args[0]).python_type()
        made_of = cls if cls in _COUNTED else real.__objclass__
        error = _wrong_arguments(real, made_of, len(args) - 1, tuple(kwargs))
    elif isinstance(real, (type, types.BuiltinFunctionType)) and (
        real in _PLAIN or real.__module__ in ("_operator", "itertools")
    ):
        error = _wrong_arguments(real, None, len(args), tuple(kwargs))
    else:
        return
    if error is not None:
        vm.raise_real(error)


@functools.cache
def _wrong_arguments(
    function: Any, cls: type | None, count: int, names: tuple[str, ...]
) -> TypeError | None:
    """The error of a function that takes no so many arguments, or none of these names: Python is
    asked, with Nones and, for a container's method, an empty container of class `cls`."""
    called = function
    if cls is not None:
        made, name = cls(), function.__name__
        inherited = getattr(cls, name, None) is function  # then errors name the container's class
        called = getattr(made, name) if inherited else functools.partial(function, made)
    try:
        called(*[None] * count, **dict.fromkeys(names))
    except TypeError as error:
        if _OF_THEIR_NUMBER.search(str(error)):
            return error.with_traceback(None)
    except Exception:
        return None  # it took them
    return None


def call_native(vm: Interpreter, real: Any, args: Args, kwargs: Kwargs) -> Value:
    """Call a C function or method descriptor, or another callable object known at capture."""
    try:
        handler = vm.handlers.get(real)
    except TypeError:  # unhashable callable
        handler = None
    if handler is not None:
        check_arguments(vm, real, args, kwargs)
        result = call_handler(vm, handler, real, args, kwargs)
        if result is not NotImplemented:
            return result
    if vm.is_operation(real):
        _refuse_custom_write(vm, real, args, kwargs)
        try:
            kind = type(real)
            if args and isinstance(args[0], TensorValue) and kind in class_attributes.C_METHODS:
                return vm.record("call_method", real.__name__, args, kwargs)
            return vm.record("call_function", real, args, kwargs)
        except NotAGraphArgument as error:
            raise GraphBreakSignal(f"`{real.__name__}` called with {error}") from None
    if vm.is_pure(real) or (is_numpy(type(real), "ufunc") and "out" not in kwargs):
        return vm.fold(real, args, kwargs)
    if isinstance(real, types.MethodWrapperType) and real.__name__ == "__get__":
        owner: Any = real.__self__
        if isinstance(owner, types.GetSetDescriptorType) and isinstance(args[0], TensorValue):
            return vm.get_attr(args[0], owner.__name__)  # `torch.Tensor.shape.__get__(tensor)`
        if type(owner) in class_attributes.C_METHODS:  # `object.__setattr__.__get__(self)`
            return call_native(vm, type(owner).__get__, [vm.held(owner), *args], kwargs)
    if isinstance(real, types.MethodWrapperType) and real.__name__ == "__call__":
        return vm.call(vm.held(real.__self__), args, kwargs)
    _, method = class_attributes.class_lookup(vm, type(real), "__call__")
    if isinstance(method, types.FunctionType):
        return vm.call(vm.held(method), [vm.held(real), *args], kwargs)
    name = getattr(real, "__qualname__", None) or repr(real)
    if "pybind11" in name:
        name = name.rpartition(".")[2]
    module = getattr(real, "__module__", None) or getattr(
        getattr(real, "__objclass__", None), "__module__", "?"
    )
    raise GraphBreakSignal(
        f"a call of the C function {module}.{name}", "call it outside of the compiled function"
    )
