"""One run of a backend on the graph of a frame, what its errors say, and a check of what it gave
back: a callable, and as many results as asked.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field
from types import CodeType
from typing import Any

import torch
from dovetail_guards.assumptions import Assumptions
from dovetail_guards.torch_state import FUNCTION_MODES
from dovetail_prims.conditionals import run_plainly
from dovetail_prims.graphs import backend_traits
from dovetail_prims.node_facts import OPERATION, blamed

from dovetail_capture.captured_frame import CapturedFrame
from dovetail_capture.environment.torch_state import (
    no_function_modes,
    outside_of_modes,
    torch_state_kept,
    under,
)
from dovetail_capture.errors import BackendError, CaptureError, place_of
from dovetail_capture.frames.frame_versions import CodeFacts
from dovetail_capture.knobs import OnError
from dovetail_capture.reporting import failures
from dovetail_capture.reporting.compile_log import CompileLog
from dovetail_capture.reporting.program_warnings import OperatorWarnings

Backend = Callable[[torch.fx.GraphModule, list[Any]], Callable[..., Any]]


class NodeRefused(Exception):
    """The backend cannot compile the operation of this number; says why."""

    def __init__(self, operation: int, reason: str) -> None:
        super().__init__(reason)
        self.operation = operation


class NeedsPlainFloats(Exception):
    """The backend failed on a graph with symbolic floats; it may take one without."""


class NeedsStaticGraphs(Exception):
    """The backend may have made constants of symbolic sizes or numbers, or failed on them: it is
    to get graphs without; says why."""


@dataclass(frozen=True)
class CompiledGraph:
    """What a backend made of a frame's graph (None: there is none), and what it assumed of symbolic
    sizes for that. `as_written`: the program's own calls cost no more."""

    call: Callable[..., Any] | None = None
    assumed: Assumptions = field(default_factory=Assumptions)
    as_written: bool = False


@dataclass(frozen=True)
class Asked:
    """What the caller asks of a run: whether the graph may break, whether the frame was captured
    for a backend that gets graphs without symbols, what becomes of an internal error, and whether
    errors of any backend are passed over (torch's `suppress_errors`)."""

    breaks_allowed: bool
    static: bool
    on_error: OnError
    suppressed: bool = False


def run_backend(
    backend: Backend,
    code: CodeType,
    frame: CapturedFrame,
    facts: CodeFacts,
    log: CompileLog,
    asked: Asked,
) -> CompiledGraph:
    """What the backend makes of a frame's graph; `facts` are those of the code.

    An exception of a backend that is part of this compiler is an internal error: the graph runs
    uncompiled, unless `asked` says that it is raised. Raises NeedsPlainFloats, NeedsStaticGraphs or
    NodeRefused where another capture may help, BackendError otherwise.
    """
    assert frame.graph is not None
    traits = backend_traits.traits_of(backend)
    symbol = None if traits.symbolic else backend_traits.first_symbolic_node(frame.graph)
    if symbol is not None and asked.static:
        _refuse_data_dependent(symbol, backend, code, asked.breaks_allowed)
    try:
        # (What a compiler runs operators for, capture has run them for, and told of.)
        told = OperatorWarnings() if traits.compiler else nullcontext()
        with told, no_function_modes(), torch_state_kept(), under(frame.before.settings):
            compiled = backend(frame.graph, [i.example for i in frame.inputs])
    except CaptureError:
        raise
    except Exception as error:
        own = failures.error_of_program(error)
        if own is not None:
            raise own from own.__cause__
        if symbol is not None:
            raise NeedsStaticGraphs(f"backend {name_of(backend)} failed: {error!r}") from error
        compiled = _uncompiled(backend, error, code, frame, facts, log, asked)
    as_written = isinstance(compiled, backend_traits.AsWritten)
    check_callable(compiled, name_of(backend), code)
    runs_itself = backend_traits.runs_graph_itself(compiled, frame.graph)
    if symbol is not None and not runs_itself:
        raise NeedsStaticGraphs(
            f"backend {name_of(backend)} does not declare that it compiles {_ALL}"
        )
    if not (traits.compiler or runs_itself):
        compiled = counted(compiled, name_of(backend), frame.graph, code)
    call = outside_of_modes(compiled) if FUNCTION_MODES else compiled
    assumed = frame.assumed_since()
    if frame.shape_env is not None:
        frame.shape_env.freeze()  # what is assumed from here on would be guarded by nobody
    return CompiledGraph(call, assumed, as_written)


_ALL = "graphs for all sizes and numbers (dovetail_capture.takes_symbolic_graphs)"


