"""Operators that users register and that write to their arguments: over what dies in the call.

A graph has their functional twins, which write to copies. Where what is written is a buffer that
nobody needs any more as it was, the operator itself is called on it, and the copy is saved.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from dovetail_prims.functional_twins import Twin, twin_named

from dovetail_inductor.loop_ir.loops import ExternArg, ExternCall, Strided
from dovetail_inductor.scheduler.kernels import Step
from dovetail_inductor.scheduler.lifetimes import Lifetimes
from dovetail_inductor.scheduler.write_over import MAKES_NEW


def twins_over(lives: Lifetimes, written_over: Mapping[str, str]) -> dict[str, str]:
    """Results of twins -> the buffers whose memory they take, which live on as long. A twin's
    results are all there, or none is. `written_over` are the buffers that have another's memory
    already."""
    roots: dict[str, str] = {}
    for position, step in enumerate(lives.graph.steps):
        twin = _twin(step)
        if twin is None or not isinstance(step, ExternCall):
            continue
        places = [_argument(step, *place) for place in twin.written]
        pairs = list(zip(step.outputs[twin.results :], places, strict=True))
        if not all(_may_take(lives, position, step, *pair) for pair in pairs):
            continue
        for output, argument in pairs:
            assert isinstance(argument, Strided)
            root = written_over.get(argument.buffer, argument.buffer)
            root = roots.get(root, root)
            assert output is not None
            roots[output] = root
            lives.last[root] = max(lives.last[root], lives.last[output])
            if lives.last[root] == len(lives.graph.steps):
                lives.outside.add(root)
    return roots


def _twin(step: Step) -> Twin | None:
    """The twin that is called, if it takes and gives no lists: one buffer for each."""
    twin = twin_named(step.op) if isinstance(step, ExternCall) else None
    if twin is None:
        return None
    schema = twin.op._schema
    types = [schema.arguments[place].type for place, _ in twin.written]
    types += [result.type for result in schema.returns]
    return twin if all("List" not in str(one) for one in types) else None


def _argument(call: ExternCall, place: int, name: str) -> ExternArg:
    return call.args[place] if place < len(call.args) else dict(call.kwargs).get(name)


def in_place(call: ExternCall, written_over: Mapping[str, str]) -> ExternCall:
    """The call of an operator itself, if its twin's results have the memory of its arguments."""
    twin = _twin(call)
    if twin is None or not any(o in written_over for o in call.outputs[twin.results :]):
        return call
    return replace(call, op=_name(twin), outputs=call.outputs[: twin.results])


def _name(twin: Twin) -> str:
    overload = twin.op._overloadname
    return twin.op._schema.name + ("" if overload == "default" else f".{overload}")


def _may_take(
    lives: Lifetimes, position: int, call: ExternCall, output: str | None, argument: ExternArg
) -> bool:
    """Whether a result may have the memory of the argument that it is the new value of."""
    graph = lives.graph
    if output is None or not isinstance(argument, Strided) or argument.buffer not in lives.last:
        return False
    given, made = graph.buffers[argument.buffer], graph.buffers[output]
    alike = (given.dtype, given.device, given.shape, given.stride, given.offset) == (
        made.dtype, made.device, made.shape, made.stride, made.offset
    )  # fmt: skip
    if not alike or not argument.covers(given) or lives.last[given.name] != position:
        return False
    if sum(tensor.buffer == given.name for tensor in call.tensors()) != 1:
        return False
    # (A library call's result may be a view of what it reads.)
    reads = [s for s in graph.steps if isinstance(s, ExternCall) and given.name in s.reads()]
    makes = [s for s in graph.steps if isinstance(s, ExternCall) and given.name in s.outputs]
    return all(_makes_new(s) for s in (*reads, *makes))


def _makes_new(call: ExternCall) -> bool:
    known = call.op.partition(".")[0] in (*MAKES_NEW, "aten::empty", "aten::empty_strided")
    return call.out_variant or known or twin_named(call.op) is not None


__all__ = ["in_place", "twins_over"]
