"""What is left to do after a compiled forward: write inputs back, make the user's outputs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from dovetail_autograd_aot import boundary as b
from dovetail_autograd_aot.outputs import gradient_points
from dovetail_autograd_aot.outputs.copy_back import Write, make_seen_writes, make_write_back
from dovetail_autograd_aot.outputs.output_makers import CallOutputs, output_maker

aten = torch.ops.aten

Epilogue = Callable[..., tuple[Any, ...]]


def make_epilogue(
    signature: b.Signature,
    points: Sequence[b.GradientPoint] = (),
    nodes: gradient_points.InputLeads = (),
) -> Epilogue | None:
    """(inputs, forward outputs, nodes of inputs) -> user outputs; None if the forward outputs
    are just those. It gives the forward outputs that are `points` their nodes. (`count_writes` is
    called before.)"""
    give = gradient_points.node_giver(points, nodes)
    plain = all(_is_plain(o) for o in signature.outputs)
    changed = (
        signature.changes.mutated or signature.changes.reshaped or signature.changes.set_inputs
    )
    if plain and not changed and not signature.hidden and not signature.sizes:
        return None if give is None else _only_nodes(give)
    write_back = make_write_back(signature)
    makers = [(output_maker(info, signature), info.counter) for info in signature.outputs]
    recounted = {
        info.counter: (info.kind is b.OutputKind.VIEW_OF_INPUT, info.base)
        for info in signature.outputs
        if info.counter is not None and info.base is not None
    }
    order = _order(signature, points)
    own = len(signature.user_outputs)
    sets = list(zip(signature.changes.set_inputs, range(own, len(makers)), strict=True))
    fresh = signature.num_fresh

    def epilogue(
        inputs: Sequence[Any], results: Sequence[Any], made: tuple[Any, ...] = ()
    ) -> tuple[Any, ...]:
        if write_back is not None:
            write_back(inputs, results)
        outputs = CallOutputs(results[:fresh] if plain else [None] * len(makers))
        others = {
            number: (inputs if from_input else results)[base].data
            for number, (from_input, base) in recounted.items()
        }

        def make_outputs(numbers: Sequence[int]) -> None:
            for i in numbers:
                make, counter = makers[i]
                bases = inputs if counter is None else (others[counter],)
                outputs[i] = make(bases, results, outputs)

        make_outputs(order.before_writes)
        for stage, (write, reshaped_when_written, numbers, reshaped) in enumerate(order.stages):
            if give is not None:
                give(stage, results, inputs, outputs, made)
            if write is not None:
                write(inputs, results)
            for change in reshaped_when_written:
                _reshape(inputs[change.index], change)
            if not plain:
                make_outputs(numbers)
            for change in reshaped:
                _reshape(inputs[change.index], change)
        if not sets:
            return tuple(outputs)
        for index, number in sets:
            _set(inputs[index], outputs[number])
        make_outputs(order.after_sets)
        return tuple(outputs[:own])

    return epilogue


class _Stage(NamedTuple):
    """What is done after results got their nodes, in this order: inputs are written to, of which
    some change their shape at once (their new values have that shape); outputs are made; other
    inputs change their shape."""

    write: Write | None
    reshaped_when_written: list[b.ReshapedInput]
    outputs: list[int]
    reshaped: list[b.ReshapedInput]


@dataclass(frozen=True)
class _Order:
    """When outputs are made: before autograd sees any write (without a gradient, of an input before
    it changes its shape when written), in the stages, after inputs were `set_`."""

    before_writes: list[int]
    stages: list[_Stage]
    after_sets: list[int]


def _order(signature: b.Signature, points: Sequence[b.GradientPoint]) -> _Order:
    when_written = {m.index for m in signature.changes.mutated if m.reshaped}
    after_sets: list[int] = []
    before_writes: list[int] = []
    for i, info in enumerate(signature.outputs):
        of_set = isinstance(info.step, b.ViewOf) and info.step.of_set
        if of_set or (info.kind is b.OutputKind.DUPLICATE and info.base in after_sets):
            after_sets.append(i)
        elif info.kind is b.OutputKind.VIEW_OF_INPUT and info.base in when_written:
            if not info.of_reshaped:
                before_writes.append(i)
    stages = gradient_points.output_stages(signature.outputs, points, when_written)
    apart = {*before_writes, *after_sets}
    written = gradient_points.written_stages(points)
    writes = make_seen_writes(signature, written)
    writes += [None] * (len(stages) - len(writes))
    last = len(stages) - 1
    at_once = [r for r in signature.changes.reshaped if r.index in when_written]
    others = [r for r in signature.changes.reshaped if r.index not in when_written]
    return _Order(
        [number for numbers in stages for number in numbers if number in before_writes],
        [
            _Stage(
                write,
                [r for r in at_once if written.get(r.index, 0) == stage],
                [number for number in numbers if number not in apart],
                [r for r in others if written.get(r.index, last) == stage],
            )
            for stage, (write, numbers) in enumerate(zip(writes, stages, strict=True))
        ],
        after_sets,
    )


def _only_nodes(give: gradient_points.Give) -> Epilogue:
    def epilogue(
        inputs: Sequence[Any], results: Sequence[Any], made: tuple[Any, ...] = ()
    ) -> tuple[Any, ...]:
        give(0, results, None, None, made)
        return tuple(results)

    return epilogue


def _reshape(tensor: torch.Tensor, reshaped: b.ReshapedInput) -> None:
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


def _is_plain(info: b.OutputInfo) -> bool:
    leaf = info.requires_grad and info.is_leaf
    return isinstance(info.step, b.NewTensor) and not leaf and not info.lost and not info.protected
