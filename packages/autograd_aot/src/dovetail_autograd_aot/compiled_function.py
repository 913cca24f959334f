"""`aot_compile`: a captured graph -> a callable that behaves as eager, forward and backward.

The graph is traced ahead of time and cut in two; each half goes to a compiler. What compiled code
cannot do (writing inputs back, views of inputs, autograd's bookkeeping) is done here around it, by
closures specialised when compiling, so that a plain signature costs nothing per call.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from dovetail_guards.sym_node import expr_of
from torch import Tensor
from torch.fx import GraphModule

from dovetail_autograd_aot.double_backward import DoubleBackward
from dovetail_autograd_aot.epilogue import make_epilogue
from dovetail_autograd_aot.graphs import JointGraph, PartitionedGraph
from dovetail_autograd_aot.joint import Decompositions, trace_joint
from dovetail_autograd_aot.partition import Partitioner, min_cut_partition
from dovetail_autograd_aot.values import hint

Compiler = Callable[[GraphModule, list[Any]], Callable[..., Any]]
Compiled = Callable[..., Sequence[Any]]

_below_autograd = torch._C._AutoDispatchBelowADInplaceOrView
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
) -> Callable[..., tuple[Any, ...]]:
    """Compile `gm`, a graph over flat inputs that returns a tuple.

    A compiler takes a functional graph and its example inputs (fakes and numbers) and gives a
    callable that takes the same inputs positionally and returns the outputs. If the callable has a
    method `run_consuming`, which takes them out of a list and drops each after its last use, the
    backward is called so, and saved tensors are freed while it runs. The backward is compiled at
    the first backward, unless `compile_backward_now`. Grad mode is that of this call.
    `function_mode` is as for `trace_joint`.
    """
    joint = trace_joint(
        gm, example_inputs, decompositions=decompositions, function_mode=function_mode
    )
    parts = partition(joint)
    forward = forward_compiler(parts.forward, example_values(parts.forward))
    if parts.backward is None:
        # The captured operators must not be recorded by autograd (a Plan would not be, but the
        # forward may be any callable).
        shield = torch.is_grad_enabled() and any(
            isinstance(v, Tensor) and v.requires_grad
            for v in (*example_inputs, *joint.constants_lifted)
        )
        return _inference(joint, parts, forward, shield)
    lazy = _LazyBackward(parts.backward, backward_compiler or forward_compiler)
    if compile_backward_now:
        lazy.compile()
    return _training(gm, joint, parts, forward, lazy)


def example_values(gm: GraphModule) -> list[Any]:
    """The values that stand for a graph's inputs."""
    return [n.meta["val"] for n in gm.graph.nodes if n.op == "placeholder"]


class _LazyBackward:
    """Compiles the backward when it is first needed."""

    def __init__(self, gm: GraphModule, compiler: Compiler) -> None:
        self.gm = gm
        self.compiler = compiler
        self.compiled: Compiled | None = None

    def compile(self) -> Compiled:
        """The compiled backward."""
        if self.compiled is None:
            with torch.no_grad():
                self.compiled = self.compiler(self.gm, example_values(self.gm))
        return self.compiled


# --- inference ------------------------------------------------------------------------------------