def _refuse_data_dependent(
    node: torch.fx.Node, backend: Backend, code: CodeType, breaks_allowed: bool
) -> None:
    """Raise: what is symbolic, though nothing of the inputs is to be, depends on tensors' data."""
    what = f"what depends on tensors' data: backend {name_of(backend)} does not declare {_ALL}"
    operation = OPERATION.of(node)
    if operation is not None and breaks_allowed:
        raise NodeRefused(operation, what)
    place = str(node.meta.get("stack_trace") or place_of(code)).strip()
    raise BackendError(f"`{node.name}` is {what}\n{place}")


def _uncompiled(
    backend: Backend,
    error: Exception,
    code: CodeType,
    frame: CapturedFrame,
    facts: CodeFacts,
    log: CompileLog,
    asked: Asked,
) -> Callable[..., Any]:
    """What runs a graph operator by operator after an internal error. Raises what `run_backend`
    does where another capture may help, or the error is not to be passed over."""
    graph = frame.graph
    assert graph is not None
    compiler = backend_traits.traits_of(backend).compiler
    recovers = asked.suppressed or (compiler and asked.on_error == "run_uncompiled")
    mistake = compiler and failures.is_mistake(error)
    if recovers and mistake:
        _note(error, code, graph, log)
    if recovers or not mistake:
        _ask_for_another(error, frame, facts, asked)
    log.add("error", code, f"backend: {error!r}")
    if not recovers:
        raise BackendError(
            f"backend {name_of(backend)} failed on the graph of {_place(code, graph, error)}: "
            f"{error!r}\n  hint: {_way_round(graph, error, asked)}"
        ) from error
    if not mistake:
        _note(error, code, graph, log)
    return run_plainly(graph)


def _ask_for_another(
    error: Exception, frame: CapturedFrame, facts: CodeFacts, asked: Asked
) -> None:
    """Raise NeedsPlainFloats or NodeRefused, if a capture is left to try that may help."""
    assert frame.graph is not None
    symbolic = frame.before.draws or (frame.shape_env is not None and frame.shape_env.floats)
    if symbolic and not facts.plain_floats:
        raise NeedsPlainFloats from error  # what it refuses may be a symbolic number
    operation = _operation_of(frame.graph, error)
    if operation is not None and asked.breaks_allowed and operation not in facts.refused:
        reason = str(error).splitlines() or [""]
        raise NodeRefused(operation, f"{type(error).__name__}: {reason[0]}") from error


def _note(error: Exception, code: CodeType, graph: torch.fx.GraphModule, log: CompileLog) -> None:
    """Keep an internal error, and warn of it."""
    failure = failures.failure_of("compiling a graph", error, _place(code, graph, error), graph)
    failures.note_failure(log.failures, failure)


def _place(code: CodeType, graph: torch.fx.GraphModule, error: Exception) -> str:
    """The function, and the line that the error is about, or else the graph's first."""
    return f"{place_of(code)}, at {failures.place_in(graph, blamed(error))}"


def _way_round(graph: torch.fx.GraphModule, error: Exception, asked: Asked) -> str:
    """What a user can do about an error of a backend."""
    if _operation_of(graph, error) is None:
        return "backend='eager' runs the function without this backend"
    if asked.breaks_allowed:
        return "call what it cannot compile outside of the compiled function"
    return "without fullgraph=True the graph breaks at that line"


def _operation_of(graph: torch.fx.GraphModule, error: BaseException) -> int | None:
    """The number of the operation that a backend's error is about, if it tells."""
    name = blamed(error)
    node = next((node for node in graph.graph.nodes if node.name == name), None)
    while node is not None and not OPERATION.is_told(node) and node.all_input_nodes:
        node = node.all_input_nodes[0]  # a part of a result
    return None if node is None else OPERATION.of(node)


def name_of(backend: Callable[..., Any]) -> str:
    """A backend, as messages call it."""
    while isinstance(backend, functools.partial):
        backend = backend.func
    return str(getattr(backend, "__qualname__", type(backend).__qualname__))


def check_callable(compiled: object, name: str, code: CodeType) -> None:
    """Raise BackendError for what cannot run the graph."""
    if not callable(compiled):
        raise BackendError(
            f"backend {name} returned {type(compiled).__qualname__} for {place_of(code)}; "
            "it must return a callable"
        )


def counted(
    compiled: Callable[..., Any], name: str, graph: torch.fx.GraphModule, code: CodeType
) -> Callable[..., Any]:
    """`compiled`, each call of which has to give a tuple or list of as many results as the graph:
    a tensor alone would be taken apart along its first dimension."""
    (output,) = (node for node in graph.graph.nodes if node.op == "output")
    expected = len(output.args[0])

    def run(*inputs: Any) -> Any:
        results = compiled(*inputs)
        if isinstance(results, (tuple, list)) and len(results) == expected:
            return results
        what = type(results).__qualname__
        if isinstance(results, (tuple, list)):
            what += f" of {len(results)}"
        raise BackendError(
            f"what backend {name} compiled for {place_of(code)} returned a {what}; "
            f"it must return a tuple or list of {expected}, as the graph does"
        )

    return run
