"""The autograd function of a compiled graph: its forward, its backward, and what leads to these."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from dovetail_prims.conditionals import run_plainly
from torch import Tensor
from torch.fx import GraphModule

from dovetail_autograd_aot.boundary import JointGraph, PartitionedGraph
from dovetail_autograd_aot.calls import graph_calls, saved_tensors
from dovetail_autograd_aot.calls.cross_output_gradients import CrossOutputGradients, added
from dovetail_autograd_aot.calls.double_backward import DoubleBackward, Replay
from dovetail_autograd_aot.calls.input_reachability import InputNodes, call_only_with_gradients
from dovetail_autograd_aot.calls.lazy_backward import Laid, LazyBackward
from dovetail_autograd_aot.calls.partial_backwards import Passage, SeparateBackwards
from dovetail_autograd_aot.calls.tangents import BatchedBackward, Tangents, is_batched
from dovetail_autograd_aot.calls.undefined_tangents import UncutError
from dovetail_autograd_aot.native import nodes_module
from dovetail_autograd_aot.outputs.copy_back import count_writes, write_ahead
from dovetail_autograd_aot.trace.node_values import example_values

_NOTHING: dict[int, Any] = {}


class GraphFunction(torch.autograd.Function):
    """Compiled forward and backward of one graph: a subclass for each, see `TrainingFunction`."""


@dataclass(frozen=True)
class TrainingGraphs:
    """A graph for training: as traced and as partitioned, with the compiled `forward`, the
    `backward`, which is compiled when it is first needed, and the `replay` of the captured graph by
    autograd for what that cannot do. `unsaved` is what the backward reads that it does not save."""

    joint: JointGraph
    parts: PartitionedGraph
    forward: graph_calls.Compiled
    backward: LazyBackward
    replay: DoubleBackward
    unsaved: saved_tensors.UnsavedReads


class TrainingFunction:
    """What the autograd function over a graph's primals does, whose results are the forward
    outputs; what belongs to one call is on its context.

    Of `nodes`, each leads to some of the inputs; `sources` are the different sets of tangents, as
    bit sets, that an input gets a gradient from.
    """

    def __init__(
        self, graphs: TrainingGraphs, nodes: InputNodes | None, sources: Collection[int]
    ) -> None:
        joint, parts = graphs.joint, graphs.parts
        self._graphs = graphs
        self._lazy, self._double, self._unsaved = graphs.backward, graphs.replay, graphs.unsaved
        self._separate = SeparateBackwards(joint, parts, graphs.backward)
        self._points = CrossOutputGradients(graphs.replay, joint.points) if joint.points else None
        self._nodes, self._sources = nodes, sources
        self._signature = signature = parts.signature
        self._count = signature.num_forward_outputs
        self.saved = saved_tensors.SavedValues(parts, joint.counters)
        self._differentiable = signature.differentiable
        self._tangents = Tangents(parts)
        self._by_strides = {Laid(): (graphs.backward, self._tangents)}
        self._tensors = bytes(isinstance(v, Tensor) for v in example_values(parts.forward))
        self._asked_inputs = nodes_module().asked_inputs
        self._masks = parts.gradient_tangents
        self._all_tangents = (1 << len(signature.differentiable)) - 1
        self._lost = signature.lost
        self._replaced = 0 if nodes is None else sum(1 << i for i in nodes.replaced())
        self._native = self._native_calls()
        # Whether the common backward is to be learnt yet: it does nothing but compute gradients.
        several = self._points is not None or len(self._differentiable) > 1
        unreached = several and not all(sources)  # (hooks on what is not reached)
        others = self._unsaved or nodes is not None or self._lost or self.saved.watched or unreached
        self._learns = not others

    def autograd_function(self) -> type[GraphFunction]:
        """The `autograd.Function` itself, which autograd's nodes of this graph find all else by."""
        own = self

        class CompiledFunction(GraphFunction):
            forward = staticmethod(own._native.forward)
            backward = staticmethod(own.backward)
            across_outputs = staticmethod(own.across_outputs)
            to_inputs = staticmethod(own.to_inputs)
            leave_to_nodes = staticmethod(own.leave_to_nodes)
            inlined_backward = staticmethod(own.inlined_backward)
            lacks = staticmethod(own.lacks)
            asked = staticmethod(own.asked)
            put_aside = staticmethod(own.put_aside)
            read_by_backward = staticmethod(own.read_by_backward)

        node: Any = getattr(CompiledFunction, "_backward_cls")  # noqa: B009
        node.beside, node.remaining = _NOTHING, None  # (of contexts that are left none)
        node.apply = nodes_module().as_method(own._native.backward)
        return CompiledFunction

    def _native_calls(self) -> Any:
        """The forward, and the backward, which is the common one as soon as that is known."""
        signature, saved, double = self._signature, self.saved, self._double

        def remember_written(inputs: tuple[Any, ...]) -> Replay:
            count_writes(signature, inputs)
            return double.remember(inputs)

        pairs = zip(self._tensors, self._masks, strict=True)
        constant = set(range(self._count)).difference(signature.differentiable)
        remember = None if double.remembers_inputs_only else double.remember
        if signature.changes.extra_writes:
            remember = remember_written
        return nodes_module().TrainingCalls(
            backward=self.backward,
            compiled=self._graphs.forward,
            remember=remember,
            finish=self._finish,
            replay=Replay,
            pending=None if self._points is None else self._points.runs.values,
            outputs=self._count,
            inputs=bytes(is_tensor + (is_tensor and bool(mask)) for is_tensor, mask in pairs),
            primals=saved.primals,
            saved=saved.kept,
            constant=sorted(constant),
            recounted=self._graphs.joint.counters.results,
            aliases=[
                (a.output, a.saved, _geometry(self._graphs.parts.forward, a.output))
                for a in self._graphs.parts.saved_aliases
            ],
            no_autocast=torch._C._is_any_autocast_enabled(),
            minds_hooks=bool(saved.masks or signature.changes.mutated),
            always_finishes=bool(self._tangents.kept or self._unsaved or saved.watched),
        )

    def _finish(
        self, ctx: Any, inputs: Sequence[Any], outputs: Sequence[Any], results: Sequence[Any]
    ) -> None:
        """What is left to do in an uncommon forward, whose graph gave these results."""
        if self._signature.changes.mutated and saved_tensors.hooks_take_saved_tensors():
            saved = [*(inputs[i] for i in self.saved.primals), *results[self._count :]]
            write_ahead(self._signature, inputs, outputs, saved)
        if self._tangents.kept:
            ctx.shapes = self._tangents.shapes([outputs[i] for i in self._differentiable])
        if self._unsaved:
            ctx.unsaved = self._unsaved.remember(inputs)
        if self.saved.watched:
            ctx.watched = []

    def backward(self, ctx: Any, *gradients: Any) -> tuple[Any, ...]:
        """The inputs' gradients; those of inputs with nodes of their own are left to these."""
        if self._lost:
            self._refuse_lost(
                ctx, gradients, self._asked_inputs(ctx, self._tensors) & ~self._replaced
            )
        if self._points is None and len(self._differentiable) < 2:
            return self._run_backward(ctx, gradients)
        others = None if self._points is None else self._points.taken(ctx)
        found = self._run_backward(ctx, gradients)
        if others is not None:
            found = added(found, others)
        missing = self.lacks(gradients)
        if not all(tangents & ~missing for tangents in self._sources):
            of_tensors = (g for g, is_tensor in zip(found, self._tensors, strict=True) if is_tensor)
            edges = zip(ctx.next_functions, of_tensors, strict=True)
            unreached = [n for (n, _), g in edges if g is None and n is not None]
            if unreached:
                call_only_with_gradients(unreached)
        return self.leave_to_nodes(ctx, found)

    def across_outputs(
        self, number: int, gradient: Tensor, edges: Any, reaches_inputs: bool, ctx: Any
    ) -> list[Tensor | None]:
        """`CrossOutputGradients.parts`, for the nodes of the outputs: by a variant of the compiled
        backward, if that can be."""
        points, path = self._points, None
        assert points is not None
        whole = ctx.replay is not None and not self._separate.began(ctx)
        if whole and self._nodes is None and not (torch.is_grad_enabled() or is_batched(gradient)):
            path = points.path(number)
        if path is not None:
            found = [gradient if i == path[0] else None for i in range(len(self._differentiable))]
            unasked = 0 if reaches_inputs else (1 << len(self._masks)) - 1
            try:
                chosen = self._lazy.variant(_missing(found), unasked, tuple(path[1:]))
            except UncutError:
                path = None
        if path is None:
            return points.parts(number, gradient, edges, reaches_inputs, ctx)
        values = self._checked(ctx, self._separate.whole)
        with torch._C._DisableAutocast():
            arguments = self._arguments(ctx, found, values, chosen.takes)
            results = graph_calls.unrecorded(chosen.run, *arguments)
        points.add(ctx, tuple(results[len(path) - 1 :]))
        return list(results[: len(path) - 1])

    def to_inputs(self, number: int, gradients: tuple[Any, ...], ctx: Any) -> list[Tensor | None]:
        """The gradients of the inputs of a node, given those of the outputs that lead to it."""
        assert self._nodes is not None
        inputs, outputs = self._nodes.nodes[number]
        given: list[Any] = [None] * self._count
        for index, gradient in zip(outputs, gradients, strict=True):
            given[index] = gradient
        if self._lost:
            self._refuse_lost(ctx, given, sum(1 << i for i in inputs))
        left = self._nodes.taken(ctx, number)
        if left is not None:
            return left
        found = self._run_backward(ctx, given, frees=False)
        run = None if self._points is None else self._points.runs.get(ctx)
        if run is not None:
            found = added(found, tuple(run.gradients))
        return [found[i] for i in inputs]

    def leave_to_nodes(self, ctx: Any, found: tuple[Any, ...]) -> tuple[Any, ...]:
        """Leave the nodes of inputs the gradients of theirs; gives the others."""
        return found if self._nodes is None else self._nodes.leave(ctx, found)

    def inlined_backward(self, ctx: Any, *gradients: Any) -> tuple[Any, ...]:
        """The backward by its graph's operators, for whoever records them or makes them of several
        gradients at once (`is_grads_batched`). Saved tensors stay."""
        if self._lost:
            self._refuse_lost(ctx, gradients, self.asked(ctx))
        found = [gradients[i] for i in self._differentiable]
        missing = _missing(found)
        passage = self._separate.passage(missing, self.asked(ctx))
        if not passage.leads:
            return (None,) * len(self._masks)
        values = self._checked(ctx, passage)
        graph, takes = self._lazy.graph(missing, passage.unasked)
        with graph_calls.below_autograd(), torch._C._DisableAutocast():
            arguments = self._arguments(ctx, found, values, takes)
            batched = any(map(is_batched, found))
            run = BatchedBackward(graph).run if batched else run_plainly(graph)
            return self._reached(run(*arguments), missing)

    def lacks(self, gradients: Sequence[Any]) -> int:
        """The gradients among these, one for each output, that are None, as a bit set."""
        return _missing([gradients[i] for i in self._differentiable])

    def asked(self, ctx: Any) -> int:
        """The inputs whose gradients the pass that runs asks for, as a bit set; -1 for all."""
        return -1 if self._nodes is not None else self._asked_inputs(ctx, self._tensors)

    def put_aside(self, ctx: Any, missing: int, asked: int) -> None:
        """Before a backward without the gradients `missing`, to the inputs `asked` for, which ran
        elsewhere, frees the graph: keep what others need."""
        separate = self._separate
        if separate.is_open(ctx):
            passage = separate.passage(missing, asked)
            values = self._load(ctx, passage) if separate.leaves_some(ctx, passage) else ()
            separate.keep(ctx, values, passage)

    def read_by_backward(self, ctx: Any) -> tuple[Any, ...]:
        """All that the backward depends on but gradients. Raises an error if it is freed, or has
        changed since."""
        if self._unsaved:
            self._unsaved.check(ctx.unsaved)
        if self.saved.watched:
            self.saved.check(ctx)
        remaining = self._separate.remaining(ctx)
        return ("all", *self.saved.load(ctx)) if remaining is None else remaining

    def _run_backward(
        self, ctx: Any, gradients: Sequence[Any], frees: bool = True
    ) -> tuple[Any, ...]:
        """The gradients of all inputs, also of those with nodes of their own; the graph is freed
        where eager's would be."""
        separate = self._separate
        frees = frees and not graph_calls.graph_is_kept()
        found = [gradients[i] for i in self._differentiable]
        missing = _missing(found)
        passage = separate.passage(missing, self.asked(ctx))
        if not passage.leads:
            # Eager's engine does not come here. (It may be freed. If not, it stays so.)
            if frees and separate.is_open(ctx):
                separate.keep(ctx, self._load(ctx, passage), passage)
            return (None,) * len(self._masks)
        values = self._checked(ctx, passage)
        if torch.is_grad_enabled():
            if ctx.replay is None and self._double.is_plain:
                return self._of_what_is_left(ctx, found, values, passage)
            return self._double.run(ctx.replay, found)
        if any(map(is_batched, found)):
            results = self.inlined_backward(ctx, *gradients)
            if frees:
                self.put_aside(ctx, missing, passage.asked)
            return results
        lazy, tangents = self._laid_as(found)
        chosen = lazy.variant(missing, passage.unasked, gone=separate.began(ctx))
        shapes = ctx.shapes if tangents.kept else {}
        arguments = [*values, *tangents.prepare(found, values, chosen.takes, shapes)]
        # The second says what anomaly mode would do if it was on.
        checks = torch.is_anomaly_enabled() and torch.is_anomaly_check_nan_enabled()
        replay = ctx.replay if checks else None
        if frees:
            # As eager does node by node: `arguments` holds the saved tensors from here on.
            if not separate.keep(ctx, values, passage):
                ctx.replay, ctx.unsaved = None, []
            ctx.maybe_clear_saved_tensors()
        del values
        with torch._C._DisableAutocast():
            results = graph_calls.unrecorded(graph_calls.run_consuming, chosen.run, arguments)
        if replay is not None and any(map(_has_nan, results)):
            self._double.blame_nan(replay, found)
        if self._learns and not (missing or passage.unasked):
            remaining = separate.left_by_all()
            if remaining is not None:
                consume = getattr(chosen.run, "run_consuming", None)
                layouts = zip(self._differentiable, tangents.layouts(), strict=True)
                pairs = tuple((output, *layout) for output, layout in layouts)
                self._native.learn(chosen.run, consume, remaining, pairs)
                self._learns = False
        return self._reached(results, missing)

    def _laid_as(self, found: list[Any]) -> tuple[LazyBackward, Tangents]:
        """The backward that reads gradients as these lie in memory, where copies of those that
        repeat elements would take some of its time; and what brings them into its form."""
        laid, known, lazy = self._tangents.repeating(found), self._by_strides, self._lazy
        if laid not in known and not lazy.symbolic and len(known) < lazy.limit:
            other = lazy.with_strides(laid)
            known[laid] = other, Tangents(other.parts)
        return known.get(laid, known[()])

    def _refuse_lost(self, ctx: Any, gradients: Sequence[Any], asked: int) -> None:
        """Raise the error that eager raises in a backward to the inputs `asked` for. (None leads to
        views that were made under no_grad, which say that they require a gradient.)"""
        present = ~self.lacks(gradients)
        for lost in self._lost:
            if present >> lost.tangent & 1 and lost.primals & asked:
                edges = iter(ctx.next_functions)
                led = [is_tensor and next(edges)[0] is not None for is_tensor in self._tensors]
                if any(leads and (lost.primals & asked) >> i & 1 for i, leads in enumerate(led)):
                    raise RuntimeError(lost.error)

    def _of_what_is_left(
        self, ctx: Any, found: list[Any], values: Sequence[Any], passage: Passage
    ) -> tuple[Any, ...]:
        """The gradients, differentiable, on paths that read nothing that was saved, of a graph that
        is freed but for those: by the operators of their graph."""
        self._double.log.note_replay("of ways that read nothing saved, after all else is freed")
        missing = _missing(found)
        graph, takes = self._lazy.graph(missing, passage.unasked)
        with torch._C._DisableAutocast():
            arguments = self._arguments(ctx, found, values, takes)
            return self._reached(run_plainly(graph)(*arguments), missing)

    def _checked(self, ctx: Any, passage: Passage) -> Sequence[Any]:
        """What was saved, if what was not has not changed."""
        values = self._load(ctx, passage)
        if self._unsaved:
            self._unsaved.check(ctx.unsaved)
        return values

    def _arguments(
        self, ctx: Any, found: list[Any], values: Sequence[Any], takes: Sequence[bool]
    ) -> list[Any]:
        """What a backward is called with, that takes these tangents."""
        shapes = ctx.shapes if self._tangents.kept else {}
        return [*values, *self._tangents.prepare(found, values, takes, shapes)]

    def _load(self, ctx: Any, passage: Passage) -> Sequence[Any]:
        if self.saved.watched:
            self.saved.check(ctx)
        values = self._separate.load(ctx, passage)
        return self.saved.load(ctx) if values is None else values

    def _reached(self, results: Sequence[Any], missing: int) -> tuple[Any, ...]:
        """As in eager: a gradient that no defined tangent reaches is None, not zero."""
        if not missing:
            return tuple(results)
        present = self._all_tangents & ~missing
        pairs = zip(results, self._masks, strict=True)
        return tuple(r if mask & present else None for r, mask in pairs)


def _missing(gradients: Sequence[Any]) -> int:
    """Which gradients are None, as a bit set."""
    return sum(1 << i for i, gradient in enumerate(gradients) if gradient is None)


def _has_nan(gradient: Tensor | None) -> bool:
    if gradient is None or gradient.layout != torch.strided:
        return False
    return bool(gradient.isnan().any())


def _geometry(gm: GraphModule, output: int) -> tuple[Any, Any, Any] | None:
    """Sizes, strides and offset of forward output number `output`; None if some are symbols."""
    node = next(n for n in gm.graph.nodes if n.op == "output")
    val = node.args[0][output].meta["val"]
    known = all(type(s) is int for s in (*val._sizes, *val._strides, val._offset))
    return (val._sizes, val._strides, val._offset) if known else None
