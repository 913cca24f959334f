"""Calls of functions that the user allows in the graph: one node each, whatever they are given.

What a graph cannot pass (objects of classes that `torch.utils._pytree` knows, modules) is taken
apart before the node, and put together again in it; its results likewise.
"""

from __future__ import annotations

import collections
import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch.nn.utils import stateless
from torch.utils import _pytree as pytree

from dovetail_capture.interpreter.graph.graph_values import NotAGraphArgument
from dovetail_capture.interpreter.library.torch_functions.inner_graphs import Parts, made_of
from dovetail_capture.interpreter.protocols import dicts
from dovetail_capture.interpreter.protocols.constants import UNKNOWN
from dovetail_capture.interpreter.signals import GraphBreakSignal
from dovetail_capture.interpreter.values.base import Constant, Value
from dovetail_capture.interpreter.values.containers import DictValue, ListValue, TupleValue
from dovetail_capture.interpreter.values.objects import ObjectValue, is_namedtuple, named_tuple
from dovetail_capture.interpreter.values.symbolic import SymbolicNumber
from dovetail_capture.interpreter.values.tensors import TensorValue

if TYPE_CHECKING:
    from dovetail_capture.interpreter.machine import Interpreter

Build = Callable[[Sequence[Any]], Any]
"""Makes an object of the leaves that were taken out of it."""


