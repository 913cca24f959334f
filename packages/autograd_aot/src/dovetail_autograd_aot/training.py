"""Compiled calls as autograd functions: what is saved, and the backward."""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from dovetail_prims.conditionals import run_plainly
from dovetail_prims.late_reads import LateRead, check, check_version
from torch import Tensor
from torch.fx import GraphModule

from dovetail_autograd_aot.by_way import ByWay, added
from dovetail_autograd_aot.double_backward import DoubleBackward
from dovetail_autograd_aot.epilogue import make_epilogue
from dovetail_autograd_aot.graph_calls import (
    Compiled,
    below_autograd,
    context_of,
    cutting,
    extension,
    graph_is_kept,
    resolving,
    run_consuming,
    unrecorded,
)
from dovetail_autograd_aot.graphs import JointGraph, PartitionedGraph
from dovetail_autograd_aot.input_gates import InputGates, input_gates, maybe_gated
from dovetail_autograd_aot.lazy_backward import LazyBackward
from dovetail_autograd_aot.native import nodes_module
from dovetail_autograd_aot.separate_backwards import Passage, SeparateBackwards
from dovetail_autograd_aot.tangents import BatchedBackward, Tangents, is_batched
from dovetail_autograd_aot.unreached_hooks import call_only_with_gradients
from dovetail_autograd_aot.values import example_values
from dovetail_autograd_aot.write_back import count_writes, write_ahead


@dataclass(frozen=True)
class LateNeeds:
    """What the backward of a user takes for granted when it runs: what it `reads` outside of the
    graph, and the data of `inputs` and `outputs` of the graph that are not saved."""

    reads: tuple[LateRead, ...]
    inputs: tuple[int, ...] = ()
    outputs: tuple[int, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.reads or self.inputs or self.outputs)

    def remember(self, inputs: Sequence[Any]) -> list[tuple[Tensor, int]]:
        """The inputs at the time of the forward, with their versions."""
        return [(inputs[i], inputs[i]._version) for i in self.inputs]

    def remember_outputs(self, context: Any, outputs: Sequence[Any]) -> None:
        """The outputs, once nothing is written to them any more."""
        if self.outputs:
            given = (outputs[i] for i in self.outputs)
            context.late += [(one.detach(), one._version) for one in given]

    def check(self, remembered: list[tuple[Tensor, int]]) -> None:
        """Raise an error if any of it has changed."""
        check(self.reads)
        for tensor, version in remembered:
            check_version(tensor, version)


def compile_training(
    joint: JointGraph,
    parts: PartitionedGraph,
    forward: Compiled,
    lazy: LazyBackward,
    double: DoubleBackward,
    late: LateNeeds,
    unresolved: list[int],
    examples: Sequence[Any],
) -> Callable[..., tuple[Any, ...]]:
    """The compiled forward as an autograd function, and what has to be done after it; `unresolved`
    are the inputs that are lazy conjugates or negatives, `examples` inputs such as it is called
    with."""
    make = functools.partial(
        _make_run, joint, parts, forward, lazy, double, late, unresolved, examples
    )
    maybe = maybe_gated(joint, parts, examples, double.cut)
    run = make(input_gates(joint, parts, examples, double.cut))
    if not maybe:
        return run
    # Which inputs are leaves is not guarded.
    known = {tuple(examples[i].is_leaf for i in maybe): run}

    def by_leaves(*inputs: Any) -> tuple[Any, ...]:
        leaves = tuple([inputs[i].is_leaf for i in maybe])
        chosen = known.get(leaves)
        if chosen is None:
            chosen = known[leaves] = make(input_gates(joint, parts, inputs, double.cut))
        return chosen(*inputs)

    return by_leaves


def _make_run(
    joint: JointGraph,
    parts: PartitionedGraph,
    forward: Compiled,
    lazy: LazyBackward,
    double: DoubleBackward,
    late: LateNeeds,
    unresolved: list[int],
    examples: Sequence[Any],
    gates: InputGates | None,
) -> Callable[..., tuple[Any, ...]]:
    """As `compile_training`, with these gates."""
    signature = parts.signature
    extend = extension(joint)
    epilogue = make_epilogue(signature, joint.points, gates.gates if gates is not None else ())
    separate = SeparateBackwards(joint, parts, lazy)
    by_way = ByWay(double, joint.points) if joint.points else None
    function = make_autograd_function(
        parts,
        forward,
        lazy,
        double,
        late,
        separate,
        by_way,
        gates,
        _ways(joint, parts, double, examples),
    )
    apply = resolving(cutting(function.apply, double.cut), unresolved)
    if not torch.is_grad_enabled():
        # Called under no_grad, with a region inside that switches gradients on.
        apply = torch.enable_grad()(apply)

    def run(*inputs: Any) -> tuple[Any, ...]:
        if extend is not None:
            inputs = extend(inputs)
        results = apply(*(inputs if gates is None else gates.stand_ins(inputs)))
        context = None
        if late.outputs or joint.counted or gates is not None:
            context = context_of(results)
        if gates is not None and context is not None:
            context.replay = gates.with_history(context.replay, double.in_shape(inputs))
            opened = gates.open(inputs, results)
            outputs = results if epilogue is None else epilogue(inputs, results, opened)
        else:
            outputs = results if epilogue is None else epilogue(inputs, results)
        if context is not None:
            late.remember_outputs(context, outputs)
            if joint.counted:
                context.replay = double.counted_again(context.replay)
        return outputs

    return run


