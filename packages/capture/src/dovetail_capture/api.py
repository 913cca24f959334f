"""What users call: optimize, export, explain, disable, allow_in_graph and their kin."""

from __future__ import annotations

import functools
import inspect
import threading
from collections.abc import Callable, Mapping, Sequence
from types import CodeType, FunctionType
from typing import Any, TypedDict, Unpack

import torch
from torch._ops import OpOverload, OpOverloadPacket
from torch.fx import GraphModule

from dovetail_capture._frame_hook import Switched
from dovetail_capture.environment.torch_switches import TorchFollower
from dovetail_capture.errors import CaptureError, place_of
from dovetail_capture.export import ExportedGraph, export_graph
from dovetail_capture.frames.backend_run import Backend
from dovetail_capture.frames.context import CaptureContext
from dovetail_capture.frames.frame_versions import RegionSettings
from dovetail_capture.frames.guard_filter import GuardFilter
from dovetail_capture.frames.regions import Regions, code_of, same_backend
from dovetail_capture.interpreter.library.function_table import WITHOUT_FRAME
from dovetail_capture.knobs import ON_ERROR, OnError
from dovetail_capture.marks import as_torch_has_it, is_allowed_in_graph, is_disabled
from dovetail_capture.options import CaptureOptions
from dovetail_capture.reporting.compile_log import CompileLog, FrameRecord
from dovetail_capture.reporting.explanation import Explanation
from dovetail_capture.stance import CONTEXTS, stance_changed
from dovetail_capture.wrappers.optimized_module import OptimizedModule, PrefixedModule, call_through

_REGIONS = Regions()
_CAPTURING = threading.local()


def is_compiling() -> bool:
    """True while code is being captured; captured code sees it as the constant True."""
    return bool(getattr(_CAPTURING, "depth", 0))


def is_dynamo_compiling() -> bool:
    """`is_compiling`, by the name that asks for bytecode capture: there is no other here."""
    return is_compiling()


def is_exporting() -> bool:
    """True while `export` captures; captured code sees it as a constant."""
    return bool(getattr(_CAPTURING, "exports", False))


def graph_break(msg: str = "") -> None:
    """Breaks the graph where it is called; does nothing when run."""


_ASKED_OF_FUNCTIONS = ("__code__", "__globals__", "__closure__", "__defaults__", "__kwdefaults__")


def _look_like(switched: Switched, function: Callable[..., Any]) -> None:
    """Give a wrapper what is asked of a function: name, signature, and how it is written."""
    assigned = functools.WRAPPER_ASSIGNMENTS + _ASKED_OF_FUNCTIONS
    functools.update_wrapper(switched, function, assigned)


def _capture_frame(
    code: CodeType, func: FunctionType, args: tuple[Any, ...], *, options: CaptureOptions
) -> Any:
    from dovetail_capture.interpreter import capture_frame

    _FOLLOWER.follow()
    exported_before = is_exporting()
    _CAPTURING.depth = getattr(_CAPTURING, "depth", 0) + 1
    _CAPTURING.exports = options.exports
    try:
        return capture_frame(code, func, args, options=options)
    finally:
        _CAPTURING.depth -= 1
        _CAPTURING.exports = exported_before


def _options(
    *, fullgraph: bool, dynamic: bool | None, on_error: OnError = ON_ERROR
) -> CaptureOptions:
    return CaptureOptions(
        fullgraph=fullgraph,
        dynamic=dynamic,
        on_error=on_error,
        is_disabled=is_disabled,
        is_allowed_in_graph=is_allowed_in_graph,
    )


def make_context(
    target: Any,
    backend: Backend,
    *,
    fullgraph: bool = False,
    dynamic: bool | None = None,
    on_error: OnError = ON_ERROR,
    log: CompileLog | None = None,
    **region: Any,
) -> CaptureContext:
    """A context for capturing `target` (a function or module) with `backend`: a new one. `region`
    are fields of `RegionSettings`."""
    code = code_of(target)
    context = CaptureContext(
        backend,
        _capture_frame,
        options=_options(fullgraph=fullgraph, dynamic=dynamic, on_error=on_error),
        region=RegionSettings(**region),
        roots=() if code is None else (code,),
        log=log,
    )
    CONTEXTS.add(context)
    _FOLLOWER.follow()
    return context


