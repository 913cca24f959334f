"""Structures of tensors that functions take and give: containers, with slots for the tensors."""

from __future__ import annotations

import collections
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torch.utils import _pytree as pytree

from dovetail_capture.interpreter.protocols import dicts
from dovetail_capture.interpreter.protocols.constants import UNKNOWN
from dovetail_capture.interpreter.signals import GraphBreakSignal
from dovetail_capture.interpreter.values.base import Constant, Value
from dovetail_capture.interpreter.values.containers import DictValue, ListValue, TupleValue
from dovetail_capture.interpreter.values.objects import ObjectValue, is_namedtuple, named_tuple
from dovetail_capture.interpreter.values.tensors import TensorValue

if TYPE_CHECKING:
    from dovetail_capture.interpreter.machine import Interpreter


@dataclass(frozen=True)
class Slot:
    """The place of a tensor in a structure."""

    index: int


def structure(vm: Interpreter, value: Value, leaf: Callable[[Value], Any]) -> Any:
    """The containers that a value is made of, as PyTorch's transforms know them, and what `leaf`
    gives for what else is in them."""
    if isinstance(value, TupleValue):
        if value.cls is tuple:
            return tuple(structure(vm, item, leaf) for item in vm.iterate(value))
        if value.cls.__module__ == "torch.return_types":
            return value.cls([structure(vm, item, leaf) for item in vm.iterate(value)])
    if isinstance(value, ListValue) and value.cls is list:
        return [structure(vm, item, leaf) for item in vm.iterate(value)]
    if isinstance(value, DictValue) and value.cls in (dict, collections.OrderedDict):
        pairs = dicts.items(vm, value)
        return value.cls([(vm.as_python(key), structure(vm, item, leaf)) for key, item in pairs])
    if isinstance(value, ObjectValue) and is_namedtuple(value.cls):
        assert isinstance(value.native, TupleValue)
        return value.cls._make(structure(vm, item, leaf) for item in vm.iterate(value.native))  # type: ignore[attr-defined]
    return leaf(value)


def template_of(vm: Interpreter, value: Value, tensors: list[TensorValue]) -> Any:
    """The Python structure of a value, with slots for its tensors, which `tensors` takes."""

    def leaf(part: Value) -> Any:
        if isinstance(part, TensorValue):
            tensors.append(part)
            return Slot(len(tensors) - 1)
        real = vm.as_python(part)
        if real is UNKNOWN or isinstance(part, DictValue):
            raise GraphBreakSignal(f"a function of tensors, with {part.describe()}")
        return real

    return structure(vm, value, leaf)


def count_slots(template: Any) -> int:
    """How many tensors there are in a structure."""
    return sum(type(leaf) is Slot for leaf in pytree.tree_leaves(template))


def rebuilt(template: Any, tensors: Any) -> Any:
    """The structure with tensors in its slots."""
    return pytree.tree_map(
        lambda leaf: tensors[leaf.index] if type(leaf) is Slot else leaf, template
    )


def filled(vm: Interpreter, template: Any, tensors: list[Value]) -> Value:
    """The value of a structure, with values in its slots."""
    if type(template) is Slot:
        return tensors[template.index]
    if isinstance(template, tuple):
        items = [filled(vm, item, tensors) for item in template]
        if is_namedtuple(type(template)):
            return named_tuple(type(template), items)
        return TupleValue(items, type(template))
    if isinstance(template, list):
        return ListValue([filled(vm, item, tensors) for item in template])
    if isinstance(template, dict):
        new = DictValue(type(template))
        for key, item in template.items():
            dicts.put(vm, new, Constant(key), filled(vm, item, tensors))
        return new
    return vm.constant(template)