def _inference(
    joint: JointGraph, parts: PartitionedGraph, forward: Compiled, shield: bool
) -> Callable[..., tuple[Any, ...]]:
    """Nothing to differentiate: the compiled forward, and what has to be done after it."""
    signature = parts.signature
    lifted = joint.constants_lifted
    epilogue = make_epilogue(signature)
    no_autocast = torch._C._is_any_autocast_enabled()

    def run(*inputs: Any) -> Sequence[Any]:
        if no_autocast:
            with torch._C._DisableAutocast():
                return forward(*inputs, *lifted)
        return forward(*inputs, *lifted)

    target = run if (lifted or no_autocast) else forward
    if not shield:
        if epilogue is None:

            def plain(*inputs: Any) -> tuple[Any, ...]:
                return tuple(target(*inputs))

            return plain

        def with_epilogue(*inputs: Any) -> tuple[Any, ...]:
            return epilogue((*inputs, *lifted), target(*inputs))

        return with_epilogue

    set_grad = torch._C._set_grad_enabled
    grad_enabled = torch.is_grad_enabled

    def shielded(*inputs: Any) -> tuple[Any, ...]:
        before = grad_enabled()
        set_grad(False)
        try:
            results = target(*inputs)
        finally:
            set_grad(before)
        if epilogue is None:
            return tuple(results)
        return epilogue((*inputs, *lifted), results)

    return shielded


# --- training -------------------------------------------------------------------------------------


def _training(
    gm: GraphModule,
    joint: JointGraph,
    parts: PartitionedGraph,
    forward: Compiled,
    lazy: _LazyBackward,
) -> Callable[..., tuple[Any, ...]]:
    signature = parts.signature
    lifted = joint.constants_lifted
    epilogue = make_epilogue(signature)
    function = make_autograd_function(parts, forward, lazy.compile, DoubleBackward(gm, joint))
    apply = function.apply
    if not torch.is_grad_enabled():
        # Called under no_grad, with a region inside that switches gradients on.
        apply = torch.enable_grad()(apply)

    def run(*inputs: Any) -> tuple[Any, ...]:
        if lifted:
            inputs = (*inputs, *lifted)
        results = apply(*inputs)
        return results if epilogue is None else epilogue(inputs, results)

    return run


def make_autograd_function(
    parts: PartitionedGraph,
    forward: Compiled,
    backward: Callable[[], Compiled],
    double: DoubleBackward,
) -> type[torch.autograd.Function]:
    """The `autograd.Function` over primals whose results are the forward outputs."""
    signature = parts.signature
    count = signature.num_forward_outputs
    saved = _SavedValues(parts)
    differentiable = signature.differentiable
    constant_outputs = [i for i in range(count) if i not in differentiable]
    aliases = [(a.output, a.saved, _geometry(parts.forward, a.output)) for a in parts.saved_aliases]
    tangents = _Tangents(parts)
    masks = parts.gradient_tangents
    all_tangents = (1 << len(differentiable)) - 1
    no_autocast = torch._C._is_any_autocast_enabled()

    class CompiledFunction(torch.autograd.Function):
        """Compiled forward and backward of one graph."""

        @staticmethod
        def forward(ctx: Any, *inputs: Any) -> tuple[Any, ...]:
            ctx.replay = double.remember(inputs)
            # Below autograd's view tracking: a result that is a view of another must come out
            # as a tensor of its own, or autograd would refuse to let users write to it.
            with _below_autograd():
                if no_autocast:
                    with torch._C._DisableAutocast():
                        results = list(forward(*inputs))
                else:
                    results = list(forward(*inputs))
            outputs = results[:count]
            values = results[count:]
            for output, index, (sizes, strides, offset) in aliases:
                # Built from the saved tensor, so that it shares its version counter.
                outputs[output] = (
                    values[index].as_strided(_ints(sizes, outputs[output]), strides, offset)
                ).detach()
            saved.store(ctx, inputs, values)
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
            missing = 0
            for i, gradient in enumerate(found):
                if gradient is None:
                    missing |= 1 << i
            arguments = [*values, *tangents.prepare(found, values)]
            del values
            if not _graph_is_kept():
                # As eager does node by node: `arguments` holds the saved tensors from here on.
                ctx.maybe_clear_saved_tensors()
                ctx.replay = None
            with _below_autograd(), torch._C._DisableAutocast():
                results = _run_consuming(backward(), arguments)
            if missing:
                # As in eager: a gradient that no defined tangent reaches is None, not zero.
                present = all_tangents & ~missing
                return tuple(
                    r if mask & present else None for r, mask in zip(results, masks, strict=True)
                )
            return tuple(results)

    return CompiledFunction


