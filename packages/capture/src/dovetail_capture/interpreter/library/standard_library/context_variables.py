"""`contextvars.ContextVar`: what one holds is guarded; setting it is replayed after the graph."""

from __future__ import annotations

import contextvars
from typing import Any

from dovetail_guards import clauses as c
from dovetail_guards import iterators

from dovetail_capture.interpreter.machine.handler_types import Args, Handler, Kwargs
from dovetail_capture.interpreter.machine.machine import Interpreter
from dovetail_capture.interpreter.signals import GraphBreakSignal
from dovetail_capture.interpreter.values.base import NONE, Value
from dovetail_capture.interpreter.values.objects import ContextWrite, TokenValue


def _real(value: Value) -> Any:
    real = getattr(value, "real", None) or getattr(value, "value", None)
    if not isinstance(real, contextvars.ContextVar):
        raise GraphBreakSignal(f"{value.describe()} used as a ContextVar")
    return real


def context_get(vm: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    """`variable.get()`, `variable.get(default)`."""
    real, session = _real(args[0]), vm.session
    if session.late_reads.watch is not None:
        raise GraphBreakSignal("a ContextVar that a backward or a hook reads")
    written = session.effects.context_writes.get(real)
    if written is not None:
        return written.value
    source = session.sources.held(real, f"context variable {real.name}")
    place = session.sources.iterator_part(source, "context")
    found = iterators.context(real)
    session.guards.add(c.LengthIs, place, len(found))
    if found:
        return vm.wrap(found[0], session.sources.item(place, 0))
    if len(args) > 1:
        return args[1]
    try:
        return vm.held(real.get())
    except LookupError:
        return vm.raise_exception(LookupError, [args[0]])


def context_set(vm: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    """`variable.set(value)`; the token that it gives stays in the graph."""
    real, session = _real(args[0]), vm.session
    token = TokenValue(real, session.effects.context_writes.get(real), vm.frames[0].steps)
    session.effects.context_writes[real] = ContextWrite(args[0], args[1])
    return token


def context_reset(vm: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    """`variable.reset(token)`."""
    real, session, token = _real(args[0]), vm.session, args[1]
    if not isinstance(token, TokenValue) or token.used or token.variable is not real:
        raise GraphBreakSignal("a ContextVar reset by a token that another graph gave")
    token.used = True
    if token.before is None:
        session.effects.context_writes.pop(real, None)
    else:
        session.effects.context_writes[real] = token.before
    return NONE


HANDLERS: dict[Any, Handler] = {
    contextvars.ContextVar.get: context_get,
    contextvars.ContextVar.set: context_set,
    contextvars.ContextVar.reset: context_reset,
}
