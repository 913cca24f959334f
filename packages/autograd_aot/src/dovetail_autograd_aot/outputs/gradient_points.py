"""Where autograd's graph of a call can be asked for gradients: at its outputs, and at the inputs
that it writes to. Some of these points are computed from others."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from graphlib import TopologicalSorter
from typing import Any

from torch import Tensor

from dovetail_autograd_aot import boundary as b
from dovetail_autograd_aot.native import nodes_module
from dovetail_autograd_aot.outputs.output_aliasing import Classified
from dovetail_autograd_aot.trace.autograd_queries import grad_fn_of

_VIEWS = (b.OutputKind.VIEW_OF_INPUT, b.OutputKind.VIEW_OF_OUTPUT)


def gradient_points(
    outputs: Sequence[Any],
    primals: Sequence[Any],
    result: Classified,
    mutated: Sequence[b.MutatedInput],
    reshaped: Sequence[b.ReshapedInput],
) -> tuple[b.GradientPoint, ...]:
    """The points of a trace: none if there is one only, or nothing to be told apart."""
    fresh = sum(info.kind is b.OutputKind.FRESH for info in result.infos)
    found: list[b.GradientPoint] = []
    tensors: list[Tensor] = []
    for index, root in zip(result.differentiable, result.roots, strict=True):
        if fresh <= index < fresh + len(mutated):
            primal = mutated[index - fresh].index
            point = b.GradientPoint(index, None, primal, b.PointSource.INPUT)
            tensors.append(primals[primal])
        else:
            output = _output_of(result.infos, index)
            seen = output is not None and result.infos[output].protected
            source = b.PointSource.OUTPUT if seen else b.PointSource.RESULT
            point = b.GradientPoint(index, output, None, source)
            tensors.append(root)
        found.append(point)
    forward = len(found)
    for number, info in enumerate(result.infos):
        if info.kind in _VIEWS and _has_own_place(info) and grad_fn_of(outputs[number]) is not None:
            found.append(b.GradientPoint(None, number, None, b.PointSource.OUTPUT))
            tensors.append(outputs[number])
    for primal in {r.index for r in reshaped} - {m.index for m in mutated if not m.data_only}:
        if grad_fn_of(primals[primal]) is not None:
            found.append(b.GradientPoint(None, None, primal, b.PointSource.INPUT))
            tensors.append(primals[primal])
    # In the order of their nodes in the trace, which is that of the engine: hooks are called in it.
    by_time = sorted(range(len(found)), key=lambda k: _time(tensors[k]))
    found, tensors = [found[k] for k in by_time], [tensors[k] for k in by_time]
    placed = _placed(found, tensors, result.infos)
    if forward < 2 and not any(point.direct for point in placed):
        return ()
    return placed


def _time(tensor: Tensor) -> int:
    node: Any = tensor.grad_fn
    return int(node._sequence_nr())


def _output_of(infos: Sequence[b.OutputInfo], forward: int) -> int | None:
    """The user output that forward output `forward` is; None for a hidden base."""
    for number, info in enumerate(infos):
        if info.kind is b.OutputKind.FRESH and info.base == forward:
            return number
    return None


def _has_own_place(info: b.OutputInfo) -> bool:
    tracked = info.requires_grad and not info.is_leaf
    detached = isinstance(info.step, b.ViewOf) and info.step.detached is not None
    return tracked and not info.lost and not detached


def _placed(
    points: list[b.GradientPoint], tensors: list[Tensor], infos: Sequence[b.OutputInfo]
) -> tuple[b.GradientPoint, ...]:
    """The points with what they are computed from, and when they get their nodes or are made. (A
    view of what is computed from it is no point: it is made later.)"""
    while True:
        direct = nodes_module().dependencies(tensors)
        below = _closure(direct)
        taken_of = _taken_of(points, infos)
        late = {k for k, base in enumerate(taken_of) if base is not None and k in below[base]}
        if not late:
            break
        kept = [k for k in range(len(points)) if k not in late]
        points, tensors = [points[k] for k in kept], [tensors[k] for k in kept]
    stages = _stages(points, direct, taken_of, infos)
    return tuple(
        replace(p, stage=stages[k], direct=tuple(direct[k]), below=tuple(sorted(below[k])))
        for k, p in enumerate(points)
    )


def _taken_of(points: Sequence[b.GradientPoint], infos: Sequence[b.OutputInfo]) -> list[int | None]:
    """The point that each one that is a view is taken of at run time."""
    results: dict[Any, int] = {p.forward: k for k, p in enumerate(points)}
    inputs: dict[Any, int] = {p.written: k for k, p in enumerate(points) if p.written is not None}
    found: list[int | None] = []
    for point in points:
        base = None
        if point.forward is None and point.output is not None:
            info = infos[point.output]
            of_result = info.kind is b.OutputKind.VIEW_OF_OUTPUT
            base = (results if of_result else inputs).get(info.base)
        found.append(base)
    return found


def _stages(
    points: Sequence[b.GradientPoint],
    direct: Sequence[Sequence[int]],
    taken_of: Sequence[int | None],
    infos: Sequence[b.OutputInfo],
) -> list[int]:
    """When each point gets its node, or is made. Within a stage nodes come first, then inputs are
    written to, then views are made, then inputs change their shape."""
    found: dict[int, int] = {}
    begun: set[int] = set()
    for point in range(len(points)):
        stack = [point]
        while stack:
            k = stack[-1]
            base = taken_of[k]
            before = [*direct[k], *(() if base is None else (base,))]
            missing = [other for other in before if other not in begun]
            begun.add(k)
            if k not in found and not missing:
                number = points[k].output  # (of results: they come later than what is none)
                later = points[k].forward is not None or (
                    number is not None and infos[number].of_reshaped
                )
                found[k] = max(
                    (
                        found[i] + (later and points[i].source is not b.PointSource.RESULT)
                        for i in before
                        if i in found
                    ),
                    default=0,
                )
            if k in found:
                stack.pop()
            else:
                stack += missing
    return [found[k] for k in range(len(points))]


def through_others(
    infos: Sequence[b.OutputInfo], points: Sequence[b.GradientPoint]
) -> list[b.OutputInfo]:
    """The outputs, each view that was taken of another output to be made of that one: its gradient
    goes through it."""
    made = list(infos)
    for point in points:
        if point.forward is not None or len(point.direct) != 1:
            continue
        other = points[point.direct[0]]
        if other.source is not b.PointSource.OUTPUT:
            continue
        assert point.output is not None and other.output is not None
        info, seen = infos[point.output], infos[other.output]
        same = (info.kind, info.base) == (seen.kind, seen.base)
        if not same or not isinstance(info.step, b.ViewOf):
            continue
        if info.view[: len(seen.view)] == seen.view:
            through = replace(info.step, view_of=other.output)
            made[point.output] = replace(info, step=through)
    return made


def output_stages(
    infos: Sequence[b.OutputInfo], points: Sequence[b.GradientPoint], first: Collection[int] = ()
) -> list[list[int]]:
    """The outputs in the order in which they can be made, by the stages of the points: views after
    the nodes of what they are taken of, and what is made of other outputs after them.
    What autograd has lost track of comes last. The inputs `first` change their shape before
    any views are made."""
    results = {point.forward: point.stage for point in points}
    inputs: Mapping[Any, int] = written_stages(points)
    views = {p.output: p.stage for p in points if p.source is b.PointSource.OUTPUT}

    def rank(number: int) -> tuple[int, bool, int, int]:
        info = infos[number]
        if info.kind is b.OutputKind.DUPLICATE:
            assert info.base is not None
            stage, _, depth, _ = rank(info.base)
            return stage, True, depth, number
        if info.kind is b.OutputKind.VIEW_OF_OUTPUT:
            stage = results.get(info.base, 0)
        else:
            stage = inputs.get(info.base, 0) if info.kind is b.OutputKind.VIEW_OF_INPUT else 0
            stage += info.of_reshaped and info.base not in first
        stage = max(stage, views.get(number, 0))
        at_last, depth = bool(info.lost), 0
        if isinstance(info.step, b.ViewOf) and info.step.view_of is not None:
            other, after, depth, _ = rank(info.step.view_of)
            stage, at_last, depth = max(stage, other), at_last or after, depth + 1
        return (last if at_last else stage), at_last, depth, number

    last = max((point.stage for point in points), default=0)
    found: list[list[int]] = [[] for _ in range(last + 1)]
    for number in sorted(range(len(infos)), key=rank):
        found[rank(number)[0]].append(number)
    return found


def written_stages(points: Sequence[b.GradientPoint]) -> dict[int, int]:
    """The stages in which inputs are written to, or change their shape."""
    return {point.written: point.stage for point in points if point.written is not None}


def _closure(direct: Sequence[Sequence[int]]) -> list[set[int]]:
    """Everything that each point is computed from."""
    known: dict[int, set[int]] = {}
    for point in TopologicalSorter(dict(enumerate(direct))).static_order():
        known[point] = set(direct[point]).union(*(known[other] for other in direct[point]))
    return [known[point] for point in range(len(direct))]


Give = Callable[
    [int, Sequence[Any], Sequence[Any] | None, Sequence[Any] | None, tuple[Any, ...]], None
]
InputLeads = Sequence[tuple[tuple[int, ...], tuple[int, ...]]]


def node_giver(points: Sequence[b.GradientPoint], nodes: InputLeads) -> Give | None:
    """What gives the results of a compiled call nodes of their own: called with each stage, the
    results, and, but in stage 0, the inputs and the outputs that there are; and with the nodes of
    the inputs, which `nodes` describe (see `calls/input_reachability.py`)."""
    if not points:
        return None
    specs = []
    for point in points:
        index = {
            b.PointSource.RESULT: point.forward,
            b.PointSource.INPUT: point.written,
            b.PointSource.OUTPUT: point.output,
        }[point.source]
        forward = -1 if point.forward is None else point.forward
        leads = [
            (node, outputs.index(point.forward))
            for node, (_, outputs) in enumerate(nodes)
            if point.forward in outputs
        ]
        specs.append(
            (forward, point.stage, point.source.value, index, point.direct, point.below, leads)
        )
    order = sorted(range(len(points)), key=lambda k: (len(points[k].below), k))
    give: Give = nodes_module().OutputNodes(specs, order).give
    return give
