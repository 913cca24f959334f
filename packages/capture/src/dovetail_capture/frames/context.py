"""One capture context: what happens when the hook meets a frame that it has no code for.

A context belongs to one `optimize` wrapper: one backend, one set of options, its own compiled
frames. The hook finds the frames' entries by itself; only a miss comes here.
"""

from __future__ import annotations

import builtins
import inspect
import time
import weakref
from collections.abc import Callable, Sequence
from functools import partial
from types import CodeType, FunctionType
from typing import Any

import torch
from dovetail_guards.evaluate import FrameView
from dovetail_guards.guard_set import GuardSet
from dovetail_guards.torch_state import no_hooks_on_saved_tensors

from dovetail_capture import _frame_hook, skip
from dovetail_capture import errors as errors
from dovetail_capture.bytecode.continuation import ContinuationCache, Resumption, leave_blocks
from dovetail_capture.bytecode.continuation_state import CannotResume
from dovetail_capture.captured_frame import CapturedFrame
from dovetail_capture.environment.callers import place_of_caller, users_part
from dovetail_capture.environment.python_state import handlers_raise, replaced_builtin
from dovetail_capture.environment.torch_state import observer, torch_state_kept
from dovetail_capture.environment.torch_switches import suppresses_errors
from dovetail_capture.frames import backend_run, frame_versions
from dovetail_capture.frames.finally_replay import leave_blocks_of
from dovetail_capture.frames.guard_filter import keep_guards
from dovetail_capture.frames.recompiles import sizes_of
from dovetail_capture.interpreter.library.function_table import substitute_of
from dovetail_capture.knobs import FULL_TRACEBACKS
from dovetail_capture.marks import is_disabled, without_others_marks
from dovetail_capture.options import CaptureOptions
from dovetail_capture.replacement.replacement_code import build_replacement
from dovetail_capture.reporting.compile_log import (
    CompileLog,
    FrameRecord,
    tell_of_frame,
    tell_of_graph,
)
from dovetail_capture.reporting.failures import error_of_program, failure_of, note_failure
from dovetail_capture.reporting.program_warnings import operator_blocks_end
from dovetail_capture.stance import breaks_are_errors, current_stance, forced_backend

Capture = Callable[..., CapturedFrame]

_OPEN_CHECKPOINT = (
    "{}: a module whose hooks checkpoint it (torch.distributed._composable.checkpoint) in a "
    "compiled function: its backward computes it again without what is compiled, and would take "
    "other tensors than were saved for those that were; call torch.utils.checkpoint.checkpoint"
)

_BUILTINS = builtins.__dict__
_OTHER_BUILTINS = "called where `{}` is not Python's own, it runs uncaptured"


def _is_disabled_for_all(args: tuple[Any, ...], func: FunctionType) -> bool:
    """The guard of wrappers of `torch.compiler.disable`, all of which have the same code: those
    that PyTorch's own compiler put around optimizers' steps are none to us."""
    return is_disabled(func) and without_others_marks(func) is func


_DEFAULTS = frame_versions.RegionSettings()
_MOST_REPEATS = 4  # of a capture whose guards do not hold at its end


