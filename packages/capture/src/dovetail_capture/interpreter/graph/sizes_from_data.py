"""Sizes that only data tells: tensors taken for whole numbers, and sizes that have to agree."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import torch
from dovetail_guards import relations as rel
from dovetail_guards.shape_env import DataDependentError as UnknownSizeError
from dovetail_guards.sym_node import SymNode
from dovetail_prims.sizes.size_nodes import STATE

from dovetail_capture.interpreter.graph.known_data import SIZED_MAKERS, KnownData
from dovetail_capture.interpreter.values.base import Value
from dovetail_capture.interpreter.values.containers import ListValue, TupleValue
from dovetail_capture.interpreter.values.tensors import TensorValue

if TYPE_CHECKING:
    from dovetail_capture.interpreter.graph.recorder import Recorder

# Operations that want sizes to be equal (or 1, where they are broadcast): where only data tells the
# sizes of two, they are taken to be equal.
SIZES_AGREE = frozenset(
    {prefix + name for prefix in ("", "i")
     for name in ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "and", "or", "xor")}
    | {"and_", "or_", "add_", "sub_", "mul_", "div", "div_", "pow_", "where", "maximum", "minimum",
       "eq", "ne", "lt", "le", "gt", "ge", "copy_", "setitem", "addcmul", "lerp", "masked_fill"}
    | {"split", "split_with_sizes", "cat", "concat", "stack", "matmul", "imatmul", "mm", "bmm"}
    | {"cross_entropy", "nll_loss"}  # (torch 2.11 asks, 2.15 does not)
)  # fmt: skip


_INDEXING = frozenset({"getitem", "setitem", "__getitem__", "__setitem__"})  # by tensors, too


def may_ask(name: str, args: list[Value], kwargs: dict[str, Value]) -> bool:
    """May an operation take one of its tensors for a whole number?"""
    if name in _INDEXING:
        return False
    first = 0 if name in SIZED_MAKERS else 1
    return any(map(_has_number, (*args[first:], *kwargs.values())))


def numbers_in(recorder: Recorder, value: Value) -> Value:
    """A value with numbers in place of the tensors inside of it that are whole numbers."""
    if _is_number(value):
        return recorder.record("call_method", "item", [value], {})
    if isinstance(value, (ListValue, TupleValue)) and _has_number(value):
        items = [numbers_in(recorder, item) for item in value.items]
        return ListValue(items) if isinstance(value, ListValue) else TupleValue(items)
    return value


def assume_equal(recorder: Recorder, error: UnknownSizeError) -> bool:
    """Two sizes that only data tells meet in one operation: they are equal, says the operation,
    which the graph checks when it runs. (That one of them is 1 is not among what it takes.)"""
    relation = error.relation
    if recorder.data_env is None or relation is None:
        return False
    equal = relation if relation.kind == "eq" else rel.not_(relation)
    if equal.kind != "eq":
        return False
    holds = torch.SymBool(cast(Any, SymNode(recorder.data_env, equal, bool)))
    try:
        condition = recorder.sizes.node(holds)
    except (NotImplementedError, RuntimeError):  # of a number of which no node is known
        return False
    place = recorder.stack_trace().splitlines()[-1:]
    message = f"sizes that must be equal are not: {equal} ({''.join(place).strip()})"
    if not recorder.data_env.require(equal, message):
        return False
    recorder.state_change(STATE, condition, message)
    return True


def has_known_number(data: KnownData, name: str, pairs: Any, keyword_pairs: Any) -> bool:
    """Are there tensors of one known number among the arguments that sizes may be?"""
    first = 0 if name in SIZED_MAKERS else 1  # what a function works on stays
    rest = (*pairs[first:], *keyword_pairs.values())
    return any(data.has_number(pair[1]) for pair in rest)


def known_numbers_for(
    data: KnownData, name: str, pairs: Any, keyword_pairs: Any
) -> tuple[Any, Any]:
    """Arguments with known numbers in place of tensors whose data is asked for (as sizes)."""
    first = 0 if name in SIZED_MAKERS else 1
    index = name in _INDEXING
    new = [*pairs[:first], *(data.with_numbers(a, b, index) for a, b in pairs[first:])]
    return new, {key: data.with_numbers(*pair) for key, pair in keyword_pairs.items()}


def _is_number(value: Any) -> bool:
    """A tensor that is one whole number."""
    if not isinstance(value, TensorValue) or len(value.sizes) != 0:  # dim() would ask Python
        return False
    dtype = value.fake.dtype
    return not (dtype.is_floating_point or dtype.is_complex or dtype is torch.bool)


def _has_number(value: Any) -> bool:
    """Is it, or is inside of it, a tensor that is one whole number?"""
    if isinstance(value, (ListValue, TupleValue)):
        return any(map(_has_number, value.items))
    return _is_number(value)
