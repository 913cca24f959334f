"""Control flow by a tensor: `torch.cond` and `torch.while_loop`, each one node, whose functions
were captured as well.

They are interpreted and recorded into graphs of their own. Tensors that they take from around them
(and the sizes that these do not tell) become operands of the node, in one order for both graphs.
The node is torch's own `torch.ops.higher_order.cond(predicate, true_graph, false_graph, operands)`,
or `while_loop(condition, body, carried, additional)`, and gives a tuple.

A branch may run or not, so it may change nothing outside of itself; and what follows is captured
once, so both give results of one structure, shape, dtype, device and layout, in memory of their
own. The body of a loop is interpreted on tensors like the carried ones. It runs any number of
times, also none: it changes nothing outside of itself, and gives tensors like those that it takes.

Where that is not so, where a function cannot be one graph, where gradients of a loop are wanted
(torch has its own way for these), or where a number is carried, the graph breaks, and torch's own
operator runs. A loop that Python's numbers decide is a loop in Python, and unrolled.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import torch

from dovetail_capture.extensions.higher_order import subgraphs
from dovetail_capture.interpreter.library.torch_functions import inner_graphs
from dovetail_capture.interpreter.machine.machine import Args, Interpreter, Kwargs
from dovetail_capture.interpreter.protocols import inlining
from dovetail_capture.interpreter.signals import GraphBreakSignal
from dovetail_capture.interpreter.values.base import Value
from dovetail_capture.interpreter.values.containers import ListValue, TupleValue
from dovetail_capture.interpreter.values.tensors import TensorValue

# --- interpreted ----------------------------------------------------------------------------------


def cond(pred: Any, true_fn: Any, false_fn: Any, operands: Any = ()) -> Any:
    """By what is no tensor."""
    if pred:
        return true_fn(*operands)
    return false_fn(*operands)


# --- both branches --------------------------------------------------------------------------------


def _difference(true: subgraphs.Subgraph, false: subgraphs.Subgraph) -> str:
    """How the results of two branches differ, in words; empty if they do not."""
    if not subgraphs.same_structure(true.template, false.template):
        return "the branches give results of different structure, or different numbers"
    for place, (one, other) in enumerate(zip(true.results, false.results, strict=True)):
        what = subgraphs.metadata_difference(one.fake, other.fake)
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


def _node(vm: Interpreter, pred: TensorValue, branches: Sequence[subgraphs.Subgraph]) -> Value:
    """Record the node; gives the tuple of its results."""
    recorder = vm.session.recorder
    operands = subgraphs.operands_of(branches)
    graphs = [subgraphs.graph_of(branch, operands) for branch in branches]
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


def _as_conditional(
    vm: Interpreter, pred: TensorValue, functions: Sequence[Value], operands: Value
) -> Value:
    if len(pred.sizes) and pred.fake.numel() != 1:
        raise GraphBreakSignal("its predicate must have one element")
    given = list(vm.iterate(operands))
    names = ("the true branch", "the false branch")
    branches = [
        subgraphs.captured_function(vm, f, given, w) for f, w in zip(functions, names, strict=True)
    ]
    different = _difference(*branches)
    if different:
        raise GraphBreakSignal(different)
    if not branches[0].results:
        raise GraphBreakSignal("its branches give no tensor")
    results = list(vm.iterate(_node(vm, pred, branches)))
    return inner_graphs.filled(vm, branches[0].template, results)


def conditional(vm: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    """`torch.cond(pred, true_fn, false_fn, operands)`."""
    names = ("pred", "true_fn", "false_fn", "operands")
    given = {**dict(zip(names, args, strict=False)), **kwargs}
    pred, recorder = given.get("pred"), vm.session.recorder
    if not isinstance(pred, TensorValue) or not {"true_fn", "false_fn"} <= given.keys():
        return inlining.inline(vm, cond, args, kwargs)
    if isinstance(recorder, inner_graphs.InnerRecorder) and recorder.transforms:
        raise GraphBreakSignal("torch.cond inside of a transformed function")
    functions = [given["true_fn"], given["false_fn"]]
    with subgraphs.told_as(_NO_CONDITIONAL, _CONDITIONAL_HINT):
        return _as_conditional(vm, pred, functions, given.get("operands", vm.constant(())))


_NO_CONDITIONAL = "a torch.cond that cannot be part of a graph"
_CONDITIONAL_HINT = (
    "let both branches compute tensors of one shape, dtype and layout, and change nothing else; "
    "or use torch.where"
)


def while_loop(cond_fn: Any, body_fn: Any, carried_inputs: Any) -> Any:
    """As Python has it."""
    carried = tuple(carried_inputs)
    while cond_fn(*carried):
        carried = tuple(body_fn(*carried))
    # (Results are tensors of their own, though the body gives on what it got.)
    return tuple(
        value.clone() if any(value is given for given in carried_inputs) else value
        for value in carried
    )


def _carried(vm: Interpreter, value: Value | None) -> list[TensorValue] | None:
    """The carried tensors; None if something else is carried, too."""
    if not isinstance(value, (TupleValue, ListValue)):
        return None
    items = list(vm.iterate(value))
    tensors = [item for item in items if isinstance(item, TensorValue)]
    return tensors if tensors and len(tensors) == len(items) else None


def _as_copied(vm: Interpreter, value: TensorValue) -> TensorValue:
    """A tensor that is laid out as its copy is: what the loop gives if its body never runs."""
    with vm.session.recorder.fake_mode:
        copy: Any = value.fake.clone()
    if subgraphs.same_sizes(copy._strides, cast(Any, value.fake)._strides):
        return value
    return cast(TensorValue, vm.record("call_method", "clone", [value], {}))


def _asks_truth(condition: subgraphs.Subgraph) -> bool:
    """Does a condition give one tensor of one truth value? (Eager takes no other.)"""
    if type(condition.template) is not inner_graphs.Slot:
        return False
    fake = condition.results[0].fake
    return fake.dtype is torch.bool and fake.dim() == 0


def _check_body(body: subgraphs.Subgraph, carried: list[TensorValue]) -> None:
    """Break the graph where a body gives other tensors than it takes."""
    template = body.template
    flat = type(template) is tuple and all(type(item) is inner_graphs.Slot for item in template)
    if not flat or len(template) != len(carried):
        raise GraphBreakSignal(f"its body gives no tuple of {len(carried)} tensors")
    for place, (given, result) in enumerate(zip(carried, body.results, strict=True)):
        what = subgraphs.metadata_difference(given.fake, result.fake)
        if what:
            raise GraphBreakSignal(f"what is carried in place {place} changes: {what}")


def _as_loop(
    vm: Interpreter, condition_fn: Value, body_fn: Value, carried: list[TensorValue]
) -> Value:
    recorder = vm.session.recorder
    carried = [_as_copied(vm, value) for value in carried]
    given = list[Value](carried)
    condition = subgraphs.captured_function(vm, condition_fn, given, "the condition", carried=True)
    if not _asks_truth(condition):
        raise GraphBreakSignal("its condition gives no tensor of one truth value")
    body = subgraphs.captured_function(vm, body_fn, given, "the body", carried=True)
    _check_body(body, carried)
    around = subgraphs.operands_of((condition, body))
    if torch.is_grad_enabled():
        taken = [v for v in (*carried, *around) if isinstance(v, TensorValue)]
        if any(value.fake.requires_grad for value in taken):
            raise GraphBreakSignal("it takes a tensor that needs a gradient")
    graphs = [subgraphs.graph_of(one, around) for one in (condition, body)]
    (predicate,) = graphs[0].graph.find_nodes(op="output")[0].args[0]
    graphs[0].graph.find_nodes(op="output")[0].args = (predicate,)
    graphs[0].recompile()
    names = ("condition_graph", "body_graph")
    nodes = [recorder.subgraph(n, graph) for n, graph in zip(names, graphs, strict=True)]
    operands = [tuple(recorder.argument(v)[0] for v in part) for part in (carried, around)]
    with recorder.fake_mode:
        results = tuple(torch.empty_like(value.fake, requires_grad=False) for value in carried)
    return recorder.call(torch.ops.higher_order.while_loop, (*nodes, *operands), results)


def loop(vm: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    """`while_loop(cond_fn, body_fn, carried_inputs)`."""
    names = ("cond_fn", "body_fn", "carried_inputs")
    given = {**dict(zip(names, args, strict=False)), **kwargs}
    carried = _carried(vm, given.get("carried_inputs"))
    if carried is None or given.keys() != set(names):
        return inlining.inline(vm, while_loop, args, kwargs)
    recorder = vm.session.recorder
    with subgraphs.told_as(_NO_LOOP, _LOOP_HINT):
        if isinstance(recorder, inner_graphs.InnerRecorder) and recorder.transforms:
            raise GraphBreakSignal("it is inside of a transformed function")
        return _as_loop(vm, given["cond_fn"], given["body_fn"], carried)


_NO_LOOP = "a torch.while_loop that cannot be part of a graph"
_LOOP_HINT = (
    "carry tensors only, and let the body give tensors of the same shape, dtype and layout in a "
    "tuple and change nothing else; under torch.no_grad() if gradients are not wanted"
)
