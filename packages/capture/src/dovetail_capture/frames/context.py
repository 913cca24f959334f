"""One capture context: what happens when the hook meets a frame that it has no code for.

A context belongs to one `optimize` wrapper: one backend, one set of options, its own compiled
frames. The hook finds the frames' entries by itself; only a miss comes here.
"""

from __future__ import annotations

import builtins
import inspect
import linecache
import time
import weakref
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from types import CodeType, FunctionType
from typing import Any, Self

import torch
from dovetail_guards.clauses import IdIs, ShapeRelation
from dovetail_guards.evaluate import FrameView
from dovetail_guards.explain import clause_text
from dovetail_guards.guard_set import GuardSet
from dovetail_guards.process_lock import ProcessLock
from dovetail_guards.torch_state import no_hooks_on_saved_tensors
from dovetail_prims.artifact_log import tell

from dovetail_capture import _frame_hook
from dovetail_capture.bytecode.continuation import ContinuationCache, Resumption
from dovetail_capture.bytecode.continuation_state import CannotResume
from dovetail_capture.bytecode.unwinding import leave_blocks
from dovetail_capture.captured_frame import CapturedFrame, GraphBreak, Way
from dovetail_capture.environment.builtins_kept import replaced_builtin
from dovetail_capture.environment.signal_errors import handlers_raise
from dovetail_capture.environment.surroundings import (
    observer,
    place_of_caller,
    torch_state_kept,
    users_part,
    warn_caller,
)
from dovetail_capture.environment.torch_switches import captures_data, suppresses_errors
from dovetail_capture.errors import (
    CaptureError,
    InternalError,
    ModuleToInitialise,
    NotCapturable,
    OfProgram,
    RecompileError,
    RecompileLimitError,
    error_of_break,
    place_of,
)
from dovetail_capture.frames.backend_run import (
    Asked,
    Backend,
    NeedsPlainFloats,
    NeedsStaticGraphs,
    NodeRefused,
    run_backend,
)
from dovetail_capture.frames.code_facts import CodeFacts, FactsByCode, Version
from dovetail_capture.frames.finally_replay import replay_of
from dovetail_capture.frames.guard_filter import GuardFilter, keep_guards
from dovetail_capture.frames.recompiles import (
    MadeFor,
    changed_sizes,
    replaced_objects,
    same_case,
    sizes_of,
    wants_gone_tensor,
)
from dovetail_capture.interpreter.library.function_table import substitute_of
from dovetail_capture.interpreter.machine.handler_types import Substitute
from dovetail_capture.knobs import FULL_TRACEBACKS
from dovetail_capture.marks import is_disabled, without_others_marks
from dovetail_capture.options import CaptureOptions
from dovetail_capture.replacement.replacement_code import build_replacement
from dovetail_capture.reporting.artifacts import tell_of_frame, tell_of_graph
from dovetail_capture.reporting.compile_log import Change, CompileLog, FrameRecord
from dovetail_capture.reporting.failures import error_of_program, failure_of, note_failure
from dovetail_capture.skip import (
    is_generated_for_skipped,
    is_skipped,
    opens_checkpoint,
    runs_with_capture_off,
)
from dovetail_capture.stance import breaks_are_errors, current_stance, forced_backend

Capture = Callable[..., CapturedFrame]
CompileGuards = Callable[[GuardSet, CodeType], Any]
"""Makes what the hook checks: a guard capsule, or a callable of (args, func)."""


_OPEN_CHECKPOINT = (
    "{}: a module whose hooks checkpoint it (torch.distributed._composable.checkpoint) in a "
    "compiled function: its backward computes it again without what is compiled, and would take "
    "other tensors than were saved for those that were; call torch.utils.checkpoint.checkpoint"
)


_BUILTINS = builtins.__dict__
_OTHER_BUILTINS = "called where `{}` is not Python's own, it runs uncaptured"

_MOST_ENTRIES = 128  # compiled versions of one frame, whatever modules they are for


def _is_disabled_for_all(args: tuple[Any, ...], func: FunctionType) -> bool:
    """The guard of wrappers of `torch.compiler.disable`, all of which have the same code: those
    that PyTorch's own compiler put around optimizers' steps are none to us."""
    return is_disabled(func) and without_others_marks(func) is func


def native_guard(guards: GuardSet, code: CodeType) -> Any:
    """The native check of a guard set, as the hook reads it."""
    return guards.compile(code).capsule


