"""Runs workers in fresh processes, system after system and round after round, and merges figures.

Round 1 of a case starts with empty caches (its first call is the cold one); round 2 finds the
caches of round 1 (its first call is a second process's). Steady-state figures are the median over
the rounds. Every process times eager beside its system; eager's row is the median of those, and
eager has a process of its own only when no other system ran.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from dovetail.bench.worker import ALL_SYSTEMS, SYSTEMS, Figures, Spec, eager_figures

Progress = Callable[[str], None]


class WorkerFailed(RuntimeError):
    """A benchmark process ended without figures; the message holds the end of its output."""


@dataclass(frozen=True)
class Row:
    """The merged figures of one system on one case."""

    model: str
    train: bool
    system: str
    cold_s: float
    warm_s: float | None  # None when there was one round only
    figures: Figures


@dataclass(frozen=True)
class Failure:
    """A system that could not run a case, and why."""

    model: str
    train: bool
    system: str
    reason: str


def _environment(cache: Path, gpu: int | None) -> dict[str, str]:
    """The worker's environment: each compiler's disk caches below `cache`, and the one GPU seen."""
    return {
        **os.environ,
        **({} if gpu is None else {"CUDA_VISIBLE_DEVICES": str(gpu)}),
        "TORCHINDUCTOR_CACHE_DIR": str(cache / "torch"),
        "TRITON_CACHE_DIR": str(cache / "triton"),
        "DOVETAIL_CACHE_DIR": str(cache / "dovetail"),
    }


def _run_worker(spec: Spec, environment: Mapping[str, str], timeout_s: float) -> Figures:
    try:
        done = subprocess.run(
            [sys.executable, "-m", "dovetail.bench.worker", json.dumps(asdict(spec))],
            env=dict(environment),
            capture_output=True,
            text=True,
            timeout=timeout_s,
        )
    except subprocess.TimeoutExpired as late:
        raise WorkerFailed(f"no figures after {timeout_s:.0f} s") from late
    lines = done.stdout.strip().splitlines()
    if done.returncode != 0 or not lines:
        raise WorkerFailed((done.stderr or done.stdout)[-3000:])
    return Figures(**json.loads(lines[-1]))


def _merge(rounds: Sequence[Figures]) -> Figures:
    return replace(
        rounds[-1],
        steady_s=statistics.median(f.steady_s for f in rounds),
        eager_s=statistics.median(f.eager_s for f in rounds),
        speedup=statistics.median(f.speedup for f in rounds),
        peak_bytes=rounds[0].peak_bytes,
        tracing_s=rounds[0].tracing_s,
        error_eager=rounds[0].error_eager,
        error_float64=rounds[0].error_float64,
        mean_float64=rounds[0].mean_float64,
    )


def measure_case(
    spec: Spec,
    systems: Sequence[str],
    rounds: int,
    timeout_s: float,
    progress: Progress,
    gpu: int | None = None,
) -> list[Row | Failure]:
    """All systems on one case, interleaved: one process per system and round; on the GPU of that
    number where the machine has several."""
    compilers = [s for s in systems if s != "eager"]
    found: dict[str, list[Figures]] = {s: [] for s in systems}
    failures: dict[str, Failure] = {}
    what = f"{spec.model} {'training' if spec.train else 'inference'}"
    with tempfile.TemporaryDirectory(prefix="dovetail-bench-") as cache:
        environment = _environment(Path(cache), gpu)

        def attempt(system: str, number: int) -> None:
            if system in failures:
                return
            progress(f"{what}: {system}, process {number + 1} of {rounds} ...")
            start = time.perf_counter()
            overhead = spec.overhead and number == rounds - 1
            one = replace(spec, system=system, overhead=overhead, thorough=number == 0)
            try:
                figures = _run_worker(one, environment, timeout_s)
            except WorkerFailed as failure:
                failures[system] = Failure(spec.model, spec.train, system, str(failure))
                progress(f"{what}: {system} FAILED: {str(failure).strip()[-2000:]}")
                return
            found[system].append(figures)
            progress(
                f"{what}: {system}: first call {figures.first_s:.2f} s, "
                f"steady {figures.steady_s * 1e3:.2f} ms "
                f"({time.perf_counter() - start:.0f} s in all)"
            )

        for number in range(rounds):
            for system in compilers:
                attempt(system, number)
        beside = [f for s in compilers for f in found[s]]
        if "eager" in systems and not beside:
            attempt("eager", 0)
        elif "eager" in systems:
            found["eager"] = [
                eager_figures(
                    f.eager_s, f.eager_peak_bytes, f.eager_error_float64, f.eager_mean_float64
                )
                for f in beside
            ]
    results: list[Row | Failure] = []
    for system in systems:
        if system in failures:
            results.append(failures[system])
            continue
        per_round = found[system]
        results.append(
            Row(
                spec.model,
                spec.train,
                system,
                cold_s=per_round[0].first_s,
                warm_s=per_round[-1].first_s if len(per_round) > 1 else None,
                figures=_merge(per_round),
            )
        )
    return results


__all__ = ["ALL_SYSTEMS", "SYSTEMS", "Failure", "Row", "WorkerFailed", "measure_case"]
