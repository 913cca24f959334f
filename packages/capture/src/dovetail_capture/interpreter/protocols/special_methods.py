"""Objects of the program's classes that pure C functions ask: for an index, a float, a text.

`round(obj)`, `math.floor(obj)`, `hex(obj)`, `"{:x}".format(obj)`: which special methods are asked,
in which order, and what their answers must be, C code knows. It runs at capture on an object that
stands for the program's, whose special methods are interpreted.
"""

from __future__ import annotations

import builtins
import operator
import os
import types
from typing import TYPE_CHECKING, Any

from dovetail_capture.interpreter.protocols import class_attributes, operands
from dovetail_capture.interpreter.signals import GraphBreakSignal
from dovetail_capture.interpreter.values.base import Constant, Value
from dovetail_capture.interpreter.values.containers import ListValue, TupleValue
from dovetail_capture.interpreter.values.objects import ObjectValue, ProgramException
from dovetail_capture.interpreter.values.symbolic import SymbolicNumber

if TYPE_CHECKING:
    from dovetail_capture.interpreter.machine import Interpreter

# The special methods that C functions of numbers and texts ask for.
_METHODS = (
    "__index__", "__int__", "__float__", "__complex__", "__round__", "__trunc__", "__floor__",
    "__ceil__", "__bytes__", "__fspath__", "__length_hint__", "__len__", "__iter__", "__next__",
    "__getitem__", "__contains__", "__bool__", "__abs__", "__neg__", "__add__", "__radd__",
    "__sub__", "__rsub__", "__mul__", "__rmul__", "__pow__", "__rpow__", "__divmod__",
    "__rdivmod__", "__eq__", "__ne__", "__lt__", "__le__", "__gt__", "__ge__", "__hash__",
)  # fmt: skip
_TEXTS = ("__format__", "__str__", "__repr__")  # those of `object` tell of an address
_FUNCTIONS: frozenset[Any] = frozenset(
    {round, ord, chr, bin, hex, oct, ascii, abs, divmod, pow, complex, bytes, range, int, float,
     os.fspath, operator.length_hint, operator.index}
)  # fmt: skip
_METHODS_OF = (str, bytes, int, float, complex, range)


def may_ask(fn: Any) -> bool:
    """Does a pure C function only ask its arguments, and not keep or return them as they are?"""
    if isinstance(fn, class_attributes.C_METHODS):
        return fn.__objclass__ in _METHODS_OF
    if isinstance(fn, types.BuiltinFunctionType) and fn not in _FUNCTIONS:
        return fn.__module__ in ("math", "cmath") or type(fn.__self__) in _METHODS_OF
    try:
        return fn in _FUNCTIONS
    except TypeError:
        return False


class _StandsFor:
    """Stands for `value`. Classes with its special methods are made of this one."""

    def __init__(self, value: Value) -> None:
        self._stands_for = value


class Asker:
    """The objects that stand for those of the program in one call of a C function."""

    def __init__(self, vm: Interpreter) -> None:
        self.vm = vm
        self._classes: dict[type, type] = {}
        self._raised: list[tuple[Exception, ProgramException]] = []

    def stand_in(self, value: Value) -> Any:
        """What a C function is given for an object of the program, or a list or tuple with such.
        Raises a graph break for a value that cannot be asked."""
        known = self.vm.data_of(value) if not isinstance(value, (ListValue, TupleValue)) else None
        if isinstance(value, (ListValue, TupleValue)) and value.cls in (list, tuple):
            return value.cls(self.stand_in(item) for item in self.vm.iterate(value))
        is_object = isinstance(value, ObjectValue) and value.native is None
        if is_object and not operands.is_opaque(value) and not _is_exception(value):
            return self._class_for(value.python_type())(value)
        if isinstance(value, (Constant, SymbolicNumber)):
            return known
        raise GraphBreakSignal(f"a C function called with {value.describe()}")

    def raised(self, error: Exception) -> None:
        """Raise what the program raised, if a C function passed it on."""
        for real, original in self._raised:
            if real is error:
                raise original from None
        if isinstance(error, (ProgramException, GraphBreakSignal)):
            raise error

    def result(self, real: Any) -> Value | None:
        """The value that a C function handed on; None if it gave something of its own."""
        if isinstance(real, _StandsFor):
            return real._stands_for
        parts = real if isinstance(real, (tuple, list)) else ()
        if any(isinstance(part, _StandsFor) for part in parts):
            raise GraphBreakSignal("a C function that hands on what special methods gave it")
        return None

    def _class_for(self, cls: type) -> type:
        made = self._classes.get(cls)
        if made is None:
            class_attributes.read_names(self.vm, cls)
            methods: dict[str, Any] = {}
            for name in (*_METHODS, *_TEXTS):
                _, found = class_attributes.class_lookup(self.vm, cls, name)
                of_object = found is getattr(object, name, None)
                if found is None:
                    methods[name] = None
                elif name in _TEXTS or not (found is class_attributes.MISSING or of_object):
                    methods[name] = self._method(name, of_object)
            names = {"__module__": cls.__module__, "__qualname__": cls.__qualname__}
            made = self._classes[cls] = type(cls.__name__, (_StandsFor,), {**methods, **names})
        return made

    def _method(self, name: str, of_object: bool) -> Any:
        def method(stand_in: _StandsFor, *args: Any) -> Any:
            value = stand_in._stands_for
            if of_object:
                raise GraphBreakSignal(f"the text of {value.describe()}")
            return self._ask(value, name, args)

        return method

    def _ask(self, value: Value, name: str, args: tuple[Any, ...]) -> Any:
        method = operands.dunder(self.vm, value, name)
        assert method is not None
        given = [
            arg._stands_for if isinstance(arg, _StandsFor) else self.vm.constant(arg)
            for arg in args
        ]
        try:
            made = self.vm.call(method, given, {})
            if name == "__iter__":
                return iter([self._answer(item) for item in self.vm.iterate(made)])
            return self._answer(made)
        except ProgramException as error:
            cls = error.value.python_type()
            if cls.__module__ != "builtins" or not hasattr(builtins, cls.__name__):
                raise
            real: Any = Exception.__new__(cls)  # C code may catch it, by its class
            self._raised.append((real, error))
            raise real from None

    def _answer(self, value: Value) -> Any:
        if isinstance(value, (Constant, SymbolicNumber)):
            return self.vm.as_python(value)
        if isinstance(value, ObjectValue):
            return self._class_for(value.cls)(value)
        cls = value.python_type()
        return type(cls.__name__, (_StandsFor,), {"__module__": cls.__module__})(value)


def _is_exception(value: Value) -> bool:
    return issubclass(value.python_type(), BaseException)
