"""Pure functions run at capture: on known arguments, on symbolic numbers, and on objects of the
program's classes, which they ask for an index, a float, a text.

`round(obj)`, `math.floor(obj)`, `hex(obj)`, `"{:x}".format(obj)`: which special methods are asked,
in which order, and what their answers must be, C code knows. It runs at capture on an object that
stands for the program's, whose special methods are interpreted.
"""

from __future__ import annotations

import builtins
import collections
import inspect
import math
import operator
import os
import types
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from dovetail_prims.sizes.size_nodes import NUMBER_FUNCTIONS

from dovetail_capture.interpreter.machine.frame import GeneratorValue
from dovetail_capture.interpreter.protocols import (
    class_attributes,
    constants,
    numpy_scalars,
    operands,
)
from dovetail_capture.interpreter.signals import GraphBreakSignal
from dovetail_capture.interpreter.values.base import Constant, Value
from dovetail_capture.interpreter.values.containers import ListValue, TupleValue
from dovetail_capture.interpreter.values.functions import HeldIterator, IteratorValue
from dovetail_capture.interpreter.values.objects import ObjectValue, ProgramException
from dovetail_capture.interpreter.values.symbolic import SymbolicNumber, floor_divide, power

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
        own = isinstance(value, ObjectValue) and value.native is None
        opaque = own and operands.is_opaque(value)
        if own and not opaque and not issubclass(value.python_type(), BaseException):
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


def _pow(base: Any, exponent: Any) -> Any:
    """`math.pow`: of floats, whatever the numbers were."""
    return power(torch.sym_float(base), torch.sym_float(exponent))


def _log(number: Any, base: Any = None) -> Any:
    """`math.log`: to another base it is a quotient."""
    found = NUMBER_FUNCTIONS["log"](number)
    return found if base is None else found / NUMBER_FUNCTIONS["log"](base)


def _rounded(number: Any) -> Any:
    """`round` to a whole number."""
    if isinstance(number, torch.SymFloat):
        return torch.SymInt(number.node.round())
    return number if isinstance(number, torch.SymInt) else round(number)


# Functions of numbers that symbolic numbers go through as they are.
SYMBOLIC_FUNCTIONS: dict[Any, Callable[..., Any]] = {
    math.floor: math.floor, math.ceil: math.ceil, math.trunc: math.trunc,
    operator.add: operator.add, operator.sub: operator.sub, operator.mul: operator.mul,
    operator.floordiv: floor_divide, operator.mod: operator.mod, operator.pow: power,
    operator.truediv: operator.truediv, operator.neg: operator.neg,
    operator.lt: operator.lt, operator.le: operator.le, operator.eq: operator.eq,
    operator.ne: operator.ne, operator.gt: operator.gt, operator.ge: operator.ge,
    torch.sym_max: torch.sym_max, torch.sym_min: torch.sym_min, torch.sym_int: torch.sym_int,
    torch.sym_float: torch.sym_float,
    math.isfinite: lambda x: abs(x) < math.inf, math.isinf: lambda x: abs(x) == math.inf,
    math.isnan: lambda x: not abs(x) <= math.inf,
    **{getattr(math, name): function for name, function in NUMBER_FUNCTIONS.items()},
    math.log: _log, math.pow: _pow, round: _rounded, math.fabs: lambda x: abs(torch.sym_float(x)),
    math.degrees: lambda x: torch.sym_float(x) * (180.0 / math.pi),
    math.radians: lambda x: torch.sym_float(x) * (math.pi / 180.0),
}  # fmt: skip

# Of which numbers those of `math` have a value; others make them raise, which only numbers do.
_HAVE_VALUE: dict[Any, Callable[..., Any]] = {
    math.sqrt: lambda x: x >= 0.0, math.log2: lambda x: x > 0.0,
    math.log: lambda x, base=math.e: x > 0.0 and base > 0.0 and base != 1.0,
    math.pow: lambda x, y: x > 0.0,
    round: lambda x: not isinstance(x, torch.SymBool),
    **dict.fromkeys((math.fabs, math.degrees, math.radians), lambda x: True),
    **dict.fromkeys((math.asin, math.acos), lambda x: x >= -1.0 and x <= 1.0),
    **dict.fromkeys((math.exp, math.sinh, math.cosh), lambda x: x >= -700.0 and x <= 700.0),
    **dict.fromkeys((math.sin, math.cos, math.tan), lambda x: x >= -1e300 and x <= 1e300),
}  # fmt: skip

