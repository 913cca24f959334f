"""The call protocol: inlining Python functions, instantiating classes, calling C functions."""

from __future__ import annotations

import collections
import dis
import functools
import inspect
import logging
import re
import types
import typing
from collections.abc import Hashable
from typing import TYPE_CHECKING, Any, NoReturn

import torch
from dovetail_prims.functional_twins import has_functional_twin
from dovetail_prims.wrappers import is_wrapper_type
from torch import nn

from dovetail_capture.interpreter import cached_calls
from dovetail_capture.interpreter.frame import Frame
from dovetail_capture.interpreter.protocols import attributes, dicts
from dovetail_capture.interpreter.protocols.constants import UNKNOWN
from dovetail_capture.interpreter.recorder import NotAGraphArgument
from dovetail_capture.interpreter.signals import GraphBreakSignal
from dovetail_capture.interpreter.values.base import NONE, Constant, Lazy, Value
from dovetail_capture.interpreter.values.containers import (
    DictValue,
    ListValue,
    TupleValue,
    hash_key,
)
from dovetail_capture.interpreter.values.functions import (
    BoundMethod,
    CellValue,
    FunctionValue,
    NativeMethod,
    TransformValue,
)
from dovetail_capture.interpreter.values.objects import ObjectValue
from dovetail_capture.interpreter.values.tensors import TensorValue
from dovetail_capture.interpreter.wrap import EQUALITY_TYPES, is_numpy
from dovetail_capture.marks import (
    is_constant_result,
    reason_of,
    substitute_of,
    without_others_marks,
)

if TYPE_CHECKING:
    from dovetail_capture.interpreter.machine import Interpreter

_VARARGS, _VARKEYWORDS = inspect.CO_VARARGS, inspect.CO_VARKEYWORDS
_ASYNC = inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR | inspect.CO_ITERABLE_COROUTINE


def _graph_break(vm: Interpreter, args: list[Value], kwargs: dict[str, Value]) -> Value:
    message = vm.as_python(args[0] if args else kwargs.get("msg", Constant("")))
    raise GraphBreakSignal(f"graph_break() was called{': ' + message if message else ''}")


def _is_compiling(vm: Interpreter, args: list[Value], kwargs: dict[str, Value]) -> Value:
    return vm.call(Constant(torch.compiler.is_compiling), args, kwargs)


# Functions of this package's own API, which imports the interpreter and so cannot be imported here.
def _breaks_are_errors(vm: Interpreter, args: list[Value], kwargs: dict[str, Value]) -> Value:
    vm.session.error_flags.append(vm.truth(vm.get_attr(args[0], "flag")))
    return NONE


def _breaks_as_before(vm: Interpreter, args: list[Value], kwargs: dict[str, Value]) -> Value:
    vm.session.error_flags.pop()
    return NONE


_SCRIPTED = "_torchdynamo_inline"  # what torch.jit calls the Python function behind a script

_OWN_API: dict[tuple[str, str], Any] = {
    ("dovetail_capture.api", "graph_break"): _graph_break,
    ("dovetail_capture.api", "is_compiling"): _is_compiling,
    ("dovetail_capture.stance", "error_on_graph_break.__enter__"): _breaks_are_errors,
    ("dovetail_capture.stance", "error_on_graph_break.__exit__"): _breaks_as_before,
    # Once torch.compile has run, every module's __init__ also notes the module's age for it.
    ("torch._dynamo.mutation_guard", "GenerationTracker.tag"): lambda vm, args, kw: Constant(None),
    ("torch._dynamo.mutation_guard", "_GenerationTracker.tag"): lambda vm, args, kw: Constant(None),
}


