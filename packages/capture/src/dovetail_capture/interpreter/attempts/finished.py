"""The captured frame of an attempt that came to its end: graph, inputs, guards, effects."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from dovetail_guards import clauses as c
from dovetail_guards.guard_set import GuardSet
from dovetail_prims.graphs.gradient_hooks import INPUTS, OUTPUTS, READS
from dovetail_prims.node_facts import FUNCTION
from torch.fx import Node

from dovetail_capture.captured_frame import (
    AfterGraph,
    BeforeGraph,
    CapturedFrame,
    GraphBreak,
    GraphInput,
)
from dovetail_capture.errors import NotCapturable
from dovetail_capture.interpreter.attempts.attempt import Attempt, End, graph_break_of
from dovetail_capture.interpreter.changes.late_reads import share_memory
from dovetail_capture.interpreter.data_checks import value_checks
from dovetail_capture.interpreter.graph import aliasing
from dovetail_capture.interpreter.inputs.input_relations import relate_inputs
from dovetail_capture.interpreter.protocols.class_attributes import MISSING, guard_number
from dovetail_capture.interpreter.session.covered_lines import visits
from dovetail_capture.interpreter.signals import GraphBreakSignal
from dovetail_capture.interpreter.values.computed_sources import PlainSource
from dovetail_capture.interpreter.values.tensors import ArraySource, TensorValue

_IMMUTABLE_TYPE = 1 << 8  # Py_TPFLAGS_IMMUTABLETYPE: a class written in C


def captured_frame(attempt: Attempt, outcome: End, break_: GraphBreak | None) -> CapturedFrame:
    """The captured frame of a successful attempt."""
    session, rebuilder = attempt.session, outcome.rebuilder
    graph = attempt.recorder.graph
    used: list[GraphInput] = []
    nodes: list[Node] = rebuilder.outputs
    pending = session.checks
    checks = value_checks.finished(session, len(nodes))
    nodes += [value.node for value in pending.holds.values()]
    graph.output(tuple(nodes))
    for graph_input, value in session.inputs.entries:
        if value.node.users or value in session.inputs.computed:  # sizes may be made of these
            used.append(graph_input)
        else:
            graph.erase_node(value.node)
    module = None
    if attempt.recorder.operations or pending.holds:
        module = attempt.recorder.module()
        FUNCTION.tell(module, attempt.code.co_qualname)
        if session.late_reads.found:
            module.meta[READS] = tuple(session.late_reads.found)
        late = session.late_reads.tensors
        if late:
            fakes = {g.name: value.node.meta.get("val") for g, value in session.inputs.entries}
            module.meta[INPUTS] = share_memory([fakes[g.name] for g in used], late)
            module.meta[OUTPUTS] = share_memory([n.meta.get("val") for n in nodes], late)
    relate_inputs(
        session, [i for i in used if not i.static and isinstance(i.example, torch.Tensor)]
    )
    kept = set(map(id, used))
    tensors = [
        (graph_input, value.fake)
        for graph_input, value in session.inputs.entries
        if id(graph_input) in kept and isinstance(value, TensorValue)
    ]
    if aliasing.writes(graph, (fake for _, fake in tensors)):
        pairs = [
            (s.base if isinstance(s, PlainSource) else s, graph_input.example)
            for graph_input, _ in tensors
            for s in (graph_input.source,)
        ]
        tensors_only = [pair for pair in pairs if not isinstance(pair[0], ArraySource)]
        if len(tensors_only) < len(pairs) and aliasing.writes_to_inputs(graph, tensors):
            reason = "a write to an input of a graph that takes numpy arrays, too"
            raise NotCapturable(graph_break_of(GraphBreakSignal(reason, "copy it first")))
        session.guards.append(*aliasing.storage_guards(tensors_only))
    shapes = session.shapes
    shapes.check_marks()
    shapes.env.make_input = None
    aliasing.close_sizes(module, shapes.env)
    shapes.env.keep_undecided = False  # what the backend decides is guarded
    _guard_code_read(attempt)
    session.guards.seal()
    return CapturedFrame(
        attempt.code,
        module,
        tuple(used) if module is not None else (),
        GuardSet(session.guards.clauses),
        AfterGraph((*rebuilder.effects, *visits(session.covered or {})), outcome.end, break_),
        BeforeGraph(session.effects.kernel_settings.of_graph(), tuple(session.draws.calls)),
        shapes.env if shapes.env.hints else None,
        checks,
        replace(
            attempt.attempt_options,
            told_compiling=session.asked_compiling and attempt.attempt_options.compiling,
        ),
        shapes.env.assumed(),
    )


def _guard_code_read(attempt: Attempt) -> None:
    """Guard what was read of classes, and the parts of the functions that were inlined."""
    clauses, held = attempt.session.guards.clauses, attempt.session.sources.held
    by_class: dict[type, list[tuple[str, Any, bool]]] = {}
    for (cls, name), attr in attempt.vm.class_reads.items():
        if not cls.__flags__ & _IMMUTABLE_TYPE and id(cls) not in attempt.session.objects.stand_ins:
            present = attr is not MISSING
            if type(attr) in (int, float) and guard_number(attempt.vm, cls, name):
                continue
            row = (name, attr if present else None, present)
            by_class.setdefault(cls, []).append(row)
    for cls, rows in by_class.items():
        clauses.append(c.ClassAttrsAre(held(cls), tuple(rows)))
    asked = attempt.session.objects.abstract_answers
    if asked:
        clauses.append(c.AbstractAnswers(tuple((*pair, said) for pair, said in asked.items())))
    for real in attempt.vm.function_defaults:
        parts = (real.__code__, real.__defaults__, real.__kwdefaults__)
        clauses.append(c.FunctionIs(held(real), *parts))
