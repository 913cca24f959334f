"""Pure functions run at capture: on known arguments, and on symbolic numbers."""

from __future__ import annotations

import collections
import inspect
import math
import operator
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from dovetail_prims.sizes.size_nodes import NUMBER_FUNCTIONS

from dovetail_capture.interpreter.machine.frame import GeneratorValue
from dovetail_capture.interpreter.protocols import (
    class_attributes,
    constants,
    numpy_errors,
    operands,
)
from dovetail_capture.interpreter.protocols.special_methods import Asker, may_ask
from dovetail_capture.interpreter.signals import GraphBreakSignal
from dovetail_capture.interpreter.values.base import Constant, Value
from dovetail_capture.interpreter.values.containers import ListValue, TupleValue
from dovetail_capture.interpreter.values.functions import HeldIterator, IteratorValue
from dovetail_capture.interpreter.values.objects import ObjectValue
from dovetail_capture.interpreter.values.symbolic import SymbolicNumber, floor_divide, power

if TYPE_CHECKING:
    from dovetail_capture.interpreter.machine import Interpreter


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
        result = numpy_errors.call(vm.session, fn, real_args, real_kwargs)
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
