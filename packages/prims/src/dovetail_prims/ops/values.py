"""Formulas: decompositions that are written as mathematics.

A formula is a function of `Value`s, whose operators and functions make the ATen calls that the
operator becomes:

    @formula
    def silu(x: Value) -> Value:
        return x * sigmoid(x)

`formula` makes a decomposition of it: the operands come in the dtype that eager's kernels compute
in, and the result is rounded once, to the first operand's own dtype.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import wraps
from typing import Any

from torch import Tensor

from dovetail_prims.ops.common import Number, aten, cast, constant, floating, lookup, wide
from dovetail_prims.ops.common import where as where_of_tensors

# The parameters of formulas by the names that schemas have for them.
_SHORT = {"self": "x", "other": "y", "grad_output": "g"}
_LONG = {short: name for name, short in _SHORT.items()}

_add, _sub, _mul, _div = (aten.add.Tensor, aten.sub.Tensor, aten.mul.Tensor, aten.div.Tensor)


def _plain(operand: Any) -> Any:
    return operand.tensor if type(operand) is Value else operand


def _compared(name: str) -> Callable[..., Any]:
    tensors, number = lookup(f"{name}.Tensor"), lookup(f"{name}.Scalar")
    assert tensors is not None and number is not None

    def compare(self: Value, other: Any) -> Value:
        if type(other) is Value:
            return Value(tensors(self.tensor, other.tensor))
        return Value(number(self.tensor, other))

    return compare


class Value:
    """A tensor in a formula."""

    __slots__ = ("tensor",)
    __hash__ = None  # type: ignore[assignment]

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor

    def __add__(self, other: Value | Number) -> Value:
        return Value(_add(self.tensor, _plain(other)))

    def __radd__(self, other: Number) -> Value:
        return Value(_add(self.tensor, other))

    def __sub__(self, other: Value | Number) -> Value:
        return Value(_sub(self.tensor, _plain(other)))

    def __rsub__(self, other: Number) -> Value:
        return Value(_sub(other, self.tensor))

    def __mul__(self, other: Value | Number) -> Value:
        return Value(_mul(self.tensor, _plain(other)))

    def __rmul__(self, other: Number) -> Value:
        return Value(_mul(self.tensor, other))

    def __truediv__(self, other: Value | Number) -> Value:
        return Value(_div(self.tensor, _plain(other)))

    def __rtruediv__(self, other: Number) -> Value:
        return Value(_div(other, self.tensor))

    def __neg__(self) -> Value:
        return Value(aten.neg.default(self.tensor))

    def __abs__(self) -> Value:
        return Value(aten.abs.default(self.tensor))

    def __or__(self, other: Value) -> Value:
        return Value(aten.logical_or.default(self.tensor, other.tensor))

    def __and__(self, other: Value) -> Value:
        return Value(aten.logical_and.default(self.tensor, other.tensor))

    __lt__, __le__ = _compared("lt"), _compared("le")
    __gt__, __ge__ = _compared("gt"), _compared("ge")
    __eq__, __ne__ = _compared("eq"), _compared("ne")


def _function(name: str) -> Callable[[Value], Value]:
    op = lookup(f"{name}.default")
    assert op is not None, name

    def call(x: Value) -> Value:
        return Value(op(x.tensor))

    return call


exp, expm1, log, log1p = map(_function, ("exp", "expm1", "log", "log1p"))
erf, tanh, sigmoid, relu = map(_function, ("erf", "tanh", "sigmoid", "relu"))
sin, trunc, isnan, isinf = map(_function, ("sin", "trunc", "isnan", "isinf"))


def where(condition: Value, a: Value | Number, b: Value | Number) -> Value:
    """`a` where the condition holds, else `b`."""
    return Value(where_of_tensors(condition.tensor, _plain(a), _plain(b)))


def maximum(a: Value | Number, b: Value | Number) -> Value:
    """The larger; of two that are equal the second."""
    return Value(aten.maximum.default(*_pair(a, b)))


def minimum(a: Value | Number, b: Value | Number) -> Value:
    """The smaller; of two that are equal the second."""
    return Value(aten.minimum.default(*_pair(a, b)))


def _pair(a: Value | Number, b: Value | Number) -> tuple[Tensor, Tensor]:
    """Two operands, one of which may be a number, as tensors."""
    if not isinstance(a, Value):
        assert isinstance(b, Value)
        return constant(a, b.tensor), b.tensor
    return a.tensor, b.tensor if isinstance(b, Value) else constant(b, a.tensor)


def formula(function: Callable[..., Any]) -> Callable[..., Any]:
    """The decomposition that computes this in eager's dtype and rounds once."""
    kinds = _kinds(function)

    @wraps(function)
    def entry(*args: Any, **kwargs: Any) -> Any:
        own = args[0].dtype
        given = [Value(wide(a)) if k else a for k, a in zip(kinds, args, strict=False)]
        named = _named(kwargs, wide) if kwargs else kwargs
        return cast(function(*given, **named).tensor, own)

    return _with_schema_names(entry, function)


def float_formula(function: Callable[..., Any]) -> Callable[..., Any]:
    """The same of a function of one number, to which integers and booleans are converted first."""
    inner = formula(function)

    @wraps(function)
    def entry(first: Any, *args: Any, **kwargs: Any) -> Any:
        return inner(floating(first), *args, **kwargs)

    return _with_schema_names(entry, function)


def unrounded(function: Callable[..., Any]) -> Callable[..., Any]:
    """The decomposition that computes this in the operands' own dtype."""
    kinds = _kinds(function)

    @wraps(function)
    def entry(*args: Any, **kwargs: Any) -> Any:
        given = [Value(a) if k else a for k, a in zip(kinds, args, strict=False)]
        result = function(*given, **(_named(kwargs, None) if kwargs else kwargs))
        if type(result) is tuple:
            return tuple(value.tensor for value in result)
        return result.tensor

    return _with_schema_names(entry, function)


def _kinds(function: Callable[..., Any]) -> tuple[bool, ...]:
    """Which parameters are Values."""
    return tuple(p.annotation == "Value" for p in inspect.signature(function).parameters.values())


def _named(kwargs: dict[str, Any], convert: Callable[[Tensor], Tensor] | None) -> dict[str, Any]:
    """Arguments by name as the parameters of a formula."""
    found = {}
    for name, a in kwargs.items():
        if isinstance(a, Tensor):
            a = Value(a if convert is None else convert(a))
        found[_SHORT.get(name, name)] = a
    return found


def _with_schema_names(
    entry: Callable[..., Any], function: Callable[..., Any]
) -> Callable[..., Any]:
    signature = inspect.signature(function)
    parameters = [p.replace(name=_LONG.get(n, n)) for n, p in signature.parameters.items()]
    setattr(entry, "__signature__", signature.replace(parameters=parameters))  # noqa: B010
    return entry