def _region(target: Any, backend: Backend, settings: dict[str, Any]) -> CaptureContext:
    """The context that calls of `optimize` for the same code, backend and settings share."""
    make = functools.partial(make_context, target, backend, **settings)
    code = code_of(target)

    def fits(region: CaptureContext) -> bool:
        if region.settings != settings or (code is not None and not region.is_root(code)):
            return False
        return settings["backend_key"] is not None or same_backend(region.backend, backend)

    isolated = settings["isolate_recompiles"]
    region = make() if isolated else _REGIONS.find(called_by(target), fits, make)
    region.calls_of_optimize += 1
    return region


class OptimizeSettings(TypedDict, total=False):
    """What `optimize` takes by name: how frames are captured, and the `RegionSettings`."""

    fullgraph: bool
    dynamic: bool | None
    recompile_limit: int
    guard_filter_fn: GuardFilter | None
    on_error: OnError
    isolate_recompiles: bool
    backend_key: object


_DEFAULTS: dict[str, Any] = {
    "fullgraph": False,
    "dynamic": None,
    "on_error": ON_ERROR,
    **vars(RegionSettings()),
}


def optimize(
    target: Any,
    backend: Backend,
    *,
    state_dict_prefix: bool = False,
    **given: Unpack[OptimizeSettings],
) -> Any:
    """A version of a function or module whose frames are captured and compiled by `backend`.

    `backend(graph_module, example_inputs)` returns a callable. With `fullgraph` a graph break is
    an error. `guard_filter_fn` is given a list of `GuardFilterEntry` and tells of each whether it
    is kept: what it drops is never checked. `on_error` tells whether an error inside the compiler
    lets a graph or frame run uncompiled, or is raised. With `state_dict_prefix` a module's names of
    parameters begin with `_orig_mod.`, as torch.compile's. The wrapper's `capture_context` holds
    the log.

    All calls for the same code (of functions made by one `def`, or modules of one class and
    structure) with the same settings share what is compiled, its log and its `recompile_limit`, if
    their backends are one object or equal; or if they give the same `backend_key`, whatever the
    backends. With `isolate_recompiles` a call shares with no other.

    A class comes back as it is, with the calls of its instances captured (a decorator of modules).
    """
    unknown = given.keys() - _DEFAULTS
    if unknown:
        raise TypeError(f"optimize() got unexpected settings: {', '.join(sorted(unknown))}")
    settings = {**_DEFAULTS, **given}
    if isinstance(target, type):
        return _optimize_calls(target, backend, settings)
    if not callable(target):
        raise TypeError(f"cannot optimize a {type(target).__qualname__}: it is not callable")
    target = as_torch_has_it(_uncompiled(target))
    if settings["fullgraph"]:
        _refuse_suspended(target)
    if not _has_frame_of_its_own(target):
        target = _called(target)
    context = _region(target, backend, settings)
    if isinstance(target, torch.nn.Module):
        # The call goes through the module's own __call__: its hooks run as ever.
        call = Switched(target, context)
        _look_like(call, target.forward)
        call.__dict__["capture_context"] = context
        wrapper = PrefixedModule if state_dict_prefix else OptimizedModule
        return wrapper(target, call, context, optimize)
    switched = Switched(target, context)
    _look_like(switched, target)
    switched.__dict__["capture_context"] = context
    return switched


def _uncompiled(target: Any) -> Any:
    """What an optimized function or module was made from; anything else as it is."""
    if isinstance(target, OptimizedModule):
        return target._orig_mod
    if isinstance(target, Switched) and target.context is not None:
        return called_by(target.function)
    return target


def optimize_in_place(module: torch.nn.Module, backend: Backend, **settings: Any) -> None:
    """Let calls of `module` itself be captured, as `nn.Module.compile` does: its state dict, and
    its copies and pickles, which are not optimized, stay as they are. `settings` are those of
    `optimize`. Optimized again, it has the new settings alone."""
    call_through(module, optimize(module._call_impl, backend, **settings))


_SUSPENDED = {
    inspect.CO_GENERATOR: "a generator",
    inspect.CO_COROUTINE: "a coroutine",
    inspect.CO_ASYNC_GENERATOR: "an asynchronous generator",
}


def _refuse_suspended(target: Any) -> None:
    """Raise if a call of `target` is no single run of a frame, which one graph could hold."""
    code = code_of(target)
    for flag, kind in _SUSPENDED.items():
        if code is not None and code.co_flags & flag:
            raise CaptureError(
                f"cannot capture one whole graph: {place_of(code)} is {kind}\n"
                "  hint: compile what it calls, or leave fullgraph=True out"
            )


