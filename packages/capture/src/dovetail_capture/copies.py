"""Copies, pickles and `repr` of compiled functions.

A plain function is its own copy, and so is its compiled form. That of a bound method, or of another
callable object, is compiled anew for the copy. Compiled code is in no pickle: what is loaded is
compiled anew, with the same settings.
"""

from __future__ import annotations

import copy
import sys
from functools import reduce
from pathlib import Path
from types import CodeType, FunctionType, MethodType
from typing import Any

from dovetail_capture._frame_hook import Switched
from dovetail_capture.api import called_by, optimize
from dovetail_capture.frames.context import CaptureContext
from dovetail_capture.marks import disable
from dovetail_capture.wrappers.optimized_module import OptimizedModule


def deepcopy_of(compiled: Switched, memo: dict[int, Any]) -> Any:
    """`copy.deepcopy(compiled, memo)`."""
    target = called_by(compiled.function)
    copied = copy.deepcopy(target, memo)
    if id(compiled) in memo:  # what it belongs to refers back to it
        return memo[id(compiled)]
    return compiled if copied is target else compiled_again(copied, *_settings(compiled))


def reduced(compiled: Switched) -> str | tuple[Any, ...]:
    """What `compiled.__reduce__` gives: its name, if it is found by that, as functions are."""
    name, module = (getattr(compiled, n, None) for n in ("__qualname__", "__module__"))
    if isinstance(name, str) and isinstance(module, str):
        try:
            found: Any = reduce(getattr, name.split("."), sys.modules[module])
        except (KeyError, AttributeError):
            found = None
        if found is compiled:
            return name
    return compiled_again, (called_by(compiled.function), *_settings(compiled))


def described(compiled: Switched) -> str:
    """What `repr(compiled)` gives: `<compiled function f (model.py:12), backend dovetail, mode
    default, 2 graphs>`. The graphs are those of all that shares the compiled code."""
    context = compiled.context
    if not isinstance(context, CaptureContext):
        return f"<compiled {called_by(compiled.function)!r}>"
    count = context.log.graph_count
    graphs = "1 graph" if count == 1 else f"{count} graphs" if count else "nothing compiled yet"
    target, backend = _named(called_by(compiled.function)), _name_of_backend(context.backend)
    return f"<compiled {target}, backend {backend}, {graphs}>"


def _named(target: Any) -> str:
    """A function with its place; of any other callable object, its `repr`."""
    code = getattr(target, "__code__", None)
    if not isinstance(code, CodeType) or not isinstance(target, FunctionType | MethodType):
        return repr(target)
    kind = "method" if isinstance(target, MethodType) else "function"
    return f"{kind} {target.__qualname__} ({Path(code.co_filename).name}:{code.co_firstlineno})"


def _name_of_backend(backend: Any) -> str:
    """A function's name; what an object calls itself to people (`__str__`), or its class."""
    if any("__str__" in vars(cls) for cls in type(backend).__mro__[:-1]):
        return str(backend)
    return str(getattr(backend, "__name__", None) or type(backend).__name__)


def compiled_again(target: Any, backend: Any, settings: dict[str, Any]) -> Any:
    """The compiled form of what a copy or a pickle has in the place of the original."""
    if backend is None:
        return disable(target, **settings)
    compiled = optimize(target, backend, **settings)
    return compiled.forward if isinstance(compiled, OptimizedModule) else compiled


def _settings(compiled: Switched) -> tuple[Any, dict[str, Any]]:
    """The backend, and what else `optimize` was called with; of a disabled function, None and what
    `disable` was called with."""
    context = compiled.context
    if isinstance(context, CaptureContext):
        return context.backend, context.settings
    return None, {"reason": getattr(compiled, "_torchdynamo_disable_msg", None)}