def _run_consuming(compiled: Compiled, arguments: list[Any]) -> Sequence[Any]:
    """Call a compiled graph; if it can take its inputs out of the list, each is freed after its
    last use."""
    consume: Callable[[list[Any]], Sequence[Any]] | None
    consume = getattr(compiled, "run_consuming", None)
    return compiled(*arguments) if consume is None else consume(arguments)


def _ints(sizes: tuple[Any, ...], like: Tensor) -> Sequence[int]:
    return like.shape if any(type(s) is not int for s in sizes) else sizes


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


class _Tangents:
    """Brings gradients from outside into the layout the backward was compiled for."""

    def __init__(self, parts: PartitionedGraph) -> None:
        assert parts.backward is not None
        self.values = example_values(parts.backward)[len(parts.saved) :]
        self.strides = [v._strides for v in self.values]
        self.static = [all(type(s) is int for s in (*v._sizes, *v._strides)) for v in self.values]
        self.sizes = _SizeReader(parts)

    def prepare(self, found: list[Any], saved: Sequence[Any]) -> list[Tensor]:
        """Undefined tangents become zeros, others get the expected strides and dtype."""
        ready = []
        for i, gradient in enumerate(found):
            if self.static[i] and gradient is not None:
                if gradient.stride() == self.strides[i]:
                    ready.append(gradient)
                    continue
                sizes, strides = self.values[i]._sizes, self.strides[i]
            elif gradient is None:
                sizes, strides = self.sizes.layout(self.values[i], saved, found)
            else:
                sizes, strides = gradient.shape, _contiguous_like(self.values[i], gradient)
                if gradient.stride() == strides:
                    ready.append(gradient)
                    continue
            ready.append(_laid_out(gradient, sizes, strides, self.values[i]))
        return ready


def _laid_out(gradient: Tensor | None, sizes: Any, strides: Any, like: Any) -> Tensor:
    new = torch.empty_strided(sizes, strides, dtype=like._dtype, device=like._device)
    return new.zero_() if gradient is None else new.copy_(gradient)


def _contiguous_like(value: Any, gradient: Tensor) -> tuple[int, ...]:
    """The strides of `gradient`'s sizes in the dimension order of `value`."""
    order = sorted(
        range(len(value._sizes)),
        key=lambda d: (
            hint(value._strides[d]),
            -d,
        ),
    )
    strides = [0] * len(order)
    expected = 1
    for d in order:
        strides[d] = expected
        expected *= max(1, gradient.shape[d])
    return tuple(strides)


class _SizeReader:
    """Finds the run-time sizes of an undefined tangent: read off the values at hand."""

    def __init__(self, parts: PartitionedGraph) -> None:
        assert parts.backward is not None
        self.known = example_values(parts.backward)

    def layout(
        self, value: Any, saved: Sequence[Any], tangents: list[Any]
    ) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Sizes and strides of `value` as numbers."""
        known: dict[str, int] = {}

        def learn(symbolic: Any, actual: int) -> None:
            name = None if type(symbolic) is int else expr_of(symbolic).symbol_name
            if name is not None:
                known[name] = actual

        for example, actual in zip(self.known, [*saved, *tangents], strict=True):
            if isinstance(actual, Tensor):
                for symbolic, size in zip(example._sizes, actual.shape, strict=True):
                    learn(symbolic, size)
            elif isinstance(example, torch.SymInt):
                learn(example, actual)
        sizes = []
        for size in value._sizes:
            expr = expr_of(size)
            if not expr.free_symbols() <= known.keys():
                raise RuntimeError(
                    f"the size {size} of an output without gradient is not known in the backward"
                )
            sizes.append(expr.evaluate(known))
        return tuple(sizes), _contiguous_like(value, torch.empty(sizes, device="meta"))
