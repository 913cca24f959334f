"""Shared objects of compiled kernels: open as long as somebody may call into them."""

from __future__ import annotations

import ctypes
import weakref
from _ctypes import dlclose
from dataclasses import dataclass
from pathlib import Path


class CppLibrary:
    """An open shared object, closed when this is dropped. (A process has room for some ten
    thousand of them, and one that compiles on and on would run out.)"""

    def __init__(self, path: Path) -> None:
        self._library = ctypes.CDLL(str(path))
        closing = weakref.finalize(self, dlclose, self._library._handle)
        closing.atexit = False  # threads that the process does not wait for may be in a kernel

    def function(self, symbol: str) -> CppFunction | None:
        """The function called `symbol`, if there is one."""
        function = getattr(self._library, symbol, None)
        if function is None:
            return None
        address = ctypes.cast(function, ctypes.c_void_p).value
        assert address is not None
        return CppFunction(address, self)


@dataclass(frozen=True, eq=False)
class CppFunction:
    """A compiled kernel. Who may call what is at `address` holds this, which keeps it there: a
    bare address outlives nothing."""

    address: int
    library: CppLibrary
