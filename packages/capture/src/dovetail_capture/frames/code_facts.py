"""What a capture context knows of each code object, and forgets when the code dies."""

from __future__ import annotations

import weakref
from dataclasses import dataclass, field
from types import CodeType
from typing import Any

from dovetail_guards.guard_set import GuardSet

from dovetail_capture._frame_hook import Entry
from dovetail_capture.frames.recompiles import MadeFor, gone_objects
from dovetail_capture.options import Learned


@dataclass(frozen=True, eq=False)
class Version:
    """One compiled version of a code object. The hook owns its entry."""

    guards: GuardSet
    made_for: MadeFor
    entry: weakref.ref[Entry]


@dataclass(eq=False)
class CodeFacts:
    """What is known of one code object."""

    # (Replaced as a whole: a version goes when an object dies that it is for, at any time.)
    versions: tuple[Version, ...] = ()
    # Versions for parameters that are no more: the next one, which takes any, is to replace them.
    stale: tuple[Version, ...] = ()
    sizes: frozenset[tuple[str, int]] = frozenset()  # those that change from call to call
    replaced: frozenset[str] = frozenset()  # modules and functions that do
    has_graph: bool = False  # some version has a graph, or breaks
    plain_floats: bool = False  # its floats are not to be symbolic
    refused: dict[int, str] = field(default_factory=dict)  # operations the backend cannot compile
    told: set[str] = field(default_factory=set)  # why some calls run uncaptured, as the log says
    # Objects that versions are for, by the version.
    watched: dict[Version, list[weakref.ref[Any]]] = field(default_factory=dict)
    eager_sizes: dict[tuple[str, int], int] | None = None  # of a first call that ran uncompiled

    @property
    def guards(self) -> list[GuardSet]:
        """Those of the compiled versions, in the order of checking."""
        return [version.guards for version in self.versions]

    @property
    def learned(self) -> Learned:
        """What the next capture is told."""
        return Learned(self.sizes, self.replaced, self.plain_floats, self.refused)

    def drop(self, version: Version) -> None:
        """Forget a version, because an object died that it was for."""
        self.versions = tuple(v for v in self.versions if v is not version)
        self.watched.pop(version, None)
        self.replaced |= gone_objects(version.guards, version.made_for)


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
