"""Calls of Python functions: by a handler, as one node, or with the body interpreted. Arguments are
bound to parameters: defaults, `*args`, `**kwargs`, and CPython's errors."""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NoReturn, cast

import torch

from dovetail_capture import marks
from dovetail_capture.errors import CaptureError, place_of
from dovetail_capture.interpreter.graph.graph_values import NotAGraphArgument
from dovetail_capture.interpreter.machine.frame import Frame
from dovetail_capture.interpreter.protocols import attributes, dicts
from dovetail_capture.interpreter.protocols.constants import UNKNOWN
from dovetail_capture.interpreter.protocols.native_calls import call_handler
from dovetail_capture.interpreter.signals import GraphBreakSignal
from dovetail_capture.interpreter.values.base import EQUALITY_TYPES, NONE, Constant, Lazy, Value
from dovetail_capture.interpreter.values.containers import DictValue, TupleValue
from dovetail_capture.interpreter.values.functions import CellValue, FunctionValue
from dovetail_capture.interpreter.values.objects import ObjectValue
from dovetail_capture.interpreter.values.tensors import TensorValue

if TYPE_CHECKING:
    from dovetail_capture.interpreter.machine import Interpreter
    from dovetail_capture.interpreter.machine.machine import Args, Kwargs


_VARARGS, _VARKEYWORDS = inspect.CO_VARARGS, inspect.CO_VARKEYWORDS


def defaults_of(vm: Interpreter, real: types.FunctionType) -> tuple[list[Any], dict[str, Any]]:
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
    args: Args,
    kwargs: Kwargs,
    called: str = "",
) -> list[Any]:
    """Values of the argument slots, in `co_varnames` order, as CPython binds them; `called` is the
    function's name in errors, if not that of its code."""
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
        _binding_error(vm, code, defaults, kwdefaults, args, kwargs, called)
    rest: dict[str, Value] = {}
    if kwargs:
        positions = {names[i]: i for i in range(code.co_posonlyargcount, count + keyword_only)}
        for key, value in kwargs.items():
            position = positions.get(key)
            if position is None:
                if not flags & _VARKEYWORDS:
                    _binding_error(vm, code, defaults, kwdefaults, args, kwargs, called)
                rest[key] = value
            elif slots[position] is not None:
                _binding_error(vm, code, defaults, kwdefaults, args, kwargs, called)
            else:
                slots[position] = value
    first_default = count - len(defaults)
    for position in range(given, count):
        if slots[position] is None:
            if position < first_default:
                _binding_error(vm, code, defaults, kwdefaults, args, kwargs, called)
            slots[position] = attributes.resolve(vm, defaults[position - first_default])
    for position in range(count, count + keyword_only):
        if slots[position] is None:
            key = names[position]
            if key not in kwdefaults:
                _binding_error(vm, code, defaults, kwdefaults, args, kwargs, called)
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
    args: Args,
    kwargs: Kwargs,
    called: str,
) -> NoReturn:
    """Raise the TypeError of a call that does not fit the signature, in CPython's words: it is
    made by such a call of an empty function of this signature."""
    count = code.co_argcount + code.co_kwonlyargcount
    count += bool(code.co_flags & _VARARGS) + bool(code.co_flags & _VARKEYWORDS)
    empty = (lambda: None).__code__
    empty = empty.replace(
        co_argcount=code.co_argcount,
        co_posonlyargcount=code.co_posonlyargcount,
        co_kwonlyargcount=code.co_kwonlyargcount,
        co_flags=empty.co_flags | code.co_flags & (_VARARGS | _VARKEYWORDS),
        co_varnames=code.co_varnames[:count],
        co_nlocals=count,
    )
    function = types.FunctionType(empty, {}, code.co_name, (None,) * len(defaults))
    function.__kwdefaults__ = dict.fromkeys(kwdefaults)
    function.__qualname__ = called or code.co_qualname
    try:
        function(*args, **kwargs)
    except TypeError as error:
        vm.raise_real(error)
    raise AssertionError(f"{code.co_qualname} does take these arguments")


_ASYNC = inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR | inspect.CO_ITERABLE_COROUTINE


