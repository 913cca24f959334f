"""What weak references and proxies point to."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

from dovetail_guards import source as s

from dovetail_capture.interpreter.signals import GraphBreakSignal
from dovetail_capture.interpreter.values.base import Value
from dovetail_capture.interpreter.values.containers import DictValue, ListValue, TupleValue
from dovetail_capture.interpreter.values.functions import CellValue
from dovetail_capture.interpreter.values.objects import ObjectValue

if TYPE_CHECKING:
    from dovetail_capture.interpreter.machine import Interpreter

PROXIES: tuple[type, ...] = (weakref.ProxyType, weakref.CallableProxyType)
# Attributes of a proxy are its target's: a method of every object tells whose it is.
_TO_TARGET = ("__reduce_ex__", "__self__")


def is_proxy(cls: object) -> bool:
    """Is it a class of proxies? (What a class of the program's is equal to, its metaclass says.)"""
    return cls is weakref.ProxyType or cls is weakref.CallableProxyType


def target_of(vm: Interpreter, reference: ObjectValue) -> Value:
    """What a reference made in the frame points to, while something keeps it alive."""
    wanted: Value = reference.slots["target"]
    if any(wanted is slot for frame in vm.frames for slot in frame.slots):
        return wanted  # a variable keeps it alive
    if wanted.source is not None and _is_kept(vm, wanted.source):
        return wanted
    kind = "proxy" if is_proxy(reference.cls) else "reference"
    raise GraphBreakSignal(f"a call of a weak {kind} made here: its target may be gone")


def target_of_proxy(vm: Interpreter, proxy: ObjectValue) -> Value:
    """The object behind a `weakref.proxy`. One that existed before is found anew in each call, so
    that compiled code does not keep it alive."""
    if proxy.real is None:
        return target_of(vm, proxy)
    try:
        target = proxy.real
        for name in _TO_TARGET:
            target = getattr(target, name)
        is_target = any(known is proxy.real for known in weakref.getweakrefs(target))
    except (AttributeError, ReferenceError, TypeError):
        is_target = False
    if not is_target or proxy.source is None:
        raise GraphBreakSignal("a weak proxy whose target is gone, or hides itself")
    return vm.wrap(target, vm.session.sources.attrs(proxy.source, ".".join(_TO_TARGET)))


def _is_kept(vm: Interpreter, source: s.Source) -> bool:
    """Is what lay at this place before the frame ran still there?"""
    frame = vm.frames[0]
    match source:
        case s.ObjectSource():
            return True
        case s.LocalSource(name) if name in frame.decoded.slot_names:
            slot = frame.slots[frame.decoded.slot_names.index(name)]
            return _is_from(slot.content if isinstance(slot, CellValue) else slot, source)
        case s.ClosureSource(name):
            slot = frame.slots[frame.decoded.slot_names.index(name)]
            return isinstance(slot, CellValue) and _is_from(slot.content, source)
        case s.GlobalSource(name):
            return (id(vm.session.globals_), name) not in vm.session.effects.global_writes
        case s.AttrSource(base, name) | s.InstanceAttrSource(base, name) | s.ItemSource(base, name):
            return _holds(_at(vm, base), name, source) and _is_kept(vm, base)
    return False


def _at(vm: Interpreter, place: s.Source) -> Any:
    """The value of what lay at a place before the frame ran."""
    return next(
        (known for known in vm.session.objects.known.values() if known.source is place), None
    )


def _holds(holder: Any, key: Any, source: s.Source) -> bool:
    """Does an object, or a container, still hold what it held at this place?"""
    if isinstance(holder, ObjectValue):
        match source:
            case s.InstanceAttrSource():
                return _holds(holder.fields, key, source)
            case s.ItemSource():
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


def _is_from(value: Any, source: s.Source) -> bool:
    return getattr(value, "source", None) is source
