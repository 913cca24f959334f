"""`torch.cond` by a tensor: one node, whose branches were captured as well.

Both branches are interpreted and recorded into graphs of their own; which of them runs, the tensor
says when the graph does. Tensors that they take from around them (and the sizes that these do not
tell) become operands of the node, in one order for both graphs. The node is torch's own
`torch.ops.higher_order.cond(predicate, true_graph, false_graph, operands)`, and gives a tuple.

A branch may run or not, so it may change nothing outside of itself; and what follows is captured
once, so both give results of one structure, shape, dtype, device and layout, in memory of their
own. Where that is not so, or a branch cannot be one graph, the graph breaks, and torch's own
operator runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from dovetail_capture.extensions.higher_order.subgraphs import (
    Subgraph,
    captured_function,
    graph_of,
    metadata_difference,
    operands_of,
    same_structure,
    told_as,
)
from dovetail_capture.interpreter.library.torch_functions.inner_graphs import InnerRecorder, filled
from dovetail_capture.interpreter.machine.handler_types import Args, Kwargs
from dovetail_capture.interpreter.machine.machine import Interpreter
from dovetail_capture.interpreter.protocols import inlining
from dovetail_capture.interpreter.signals import GraphBreakSignal
from dovetail_capture.interpreter.values.base import Value
from dovetail_capture.interpreter.values.tensors import TensorValue

# --- interpreted ----------------------------------------------------------------------------------


def cond(pred: Any, true_fn: Any, false_fn: Any, operands: Any = ()) -> Any:
    """By what is no tensor."""
    if pred:
        return true_fn(*operands)
    return false_fn(*operands)


# --- both branches --------------------------------------------------------------------------------


def _difference(true: Subgraph, false: Subgraph) -> str:
    """How the results of two branches differ, in words; empty if they do not."""
    if not same_structure(true.template, false.template):
        return "the branches give results of different structure, or different numbers"
    for place, (one, other) in enumerate(zip(true.results, false.results, strict=True)):
        what = metadata_difference(one.fake, other.fake)
        if what:
            return f"the branches differ in their result {place}: {what}"
    return ""


class _Results(torch.autograd.Function):
    """Gives fakes like those of a branch's results, as autograd sees them behind the node."""

    @staticmethod
    def forward(ctx: Any, like: tuple[tuple[Any, bool], ...], *operands: Any) -> Any:
        made = tuple(
            torch.empty_strided(fake._sizes, fake._strides, dtype=fake.dtype, device=fake.device)
            for fake, _ in like
        )
        plain = (one for one, (_, graded) in zip(made, like, strict=True) if not graded)
        ctx.mark_non_differentiable(*plain)
        ctx.operands = operands
        return made

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        found = (
            torch.zeros_like(operand) if needed else None
            for operand, needed in zip(ctx.operands, ctx.needs_input_grad[1:], strict=True)
        )
        return (None, *found)


def _node(vm: Interpreter, pred: TensorValue, branches: Sequence[Subgraph]) -> Value:
    """Record the node; gives the tuple of its results."""
    recorder = vm.session.recorder
    operands = operands_of(branches)
    graphs = [graph_of(branch, operands) for branch in branches]
    given = [recorder.argument(operand) for operand in operands]
    like = tuple(
        (one.fake, any(v.results[place].fake.requires_grad for v in branches))
        for place, one in enumerate(branches[0].results)
    )
    with recorder.fake_mode:
        results = _Results.apply(like, *(pair[1] for pair in given))
    nodes = [
        recorder.subgraph(name, graph)
        for name, graph in zip(("true_graph", "false_graph"), graphs, strict=True)
    ]
    arguments = (recorder.argument(pred)[0], *nodes, tuple(pair[0] for pair in given))
    return recorder.call(torch.ops.higher_order.cond, arguments, results)


def _as_node(
    vm: Interpreter, pred: TensorValue, functions: Sequence[Value], operands: Value
) -> Value:
    if len(pred.sizes) and pred.fake.numel() != 1:
        raise GraphBreakSignal("its predicate must have one element")
    given = list(vm.iterate(operands))
    names = ("the true branch", "the false branch")
    branches = [captured_function(vm, f, given, w) for f, w in zip(functions, names, strict=True)]
    different = _difference(*branches)
    if different:
        raise GraphBreakSignal(different)
    if not branches[0].results:
        raise GraphBreakSignal("its branches give no tensor")
    results = list(vm.iterate(_node(vm, pred, branches)))
    return filled(vm, branches[0].template, results)


def handler(vm: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    """`torch.cond(pred, true_fn, false_fn, operands)`."""
    names = ("pred", "true_fn", "false_fn", "operands")
    given = {**dict(zip(names, args, strict=False)), **kwargs}
    pred, recorder = given.get("pred"), vm.session.recorder
    if not isinstance(pred, TensorValue) or not {"true_fn", "false_fn"} <= given.keys():
        return inlining.inline(vm, cond, args, kwargs)
    if isinstance(recorder, InnerRecorder) and recorder.transforms:
        raise GraphBreakSignal("torch.cond inside of a transformed function")
    functions = [given["true_fn"], given["false_fn"]]
    with told_as(_NO_NODE, _HINT):
        return _as_node(vm, pred, functions, given.get("operands", vm.constant(())))


_NO_NODE = "a torch.cond that cannot be part of a graph"
_HINT = (
    "let both branches compute tensors of one shape, dtype and layout, and change nothing else; "
    "or use torch.where"
)