def _graph_break(vm: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    message = vm.as_python(args[0] if args else kwargs.get("msg", Constant("")))
    raise GraphBreakSignal(f"graph_break() was called{': ' + message if message else ''}")


def _is_compiling(vm: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    return vm.call(Constant(torch.compiler.is_compiling), args, kwargs)


# Functions of this package's own API, which imports the interpreter and so cannot be imported here.
def _breaks_are_errors(vm: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    vm.session.modes.error_blocks.append((args[0], vm.truth(vm.get_attr(args[0], "flag"))))
    return NONE


def _breaks_are_errors_to_torch(vm: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    flag = vm.truth(vm.get_attr(args[0], "error_on_graph_break"))
    vm.session.modes.error_blocks.append((args[0], flag))
    return NONE


def _breaks_as_before(vm: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    blocks = vm.session.modes.error_blocks
    if not blocks or blocks[-1][0] is not args[0]:  # Python entered it, at a break, and leaves it
        raise GraphBreakSignal("the end of an `error_on_graph_break` block that began before")
    blocks.pop()
    return NONE


_TORCH_BLOCKS, _TORCH_BLOCK = "torch._dynamo.decorators", "ErrorOnGraphBreakDecoratorContextManager"
_OWN_API: dict[tuple[str, str], Any] = {
    ("dovetail_capture.api", "graph_break"): _graph_break,
    ("dovetail_capture.api", "is_compiling"): _is_compiling,
    ("dovetail_capture.api", "is_dynamo_compiling"): _is_compiling,
    ("dovetail_capture.api", "is_exporting"): (
        lambda vm, args, kw: vm.call(Constant(torch.compiler.is_exporting), args, kw)
    ),
    # Code that is captured is none of those that it tells.
    ("dovetail_capture.wrappers.optimized_module", "OptimizedModule._is_asked_by"): (
        lambda vm, args, kw: Constant(False)
    ),
    ("dovetail_capture.stance", "error_on_graph_break.__enter__"): _breaks_are_errors,
    ("dovetail_capture.stance", "error_on_graph_break.__exit__"): _breaks_as_before,
    ("torch._dynamo.decorators", "graph_break"): _graph_break,
    (_TORCH_BLOCKS, f"{_TORCH_BLOCK}.__enter__"): _breaks_are_errors_to_torch,
    (_TORCH_BLOCKS, f"{_TORCH_BLOCK}.__exit__"): _breaks_as_before,
    # Once torch.compile has run, every module's __init__ also notes the module's age for it.
    ("torch._dynamo.mutation_guard", "GenerationTracker.tag"): lambda vm, args, kw: Constant(None),
    ("torch._dynamo.mutation_guard", "_GenerationTracker.tag"): lambda vm, args, kw: Constant(None),
}


def call_function(
    vm: Interpreter,
    fn: Constant,
    real: types.FunctionType,
    args: Args,
    kwargs: Kwargs,
) -> Value:
    """Call a pre-existing Python function: a library handler, a graph node, or inlined."""
    real = marks.without_others_marks(real)
    given = marks.within_other_compiler(real)
    if given is not None:
        return vm.call(vm.held(given), args, kwargs)
    handler = vm.handlers.get(real)
    if handler is not None:
        result = call_handler(vm, handler, real, args, kwargs)
        if result is not NotImplemented:
            return result
    if vm.is_pure(real) and all(
        vm.as_python(arg) is not UNKNOWN for arg in (*args, *kwargs.values())
    ):
        return vm.fold(real, args, kwargs)
    options = vm.options
    if options is not None:
        if options.is_disabled(real):
            reason = marks.reason_of(real)
            raise GraphBreakSignal(
                f"a call of `{real.__qualname__}`, which is disabled{reason and ': '}{reason}",
                "call it outside of the compiled function",
            )
        if options.is_allowed_in_graph(real):
            return vm.record_whole(real, args, kwargs)
    if marks.is_forbidden(real):
        raise CaptureError(
            f"{place_of(real.__code__)} must not be called in a compiled function: it is marked "
            "with forbid_in_graph. Call it outside"
        )
    if marks.is_constant_result(real):
        return _constant_result(vm, real, args, kwargs)
    if vm.is_operation(real):
        try:
            if args and isinstance(args[0], TensorValue) and _tells_of_method(real):
                return vm.record("call_method", real.__name__, args, kwargs)
            return vm.record("call_function", real, args, kwargs)
        except NotAGraphArgument:
            pass  # say a function among the arguments: its body may still be captured
    return inline(vm, real, args, kwargs)


def read_function(vm: Interpreter, real: types.FunctionType) -> tuple[list[Any], dict[str, Any]]:
    """The defaults of a function whose code and defaults are guarded from now on."""
    known = vm.function_defaults.get(real)
    if known is None:
        known = vm.function_defaults[real] = defaults_of(vm, real)
    return known


def _tells_of_method(real: Any) -> bool:
    """Does a function of torch's have the name of the method that it wraps? (`Tensor.__pow__`)"""
    return str(real.__qualname__).startswith("TensorBase.")


def _constant_result(vm: Interpreter, real: Any, args: Args, kwargs: Kwargs) -> Value:
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


def inline(vm: Interpreter, function: Callable[..., Any], args: Args, kwargs: Kwargs) -> Value:
    """Interpret a pre-existing Python function's body."""
    real = cast(types.FunctionType, function)
    code = real.__code__
    if code.co_flags & _ASYNC:
        raise GraphBreakSignal(f"a call of the coroutine function {code.co_qualname}")
    by_code = vm.code_handlers.get(code)
    if by_code is not None:
        handled: Value | None = by_code(vm, real, args, kwargs)
        if handled is not None:
            return handled
    name = (real.__module__, code.co_qualname)
    by_name = _OWN_API.get(name) or vm.named_handlers.get(name)
    if by_name is not None:
        result: Value = by_name(vm, args, kwargs)
        if result is not NotImplemented:
            return result
    sources = vm.session.sources
    positional, keyword = read_function(vm, real)
    slots = bind(vm, code, positional, keyword, args, kwargs, real.__qualname__)
    closure: tuple[CellValue, ...] = ()
    if real.__closure__:
        closure = tuple(
            vm.wrap(cell, sources.held(cell, f"{code.co_qualname}.{name}"))  # type: ignore[misc]
            for name, cell in zip(code.co_freevars, real.__closure__, strict=True)
        )
    return vm.run_frame(Frame(vm, code, real.__globals__, slots, closure))


def call_made_function(vm: Interpreter, fn: FunctionValue, args: Args, kwargs: Kwargs) -> Value:
    """Interpret the body of a function that was made in the frame."""
    if fn.code.co_flags & _ASYNC:
        raise GraphBreakSignal(f"a call of the coroutine function {fn.code.co_qualname}")
    slots = bind(vm, fn.code, fn.defaults, keyword_defaults(vm, fn), args, kwargs)
    return vm.run_frame(Frame(vm, fn.code, fn.globals_, slots, fn.closure))
