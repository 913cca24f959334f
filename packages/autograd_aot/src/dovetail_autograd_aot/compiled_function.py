"""`aot_compile`: a captured graph -> a callable that behaves as eager, forward and backward.

The graph is traced ahead of time and cut in two; each half goes to a compiler. What compiled code
cannot do (writing inputs back, views of inputs, autograd's bookkeeping) is done here around it, by
closures specialised when compiling, so that a plain signature costs nothing per call.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from dovetail_prims.conditionals import run_plainly
from dovetail_prims.fake_tensor import FakeTensor
from dovetail_prims.wrappers import is_wrapper
from torch import Tensor
from torch.fx import GraphModule

from dovetail_autograd_aot.aot_log import AotLog, saved_set
from dovetail_autograd_aot.double_backward import DoubleBackward
from dovetail_autograd_aot.epilogue import make_epilogue, tell_what_is_overwritten
from dovetail_autograd_aot.graphs import JointGraph, PartitionedGraph, Signature
from dovetail_autograd_aot.inputs import base_of, overlapping, places
from dovetail_autograd_aot.joint import Decompositions, trace_joint
from dovetail_autograd_aot.op_info import is_custom
from dovetail_autograd_aot.partition import Partitioner, min_cut_partition
from dovetail_autograd_aot.subclasses import Wrapping, compile_around
from dovetail_autograd_aot.tangents import Tangents, is_batched
from dovetail_autograd_aot.undefined import backward_without
from dovetail_autograd_aot.values import example_values

Compiler = Callable[[GraphModule, list[Any]], Callable[..., Any]]
Compiled = Callable[..., Sequence[Any]]

_below_autograd = torch._C._AutoDispatchBelowADInplaceOrView
_grad_enabled = torch.is_grad_enabled
_set_grad = torch._C._set_grad_enabled


def _unrecorded(call: Callable[..., Any], *args: Any) -> Any:
    """`call`, with kernels run as eager runs them where gradients are wanted: below autograd and
    its tracking of views, with gradients switched on. Some kernels ask (oneDNN's LSTM makes the
    workspace for its backward only then), also where a backward computes them again."""
    with _below_autograd():
        before = _grad_enabled()
        _set_grad(True)
        try:
            return call(*args)
        finally:
            _set_grad(before)


# Backwards of one graph, each for another set of undefined tangents.
MAX_VARIANTS = 4
# Graphs that are kept of one captured graph, each for another way in which inputs share memory.
MAX_PLACEMENTS = 8

_graph_is_kept = torch._C._autograd._get_current_graph_task_keep_graph


def aot_compile(
    gm: GraphModule,
    example_inputs: Sequence[Any],
    *,
    forward_compiler: Compiler,
    backward_compiler: Compiler | None = None,
    decompositions: Decompositions | None = None,
    partition: Partitioner = min_cut_partition,
    compile_backward_now: bool = False,
    function_mode: Callable[[], Any] | None = None,
    log: AotLog | None = None,
) -> Callable[..., tuple[Any, ...]]:
    """Compile `gm`, a graph over flat inputs that returns a tuple.

    A compiler takes a functional graph and its example inputs (fakes and numbers) and gives a
    callable that takes the same inputs positionally and returns the outputs. If the callable has a
    method `run_consuming`, which takes them out of a list and drops each after its last use, the
    backward is called so, and saved tensors are freed while it runs. The backward is compiled at
    the first backward, unless `compile_backward_now`. Grad mode is that of this call.
    `function_mode` is as for `trace_joint`. What happens later is counted in `log`.
    """
    log = AotLog() if log is None else log

    def compile_plain(
        plain: GraphModule, examples: Sequence[Any], wrapping: Wrapping | None = None
    ) -> Callable[..., tuple[Any, ...]]:
        return _compile_as_placed(
            examples,
            log,
            functools.partial(
                _compile,
                plain,
                forward_compiler=forward_compiler,
                backward_compiler=backward_compiler or forward_compiler,
                decompositions=decompositions,
                partition=partition,
                compile_backward_now=compile_backward_now,
                function_mode=function_mode,
                wrapping=wrapping,
                log=log,
            ),
        )

    if any(map(is_wrapper, example_inputs)):
        return compile_around(gm, example_inputs, compile_plain)
    return compile_plain(gm, example_inputs)


def _compile_as_placed(
    example_inputs: Sequence[Any],
    log: AotLog,
    compile_parts: Callable[[Sequence[Any]], tuple[JointGraph, Callable[..., tuple[Any, ...]]]],
) -> Callable[..., tuple[Any, ...]]:
    joint, run = compile_parts(example_inputs)
    own = len(example_inputs)
    apart = [pair for pair in joint.apart if max(pair) < own]
    if not joint.storages and not apart:
        return run
    # What the graph knows of how inputs lie in storages is not guarded: one graph for each way,
    # the last used last.
    storages = joint.storages

    def placed(inputs: Sequence[Any]) -> tuple[Any, ...]:
        return places(storages, inputs) + overlapping(apart, inputs)

    variants = {placed(example_inputs): run}

    def run_as_placed(*inputs: Any) -> tuple[Any, ...]:
        key = placed(inputs)
        chosen = variants.pop(key, None)
        if chosen is None:
            _, chosen = compile_parts(inputs)
            log.placements += 1
            if len(variants) >= MAX_PLACEMENTS:
                del variants[next(iter(variants))]
                log.placements_dropped += 1
        variants[key] = chosen
        return chosen(*inputs)

    return run_as_placed


def _compile(
    gm: GraphModule,
    example_inputs: Sequence[Any],
    *,
    forward_compiler: Compiler,
    backward_compiler: Compiler,
    decompositions: Decompositions | None,
    partition: Partitioner,
    compile_backward_now: bool,
    function_mode: Callable[[], Any] | None,
    wrapping: Wrapping | None,
    log: AotLog,
) -> tuple[JointGraph, Callable[..., tuple[Any, ...]]]:
    joint = trace_joint(
        gm,
        example_inputs,
        decompositions=decompositions,
        function_mode=function_mode,
        wrapping=wrapping,
    )
    parts = partition(joint)
    if parts.backward is None:
        tell_what_is_overwritten(parts, len(example_inputs))
    forward = _for_custom_operators(
        forward_compiler(parts.forward, example_values(parts.forward)), parts.forward
    )
    unresolved = [
        i
        for i, v in enumerate((*example_inputs, *joint.constants_lifted))
        if isinstance(v, Tensor) and (v.is_conj() or v.is_neg())
    ]
    if parts.backward is None:
        forward = _resolving(forward, unresolved)
        # The captured operators must not be recorded by autograd (a Plan would not be, but the
        # forward may be any callable).
        shield = torch.is_grad_enabled() and any(
            isinstance(v, Tensor) and v.requires_grad
            for v in (*example_inputs, *joint.constants_lifted)
        )
        return joint, _inference(joint, parts, forward, shield)
    log.saved.append(saved_set(parts))
    ends = (*_sizes_of(parts.forward), *_sizes_of(parts.backward))
    symbolic = any(isinstance(v, (torch.SymInt, torch.SymFloat)) for v in ends)
    lazy = _LazyBackward(parts, backward_compiler, 0 if symbolic else MAX_VARIANTS)
    if compile_backward_now or symbolic:
        # What the backward's compiler assumes of symbolic sizes must be known to the guards,
        # which are made when this function returns. (So nothing is compiled later.)
        lazy.variant(0)

    def compile_second(second: GraphModule, examples: Sequence[Any]) -> Callable[..., Any]:
        with torch.enable_grad():
            return aot_compile(
                second,
                examples,
                forward_compiler=forward_compiler,
                backward_compiler=backward_compiler,
                decompositions=decompositions,
                partition=partition,
                function_mode=function_mode,
                log=log,
            )

    double = DoubleBackward(gm, joint, compile_second, log)
    return joint, _training(joint, parts, forward, lazy, double, unresolved)


def _for_custom_operators(run: Compiled, gm: GraphModule) -> Compiled:
    """`run`, given tensors that require no gradient if the graph calls custom operators. Their
    kernels may be Python, which asks (`numpy()` does) and in eager is told that nothing is
    recorded: autograd switches gradients off for them, which here are on (see `_unrecorded`)."""
    if not any(is_custom(node.target) for node in gm.graph.nodes):
        return run

    def detached(*inputs: Any) -> Any:
        return run(*map(_detached, inputs))

    if hasattr(run, "run_consuming"):

        def consume(inputs: list[Any]) -> Any:
            inputs[:] = map(_detached, inputs)
            return run_consuming(run, inputs)

        setattr(detached, "run_consuming", consume)  # noqa: B010
    return detached


def _detached(value: Any) -> Any:
    return value.detach() if isinstance(value, Tensor) and value.requires_grad else value


def _resolving(run: Callable[..., Any], unresolved: list[int]) -> Callable[..., Any]:
    """`run`, given values instead of the lazy conjugates and negatives among its inputs."""
    if not unresolved:
        return run

    def resolved(*inputs: Any) -> Any:
        values = list(inputs)
        for i in unresolved:
            values[i] = _resolved(values[i])
        return run(*values)

    return resolved


def _resolved(lazy: Tensor) -> Tensor:
    """The values of a lazy conjugate or negative, which lie in memory as it does: kernels and
    views address them so."""
    values = lazy.resolve_conj().resolve_neg()
    if values.stride() == lazy.stride() and lazy.storage_offset() == 0:
        return values
    # It has gaps or overlaps or does not begin its memory, all of which a copy loses: copy the
    # memory that it lies in.
    last = sum((n - 1) * s for n, s in zip(lazy.shape, lazy.stride(), strict=True))
    end = lazy.storage_offset() + (last + 1 if lazy.numel() else 0)
    flat = lazy.as_strided((end,), (1,), 0).resolve_conj().resolve_neg()
    return flat.as_strided(lazy.shape, lazy.stride(), lazy.storage_offset())


def _extension(joint: JointGraph) -> Callable[[tuple[Any, ...]], tuple[Any, ...]] | None:
    """Adds to the inputs what the functional graph takes besides: lifted attributes, storages."""
    lifted, storages, carriers = joint.constants_lifted, joint.storages, joint.carriers
    if not lifted and not storages:
        return None

    def extend(inputs: tuple[Any, ...]) -> tuple[Any, ...]:
        own = len(inputs) - carriers
        given = (*inputs[:own], *lifted)
        return (*given, *[base_of(shared, given) for shared in storages], *inputs[own:])

    return extend


def _sizes_of(gm: GraphModule) -> list[Any]:
    """Every size of a graph's inputs."""
    found: list[Any] = []
    for value in example_values(gm):
        found += value._sizes if isinstance(value, FakeTensor) else [value]
    return found


