"""`torch.while_loop` by a tensor: one node, whose condition and body were captured as well.

Both are interpreted on tensors like the carried ones and recorded into graphs of their own; how
often the body runs, the condition says when the graph does. Tensors that they take from around them
(and the sizes that these do not tell) are further operands of the node, which is torch's own
`torch.ops.higher_order.while_loop(condition, body, carried, additional)`, and gives a tuple.

The body runs any number of times, also none. So it changes nothing outside of itself, and gives
tensors like those that it takes. Where that is not so, where gradients are wanted (torch has its
own way for these), or where a number is carried, the graph breaks, and torch's own operator runs.
A loop that Python's numbers decide is a loop in Python, and unrolled.
"""

from __future__ import annotations

from typing import Any, cast

import torch

from dovetail_capture.extensions.higher_order.subgraphs import (
    Subgraph,
    captured_function,
    graph_of,
    metadata_difference,
    operands_of,
    same_sizes,
    told_as,
)
from dovetail_capture.interpreter.library.torch_functions.inner_graphs import InnerRecorder, Slot
from dovetail_capture.interpreter.machine.handler_types import Args, Kwargs
from dovetail_capture.interpreter.machine.machine import Interpreter
from dovetail_capture.interpreter.protocols import inlining
from dovetail_capture.interpreter.signals import GraphBreakSignal
from dovetail_capture.interpreter.values.base import Value
from dovetail_capture.interpreter.values.containers import ListValue, TupleValue
from dovetail_capture.interpreter.values.tensors import TensorValue


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
    if same_sizes(copy._strides, cast(Any, value.fake)._strides):
        return value
    return cast(TensorValue, vm.record("call_method", "clone", [value], {}))


def _asks_truth(condition: Subgraph) -> bool:
    """Does a condition give one tensor of one truth value? (Eager takes no other.)"""
    if type(condition.template) is not Slot:
        return False
    fake = condition.results[0].fake
    return fake.dtype is torch.bool and fake.dim() == 0


def _check_body(body: Subgraph, carried: list[TensorValue]) -> None:
    """Break the graph where a body gives other tensors than it takes."""
    template = body.template
    flat = type(template) is tuple and all(type(item) is Slot for item in template)
    if not flat or len(template) != len(carried):
        raise GraphBreakSignal(f"its body gives no tuple of {len(carried)} tensors")
    for place, (given, result) in enumerate(zip(carried, body.results, strict=True)):
        what = metadata_difference(given.fake, result.fake)
        if what:
            raise GraphBreakSignal(f"what is carried in place {place} changes: {what}")


def _as_node(
    vm: Interpreter, condition_fn: Value, body_fn: Value, carried: list[TensorValue]
) -> Value:
    recorder = vm.session.recorder
    carried = [_as_copied(vm, value) for value in carried]
    given = list[Value](carried)
    condition = captured_function(vm, condition_fn, given, "the condition", carried=True)
    if not _asks_truth(condition):
        raise GraphBreakSignal("its condition gives no tensor of one truth value")
    body = captured_function(vm, body_fn, given, "the body", carried=True)
    _check_body(body, carried)
    around = operands_of((condition, body))
    if torch.is_grad_enabled():
        taken = [v for v in (*carried, *around) if isinstance(v, TensorValue)]
        if any(value.fake.requires_grad for value in taken):
            raise GraphBreakSignal("it takes a tensor that needs a gradient")
    graphs = [graph_of(one, around) for one in (condition, body)]
    (predicate,) = graphs[0].graph.find_nodes(op="output")[0].args[0]
    graphs[0].graph.find_nodes(op="output")[0].args = (predicate,)
    graphs[0].recompile()
    names = ("condition_graph", "body_graph")
    nodes = [recorder.subgraph(n, graph) for n, graph in zip(names, graphs, strict=True)]
    operands = [tuple(recorder.argument(v)[0] for v in part) for part in (carried, around)]
    with recorder.fake_mode:
        results = tuple(torch.empty_like(value.fake, requires_grad=False) for value in carried)
    return recorder.call(torch.ops.higher_order.while_loop, (*nodes, *operands), results)


def handler(vm: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    """`while_loop(cond_fn, body_fn, carried_inputs)`."""
    names = ("cond_fn", "body_fn", "carried_inputs")
    given = {**dict(zip(names, args, strict=False)), **kwargs}
    carried = _carried(vm, given.get("carried_inputs"))
    if carried is None or given.keys() != set(names):
        return inlining.inline(vm, while_loop, args, kwargs)
    recorder = vm.session.recorder
    with told_as(_NO_NODE, _HINT):
        if isinstance(recorder, InnerRecorder) and recorder.transforms:
            raise GraphBreakSignal("it is inside of a transformed function")
        return _as_node(vm, given["cond_fn"], given["body_fn"], carried)


_NO_NODE = "a torch.while_loop that cannot be part of a graph"
_HINT = (
    "carry tensors only, and let the body give tensors of the same shape, dtype and layout in a "
    "tuple and change nothing else; under torch.no_grad() if gradients are not wanted"
)
