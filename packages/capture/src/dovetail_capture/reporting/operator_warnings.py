"""Warnings of operators that run on fake tensors: held till their capture is kept, and said for the
program's line."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable
from typing import Any

from dovetail_capture.reporting.warnings_said import WarnAt, action
from dovetail_capture.skip import is_skipped_file

Place = tuple[str, int, str]  # file, line, name of the module


class OperatorWarnings:
    """A block in which what operators warn of is kept, each warning once for each of the places
    that `place` tells; what the program's filters make an error is raised. Without `place`, for
    graphs whose capture has told of them, nothing is kept."""

    def __init__(self, place: Callable[[], Place] | None = None) -> None:
        self._place = place
        self._found: dict[tuple[str, type[Warning], Place], None] = {}

    def __enter__(self) -> None:
        _HELD.begin(self)

    def __exit__(self, *error: object) -> None:
        _HELD.end()

    def note(self, text: str, category: type[Warning], filters: Any) -> None:
        """Keep what an operator, of this thread, warns of."""
        if self._place is None:
            return
        place = self._place()
        if action(text, category, place[2], place[1], filters) == "error":
            raise category(text)
        self._found[text, category, place] = None

    def say(self) -> None:
        """Warn of what was kept."""
        found, self._found = self._found, {}
        for text, category, (file, line, module) in found:
            WarnAt(file, line, module, here=False)(text, category)


class _Held:
    """The blocks that threads are in. (The program's filters and the way that warnings are shown
    are of the whole process: the first thread replaces them, the last one puts them back.)"""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._blocks: dict[int, list[OperatorWarnings]] = {}
        self._before: tuple[Any, Any] = (None, None)
        self._filters = [("always", None, Warning, None, 0)]

    def begin(self, block: OperatorWarnings) -> None:
        """This thread begins a block."""
        with self._lock:
            if not self._blocks:
                self._before = warnings.filters, warnings.showwarning
                warnings.filters, warnings.showwarning = self._filters, self._show
            self._blocks.setdefault(threading.get_ident(), []).append(block)

    def end(self) -> None:
        """This thread ends its innermost block."""
        with self._lock:
            mine = self._blocks[threading.get_ident()]
            mine.pop()
            if not mine:
                del self._blocks[threading.get_ident()]
            if not self._blocks:
                if warnings.filters is self._filters:
                    warnings.filters = self._before[0]
                warnings.showwarning = self._before[1]

    def _show(
        self, message: Any, category: Any, filename: str, lineno: int, *rest: Any, **named: Any
    ) -> None:
        filters, show = self._before
        # (What our packages warn of, by classes of their own, is no operator's.)
        ours = category.__module__.startswith("dovetail")
        mine = None if ours else self._blocks.get(threading.get_ident())
        if mine and (is_skipped_file(filename) or filename.startswith(_GENERATED)):
            mine[-1].note(str(message), category, filters)
            return
        # Of another thread, or for a line of the program: what a compiler says of itself.
        match action(str(message), category, filename, lineno, filters):
            case "error":
                raise message
            case "ignore":
                pass
            case _:
                show(message, category, filename, lineno, *rest, **named)


_GENERATED = "<eval_with_key>"  # modules of graphs
_HELD = _Held()
