"""Compiled calls that record nothing for autograd."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor

from dovetail_autograd_aot.boundary import GradientPoint, JointGraph, PartitionedGraph, Signature
from dovetail_autograd_aot.calls import graph_calls
from dovetail_autograd_aot.calls.cross_output_gradients import CrossOutputGradients
from dovetail_autograd_aot.calls.double_backward import DoubleBackward
from dovetail_autograd_aot.outputs.copy_back import count_writes
from dovetail_autograd_aot.outputs.epilogue import Epilogue, make_epilogue


def compile_inference(
    joint: JointGraph,
    parts: PartitionedGraph,
    forward: graph_calls.Compiled,
    shield: bool,
    double: DoubleBackward | None,
) -> Callable[..., tuple[Any, ...]]:
    """No input gets a gradient: the compiled forward, and what has to be done after it. (Outputs
    may get gradients by way of others: `double` is for the run by eager that tells those.)"""
    extend, signature = graph_calls.extension(joint), parts.signature
    points = () if double is None or not shield else joint.points
    epilogue = _epilogue(signature, points)

    def without_autocast(*inputs: Any) -> Sequence[Any]:
        with torch._C._DisableAutocast():
            return forward(*inputs)

    target = without_autocast if torch._C._is_any_autocast_enabled() else forward
    if shield and signature.differentiable:
        across = CrossOutputGradients(double, points) if double is not None and points else None
        apply = graph_calls.apply_of(_without_gradients(target, signature, across))
        anchor = torch.empty((), requires_grad=True)

        def recorded(*inputs: Any) -> tuple[Any, ...]:
            # (The engine is not to come to inputs, but to raise an error on the way to them: there
            # is nothing for them.)
            raises = signature.backward_error is not None or bool(signature.lost)
            results = apply(anchor, *(inputs if raises else map(graph_calls.detached, inputs)))
            context = graph_calls.context_of(results) if across is not None else None
            if context is not None and double is not None:
                context.replay = double.remember(inputs)
            outputs = results if epilogue is None else epilogue(inputs, results)
            if context is not None and double is not None:
                context.replay = double.counted_again(context.replay)
            return outputs

        run: graph_calls.Run = recorded
    elif epilogue is None and not shield and hasattr(target, "run_consuming"):
        run = cast(graph_calls.Run, target)  # a plan's, which gives a tuple
    else:
        call = partial(graph_calls.unrecorded, target) if shield else target

        def plain(*inputs: Any) -> tuple[Any, ...]:
            results = call(*inputs)
            return tuple(results) if epilogue is None else epilogue(inputs, results)

        run = plain
    return run if extend is None else lambda *inputs: run(*extend(inputs))


def _epilogue(signature: Signature, points: Sequence[GradientPoint]) -> Epilogue | None:
    made = make_epilogue(signature, points)
    if not signature.changes.extra_writes:
        return made

    def counting(inputs: Sequence[Any], results: Sequence[Any]) -> tuple[Any, ...]:
        count_writes(signature, inputs)
        return tuple(results) if made is None else made(inputs, results)

    return counting


def _without_gradients(
    target: graph_calls.Compiled, signature: Signature, points: CrossOutputGradients | None
) -> type[torch.autograd.Function]:
    """For results that require grad in eager though no input gets a gradient (the 0-norm's), or
    none can be computed: over an anchor, which makes them require it, and the inputs. `points` are
    those of its outputs that have nodes of their own."""
    differentiable = signature.differentiable

    class CompiledFunction(torch.autograd.Function):
        """A compiled forward; its backward reaches nothing."""

        @staticmethod
        def forward(ctx: Any, anchor: Tensor, *inputs: Any) -> tuple[Any, ...]:
            ctx.count = len(inputs) + 1
            ctx.replay = None
            results = tuple(graph_calls.unrecorded(target, *inputs))
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
            for lost in signature.lost:
                if gradients[differentiable[lost.tangent]] is not None:
                    raise RuntimeError(lost.error)
            if points is not None:
                points.taken(ctx)
                if not graph_calls.graph_is_kept():
                    ctx.replay = None
            return (None,) * int(ctx.count)

        @staticmethod
        def across_outputs(*args: Any) -> list[Tensor | None]:
            """`CrossOutputGradients.parts`, for the nodes of the outputs."""
            assert points is not None
            return points.parts(*args)

    return CompiledFunction
