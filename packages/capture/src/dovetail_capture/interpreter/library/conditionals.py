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

import types
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import torch
from dovetail_guards.shape_env import DataDependentError
from dovetail_guards.sym_node import expr_of
from dovetail_prims.fake_tensor import FakeTensor
from torch.fx import GraphModule, Node

from dovetail_capture.interpreter.aliasing import written_by
from dovetail_capture.interpreter.changes import no_changes
from dovetail_capture.interpreter.library.handlers import Args, Kwargs
from dovetail_capture.interpreter.library.transforms import InnerRecorder, filled, template_of
from dovetail_capture.interpreter.protocols import inlining
from dovetail_capture.interpreter.recorder import NotAGraphArgument, Recorder
from dovetail_capture.interpreter.signals import GraphBreakSignal, ProgramException
from dovetail_capture.interpreter.values.base import Value
from dovetail_capture.interpreter.values.symbolic import SymbolicNumber
from dovetail_capture.interpreter.values.tensors import TensorValue

if TYPE_CHECKING:
    from dovetail_capture.interpreter.machine import Interpreter
    from dovetail_capture.interpreter.session import Session


# --- interpreted ----------------------------------------------------------------------------------


def cond(pred: Any, true_fn: Any, false_fn: Any, operands: Any = ()) -> Any:
    """By what is no tensor."""
    if pred:
        return true_fn(*operands)
    return false_fn(*operands)


# --- a branch -------------------------------------------------------------------------------------


class _BranchRecorder(InnerRecorder):
    """Records the graph of a branch."""

    differentiates = True
    transforms = False

    def __init__(self, outer: Recorder) -> None:
        super().__init__(outer)
        self.inference = outer.inference
        self._versions: list[tuple[Any, int]] = []

    def argument(self, value: Any) -> tuple[Any, Any]:
        before = len(self.captured)
        pair = super().argument(value)
        if len(self.captured) > before and isinstance(value, TensorValue):
            self._versions.append((value.fake, _version(value.fake)))
        return pair

    def storages(self) -> set[int]:
        """The ids of the storages that come from around the branch."""
        return {id(_storage(fake)) for fake, _ in self._versions}

    def writes_around(self) -> bool:
        """Does the branch write to a tensor that it did not make?"""
        if any(_version(fake) != version for fake, version in self._versions):
            return True
        around = self.storages()
        written = (part for node in self.graph.nodes for part in written_by(node))
        return any(id(_storage(part.meta.get("val"))) in around for part in written)


def _version(fake: Any) -> int:
    return -1 if fake.is_inference() else int(fake._version)


def _storage(value: Any) -> Any:
    return getattr(value, "_storage", value)


@dataclass(frozen=True)
class _Branch:
    """A captured branch: `template` has the structure of its result, `results` the tensors."""

    recorder: _BranchRecorder
    template: Any
    results: list[TensorValue]


def _state(session: Session) -> Any:
    """What of torch's state a branch has to leave as it was."""
    return (
        torch.is_grad_enabled(),
        len(session.open_modes),
        {key: value for key, value in session.settings.items()},
        dict(session.made_leaves),
        len(session.function_modes),
        len(session.functions_off),
        len(session.locks),
    )


def _captured(vm: Interpreter, function: Value, operands: list[Value], which: str) -> _Branch:
    session = vm.session
    outer = session.recorder
    inner = _BranchRecorder(outer)
    before, checks = _state(session), session.shapes.env.checks
    checked = len(checks)
    session.recorder = inner
    try:
        with no_changes(vm, [function, *operands], f"{which} changes what was there before"):
            result = vm.call(function, operands, {})
            vm._look_into(result)
        results: list[TensorValue] = []
        template = template_of(vm, result, results)
        if inner.writes_around():
            raise GraphBreakSignal(f"{which} writes to a tensor that it did not make")
        if len(checks) != checked:  # what is learnt from them would hold only where it runs
            raise GraphBreakSignal(f"{which} checks what only the data tells")
        if _state(session) != before:
            raise GraphBreakSignal(f"{which} leaves torch in another state")
        results = _with_own_memory(inner, results)
        inner.graph.output(tuple(inner.argument(value)[0] for value in results))
    except NotAGraphArgument as error:
        raise GraphBreakSignal(f"{which} gives {error}") from None
    except ProgramException as error:
        name = error.value.python_type().__name__
        raise GraphBreakSignal(f"{which} raises {name}") from None
    finally:
        session.recorder = outer
    return _Branch(inner, template, results)