@dataclass(frozen=True)
class _Variant:
    """A compiled backward, and which tangents it takes."""

    run: Compiled
    takes: tuple[bool, ...]


class _LazyBackward:
    """Compiles the backward when it is first needed; once for each set of tangents that a call
    lacks, `limit` at most: the others get zeros for what they lack."""

    def __init__(self, parts: PartitionedGraph, compiler: Compiler, limit: int) -> None:
        self.parts = parts
        self.compiler = compiler
        self.limit = limit
        self.count = len(parts.signature.differentiable)
        self.variants: dict[int, _Variant] = {}

    def variant(self, missing: int) -> _Variant:
        """The backward for calls that lack the tangents in the bit set `missing`."""
        found = self.variants.get(missing)
        if found is not None:
            return found
        if missing and len(self.variants) >= self.limit:
            return self.variant(0)
        gm, takes = self.graph(missing)
        with torch.no_grad():
            run = _for_custom_operators(self.compiler(gm, example_values(gm)), gm)
            made = _Variant(run, takes)
        self.variants[missing] = made
        return made

    def graph(self, missing: int) -> tuple[GraphModule, tuple[bool, ...]]:
        """The backward's graph without what the tangents in the bit set `missing` are needed for,
        and which tangents it takes."""
        gm = self.parts.backward
        assert gm is not None
        if not missing or not self.limit:
            return gm, (True,) * self.count
        saved = len(self.parts.saved)
        tangents = frozenset(saved + i for i in range(self.count) if missing >> i & 1)
        masks = self.parts.gradient_tangents
        unreached = frozenset(i for i, mask in enumerate(masks) if not mask & ~missing)
        graph, kept = backward_without(gm, tangents, unreached)
        return graph, tuple(kept[saved:])


