"""Operators of the language, by their functions and methods; `min` and `max` of tensors without
dimensions, and arithmetic with what they give (`Chosen`).
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

import torch

from dovetail_capture.interpreter.protocols.constants import UNKNOWN
from dovetail_capture.interpreter.protocols.operands import record_call
from dovetail_capture.interpreter.values.base import Constant, Value
from dovetail_capture.interpreter.values.tensors import Chosen, TensorValue

if TYPE_CHECKING:
    from dovetail_capture.interpreter.machine import Interpreter

_ARITHMETIC = ("+", "-", "*", "/")
# Functions and methods of a tensor and a number that compute the same as those.
_FUNCTIONS = frozenset({"add", "sub", "mul", "div", "add_", "sub_", "mul_", "div_", "true_divide"})


def extremum(vm: Interpreter, symbol: str, items: Sequence[Value]) -> Value | None:
    """The greatest (`>`) or least (`<`) of tensors and numbers; None where this cannot tell it.

    As Python has it: the first of equal ones, and a NaN stays where it is first only. Of tensors
    that may need gradients the choice decides which get any."""
    tensors = [_behind(item) for item in items if isinstance(item, (TensorValue, Chosen))]
    if not tensors or not _are_alike(vm, tensors):
        return None
    like = tensors[0].fake
    numbers = [item for item in items if not isinstance(item, (TensorValue, Chosen))]
    if not all(_is_exact(number, like.dtype) for number in numbers):
        return None
    best = _behind(items[0])
    for item in map(_behind, items[1:]):
        if isinstance(item, Constant) and isinstance(best, Constant):
            is_better = item.value > best.value if symbol == ">" else item.value < best.value
            best = item if is_better else best
        else:
            holds = record_call(vm, COMPARE[symbol][0], [item, best])
            best = record_call(vm, torch.where, [holds, item, best])
    among = [one.among if isinstance(one, Chosen) else (one,) for one in items]
    real = tuple(one for row in among for one in row if isinstance(one, TensorValue))
    return Chosen(best, real, vm.frames[0].steps)


def _behind(value: Any) -> Any:
    return value.number() if value.__class__ is Chosen else value


def _are_alike(vm: Interpreter, tensors: Sequence[TensorValue]) -> bool:
    """Are they plain tensors of one number each, of one dtype and device, without gradients, of
    which capture does not know the data?"""
    first = tensors[0].fake
    return all(
        type(tensor) is TensorValue
        and _is_plain(tensor)
        and tensor.fake.dim() == 0
        and tensor.fake.dtype is first.dtype
        and tensor.fake.device == first.device
        and not (tensor.fake.requires_grad and torch.is_grad_enabled())
        for tensor in tensors
    ) and (
        first.dtype is not torch.bool
        and not first.dtype.is_complex
        and any(vm.data_of(tensor) is UNKNOWN for tensor in tensors)
    )


def _is_plain(tensor: TensorValue) -> bool:
    return tensor.cls in (torch.Tensor, torch.nn.Parameter) and not tensor.overrides


def _is_exact(number: Value, dtype: torch.dtype) -> bool:
    """Is it a number of Python's that a tensor of this dtype holds as it is?"""
    if not isinstance(number, Constant) or type(number.value) not in (int, float):
        return False
    real = number.value
    if type(real) is float and not dtype.is_floating_point:
        return False
    limits = torch.finfo(dtype) if dtype.is_floating_point else torch.iinfo(dtype)
    if not limits.min <= real <= limits.max:
        return False
    return bool(torch.tensor(real, dtype=dtype).item() == real)


def _same_for_both(chosen: Chosen, other: Value) -> bool:
    """Does an operation with this tensor give the same for the tensor as for a number?"""
    if type(other) is not TensorValue or not _is_plain(other):
        return False
    ours, theirs = chosen.tensor.fake, other.fake
    if ours.device != theirs.device:
        return False
    promotes = theirs.dtype.is_floating_point and not ours.dtype.is_floating_point
    return ours.dtype is theirs.dtype or (promotes and theirs.dim() > 0)


