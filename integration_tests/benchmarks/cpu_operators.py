"""Single operators on a CPU beside eager, interleaved: which lose, and by how much.

OMP_NUM_THREADS=1 python integration_tests/benchmarks/cpu_operators.py [FAMILY ...] [--sizes N ...]
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

import torch
from cpu_operator_cases import FAMILIES, Case

import dovetail

SAMPLE_S = 60e-6  # the least time of one sample: quick calls are timed several at a time
SLOWER, BY_US = 0.9, 5.0  # what counts as a loss


@dataclass(frozen=True)
class Timing:
    """Microseconds of one case."""

    family: str
    name: str
    n: int
    eager_us: float
    ours_us: float
    ratio: float
    kernels: int = 0
    externs: int = 0
    first_s: float = 0.0
    error: str = ""

    @property
    def loses(self) -> bool:
        """Whether eager is faster than chance allows."""
        return self.ratio < SLOWER and self.ours_us - self.eager_us > BY_US


def step_of(fn: Callable[..., Any], case: Case) -> Callable[[], Any]:
    """What is timed: a call, with its gradients if the case trains."""
    if not case.trains:
        return lambda: fn(*case.inputs)
    leaves = [t for t in case.inputs if isinstance(t, torch.Tensor) and t.requires_grad]
    out = fn(*case.inputs)
    along = torch.ones_like(out)

    def step() -> Any:
        return torch.autograd.grad(fn(*case.inputs), leaves, along)

    return step


def samples(
    eager: Callable[[], Any], ours: Callable[[], Any], budget_s: float
) -> tuple[float, float, float]:
    """Medians of alternating samples, and that of their ratios."""
    times: tuple[list[float], list[float]] = ([], [])
    repeats = []
    for call in (eager, ours):
        call()
        start = time.perf_counter()
        call()
        repeats.append(max(1, min(50, int(SAMPLE_S / (time.perf_counter() - start)))))
    start = time.perf_counter()
    while len(times[0]) < 7 or (time.perf_counter() - start < budget_s and len(times[0]) < 300):
        order = (0, 1) if len(times[0]) % 2 else (1, 0)
        for which in order:
            call, repeat = (eager, ours)[which], repeats[which]
            begun = time.perf_counter()
            for _ in range(repeat):
                call()
            times[which].append((time.perf_counter() - begun) / repeat)
    ratio = statistics.median(a / b for a, b in zip(*times, strict=True))
    return statistics.median(times[0]), statistics.median(times[1]), ratio


def measure(family: str, case: Case, n: int, budget_s: float) -> Timing:
    """Compile a case and time it."""
    dovetail.reset()
    gc.collect()
    start = time.perf_counter()
    try:
        compiled = dovetail.compile(case.fn, dynamic=False)
        ours = step_of(compiled, case)
        ours()
        took = time.perf_counter() - start
        report = dovetail.report(compiled)
        eager = step_of(case.fn, case)
        eager_s, ours_s, ratio = samples(eager, ours, budget_s)
    except Exception as error:
        return Timing(family, case.name, n, 0, 0, 1, error=f"{type(error).__name__}: {error}"[:200])
    return Timing(
        family, case.name, n, eager_s * 1e6, ours_s * 1e6, ratio,
        report.kernels, report.extern_calls, took,
    )  # fmt: skip


def chosen(arguments: argparse.Namespace) -> Iterator[tuple[str, Case, int]]:
    """The cases asked for."""
    for family in arguments.families or FAMILIES:
        for n in arguments.sizes:
            torch.manual_seed(0)
            for case in FAMILIES[family](n):
                if arguments.only is None or case.name in arguments.only:
                    yield family, case, n


def main() -> int:
    """Print what loses, then a summary."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("families", nargs="*")
    parser.add_argument("--sizes", type=int, nargs="+", default=[1000, 100_000, 1_000_000])
    parser.add_argument("--only", nargs="+")
    parser.add_argument("--seconds", type=float, default=0.05)
    parser.add_argument("--all", action="store_true", help="print every case")
    parser.add_argument("--json")
    arguments = parser.parse_args()
    found: list[Timing] = []
    out = open(arguments.json, "w") if arguments.json else None
    for family, case, n in chosen(arguments):
        timing = measure(family, case, n, arguments.seconds)
        if timing.loses:  # once more, for chance
            again = measure(family, case, n, 3 * arguments.seconds)
            timing = max(timing, again, key=lambda t: t.ratio)
        found.append(timing)
        if out:
            print(json.dumps(asdict(timing)), file=out, flush=True)
        if timing.loses or arguments.all or timing.error:
            print(
                f"{family:10s} {case.name:36s} {n:8d} eager {timing.eager_us:9.1f} us"
                f"  ours {timing.ours_us:9.1f} us  {timing.ratio:5.2f}x"
                f"  kernels {timing.kernels} extern {timing.externs} first {timing.first_s:.2f} s"
                f" {timing.error}",
                flush=True,
            )
    losses = [t for t in found if t.loses]
    print(f"{len(found)} cases, {len(losses)} slower than {SLOWER}x eager by {BY_US} us")
    return 1 if losses else 0


if __name__ == "__main__":
    sys.exit(main())
