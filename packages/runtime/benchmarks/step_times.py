"""What each step of a plan takes, measured by the native executor one step at a time.

Every kernel launch and every ATen call becomes a plan of its own over the tensors that it reads
and writes. The numbers are those of a call with warm memory: what a whole call adds (page faults
of fresh memory, caches that other steps evict) shows as the difference to the whole plan's time.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from dovetail_runtime.artifact import load
from dovetail_runtime.plan import (
    Allocate,
    CallAten,
    CopyInto,
    Free,
    FreeSlab,
    LaunchCpp,
    Plan,
    PlanInput,
    Ref,
    Step,
    TensorSpec,
    View,
)


@dataclass(frozen=True)
class StepTime:
    """One step, its seconds (the best of the runs), and the bytes of the tensors it touches."""

    step: Step
    seconds: float
    nbytes: int
    shapes: tuple[tuple[int, ...], ...]

    @property
    def name(self) -> str:
        """The kernel's symbol or the operator's name."""
        if isinstance(self.step, LaunchCpp):
            return self.step.kernel
        return self.step.op if isinstance(self.step, CallAten) else type(self.step).__name__


def step_times(plan: Plan, inputs: Sequence[torch.Tensor], repeats: int = 5) -> list[StepTime]:
    """Run `plan` step by step on `inputs`, each step `repeats` times.

    For plans on the CPU with sizes known when they were made. Steps that write to what they read
    are run as often as the others: the plan's results mean nothing after that.
    """
    if plan.target != "cpu" or plan.symbols:
        raise ValueError("step_times measures plans on the CPU without symbolic sizes")
    tensors = {i.name: t for i, t in zip(plan.inputs, inputs, strict=True)}
    tensors.update((c.name, c.value) for c in plan.constants)
    found: list[StepTime] = []
    for step in plan.steps:
        match step:
            case Allocate():
                tensors[step.name] = _new(step.spec)
            case View():
                tensors[step.name] = _view(tensors[step.base], step.spec)
            case Free():
                for name in step.names:
                    tensors.pop(name, None)
            case FreeSlab():
                pass  # (each tensor has memory of its own here)
            case _:
                found.append(_measure(plan, step, tensors, repeats))
    return found


def _numbers(sizes: Sequence[object]) -> list[int]:
    return [n for n in sizes if isinstance(n, int)]


def _new(spec: TensorSpec) -> torch.Tensor:
    (offset,) = _numbers([spec.offset])
    shape, stride = _numbers(spec.shape), _numbers(spec.stride)
    last = offset + sum((n - 1) * s for n, s in zip(shape, stride, strict=True))
    memory = torch.zeros(max(last + 1, 0), dtype=spec.dtype)
    return memory.as_strided(shape, stride, offset)


def _view(base: torch.Tensor, spec: TensorSpec) -> torch.Tensor:
    whole = torch.empty(0, dtype=spec.dtype).set_(base.untyped_storage())
    (offset,) = _numbers([spec.offset])
    return whole.as_strided(_numbers(spec.shape), _numbers(spec.stride), offset)


def _refs(argument: object) -> Iterator[str]:
    if isinstance(argument, Ref):
        yield argument.name
    elif isinstance(argument, tuple):
        for item in argument:
            yield from _refs(item)


def _measure(plan: Plan, step: Step, tensors: dict[str, torch.Tensor], repeats: int) -> StepTime:
    names: list[str] = []
    outputs: tuple[str, ...] = ()
    if isinstance(step, LaunchCpp):
        names = list(dict.fromkeys(step.tensors))
    elif isinstance(step, CallAten):
        names = list(dict.fromkeys(_refs((*step.args, *(v for _, v in step.kwargs)))))
        outputs = tuple(o for o in step.outputs if o is not None)
    elif isinstance(step, CopyInto):
        names = list(dict.fromkeys((step.target, step.source)))
    kernels = tuple(k for k in plan.kernels if getattr(step, "kernel", None) == k.symbol)
    one = replace(
        plan,
        name=f"{plan.name}_step",
        inputs=tuple(PlanInput(n, _spec(tensors[n])) for n in names),
        constants=(),
        kernels=kernels,
        steps=(step,),
        slab_bytes=(),
        outputs=outputs,
        mutated=(),
    )
    run = load(one).run
    arguments = [tensors[n] for n in names]
    best = float("inf")
    results: tuple[object, ...] = ()
    for _ in range(max(1, repeats)):
        results = ()
        start = time.perf_counter()
        results = run(*arguments)
        best = min(best, time.perf_counter() - start)
    for name, result in zip(outputs, results, strict=True):
        if isinstance(result, torch.Tensor):
            tensors[name] = result
    touched = {**{n: tensors[n] for n in names}, **_defined(outputs, tensors)}
    return StepTime(
        step,
        best,
        sum(t.numel() * t.itemsize for t in touched.values()),
        tuple(tuple(t.shape) for t in touched.values()),
    )


def _defined(names: Sequence[str], tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {n: tensors[n] for n in names if n in tensors}


def _spec(tensor: torch.Tensor) -> TensorSpec:
    return TensorSpec(
        tuple(tensor.shape),
        tuple(tensor.stride()),
        tensor.dtype,
        tensor.device,
        int(tensor.storage_offset()),
    )
