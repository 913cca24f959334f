"""A lock of one process: a child that was forked while another thread held it finds it free."""

from __future__ import annotations

import os
import threading
from types import TracebackType


class ProcessLock:
    """A reentrant lock for threads. Who held it when the process was forked does not exist in the
    child, and would never release it."""

    def __init__(self) -> None:
        self._process = os.getpid()
        self._lock = threading.RLock()

    def __enter__(self) -> None:
        if self._process != os.getpid():  # (a child starts with one thread)
            self.__init__()  # type: ignore[misc]
        self._lock.acquire()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._lock.release()
