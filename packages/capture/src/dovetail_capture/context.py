"""One capture context: what happens when the hook meets a frame that it has no code for.

A context belongs to one `optimize` wrapper: one backend, one set of options, its own compiled
frames. The hook finds the frames' entries by itself; only a miss comes here.
"""

from __future__ import annotations

import inspect
import threading
import time
import warnings
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from types import CodeType, FunctionType
from typing import Any

import torch
from dovetail_guards.clauses import ConstantIs, IdIs, ShapeRelation, TensorIs
from dovetail_guards.evaluate import FrameView, argument_names, evaluate
from dovetail_guards.explain import GuardFailure, clause_text
from dovetail_guards.guard_set import GuardSet
from dovetail_guards.source import Source
from dovetail_guards.torch_state import FUNCTION_MODES, no_hooks_on_saved_tensors
from dovetail_prims.node_error import blamed
from dovetail_prims.wrappers import is_wrapper_type
from torch.autograd import forward_ad

from dovetail_capture import _frame_hook
from dovetail_capture.captured_frame import CapturedFrame
from dovetail_capture.compile_log import CompileLog, FrameRecord
from dovetail_capture.continuation import ContinuationCache, Resumption
from dovetail_capture.continuation_state import CannotResume
from dovetail_capture.errors import (
    BackendError,
    CaptureError,
    GraphBreakError,
    InternalError,
    NotCapturable,
    RecompileError,
    RecompileLimitError,
    place_of,
)
from dovetail_capture.function_stack import no_function_modes, outside_of_modes
from dovetail_capture.guard_filter import GuardFilter, keep_guards
from dovetail_capture.interpreter.values.plain import is_asked
from dovetail_capture.options import CaptureOptions
from dovetail_capture.replacement import build_replacement
from dovetail_capture.skip import is_generated_for_skipped, is_skipped, runs_with_capture_off
from dovetail_capture.stance import breaks_are_errors, current_stance

Backend = Callable[[torch.fx.GraphModule, list[Any]], Callable[..., Any]]
Capture = Callable[..., CapturedFrame]
CompileGuards = Callable[[GuardSet, CodeType], Any]
"""Makes what the hook checks: a guard capsule, or a callable of (args, func)."""


class _NodeRefused(Exception):
    """The backend cannot compile the operation of this number; says why."""

    def __init__(self, operation: int, reason: str) -> None:
        super().__init__(reason)
        self.operation = operation


class _NeedsPlainFloats(Exception):
    """The backend failed on a graph with symbolic floats; it may take one without."""


_MOST_ENTRIES = 128  # compiled versions of one frame, whatever modules they are for


def native_guard(guards: GuardSet, code: CodeType) -> Any:
    """The native check of a guard set, as the hook reads it."""
    return guards.compile(code).capsule


