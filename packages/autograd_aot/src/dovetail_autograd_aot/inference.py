"""Compiled calls that record nothing for autograd."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from dovetail_autograd_aot.epilogue import Epilogue, make_epilogue
from dovetail_autograd_aot.graph_calls import Compiled, extension, unrecorded
from dovetail_autograd_aot.graphs import JointGraph, PartitionedGraph, Signature
from dovetail_autograd_aot.write_back import count_writes


def compile_inference(
    joint: JointGraph, parts: PartitionedGraph, forward: Compiled, shield: bool
) -> Callable[..., tuple[Any, ...]]:
    """Nothing to differentiate: the compiled forward, and what has to be done after it."""
    signature = parts.signature
    extend = extension(joint)
    run = _run_forward(signature, forward, shield)
    if extend is None:
        return run
    return lambda *inputs: run(*extend(inputs))


def _run_forward(
    signature: Signature, forward: Compiled, shield: bool
) -> Callable[..., tuple[Any, ...]]:
    epilogue = _epilogue(signature)
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
        results = unrecorded(target, *inputs)
        if epilogue is None:
            return tuple(results)
        return epilogue(inputs, results)

    return shielded


def _epilogue(signature: Signature) -> Epilogue | None:
    made = make_epilogue(signature)
    if not signature.bumped and not signature.reshaped:
        return made

    def counting(inputs: Sequence[Any], results: Sequence[Any]) -> tuple[Any, ...]:
        count_writes(signature, inputs)
        return tuple(results) if made is None else made(inputs, results)

    return counting


def _without_gradients(target: Compiled, signature: Signature) -> type[torch.autograd.Function]:
    """For results that require grad in eager though no input gets a gradient (the 0-norm's), or
    none can be computed."""
    differentiable = signature.differentiable

    class CompiledFunction(torch.autograd.Function):
        """A compiled forward; its backward reaches nothing."""

        @staticmethod
        def forward(ctx: Any, *inputs: Any) -> tuple[Any, ...]:
            ctx.count = len(inputs)
            results = tuple(unrecorded(target, *inputs))
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