_MOST_REPEATS = 4  # of a capture whose guards do not hold at its end


class _GuardsFail(InternalError):
    """Guards do not hold for the call that they were made from."""


class CaptureContext(_frame_hook.Context):
    """Captures frames for one backend; what `Switched` wrappers switch on.

    Nothing in it refers back to it, nor does it keep alive what guards only compare by identity:
    with the last wrapper, or a module that it was compiled for, goes all that was compiled."""

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        """(The hook's context takes the callback alone: here it is a method.)"""
        return super().__new__(cls)

    def __init__(
        self,
        backend: Backend,
        capture: Capture,
        *,
        options: CaptureOptions | None = None,
        recompile_limit: int = 8,
        roots: Sequence[CodeType] = (),
        log: CompileLog | None = None,
        compile_guards: CompileGuards = native_guard,
        guard_filter_fn: GuardFilter | None = None,
        isolate_recompiles: bool = False,
        backend_key: object = None,
    ) -> None:
        """`capture` is `interpreter.capture_frame`; `roots` are codes that are captured even
        though they lie in a skipped directory (the forward of a torch.nn module)."""
        self.backend = backend
        self.options = options or CaptureOptions()
        self.recompile_limit = recompile_limit
        self.log = log or CompileLog()
        self._capture = capture
        self._compile_guards = compile_guards
        self.guard_filter_fn = guard_filter_fn
        self._sharing = {"isolate_recompiles": isolate_recompiles, "backend_key": backend_key}
        # (Weakly: a region lives as long as the code that it is for.)
        self._roots = {id(code): weakref.ref(code) for code in roots}
        self.calls_of_optimize = 0  # which share what is compiled here
        self._continuations = ContinuationCache()
        self._lock = ProcessLock()
        self._facts = FactsByCode()
        self._static_graphs = ""  # why the backend gets no symbols, if it does not

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
            "recompile_limit": self.recompile_limit,
            "guard_filter_fn": self.guard_filter_fn,
            "on_error": self.options.on_error,
            **self._sharing,
        }

    def reset(self) -> None:
        """Forget all compiled frames; they are captured afresh at their next call. A backend that
        has a method `reset` is reset, too, as torch.compile's are."""
        with self._lock:
            super().reset()
            self._facts.clear()
            self._static_graphs = ""
            self._continuations = ContinuationCache()
            self.log.clear()
            reset_backend = getattr(self.backend, "reset", None)
            if callable(reset_backend):
                reset_backend()

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

    # --- a miss ----------------------------------------------------------------------------------

    def on_miss(self, code: CodeType, func: FunctionType, args: tuple[Any, ...]) -> Any:
        try:
            return self._answer(code, func, args)
        except BaseException as raised:
            error = self._judged(code, raised)
            try:
                if error is None:
                    return _frame_hook.SKIP
                unwinding = self._continuations.unwinding(code)
                if unwinding is not None:
                    leave_blocks(error, unwinding, func.__globals__, func.__closure__, *args)
                try:
                    if error is raised:
                        raise
                    raise error from error.__cause__
                finally:  # (raised again as it is then, without an entry for this frame)
                    if not (FULL_TRACEBACKS or isinstance(error, InternalError)):
                        error.__traceback__ = users_part(error.__traceback__)
            finally:
                del error  # (its traceback holds this frame)

    def _judged(self, code: CodeType, error: BaseException) -> BaseException | None:
        """What is to be raised for an error on a miss: the program's own, or one that tells of what
        was asked for. None for an internal error, if the frame may run uncompiled."""
        if isinstance(error, OfProgram):
            return error.error
        own = error_of_program(error)
        if own is not None:
            return own
        if not isinstance(error, Exception):
            return error
        if isinstance(error, CaptureError) and not isinstance(error, InternalError):
            return error
        root = self._continuations.root_code(code)
        if not isinstance(error, InternalError):
            text = f"internal error while answering a call of {place_of(root)}: {error!r}"
            internal = InternalError(text)
            internal.__cause__ = error
            error = internal
        if self.options.fullgraph or self.options.on_error == "raise":
            return error
        self.log.add("plain", root, f"{error}; this frame runs uncaptured")
        self.hook.close(code)
        note_failure(self.log.failures, failure_of("capture", error, place_of(root)))
        return None

    def _answer(self, code: CodeType, func: FunctionType, args: tuple[Any, ...]) -> Any:
        """What the hook is to do with a frame that it has no entry for."""
        replaced = replaced_builtin()
        if replaced is not None:
            self._tell_once(code, _OTHER_BUILTINS.format(replaced))
            return None
        if without_others_marks(func) is not func:
            return None  # what it calls is captured; its code is that of all disabled functions
        if getattr(func, "_torchdynamo_disable_recursive", None) is False:
            _frame_hook.skip_code(inspect.unwrap(func).__code__)
            return None  # (torch's wrappers of this kind have one code, which others share)
        if runs_with_capture_off(code):
            if is_disabled(func):  # (with code that it shares with what is not)
                return self.hook.add(code, _is_disabled_for_all, code)
            return _frame_hook.OFF
        if opens_checkpoint(code):
            raise CaptureError(_OPEN_CHECKPOINT.format(place_of_caller()))
        if getattr(func, "_torchdynamo_disable", False):
            return _frame_hook.OFF
        substitute = substitute_of(code)
        if substitute is not None:
            self._tell_of_step(code, substitute)
            guard = self._compile_guards(GuardSet(()), code)
            return self.hook.add(code, guard, substitute.code)
        skipped = is_skipped(code) or is_generated_for_skipped(code, func)
        if skipped and not self.is_root(code):
            if not self._continuations.is_continuation(code):
                return _frame_hook.SKIP
        if getattr(func, "__builtins__") is not _BUILTINS:  # noqa: B009
            self._tell_once(code, _OTHER_BUILTINS.format("__builtins__"))
            return None
        onlooker = observer()
        if onlooker is not None:
            self._tell_once(code, f"called {onlooker}, it runs uncaptured")
            return None
        with self._lock, torch._C.DisableTorchFunction():  # what is read here, no mode sees
            for entry in self.hook.entries(code):
                if _frame_hook.check_guard(entry.guard, args, func):
                    return entry  # another thread compiled it while this one waited
            return self._new_answer(code, func, args)

    def _new_answer(self, code: CodeType, func: FunctionType, args: tuple[Any, ...]) -> Any:
        if self.hook.is_closed(code):
            return None
        stance = current_stance()
        if stance == "eager_on_recompile":
            return None
        if stance == "fail_on_recompile":
            raise RecompileError(self._why_missed(code, func, args))
        if stance == "eager_then_compile" and self._is_first_call(code, args):
            return None
        # Entries and marks are made here, under the lock: a thread that waits is to find them.
        while True:
            try:
                with handlers_raise(), torch_state_kept(), no_hooks_on_saved_tensors():
                    answer = self._compile_or_skip(code, func, args)
                break
            except ModuleToInitialise as found:
                found.initialise()  # (here the random numbers that it draws are kept as drawn)
        if answer is _frame_hook.SKIP:
            self.hook.close(code)
        return answer

    def _compile_or_skip(self, code: CodeType, func: FunctionType, args: tuple[Any, ...]) -> Any:
        try:
            return self._compile(code, func, args)
        except NotCapturable as error:
            self.log.add("plain", self._continuations.root_code(code), str(error))
            return _frame_hook.SKIP

    def _tell_once(self, code: CodeType, why: str) -> None:
        """Log why some calls of a frame run uncaptured."""
        with self._lock:
            told = self._facts.of(code).told
            if why not in told:
                told.add(why)
                self.log.add("plain", self._continuations.root_code(code), why)

    def _tell_of_step(self, code: CodeType, substitute: Substitute) -> None:
        """Log that a step runs in parts, unless the frame that called it was captured and broke."""
        if all(told.reason != substitute.reason for told in self.log.breaks):
            file, line = code.co_filename, code.co_firstlineno
            text = linecache.getline(file, line)
            self.log.add_break(
                code, GraphBreak(substitute.reason, file, line, text, substitute.hint)
            )

    def _is_first_call(self, code: CodeType, args: tuple[Any, ...]) -> bool:
        """Under "eager_then_compile": a call that only tells which sizes there are."""
        facts = self._facts.of(code)
        if facts.eager_sizes is not None or facts.versions:
            return False
        facts.eager_sizes = sizes_of(code, args)
        return True

    def _why_missed(self, code: CodeType, func: FunctionType, args: tuple[Any, ...]) -> str:
        view = FrameView(args, func)
        failures = [guards.explain_failure(view) for guards in self._facts.of(code).guards]
        why = "; ".join(str(failure) for failure in failures) or "nothing was compiled for it"
        return f"a recompile, with the stance 'fail_on_recompile', of {place_of(code)}: {why}"

    def _compile(self, code: CodeType, func: FunctionType, args: tuple[Any, ...]) -> Any:
        facts = self._facts.of(code)
        if facts.versions and not self._may_recompile(code, func, args):
            return _frame_hook.SKIP
        started = time.perf_counter()
        repeats = 0
        while True:
            try:
                return self._compile_once(code, func, args, started)
            except _GuardsFail:
                if repeats == _MOST_REPEATS:
                    raise
                repeats += 1  # another thread may have changed what was captured
            except NeedsPlainFloats as needs:
                self._facts.of(code).plain_floats = True
                self.log.add("plain floats", code, f"backend: {needs.__cause__!r}")
            except NeedsStaticGraphs as needs:
                self._static_graphs = str(needs)
                self._facts.of(code).refused.clear()  # (operations are numbered anew)
            except NodeRefused as refusal:
                self._facts.of(code).refused[refusal.operation] = str(refusal)

    def _compile_once(
        self, code: CodeType, func: FunctionType, args: tuple[Any, ...], started: float
    ) -> Any:
        frame = self._captured(code, func, args)
        captured = time.perf_counter()
        resumption = None
        if frame.break_ is not None:
            resumption = self._resumption(code, frame)
            if resumption is None:
                return _frame_hook.SKIP
        has_graph = frame.graph is not None
        text = ""
        if frame.break_ is None and self.keeps_code(frame):
            # Run as it is, the hook lets alone what it calls, too: that was captured, and has
            # nothing to compile, unless Python is told another thing than capture was.
            new_code = code.replace() if frame.told_compiling else code
        else:
            compiled = self._compiled_graph(code, frame) if has_graph else None
            try:
                unwinding = self._continuations.unwinding(code) if has_graph else None
                leave = None
                if frame.way.leaves:
                    leaving = partial(_leave, weakref.ref(self), code, frame.way)
                    leave = _frame_hook.Switched(leaving, None)
                replacement = build_replacement(frame, compiled, resumption, unwinding, leave)
            except Exception as error:
                raise InternalError(
                    f"internal error while replacing {place_of(code)}: {error!r}"
                ) from error
            new_code, text = replacement.code, replacement.text
        finished = time.perf_counter()
        guards = frame.all_guards()
        if frame.shape_env is not None:
            frame.shape_env.freeze()  # nothing more may be assumed: the guards are made
        if self.guard_filter_fn is not None:
            try:
                guards = keep_guards(guards, self.guard_filter_fn, code, func, args)
            except Exception as error:
                raise OfProgram(error) from error
        guard = self._checked_guard(code, func, args, guards)
        tell_of_frame(self._continuations.root_code(code), frame, guards, new_code)
        facts = self._facts.of(code)
        facts.eager_sizes = None
        if has_graph or resumption is not None:
            facts.has_graph = True
        self.log.add(
            "frame" if has_graph or frame.break_ is not None else "no graph",
            self._continuations.root_code(code),
            capture_seconds=captured - started,
            backend_seconds=finished - captured,
        )
        if has_graph:
            self.log.counters["graph"] += 1
        if frame.checks is not None:
            self.log.checks += frame.checks.places
        if self.log.keep_frames:
            self.log.frames.append(FrameRecord(frame, text))
        entry = self.hook.add(code, guard, new_code)
        made_for = MadeFor.of(guards, FrameView(args, func), self._layers(code, facts))
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

    def keeps_code(self, frame: CapturedFrame) -> bool:
        """Does an unbroken frame go on with the user's code? Where there is nothing to compile,
        it is the fastest."""
        return frame.graph is None

    def _captured(self, code: CodeType, func: FunctionType, args: tuple[Any, ...]) -> CapturedFrame:
        facts = self._facts.of(code)
        before = facts.eager_sizes
        if before is not None and self.options.dynamic is None:
            now = sizes_of(code, args)
            facts.sizes |= {key for key in before.keys() & now.keys() if before[key] != now[key]}
        try:
            frame = self._capture(code, func, args, options=self._options_for(code))
        except NotCapturable as error:
            self.log.add_break(self._continuations.root_code(code), error.break_)
            if self._is_error(error.break_):
                raise error_of_break(error.break_) from None
            raise
        except CaptureError:
            self.log.add("error", code, "capture")
            raise
        except ModuleToInitialise:
            raise
        except Exception as error:
            if error_of_program(error) is not None:
                raise
            self.log.add("error", code, f"capture: {error!r}")
            raise InternalError(
                f"internal error while capturing {place_of(code)}: {error!r}"
            ) from error
        if frame.break_ is not None:
            self.log.add_break(self._continuations.root_code(code), frame.break_)
            if self._is_error(frame.break_):
                raise error_of_break(frame.break_)
        return frame

    def _options_for(self, code: CodeType) -> CaptureOptions:
        """The options, with what is known of a frame."""
        return replace(
            self.options,
            learned=self._facts.of(code).learned,
            static_graphs=self.options.static_graphs or bool(self._static_graphs),
            unwinds=self._continuations.unwinding(code) is not None,
            captures_data=self.options.captures_data or captures_data(),
        )

    def _leave(self, code: CodeType, way: Way, error: BaseException, *frame: Any) -> None:
        """Do what a frame's `finally` blocks do where its graph has raised `error`."""
        with self._lock, torch._C.DisableTorchFunction(), torch_state_kept():
            try:
                replay = replay_of(code, way, self._options_for(code), error, *frame)
            except Exception as failure:
                self.log.add("error", code, f"leaving its blocks: {failure!r}")
                return
        replay()

    def _is_error(self, graph_break: GraphBreak) -> bool:
        """Is a graph break here an error?"""
        return self.options.fullgraph or (breaks_are_errors() and not graph_break.allowed)

    def _resumption(self, code: CodeType, frame: CapturedFrame) -> Resumption | None:
        """How to go on after the break; None when the frame has to run plainly."""
        try:
            return self._continuations.resume(code, frame.end)
        except CannotResume as refusal:
            assert frame.break_ is not None
            reason = f"{refusal}; this frame runs uncaptured, what it calls is still captured"
            self.log.add("plain", self._continuations.root_code(code), reason)
            return None

    def _compiled_graph(self, code: CodeType, frame: CapturedFrame) -> Callable[..., Any]:
        tell_of_graph(frame)
        breaks_allowed = not (self.options.fullgraph or breaks_are_errors())
        facts = self._facts.of(code)
        static = bool(self._static_graphs)
        if static and (self.options.dynamic or facts.sizes):
            self.log.add("static graph", code, self._static_graphs)
        suppressed = suppresses_errors()
        asked = Asked(breaks_allowed, static, self.options.on_error, suppressed)
        forced = forced_backend()
        backend = self.backend if forced is None else forced
        return run_backend(backend, code, frame, facts, self.log, asked)

    def _checked_guard(
        self, code: CodeType, func: FunctionType, args: tuple[Any, ...], guards: GuardSet
    ) -> Any:
        guard = self._compile_guards(guards, code)
        if not _frame_hook.check_guard(guard, args, func):
            failure = guards.explain_failure(FrameView(args, func))
            raise _GuardsFail(
                f"the guards of {place_of(code)} do not hold for the very call they were made "
                f"from: {failure or 'the native check disagrees with the slow one'}"
            )
        return guard

    # --- recompiles ------------------------------------------------------------------------------

    def _may_recompile(self, code: CodeType, func: FunctionType, args: tuple[Any, ...]) -> bool:
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
        if same < self.recompile_limit and len(known) < _MOST_ENTRIES:
            self.log.add("recompile", root, reason, change=change)
            layers = self._layers(code, facts)
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

    def _layers(self, code: CodeType, facts: CodeFacts) -> CodeType | None:
        """The method whose modules have a version each on a GPU: one within what is optimized, as
        long as there are few."""
        shared = self.calls_of_optimize > 1 and self.is_root(code)
        few = len(facts.versions) < self.recompile_limit
        return self._continuations.root_code(code) if few and not shared else None


def _leave(
    context: weakref.ref[CaptureContext],
    code: CodeType,
    way: Way,
    error: BaseException,
    *frame: Any,
) -> None:
    """`CaptureContext._leave`, for code that its context owns."""
    alive = context()
    if alive is not None:
        alive._leave(code, way, error, *frame)
