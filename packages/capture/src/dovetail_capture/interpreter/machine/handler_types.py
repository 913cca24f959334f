"""What a handler of a library function is, and what an extension adds to the tables of them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from types import CodeType
from typing import TYPE_CHECKING, Any, cast

from dovetail_capture.interpreter.values.base import NONE, Value, boolean

if TYPE_CHECKING:
    from dovetail_capture.interpreter.machine.machine import Interpreter


Args = list[Value]
Kwargs = dict[str, Value]
Handler = Callable[["Interpreter", Args, Kwargs], Value]
# What a handler returns to leave the call to the general rules.
PASS = cast(Value, NotImplemented)


def answering(function: Callable[..., Value]) -> Handler:
    """A handler that gives what `function(vm, *args)` gives."""
    return lambda vm, args, kwargs: function(vm, *args)


def telling(function: Callable[..., bool]) -> Handler:
    """A handler that gives the truth value that `function(vm, *args)` tells."""
    return lambda vm, args, kwargs: boolean(function(vm, *args))


def doing(function: Callable[..., None]) -> Handler:
    """A handler that calls `function(vm, *args)` for its effect, and gives None."""

    def handler(vm: Interpreter, args: Args, kwargs: Kwargs) -> Value:
        function(vm, *args)
        return NONE

    return handler


@dataclass(frozen=True)
class Substitute:
    """What Python runs in place of a library function that cannot be captured as one graph."""

    code: CodeType  # takes what the function takes, and calls what stands in for it
    reason: str  # why a graph ends before a call
    hint: str = "leave the step out of the compiled function"


@dataclass(frozen=True)
class Extension:
    """What a part of capture that the core does not import adds to `function_table`."""

    name: str
    handlers: Mapping[Any, Handler] = field(default_factory=dict)
    code_handlers: Mapping[CodeType, Callable[..., Value | None]] = field(default_factory=dict)
    named_handlers: Mapping[tuple[str, str], Handler] = field(default_factory=dict)
    substitutes: Mapping[CodeType, Substitute] = field(default_factory=dict)
    # Code of functions whose frames are not worth capturing: what calls them is.
    without_frame: Collection[CodeType] = ()
    arrays: Any = None  # operators, subscripts and attributes of NumPy arrays
