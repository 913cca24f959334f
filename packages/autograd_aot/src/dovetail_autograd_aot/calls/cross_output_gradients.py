"""The gradient of one output by way of another.

A compiled backward leads from all outputs to the inputs in one go. If somebody asks for what an
output gets by way of another one that is computed from it (`torch.autograd.grad`, `retain_grad()`,
a hook), the gradient of each is taken apart into those of the outputs that it is directly computed
from, which the engine goes on with, and those of the inputs, which are added to what the compiled
backward gives: by a variant of that, which ends at the outputs. Where that cannot be, the captured
graph is run again by eager's operators, once in a pass of the engine, and cut: slower, and counted
in the log. The outputs have nodes of their own for it (`csrc/output_nodes.cpp`), as hooks on them
may change the sum of what arrives.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar
from weakref import WeakValueDictionary

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge

from dovetail_autograd_aot.boundary import GradientPoint
from dovetail_autograd_aot.calls.captured_run import run_engine
from dovetail_autograd_aot.calls.double_backward import DoubleBackward, Gradients, Replay
from dovetail_autograd_aot.native import nodes_module
from dovetail_autograd_aot.trace.autograd_queries import grad_fn_of

# Where the gradient of each point arrives in autograd's graph of a call; None if that is not known.
Edges = Sequence[tuple[Any, int] | None]

Kept = TypeVar("Kept")

_is_differentiable = torch.is_grad_enabled  # in a pass with create_graph
_WHAT = "the gradient of one output by way of another, asked for"


class OfPass(Generic[Kept]):
    """Values by pass of the engine and context of a compiled call. The pass keeps them: they are
    gone when it is, failed or not."""

    def __init__(self) -> None:
        self.values: WeakValueDictionary[tuple[int, int], Kept] = WeakValueDictionary()

    def get(self, ctx: Any) -> Kept | None:
        """The value of the pass that runs."""
        return self.values.get(_key(ctx)) if self.values else None

    def pop(self, ctx: Any) -> Kept | None:
        """The same, which is not asked for any more."""
        return self.values.pop(_key(ctx), None) if self.values else None

    def keep(self, ctx: Any, value: Kept) -> None:
        """Keep a value for the rest of the pass that runs."""
        self.values[_key(ctx)] = value
        torch.autograd.Variable._execution_engine.queue_callback(_Holder(value))


@dataclass
class _Holder:
    """Called by the engine at the end of a pass: what it holds lives until then."""

    value: Any

    def __call__(self) -> None:
        """Nothing is left to do."""


def _key(ctx: Any) -> tuple[int, int]:
    return torch._C._current_graph_task_id(), id(ctx)


@dataclass(eq=False)
class _CutRun:
    """One run of the captured graph, cut at the points: where each point's own backward begins, and
    where its gradient arrives. `gradients` are those of the inputs so far."""

    sources: list[Any]
    begins: dict[int, GradientEdge]  # by number of the point (not of views of what gets none)
    arrives: list[GradientEdge]
    edges: Edges  # where `arrives` leads on to
    gradients: list[Tensor | None]

    def cut(self, roots: Sequence[Tensor | None], ends: Sequence[Tensor]) -> None:
        """Let what leads to where a point's backward begins lead to where its gradient arrives, in
        autograd's graph below the roots, down to the inputs and to `ends`."""
        changes = [
            (begin.node, begin.output_nr, self.arrives[number].node)
            for number, begin in self.begins.items()
        ]
        nodes_module().redirect(_nodes(roots), changes, _nodes([*self.sources, *ends]))


