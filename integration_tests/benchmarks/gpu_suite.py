"""The GPU suite: eager, torch.compile and Dovetail, model after model and mode after mode.

    python integration_tests/benchmarks/gpu_suite.py [--modes default reduce-overhead max-autotune]
        [--model NAME_OR_MODULE:FUNCTION ...] [--what inference training]
        [--gpus N] [--jobs N] [--json-dir DIR] [--write RESULTS.md]

Each system has a process of its own, with eager interleaved in each. With `--gpus N`, N cases run
at once, each on a GPU of its own. With `--jobs N`, N processes a GPU prepare at once and then time
in turns: steady state is measured alone, first calls are not (they compare systems only, on a
machine with cores to spare). Errors against float64 are means over `--draws` draws of weights and
inputs.
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from queue import SimpleQueue

from dovetail.bench.driver import ALL_SYSTEMS, SYSTEMS, Failure, Row, measure_case
from dovetail.bench.table import machine, ratios, render, steady_ratio
from dovetail.bench.worker import Spec
from dovetail.options import MODES

MODELS: tuple[tuple[str, bool], ...] = (  # and whether it is trained
    ("bert-base-1", False),
    ("bert-base-32", False),
    ("bert-base-32", True),
    ("gpt2", False),
    ("gpt2", True),
    ("llama-1b-16", False),
    ("llama-1b-2048", False),
    ("resnet18-1", False),
    ("resnet50-64", False),
    ("resnet50-64", True),
    ("vit-b16-64", False),
)
# Whose kernels torch.compile's max-autotune takes minutes to choose: begun first, they do not end
# last. Training takes longer than inference to prepare.
LONGEST_TO_TUNE = ("resnet50-64",)


def geometric_means(rows: Sequence[Row | Failure], on_gpu: bool) -> str:
    """Steady state and first call beside torch.compile, over the cases where both ran; the case
    with the worst steady state; and the lowest ratio to eager."""
    both = _under_both(rows)
    if not both:
        return "no case ran under both"
    steady = {c: steady_ratio(o, t, on_gpu) for c, (o, t) in both.items()}
    worst = min(steady, key=lambda case: steady[case])
    against_eager = min(both, key=lambda case: both[case][0].figures.speedup)
    return (
        f"{len(both)} cases, geometric means beside torch.compile: steady state "
        f"{_mean(list(steady.values())):.2f}x, first call "
        f"{_mean([t.cold_s / o.cold_s for o, t in both.values()]):.1f}x faster; worst "
        f"{_title(*worst)} {steady[worst]:.2f}x; lowest beside eager {_title(*against_eager)} "
        f"{both[against_eager][0].figures.speedup:.2f}x"
    )


def _under_both(rows: Sequence[Row | Failure]) -> dict[tuple[str, bool], tuple[Row, Row]]:
    """Dovetail's row and torch.compile's, of each case where both ran."""
    found: dict[tuple[str, bool], dict[str, Row]] = {}
    for row in rows:
        if isinstance(row, Row):
            found.setdefault((row.model, row.train), {})[row.system] = row
    return {
        case: (systems["dovetail"], systems["torch.compile"])
        for case, systems in found.items()
        if {"dovetail", "torch.compile"} <= set(systems)
    }


def above(rows: Sequence[Row | Failure]) -> str:
    """The cases where an error against float64 or the peak is above torch.compile's, or the peak
    above eager's, with both figures."""
    lines = []
    for case, (ours, theirs) in _under_both(rows).items():
        o, t = ours.figures, theirs.figures
        pairs: tuple[tuple[str, float | None, float | None], ...] = (
            ("largest error", o.error_float64, t.error_float64),
            ("rms error", o.mean_float64, t.mean_float64),
            ("peak bytes", o.peak_bytes, t.peak_bytes),
            ("peak bytes beside eager's", o.peak_bytes, o.eager_peak_bytes),
        )
        lines += [
            f"{_title(*case)}: {what} {own:.6g} above {other:.6g}"
            for what, own, other in pairs
            if own is not None and other is not None and own > other
        ]
    return "\n".join(lines or ["no error and no peak is above torch.compile's"])


def _mean(values: Sequence[float]) -> float:
    return math.exp(sum(math.log(v) for v in values) / len(values))


def _title(model: str, train: bool) -> str:
    return f"{model} train" if train else model