# --- inference ------------------------------------------------------------------------------------


def _inference(
    joint: JointGraph, parts: PartitionedGraph, forward: Compiled, shield: bool
) -> Callable[..., tuple[Any, ...]]:
    """Nothing to differentiate: the compiled forward, and what has to be done after it."""
    signature = parts.signature
    extend = _extension(joint)
    run = _run_forward(signature, forward, shield)
    if extend is None:
        return run
    return lambda *inputs: run(*extend(inputs))


def _run_forward(
    signature: Signature, forward: Compiled, shield: bool
) -> Callable[..., tuple[Any, ...]]:
    epilogue = make_epilogue(signature)
    no_autocast = torch._C._is_any_autocast_enabled()

    def without_autocast(*inputs: Any) -> Sequence[Any]:
        with torch._C._DisableAutocast():
            return forward(*inputs)

    target = without_autocast if no_autocast else forward
    if not shield:
        if epilogue is None:

            def plain(*inputs: Any) -> tuple[Any, ...]:
                return tuple(target(*inputs))

            consume = getattr(target, "run_consuming", None)
            if consume is not None:  # whoever calls may give the inputs away, too
                setattr(plain, "run_consuming", consume)  # noqa: B010
            return plain

        def with_epilogue(*inputs: Any) -> tuple[Any, ...]:
            return epilogue(inputs, target(*inputs))

        return with_epilogue

    if signature.differentiable:
        apply = _without_gradients(target, signature).apply

        def recorded(*inputs: Any) -> tuple[Any, ...]:
            results = apply(*inputs)
            return results if epilogue is None else epilogue(inputs, results)

        return recorded

    def shielded(*inputs: Any) -> tuple[Any, ...]:
        results = _unrecorded(target, *inputs)
        if epilogue is None:
            return tuple(results)
        return epilogue(inputs, results)

    return shielded