def record_whole(vm: Interpreter, real: Any, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """One node for a function that the user allows in the graph."""

    def run(*given: Any, **named: Any) -> Any:
        result = real(*given, **named)
        if not _is_plain(pytree.tree_structure(result)):
            raise _OtherResult
        return result

    try:
        for value in (*args, *kwargs.values()):
            _check_class_stays(vm, value)
        return vm.record("call_function", real, args, kwargs, run)
    except NotAGraphArgument:
        pass
    except GraphBreakSignal as signal:
        if not isinstance(signal.__cause__, _OtherResult):
            raise
    taken = _TakenApart(vm, real)
    build_args = taken.part(TupleValue(args))
    build_kwargs = {name: taken.part(value) for name, value in kwargs.items()}
    specs: list[Any] = []

    def call(*leaves: Any) -> Any:
        with contextlib.ExitStack() as stack:
            for module, places in taken.modules:
                tensors = {name: leaves[place] for name, place in places.items()}
                stack.enter_context(stateless._reparametrize_module(module, tensors))
            named = {name: build(leaves) for name, build in build_kwargs.items()}
            result = real(*build_args(leaves), **named)
        flat, spec = pytree.tree_flatten(result)
        specs[:] = [spec]
        return tuple(flat)

    call.__name__, call.__qualname__ = real.__name__, real.__qualname__
    call.__module__ = real.__module__
    given = vm.record("call_function", call, taken.leaves, {})
    return put_together(vm, specs[0], vm.iterate(given))


def _check_class_stays(vm: Interpreter, value: Value) -> None:
    """Raise NotAGraphArgument for what a graph passes as a tuple, list or dict, though its class is
    another: a named tuple, an OrderedDict."""
    if isinstance(value, ObjectValue) or (isinstance(value, DictValue) and value.cls is not dict):
        raise NotAGraphArgument(value.describe())
    if isinstance(value, (TupleValue, ListValue)):
        for item in vm.iterate(value):
            _check_class_stays(vm, item)
    elif isinstance(value, DictValue):
        for _, item in dicts.items(vm, value):
            _check_class_stays(vm, item)


class _OtherResult(Exception):
    """A result that is made of more than tensors, numbers and built-in containers."""


def _is_plain(spec: Any) -> bool:
    """Is a result one that a graph can pass as it is?"""
    known = spec.is_leaf() or spec.type in (tuple, list, dict)
    known = known or getattr(spec.type, "__module__", "") == "torch.return_types"
    return known and all(map(_is_plain, spec.children()))


class _TakenApart:
    """The leaves of arguments, which a graph can pass, and the modules among these."""

    def __init__(self, vm: Interpreter, function: Any) -> None:
        self.vm, self.function = vm, function
        self.leaves: list[Value] = []
        self.modules: list[tuple[torch.nn.Module, dict[str, int]]] = []

    def part(self, value: Value) -> Build:
        """Take a value apart."""
        if isinstance(value, (TensorValue, SymbolicNumber)):
            place = self._leaf(value)
            return lambda leaves: leaves[place]
        if isinstance(value, Constant):
            real = value.value
            return lambda leaves: real
        if isinstance(value, (TupleValue, ListValue)) and value.cls in (tuple, list):
            cls, parts = value.cls, self._parts(self.vm.iterate(value))
            return lambda leaves: cls(build(leaves) for build in parts)
        if isinstance(value, DictValue) and not value.is_instance_dict:
            if all(isinstance(key, Constant) for key in dicts.keys(self.vm, value)):
                return self._dictionary(value)
        if isinstance(value, ObjectValue):
            return self._object(value)
        raise self._refused(value)

    def _parts(self, values: Iterator[Value]) -> list[Build]:
        return [self.part(value) for value in values]

    def _leaf(self, value: Value) -> int:
        for place, known in enumerate(self.leaves):
            if known is value:
                return place
        self.leaves.append(value)
        return len(self.leaves) - 1

    def _dictionary(self, value: DictValue) -> Build:
        pairs = [
            (self.vm.as_python(key), self.part(item)) for key, item in dicts.items(self.vm, value)
        ]
        empty = DictValue(value.cls)
        empty.default_factory = value.default_factory
        make = self.vm.as_python(empty)
        if make is UNKNOWN:
            raise self._refused(value)

        def build(leaves: Sequence[Any]) -> Any:
            made = make.copy()
            made.update((key, item(leaves)) for key, item in pairs)
            return made

        return build

    def _object(self, value: ObjectValue) -> Build:
        cls = value.cls
        if isinstance(value.real, torch.nn.Module) and value.source is not None:
            return self._module(value, value.real)
        if is_namedtuple(cls) and value.native is not None:
            parts = self._parts(self.vm.iterate(value))
            return lambda leaves: cls(*(build(leaves) for build in parts))
        known = pytree.SUPPORTED_NODES.get(cls)
        if known is None:
            return self._sequence(value)
        flat = list(self.vm.iterate(self.vm.call(self.vm.held(known.flatten_fn), [value], {})))
        context = self.vm.as_python(flat[1])
        if context is UNKNOWN:
            raise self._refused(value)
        unflatten, children = known.unflatten_fn, self._parts(self.vm.iterate(flat[0]))
        return lambda leaves: unflatten([build(leaves) for build in children], context)

    def _sequence(self, value: ObjectValue) -> Build:
        """An object of a class of tuples or lists that has nothing besides."""
        cls: Any = value.cls
        if not isinstance(value.native, (TupleValue, ListValue)) or dicts.length(
            self.vm, value.fields
        ):
            raise self._refused(value)
        parts = self._parts(self.vm.iterate(value.native))
        if isinstance(value.native, TupleValue):
            return lambda leaves: tuple.__new__(cls, [build(leaves) for build in parts])

        def build_list(leaves: Sequence[Any]) -> Any:
            made = list.__new__(cls)
            list.extend(made, [build(leaves) for build in parts])
            return made

        return build_list

    def _module(self, value: ObjectValue, module: torch.nn.Module) -> Build:
        """A module, with its parameters and buffers: they are inputs of the node."""
        assert value.source is not None
        self.vm.session.guards.pin(value.source, module)
        names = [
            name
            for found in (module.named_parameters, module.named_buffers)
            for name, _ in found(remove_duplicate=False)
        ]
        places = {}
        for name in names:
            tensor: Value = value
            for step in name.split("."):
                tensor = self.vm.get_attr(tensor, step)
            places[name] = self._leaf(tensor)
        self.modules.append((module, places))
        return lambda leaves: module

    def _refused(self, value: Value) -> GraphBreakSignal:
        return GraphBreakSignal(
            f"`{self.function.__qualname__}`, allowed in the graph, is called with "
            f"{value.describe()}",
            "register its class with torch.utils._pytree, or pass what it holds",
        )


def put_together(vm: Interpreter, spec: Any, leaves: Iterator[Value]) -> Value:
    """The value of a result, of its leaves."""
    if spec.is_leaf():
        return next(leaves)
    children = [put_together(vm, child, leaves) for child in spec.children()]
    if spec.type is tuple:
        return TupleValue(children)
    if spec.type is list:
        return ListValue(children)
    if spec.type is collections.namedtuple:
        return named_tuple(spec.context, children)
    if spec.type is dict:
        made = DictValue()
        for key, child in zip(spec.context, children, strict=True):
            dicts.put(vm, made, vm.constant(key), child)
        made.mutated = False
        return made
    cls, context = spec.context if spec.type is Parts else (spec.type, spec.context)
    return made_of(vm, cls, context, children)
