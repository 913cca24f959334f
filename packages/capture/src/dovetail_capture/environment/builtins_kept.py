"""Are Python's built-in functions and classes those that were there when we were loaded?

Capture is written in Python: where `builtins.len` is another function, it cannot run.
"""

from __future__ import annotations

import builtins
from operator import itemgetter

# What programs replace that capture does not call. (It imports some of itself when it needs it.)
_NOT_CALLED = frozenset(
    "print input open breakpoint help exit quit copyright credits license "
    "__debug__ __doc__ __name__ __package__ __loader__ __spec__ _".split()
)
_NAMES = tuple(name for name in vars(builtins) if name not in _NOT_CALLED)
_READ = itemgetter(*_NAMES)
_OBJECTS = _READ(vars(builtins))
_PAIRS = tuple(zip(_NAMES, _OBJECTS, strict=True))


def replaced_builtin() -> str | None:
    """The name of a built-in function or class that was replaced, if there is one. Calls none."""
    now = builtins.__dict__
    try:
        if _READ(now) == _OBJECTS:
            return None
    except KeyError:
        pass
    for name, real in _PAIRS:
        if name not in now or now[name] is not real:
            return name
    return None
