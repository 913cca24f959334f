"""All that the interpreter knows of library functions, in one table."""

from __future__ import annotations

import types
from typing import Any

from dovetail_capture.interpreter.library import (
    builtin_functions,
    container_methods,
    stdlib,
    torch_functions,
)
from dovetail_capture.interpreter.library.builtin_functions import is_instance, to_text
from dovetail_capture.interpreter.library.container_methods import Handler
from dovetail_capture.interpreter.library.torch_functions import is_operation, tensor_property
from dovetail_capture.interpreter.protocols import attributes

__all__ = [
    "HANDLERS", "NEW_HANDLERS", "PURE_CLASSES", "is_instance", "is_operation",
    "is_pure", "tensor_property", "to_text",
]  # fmt: skip

HANDLERS: dict[Any, Handler] = {
    **container_methods.HANDLERS,
    **builtin_functions.HANDLERS,
    **stdlib.HANDLERS,
    **torch_functions.HANDLERS,
}
NEW_HANDLERS = builtin_functions.NEW_HANDLERS
PURE_CLASSES: frozenset[type] = stdlib.PURE_CLASSES | torch_functions.PURE_CLASSES

_PURE_TYPES = stdlib.PURE_TYPES + torch_functions.PURE_TYPES


def is_pure(fn: Any) -> bool:
    """Is `fn` known to have no effect and to depend on its arguments only?"""
    if isinstance(fn, attributes.C_METHODS):
        return issubclass(fn.__objclass__, _PURE_TYPES) or fn in stdlib.PURE_FUNCTIONS
    if isinstance(fn, types.BuiltinFunctionType):
        if fn in stdlib.PURE_FUNCTIONS or fn.__module__ in stdlib.PURE_MODULES:
            return True
        return isinstance(fn.__self__, _PURE_TYPES)
    try:
        return fn in stdlib.PURE_FUNCTIONS
    except TypeError:
        return False
