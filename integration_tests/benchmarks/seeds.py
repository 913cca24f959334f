"""Errors against float64 over several seeds of weights and inputs, and the peak of one call.

    python integration_tests/benchmarks/seeds.py MODEL [--train] [--seeds 6] [--systems NAME ...]
        [--mode max-autotune-no-cudagraphs]

The largest of some million errors, and which of two programs rounds luckier, is chance for one
seed: what is printed are the means over the seeds, of the root mean square error and of the
largest, and of the ratio of the first system's root mean square error to each other's with the
standard error of that mean (both systems meet the same weights and inputs). The peak is of a call
that is not recorded as a CUDA graph, whose pool no call counts.
"""

from __future__ import annotations

import argparse
import statistics

from dovetail.bench import measure
from dovetail.bench.measure import errors_of, mean_errors, redraw, spreads_of
from dovetail.bench.worker import SYSTEMS, Spec, build_case, compile_by, reference, step_of
from dovetail.options import MODES


def measured(spec: Spec, seeds: int) -> tuple[str, list[float]]:
    """One row: the means of both errors, and the peak in MiB; and each seed's mean error."""
    case = build_case(spec)
    spreads = spreads_of(case)
    step = step_of(case, compile_by(spec, case.model, recorded=False), spec)
    errors = []
    for seed in range(seeds):
        if seed:
            redraw(case, spreads, seed)
        exact = reference(case, spec)
        if exact is None:
            raise SystemExit(f"{spec.model}: no reference in float64")
        errors.append(errors_of(step(), exact))
        del exact
    peak = measure.peak_bytes(step, spec.device) / 2**20
    mean = mean_errors(errors)
    row = (
        f"| {spec.model}{' train' if spec.train else ''} | {spec.system} | {mean.rms:.3e} | "
        f"{mean.largest:.3e} | {peak:.1f} |"
    )
    return row, [e.rms for e in errors]


def ratio(first: list[float], other: list[float]) -> str:
    """The mean over seeds of `first` / `other`, and that mean's standard error."""
    ratios = [a / b for a, b in zip(first, other, strict=True)]
    error = statistics.stdev(ratios) / len(ratios) ** 0.5 if len(ratios) > 1 else float("nan")
    return f"{statistics.mean(ratios):.3f} +- {error:.3f}"


def main() -> None:
    """Measure and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("--train", action="store_true")
    parser.add_argument("--small", action="store_true", help="a test-sized model")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--seeds", type=int, default=6)
    parser.add_argument("--systems", nargs="+", choices=SYSTEMS, default=list(SYSTEMS))
    parser.add_argument("--mode", choices=MODES, default=None)
    options = parser.parse_args()
    print("| model | system | rms error | largest error | peak MiB |\n|---|---|---|---|---|")
    errors: dict[str, list[float]] = {}
    for system in options.systems:
        spec = Spec(
            system, options.model, options.train, options.device, options.mode, options.dtype,
            options.small, 0.0, False,
        )  # fmt: skip
        row, errors[system] = measured(spec, options.seeds)
        print(row, flush=True)
    first, *others = options.systems
    for other in others:
        print(f"rms error of {first} / {other}: {ratio(errors[first], errors[other])}")


if __name__ == "__main__":
    main()
