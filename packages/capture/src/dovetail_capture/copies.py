"""Copies and pickles of compiled functions.

A plain function is its own copy, and so is its compiled form. That of a bound method, or of another
callable object, is compiled anew for the copy. Compiled code is in no pickle: what is loaded is
compiled anew, with the same settings.
"""

from __future__ import annotations

import copy
import sys
from functools import reduce
from typing import Any

from dovetail_capture._frame_hook import Switched
from dovetail_capture.api import called_by, optimize
from dovetail_capture.context import CaptureContext
from dovetail_capture.marks import disable
from dovetail_capture.optimized_module import OptimizedModule


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
