"""Calls of `operator.itemgetter`, `attrgetter` and `methodcaller` objects that the program made."""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any

from dovetail_capture.interpreter.machine.handler_types import Args, Handler, Kwargs
from dovetail_capture.interpreter.values.base import Value

if TYPE_CHECKING:
    from dovetail_capture.interpreter.machine import Interpreter


def getter_call(vm: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    """What a new one, made of the same parts in the frame, gives. (They cannot change.)"""
    make, parts = vm.as_python(args[0]).__reduce__()
    made = vm.call(vm.held(make), [vm.held(part) for part in parts], {})
    return vm.call(made, list(args[1:]), kwargs)


HANDLERS: dict[Any, Handler] = {
    kind.__call__: getter_call
    for kind in (operator.itemgetter, operator.attrgetter, operator.methodcaller)
}
