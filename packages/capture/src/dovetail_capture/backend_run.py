"""One run of a backend on the graph of a frame, and what its errors say."""

from __future__ import annotations

from collections.abc import Callable
from types import CodeType
from typing import Any

import torch
from dovetail_guards.torch_state import FUNCTION_MODES
from dovetail_prims.node_error import blamed

from dovetail_capture.captured_frame import CapturedFrame
from dovetail_capture.code_facts import CodeFacts
from dovetail_capture.compile_log import CompileLog
from dovetail_capture.errors import BackendError, CaptureError, place_of
from dovetail_capture.function_stack import no_function_modes, outside_of_modes

Backend = Callable[[torch.fx.GraphModule, list[Any]], Callable[..., Any]]


class NodeRefused(Exception):
    """The backend cannot compile the operation of this number; says why."""

    def __init__(self, operation: int, reason: str) -> None:
        super().__init__(reason)
        self.operation = operation


class NeedsPlainFloats(Exception):
    """The backend failed on a graph with symbolic floats; it may take one without."""


def run_backend(
    backend: Backend,
    code: CodeType,
    frame: CapturedFrame,
    facts: CodeFacts,
    log: CompileLog,
    breaks_allowed: bool,
) -> Callable[..., Any]:
    """What the backend makes of a frame's graph; `facts` are those of the code.

    Raises NeedsPlainFloats or NodeRefused where another capture may help, BackendError otherwise.
    """
    assert frame.graph is not None
    try:
        with no_function_modes():
            compiled = backend(frame.graph, [i.example for i in frame.inputs])
    except CaptureError:
        raise
    except Exception as error:
        symbolic = frame.draws or (frame.shape_env is not None and frame.shape_env.floats)
        if symbolic and not facts.plain_floats:
            raise NeedsPlainFloats from error  # what it refuses may be a symbolic number
        operation = _operation_of(frame.graph, error)
        if operation is not None and breaks_allowed:
            if operation not in facts.refused:
                reason = str(error).splitlines() or [""]
                raise NodeRefused(operation, f"{type(error).__name__}: {reason[0]}") from error
        log.add("error", code, f"backend: {error!r}")
        name = getattr(backend, "__qualname__", type(backend).__qualname__)
        raise BackendError(
            f"backend {name} failed on the graph of {place_of(code)}: {error!r}"
        ) from error
    if not callable(compiled):
        raise BackendError(
            f"the backend returned {type(compiled).__qualname__} for {place_of(code)}; "
            "it must return a callable"
        )
    return outside_of_modes(compiled) if FUNCTION_MODES else compiled


def _operation_of(graph: torch.fx.GraphModule, error: BaseException) -> int | None:
    """The number of the operation that a backend's error is about, if it tells."""
    name = blamed(error)
    node = next((node for node in graph.graph.nodes if node.name == name), None)
    while node is not None and "operation" not in node.meta and node.all_input_nodes:
        node = node.all_input_nodes[0]  # a part of a result
    return None if node is None else node.meta.get("operation")
