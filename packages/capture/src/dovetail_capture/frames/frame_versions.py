"""The compiled versions of frames: what is known of them, why none fits a call, and how many there
may be.

What a capture context knows of each code object it forgets when the code dies.
"""

from __future__ import annotations

import linecache
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from types import CodeType, FunctionType
from typing import Any, Self

from dovetail_guards.clauses import IdIs, ShapeRelation
from dovetail_guards.evaluate import FrameView
from dovetail_guards.explain import clause_text
from dovetail_guards.guard_set import GuardSet
from dovetail_guards.process_lock import ProcessLock
from dovetail_prims.artifact_log import tell

from dovetail_capture import _frame_hook
from dovetail_capture._frame_hook import Entry
from dovetail_capture.bytecode.continuation import ContinuationCache
from dovetail_capture.captured_frame import GraphBreak
from dovetail_capture.environment.callers import warn_caller
from dovetail_capture.environment.torch_switches import captures_data
from dovetail_capture.errors import InternalError, RecompileLimitError, place_of
from dovetail_capture.frames.guard_filter import GuardFilter
from dovetail_capture.frames.recompiles import (
    MadeFor,
    changed_sizes,
    gone_objects,
    replaced_objects,
    same_case,
    sizes_of,
    wants_gone_tensor,
)
from dovetail_capture.interpreter.machine.machine import Substitute
from dovetail_capture.options import CaptureOptions, Learned
from dovetail_capture.reporting.compile_log import Change, CompileLog
from dovetail_capture.stance import breaks_are_errors


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


CompileGuards = Callable[[GuardSet, CodeType], Any]
"""Makes what the hook checks: a guard capsule, or a callable of (args, func)."""

_MOST_ENTRIES = 128  # compiled versions of one frame, whatever modules they are for


@dataclass(frozen=True)
class RegionSettings:
    """What tells apart regions of one code and backend, beside how frames are captured.

    recompile_limit: how many versions a frame may have.
    guard_filter_fn: tells which guards are kept.
    isolate_recompiles: one call of `optimize` shares with no other.
    backend_key: calls that give the same share, whatever their backends.
    """

    recompile_limit: int = 8
    guard_filter_fn: GuardFilter | None = None
    isolate_recompiles: bool = False
    backend_key: object = None


def native_guard(guards: GuardSet, code: CodeType) -> Any:
    """The native check of a guard set, as the hook reads it."""
    return guards.compile(code).capsule


class GuardsFail(InternalError):
    """Guards do not hold for the call that they were made from."""


