"""Going on from a boundary value: each stage alone, on what the one before it wrote to a file.

    CapturedFrame -> JointGraph -> PartitionedGraph -> LoopGraph -> KernelGraph -> Plan
                                   (of the forward, and of the backward)

`dovetail show FILE.py:FUNCTION --save DIR` writes these values, `dovetail continue FILE` goes on
from one of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import singledispatch
from pathlib import Path
from typing import Any

import torch
from dovetail_autograd_aot import JointGraph, PartitionedGraph, trace_joint
from dovetail_capture.captured_frame import CapturedFrame
from dovetail_inductor import InductorOptions, to_kernels, to_loops, to_plan
from dovetail_inductor.loop_ir.loops import LoopGraph
from dovetail_inductor.scheduler.kernels import KernelGraph
from dovetail_prims.boundary_files import load_boundary
from dovetail_prims.decompositions import core_aten_table
from dovetail_runtime import as_python
from dovetail_runtime.plan import Plan

from dovetail.options import Options
from dovetail.pipeline import cut, with_attention

# What a stage gives, by its name.
BOUNDARY_TYPES: Mapping[str, type] = {
    "capture": CapturedFrame,
    "joint": JointGraph,
    "autograd": PartitionedGraph,
    "loops": LoopGraph,
    "kernels": KernelGraph,
    "plan": Plan,
}


def continue_from(path: Path | str, last: str = "plan") -> Iterator[tuple[str, Any]]:
    """Run the stages after the one whose value a file holds, to the stage `last` (of
    `BOUNDARY_TYPES`): the name of each stage and the value that it gives, in order.

    Raises BoundaryFileError for a file without such a value, ValueError where `last` is no later
    stage, and what the stages raise.
    """
    value: object = load_boundary(path, object)
    order = list(BOUNDARY_TYPES)
    if type(value) not in BOUNDARY_TYPES.values():
        raise ValueError(f"{path} holds a {type(value).__name__}, from which no stage goes on")
    if order.index(stage_of(value)) >= order.index(last):
        raise ValueError(f"{path} is of the stage {stage_of(value)!r}: {last!r} is no later one")
    current = [value]
    while stage_of(current[0]) != last:
        current = [after for each in current for after in next_stage(each)]
        yield from ((stage_of(each), each) for each in current)


def stage_of(value: object) -> str:
    """The name of the stage that gives a boundary value."""
    return next(name for name, kind in BOUNDARY_TYPES.items() if isinstance(value, kind))


def text_of(value: Any) -> str:
    """A boundary value as a person reads it."""
    return as_python(value) if isinstance(value, Plan) else str(value.as_text())


@singledispatch
def next_stage(value: Any) -> tuple[Any, ...]:
    """What the next stage makes of a boundary value: two values where that is a forward and a
    backward."""
    raise ValueError(f"no stage goes on from a {type(value).__name__}")


@next_stage.register
def _(frame: CapturedFrame) -> tuple[JointGraph, ...]:
    if frame.graph is None:
        return ()
    inputs = [each.example for each in frame.inputs]
    wants = any(isinstance(v, torch.Tensor) and v.requires_grad for v in inputs)
    with torch.set_grad_enabled(wants):
        graph = with_attention(frame.graph)
        return (trace_joint(graph, inputs, decompositions=core_aten_table()),)


@next_stage.register
def _(joint: JointGraph) -> tuple[PartitionedGraph, ...]:
    return (cut(joint, Options()),)


@next_stage.register
def _(parts: PartitionedGraph) -> tuple[LoopGraph, ...]:
    graphs = [graph for graph in (parts.forward, parts.backward) if graph is not None]
    return tuple(to_loops(graph, InductorOptions()) for graph in graphs)


@next_stage.register
def _(loops: LoopGraph) -> tuple[KernelGraph, ...]:
    return (to_kernels(loops, InductorOptions()),)


@next_stage.register
def _(kernels: KernelGraph) -> tuple[Plan, ...]:
    return (to_plan(kernels, InductorOptions()),)