def unreached_inputs(
    joint: JointGraph, parts: PartitionedGraph, examples: Sequence[Any]
) -> list[int]:
    """Of the inputs that require a gradient, those that get none from any output; if others do, so
    that the outputs require gradients all the same. (The user's own backward code may use such an
    input, and so give it a gradient of second order. What comes a second time got its gradient the
    first time.)"""
    masks = parts.gradient_tangents
    if joint.user_code or not any(masks):
        return []
    first: dict[int, int] = {}
    found: list[int] = []
    for i, value in enumerate(examples):
        if getattr(value, "requires_grad", False):
            known = first.setdefault(id(value), i)
            if (known in found) if known != i else not masks[i]:
                found.append(i)
    return found


def _ways(
    joint: JointGraph, parts: PartitionedGraph, double: DoubleBackward, examples: Sequence[Any]
) -> set[int]:
    """For the inputs that autograd comes to from the compiled function, which tangents give one a
    gradient, as bit sets: the different ones."""
    masks = parts.gradient_tangents
    known = (*examples, *joint.constants_lifted)
    found = {
        masks[i]
        for i, value in enumerate(known)
        if i not in double.cut and isinstance(value, Tensor) and value.requires_grad
    }
    return found | set(masks[len(known) :])


def make_autograd_function(
    parts: PartitionedGraph,
    forward: Compiled,
    lazy: LazyBackward,
    double: DoubleBackward,
    late: LateNeeds,
    separate: SeparateBackwards,
    points: ByWay | None = None,
    gates: InputGates | None = None,
    ways: Collection[int] = (),
) -> type[torch.autograd.Function]:
    """The `autograd.Function` over primals whose results are the forward outputs; `points` are
    those of its outputs that have nodes of their own, `gates` lead to inputs, `ways` tell which
    tangents the inputs get a gradient from."""
    signature = parts.signature
    count = signature.num_forward_outputs
    saved = _SavedValues(parts)
    differentiable = signature.differentiable
    constant_outputs = [i for i in range(count) if i not in differentiable]
    aliases = [(a.output, a.saved, _geometry(parts.forward, a.output)) for a in parts.saved_aliases]
    tangents = Tangents(parts)
    tensors = bytes(isinstance(v, Tensor) for v in example_values(parts.forward))
    asked_inputs = nodes_module().asked_inputs
    masks = parts.gradient_tangents
    all_tangents = (1 << len(differentiable)) - 1
    no_autocast = torch._C._is_any_autocast_enabled()

    def reached(results: Sequence[Any], missing: int) -> tuple[Any, ...]:
        if not missing:
            return tuple(results)
        # As in eager: a gradient that no defined tangent reaches is None, not zero.
        present = all_tangents & ~missing
        return tuple(r if mask & present else None for r, mask in zip(results, masks, strict=True))

    def load(ctx: Any, passage: Passage) -> Sequence[Any]:
        values = separate.load(ctx, passage)
        return saved.load(ctx) if values is None else values

    def asked_of(ctx: Any) -> int:
        """The inputs whose gradients the pass that runs asks for, as a bit set; -1 for all."""
        return -1 if gates is not None else asked_inputs(ctx, tensors)

    def compiled_backward(
        ctx: Any, gradients: Sequence[Any], frees: bool = True
    ) -> tuple[Any, ...]:
        frees = frees and not graph_is_kept()
        found = [gradients[i] for i in differentiable]
        missing = _missing(found)
        passage = separate.passage(missing, asked_of(ctx))
        if not passage.leads:
            # Eager's engine does not come here. (It may be freed. If not, it stays so.)
            if frees and separate.is_open(ctx):
                separate.keep(ctx, load(ctx, passage), passage)
            return (None,) * len(masks)
        values = load(ctx, passage)
        if late:
            late.check(ctx.late)
        if torch.is_grad_enabled():
            return double.run(ctx.replay, found)
        if any(map(is_batched, found)):
            results = CompiledFunction.inlined_backward(ctx, *gradients)
            if frees:
                CompiledFunction.put_aside(ctx, missing, passage.asked)
            return results
        chosen = lazy.variant(missing, passage.unasked, gone=separate.began(ctx))
        shapes = ctx.shapes if tangents.kept else {}
        arguments = [*values, *tangents.prepare(found, values, chosen.takes, shapes)]
        replay = ctx.replay if _checks_for_nan() else None
        if frees:
            # As eager does node by node: `arguments` holds the saved tensors from here on.
            if not separate.keep(ctx, values, passage):
                ctx.replay, ctx.late = None, []
            ctx.maybe_clear_saved_tensors()
        del values
        with torch._C._DisableAutocast():
            results = unrecorded(run_consuming, chosen.run, arguments)
        if replay is not None and any(map(_has_nan, results)):
            double.blame_nan(replay, found)
        return reached(results, missing)

    class CompiledFunction(torch.autograd.Function):
        """Compiled forward and backward of one graph."""

        @staticmethod
        def forward(ctx: Any, *inputs: Any) -> tuple[Any, ...]:
            if signature.writes:
                count_writes(signature, inputs)
            ctx.replay = double.remember(inputs)
            # Below autograd's view tracking: a result that is a view of another must come out
            # as a tensor of its own, or autograd would refuse to let users write to it.
            if no_autocast:
                with torch._C._DisableAutocast():
                    results = list(unrecorded(forward, *inputs))
            else:
                results = list(unrecorded(forward, *inputs))
            outputs = results[:count]
            values = results[count:]
            for output, index, geometry in aliases:
                # Built from the saved tensor, so that it shares its version counter.
                place = _numbers(geometry, outputs[output])
                outputs[output] = values[index].as_strided(*place).detach()
            saved.store(ctx, inputs, values)
            if signature.mutated and _hooks_take_saved_tensors():
                write_ahead(
                    signature, inputs, outputs, [*(inputs[i] for i in saved.primals), *values]
                )
            if tangents.kept:
                ctx.shapes = tangents.shapes([outputs[i] for i in differentiable])
            if constant_outputs:
                ctx.mark_non_differentiable(
                    *[outputs[i] for i in constant_outputs if isinstance(outputs[i], Tensor)]
                )
            if late:
                ctx.late = late.remember(inputs)
            ctx.set_materialize_grads(False)
            return tuple(outputs)

        @staticmethod
        def backward(ctx: Any, *gradients: Any) -> tuple[Any, ...]:
            if points is None and len(differentiable) < 2:
                return compiled_backward(ctx, gradients)
            others = None if points is None else points.taken(ctx)
            found = compiled_backward(ctx, gradients)
            if others is not None:
                found = added(found, others)
            missing = CompiledFunction.lacks(gradients)
            if not all(way & ~missing for way in ways):
                of_tensors = (g for g, is_tensor in zip(found, tensors, strict=True) if is_tensor)
                edges = zip(ctx.next_functions, of_tensors, strict=True)
                unreached = [n for (n, _), g in edges if g is None and n is not None]
                if unreached:
                    call_only_with_gradients(unreached)
            return found if gates is None else gates.leave(ctx, found)

        @staticmethod
        def by_way(*args: Any) -> list[Tensor | None]:
            """`ByWay.parts`, for the nodes of the outputs."""
            assert points is not None
            return points.parts(*args)

        @staticmethod
        def through_gate(gate: int, gradients: tuple[Any, ...], ctx: Any) -> list[Tensor | None]:
            """The gradients of the inputs behind a gate, given those of the outputs that lead to
            it."""
            assert gates is not None
            left = gates.taken(ctx, gate)
            if left is not None:
                return left
            inputs, outputs = gates.gates[gate]
            given: list[Any] = [None] * count
            for index, gradient in zip(outputs, gradients, strict=True):
                given[index] = gradient
            found = compiled_backward(ctx, given, frees=False)
            run = None if points is None else points.runs.get(ctx)
            if run is not None:
                found = added(found, tuple(run.gradients))
            return [found[i] for i in inputs]

        @staticmethod
        def leave_to_gates(ctx: Any, found: tuple[Any, ...]) -> tuple[Any, ...]:
            """Of the gradients of a backward that ran elsewhere, leave the gates theirs."""
            return found if gates is None else gates.leave(ctx, found)

        @staticmethod
        def inlined_backward(ctx: Any, *gradients: Any) -> tuple[Any, ...]:
            """The backward by its graph's operators, for whoever records them (see
            `compiled_backward`) or makes them of several gradients at once (`is_grads_batched`).
            Saved tensors stay."""
            found = [gradients[i] for i in differentiable]
            missing = _missing(found)
            passage = separate.passage(missing, asked_of(ctx))
            if not passage.leads:
                return (None,) * len(masks)
            values = load(ctx, passage)
            if late:
                late.check(ctx.late)
            graph, takes = lazy.graph(missing, passage.unasked)
            shapes = ctx.shapes if tangents.kept else {}
            with below_autograd(), torch._C._DisableAutocast():
                arguments = [*values, *tangents.prepare(found, values, takes, shapes)]
                batched = any(map(is_batched, found))
                run = BatchedBackward(graph).run if batched else run_plainly(graph)
                return reached(run(*arguments), missing)

        @staticmethod
        def lacks(gradients: Sequence[Any]) -> int:
            """The gradients among these, one for each output, that are None, as a bit set."""
            return _missing([gradients[i] for i in differentiable])

        @staticmethod
        def asked(ctx: Any) -> int:
            """The inputs whose gradients the pass that runs asks for, as a bit set."""
            return asked_of(ctx)

        @staticmethod
        def put_aside(ctx: Any, missing: int, asked: int) -> None:
            """Before a backward without the gradients `missing`, to the inputs `asked` for, which
            ran elsewhere, frees the graph: keep what others need."""
            if separate.is_open(ctx):
                passage = separate.passage(missing, asked)
                values = load(ctx, passage) if separate.leaves_some(ctx, passage) else ()
                separate.keep(ctx, values, passage)

        @staticmethod
        def read_by_backward(ctx: Any) -> tuple[Any, ...]:
            """All that the backward depends on but gradients. Raises an error if it is freed, or
            has changed since."""
            if late:
                late.check(ctx.late)
            rest = separate.rest(ctx)
            return ("all", *saved.load(ctx)) if rest is None else rest

    return CompiledFunction