def _without_gradients(target: Compiled, signature: Signature) -> type[torch.autograd.Function]:
    """For results that require grad in eager though no input gets a gradient (the 0-norm's), or
    none can be computed."""
    differentiable = signature.differentiable

    class CompiledFunction(torch.autograd.Function):
        """A compiled forward; its backward reaches nothing."""

        @staticmethod
        def forward(ctx: Any, *inputs: Any) -> tuple[Any, ...]:
            ctx.count = len(inputs)
            results = tuple(_unrecorded(target, *inputs))
            ctx.mark_non_differentiable(
                *[
                    r
                    for i, r in enumerate(results)
                    if i not in differentiable and isinstance(r, Tensor)
                ]
            )
            ctx.set_materialize_grads(False)
            return results

        @staticmethod
        def backward(ctx: Any, *gradients: Any) -> tuple[None, ...]:
            if signature.backward_error is not None:
                raise RuntimeError(signature.backward_error)
            return (None,) * int(ctx.count)

    return CompiledFunction


# --- training -------------------------------------------------------------------------------------


def _training(
    joint: JointGraph,
    parts: PartitionedGraph,
    forward: Compiled,
    lazy: _LazyBackward,
    double: DoubleBackward,
    unresolved: list[int],
) -> Callable[..., tuple[Any, ...]]:
    signature = parts.signature
    extend = _extension(joint)
    epilogue = make_epilogue(signature)
    function = make_autograd_function(parts, forward, lazy, double)
    apply = _resolving(function.apply, unresolved)
    if not torch.is_grad_enabled():
        # Called under no_grad, with a region inside that switches gradients on.
        apply = torch.enable_grad()(apply)

    def run(*inputs: Any) -> tuple[Any, ...]:
        if extend is not None:
            inputs = extend(inputs)
        results = apply(*inputs)
        return results if epilogue is None else epilogue(inputs, results)

    return run