class CaptureContext:
    """Captures frames for one backend. `hook` is what `Switched` wrappers switch on."""

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
        self._roots = {id(code): code for code in roots}
        self._continuations = ContinuationCache()
        self._lock = threading.RLock()
        self._guards: dict[int, list[GuardSet]] = {}
        self._sizes: dict[int, frozenset[tuple[str, int]]] = {}
        self._replaced: dict[int, frozenset[str]] = {}  # modules that change from call to call
        self._with_graphs: set[int] = set()  # code of which some version has a graph, or breaks
        self._plain_floats: set[int] = set()  # code whose floats are not to be symbolic
        self._refused: dict[int, dict[int, str]] = {}  # operations that the backend cannot compile
        self._eager_sizes: dict[int, dict[tuple[str, int], int]] = {}
        self._finalizers: dict[int, weakref.ref[CodeType]] = {}
        self.hook = _frame_hook.Context(self._on_miss)

    @property
    def settings(self) -> dict[str, Any]:
        """What `optimize` was called with, besides the backend."""
        return {
            "fullgraph": self.options.fullgraph,
            "dynamic": self.options.dynamic,
            "recompile_limit": self.recompile_limit,
            "guard_filter_fn": self.guard_filter_fn,
        }

    def reset(self) -> None:
        """Forget all compiled frames; they are captured afresh at their next call."""
        with self._lock:
            self.hook.reset()
            self._guards.clear()
            self._sizes.clear()
            self._eager_sizes.clear()
            self._replaced.clear()
            self._with_graphs.clear()
            self._plain_floats.clear()
            self._refused.clear()
            self._finalizers.clear()
            self._continuations = ContinuationCache()
            self.log.clear()

    def explain_guards(self) -> str:
        """The guards of everything compiled so far, frame by frame, in the order of checking."""
        parts = []
        for code in reversed(self.hook.codes()):
            root = self._continuations.root_code(code)
            after = "" if root is code else " (after a graph break)"
            for number, guards in enumerate(self._guards.get(id(code), ())):
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
            for known in self._guards.values()
            for guards in known
            for clause in guards.clauses
            if isinstance(clause, ShapeRelation)
        ]
        return tuple(dict.fromkeys(found))

    # --- a miss ----------------------------------------------------------------------------------

    def _on_miss(self, code: CodeType, func: FunctionType, args: tuple[Any, ...]) -> Any:
        if runs_with_capture_off(code):
            return _frame_hook.OFF
        if getattr(func, "_torchdynamo_disable", False):
            recursive = getattr(func, "_torchdynamo_disable_recursive", True)
            return _frame_hook.SKIP if recursive is False else _frame_hook.OFF
        if torch._C._get_tracing_state() is not None:  # of torch.jit.trace, which is to see it all
            return None
        if torch._C._len_torch_dispatch_stack() and _a_dispatch_mode_looks_on():
            return None
        if forward_ad._current_level >= 0:  # whose derivatives no graph computes
            return None
        skipped = is_skipped(code) or is_generated_for_skipped(code, func)
        if skipped and id(code) not in self._roots:
            if not self._continuations.is_continuation(code):
                return _frame_hook.SKIP
        if not torch._C._is_torch_function_enabled() and any(map(_has_own_function, args)):
            return None  # a graph has what the class makes of operations, which now is not asked
        with self._lock, torch._C.DisableTorchFunction():  # what is read here, no mode sees
            for entry in self.hook.entries(code):
                if _frame_hook.check_guard(entry.guard, args, func):
                    return entry  # another thread compiled it while this one waited
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
            with _torch_state_kept(), no_hooks_on_saved_tensors():
                answer = self._compile_or_skip(code, func, args)
            if answer is _frame_hook.SKIP:
                self.hook.close(code)
            return answer

    def _compile_or_skip(self, code: CodeType, func: FunctionType, args: tuple[Any, ...]) -> Any:
        try:
            return self._compile(code, func, args)
        except NotCapturable as error:
            self.log.add("plain", self._continuations.root_code(code), str(error))
            return _frame_hook.SKIP
        except InternalError as error:
            if self.options.fullgraph:
                raise
            self._run_plainly(code, error)
            return _frame_hook.SKIP

    def _is_first_call(self, code: CodeType, args: tuple[Any, ...]) -> bool:
        """Under "eager_then_compile": a call that only tells which sizes there are."""
        if id(code) in self._eager_sizes or id(code) in self._guards:
            return False
        self._eager_sizes[id(code)] = _sizes_of(code, args)
        self._forget_with(code)
        return True

    def _why_missed(self, code: CodeType, func: FunctionType, args: tuple[Any, ...]) -> str:
        view = FrameView(args, func)
        failures = [guards.explain_failure(view) for guards in self._guards.get(id(code), [])]
        why = "; ".join(str(failure) for failure in failures) or "nothing was compiled for it"
        return f"a recompile, with the stance 'fail_on_recompile', of {place_of(code)}: {why}"

    def _run_plainly(self, code: CodeType, error: InternalError) -> None:
        """Tell of a mistake of ours that costs speed only: the frame runs as Python runs it."""
        root = self._continuations.root_code(code)
        self.log.add("plain", root, f"{error}; this frame runs uncaptured")
        warnings.warn(
            f"{error}; it runs uncompiled. Please report this.", RuntimeWarning, stacklevel=3
        )

    def _compile(self, code: CodeType, func: FunctionType, args: tuple[Any, ...]) -> Any:
        known = self._guards.get(id(code), [])
        if known and not self._may_recompile(code, func, args, known):
            return _frame_hook.SKIP
        started = time.perf_counter()
        while True:
            try:
                return self._compile_once(code, func, args, started)
            except _NeedsPlainFloats as needs:
                self._plain_floats.add(id(code))
                self.log.add("plain floats", code, f"backend: {needs.__cause__!r}")
            except _NodeRefused as refusal:
                self._refused.setdefault(id(code), {})[refusal.operation] = str(refusal)
                self._forget_with(code)

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
            new_code = code
        else:
            compiled = self._run_backend(code, frame) if has_graph else None
            try:
                blocks = self._continuations.open_blocks(code)
                replacement = build_replacement(frame, compiled, resumption, blocks)
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
            guards = keep_guards(guards, self.guard_filter_fn, code, func, args)
        guard = self._checked_guard(code, func, args, guards)
        self._remember(code, guards)
        if has_graph or resumption is not None:
            self._with_graphs.add(id(code))
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
        return self.hook.add(code, guard, new_code)

    def keeps_code(self, frame: CapturedFrame) -> bool:
        """Does an unbroken frame go on with the user's code? Where there is nothing to compile,
        it is the fastest."""
        return frame.graph is None

    def _captured(self, code: CodeType, func: FunctionType, args: tuple[Any, ...]) -> CapturedFrame:
        options = self.options
        before = self._eager_sizes.get(id(code))
        if before is not None and options.dynamic is None:
            now = _sizes_of(code, args)
            changed = {key for key in before.keys() & now.keys() if before[key] != now[key]}
            self._sizes[id(code)] = self._sizes.get(id(code), frozenset()) | changed
        sizes = self._sizes.get(id(code))
        if sizes:
            options = replace(options, dynamic_sizes=options.dynamic_sizes | sizes)
        if id(code) in self._replaced:
            options = replace(options, replaced=self._replaced[id(code)])
        if id(code) in self._plain_floats:
            options = replace(options, plain_floats=True)
        refused = self._refused.get(id(code))
        if refused:
            options = replace(options, refused=refused)
        try:
            frame = self._capture(code, func, args, options=options)
        except NotCapturable as error:
            self.log.add_break(self._continuations.root_code(code), error.break_)
            if self.options.fullgraph or breaks_are_errors():
                raise GraphBreakError(error.break_) from None
            raise
        except CaptureError:
            self.log.add("error", code, "capture")
            raise
        except Exception as error:
            self.log.add("error", code, f"capture: {error!r}")
            raise InternalError(
                f"internal error while capturing {place_of(code)}: {error!r}"
            ) from error
        if frame.break_ is not None:
            self.log.add_break(self._continuations.root_code(code), frame.break_)
            if self.options.fullgraph or breaks_are_errors():
                raise GraphBreakError(frame.break_)
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

    def _run_backend(self, code: CodeType, frame: CapturedFrame) -> Callable[..., Any]:
        assert frame.graph is not None
        try:
            with no_function_modes():
                compiled = self.backend(frame.graph, [i.example for i in frame.inputs])
        except CaptureError:
            raise
        except Exception as error:
            if frame.draws or (frame.shape_env is not None and frame.shape_env.floats):
                raise _NeedsPlainFloats from error  # what it refuses may be a symbolic number
            operation = _operation_of(frame.graph, error)
            if operation is not None and not (self.options.fullgraph or breaks_are_errors()):
                if operation not in self._refused.get(id(code), {}):
                    reason = str(error).splitlines() or [""]
                    raise _NodeRefused(operation, f"{type(error).__name__}: {reason[0]}") from error
            self.log.add("error", code, f"backend: {error!r}")
            name = getattr(self.backend, "__qualname__", type(self.backend).__qualname__)
            raise BackendError(
                f"backend {name} failed on the graph of {place_of(code)}: {error!r}"
            ) from error
        if not callable(compiled):
            raise BackendError(
                f"the backend returned {type(compiled).__qualname__} for {place_of(code)}; "
                "it must return a callable"
            )
        return outside_of_modes(compiled) if FUNCTION_MODES else compiled

    def _checked_guard(
        self, code: CodeType, func: FunctionType, args: tuple[Any, ...], guards: GuardSet
    ) -> Any:
        guard = self._compile_guards(guards, code)
        if not _frame_hook.check_guard(guard, args, func):
            failure = guards.explain_failure(FrameView(args, func))
            raise InternalError(
                f"the guards of {place_of(code)} do not hold for the very call they were made "
                f"from: {failure or 'the native check disagrees with the slow one'}"
            )
        return guard

    # --- recompiles ------------------------------------------------------------------------------

    def _remember(self, code: CodeType, guards: GuardSet) -> None:
        key = id(code)
        self._guards.setdefault(key, []).append(guards)
        self._eager_sizes.pop(key, None)
        self._forget_with(code)

    def _forget_with(self, code: CodeType) -> None:
        """What is known of a code goes when it dies: another may get its id."""
        key = id(code)
        if key not in self._finalizers:
            owner = weakref.ref(self)

            def forget(_: Any) -> None:
                context = owner()
                if context is not None:
                    context._guards.pop(key, None)
                    context._sizes.pop(key, None)
                    context._eager_sizes.pop(key, None)
                    context._replaced.pop(key, None)
                    context._plain_floats.discard(key)
                    context._with_graphs.discard(key)
                    context._refused.pop(key, None)
                    context._finalizers.pop(key, None)

            self._finalizers[key] = weakref.ref(code, forget)

    def _may_recompile(
        self, code: CodeType, func: FunctionType, args: tuple[Any, ...], known: list[GuardSet]
    ) -> bool:
        """Record why no entry fits. False when the limit is reached."""
        view = FrameView(args, func)
        failures = [guards.explain_failure(view) for guards in known]
        reasons = [str(failure) for failure in failures if failure is not None]
        root = self._continuations.root_code(code)
        if _same_case(failures) < self.recompile_limit and len(known) < _MOST_ENTRIES:
            self.log.add("recompile", root, reasons[-1] if reasons else "")
            layers = root if len(known) < self.recompile_limit else None
            replaced = frozenset().union(*(_replaced(guards, view, layers) for guards in known))
            if replaced:
                self._replaced[id(code)] = self._replaced.get(id(code), frozenset()) | replaced
            if self.options.dynamic is None:
                changed = frozenset().union(*(_changed_sizes(guards, view) for guards in known))
                self._sizes[id(code)] = self._sizes.get(id(code), frozenset()) | changed
            return True
        newest = reasons[-1] if reasons else "unknown"
        message = (
            f"{place_of(root)} was compiled {len(known)} times, which is the recompile limit; "
            f"from now on, calls that fit no compiled version run uncompiled. "
            f"Newest reason: {newest}"
        )
        self.log.add("limit", root, message)
        if self.options.fullgraph:
            raise RecompileLimitError(message)
        # What a loop does is told by the log; without a graph, nothing is lost.
        if not self._continuations.is_continuation(code) and id(code) in self._with_graphs:
            warnings.warn(message, RuntimeWarning, stacklevel=2)
        return False