def _with_own_memory(inner: _BranchRecorder, results: list[TensorValue]) -> list[TensorValue]:
    """Results that share no memory with the operands, nor with one another."""
    taken = inner.storages()
    found: list[TensorValue] = []
    for value in results:
        inner.argument(value)  # (a result may be what nothing was computed of)
        if id(_storage(value.fake)) in taken | inner.storages():
            copied = inner.record("call_method", "clone", [value], {})
            value = cast(TensorValue, copied)
        taken.add(id(_storage(value.fake)))
        found.append(value)
    return found


# --- both branches --------------------------------------------------------------------------------


def _same(first: Any, second: Any) -> bool:
    """Are two sizes equal? Symbolic ones that are in this call, are guarded to be."""
    try:
        return bool(first == second)
    except DataDependentError:
        return False


def _same_sizes(first: Sequence[Any], second: Sequence[Any]) -> bool:
    return len(first) == len(second) and all(map(_same, first, second))


def _same_structure(first: Any, second: Any) -> bool:
    """Are two results alike, but for what their tensors hold?"""
    if type(first) is not type(second):
        return False
    if isinstance(first, (tuple, list)):
        pairs = zip(first, second, strict=False)
        return len(first) == len(second) and all(_same_structure(a, b) for a, b in pairs)
    if isinstance(first, dict):
        return list(first) == list(second) and all(
            _same_structure(first[key], second[key]) for key in first
        )
    return bool(first == second)


def _difference(true: _Branch, false: _Branch) -> str:
    """How the results of two branches differ, in words; empty if they do not."""
    if not _same_structure(true.template, false.template):
        return "the branches give results of different structure, or different numbers"
    for place, (one, other) in enumerate(zip(true.results, false.results, strict=True)):
        a, b = one.fake, other.fake
        if type(a) is not FakeTensor or type(b) is not FakeTensor:
            return f"result {place} is a tensor of a class of its own"
        what = ""
        if a._dtype is not b._dtype:
            what = f"dtype ({a._dtype}, {b._dtype})"
        elif a._device != b._device:
            what = f"device ({a._device}, {b._device})"
        elif not _same_sizes(a._sizes, b._sizes):
            what = f"shape ({tuple(a._sizes)}, {tuple(b._sizes)})"
        elif not _same_sizes(a._strides, b._strides):
            what = f"strides ({tuple(a._strides)}, {tuple(b._strides)})"
        if what:
            return f"the branches differ in their result {place}: {what}"
    return ""


def _operands_of(branches: Sequence[_Branch]) -> list[Value]:
    """What the branches take from around them, each once."""
    found: dict[Any, Value] = {}
    for branch in branches:
        for value in branch.recorder.captured:
            found.setdefault(_key(value), value)
    return list(found.values())


def _key(value: Value) -> Any:
    return value.node if isinstance(value, TensorValue) else expr_of(cast(Any, value).value)


def _graph_of(branch: _Branch, operands: Sequence[Value]) -> GraphModule:
    """The graph of a branch, with a placeholder for each operand in their order."""
    inner = branch.recorder
    graph = inner.graph
    given = [node for node in graph.nodes if node.op == "placeholder"]
    own = {_key(v): n for v, n in zip(inner.captured, given, strict=True)}
    last: Node | None = None
    for place, operand in enumerate(operands):
        node = own.get(_key(operand))
        if node is None:
            first = next(iter(graph.nodes))
            with graph.inserting_before(first):
                node = graph.placeholder(f"unused{place}")
            number = isinstance(operand, SymbolicNumber)
            node.meta["val"] = cast(Any, operand).value if number else cast(Any, operand).fake
        if last is None:
            first = next(iter(graph.nodes))
            if first is not node:
                first.prepend(node)
        else:
            last.append(node)
        last = node
    return inner.module()


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


def _node(vm: Interpreter, pred: TensorValue, branches: Sequence[_Branch]) -> Value:
    """Record the node; gives the tuple of its results."""
    recorder = vm.session.recorder
    operands = _operands_of(branches)
    graphs = [_graph_of(branch, operands) for branch in branches]
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
    branches = [_captured(vm, f, given, w) for f, w in zip(functions, names, strict=True)]
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
        return inlining.inline(vm, cast(types.FunctionType, cond), args, kwargs)
    if isinstance(recorder, InnerRecorder) and recorder.transforms:
        raise GraphBreakSignal("torch.cond inside of a transformed function")
    functions = [given["true_fn"], given["false_fn"]]
    try:
        return _as_node(vm, pred, functions, given.get("operands", vm.constant(())))
    except GraphBreakSignal as signal:
        if not signal.reason.startswith(_NO_NODE):
            signal.reason = f"{_NO_NODE}: {signal.reason}"
            signal.hint = _HINT
        raise


_NO_NODE = "a torch.cond that cannot be part of a graph"
_HINT = (
    "let both branches compute tensors of one shape, dtype and layout, and change nothing else; "
    "or use torch.where"
)
