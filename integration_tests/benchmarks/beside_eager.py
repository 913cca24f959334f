"""Every model beside eager, in one process: steady state, peak memory, error; fails on a loss.

python integration_tests/benchmarks/beside_eager.py [MODEL ...] [--device cuda] [--dtypes autocast]

Eager and compiled steps alternate (A B B A ...); `vs eager` is the median of the pairwise ratios.
Exit status 1 when a case is slower than eager or needs more than 1.1 times its peak memory.
"""

from __future__ import annotations

import argparse
import copy
import gc
import json
import sys
import time
from dataclasses import asdict, dataclass

import torch
import transformers

import dovetail
from dovetail.bench import measure
from dovetail.bench.models import Case, architectures
from dovetail.bench.table import machine
from dovetail.bench.worker import Spec, build_case, step_of

PEAK_LIMIT = 1.1


@dataclass(frozen=True)
class Comparison:
    """One case. Seconds and bytes; `speedup` above 1 is faster than eager."""

    model: str
    dtype: str
    train: bool
    first_s: float
    eager_s: float
    ours_s: float
    speedup: float
    eager_peak: int
    ours_peak: int
    error: float
    kernels: int
    extern_calls: int

    @property
    def memory(self) -> float:
        """Our peak over eager's; cases of a few pages count as equal."""
        return self.ours_peak / max(self.eager_peak, 1 << 20)

    @property
    def holds(self) -> bool:
        """Not slower than eager, and not above the memory limit."""
        return self.speedup >= 1.0 and self.memory <= PEAK_LIMIT

    def row(self) -> str:
        """The Markdown row."""
        return (
            f"| {self.model} | {self.dtype} | {'train' if self.train else 'infer'} "
            f"| {self.first_s:.2f} s | {self.eager_s * 1e3:.2f} ms | {self.ours_s * 1e3:.2f} ms "
            f"| {self.speedup:.2f}x | {self.eager_peak / 2**20:.1f} MiB | {self.memory:.2f} "
            f"| {self.error:.1e} | {self.kernels} | {self.extern_calls} "
            f"| {'' if self.holds else 'LOSS'} |"
        )


HEADER = (
    "| model | dtype | phase | first call | eager | Dovetail | vs eager | eager peak "
    "| peak ratio | err eager | kernels | extern | |\n|" + "---|" * 13
)


def compare(spec: Spec) -> Comparison:
    """Build the case twice, compile one, and measure the pair."""
    case = build_case(spec)
    twin = Case(copy.deepcopy(case.model), case.inputs, case.loss)
    eager = step_of(twin, twin.model, spec)
    expected = [t.clone() for t in eager()]
    compiled = dovetail.compile(case.model, fullgraph=True, mode=spec.mode)
    ours = step_of(case, compiled, spec)
    start = time.perf_counter()
    got = ours()
    measure.synchronize(spec.device)
    first_s = time.perf_counter() - start
    error = measure.largest_error(got, expected)
    del got, expected
    eager_s, ours_s, speedup = measure.interleaved(eager, ours, spec.device, spec.steady_s)
    report = dovetail.report(compiled)
    return Comparison(
        model=spec.model,
        dtype=spec.dtype,
        train=spec.train,
        first_s=first_s,
        eager_s=eager_s,
        ours_s=ours_s,
        speedup=speedup,
        eager_peak=measure.peak_bytes(eager, spec.device),
        ours_peak=measure.peak_bytes(ours, spec.device),
        error=error,
        kernels=report.kernels,
        extern_calls=report.extern_calls,
    )


def main() -> int:
    """Run the cases asked for; prints a Markdown table row by row."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", nargs="*")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--dtypes", nargs="+", default=["float32"])
    parser.add_argument("--phases", nargs="+", default=["infer", "train"])
    parser.add_argument("--mode", default=None)
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--json", default=None)
    arguments = parser.parse_args()
    transformers.logging.set_verbosity_error()
    names = arguments.models or architectures()
    found: list[Comparison] = []
    print(machine(arguments.device))
    print(HEADER, flush=True)
    for name in names:
        for dtype in arguments.dtypes:
            for phase in arguments.phases:
                spec = Spec(
                    system="dovetail",
                    model=name,
                    train=phase == "train",
                    device=arguments.device,
                    mode=arguments.mode,
                    dtype=dtype,
                    small=arguments.small,
                    steady_s=arguments.seconds,
                    overhead=False,
                )
                found.append(compare(spec))
                print(found[-1].row(), flush=True)
                gc.collect()
    if arguments.json:
        command = "python integration_tests/benchmarks/beside_eager.py " + " ".join(sys.argv[1:])
        lines = [*HEADER.split("\n"), *(c.row() for c in found)]
        with open(arguments.json, "w") as out:
            data = {"machine": machine(arguments.device), "command": command, "lines": lines}
            json.dump(data | {"cases": [asdict(c) for c in found]}, out, indent=1)
    return 0 if all(c.holds for c in found) else 1


if __name__ == "__main__":
    sys.exit(main())