def _operation_of(graph: torch.fx.GraphModule, error: BaseException) -> int | None:
    """The number of the operation that a backend's error is about, if it tells."""
    name = blamed(error)
    node = next((node for node in graph.graph.nodes if node.name == name), None)
    while node is not None and "operation" not in node.meta and node.all_input_nodes:
        node = node.all_input_nodes[0]  # a part of a result
    return None if node is None else node.meta.get("operation")


def _same_case(failures: list[GuardFailure | None]) -> int:
    """How many of the compiled versions are for the same modules: each layer of a model has one
    of its own, which does not count against another's."""
    return sum(not _is_other_module(failure) for failure in failures)


def _is_other_module(failure: GuardFailure | None) -> bool:
    clause = None if failure is None else failure.clause
    return isinstance(clause, IdIs) and isinstance(clause.obj, torch.nn.Module)


def _replaced(guards: GuardSet, view: FrameView, method: CodeType | None) -> frozenset[str]:
    """The modules, and parameters and buffers of modules, where `guards` wanted others of their
    class. Not those that `method` is a method of: the layers of a model, which stay the same."""
    found: dict[Source, Any] = {}
    for clause in guards.clauses:
        if isinstance(clause, IdIs) and isinstance(clause.obj, (torch.nn.Module, torch.Tensor)):
            seen = evaluate(clause.source, view)
            if seen is not clause.obj and type(seen) is type(clause.obj):
                found[clause.source] = seen
    outermost = [source for source in found if found.keys().isdisjoint(_bases(source))]
    return frozenset(str(source) for source in outermost if not _has_method(found[source], method))


