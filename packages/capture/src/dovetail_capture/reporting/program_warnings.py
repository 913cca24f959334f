"""Warnings of a captured program, and of operators that run on fake tensors: said after the graph,
for the line that they are for in eager."""

from __future__ import annotations

import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from dovetail_capture.skip import is_skipped_file


def action(
    message: str, category: type[Warning], module: str, line: int, filters: Any = None
) -> str:
    """What the program's filters do with a warning: the first one that fits tells."""
    for what, text, kind, where, at in warnings.filters if filters is None else filters:
        if (
            (text is None or _fits(text, message))
            and issubclass(category, kind)
            and (where is None or _fits(where, module))
            and at in (0, line)
        ):
            return str(what)
    return str(getattr(warnings, "defaultaction", "default"))


def _fits(pattern: Any, text: str) -> bool:
    return pattern == text if isinstance(pattern, str) else pattern.match(text) is not None


@dataclass(frozen=True, eq=False)
class WarnAt:
    """`warnings.warn` for a line of a frame that was captured: of the one whose replacement calls
    this (`here`), or of one that was inlined into it, from the module of that name."""

    filename: str
    line: int
    module: str
    here: bool
    own: dict[str, Any] = field(default_factory=dict)  # of a module that is not loaded by its name

    def __call__(self, message: Any, category: Any = None, source: Any = None) -> None:
        """Warn; as with `warnings.warn`, the module remembers what it has warned of."""
        namespace: dict[str, Any] | None = None
        if self.here:
            namespace = sys._getframe(1).f_globals
        elif self.module in sys.modules:
            namespace = vars(sys.modules[self.module])
        registry = (self.own if namespace is None else namespace).setdefault(_REGISTRY, {})
        if not isinstance(message, Warning):
            category = UserWarning if category is None else category
        warnings.warn_explicit(
            message, category, self.filename, self.line, self.module, registry, source=source
        )


_REGISTRY = "__warningregistry__"


@dataclass(frozen=True, eq=False)
class WarnAbove:
    """`warnings.warn` for a frame above the captured one: `level` calls above its function."""

    level: int
    prefixes: tuple[str, ...] = ()

    def __call__(self, message: Any, category: Any = None, source: Any = None) -> None:
        """Warn."""
        level = self.level + 2
        named: Any = {}
        if self.prefixes:
            named = {"skip_file_prefixes": self.prefixes}
            # (The captured function's own frame is passed over then, and no level.)
            level -= sys._getframe(1).f_code.co_filename.startswith(self.prefixes)
        warnings.warn(message, category, level, source, **named)


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
        _HELD.end(_HELD.depth() - 1)

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
            if (
                not self._blocks and warnings.showwarning != self._show
            ):  # (as one cut short left it)
                self._before = warnings.filters, warnings.showwarning
                warnings.filters, warnings.showwarning = self._filters, self._show
            self._blocks.setdefault(threading.get_ident(), []).append(block)

    def depth(self) -> int:
        """How many blocks this thread is in."""
        return len(self._blocks.get(threading.get_ident(), ()))

    def end(self, depth: int) -> None:
        """This thread ends its innermost blocks: it is in `depth` from now on."""
        with self._lock:
            mine = self._blocks.get(threading.get_ident(), [])
            del mine[depth:]
            if not mine:
                self._blocks.pop(threading.get_ident(), None)
            if not self._blocks:
                if warnings.filters is self._filters:
                    warnings.filters = self._before[0]
                if warnings.showwarning == self._show:
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


@contextmanager
def operator_blocks_end() -> Iterator[None]:
    """Ends the blocks that a capture began in here and did not end: what a handler of signals
    raises comes anywhere, also between a block's beginning and what would end it."""
    depth = _HELD.depth()
    try:
        yield
    finally:
        _HELD.end(depth)


_GENERATED = "<eval_with_key>"  # modules of graphs
_HELD = _Held()
