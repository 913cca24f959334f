"""Structures of tensors that functions take and give: containers, with slots for the tensors."""

from __future__ import annotations

import collections
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch.utils import _pytree as pytree

from dovetail_capture.interpreter.machine.machine import Interpreter
from dovetail_capture.interpreter.protocols import dicts
from dovetail_capture.interpreter.protocols.constants import UNKNOWN
from dovetail_capture.interpreter.signals import GraphBreakSignal
from dovetail_capture.interpreter.values.base import Constant, Value
from dovetail_capture.interpreter.values.containers import DictValue, ListValue, TupleValue
from dovetail_capture.interpreter.values.objects import ObjectValue, is_namedtuple, named_tuple
from dovetail_capture.interpreter.values.tensors import TensorValue


@dataclass(frozen=True)
class Slot:
    """The place of a tensor in a structure."""

    index: int


@dataclass(frozen=True)
class Parts:
    """What an object of a class that `torch.utils._pytree` knows is made of, in its place where
    torch's transforms take structures apart and put them together."""

    cls: type
    context: Any
    children: tuple[Any, ...]


pytree.register_pytree_node(
    Parts,
    lambda parts: (list(parts.children), (parts.cls, parts.context)),
    lambda children, of: Parts(of[0], of[1], tuple(children)),
)


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
    if isinstance(value, ObjectValue) and value.cls in pytree.SUPPORTED_NODES:
        flatten = pytree.SUPPORTED_NODES[value.cls].flatten_fn
        children, context = vm.iterate(vm.call(vm.held(flatten), [value], {}))
        known = vm.as_python(context)
        if known is UNKNOWN:
            raise GraphBreakSignal(f"{value.describe()}, whose structure is not a constant")
        items = tuple(structure(vm, item, leaf) for item in vm.iterate(children))
        return Parts(value.cls, known, items)
    return leaf(value)


def holds_objects(template: Any) -> bool:
    """Are there objects of classes of the program's in a structure?"""
    leaves = pytree.tree_leaves(template, is_leaf=lambda part: type(part) is Parts)
    return any(type(leaf) is Parts for leaf in leaves)


def made_of(vm: Interpreter, cls: type, context: Any, children: list[Value]) -> Value:
    """An object of a class that `torch.utils._pytree` knows, put together."""
    unflatten = vm.held(pytree.SUPPORTED_NODES[cls].unflatten_fn)
    return vm.call(unflatten, [ListValue(children), vm.constant(context)], {})


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
    if isinstance(template, Parts):
        children = [filled(vm, item, tensors) for item in template.children]
        return made_of(vm, template.cls, template.context, children)
    return vm.constant(template)