def make_autograd_function(
    parts: PartitionedGraph,
    forward: Compiled,
    lazy: _LazyBackward,
    double: DoubleBackward,
) -> type[torch.autograd.Function]:
    """The `autograd.Function` over primals whose results are the forward outputs."""
    signature = parts.signature
    count = signature.num_forward_outputs
    saved = _SavedValues(parts)
    differentiable = signature.differentiable
    constant_outputs = [i for i in range(count) if i not in differentiable]
    aliases = [(a.output, a.saved, _geometry(parts.forward, a.output)) for a in parts.saved_aliases]
    tangents = Tangents(parts)
    masks = parts.gradient_tangents
    all_tangents = (1 << len(differentiable)) - 1
    no_autocast = torch._C._is_any_autocast_enabled()

    def reached(results: Sequence[Any], missing: int) -> tuple[Any, ...]:
        if not missing:
            return tuple(results)
        # As in eager: a gradient that no defined tangent reaches is None, not zero.
        present = all_tangents & ~missing
        return tuple(r if mask & present else None for r, mask in zip(results, masks, strict=True))

    class CompiledFunction(torch.autograd.Function):
        """Compiled forward and backward of one graph."""

        @staticmethod
        def forward(ctx: Any, *inputs: Any) -> tuple[Any, ...]:
            ctx.replay = double.remember(inputs)
            # Below autograd's view tracking: a result that is a view of another must come out
            # as a tensor of its own, or autograd would refuse to let users write to it.
            if no_autocast:
                with torch._C._DisableAutocast():
                    results = list(_unrecorded(forward, *inputs))
            else:
                results = list(_unrecorded(forward, *inputs))
            outputs = results[:count]
            values = results[count:]
            for output, index, geometry in aliases:
                # Built from the saved tensor, so that it shares its version counter.
                place = _numbers(geometry, outputs[output])
                outputs[output] = values[index].as_strided(*place).detach()
            saved.store(ctx, inputs, values)
            if tangents.kept:
                ctx.shapes = tangents.shapes([outputs[i] for i in differentiable])
            if constant_outputs:
                ctx.mark_non_differentiable(
                    *[outputs[i] for i in constant_outputs if isinstance(outputs[i], Tensor)]
                )
            ctx.set_materialize_grads(False)
            return tuple(outputs)

        @staticmethod
        def backward(ctx: Any, *gradients: Any) -> tuple[Any, ...]:
            found = [gradients[i] for i in differentiable]
            values = saved.load(ctx)
            if torch.is_grad_enabled():
                return double.run(ctx.replay, found)
            missing = _missing(found)
            if missing == all_tangents:
                return (None,) * len(masks)
            if any(map(is_batched, found)):
                return CompiledFunction.inlined_backward(ctx, *gradients)
            chosen = lazy.variant(missing)
            shapes = ctx.shapes if tangents.kept else {}
            arguments = [*values, *tangents.prepare(found, values, chosen.takes, shapes)]
            del values
            replay = ctx.replay if _checks_for_nan() else None
            if not _graph_is_kept():
                # As eager does node by node: `arguments` holds the saved tensors from here on.
                ctx.maybe_clear_saved_tensors()
                ctx.replay = None
            with torch._C._DisableAutocast():
                results = _unrecorded(run_consuming, chosen.run, arguments)
            if replay is not None and any(map(_has_nan, results)):
                double.blame_nan(replay, found)
            return reached(results, missing)

        @staticmethod
        def inlined_backward(ctx: Any, *gradients: Any) -> tuple[Any, ...]:
            """The backward by its graph's operators, for whoever records them (see
            `compiled_backward`) or makes them of several gradients at once (`is_grads_batched`).
            Saved tensors stay."""
            found = [gradients[i] for i in differentiable]
            missing = _missing(found)
            if missing == all_tangents:
                return (None,) * len(masks)
            values = saved.load(ctx)
            graph, takes = lazy.graph(missing)
            shapes = ctx.shapes if tangents.kept else {}
            with _below_autograd(), torch._C._DisableAutocast():
                arguments = [*values, *tangents.prepare(found, values, takes, shapes)]
                return reached(run_plainly(graph)(*arguments), missing)

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


def run_consuming(compiled: Compiled, arguments: list[Any]) -> Sequence[Any]:
    """Call a compiled graph; if it can take its inputs out of the list, each is freed after its
    last use."""
    consume: Callable[[list[Any]], Sequence[Any]] | None
    consume = getattr(compiled, "run_consuming", None)
    return compiled(*arguments) if consume is None else consume(arguments)


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
    frees them), numbers on the context."""

    def __init__(self, parts: PartitionedGraph) -> None:
        assert parts.backward is not None
        placeholders = example_values(parts.backward)
        self.primals = parts.saved_primals
        self.is_tensor = [isinstance(v, Tensor) for v in placeholders[: len(parts.saved)]]
        self.all_tensors = all(self.is_tensor)

    def store(self, ctx: Any, inputs: tuple[Any, ...], values: list[Any]) -> None:
        everything = [inputs[i] for i in self.primals] + values
        if self.all_tensors:
            ctx.save_for_backward(*everything)
            return
        ctx.numbers = [v for v, t in zip(everything, self.is_tensor, strict=True) if not t]
        ctx.save_for_backward(*[v for v, t in zip(everything, self.is_tensor, strict=True) if t])

    def load(self, ctx: Any) -> Sequence[Any]:
        tensors = ctx.saved_tensors
        if self.all_tensors:
            return tensors  # type: ignore[no-any-return]
        tensor = iter(tensors)
        number = iter(ctx.numbers)
        return [next(tensor) if t else next(number) for t in self.is_tensor]
