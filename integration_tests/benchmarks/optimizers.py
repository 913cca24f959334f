"""What a compiled optimizer's step takes on a GPU, beside eager's and torch.compile's.

    python integration_tests/benchmarks/optimizers.py [--repeats N] [--sets S ...] [--only KIND ...]

Sets of parameters: 48 matrices of 1024 x 1024, and the parameters of a transformer of 12 layers
(width 768, vocabulary 50,257), both in float32. Times are milliseconds of one call, the median of
rounds of calls one after the other, with the systems in turns; `err` is the largest difference of a
parameter from eager's after the steps, relative to the largest update.
"""

from __future__ import annotations

import argparse
import copy
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

import dovetail
from dovetail.bench.table import machine

KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "AdamW": ("AdamW", {}),
    "AdamW, capturable": ("AdamW", {"capturable": True}),
    "Adam, amsgrad": ("Adam", {"amsgrad": True}),
    "SGD, momentum": ("SGD", {"momentum": 0.9}),
    "RMSprop": ("RMSprop", {}),
    "Adagrad": ("Adagrad", {}),
}
CALLS = 20  # in one round


def squares() -> list[Tensor]:
    return [torch.randn(1024, 1024) for _ in range(48)]


def transformer() -> list[Tensor]:
    layer = [(768,)] * 5 + [(2304,), (3072,), (768, 2304), (768, 768), (768, 3072), (3072, 768)]
    return [torch.randn(50257, 768), torch.randn(1024, 768), *map(torch.randn, layer * 12)]


SETS: dict[str, Callable[[], list[Tensor]]] = {"squares": squares, "transformer": transformer}


def optimizer_over(tensors: list[Tensor], kind: str, options: dict[str, Any]) -> Any:
    """An optimizer that has made its state, over copies with given gradients."""
    params = [nn.Parameter(t.clone()) for t in tensors]
    for number, p in enumerate(params):
        generator = torch.Generator("cuda").manual_seed(number)
        p.grad = torch.randn(p.shape, device="cuda", generator=generator)
    optimizer = getattr(torch.optim, kind)(params, lr=1e-3, foreach=True, **options)
    optimizer.step()
    return optimizer


def seconds(step: Callable[[], object]) -> float:
    torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(CALLS):
        step()
    torch.cuda.synchronize()
    return (time.perf_counter() - start) / CALLS


def error(ours: Any, theirs: Any, before: list[Tensor]) -> float:
    """Of the parameters, beside what the steps have changed."""
    worst = 0.0
    pairs = zip(ours.param_groups[0]["params"], theirs.param_groups[0]["params"], strict=True)
    for (mine, wanted), old in zip(pairs, before, strict=True):
        change = (wanted - old).abs().amax()
        worst = max(worst, float((mine - wanted).abs().amax() / change))
    return worst


def measured(name: str, tensors: list[Tensor], rounds: int) -> str:
    kind, options = KINDS[name]
    optimizers = [optimizer_over(tensors, kind, copy.deepcopy(options)) for _ in range(3)]
    eager, theirs, ours = optimizers
    steps = [eager.step, torch.compile(theirs.step), dovetail.compile(ours.step)]
    first = []
    for step in steps:
        start = time.perf_counter()
        step()
        torch.cuda.synchronize()
        first.append(time.perf_counter() - start)
    for step in steps:
        seconds(step)
    taken = [[seconds(step) * 1e3 for step in steps] for _ in range(rounds)]
    times = [statistics.median(column) for column in zip(*taken, strict=True)]
    report = dovetail.report(steps[2])
    return (
        f"{times[0]:.3f} | {times[1]:.3f} | {times[2]:.3f} | {times[0] / times[2]:.2f}x | "
        f"{times[1] / times[2]:.2f}x | {first[1]:.1f} s | {first[2]:.1f} s | "
        f"{error(ours, eager, tensors):.1e} | {error(theirs, eager, tensors):.1e} | "
        f"{report.extern_calls}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--sets", nargs="+", default=list(SETS), choices=list(SETS))
    parser.add_argument("--only", nargs="+", default=list(KINDS), choices=list(KINDS))
    arguments = parser.parse_args()
    print(machine("cuda"))
    print(
        "| parameters | optimizer | eager ms | torch.compile ms | Dovetail ms | vs eager | "
        "vs torch.compile | first call, torch.compile | Dovetail | err | err torch.compile | "
        "extern |\n|---|---|---|---|---|---|---|---|---|---|---|---|"
    )
    for name in arguments.sets:
        tensors = [t.cuda() for t in SETS[name]()]
        for kind in arguments.only:
            print(f"| {name} | {kind} | {measured(kind, tensors, arguments.repeats)} |", flush=True)
            torch.compiler.reset()


if __name__ == "__main__":
    main()
