"""Attributes of other modules and classes replaced for a while, and given back as they were."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

_MISSING = object()


@dataclass
class Replacements:
    """What was replaced, newest last: (owner, name, what stood there, what stands there now)."""

    _made: list[tuple[Any, str, Any, Any]] = field(default_factory=list)

    def replace(self, owner: Any, name: str, value: Any) -> None:
        """Let `owner.name` be `value`, unless it is."""
        before = vars(owner).get(name, _MISSING)
        if before is not value:
            setattr(owner, name, value)
            self._made.append((owner, name, before, value))

    def undo(self) -> None:
        """Give back what stood there. What somebody else has replaced since stays theirs."""
        while self._made:
            owner, name, before, value = self._made.pop()
            if vars(owner).get(name, _MISSING) is not value:
                continue
            if before is _MISSING:
                delattr(owner, name)
            else:
                setattr(owner, name, before)
