"""Checks of data in calls that are dead code.

Eager raises for an index out of bounds, or a division by zero, whether or not anybody reads the
result. So where the forward does not compute a result, its call is replaced by what it checks: an
assertion over its indices (or its divisor), which costs one small kernel; a call of which that
cannot be told stays as it is. Calls whose results are read check for themselves.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from dovetail_prims.fake_tensor import FakeTensor
from dovetail_prims.node_facts import CHECKED, IN_BACKWARD
from dovetail_prims.ops import data_errors
from torch.fx import Graph, Node

from dovetail_autograd_aot.graph.op_info import draws_random_numbers
from dovetail_autograd_aot.trace.tracer import Tracer

aten = torch.ops.aten

_VIEWS = frozenset(
    {aten.view.default, aten.expand.default, aten.unsqueeze.default, aten.permute.default}
)


def keep_checks(tracer: Tracer, forward_outputs: Sequence[Any]) -> None:
    """Add to the tracer's graph, which has no output yet, what calls check whose results the
    `forward_outputs` do not need, or mark those calls as checks (`meta["checked"]`)."""
    raising = [
        n for n in tracer.graph.nodes if n.op == "call_function" and data_errors.may_raise(n.target)
    ]
    if not raising:
        return
    live = _live(tracer.graph, forward_outputs)
    done = {key for n in raising if n in live for key in map(_key, data_errors.indices_of(n))}
    divisors = {data_errors.divisor_of(n) for n in raising if n in live}
    tracer.in_backward = False
    for node in raising:
        if node in live or IN_BACKWARD.holds(node):
            continue
        if data_errors.raises_in_its_work(node):
            CHECKED.tell(node, True)
            continue
        if _is_empty(node.meta.get("val")):
            continue
        tracer.stack_trace = node.meta.get("stack_trace")
        for checked in data_errors.indices_of(node):
            if _key(checked) not in done and not _is_known_to_fit(checked):
                done.add(_key(checked))
                _check_index(tracer, node, checked)
        divisor = data_errors.divisor_of(node)
        if divisor is not None and divisor not in divisors:
            divisors.add(divisor)
            with tracer.graph.inserting_before(node.next):
                nonzero = tracer.emit(aten.ne.Scalar, (divisor, 0), {}, merge=False)
                _assert_all(tracer, nonzero, "ZeroDivisionError")
    tracer.stack_trace = None


def _live(graph: Graph, outputs: Sequence[Any]) -> set[Node]:
    """The nodes that the forward computes: for its outputs, or for what they raise or draw."""
    live: set[Node] = set()
    stack = [o for o in outputs if isinstance(o, Node)]
    for node in graph.nodes:
        stays = draws_random_numbers(node) or CHECKED.holds(node)
        if stays and not IN_BACKWARD.holds(node):
            stack.append(node)
    while stack:
        node = stack.pop()
        if node not in live:
            live.add(node)
            stack += node.all_input_nodes
    return live


def _key(checked: data_errors.CheckedIndex) -> tuple[Any, ...]:
    """What is checked. (Of sizes, only numbers are compared: that asks for no guard.)"""
    size: Any = checked.size
    return checked.op, checked.index, size if type(size) is int else str(size)


def _is_empty(value: Any) -> bool:
    return isinstance(value, FakeTensor) and any(type(n) is int and n == 0 for n in value._sizes)


def _is_known_to_fit(checked: data_errors.CheckedIndex) -> bool:
    """Whether an index is a range of numbers that lie within the size, whatever the data and the
    sizes: one that an operator's decomposition made, or a program's positions."""
    index: Any = checked.index
    start = 0
    while index.target in _VIEWS or _adds_number(index):
        start += 0 if index.target in _VIEWS else index.args[1]
        index = index.args[0]
    if index.target is not aten.arange.start_step:
        return False
    first, end = ((n.meta["val"] if isinstance(n, Node) else n) + start for n in index.args[:2])
    step = index.args[2] if len(index.args) > 2 else 1
    goes_up = type(step) is int and step > 0
    return goes_up and _is_certain(first >= 0) and _is_certain(end <= checked.size)


def _is_certain(relation: Any) -> bool:
    """Whether a relation holds whatever the data are: one of symbolic sizes that holds in this call
    becomes a guard, as long as guards can be made."""
    if not isinstance(relation, torch.SymBool):
        return bool(relation)
    node: Any = relation.node
    if node.statically_known_true():
        return True
    return node.hint is True and not node.env.frozen and bool(node.guard_or_false())


def _adds_number(node: Node) -> bool:
    return (
        node.target in (aten.add.Tensor, aten.add.Scalar)
        and isinstance(node.args[0], Node)
        and type(node.args[1]) is int
        and "alpha" not in node.kwargs
        and len(node.args) == 2
    )


def _check_index(tracer: Tracer, node: Node, checked: data_errors.CheckedIndex) -> None:
    """Look up an index in the numbers below the size that it is held against: the same operator
    raises the same error, of the same dimension."""
    index: FakeTensor = checked.index.meta["val"]
    size = tracer.nodes(checked.size)

    def emit(op: Any, *args: Any, **kwargs: Any) -> Node:
        made: Node = tracer.emit(op, args, kwargs, merge=False)
        return made

    # (What computes a symbolic size may stand further down.)
    after = node if isinstance(size, int) else list(tracer.graph.nodes)[-1]
    with tracer.graph.inserting_before(after.next):
        numbers = emit(aten.arange.start_step, 0, size, dtype=torch.int64, device=index.device)
        if checked.op is aten.index.Tensor:
            if checked.dim:
                numbers = emit(aten.view.default, numbers, [1] * checked.dim + [size])
            picks = [None] * checked.dim + [checked.index]
            found = emit(aten.index.Tensor, numbers, picks)
        elif checked.op is aten.embedding.default:
            table = emit(aten.view.default, numbers, [size, 1])
            found = emit(aten.embedding.default, table, checked.index)
        else:
            sizes = list(_sizes_along(tracer, index, checked.dim, size))
            ones = [size if d == checked.dim else 1 for d in range(len(sizes))]
            table = emit(aten.expand.default, emit(aten.view.default, numbers, ones), sizes)
            found = emit(aten.gather.default, table, checked.dim, checked.index)
        # (True of each number, which a compiler does not know if it compares with `ge`.)
        _assert_all(tracer, emit(aten.ne.Scalar, found, -1), "index out of range")


def _sizes_along(tracer: Tracer, index: FakeTensor, dim: int, size: Any) -> Iterator[Any]:
    for d, n in enumerate(index._sizes):
        yield size if d == dim else tracer.nodes(n)


def _assert_all(tracer: Tracer, condition: Node, message: str) -> None:
    dims = list(range(len(condition.meta["val"]._sizes)))
    if dims:
        condition = tracer.emit(aten.all.dims, (condition, dims), {}, merge=False)
    asserted = tracer.call(aten._assert_async.msg, (condition, message), None)
    CHECKED.tell(asserted, True)
