"""What is left to do after a compiled forward: write inputs back, make the user's outputs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from dovetail_autograd_aot.gradient_points import (
    Gates,
    Give,
    node_giver,
    output_stages,
    written_stages,
)
from dovetail_autograd_aot.graphs import (
    GradientPoint,
    OutputInfo,
    OutputKind,
    ReshapedInput,
    Signature,
)
from dovetail_autograd_aot.output_makers import CallOutputs, output_maker
from dovetail_autograd_aot.write_back import make_seen_writes, make_write_back

aten = torch.ops.aten

Epilogue = Callable[..., tuple[Any, ...]]


def make_epilogue(
    signature: Signature, points: Sequence[GradientPoint] = (), gates: Gates = ()
) -> Epilogue | None:
    """(inputs, forward outputs, nodes of the gates) -> user outputs; None if the forward outputs
    are just those. It gives the forward outputs that are `points` their nodes. (`count_writes` is
    called before.)"""
    give = node_giver(points, gates)
    if (
        not signature.mutated
        and not signature.reshaped
        and not signature.hidden
        and not signature.sizes
        and all(_is_plain(o) for o in signature.outputs)
    ):
        return None if give is None else _only_nodes(give)
    write_back = make_write_back(signature)
    written = written_stages(points)
    writes = make_seen_writes(signature, written)
    makers = [(output_maker(info, signature), info.counter) for info in signature.outputs]
    apart = {
        info.counter: (info.kind is OutputKind.VIEW_OF_INPUT, info.base)
        for info in signature.outputs
        if info.counter is not None and info.base is not None
    }
    stages = output_stages(signature.outputs, points)
    writes += [None] * (len(stages) - len(writes))
    reshapes = [
        [r for r in signature.reshaped if written.get(r.index, len(stages) - 1) == stage]
        for stage in range(len(stages))
    ]
    steps = list(zip(writes, stages, reshapes, strict=True))
    plain = all(_is_plain(o) for o in signature.outputs)
    fresh = signature.num_fresh

    def epilogue(
        inputs: Sequence[Any], results: Sequence[Any], opened: tuple[Any, ...] = ()
    ) -> tuple[Any, ...]:
        if write_back is not None:
            write_back(inputs, results)
        outputs = CallOutputs(results[:fresh] if plain else [None] * len(makers))
        others: dict[int, Any] = {}
        for stage, (write, numbers, reshaped) in enumerate(steps):
            if give is not None:
                give(stage, results, inputs, outputs, opened)
            if write is not None:
                write(inputs, results)
            if apart and not stage:
                others = {
                    number: (inputs if from_input else results)[base].data
                    for number, (from_input, base) in apart.items()
                }
            if not plain:
                for i in numbers:
                    make, counter = makers[i]
                    bases = inputs if counter is None else (others[counter],)
                    outputs[i] = make(bases, results, outputs)
            for change in reshaped:
                _reshape(inputs[change.index], change)
        return tuple(outputs)

    return epilogue


def _only_nodes(give: Give) -> Epilogue:
    def epilogue(
        inputs: Sequence[Any], results: Sequence[Any], opened: tuple[Any, ...] = ()
    ) -> tuple[Any, ...]:
        give(0, results, None, None, opened)
        return tuple(results)

    return epilogue


def _reshape(tensor: torch.Tensor, reshaped: ReshapedInput) -> None:
    """Change in place what an input's shape is (which `count_writes` has counted)."""
    counted = None if tensor.is_inference() else tensor._version
    for step, grad_mode in zip(reshaped.steps, reshaped.grad_mode, strict=True):
        with torch.set_grad_enabled(grad_mode):
            step.op(tensor, *step.args, **dict(step.kwargs))
    if counted is not None:
        torch._C._autograd._unsafe_set_version_counter((tensor,), (counted,))


def _is_plain(info: OutputInfo) -> bool:
    leaf = info.requires_grad and info.is_leaf
    fresh = info.kind is OutputKind.FRESH and info.memory is None and info.truth is None
    return fresh and not leaf and not info.lost
