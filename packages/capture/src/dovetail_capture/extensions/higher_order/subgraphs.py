"""A function captured into a graph of its own, which an operator of the graph around it runs.

`torch.cond` and `torch.while_loop` are such operators. The function may run or not, or many times,
so it may change nothing outside of itself, and what it gives has memory of its own. Tensors that it
takes from around it (and the sizes that these do not tell) are `captured`: they become operands.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import torch
from dovetail_guards.shape_env import DataDependentError
from dovetail_guards.sym_node import expr_of
from dovetail_prims.fake_tensor import FakeTensor
from torch.fx import GraphModule, Node

from dovetail_capture.interpreter.changes.late_reads import no_changes
from dovetail_capture.interpreter.graph.aliasing import written_by
from dovetail_capture.interpreter.graph.graph_values import NotAGraphArgument
from dovetail_capture.interpreter.graph.recorder import Recorder
from dovetail_capture.interpreter.library.torch_functions import inner_graphs
from dovetail_capture.interpreter.signals import GraphBreakSignal
from dovetail_capture.interpreter.values.base import Value
from dovetail_capture.interpreter.values.objects import ProgramException
from dovetail_capture.interpreter.values.symbolic import SymbolicNumber
from dovetail_capture.interpreter.values.tensors import TensorValue

if TYPE_CHECKING:
    from dovetail_capture.interpreter.machine import Interpreter
    from dovetail_capture.interpreter.session.session import Session


@contextmanager
def told_as(what: str, hint: str) -> Iterator[None]:
    """Let a graph break inside say that for its reason an operator is no node, and what helps."""
    try:
        yield
    except GraphBreakSignal as signal:
        if not signal.reason.startswith(what):  # by an operator inside
            signal.reason = f"{what}: {signal.reason}"
            signal.hint = hint
        raise


class SubgraphRecorder(inner_graphs.InnerRecorder):
    """Records the graph of such a function."""

    differentiates = True
    transforms = False

    def __init__(self, outer: Recorder) -> None:
        super().__init__(outer)
        self.carried = 0  # how many arguments it has, before what it takes from around
        self._versions: list[tuple[Any, int]] = []

    def carry(self, place: int, like: Any) -> TensorValue:
        """The argument number `place`: another tensor at each run, in metadata as `like`."""
        with self.fake_mode:
            fake = torch.empty_strided(
                like._sizes, like._strides, dtype=like._dtype, device=like._device
            )
        value = self.bind(TensorValue(self.argument_placeholder(place, fake), fake))
        self._versions.append((fake, _version(fake)))
        self.carried += 1
        return value

    def argument(self, value: Any) -> tuple[Any, Any]:
        before = len(self.captured)
        pair = super().argument(value)
        if len(self.captured) > before and isinstance(value, TensorValue):
            self._versions.append((value.fake, _version(value.fake)))
        return pair

    def storages(self) -> set[int]:
        """The ids of the storages that come from outside of the function."""
        return {id(_storage(fake)) for fake, _ in self._versions}

    def writes_around(self) -> bool:
        """Does the function write to a tensor that it did not make?"""
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
class Subgraph:
    """A captured function: `template` has the structure of its result, `results` the tensors."""

    recorder: SubgraphRecorder
    template: Any
    results: list[TensorValue]


def _state(session: Session) -> Any:
    """What of torch's state such a function has to leave as it was."""
    return (
        torch.is_grad_enabled(),
        len(session.modes.open_modes),
        {key: value for key, value in session.effects.settings.items()},
        dict(session.effects.made_leaves),
        len(session.modes.function_modes),
        len(session.modes.functions_off),
        len(session.modes.locks),
    )