class FrameVersions(_frame_hook.Context):
    """The versions of each frame of one region, with what was learned of the frame."""

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        """(The hook's context takes the callback alone: here it is a method.)"""
        return super().__new__(cls)

    def __init__(
        self,
        options: CaptureOptions,
        region: RegionSettings,
        roots: Sequence[CodeType],
        log: CompileLog,
        compile_guards: CompileGuards,
    ) -> None:
        self.options = options
        self.region = region
        self.log = log
        self._compile_guards = compile_guards
        # (Weakly: a region lives as long as the code that it is for.)
        self._roots = {id(code): weakref.ref(code) for code in roots}
        self.calls_of_optimize = 0  # which share what is compiled here
        self._continuations = ContinuationCache()
        self.lock = ProcessLock()
        self._facts = FactsByCode()
        self.static_graphs = ""  # why the backend gets no symbols, if it does not

    @property
    def hook(self) -> _frame_hook.Context:
        """The entries of compiled frames, as the hook finds them."""
        return self

    def is_root(self, code: CodeType) -> bool:
        """Is this the code of what is optimized?"""
        root = self._roots.get(id(code))
        return root is not None and root() is code

    @property
    def settings(self) -> dict[str, Any]:
        """What `optimize` was called with, besides the backend."""
        return {
            "fullgraph": self.options.fullgraph,
            "dynamic": self.options.dynamic,
            "on_error": self.options.on_error,
            **vars(self.region),
        }

    def explain_guards(self) -> str:
        """The guards of everything compiled so far, frame by frame, in the order of checking."""
        parts = []
        for code in reversed(self.hook.codes()):
            root = self._continuations.root_code(code)
            after = "" if root is code else " (after a graph break)"
            for number, guards in enumerate(self._facts.of(code).guards):
                parts.append(f"{place_of(root)}{after}, version {number}: {guards.as_text()}")
        return "\n".join(parts)

    def recompiles(self) -> tuple[str, ...]:
        """Why compiled frames did not fit a call, oldest first: the guard that failed, what was
        seen instead, and what to do about it; also when a recompile limit was reached."""
        kinds = ("recompile", "limit")
        return tuple(event.as_text() for event in self.log.events if event.kind in kinds)

    def shape_guards(self) -> tuple[str, ...]:
        """What compiled frames rely on of sizes, as a person writes it."""
        found = [
            clause_text(clause)
            for facts in self._facts.all()
            for guards in facts.guards
            for clause in guards.clauses
            if isinstance(clause, ShapeRelation)
        ]
        return tuple(dict.fromkeys(found))

    # --- a call that no version fits ---

    def tell_once(self, code: CodeType, why: str) -> None:
        """Log why some calls of a frame run uncaptured."""
        with self.lock:
            told = self._facts.of(code).told
            if why not in told:
                told.add(why)
                self.log.add("plain", self._continuations.root_code(code), why)

    def tell_of_substitute(self, code: CodeType, substitute: Substitute) -> None:
        """Log that a step runs in parts, unless the frame that called it was captured and broke."""
        if all(told.reason != substitute.reason for told in self.log.breaks):
            file, line = code.co_filename, code.co_firstlineno
            text = linecache.getline(file, line)
            self.log.add_break(
                code, GraphBreak(substitute.reason, file, line, text, substitute.hint)
            )

    def is_first_call(self, code: CodeType, args: tuple[Any, ...]) -> bool:
        """Under "eager_then_compile": a call that only tells which sizes there are."""
        facts = self._facts.of(code)
        if facts.eager_sizes is not None or facts.versions:
            return False
        facts.eager_sizes = sizes_of(code, args)
        return True

    def why_missed(self, code: CodeType, func: FunctionType, args: tuple[Any, ...]) -> str:
        view = FrameView(args, func)
        failures = [guards.explain_failure(view) for guards in self._facts.of(code).guards]
        why = "; ".join(str(failure) for failure in failures) or "nothing was compiled for it"
        return f"a recompile, with the stance 'fail_on_recompile', of {place_of(code)}: {why}"

    def options_for(self, code: CodeType) -> CaptureOptions:
        """The options, with what is known of a frame."""
        return replace(
            self.options,
            learned=self._facts.of(code).learned,
            static_graphs=self.options.static_graphs or bool(self.static_graphs),
            unwinds=self._continuations.unwinding(code) is not None,
            captures_data=self.options.captures_data or captures_data(),
        )

    def is_error(self, graph_break: GraphBreak) -> bool:
        """Is a graph break here an error?"""
        return self.options.fullgraph or (breaks_are_errors() and not graph_break.allowed)

    def may_recompile(self, code: CodeType, func: FunctionType, args: tuple[Any, ...]) -> bool:
        """Record why no entry fits. False when the limit is reached."""
        facts = self._facts.of(code)
        known = facts.versions
        view = FrameView(args, func)
        failures = [version.guards.explain_failure(view) for version in known]
        root = self._continuations.root_code(code)
        newest = next((f for f in reversed(failures) if f is not None), None)
        reason, change = "", None
        if newest is not None:
            reason = str(newest)
            tell("recompiles_verbose", place_of(root), lambda: "\n".join(str(f) for f in failures))
            if newest.subject:
                change = Change(newest.subject, newest.wanted, newest.found, newest.hint)
        same = same_case(failures, [version.made_for for version in known], view)
        if same < self.region.recompile_limit and len(known) < _MOST_ENTRIES:
            self.log.add("recompile", root, reason, change=change)
            layers = self.layers(code, facts)
            facts.stale = tuple(v for v in known if wants_gone_tensor(v.guards, view))
            for version in known:
                facts.replaced |= replaced_objects(version.guards, view, layers)
                if self.options.dynamic is not False:
                    facts.sizes |= changed_sizes(version.guards, view)
            return True
        text = (
            f"was compiled {len(known)} times, which is the recompile limit; "
            f"from now on, calls that fit no compiled version run uncompiled. "
            f"Newest reason: {reason or 'unknown'}"
        )
        message = f"{place_of(root)} {text}"
        self.log.add("limit", root, text, change=change)
        if self.options.fullgraph:
            raise RecompileLimitError(message)
        # What a loop does is told by the log; without a graph, nothing is lost.
        if not self._continuations.is_continuation(code) and facts.has_graph:
            warn_caller(message, RuntimeWarning)
        return False

    def layers(self, code: CodeType, facts: CodeFacts) -> CodeType | None:
        """The method whose modules have a version each on a GPU: one within what is optimized, as
        long as there are few."""
        shared = self.calls_of_optimize > 1 and self.is_root(code)
        few = len(facts.versions) < self.region.recompile_limit
        return self._continuations.root_code(code) if few and not shared else None

    def checked_guard(
        self, code: CodeType, func: FunctionType, args: tuple[Any, ...], guards: GuardSet
    ) -> Any:
        guard = self._compile_guards(guards, code)
        if not _frame_hook.check_guard(guard, args, func):
            failure = guards.explain_failure(FrameView(args, func))
            raise GuardsFail(
                f"the guards of {place_of(code)} do not hold for the very call they were made "
                f"from: {failure or 'the native check disagrees with the slow one'}"
            )
        return guard

    def add_version(
        self, code: CodeType, view: FrameView, guards: GuardSet, guard: Any, new_code: CodeType
    ) -> _frame_hook.Entry:
        """Let the hook run `new_code` where `guard`, the native form of `guards`, holds. `view` is
        of the call that it was made for."""
        facts = self._facts.of(code)
        facts.eager_sizes = None
        entry = self.hook.add(code, guard, new_code)
        made_for = MadeFor.of(guards, view, self.layers(code, facts))
        version = Version(guards, made_for, weakref.ref(entry))
        facts.versions = (*facts.versions, version)
        self._discard_with_objects(code, facts, version)
        for old in facts.stale:
            old_entry = old.entry()
            if old_entry is not None:
                self.discard(code, old_entry)
            facts.drop(old)
        facts.stale = ()
        return entry

    def _discard_with_objects(self, code: CodeType, facts: CodeFacts, version: Version) -> None:
        """Forget a version when an object dies that its guards want."""
        context, of_code, its = weakref.ref(self), weakref.ref(code), weakref.ref(facts)

        def forget(_: Any) -> None:
            alive, known, entry, told = context(), of_code(), version.entry(), its()
            if alive is not None and known is not None and entry is not None:
                alive.discard(known, entry)
            if told is not None:
                told.drop(version)

        clauses = (c for c in version.guards.clauses if isinstance(c, IdIs) and c.is_weak)
        facts.watched[version] = [weakref.ref(clause.obj, forget) for clause in clauses]
