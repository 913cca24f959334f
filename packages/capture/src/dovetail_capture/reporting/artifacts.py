"""What can be shown of a captured frame: its graph, guards and bytecode (see `artifact_log`)."""

from __future__ import annotations

import dis
from types import CodeType
from typing import Any

import torch
from dovetail_guards.guard_set import GuardSet
from dovetail_prims.artifact_log import is_wanted, tell

from dovetail_capture.captured_frame import CapturedFrame
from dovetail_capture.errors import place_of
from dovetail_capture.reporting.failures import place_in

_OF_GRAPH = ("graph", "graph_code", "graph_sizes")
_OF_FRAME = ("guards", "bytecode", "dynamic")


def tell_of_graph(frame: CapturedFrame) -> None:
    """Log the graph of a frame, as it was captured."""
    gm = frame.graph
    if gm is None or not any(map(is_wanted, _OF_GRAPH)):
        return
    place = place_in(gm)
    tell("graph", place, lambda: str(gm.graph))
    tell("graph_code", place, lambda: gm.code.strip(), suffix="py", value=frame)
    tell("graph_sizes", place, lambda: _sizes(gm))


def tell_of_frame(root: CodeType, frame: CapturedFrame, guards: GuardSet, code: CodeType) -> None:
    """Log what lets a frame's compiled code run, and the bytecode of it."""
    if not any(map(is_wanted, _OF_FRAME)):
        return
    place = place_of(root) if frame.graph is None else place_in(frame.graph)
    tell("guards", place, guards.as_text)
    shapes = frame.shape_env
    if shapes is not None and shapes.hints:
        tell("dynamic", place, shapes.as_text)
    tell("bytecode", place, lambda: f"original:\n{_listing(root)}\nreplacement:\n{_listing(code)}")


def _listing(code: CodeType) -> str:
    return dis.Bytecode(code).dis()


def _sizes(gm: torch.fx.GraphModule) -> str:
    rows = [f"{node.name}: {_size(node.meta.get('val'))}" for node in gm.graph.nodes]
    return "\n".join(row for row in rows if not row.endswith(": "))


def _size(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return f"{tuple(value.shape)} {str(value.dtype).removeprefix('torch.')}"
    if isinstance(value, tuple | list):
        return ", ".join(map(_size, value))
    return "" if value is None else str(value)