def _missing(gradients: Sequence[Any]) -> int:
    """Which gradients are None, as a bit set."""
    return sum(1 << i for i, gradient in enumerate(gradients) if gradient is None)


def _checks_for_nan() -> bool:
    # The second says what anomaly mode would do if it was on.
    return torch.is_anomaly_enabled() and torch.is_anomaly_check_nan_enabled()


def _has_nan(gradient: Tensor | None) -> bool:
    if gradient is None or gradient.layout != torch.strided:
        return False
    return bool(gradient.isnan().any())


def _numbers(geometry: tuple[Any, Any, Any], like: Tensor) -> tuple[Any, Any, Any]:
    """A geometry without symbols: where it has some, that of the tensor itself."""
    sizes, strides, offset = geometry
    if all(type(s) is int for s in (*sizes, *strides, offset)):
        return geometry
    return like.shape, like.stride(), like.storage_offset()


def _geometry(gm: GraphModule, output: int) -> tuple[Any, Any, Any]:
    """Sizes, strides and offset of forward output number `output`."""
    node = next(n for n in gm.graph.nodes if n.op == "output")
    val = node.args[0][output].meta["val"]
    return val._sizes, val._strides, val._offset


class _SavedValues:
    """Keeps what the backward reads: tensors with autograd (which notices in-place writes and
    frees them), numbers on the context. So are masks that the graph made where the user's hooks
    pack and unpack what is saved: eager has none, and hooks that make numbers smaller take none."""

    def __init__(self, parts: PartitionedGraph) -> None:
        assert parts.backward is not None
        saved = example_values(parts.backward)[: len(parts.saved)]
        self.primals = parts.saved_primals
        reshaped = {r.index for r in parts.signature.reshaped}
        self.reshaped = [n for n, i in enumerate(self.primals) if i in reshaped]
        self.numbers = {i for i, v in enumerate(saved) if not isinstance(v, Tensor)}
        own = range(len(self.primals), len(saved))
        self.masks = {i for i in own if i not in self.numbers and not _is_inexact(saved[i])}

    def store(self, ctx: Any, inputs: tuple[Any, ...], values: list[Any]) -> None:
        everything = [inputs[i] for i in self.primals] + values
        for number in self.reshaped:  # (the input itself is about to get another shape)
            everything[number] = everything[number].detach()
        beside = self.numbers
        if self.masks and _hooks_take_saved_tensors():
            beside = self.numbers | self.masks
        ctx.beside = {i: everything[i] for i in beside}
        if beside:
            everything = [v for i, v in enumerate(everything) if i not in beside]
        ctx.save_for_backward(*everything)

    def load(self, ctx: Any) -> Sequence[Any]:
        tensors, beside = ctx.saved_tensors, ctx.beside
        if not beside:
            return tensors  # type: ignore[no-any-return]
        count = len(tensors) + len(beside)
        following = iter(tensors)
        return [beside[i] if i in beside else next(following) for i in range(count)]


def _hooks_take_saved_tensors() -> bool:
    return torch._C._autograd._top_saved_tensors_default_hooks(True) is not None


def _is_inexact(value: Tensor) -> bool:
    return value.is_floating_point() or value.is_complex()
