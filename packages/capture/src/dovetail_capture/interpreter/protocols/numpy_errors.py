"""What `numpy.seterr` says of floating-point errors, where NumPy computes at capture."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from dovetail_guards.torch_state import READERS

from dovetail_capture.interpreter.session.session import Session


def _is_of_numpy(real: Any) -> bool:
    return type(real).__module__ == "numpy"  # (NumPy's own functions are of classes of its own)


def call(
    session: Session, function: Any, args: Sequence[Any], kwargs: Mapping[str, Any] | None = None
) -> Any:
    """Call a pure function. What NumPy is to do at floating-point errors is guarded if there was
    one."""
    named = kwargs or {}
    numpy = sys.modules.get("numpy")
    if numpy is None or not any(map(_is_of_numpy, (function, *args, *named.values()))):
        return function(*args, **named)
    try:
        with numpy.errstate(all="raise"):
            return function(*args, **named)
    except FloatingPointError:
        note(session)
        return function(*args, **named)


def note(session: Session) -> bool:
    """Guard whether NumPy raises or calls something at floating-point errors. Does it?"""
    reader: Callable[[], tuple[str, ...]] = READERS["numpy_errors"]
    errors = reader()
    session.guards.state("numpy_errors", errors)
    return bool(errors)
