"""What a handler of a library function is."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, cast

from dovetail_capture.interpreter.values.base import Value

if TYPE_CHECKING:
    from dovetail_capture.interpreter.machine import Interpreter


Args = list[Value]
Kwargs = dict[str, Value]
Handler = Callable[["Interpreter", Args, Kwargs], Value]
# What a handler returns to leave the call to the general rules.
PASS = cast(Value, NotImplemented)