def captured_function(
    vm: Interpreter, function: Value, operands: list[Value], which: str, carried: bool = False
) -> Subgraph:
    """`function` captured on operands: tensors of the graph around it, or, if they are `carried`,
    arguments of the graph, like these. `which` names it where the graph breaks."""
    session = vm.session
    outer = session.recorder
    inner = SubgraphRecorder(outer)
    if carried:
        operands = [inner.carry(i, cast(TensorValue, v).fake) for i, v in enumerate(operands)]
    before, checks = _state(session), session.shapes.env.checks
    checked = len(checks)
    session.recorder = inner
    try:
        with no_changes(vm, [function, *operands], f"{which} changes what was there before"):
            result = vm.call(function, operands, {})
            vm.look_into(result)
        results: list[TensorValue] = []
        template = inner_graphs.template_of(vm, result, results)
        if inner.writes_around():
            raise GraphBreakSignal(f"{which} writes to a tensor that it did not make")
        if len(checks) != checked:  # what is learnt from them would hold only where it runs
            raise GraphBreakSignal(f"{which} checks what only the data tells")
        if _state(session) != before:
            raise GraphBreakSignal(f"{which} leaves torch in another state")
        results = with_own_memory(inner, results)
        inner.graph.output(tuple(inner.argument(value)[0] for value in results))
    except NotAGraphArgument as error:
        raise GraphBreakSignal(f"{which} gives {error}") from None
    except ProgramException as error:
        name = error.value.python_type().__name__
        raise GraphBreakSignal(f"{which} raises {name}") from None
    finally:
        session.recorder = outer
    return Subgraph(inner, template, results)


def with_own_memory(inner: SubgraphRecorder, results: list[TensorValue]) -> list[TensorValue]:
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


# --- comparing, and putting together ------------------------------------------------------------


def _same(first: Any, second: Any) -> bool:
    """Are two sizes equal? Symbolic ones that are in this call, are guarded to be."""
    try:
        return bool(first == second)
    except DataDependentError:
        return False


def same_sizes(first: Sequence[Any], second: Sequence[Any]) -> bool:
    return len(first) == len(second) and all(map(_same, first, second))


def same_structure(first: Any, second: Any) -> bool:
    """Are two results alike, but for what their tensors hold?"""
    if type(first) is not type(second):
        return False
    if isinstance(first, (tuple, list)):
        pairs = zip(first, second, strict=False)
        return len(first) == len(second) and all(same_structure(a, b) for a, b in pairs)
    if isinstance(first, dict):
        return list(first) == list(second) and all(
            same_structure(first[key], second[key]) for key in first
        )
    return bool(first == second)


def metadata_difference(a: Any, b: Any) -> str:
    """How two tensors (fakes) differ in their metadata, in words; empty if they do not."""
    if type(a) is not FakeTensor or type(b) is not FakeTensor:
        return "a tensor of a class of its own"
    if a._dtype is not b._dtype:
        return f"dtype ({a._dtype}, {b._dtype})"
    if a._device != b._device:
        return f"device ({a._device}, {b._device})"
    if not same_sizes(a._sizes, b._sizes):
        return f"shape ({tuple(a._sizes)}, {tuple(b._sizes)})"
    if not same_sizes(a._strides, b._strides):
        return f"strides ({tuple(a._strides)}, {tuple(b._strides)})"
    return ""


def operands_of(branches: Sequence[Subgraph]) -> list[Value]:
    """What several graphs take from around them, each once."""
    found: dict[Any, Value] = {}
    for branch in branches:
        for value in branch.recorder.captured:
            found.setdefault(_key(value), value)
    return list(found.values())


def _key(value: Value) -> Any:
    return value.node if isinstance(value, TensorValue) else expr_of(cast(Any, value).value)


def graph_of(branch: Subgraph, operands: Sequence[Value]) -> GraphModule:
    """The graph, with a placeholder for each operand in their order, after the carried ones."""
    inner = branch.recorder
    graph = inner.graph
    given = [node for node in graph.nodes if node.op == "placeholder"]
    own = {_key(v): n for v, n in zip(inner.captured, given[inner.carried :], strict=True)}
    last: Node | None = given[inner.carried - 1] if inner.carried else None
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
