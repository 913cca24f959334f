"""Names of modules, read through a frame's globals, and of `builtins`."""

from __future__ import annotations

import builtins
from typing import TYPE_CHECKING, Any

from dovetail_guards import clauses as c

from dovetail_capture.interpreter.signals import GraphBreakSignal
from dovetail_capture.interpreter.values.base import Value
from dovetail_capture.interpreter.values.containers import DictValue

if TYPE_CHECKING:
    from dovetail_capture.interpreter.machine import Interpreter

_BUILTINS = builtins.__dict__


def global_value(vm: Interpreter, globals_: dict[str, Any], name: str) -> Value:
    """A global or builtin, read through a frame's globals."""
    session = vm.session
    key = (id(globals_), name)
    opened = session.objects.known.get(id(globals_))
    if isinstance(opened, DictValue) and opened.mutated:
        raise GraphBreakSignal("a global read where `globals()` was changed in this graph")
    if session.effects.global_writes and key in session.effects.global_writes:
        if session.late_reads.watch is not None:
            session.late_reads.watch.written(name)
        written = session.effects.global_writes[key]
        if written is not None:
            return written
    elif (known := vm.global_values.get(key)) is not None:
        return known
    sources = session.sources
    is_own = globals_ is session.globals_
    if name in globals_ and key not in session.effects.global_writes:
        if is_own:
            source = sources.root("global", name)
        else:
            label = f"globals of {globals_.get('__name__', '?')}"
            source = sources.item(sources.held(globals_, label), name)
        value = vm.wrap(globals_[name], source)
    else:
        if is_own:
            session.guards.add(c.GlobalPresent, name, False)  # type: ignore[arg-type]
        else:
            session.guards.add(c.HasKey, sources.held(globals_), name, False)
        value = built_in(vm, name)
    vm.global_values[key] = value
    return value


def built_in(vm: Interpreter, name: str) -> Value:
    """A name of Python's `builtins`; NameError without it."""
    sources = vm.session.sources
    held = sources.held(_BUILTINS, "builtins")
    if name not in _BUILTINS:
        vm.session.guards.add(c.HasKey, held, name, False)
        vm.raise_error(NameError, f"name '{name}' is not defined", name=name)
    return vm.wrap(_BUILTINS[name], sources.item(held, name))
