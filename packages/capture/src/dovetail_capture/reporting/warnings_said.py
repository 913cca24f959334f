"""Warnings of a captured program: said after its graph, for the line that they are for in eager."""

from __future__ import annotations

import sys
import warnings
from dataclasses import dataclass, field
from typing import Any


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
