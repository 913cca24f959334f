"""What a capture context knows of each code object, and forgets when the code dies."""

from __future__ import annotations

import weakref
from dataclasses import dataclass, field
from types import CodeType
from typing import Any

from dovetail_guards.guard_set import GuardSet

from dovetail_capture.recompiles import MadeFor


@dataclass
class CodeFacts:
    """What is known of one code object."""

    guards: list[GuardSet] = field(default_factory=list)  # of its compiled versions
    made_for: list[MadeFor] = field(default_factory=list)  # (as many)
    sizes: frozenset[tuple[str, int]] = frozenset()  # those that change from call to call
    replaced: frozenset[str] = frozenset()  # modules and functions that do
    has_graph: bool = False  # some version has a graph, or breaks
    plain_floats: bool = False  # its floats are not to be symbolic
    refused: dict[int, str] = field(default_factory=dict)  # operations the backend cannot compile
    told: set[str] = field(default_factory=set)  # why some calls run uncaptured, as the log says
    watched: list[weakref.ref[Any]] = field(default_factory=list)  # objects its versions are for
    eager_sizes: dict[tuple[str, int], int] | None = None  # of a first call that ran uncompiled


class FactsByCode:
    """The facts of code objects by identity: another code may get the id of one that died."""

    def __init__(self) -> None:
        self._facts: dict[int, CodeFacts] = {}
        self._alive: dict[int, weakref.ref[CodeType]] = {}

    def of(self, code: CodeType) -> CodeFacts:
        """The facts of `code`, which the caller may change."""
        key = id(code)
        found = self._facts.get(key)
        if found is None:
            owner = weakref.ref(self)

            def forget(_: Any) -> None:
                table = owner()
                if table is not None:
                    table._facts.pop(key, None)
                    table._alive.pop(key, None)

            found = self._facts[key] = CodeFacts()
            self._alive[key] = weakref.ref(code, forget)
        return found

    def all(self) -> list[CodeFacts]:
        """The facts of every code object, in the order in which they were met."""
        return list(self._facts.values())

    def clear(self) -> None:
        """Forget everything."""
        self._facts.clear()
        self._alive.clear()