class CrossOutputGradients:
    """The gradients of outputs by way of others, of one compiled graph."""

    def __init__(self, double: DoubleBackward, points: Sequence[GradientPoint]) -> None:
        self.double = double
        self.points = points
        self.runs: OfPass[_CutRun] = OfPass()

    def path(self, number: int) -> list[int] | None:
        """The tangents of point `number`, and of those that it is directly computed from; None if
        no variant of the compiled backward leads from the one to the others."""
        joint = self.double.joint
        path = [self.points[k] for k in (number, *self.points[number].direct)]
        results = all(p.forward is not None and p.written is None for p in path)
        if not results or joint.backward.user_code or joint.signature.lost:
            return None
        return [joint.signature.differentiable.index(p.forward) for p in path]

    def parts(
        self, number: int, gradient: Tensor, edges: Edges, reaches_inputs: bool, ctx: Any
    ) -> list[Tensor | None]:
        """What the gradient of point `number` gives to each of the points that it is directly
        computed from. What it gives to the inputs, if the pass gets there, is kept for `taken`."""
        run = self._run(ctx, edges)
        direct = self.points[number].direct
        wanted: list[Any] = [run.arrives[other] for other in direct]
        inputs = self.double.captured.wanted if reaches_inputs else []
        wanted += [run.sources[i] for i in inputs]
        with torch._C._DisableAutocast():
            found = run_engine([run.begins[number]], [gradient], wanted, True, _is_differentiable())
        if _is_differentiable():
            run.cut(found, [gradient])  # (what was saved of the points leads to their own backward)
        for i, part in zip(inputs, found[len(direct) :], strict=True):
            known = run.gradients[i]
            run.gradients[i] = part if known is None else known if part is None else known + part
        return list(found[: len(direct)])

    def add(self, ctx: Any, gradients: Gradients) -> None:
        """Keep gradients of the inputs that were found in another way for `taken`."""
        run = self.runs.get(ctx)
        if run is None:
            self.runs.keep(ctx, run := _CutRun([], {}, [], (), [None] * len(gradients)))
        run.gradients = list(added(tuple(run.gradients), gradients))

    def taken(self, ctx: Any) -> Gradients | None:
        """The gradients of the inputs that points of this pass were taken apart into, if any."""
        run = self.runs.pop(ctx)
        return None if run is None else tuple(run.gradients)

    def _run(self, ctx: Any, edges: Edges) -> _CutRun:
        before = self.runs.get(ctx)
        if not _is_differentiable():
            edges = [None for _ in edges]
        elif before is not None:  # those of all nodes that came so far
            edges = [one or other for one, other in zip(before.edges, edges, strict=True)]
        if before is not None and list(before.edges) == list(edges):
            return before
        replay = ctx.replay
        if replay is None:
            raise RuntimeError(
                "Trying to backward through a compiled graph a second time, for "
                "the gradient of one output by way of another: specify retain_graph=True"
            )
        self._check(replay)
        self.double.log.note_by_way()
        with torch.enable_grad():
            run = self._cut(self.double.whole(replay), edges)
        if before is not None:
            run.gradients = before.gradients
        self.runs.keep(ctx, run)
        return run

    def _check(self, replay: Replay) -> None:
        double = self.double
        double.check(replay, _WHAT, double.mutated_matters or double.values_matter)
        why = ""
        if not self.double.joint.backward.additive:
            user_code = "a hook, or a backward of a torch.autograd.Function,"
            why = f"with {user_code} that is not linear in the gradient"
        elif self.double.joint.added.storages:
            why = "whose inputs share memory"
        if why:
            raise RuntimeError(
                f"{_WHAT} of a compiled graph {why}: call torch.autograd.grad in the compiled "
                "function, or leave this function uncompiled"
            )

    def _cut(self, replay: Replay, edges: Edges) -> _CutRun:
        """Run the captured graph again. The gradients of points are led on to the `edges`, if
        there are any: for gradients of second order."""
        double, native = self.double, nodes_module()
        known = [edge for edge in edges if edge is not None]

        def put_above(alias: Tensor) -> None:
            native.put_above(alias, known)

        with double.as_in_forward(replay):
            change = put_above if known else None
            sources, aliases = double.captured.stand_ins(replay.inputs, change)
            outputs = double.captured.forward(aliases)
        run = _CutRun(sources, {}, [], edges, [None] * len(replay.inputs))
        tensors = [self._tensor(point, outputs, aliases) for point in self.points]
        for number, (tensor, edge) in enumerate(zip(tensors, edges, strict=True)):
            node = grad_fn_of(tensor)
            if node is not None:
                run.begins[number] = GradientEdge(node, tensor.output_nr)
            run.arrives.append(GradientEdge(native.arrival(tensor, edge), 0))
        run.cut(tensors, [])
        return run

    def _tensor(self, point: GradientPoint, outputs: list[Any], aliases: list[Any]) -> Tensor:
        if point.written is not None:
            return aliases[point.written]  # type: ignore[no-any-return]
        if point.output is not None:
            return outputs[point.output]  # type: ignore[no-any-return]
        assert point.forward is not None
        return self.double.captured.root(point.forward, outputs, aliases)  # type: ignore[no-any-return]


def _nodes(tensors: Sequence[Any]) -> list[Any]:
    """What autograd has above those of these that are computed by something."""
    return [t.grad_fn for t in tensors if isinstance(t, Tensor) and t.grad_fn is not None]


def added(one: Gradients, other: Gradients) -> Gradients:
    """The sums of gradients, None standing for none."""
    return tuple(
        a if b is None else b if a is None else a + b for a, b in zip(one, other, strict=True)
    )
