"""How much memory the steps of a plan take, known before a call from the sizes of its inputs."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from dovetail_runtime import plan as p
from dovetail_runtime.lifetimes import roots
from dovetail_runtime.sizes import evaluate, storage_bytes


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
