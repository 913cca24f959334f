"""What a tensor tells of its storage: where it begins in it, and how large it is.

An input is guarded for that only where the program asks: pieces of one tensor share a graph.
"""

from __future__ import annotations

from typing import Any

import torch
from dovetail_guards import clauses as c
from dovetail_guards.iterators import READERS
from dovetail_guards.source import IteratorSource
from dovetail_prims.fake_tensor import FakeTensor

from dovetail_capture.interpreter.library.torch_functions.inner_graphs import InnerRecorder
from dovetail_capture.interpreter.machine.handler_types import PASS, Args, Handler, Kwargs
from dovetail_capture.interpreter.machine.machine import Interpreter
from dovetail_capture.interpreter.signals import GraphBreakSignal
from dovetail_capture.interpreter.values.base import Value
from dovetail_capture.interpreter.values.computed_sources import PlainSource
from dovetail_capture.interpreter.values.objects import ObjectValue
from dovetail_capture.interpreter.values.tensors import ArraySource, TensorValue

_PLAIN = (torch.Tensor, torch.nn.Parameter)
_CHANGING = ("resize_", "resize_as_", "set_", "as_strided_")


def storage_offset(vm: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    """`x.storage_offset()`: a number like an argument, for an input as it was given; a view of one
    has its own, for as long as the input begins where it does now."""
    obj = args[0]
    found = _input_of(vm, obj, "storage_offset()")
    if found is None:
        return PASS
    assert isinstance(obj, TensorValue) and found.source is not None
    source = vm.session.sources.iterator_part(found.source, "storage_offset")
    begins = READERS["storage_offset"](found.real)
    if obj is found and type(obj.fake._offset) is int and obj.fake._offset == begins:
        return vm.wrap(begins, source)
    vm.session.guards.add(c.ConstantIs, source, begins)
    return PASS


def untyped_storage(vm: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    """`x.untyped_storage()` of an input or of a view of one."""
    found = _input_of(vm, args[0], "the storage")
    if found is None:
        return PASS
    assert found.source is not None
    source = vm.session.sources.iterator_part(found.source, "storage")
    return vm.wrap(READERS["storage"](found.real), source)


def storage_bytes(vm: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    """`x.untyped_storage().nbytes()`: a number like an argument."""
    obj = args[0]
    source = obj.source
    if (
        not isinstance(obj, ObjectValue)
        or not isinstance(source, IteratorSource)
        or source.part != "storage"
    ):
        return PASS
    _refuse_changed(vm, "the size of the storage")
    return vm.wrap(
        obj.real.nbytes(), vm.session.sources.iterator_part(source.base, "storage_bytes")
    )


def _input_of(vm: Interpreter, obj: Value, what: str) -> TensorValue | None:
    """The input of the graph whose storage a tensor has; None if the frame made that."""
    if not isinstance(obj, TensorValue):
        return None
    inputs = [value for _, value in vm.session.inputs.entries if isinstance(value, TensorValue)]
    found = [value for value in inputs if value.fake._storage is obj.fake._storage]
    if obj.source is None and not found:
        return None
    _refuse_changed(vm, what)
    given = obj if obj.source is not None else found[0]
    if (
        (given is not obj and len(found) > 1)  # they may come to share none
        or given not in found
        or vm.session.exports
        or vm.session.recorder.mapped
        or isinstance(given.source, (ArraySource, PlainSource))
        or any(value.cls not in _PLAIN or value.data is not None for value in (given, obj))
        or any(type(value.fake) is not FakeTensor for value in (given, obj))
    ):
        raise GraphBreakSignal(f"{what} of an input or of a view of one")
    return given


def _refuse_changed(vm: Interpreter, what: str) -> None:
    """What is read of a storage is what it was when the frame began."""
    recorder = vm.session.recorder
    changes = any(
        "out" in node.kwargs
        or str(getattr(node.target, "__name__", node.target)).split(".")[0] in _CHANGING
        for node in recorder.graph.nodes
    )
    if changes or isinstance(recorder, InnerRecorder):
        raise GraphBreakSignal(f"{what} of an input or of a view of one, which may have changed")


HANDLERS: dict[Any, Handler] = {
    torch.Tensor.storage_offset: storage_offset,
    torch.Tensor.untyped_storage: untyped_storage,
    torch.UntypedStorage.nbytes: storage_bytes,
}