def _optimize_calls(cls: Any, backend: Backend, settings: dict[str, Any]) -> Any:
    """Let calls of a class's instances be captured."""
    call = next((vars(base)["__call__"] for base in cls.__mro__ if "__call__" in vars(base)), None)
    if call is None:
        raise TypeError(
            f"optimize takes a function, a module, or a class of such; instances of "
            f"{cls.__qualname__} are not callable"
        )
    if isinstance(call, Switched) and call.context is not None:
        call = call.function
    framed = cls.forward if issubclass(cls, torch.nn.Module) else call
    context = _region(framed, backend, settings)
    switched = Switched(call, context)
    _look_like(switched, call)
    switched.__dict__["capture_context"] = context
    cls.__call__, cls.capture_context = switched, context
    return cls


def _has_frame_of_its_own(target: Any) -> bool:
    """Whether a call of `target` runs a Python frame that is worth capturing. Operators and other
    functions in C have none, a transform of `torch.func` runs one of torch's."""
    if isinstance(target, torch.nn.Module):
        return True
    while isinstance(target, functools.partial):
        target = target.func
        if isinstance(target, torch.nn.Module):  # (of whose frames the outer ones are torch's)
            return False
    if isinstance(target, (OpOverload, OpOverloadPacket)):
        return False
    code = code_of(target)
    if code is None or code.co_filename == functools.__file__:  # (`singledispatch` makes such)
        return False
    return code not in WITHOUT_FRAME


def _called(target: Callable[..., Any]) -> FunctionType:
    """A function that calls `target`: such a call can be captured, the body of what is called
    cannot."""

    @functools.wraps(target)
    def call(*args: Any, **kwargs: Any) -> Any:
        return target(*args, **kwargs)

    return call  # type: ignore[return-value]


def called_by(function: Callable[..., Any]) -> Any:
    """What `_called` made `function` from; any other function itself."""
    code = getattr(function, "__code__", None)
    return function.__wrapped__ if code in _called.__code__.co_consts else function  # type: ignore[attr-defined]


def export(
    target: Any,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    dynamic: bool | None = None,
) -> ExportedGraph:
    """The whole of `target(*args, **kwargs)` as one graph, or an error that says where and why
    that cannot be and what to do about it."""
    options = _options(fullgraph=True, dynamic=dynamic)
    framed = _has_frame_of_its_own(target) and not isinstance(target, functools.partial)
    if callable(target) and not framed:
        target = _called(target)
    return export_graph(target, args, kwargs or {}, _capture_frame, options)


def reset() -> None:
    """Forget everything compiled, in every context."""
    _REGIONS.forget_unused()
    for context in list(CONTEXTS):
        context.reset()


_FOLLOWER = TorchFollower(stance_changed, reset)


def context_of(compiled: Any) -> CaptureContext:
    """The context of an optimized function or module, or of a module that was optimized in place.

    Raises TypeError for anything else.
    """
    call = getattr(compiled, "_compiled_call_impl", None)
    found = (getattr(part, "capture_context", None) for part in (compiled, call))
    context = next((one for one in found if isinstance(one, CaptureContext)), None)
    if context is None:
        raise TypeError(f"{type(compiled).__qualname__} is not what optimize gives")
    return context


def explain_guards(compiled: Any) -> str:
    """The guards of everything that an optimized function or module has compiled so far."""
    return context_of(compiled).explain_guards()


def recompiles(compiled: Any) -> tuple[str, ...]:
    """Why calls of an optimized function or module did not fit what was compiled, oldest first:
    the guard that failed, what was seen instead, and what to do about it."""
    return context_of(compiled).recompiles()


# --- explain -------------------------------------------------------------------------------------


def run_graph(gm: GraphModule, example_inputs: list[Any]) -> Callable[..., Any]:
    """The backend that compiles nothing: it runs the graph as recorded."""
    return gm.forward


def explain(
    target: Any, *, dynamic: bool | None = None, backend: Backend = run_graph
) -> Callable[..., Explanation]:
    """`explain(f)(*args)` runs `f` with capture on, once, and tells what was captured. `backend`
    gets the graphs; without one they run as they are."""

    def run(*args: Any, **kwargs: Any) -> Explanation:
        log = CompileLog(keep_frames=True)
        framed = as_torch_has_it(_uncompiled(target))
        if getattr(framed, "_compiled_call_impl", None) is not None:
            framed = framed._call_impl
        context = make_context(framed, backend, dynamic=dynamic, log=log)
        result = Switched(framed, context)(*args, **kwargs)
        frames: list[FrameRecord] = log.frames
        return Explanation(
            result,
            tuple(f.captured.graph for f in frames if f.captured.graph is not None),
            tuple(log.breaks),
            tuple(f.guards.as_text() for f in frames),
            tuple(f.replacement for f in frames if f.replacement),
            log,
        )

    return run
