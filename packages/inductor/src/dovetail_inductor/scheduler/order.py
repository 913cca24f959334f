"""The pass `order`: steps in the order that needs the least memory at once."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from itertools import pairwise

import torch
from dovetail_runtime import CallAten, Plan
from dovetail_runtime.plan import plans_within

from dovetail_inductor.loop_ir.loops import ExternCall, Strided
from dovetail_inductor.scheduler.kernels import KernelGraph, scatters
from dovetail_inductor.scheduler.lifetimes import live_bytes, writes_of

# Steps stay where they are unless the peak falls below this part of what it was: the graph's own
# order keeps what belongs together in the caches.
GAIN = 0.97
# A single step is moved for less.
GAIN_OF_A_STEP, MOST_MOVED = 0.995, 8


def order(graph: KernelGraph, owned: frozenset[str] = frozenset()) -> KernelGraph:
    """Put off what needs more memory than it frees until somebody needs its result.

    Typical are values computed again for a backward, and gradients of large weights, of which the
    factors are small. Where nothing is put off, what frees more than it needs comes before the step
    where most is in memory: a shortcut's convolution beside that of a longer way, say. Needs steps
    in an order of computation, and gives such an order. `owned` are the inputs that the call frees.
    """
    before = live_bytes(graph, owned).bytes
    changed = replace(graph, steps=tuple(graph.steps[i] for i in _put_off(graph, owned)))
    if live_bytes(changed, owned).bytes < GAIN * before:
        return changed
    for _ in range(MOST_MOVED):
        live = live_bytes(graph, owned)
        changed = _with_one_earlier(graph, owned, live.peak)
        if live_bytes(changed, owned).bytes > GAIN_OF_A_STEP * live.bytes:
            break
        graph = changed
    return graph


def _with_one_earlier(graph: KernelGraph, owned: frozenset[str], peak: int) -> KernelGraph:
    """The graph where the step behind the peak that frees the most more than it makes, if it came
    before the peak, stands as early as it can free that."""
    steps = graph.steps
    writer = {name: i for i, step in enumerate(steps) for name in writes_of(step)}
    readers: dict[str, list[int]] = {}
    for position, step in enumerate(steps):
        for name in step.reads():
            readers.setdefault(name, []).append(position)
    kept = {o.buffer for o in graph.outputs if isinstance(o, Strided)}
    over = scatters(steps).items()
    stay = kept.union(*over) if over else kept  # (what a scatter writes over goes on in its result)
    best: tuple[int, int, int] | None = None  # bytes, the step, where to
    for position in range(peak + 1, len(steps)):
        step = steps[position]
        ready = max((writer[n] for n in step.reads() if n in writer), default=-1)
        if ready >= peak or (isinstance(step, ExternCall) and (step.binds or draws(step))):
            continue
        if not stay.isdisjoint(writes_of(step)):
            continue
        freed, soonest = 0, ready
        for name in step.reads():
            before = max((r for r in readers[name] if r != position), default=-1)
            if (name in writer or name in owned) and name not in stay and before < peak:
                freed += graph.buffers[name].nbytes
                soonest = max(soonest, before)
        gain = freed - sum(graph.buffers[n].nbytes for n in writes_of(step))
        if gain > 0 and (best is None or gain > best[0]):
            best = gain, position, soonest + 1
    if best is None:
        return graph
    _, position, place = best
    others = steps[:position] + steps[position + 1 :]
    return replace(graph, steps=(*others[:place], steps[position], *others[place:]))


def _put_off(graph: KernelGraph, owned: frozenset[str]) -> list[int]:
    steps = graph.steps
    writer = {name: i for i, step in enumerate(steps) for name in writes_of(step)}
    before = [sorted({writer[n] for n in step.reads() if n in writer}) for step in steps]
    for earlier, later in _random_pairs(graph):
        before[later].append(earlier)
    readers: dict[str, int] = {}  # how many steps have yet to read a buffer
    for step in steps:
        for name in step.reads():
            readers[name] = readers.get(name, 0) + 1
    kept = {o.buffer for o in graph.outputs if isinstance(o, Strided)}
    freed = {n for n in (*writer, *owned) if n not in kept}
    placed: set[int] = set()
    result: list[int] = []

    def grows(position: int) -> bool:
        step = steps[position]
        dies = [n for n in step.reads() if readers[n] == 1 and n in freed]
        made = sum(graph.buffers[n].nbytes for n in writes_of(step))
        return made > sum(graph.buffers[n].nbytes for n in dies)

    def place(wanted: int) -> None:
        stack = [wanted]
        while stack:
            position = stack[-1]
            missing = [p for p in before[position] if p not in placed]
            if missing:
                stack.extend(reversed(missing))
                continue
            stack.pop()
            if position in placed:
                continue
            placed.add(position)
            result.append(position)
            for name in steps[position].reads():
                readers[name] -= 1

    waiting: list[int] = []
    for position in range(len(steps)):
        if position in placed:
            continue
        if grows(position):
            waiting.append(position)
            continue
        place(position)
    for position in waiting:
        place(position)
    return result


def _random_pairs(graph: KernelGraph) -> Iterable[tuple[int, int]]:
    """Calls that draw random numbers, each with the next: they keep their order."""
    drawing = [
        i for i, step in enumerate(graph.steps) if isinstance(step, ExternCall) and draws(step)
    ]
    return pairwise(drawing)


def draws(call: ExternCall) -> bool:
    """Whether a call moves the random generator."""
    if not call.branches:
        return _operator_draws(call.op)
    return any(_plan_draws(branch) for branch in call.branches)


def _plan_draws(plan: Plan) -> bool:
    return any(
        _operator_draws(step.op)
        if isinstance(step, CallAten)
        else any(map(_plan_draws, plans_within(step)))
        for step in plan.steps
    )


def _operator_draws(op: str) -> bool:
    """Whether an ATen operator, by its name, moves the random generator."""
    namespace, _, rest = op.partition("::")
    name, _, overload = rest.partition(".")
    packet = getattr(getattr(torch.ops, namespace), name)
    return torch.Tag.nondeterministic_seeded in getattr(packet, overload or "default").tags