class CaptureContext(frame_versions.FrameVersions):
    """Captures frames for one backend; what `Switched` wrappers switch on.

    Nothing in it refers back to it, nor does it keep alive what guards only compare by identity:
    with the last wrapper, or a module that it was compiled for, goes all that was compiled."""

    def __init__(
        self,
        backend: backend_run.Backend,
        capture: Capture,
        *,
        options: CaptureOptions | None = None,
        region: frame_versions.RegionSettings = _DEFAULTS,
        roots: Sequence[CodeType] = (),
        log: CompileLog | None = None,
        compile_guards: frame_versions.CompileGuards = frame_versions.native_guard,
    ) -> None:
        """`capture` is `interpreter.capture_frame`; `roots` are codes that are captured even
        though they lie in a skipped directory (the forward of a torch.nn module)."""
        super().__init__(
            options or CaptureOptions(), region, roots, log or CompileLog(), compile_guards
        )
        self.backend = backend
        self._capture = capture

    def reset(self) -> None:
        """Forget all compiled frames; they are captured afresh at their next call. A backend that
        has a method `reset` is reset, too, as torch.compile's are."""
        with self.lock:
            super().reset()
            self._facts.clear()
            self.static_graphs = ""
            self._continuations = ContinuationCache()
            self.log.clear()
            reset_backend = getattr(self.backend, "reset", None)
            if callable(reset_backend):
                reset_backend()

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
                    if not (FULL_TRACEBACKS or isinstance(error, errors.InternalError)):
                        error.__traceback__ = users_part(error.__traceback__)
            finally:
                del error  # (its traceback holds this frame)

    def _judged(self, code: CodeType, error: BaseException) -> BaseException | None:
        """What is to be raised for an error on a miss: the program's own, or one that tells of what
        was asked for. None for an internal error, if the frame may run uncompiled."""
        if isinstance(error, errors.OfProgram):
            return error.error
        own = error_of_program(error)
        if own is not None:
            return own
        if not isinstance(error, Exception):
            return error
        if isinstance(error, errors.CaptureError) and not isinstance(error, errors.InternalError):
            return error
        root = self._continuations.root_code(code)
        if not isinstance(error, errors.InternalError):
            text = f"internal error while answering a call of {errors.place_of(root)}: {error!r}"
            internal = errors.InternalError(text)
            internal.__cause__ = error
            error = internal
        if self.options.fullgraph or self.options.on_error == "raise":
            return error
        self.log.add("plain", root, f"{error}; this frame runs uncaptured")
        self.hook.close(code)
        note_failure(self.log.failures, failure_of("capture", error, errors.place_of(root)))
        return None

    def _answer(self, code: CodeType, func: FunctionType, args: tuple[Any, ...]) -> Any:
        """What the hook is to do with a frame that it has no entry for."""
        replaced = replaced_builtin()
        if replaced is not None:
            self.tell_once(code, _OTHER_BUILTINS.format(replaced))
            return None
        if without_others_marks(func) is not func:
            return None  # what it calls is captured; its code is that of all disabled functions
        if getattr(func, "_torchdynamo_disable_recursive", None) is False:
            _frame_hook.skip_code(inspect.unwrap(func).__code__)
            return None  # (torch's wrappers of this kind have one code, which others share)
        if skip.runs_with_capture_off(code):
            if is_disabled(func):  # (with code that it shares with what is not)
                return self.hook.add(code, _is_disabled_for_all, code)
            return _frame_hook.OFF
        if skip.opens_checkpoint(code):
            raise errors.CaptureError(_OPEN_CHECKPOINT.format(place_of_caller()))
        if getattr(func, "_torchdynamo_disable", False):
            return _frame_hook.OFF
        substitute = substitute_of(code)
        if substitute is not None:
            self.tell_of_substitute(code, substitute)
            guard = self._compile_guards(GuardSet(()), code)
            return self.hook.add(code, guard, substitute.code)
        skipped = skip.is_skipped(code) or skip.is_generated_for_skipped(code, func)
        if skipped and not self.is_root(code) and not self._continuations.is_continuation(code):
            return _frame_hook.SKIP
        if getattr(func, "__builtins__") is not _BUILTINS:  # noqa: B009
            self.tell_once(code, _OTHER_BUILTINS.format("__builtins__"))
            return None
        onlooker = observer()
        if onlooker is not None:
            self.tell_once(code, f"called {onlooker}, it runs uncaptured")
            return None
        with self.lock, torch._C.DisableTorchFunction():  # what is read here, no mode sees
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
            raise errors.RecompileError(self.why_missed(code, func, args))
        if stance == "eager_then_compile" and self.is_first_call(code, args):
            return None
        # Entries and marks are made here, under the lock: a thread that waits is to find them.
        while True:
            try:
                with (
                    handlers_raise() as handlers,
                    operator_blocks_end(),
                    torch_state_kept(),
                    no_hooks_on_saved_tensors(),
                ):
                    try:
                        handlers.raises = True
                        answer = self._compile_or_skip(code, func, args)
                    finally:
                        handlers.raises = False
                break
            except errors.ModuleToInitialise as found:
                found.initialise()  # (here the random numbers that it draws are kept as drawn)
        if answer is _frame_hook.SKIP:
            self.hook.close(code)
        return answer

    def _compile_or_skip(self, code: CodeType, func: FunctionType, args: tuple[Any, ...]) -> Any:
        try:
            return self._compile(code, func, args)
        except errors.NotCapturable as error:
            self.log.add("plain", self._continuations.root_code(code), str(error))
            return _frame_hook.SKIP

    def _compile(self, code: CodeType, func: FunctionType, args: tuple[Any, ...]) -> Any:
        facts = self._facts.of(code)
        if facts.versions and not self.may_recompile(code, func, args):
            return _frame_hook.SKIP
        started = time.perf_counter()
        repeats = 0
        while True:
            try:
                return self._compile_once(code, func, args, started)
            except frame_versions.GuardsFail:
                if repeats == _MOST_REPEATS:
                    raise
                repeats += 1  # another thread may have changed what was captured
            except backend_run.NeedsPlainFloats as needs:
                self._facts.of(code).plain_floats = True
                self.log.add("plain floats", code, f"backend: {needs.__cause__!r}")
            except backend_run.NeedsStaticGraphs as needs:
                self.static_graphs = str(needs)
                self._facts.of(code).refused.clear()  # (operations are numbered anew)
            except backend_run.NodeRefused as refusal:
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
        compiled = self._compiled_graph(code, frame) if has_graph else backend_run.CompiledGraph()
        kind = "frame" if has_graph or frame.break_ is not None else "no graph"
        if frame.break_ is None and self.keeps_code(frame, compiled):
            kind = "own code" if has_graph else kind
            # Run as it is, the hook lets alone what it calls, too: that was captured, and has
            # nothing to compile, unless Python is told another thing than capture was.
            new_code = code.replace() if frame.attempt_options.told_compiling else code
        else:
            try:
                unwinding = self._continuations.unwinding(code) if has_graph else None
                leave = None
                if frame.attempt_options.leaves:
                    leaving = partial(
                        leave_blocks_of, weakref.ref(self), code, frame.attempt_options
                    )
                    leave = _frame_hook.Switched(leaving, None)
                replacement = build_replacement(frame, compiled.call, resumption, unwinding, leave)
            except Exception as error:
                raise errors.InternalError(
                    f"internal error while replacing {errors.place_of(code)}: {error!r}"
                ) from error
            new_code, text = replacement.code, replacement.text
        finished = time.perf_counter()
        guards = every = frame.all_guards(compiled.assumed)
        if frame.shape_env is not None:
            frame.shape_env.freeze()  # nothing more may be assumed: the guards are made
        if self.region.guard_filter_fn is not None:
            try:
                guards = keep_guards(guards, self.region.guard_filter_fn, code, func, args)
            except Exception as error:
                raise errors.OfProgram(error) from error
        guard = self.checked_guard(code, func, args, guards)
        tell_of_frame(self._continuations.root_code(code), frame, guards, new_code)
        if has_graph or resumption is not None:
            self._facts.of(code).has_graph = True
        self.log.add(
            kind,
            self._continuations.root_code(code),
            capture_seconds=captured - started,
            backend_seconds=finished - captured,
        )
        if has_graph:
            self.log.counters["graph"] += 1
        if frame.checks is not None:
            self.log.checks += frame.checks.places
        if self.log.keep_frames:
            self.log.frames.append(FrameRecord(frame, every, text))
        return self.add_version(code, FrameView(args, func), guards, guard, new_code)

    def keeps_code(self, frame: CapturedFrame, compiled: backend_run.CompiledGraph) -> bool:
        """Does an unbroken frame go on with the user's code, as nothing is gained by another?"""
        return frame.graph is None or (compiled.as_written and frame.is_its_graph())

    def _captured(self, code: CodeType, func: FunctionType, args: tuple[Any, ...]) -> CapturedFrame:
        facts = self._facts.of(code)
        before = facts.eager_sizes
        if before is not None and self.options.dynamic is None:
            now = sizes_of(code, args)
            facts.sizes |= {key for key in before.keys() & now.keys() if before[key] != now[key]}
        try:
            frame = self._capture(code, func, args, options=self.options_for(code))
        except errors.NotCapturable as error:
            self.log.add_break(self._continuations.root_code(code), error.break_)
            if self.is_error(error.break_):
                raise errors.error_of_break(error.break_) from None
            raise
        except errors.CaptureError:
            self.log.add("error", code, "capture")
            raise
        except Exception as error:
            if isinstance(error, errors.ModuleToInitialise) or error_of_program(error) is not None:
                raise
            self.log.add("error", code, f"capture: {error!r}")
            raise errors.InternalError(
                f"internal error while capturing {errors.place_of(code)}: {error!r}"
            ) from error
        if frame.break_ is not None:
            self.log.add_break(self._continuations.root_code(code), frame.break_)
            if self.is_error(frame.break_):
                raise errors.error_of_break(frame.break_)
        return frame

    def _resumption(self, code: CodeType, frame: CapturedFrame) -> Resumption | None:
        """How to go on after the break; None when the frame has to run plainly."""
        try:
            return self._continuations.resume(code, frame.end)
        except CannotResume as refusal:
            assert frame.break_ is not None
            reason = f"{refusal}; this frame runs uncaptured, what it calls is still captured"
            self.log.add("plain", self._continuations.root_code(code), reason)
            return None

    def _compiled_graph(self, code: CodeType, frame: CapturedFrame) -> backend_run.CompiledGraph:
        tell_of_graph(frame)
        breaks_allowed = not (self.options.fullgraph or breaks_are_errors())
        facts = self._facts.of(code)
        static = bool(self.static_graphs)
        if static and (self.options.dynamic or facts.sizes):
            self.log.add("static graph", code, self.static_graphs)
        suppressed = suppresses_errors()
        asked = backend_run.Asked(breaks_allowed, static, self.options.on_error, suppressed)
        forced = forced_backend()
        backend = self.backend if forced is None else forced
        return backend_run.run_backend(backend, code, frame, facts, self.log, asked)
