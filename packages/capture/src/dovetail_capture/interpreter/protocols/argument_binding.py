"""Arguments bound to parameters: defaults, `*args`, `**kwargs`, and CPython's errors."""

from __future__ import annotations

import inspect
import types
from typing import TYPE_CHECKING, Any, NoReturn

from dovetail_capture.interpreter.protocols import attributes, dicts
from dovetail_capture.interpreter.values.base import Constant, Lazy, Value
from dovetail_capture.interpreter.values.containers import DictValue, TupleValue
from dovetail_capture.interpreter.values.functions import FunctionValue
from dovetail_capture.interpreter.values.known_types import EQUALITY_TYPES

if TYPE_CHECKING:
    from dovetail_capture.interpreter.machine import Interpreter


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
    args: list[Value],
    kwargs: dict[str, Value],
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
    args: list[Value],
    kwargs: dict[str, Value],
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
