"""The GPU tests under NVIDIA's compute-sanitizer, in several processes at once.

    python integration_tests/sanitize_gpu.py racecheck [--jobs N] [--seconds S] [PATH ...]

Each process runs every Nth test. Only generated kernels are instrumented, known by their names;
with `--library-kernels` those of libraries are, too (racecheck fails in some of cuBLAS's). Prints
the tests that did not pass, what the tool reported, and how many tests ran: exits with 1 if there
is any of the first two, or a test did not run in the time.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest

# Of the names that Dovetail gives its kernels (`codegen_triton/assemble.py`).
GENERATED = "_[0-9a-f]{12}"
# What this process takes of the tests, "K/N", and where it says how each ended.
SHARD, OUTCOMES = "DOVETAIL_SANITIZED_SHARD", "DOVETAIL_SANITIZED_OUTCOMES"
REPORTED = re.compile(r"^=+ (?=Invalid|Error:|Warning:|Program hit|Internal|Target|Barrier|Leaked)")
SUMMARY = re.compile(r"(ERROR|RACECHECK) SUMMARY: .*")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Keeps this process's share, after the marker has deselected what is not for a GPU."""
    first, step = map(int, os.environ[SHARD].split("/"))
    if first == 0:
        _write({"of": len(items)})
    items[:] = items[first::step]


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Written at once: a process may not reach its end in the time given."""
    if report.when == "call" or report.outcome != "passed":
        _write({"test": report.nodeid, "outcome": report.outcome, "seconds": report.duration})


def _write(line: object) -> None:
    with open(os.environ[OUTCOMES], "a") as file:
        file.write(json.dumps(line) + "\n")


def start(
    tool: str, paths: Sequence[str], shard: str, folder: Path, every_kernel: bool
) -> subprocess.Popen[bytes]:
    """A process that runs its share of the tests under `tool`; its files are in `folder`."""
    number = shard.split("/")[0]
    only = () if every_kernel else ("--kernel-regex", f"kns={GENERATED}")
    sanitizer = (
        "compute-sanitizer", "--tool", tool, *only, "--target-processes", "application-only",
        "--log-file", str(folder / f"{number}.log"),
    )  # fmt: skip
    tests = (
        sys.executable, "-m", "pytest", "-q", "-m", "gpu", "-p", "sanitize_gpu",
        "-p", "no:cacheprovider", "-p", "no:xdist", "-o", "addopts=", "--import-mode=importlib",
        *paths,
    )  # fmt: skip
    outcomes = str(folder / f"{number}.jsonl")
    path = os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, SHARD: shard, OUTCOMES: outcomes, "PYTHONPATH": path}
    with open(folder / f"{number}.txt", "wb") as output:
        return subprocess.Popen(
            [*sanitizer, *tests], env=environment, stdout=output, stderr=subprocess.STDOUT
        )


def report(folder: Path) -> bool:
    """Prints what the processes left in `folder`; whether all tests ran and all is clean."""
    lines = [
        json.loads(line)
        for path in sorted(folder.glob("*.jsonl"))
        for line in path.read_text().splitlines()
    ]
    ended = [line for line in lines if "test" in line]
    expected = sum(line.get("of", 0) for line in lines)
    logs = {path: path.read_text(errors="replace") for path in sorted(folder.glob("*.log"))}
    findings = [
        f"{path.name}: {line}"
        for path, text in logs.items()
        for line in text.splitlines()
        if REPORTED.match(line)
    ]
    counts = Counter(line["outcome"] for line in ended)
    for line in ended:
        if line["outcome"] == "failed":
            print(f"failed: {line['test']}")
    for finding, times in Counter(findings).most_common(60):
        print(f"{times} x {finding}")
    for path, text in logs.items():
        for summary in SUMMARY.finditer(text):
            print(f"{path.name}: {summary[0]}")
    slowest = sorted(ended, key=lambda line: -line["seconds"])[:5]
    print("slowest:", *(f"{line['test']} {line['seconds']:.0f} s;" for line in slowest))
    outcomes = ", ".join(f"{number} {outcome}" for outcome, number in sorted(counts.items()))
    print(f"of {expected} tests: {outcomes}; {len(findings)} reports of the tool")
    return len(ended) >= expected and not counts["failed"] and not findings


def main() -> int:
    """Runs the tests; 1 unless all of them ran, passed and left no report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("tool", choices=("memcheck", "racecheck", "initcheck", "synccheck"))
    parser.add_argument("paths", nargs="*", default=["packages", "integration_tests"])
    parser.add_argument("--jobs", type=int, default=max(1, (os.cpu_count() or 2) - 2))
    parser.add_argument("--seconds", type=float, default=3600.0, help="then it is cut off")
    parser.add_argument("--library-kernels", action="store_true", help="instrument them, too")
    parser.add_argument("--folder", type=Path, default=None, help="where logs stay")
    arguments = parser.parse_intermixed_args()
    folder = arguments.folder or Path(tempfile.mkdtemp(prefix="dovetail-sanitized-"))
    folder.mkdir(parents=True, exist_ok=True)
    until = time.monotonic() + arguments.seconds
    running = [
        start(
            arguments.tool,
            arguments.paths,
            f"{number}/{arguments.jobs}",
            folder,
            arguments.library_kernels,
        )
        for number in range(arguments.jobs)
    ]
    for process in running:
        try:
            process.wait(max(1.0, until - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.terminate()
    clean = report(folder)
    print(f"logs: {folder}")
    return 0 if clean else 1


if __name__ == "__main__":
    sys.exit(main())
