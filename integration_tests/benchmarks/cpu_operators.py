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
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from cpu_operator_cases import FAMILIES as OF_ELEMENTS
from cpu_operator_cases import Case
from cpu_place_cases import FAMILIES as OF_PLACES

import dovetail
from dovetail.bench.table import machine

FAMILIES = OF_ELEMENTS | OF_PLACES
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
    theirs_us: float = 0.0  # torch.compile's, if it was asked for

    def row(self) -> str:
        """The Markdown row."""
        theirs = f" {self.theirs_us:.1f} |" if self.theirs_us else ""
        return (
            f"| {self.family} | {self.name} | {self.n} | {self.eager_us:.1f} "
            f"| {self.ours_us:.1f} |{theirs} {self.ratio:.2f}x | {self.kernels} "
            f"| {self.externs} | {self.first_s:.2f} s | {self.error}"
        )

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


def samples(calls: Sequence[Callable[[], Any]], budget_s: float) -> list[list[float]]:
    """Seconds of each call, in turn, forwards and backwards, several calls a sample if quick."""
    repeats = []
    for call in calls:
        call()
        start = time.perf_counter()
        call()
        repeats.append(max(1, min(50, int(SAMPLE_S / (time.perf_counter() - start)))))
    times: list[list[float]] = [[] for _ in calls]
    order = list(range(len(calls)))
    start = time.perf_counter()
    while len(times[0]) < 7 or (time.perf_counter() - start < budget_s and len(times[0]) < 300):
        order.reverse()
        for which in order:
            begun = time.perf_counter()
            for _ in range(repeats[which]):
                calls[which]()
            times[which].append((time.perf_counter() - begun) / repeats[which])
    return times


def measure(family: str, case: Case, n: int, budget_s: float, theirs: bool) -> Timing:
    """Compile a case and time it; with `theirs`, torch.compile's code as well."""
    dovetail.reset()
    gc.collect()
    start = time.perf_counter()
    try:
        compiled = dovetail.compile(case.fn, dynamic=False)
        ours = step_of(compiled, case)
        ours()
        took = time.perf_counter() - start
        report = dovetail.report(compiled)
        calls = [step_of(case.fn, case), ours]
        if theirs:
            torch.compiler.reset()
            calls.append(step_of(torch.compile(case.fn, dynamic=False), case))
        times = samples(calls, budget_s)
        eager_s, ours_s, *rest = (statistics.median(each) for each in times)
        ratio = statistics.median(a / b for a, b in zip(times[0], times[1], strict=True))
    except Exception as error:
        return Timing(family, case.name, n, 0, 0, 1, error=f"{type(error).__name__}: {error}"[:200])
    return Timing(
        family, case.name, n, eager_s * 1e6, ours_s * 1e6, ratio,
        report.kernels, report.extern_calls, took, theirs_us=sum(rest) * 1e6,
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
    parser.add_argument("--torch-compile", action="store_true")
    parser.add_argument("--json")
    arguments = parser.parse_args()
    found: list[Timing] = []
    theirs = " torch.compile us |" if arguments.torch_compile else ""
    print(f"{machine('cpu')}; {torch.get_num_threads()} threads")
    print(f"| family | operator | n | eager us | ours us |{theirs} vs eager | ", end="")
    print("kernels | extern | first call | |")
    out = open(arguments.json, "w") if arguments.json else None
    for family, case, n in chosen(arguments):
        timing = measure(family, case, n, arguments.seconds, arguments.torch_compile)
        if timing.loses:  # once more, for chance
            again = measure(family, case, n, 3 * arguments.seconds, arguments.torch_compile)
            timing = max(timing, again, key=lambda t: t.ratio)
        found.append(timing)
        if out:
            print(json.dumps(asdict(timing)), file=out, flush=True)
        if timing.loses or arguments.all or timing.error:
            print(timing.row(), flush=True)
    losses = [t for t in found if t.loses]
    print(f"{len(found)} cases, {len(losses)} slower than {SLOWER}x eager by {BY_US} us")
    return 1 if losses else 0


if __name__ == "__main__":
    sys.exit(main())
