"""What special methods of the program give, which Python checks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dovetail_capture.interpreter.values.base import Value

if TYPE_CHECKING:
    from dovetail_capture.interpreter.machine import Interpreter


def returned(vm: Interpreter, value: Value, wanted: type, text: str) -> Value:
    """What a special method returned; TypeError, naming its type, if it is no `wanted`."""
    cls = value.python_type()
    if wanted not in cls.__mro__:
        vm.raise_error(TypeError, text.format(cls.__name__))
    return value
