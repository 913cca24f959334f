"""What is left to do after a compiled forward: write inputs back, make the user's outputs."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

import torch

from dovetail_autograd_aot.boundary import (
    GradientPoint,
    NewTensor,
    OutputInfo,
    OutputKind,
    ReshapedInput,
    Signature,
    ViewOf,
)
from dovetail_autograd_aot.outputs.copy_back import make_seen_writes, make_write_back
from dovetail_autograd_aot.outputs.gradient_points import (
    Gates,
    Give,
    node_giver,
    output_stages,
    written_stages,
)
from dovetail_autograd_aot.outputs.output_makers import CallOutputs, output_maker

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
        and not signature.set_inputs
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
    late, first = _late_outputs(signature), _reshaped_first(signature)
    stages = [
        [number for number in stage if number not in late]
        for stage in output_stages(signature.outputs, points, first)
    ]
    writes += [None] * (len(stages) - len(writes))
    taken = _early_outputs(signature, first)
    early = [number for stage in stages for number in stage if number in taken]
    stages = [[number for number in stage if number not in early] for stage in stages]
    reshapes = [
        [
            r
            for r in signature.reshaped
            if r.index not in first and written.get(r.index, len(stages) - 1) == stage
        ]
        for stage in range(len(stages))
    ]
    reshapes_first = [
        [r for r in signature.reshaped if r.index in first and written.get(r.index, 0) == stage]
        for stage in range(len(stages))
    ]
    steps = list(zip(writes, reshapes_first, stages, reshapes, strict=True))
    own = len(signature.user_outputs)
    sets = list(zip(signature.set_inputs, range(own, len(makers)), strict=True))
    plain = all(_is_plain(o) for o in signature.outputs)
    fresh = signature.num_fresh

    def epilogue(
        inputs: Sequence[Any], results: Sequence[Any], opened: tuple[Any, ...] = ()
    ) -> tuple[Any, ...]:
        if write_back is not None:
            write_back(inputs, results)
        outputs = CallOutputs(results[:fresh] if plain else [None] * len(makers))
        others = {
            number: (inputs if from_input else results)[base].data
            for number, (from_input, base) in apart.items()
        }

        def make_outputs(numbers: Sequence[int]) -> None:
            for i in numbers:
                make, counter = makers[i]
                bases = inputs if counter is None else (others[counter],)
                outputs[i] = make(bases, results, outputs)

        make_outputs(early)
        for stage, (write, reshaped_first, numbers, reshaped) in enumerate(steps):
            if give is not None:
                give(stage, results, inputs, outputs, opened)
            if write is not None:
                write(inputs, results)
            for change in reshaped_first:
                _reshape(inputs[change.index], change)
            if not plain:
                make_outputs(numbers)
            for change in reshaped:
                _reshape(inputs[change.index], change)
        if sets:
            for index, number in sets:
                _set(inputs[index], outputs[number])
            make_outputs(late)
            return tuple(outputs[:own])
        return tuple(outputs)

    return epilogue


def _reshaped_first(signature: Signature) -> set[int]:
    """The inputs that change their shape as soon as autograd saw a write to them: their new values
    have that shape."""
    return {m.index for m in signature.mutated if m.reshaped}


def _early_outputs(signature: Signature, first: Collection[int]) -> list[int]:
    """The outputs without a gradient that are taken of the inputs `first` before those change their
    shape."""
    return [
        i
        for i, info in enumerate(signature.outputs)
        if info.kind is OutputKind.VIEW_OF_INPUT and info.base in first and not info.of_reshaped
    ]


def _late_outputs(signature: Signature) -> list[int]:
    """The outputs that are taken of inputs after those were `set_`."""
    late: list[int] = []
    for i, info in enumerate(signature.outputs):
        of_set = isinstance(info.step, ViewOf) and info.step.of_set
        if of_set or (info.kind is OutputKind.DUPLICATE and info.base in late):
            late.append(i)
    return late


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


def _set(tensor: torch.Tensor, other: torch.Tensor) -> None:
    """Make an input an alias (which `count_writes` has counted)."""
    counted = None if tensor.is_inference() else tensor._version
    with torch.no_grad():
        aten.set_.source_Tensor(tensor, other)
    if counted is not None:
        torch._C._autograd._unsafe_set_version_counter((tensor,), (counted,))


def _is_plain(info: OutputInfo) -> bool:
    leaf = info.requires_grad and info.is_leaf
    return isinstance(info.step, NewTensor) and not leaf and not info.lost and not info.protected