def binary(vm: Interpreter, symbol: str, left: Value, right: Value, inplace: bool) -> Value:
    """`left <symbol> right`, of which one at least is `Chosen`."""
    chosen, other = (left, right) if isinstance(left, Chosen) else (right, left)
    assert isinstance(chosen, Chosen)
    changes = inplace and chosen is left
    if symbol not in _ARITHMETIC or changes:
        chosen.refuse()
    fn = INPLACE[symbol] if inplace and isinstance(other, TensorValue) else BINARY[symbol][0]
    if _same_for_both(chosen, other):
        return record_call(vm, fn, [_behind(left), _behind(right)])
    # (Python's ints do not overflow, and its numbers are not divided by 0.)
    dtype = chosen.tensor.fake.dtype
    divides = symbol == "/" and (chosen is right or not getattr(other, "value", 0))
    if dtype.is_floating_point and not divides and _is_exact(other, dtype):
        made = record_call(vm, fn, [_behind(left), _behind(right)])
        assert isinstance(made, TensorValue)
        return Chosen(made, (), chosen.born)
    chosen.refuse()


def compare(vm: Interpreter, symbol: str, left: Value, right: Value) -> Value:
    """`left <symbol> right`, of which one at least is `Chosen`."""
    chosen, other = (left, right) if isinstance(left, Chosen) else (right, left)
    assert isinstance(chosen, Chosen)
    if symbol not in COMPARE or not _same_for_both(chosen, other):
        chosen.refuse()
    return record_call(vm, COMPARE[symbol][0], [_behind(left), _behind(right)])


def settled(name: str, args: list[Value], kwargs: Iterable[str]) -> list[Value]:
    """The arguments of an operation on a tensor and what was chosen; the graph is to end before
    the choice where the operation may tell them apart."""
    for place, value in enumerate(args):
        if isinstance(value, Chosen):
            fits = name in _FUNCTIONS and len(args) == 2 and place == 1 and not list(kwargs)
            if not fits or not _same_for_both(value, args[0]):
                value.refuse()
    return [_behind(value) for value in args]


# symbol -> (function, dunder name)
BINARY: dict[str, tuple[Callable[[Any, Any], Any], str]] = {
    "+": (operator.add, "add"),
    "&": (operator.and_, "and"),
    "//": (operator.floordiv, "floordiv"),
    "<<": (operator.lshift, "lshift"),
    "@": (operator.matmul, "matmul"),
    "*": (operator.mul, "mul"),
    "%": (operator.mod, "mod"),
    "|": (operator.or_, "or"),
    "**": (operator.pow, "pow"),
    ">>": (operator.rshift, "rshift"),
    "-": (operator.sub, "sub"),
    "/": (operator.truediv, "truediv"),
    "^": (operator.xor, "xor"),
}
INPLACE: dict[str, Callable[[Any, Any], Any]] = {
    "+": operator.iadd, "&": operator.iand, "//": operator.ifloordiv, "<<": operator.ilshift,
    "@": operator.imatmul, "*": operator.imul, "%": operator.imod, "|": operator.ior,
    "**": operator.ipow, ">>": operator.irshift, "-": operator.isub, "/": operator.itruediv,
    "^": operator.ixor,
}  # fmt: skip
COMPARE: dict[str, tuple[Callable[[Any, Any], Any], str, str]] = {
    "<": (operator.lt, "__lt__", "__gt__"),
    "<=": (operator.le, "__le__", "__ge__"),
    "==": (operator.eq, "__eq__", "__eq__"),
    "!=": (operator.ne, "__ne__", "__ne__"),
    ">": (operator.gt, "__gt__", "__lt__"),
    ">=": (operator.ge, "__ge__", "__le__"),
}
UNARY: dict[str, tuple[Callable[[Any], Any], str]] = {
    "-": (operator.neg, "__neg__"),
    "+": (operator.pos, "__pos__"),
    "~": (operator.invert, "__invert__"),
}