def _bases(source: Source) -> Iterator[Source]:
    base = getattr(source, "base", None)
    if base is not None:
        yield base
        yield from _bases(base)


def _has_method(obj: Any, method: CodeType | None) -> bool:
    if method is None:
        return False
    found = inspect.getattr_static(type(obj), method.co_name, None)
    return getattr(found, "__code__", None) is method


def _changed_sizes(guards: GuardSet, view: FrameView) -> frozenset[tuple[str, int]]:
    """The sizes, and the ints and floats (dimension -1), that differ from what `guards` wanted.

    Only where nothing but sizes differs: a tensor of another rank or dtype is another case.
    """
    changed: set[tuple[str, int]] = set()
    for clause in guards.clauses:
        if isinstance(clause, TensorIs):
            seen = evaluate(clause.source, view)
            if not isinstance(seen, torch.Tensor) or seen.dim() != len(clause.sizes):
                return frozenset()
            for dim, (now, was) in enumerate(zip(seen.shape, clause.sizes, strict=True)):
                if was is not None and now != was:
                    changed.add((str(clause.source), dim))
        elif isinstance(clause, ConstantIs) and type(clause.value) in (int, float):
            number = evaluate(clause.source, view)
            if type(number) is type(clause.value) and number != clause.value:
                changed.add((str(clause.source), -1))
    return frozenset(changed)