# Pure functions that read an iterable to its end before they do anything.
_READ_WHOLE = frozenset({str.join, bytes.join, math.prod, math.fsum})
_ITERATED = (GeneratorValue, HeldIterator, IteratorValue)
_MUTABLE = (list, dict, set, collections.deque, bytearray)


# Methods of constants, the members of enumerations say, that C functions may call: those of the
# program are not for a capture to run. Of these functions it is known that they call none.
_ASKED = ("__index__", "__int__", "__float__", "__round__", "__format__", "__str__", "__repr__",
          "__len__", "__iter__", "__getitem__", "__bool__", "__trunc__", "__floor__",
          "__ceil__")  # fmt: skip
_ASK_NOTHING = frozenset({issubclass, hash, inspect.isfunction, inspect.ismethod, inspect.isclass})


def _may_be_asked(value: Value) -> bool:
    return isinstance(value, (Constant, SymbolicNumber, ObjectValue, ListValue, TupleValue))


def _has_value(fn: Any, numbers: list[Any]) -> bool:
    """Is it known, by a guard, that `fn` does not raise? False for too few or many numbers."""
    try:
        return bool(_HAVE_VALUE[fn](*numbers))
    except TypeError:
        return False


def _parts(container: Any) -> list[int]:
    items = container.items() if isinstance(container, dict) else container
    return [id(part) for item in items for part in (item if type(item) is tuple else (item,))]


def fold(vm: Interpreter, fn: Any, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """Run a pure function on known arguments."""
    if fn in SYMBOLIC_FUNCTIONS and any(isinstance(a, SymbolicNumber) for a in args):
        if not kwargs and all(operands.is_number(a) for a in args):
            known = [operands.settled(a.value) for a in args]  # type: ignore[attr-defined]
            if fn in _HAVE_VALUE and not _has_value(fn, known):
                known = [a.value for a in map(operands.concrete, args)]  # type: ignore[attr-defined]
                return fold(vm, fn, [Constant(number) for number in known], {})
            try:
                return vm.constant(SYMBOLIC_FUNCTIONS[fn](*known))
            except (OverflowError, ValueError) as error:  # to round an infinity or a NaN
                return vm.raise_real(error)
    if fn in _READ_WHOLE:
        args = [ListValue(vm.iterate(arg)) if isinstance(arg, _ITERATED) else arg for arg in args]
    real_args = [vm.data_of(arg) for arg in args]
    real_kwargs = {name: vm.as_python(arg) for name, arg in kwargs.items()}
    asker = None
    if any(real is constants.UNKNOWN for real in (*real_args, *real_kwargs.values())):
        if may_ask(fn) and all(map(_may_be_asked, (*args, *kwargs.values()))):
            asker = Asker(vm)
            real_args = [asker.stand_in(arg) for arg in args]
            real_kwargs = {name: asker.stand_in(arg) for name, arg in kwargs.items()}
    for value, real in zip(
        (*args, *kwargs.values()), (*real_args, *real_kwargs.values()), strict=True
    ):
        if real is constants.UNKNOWN:
            name = getattr(fn, "__qualname__", None) or repr(fn)
            raise GraphBreakSignal(f"a call of `{name}` with {value.describe()}")
        class_attributes.note_classes(vm, real)
        if fn not in _ASK_NOTHING and operands.has_own(vm, value, *_ASKED):
            raise GraphBreakSignal(f"a call of `{fn}` with {value.describe()}")
    copies = [c for c in (*real_args, *real_kwargs.values()) if isinstance(c, _MUTABLE)]
    before = [_parts(copy) for copy in copies]
    try:
        result = numpy_scalars.call(vm.session, fn, real_args, real_kwargs)
    except Exception as error:
        if asker is not None:
            asker.raised(error)
        return vm.raise_real(error)
    handed_on = None if asker is None else asker.result(result)
    if handed_on is not None:
        return handed_on
    if before != [_parts(copy) for copy in copies]:  # `fn` was only given a copy
        raise GraphBreakSignal(f"a call of `{fn.__name__}`, which changes its arguments")
    if result is NotImplemented:
        return Constant(NotImplemented)
    return vm.constant(result)
