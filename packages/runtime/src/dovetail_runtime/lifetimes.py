"""Which steps of a plan look at which memory, and wait for one another."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import torch

from dovetail_runtime import plan as p
from dovetail_runtime.sizes import evaluate, storage_bytes


def used_names(step: p.Step) -> list[str]:
    """The tensors that a step looks at, by name; what it makes or frees not counted."""
    match step:
        case p.View():
            return [step.base]
        case p.LaunchCpp():
            return list(step.tensors)
        case p.LaunchTriton():
            return [a for a in step.args if isinstance(a, str)]
        case p.CallAten():
            arguments = (*step.args, *(value for _, value in step.kwargs))
            return [name for argument in arguments for name in _refs(argument)]
        case p.CopyInto():
            return [step.target, step.source]
        case p.Bind():
            return [step.tensor]
        case p.Choose():
            return [step.predicate, *(a for a in step.args if isinstance(a, str))]
        case p.While():
            return [a for a in step.args if isinstance(a, str)]
        case p.Allocate() | p.Free() | p.FreeSlab() | p.Assert():
            return []
    raise TypeError(f"unknown step {step!r}")


def _refs(argument: p.AtenArg) -> list[str]:
    if isinstance(argument, p.Ref):
        return [argument.name]
    items = argument if isinstance(argument, tuple) else ()
    return [name for item in items for name in _refs(item)]


def computes_on_cpu(step: p.Step) -> bool:
    """Whether a step of a GPU's plan computes on the CPU: it runs a C++ kernel, or calls a factory
    there. (What is computed of CPU tensors begins with either, or with an input.)"""
    if isinstance(step, p.Choose | p.While):
        return any(computes_on_cpu(own) for plan in p.plans_within(step) for own in plan.steps)
    if not isinstance(step, p.CallAten):
        return isinstance(step, p.LaunchCpp)
    arguments = (*step.args, *(value for _, value in step.kwargs))
    devices = [a for a in arguments if isinstance(a, torch.device)]
    if devices:
        return any(device.type == "cpu" for device in devices)
    makes = any(output is not None for output in step.outputs)
    return makes and not any(_refs(argument) for argument in arguments)


def roots(plan: p.Plan) -> dict[str, str]:
    """For each tensor, by name, whose storage it looks at: its own, or a view's root."""
    found = {declared.name: declared.name for declared in plan.inputs if declared.spec is not None}
    found |= {constant.name: constant.name for constant in plan.constants}
    for step in plan.steps:
        if isinstance(step, p.Allocate):
            found[step.name] = step.name
        elif isinstance(step, p.View):
            found[step.name] = found.get(step.base, step.base)
        elif isinstance(step, p.CallAten | p.Choose | p.While):
            found |= {name: name for name in step.outputs if name is not None}
    return found


def input_releases(plan: p.Plan) -> list[tuple[int, tuple[str, ...]]]:
    """When a call that owns its inputs may drop them: (step, names of inputs and of their views).

    Step -1 stands for the call's begin. Inputs that leave the call, or are written to, stay.
    """
    root_of = roots(plan)
    last = {declared.name: -1 for declared in plan.inputs if declared.spec is not None}
    for position, step in enumerate(plan.steps):
        for name in used_names(step):
            if root_of.get(name) in last:
                last[root_of[name]] = position
    written = {*plan.mutated, *(s.target for s in plan.steps if isinstance(s, p.CopyInto))}
    leaving = {output for output in plan.outputs if isinstance(output, str)}
    for name in written | leaving:
        last.pop(root_of.get(name, name), None)
    groups: dict[int, list[str]] = {}
    for name, root in root_of.items():
        if root in last:
            groups.setdefault(last[root], []).append(name)
    return [(position, tuple(groups[position])) for position in sorted(groups)]


def early_launches(steps: Sequence[p.Step]) -> list[bool]:
    """Which steps are launches that may begin while the one before them runs: both wait for all
    that is launched before, and nothing else that uses the GPU lies between. (Who waits for what
    waits itself waits for all before that, too.)"""
    found, waits = [], False
    for step in steps:
        launch = step if isinstance(step, p.LaunchTriton) and step.dependent else None
        found.append(launch is not None and waits and not launch.evenly)
        waits = launch is not None or (
            waits and isinstance(step, p.Allocate | p.View | p.Free | p.FreeSlab | p.Assert)
        )
    return found


# --- how much memory the steps of a plan take, known before a call --------------------------------


@dataclass(frozen=True)
class Footprint:
    """The most bytes that are taken at one time: in all, and without certain results, which have
    `results` bytes. What operators take to work in is not known, nor are results of calls that the
    plan says nothing of."""

    whole: int
    without_results: int
    results: int


def footprint(plan: p.Plan, symbols: Mapping[str, int], positions: Collection[int]) -> Footprint:
    """Of a call where `symbols` have these values; `positions` of the outputs that are told apart.
    Sizes that other symbols decide count for nothing."""
    known = dict(symbols)
    for name, size in plan.definitions:
        known[name] = _value(size, known)
    root_of = roots(plan)
    outputs = (plan.outputs[i] for i in positions)
    apart = {root_of[name] for name in outputs if isinstance(name, str) and name in root_of}
    slabs = p.slabs_of(plan)
    live: dict[object, int] = {}
    whole = without = 0
    for step in plan.steps:
        match step:
            case p.Allocate() if step.slab_offset is not None:
                slab = (str(step.spec.device), step.slab)
                live[slab] = _value(plan.slab_bytes[slabs[slab]][1], known) if slab in slabs else 0
            case p.Allocate():
                live[step.name] = _bytes(step.spec, known)
            case p.CallAten():
                for output, spec in zip(step.outputs, step.expected, strict=False):
                    if output is not None and spec is not None:
                        live[output] = _bytes(spec, known)
            case p.Free():
                for name in step.names:
                    live.pop(name, None)
            case p.FreeSlab():
                live.pop((step.device, step.slab), None)
            case _:
                continue
        total = sum(live.values())
        whole = max(whole, total)
        without = max(without, total - sum(live.get(name, 0) for name in apart))
    return Footprint(whole, without, sum(live.get(name, 0) for name in apart))


def _bytes(spec: p.TensorSpec, symbols: Mapping[str, int]) -> int:
    shape, stride = ([_value(n, symbols) for n in sizes] for sizes in (spec.shape, spec.stride))
    return storage_bytes(shape, stride, _value(spec.offset, symbols), spec.dtype.itemsize)


def _value(size: p.Size, symbols: Mapping[str, int]) -> int:
    try:
        return evaluate(size, symbols)
    except KeyError:
        return 0