def _has_own_function(value: Any) -> bool:
    """Is it a tensor whose class torch asks about operations?"""
    cls = type(value)
    return is_asked(cls) and not is_wrapper_type(cls)


def _a_dispatch_mode_looks_on() -> bool:
    """Is a `TorchDispatchMode` on that is to see each operation? (One may say that it is not.)"""
    modes = map(torch._C._get_dispatch_stack_at, range(torch._C._len_torch_dispatch_stack()))
    return not all(getattr(mode, "ignore_compile_internals", bool)() for mode in modes)


def _sizes_of(code: CodeType, args: tuple[Any, ...]) -> dict[tuple[str, int], int]:
    """The sizes of the tensors among the arguments, and the ints (dimension -1)."""
    found: dict[tuple[str, int], int] = {}
    for name, value in zip(argument_names(code), args, strict=False):
        if isinstance(value, torch.Tensor):
            found |= {(name, dim): size for dim, size in enumerate(value.shape)}
        elif type(value) is int:
            found[(name, -1)] = value
    return found


@contextmanager
def _torch_state_kept() -> Iterator[None]:
    """Capture and compilers leave the global grad mode and random state as they found them."""
    grad, rng = torch.is_grad_enabled(), torch.random.get_rng_state()
    try:
        yield
    finally:
        torch.set_grad_enabled(grad)
        torch.random.set_rng_state(rng)