def call(vm: Interpreter, fn: Value, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """`fn(*args, **kwargs)`."""
    cls = fn.__class__
    if cls is BoundMethod:
        return call(vm, fn.function, [fn.receiver, *args], kwargs)  # type: ignore[attr-defined]
    if cls is Constant:
        real = fn.value  # type: ignore[attr-defined]
        kind = type(real)
        substitute = substitute_of(real)
        if substitute is not None:
            return call(vm, vm.held(substitute), args, kwargs)
        if kind is types.FunctionType:
            return call_function(vm, fn, real, args, kwargs)  # type: ignore[arg-type]
        if isinstance(real, type):
            return instantiate(vm, real, args, kwargs, fn)
        if kind is functools._lru_cache_wrapper:
            if args and issubclass(args[0].python_type(), logging.Logger):
                # "Warn once": the cache is what makes it once, so the cached call itself is made.
                vm.session.calls_for_effect.append((real, list(args), dict(kwargs)))
                return NONE
            return _call_cached(vm, real, args, kwargs)
        if kind is types.MethodType:
            bound = [vm.held(real.__self__), *args]
            return call(vm, vm.held(real.__func__), bound, kwargs)
        if callable(real):
            return call_native(vm, real, args, kwargs)
        return vm.raise_error(TypeError, f"'{kind.__name__}' object is not callable")
    if cls is NativeMethod:
        receiver = fn.receiver  # type: ignore[attr-defined]
        substitute = substitute_of(fn.descriptor)  # type: ignore[attr-defined]
        if substitute is not None:
            return call(vm, vm.held(substitute), [receiver, *args], kwargs)
        return call_native(vm, fn.descriptor, [receiver, *args], kwargs)  # type: ignore[attr-defined]
    if cls is FunctionValue:
        return _call_made_function(vm, fn, args, kwargs)  # type: ignore[arg-type]
    if cls is ObjectValue:
        owner, method = attributes.class_lookup(vm, fn.cls, "__call__")  # type: ignore[attr-defined]
        if method is attributes.MISSING:
            name = fn.python_type().__name__
            return vm.raise_error(TypeError, f"'{name}' object is not callable")
        inner = _inner_function(vm, fn)  # type: ignore[arg-type]
        if inner is not None:
            return call(vm, inner, args, kwargs)
        known = fn.python_type().__call__
        handler = vm.handlers.get(known) if isinstance(known, Hashable) else None
        if handler is not None:
            return handler(vm, [fn, *args], kwargs)
        return call(
            vm, attributes.bind_to_instance(vm, fn, owner, "__call__", method), args, kwargs
        )
    if cls is TransformValue:
        return vm.call_transformed(fn, args, kwargs)  # type: ignore[arg-type]
    raise GraphBreakSignal(f"a call of {fn.describe()}")


def _call_cached(vm: Interpreter, real: Any, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """A call through `functools.cache`: interpreted once for equal arguments (`cached_calls`)."""
    parts = [*args, *kwargs.values()]
    typed = real.cache_parameters()["typed"]
    kinds = tuple(part.python_type() for part in parts) if typed else ()
    key = (id(real), len(args), *kwargs, *map(hash_key, parts), *kinds)
    known = vm.session.cached_calls.get(key)
    if known is None:
        name, before = getattr(real, "__qualname__", repr(real)), cached_calls.changes(vm.session)
        result = call(vm, vm.held(real.__wrapped__), args, kwargs)
        if cached_calls.changes(vm.session) != before:
            raise GraphBreakSignal(f"a call of `{name}`, which is cached and changes something")
        known = cached_calls.keep(name, result, vm.frames[0].steps)
        if known is None:
            raise GraphBreakSignal(f"an object that `{name}` made and keeps in its cache")
        if known.parts and all(isinstance(part, (Constant, TupleValue)) for part in parts):
            given = [vm.as_python(part) for part in parts]
            if UNKNOWN not in given:  # then it is Python's own object, which others may change
                named = dict(zip(kwargs, given[len(args) :], strict=True))
                known = cached_calls.Kept(name, vm.held(real(*given[: len(args)], **named)), (), 0)
        vm.session.cached_calls[key] = known
    return known.result


def _inner_function(vm: Interpreter, fn: ObjectValue) -> Value | None:
    """The function inside one of our own wrappers (`optimize`, `disable`), already in capture, or
    the one that a TorchScript function was made from."""
    if fn.cls is torch.jit.ScriptFunction:
        if fn.source is None or not hasattr(fn.real, _SCRIPTED):
            raise GraphBreakSignal(
                "a call of a TorchScript function whose Python source is not there",
                "call the Python function in its stead",
            )
        source = vm.session.sources.attr(fn.source, _SCRIPTED)
        return vm.wrap(getattr(fn.real, _SCRIPTED), source)
    if issubclass(fn.cls, torch.jit.ScriptModule):
        raise GraphBreakSignal(
            f"a call of a TorchScript module, a {fn.cls.__name__}",
            "compile the module that it was made from",
        )
    if fn.cls.__module__ != "dovetail_capture._frame_hook" or fn.source is None:
        return None
    if fn.real.context is None:
        reason = reason_of(fn.real)
        raise GraphBreakSignal(
            f"a call of a function that is disabled for capture{reason and ': '}{reason}"
        )
    source = vm.session.sources.attr(fn.source, "function")
    return vm.wrap(fn.real.function, source)


def call_function(
    vm: Interpreter,
    fn: Constant,
    real: types.FunctionType,
    args: list[Value],
    kwargs: dict[str, Value],
) -> Value:
    """Call a pre-existing Python function: a library handler, a graph node, or inlined."""
    real = without_others_marks(real)
    handler = vm.handlers.get(real)
    if handler is not None:
        result = _handle(vm, handler, real, args, kwargs)
        if result is not NotImplemented:
            return result
    if vm.is_pure(real, args) and all(
        vm.as_python(arg) is not UNKNOWN for arg in (*args, *kwargs.values())
    ):
        return vm.fold(real, args, kwargs)
    options = vm.options
    if options is not None:
        if options.is_disabled(real):
            reason = reason_of(real)
            raise GraphBreakSignal(
                f"a call of `{real.__qualname__}`, which is disabled{reason and ': '}{reason}",
                "call it outside of the compiled function",
            )
        if options.is_allowed_in_graph(real):
            return _record_whole(vm, real, args, kwargs)
    if is_constant_result(real):
        return _constant_result(vm, real, args, kwargs)
    if vm.is_operation(real):
        try:
            return vm.record("call_function", real, args, kwargs)
        except NotAGraphArgument:
            pass  # say a function among the arguments: its body may still be captured
    return inline(vm, real, args, kwargs)


def _constant_result(
    vm: Interpreter, real: Any, args: list[Value], kwargs: dict[str, Value]
) -> Value:
    """Run a function whose result the user calls constant; nothing guards what it gives."""
    known = [_real_object(vm, arg) for arg in args]
    named = {name: _real_object(vm, arg) for name, arg in kwargs.items()}
    try:
        return vm.held(real(*known, **named))
    except Exception as error:
        return vm.raise_real(error)


def _real_object(vm: Interpreter, value: Value) -> Any:
    real = value.real if isinstance(value, (ObjectValue, TensorValue)) else vm.as_python(value)
    if real is UNKNOWN or (real is None and not isinstance(value, Constant)):
        raise GraphBreakSignal(f"a function assumed constant, called with {value.describe()}")
    return real


def _record_whole(vm: Interpreter, real: Any, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """One node for a function that the user allows in the graph."""
    try:
        return vm.record("call_function", real, args, kwargs)
    except NotAGraphArgument as error:
        raise GraphBreakSignal(
            f"`{real.__qualname__}`, allowed in the graph, is called with {error}"
        ) from None


def inline(
    vm: Interpreter, real: types.FunctionType, args: list[Value], kwargs: dict[str, Value]
) -> Value:
    """Interpret a pre-existing Python function's body."""
    code = real.__code__
    if code.co_flags & _ASYNC:
        raise GraphBreakSignal(f"a call of the coroutine function {code.co_qualname}")
    by_code = vm.code_handlers.get(code)
    if by_code is not None:
        return by_code(vm, real, args, kwargs)  # type: ignore[no-any-return]
    own = _OWN_API.get((real.__module__, code.co_qualname))
    if own is not None:
        return own(vm, args, kwargs)  # type: ignore[no-any-return]
    sources = vm.session.sources
    known = vm.function_defaults.get(real)
    if known is None:
        known = vm.function_defaults[real] = _defaults(vm, real)
    positional, keyword = known
    slots = bind(vm, code, positional, keyword, args, kwargs)
    closure: tuple[CellValue, ...] = ()
    if real.__closure__:
        closure = tuple(
            vm.wrap(cell, sources.held(cell, f"{code.co_qualname}.{name}"))  # type: ignore[misc]
            for name, cell in zip(code.co_freevars, real.__closure__, strict=True)
        )
    return vm.run_frame(Frame(vm, code, real.__globals__, slots, closure))


def _defaults(vm: Interpreter, real: types.FunctionType) -> tuple[list[Any], dict[str, Any]]:
    """Default values, positional and keyword. A guard pins the tuple of positional ones, so that
    plain ones among them need none of their own."""
    sources = vm.session.sources
    name = real.__code__.co_qualname
    positional: list[Any] = []
    if real.__defaults__:
        base = sources.held(real.__defaults__, f"{name}.__defaults__")
        for index, item in enumerate(real.__defaults__):
            plain = isinstance(item, EQUALITY_TYPES)
            positional.append(Constant(item) if plain else Lazy(item, sources.item(base, index)))
    keyword: dict[str, Any] = {}
    if real.__kwdefaults__:
        base = sources.held(real.__kwdefaults__, f"{name}.__kwdefaults__")
        for key, item in real.__kwdefaults__.items():
            keyword[key] = Lazy(item, sources.item(base, key))
    return positional, keyword


def _call_made_function(
    vm: Interpreter, fn: FunctionValue, args: list[Value], kwargs: dict[str, Value]
) -> Value:
    if fn.code.co_flags & _ASYNC:
        raise GraphBreakSignal(f"a call of the coroutine function {fn.code.co_qualname}")
    slots = bind(vm, fn.code, fn.defaults, keyword_defaults(vm, fn), args, kwargs)
    return vm.run_frame(Frame(vm, fn.code, fn.globals_, slots, fn.closure))


def keyword_defaults(vm: Interpreter, fn: FunctionValue) -> dict[str, Any]:
    """The defaults of keyword-only arguments."""
    if fn.kwdefaults is None:
        return {}
    return {key: item for key, (_, item) in dicts.materialise(vm, fn.kwdefaults).items()}


def bind(
    vm: Interpreter,
    code: types.CodeType,
    defaults: Any,
    kwdefaults: dict[str, Any],
    args: list[Value],
    kwargs: dict[str, Value],
) -> list[Any]:
    """Values of the argument slots, in `co_varnames` order, as CPython binds them."""
    count, keyword_only = code.co_argcount, code.co_kwonlyargcount
    flags = code.co_flags
    if len(args) == count and not kwargs and not keyword_only and not flags & 12:
        return list(args)
    names = code.co_varnames
    slots: list[Any] = [None] * (count + keyword_only)
    given = min(len(args), count)
    slots[:given] = args[:given]
    extra = args[count:]
    if extra and not flags & _VARARGS:
        _binding_error(vm, code, defaults, kwdefaults, args, kwargs)
    rest: dict[str, Value] = {}
    if kwargs:
        positions = {names[i]: i for i in range(code.co_posonlyargcount, count + keyword_only)}
        for key, value in kwargs.items():
            position = positions.get(key)
            if position is None:
                if not flags & _VARKEYWORDS:
                    _binding_error(vm, code, defaults, kwdefaults, args, kwargs)
                rest[key] = value
            elif slots[position] is not None:
                _binding_error(vm, code, defaults, kwdefaults, args, kwargs)
            else:
                slots[position] = value
    first_default = count - len(defaults)
    for position in range(given, count):
        if slots[position] is None:
            if position < first_default:
                _binding_error(vm, code, defaults, kwdefaults, args, kwargs)
            slots[position] = attributes.resolve(vm, defaults[position - first_default])
    for position in range(count, count + keyword_only):
        if slots[position] is None:
            key = names[position]
            if key not in kwdefaults:
                _binding_error(vm, code, defaults, kwdefaults, args, kwargs)
            slots[position] = attributes.resolve(vm, kwdefaults[key])
    if flags & _VARARGS:
        slots.append(TupleValue(extra))
    if flags & _VARKEYWORDS:
        dictionary = DictValue()
        dictionary.entries = {key: (Constant(key), value) for key, value in rest.items()}
        slots.append(dictionary)
    return slots


def _binding_error(
    vm: Interpreter,
    code: types.CodeType,
    defaults: Any,
    kwdefaults: dict[str, Any],
    args: list[Value],
    kwargs: dict[str, Value],
) -> NoReturn:
    """Raise the TypeError of a call that does not fit the signature, in CPython's words: it is
    made by such a call of an empty function of this signature, which fails before it runs."""
    cells = tuple(types.CellType() for _ in code.co_freevars)
    function = types.FunctionType(code, {}, code.co_name, (None,) * len(defaults), cells)
    function.__kwdefaults__ = dict.fromkeys(kwdefaults)
    function.__qualname__ = code.co_qualname
    try:
        inspect.signature(function).bind(*args, **kwargs)
    except TypeError:
        try:
            function(*args, **kwargs)
        except TypeError as error:
            vm.raise_real(error)
    raise AssertionError(f"{code.co_qualname} does take these arguments")


# --- classes -------------------------------------------------------------------------------------


def instantiate(
    vm: Interpreter,
    cls: type,
    args: list[Value],
    kwargs: dict[str, Value],
    class_value: Value | None = None,
    by_type: bool = False,
) -> Value:
    """`cls(*args, **kwargs)`; `by_type`: whatever its metaclass's `__call__` does."""
    handler = vm.handlers.get(cls)
    if handler is not None:
        _check_arguments(vm, cls, args, kwargs)
        result = _handle(vm, handler, cls, args, kwargs)
        if result is not NotImplemented:
            return result
    if typing.is_typeddict(cls):
        return instantiate(vm, dict, args, kwargs)
    if cls in vm.pure_classes or is_numpy(cls, "generic"):
        return vm.fold(cls, args, kwargs)
    class_value = class_value or vm.held(cls)
    meta_call = attributes.class_lookup(vm, type(cls), "__call__")[1]
    if not by_type and isinstance(meta_call, types.FunctionType):
        handler = vm.handlers.get(meta_call)
        if handler is not None:
            return handler(vm, [class_value, *args], kwargs)
        return inline(vm, meta_call, [class_value, *args], kwargs)
    owner, new = attributes.class_lookup(vm, cls, "__new__")
    if isinstance(new, staticmethod):
        new = new.__func__
    if issubclass(cls, torch.Tensor):
        plain = not is_wrapper_type(cls) and not issubclass(cls, (nn.Parameter, nn.Buffer))
        own_new = isinstance(new, types.FunctionType)
        given = len(args) == 1 and isinstance(args[0], TensorValue) and not kwargs
        if not plain or not (own_new or given):
            raise GraphBreakSignal(
                f"creation of a {cls.__name__}", "create it before the compiled function runs"
            )
        if not own_new:
            instance = vm.tensor_of_class(args[0], cls)
        else:
            instance = call(vm, vm.held(new), [class_value, *args], kwargs)
    elif isinstance(new, types.FunctionType):
        instance = call(vm, vm.held(new), [class_value, *args], kwargs)
    else:
        instance = native_new(vm, owner, cls, args, kwargs)
    if cls not in instance.python_type().__mro__:  # a metaclass's __subclasscheck__ is not asked
        return instance
    init_owner, init = attributes.class_lookup(vm, cls, "__init__")
    if isinstance(init, types.FunctionType):
        call(vm, vm.wrap_class_attr(init_owner, "__init__", init), [instance, *args], kwargs)
    elif init is not object.__init__:
        call_native(vm, init, [instance, *args], kwargs)
    elif (args or kwargs) and new is object.__new__:
        vm.raise_error(TypeError, f"{cls.__name__}() takes no arguments")
    return instance


def native_new(
    vm: Interpreter, owner: type, cls: type, args: list[Value], kwargs: dict[str, Value]
) -> Value:
    """`owner.__new__(cls, *args)` where `owner` is a C class."""
    if owner is object:
        if getattr(cls, "__abstractmethods__", None):
            try:
                object.__new__(cls)
            except TypeError as error:
                vm.raise_real(error)
        return ObjectValue(cls)
    maker = vm.new_handlers.get(owner)
    if maker is not None:
        return maker(vm, cls, args, kwargs)  # type: ignore[no-any-return]
    if issubclass(owner, BaseException):
        value = ObjectValue(cls)
        value.base_new = owner
        value.slots["args"] = TupleValue(args)
        return value
    raise GraphBreakSignal(f"creation of a {cls.__module__}.{cls.__qualname__}")


# --- C functions ---------------------------------------------------------------------------------


def _storages(vm: Interpreter, value: Value) -> list[Any]:
    """The memory of the tensors in an argument."""
    if isinstance(value, TensorValue):
        return [value.fake._storage]
    if isinstance(value, (ListValue, TupleValue)):
        return [storage for item in vm.iterate(value) for storage in _storages(vm, item)]
    return []


def _refuse_custom_write(
    vm: Interpreter, real: Any, args: list[Value], kwargs: dict[str, Value]
) -> None:
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
        if not has_functional_twin(op) or len(set(map(id, storages))) < len(storages):
            raise GraphBreakSignal(
                f"a call of `{op}`, a custom operator that writes to its arguments",
                "write a custom operator that returns the new values, and copy_ them",
            )


def _handle(
    vm: Interpreter, handler: Any, real: Any, args: list[Value], kwargs: dict[str, Value]
) -> Value:
    """What the handler of a function gives; NotImplemented if it leaves the call as it is."""
    if kwargs and not (_reads_keywords(handler) or vm.is_operation(real)):
        args, kwargs = _by_place(real, args, kwargs)
    answer = vm.answer_of_modes(real, args, kwargs)
    if answer is not None:
        return answer  # type: ignore[no-any-return]
    try:
        return handler(vm, args, kwargs)  # type: ignore[no-any-return]
    except (IndexError, KeyError):  # a handler takes what it needs by place or name
        name = getattr(real, "__qualname__", repr(real))
        raise GraphBreakSignal(f"{name} with fewer arguments than it takes") from None


@functools.cache
def _reads_keywords(handler: Any) -> bool:
    """Does a handler of a C function look at its keyword arguments at all?"""
    code = getattr(handler, "__code__", None)
    if code is None or code.co_argcount < 3:
        return True
    name = code.co_varnames[2]
    for instruction in dis.get_instructions(code):
        read = instruction.argval
        if instruction.opname.startswith("LOAD") and (read == name or name in _pair(read)):
            return True
    return False


def _pair(read: Any) -> tuple[Any, ...]:
    return read if isinstance(read, tuple) else ()


def _by_place(
    real: Any, args: list[Value], kwargs: dict[str, Value]
) -> tuple[list[Value], dict[str, Value]]:
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


def _check_arguments(
    vm: Interpreter, real: Any, args: list[Value], kwargs: dict[str, Value]
) -> None:
    """Raise the error of a call with so many arguments, or with such names, as never can be."""
    if args and type(real) in attributes.C_METHODS and real.__objclass__ in _COUNTED:
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


def call_native(vm: Interpreter, real: Any, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """Call a C function or method descriptor, or another callable object known at capture."""
    try:
        handler = vm.handlers.get(real)
    except TypeError:  # unhashable callable
        handler = None
    if handler is not None:
        _check_arguments(vm, real, args, kwargs)
        result = _handle(vm, handler, real, args, kwargs)
        if result is not NotImplemented:
            return result
    if vm.is_operation(real):
        _refuse_custom_write(vm, real, args, kwargs)
        try:
            kind = type(real)
            if args and isinstance(args[0], TensorValue) and kind in attributes.C_METHODS:
                return vm.record("call_method", real.__name__, args, kwargs)
            return vm.record("call_function", real, args, kwargs)
        except NotAGraphArgument as error:
            raise GraphBreakSignal(f"`{real.__name__}` called with {error}") from None
    if vm.is_pure(real, args) or (is_numpy(type(real), "ufunc") and "out" not in kwargs):
        return vm.fold(real, args, kwargs)
    if isinstance(real, types.MethodWrapperType) and real.__name__ == "__get__":
        owner = real.__self__
        if isinstance(owner, types.GetSetDescriptorType) and isinstance(args[0], TensorValue):
            return vm.get_attr(args[0], owner.__name__)  # `torch.Tensor.shape.__get__(tensor)`
    if isinstance(real, types.MethodWrapperType) and real.__name__ == "__call__":
        return call(vm, vm.held(real.__self__), args, kwargs)
    _, method = attributes.class_lookup(vm, type(real), "__call__")
    if isinstance(method, types.FunctionType):
        return call(vm, vm.held(method), [vm.held(real), *args], kwargs)
    name = getattr(real, "__qualname__", None) or repr(real)
    if "pybind11" in name:
        name = name.rpartition(".")[2]
    module = getattr(real, "__module__", None) or getattr(
        getattr(real, "__objclass__", None), "__module__", "?"
    )
    raise GraphBreakSignal(
        f"a call of the C function {module}.{name}",
        "call it outside of the compiled function",
    )