def run_mode(mode: str, arguments: argparse.Namespace) -> list[Row | Failure]:
    """All cases under one mode, in the order of `MODELS`."""
    named = [(name, what == "training") for name in arguments.model for what in arguments.what]
    cases = named or [case for case in MODELS if not arguments.only or case[0] in arguments.only]
    # A slot is a GPU (None: the only one) and its number; a GPU has as many as it has jobs.
    slots: SimpleQueue[int | None] = SimpleQueue()
    for slot in range(arguments.gpus * arguments.jobs):
        slots.put(slot % arguments.gpus if arguments.gpus > 1 else None)
    with tempfile.TemporaryDirectory() as turns, ThreadPoolExecutor(slots.qsize()) as pool:

        def measured(case: tuple[str, bool]) -> list[Row | Failure]:
            gpu = slots.get()
            try:
                return on_gpu(case, gpu)
            finally:
                slots.put(gpu)

        def on_gpu(case: tuple[str, bool], gpu: int | None) -> list[Row | Failure]:
            spec = Spec(
                system="eager",
                model=case[0],
                train=case[1],
                device=arguments.device,
                mode=None if mode == "default" else mode,
                dtype=arguments.dtype,
                small=arguments.small,
                steady_s=arguments.seconds,
                overhead=False,
                turns=str(Path(turns) / f"gpu{gpu}") if arguments.jobs > 1 else None,
                draws=arguments.draws,
            )
            return measure_case(
                spec,
                arguments.systems,
                arguments.rounds,
                arguments.timeout,
                lambda line: print(line, file=sys.stderr, flush=True),
                gpu,
            )

        by_time = sorted(cases, key=lambda case: (not case[1], case[0] not in LONGEST_TO_TUNE))
        started = {case: pool.submit(measured, case) for case in by_time}
        return [row for case in cases for row in started[case].result()]


def main() -> int:
    """Run the suite; 1 if a system failed on a case."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--modes", nargs="+", choices=list(MODES), default=["default"])
    parser.add_argument("--model", action="append", default=[], help="instead of the suite's")
    both = ("inference", "training")
    parser.add_argument("--what", nargs="+", choices=both, default=both, help="of --model's")
    parser.add_argument("--only", nargs="+", default=[], help="some of the suite's models")
    parser.add_argument("--systems", nargs="+", choices=ALL_SYSTEMS, default=list(SYSTEMS))
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--small", action="store_true", help="test-sized models")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--draws", type=int, default=16, help="of weights and inputs, for errors")
    parser.add_argument("--seconds", type=float, default=1.5)
    parser.add_argument("--timeout", type=float, default=600.0)
    parser.add_argument("--gpus", type=int, default=1, help="cases at once, each on its own GPU")
    parser.add_argument("--jobs", type=int, default=1, help="processes a GPU, timing in turns")
    parser.add_argument("--json-dir", type=Path, default=None)
    parser.add_argument("--write", type=Path, default=None, help="a results page to write")
    arguments = parser.parse_args()
    folder = arguments.json_dir or Path(tempfile.mkdtemp(prefix="dovetail-suite-"))
    folder.mkdir(parents=True, exist_ok=True)
    command = " ".join(["python", "integration_tests/benchmarks/gpu_suite.py", *sys.argv[1:]])
    failed = False
    sections = []
    print(machine(arguments.device))
    on_gpu = arguments.device == "cuda"
    for mode in arguments.modes:
        rows = run_mode(mode, arguments)
        failed |= any(isinstance(row, Failure) for row in rows)
        print(f"\n## {mode}, {arguments.dtype}\n\n{render(rows)}\n{ratios(rows, on_gpu)}")
        print(geometric_means(rows, on_gpu), flush=True)
        print(above(rows), flush=True)
        data = {"machine": machine(arguments.device), "command": command}
        path = folder / f"{mode}.json"
        path.write_text(json.dumps({**data, "rows": [asdict(row) for row in rows]}, indent=1))
        sections.append(f"Suite, {mode} mode, {arguments.dtype}={path}")
    if arguments.write is not None:
        page = subprocess.run(
            [sys.executable, str(Path(__file__).with_name("results.py")), *sections],
            stdout=subprocess.PIPE, text=True, check=True,
        ).stdout  # fmt: skip
        arguments.write.write_text(page)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
