"""`weakref.ref`: made in the frame, or there before, and called."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

from dovetail_guards.source import (
    AttrSource,
    ClosureSource,
    GlobalSource,
    InstanceAttrSource,
    ItemSource,
    LocalSource,
    ObjectSource,
    Source,
)

from dovetail_capture.interpreter.library.handlers import Args, Kwargs
from dovetail_capture.interpreter.signals import GraphBreakSignal
from dovetail_capture.interpreter.values.base import Value
from dovetail_capture.interpreter.values.containers import DictValue, ListValue, TupleValue
from dovetail_capture.interpreter.values.functions import CellValue
from dovetail_capture.interpreter.values.objects import ObjectValue
from dovetail_capture.interpreter.values.tensors import TensorValue

if TYPE_CHECKING:
    from dovetail_capture.interpreter.machine import Interpreter


def weakref_new(vm: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    """`weakref.ref(target)`, without a callback."""
    if len(args) != 1 or kwargs:
        raise GraphBreakSignal("a weak reference with a callback")
    cls = args[0].python_type()
    if not cls.__weakrefoffset__ and not isinstance(args[0], TensorValue):
        vm.raise_error(TypeError, f"cannot create weak reference to '{cls.__name__}' object")
    reference = ObjectValue(weakref.ReferenceType)
    reference.base_new = weakref.ReferenceType
    reference.slots["target"] = args[0]
    return reference


def weakref_call(vm: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    """`reference()`."""
    reference = args[0]
    assert isinstance(reference, ObjectValue)
    if reference.real is None:
        wanted = reference.slots["target"]
        if any(wanted is slot for frame in vm.frames for slot in frame.slots):
            return wanted  # a variable keeps it alive
        if wanted.source is not None and _is_kept(vm, wanted.source):
            return wanted
        raise GraphBreakSignal("a call of a weak reference made here: its target may be gone")
    target = reference.real()
    if target is None or reference.source is None:
        raise GraphBreakSignal("a weak reference whose target is gone")
    # The guard pins the reference and keeps its target alive: it will always give this one.
    vm.session.guards.pin(reference.source, reference.real)
    return vm.held(target)


def _is_kept(vm: Interpreter, source: Source) -> bool:
    """Is what lay at this place before the frame ran still there?"""
    frame = vm.frames[0]
    match source:
        case ObjectSource():
            return True
        case LocalSource(name) if name in frame.decoded.slot_names:
            slot = frame.slots[frame.decoded.slot_names.index(name)]
            return _is_from(slot.content if isinstance(slot, CellValue) else slot, source)
        case ClosureSource(name):
            slot = frame.slots[frame.decoded.slot_names.index(name)]
            return isinstance(slot, CellValue) and _is_from(slot.content, source)
        case GlobalSource(name):
            return (id(vm.session.globals_), name) not in vm.session.effects.global_writes
        case AttrSource(base, name) | InstanceAttrSource(base, name) | ItemSource(base, name):
            return _holds(_at(vm, base), name, source) and _is_kept(vm, base)
    return False


def _at(vm: Interpreter, place: Source) -> Any:
    """The value of what lay at a place before the frame ran."""
    return next(
        (known for known in vm.session.objects.known.values() if known.source is place), None
    )


def _holds(holder: Any, key: Any, source: Source) -> bool:
    """Does an object, or a container, still hold what it held at this place?"""
    if isinstance(holder, ObjectValue):
        match source:
            case InstanceAttrSource():
                return _holds(holder.fields, key, source)
            case ItemSource():
                return _holds(holder.native, key, source)
            case _:
                return key not in holder.slots_mutated
    if isinstance(holder, DictValue):
        entry = holder.entries.get(key)
        if entry is not None:
            return _is_from(entry[1], source)
        return holder.origin is not None and key not in holder.deleted
    if isinstance(holder, ListValue):
        return not holder.mutated
    return isinstance(holder, TupleValue)


def _is_from(value: Any, source: Source) -> bool:
    return getattr(value, "source", None) is source
