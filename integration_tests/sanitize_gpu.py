"""The GPU tests under NVIDIA's compute-sanitizer, in several processes at once.

    python integration_tests/sanitize_gpu.py racecheck [--jobs N] [--seconds S] [PATH ...]

Tests that read clocks, a profiler or what was recorded (marker `observes`) are left out: the tool
changes that. Each process runs every Nth test; one that lost the device is followed by another,
from the next test on. racecheck loses it in the libraries' kernels for halves, instrumented or not:
there `float32_products.py` replaces these, and tests of them alone (marker `library_products`) are
left out. Only generated kernels are instrumented, known by their names; with `--library-kernels`
those of libraries are, too. Prints the tests that did not pass, what the tool reported, and how
many tests ran: exits with 1 if there is any of the first two, or a test did not run in the time.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from float32_products import float32_products

# Of the names that Dovetail gives its kernels (`codegen_triton/assemble.py`).
GENERATED = "_[0-9a-f]{12}"
# What this process takes of the tests, "K/N", and where it says how each ended.
SHARD, OUTCOMES = "DOVETAIL_SANITIZED_SHARD", "DOVETAIL_SANITIZED_OUTCOMES"
# Whether products of halves are computed in float32.
WIDENED = "DOVETAIL_SANITIZED_FLOAT32_PRODUCTS"
REPORTED = re.compile(r"^=+ (?=Invalid|Error:|Warning:|Program hit|Internal|Target|Barrier|Leaked)")
SUMMARY = re.compile(r"(ERROR|RACECHECK) SUMMARY: .*")


# A process's exit status when a test lost it the device; there is more to run.
LOST = 99


def pytest_configure(config: pytest.Config) -> None:
    """Replaces what the tool cannot run, until the process ends its tests."""
    if os.environ.get(WIDENED):
        replaced = ExitStack()
        replaced.enter_context(float32_products())
        config.add_cleanup(replaced.close)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Keeps what is left of this process's share, after the marker has deselected."""
    first, step = map(int, os.environ[SHARD].split("/"))
    share = items[first::step]
    begun = {line["began"] for line in _read(Path(os.environ[OUTCOMES])) if "began" in line}
    if not begun:
        _write({"of": len(share)})
    items[:] = [item for item in share if item.nodeid not in begun]


def pytest_runtest_logstart(nodeid: str) -> None:
    """Written at once: a process may not reach its end in the time given, or be killed."""
    _write({"began": nodeid})


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """How a test ended; the process ends, too, if nothing more can run in it."""
    if report.when == "call" or report.outcome != "passed":
        _write({"test": report.nodeid, "outcome": report.outcome, "seconds": report.duration})
    if report.outcome == "failed" and _device_is_lost():
        pytest.exit("the device is lost to this process", LOST)


def _device_is_lost() -> bool:
    """A fault in a kernel stays with the process."""
    try:
        torch.cuda.synchronize()
    except RuntimeError:
        return True
    return False


def _write(line: object) -> None:
    with open(os.environ[OUTCOMES], "a") as file:
        file.write(json.dumps(line) + "\n")


def _read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


@dataclass(frozen=True)
class Run:
    """The tests of `paths` under a tool, until a time of `time.monotonic`; logs in `folder`."""

    tool: str
    paths: Sequence[str]
    folder: Path
    every_kernel: bool
    until: float

    def share(self, first: int, step: int) -> None:
        """Every `step`th test, in as many processes one after the other as it takes."""
        of, begun, before = 1, 0, -1
        for attempt in itertools.count():
            if not before < begun < of:
                return
            process = self.start(f"{first}/{step}", f"{first}.{attempt}", f"{first}.jsonl")
            try:
                process.wait(max(1.0, self.until - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.terminate()
                return
            lines = _read(self.folder / f"{first}.jsonl")
            before, begun = begun, sum("began" in line for line in lines)
            of = sum(line.get("of", 0) for line in lines)

    def start(self, shard: str, log: str, outcomes: str) -> subprocess.Popen[bytes]:
        """A process that runs what is left of a share."""
        only = () if self.every_kernel else ("--kernel-name", f"regex={GENERATED}")
        sanitizer = (
            "compute-sanitizer", "--tool", self.tool, *only,
            "--target-processes", "application-only", "--log-file", str(self.folder / f"{log}.log"),
            # Processes that start side by side are slow to reach the device; each needs a port.
            "--launch-timeout", "0", "--max-connections", "128",
            # One of the host holds on to Python's frames, and with them to results of replays.
            "--show-backtrace", "device",
        )  # fmt: skip
        widened = self.tool == "racecheck"
        marked = "gpu and not observes" + (" and not library_products" if widened else "")
        tests = (
            sys.executable, "-m", "pytest", "-q", "-m", marked,
            "-p", "sanitize_gpu", "-p", "no:cacheprovider", "-p", "no:xdist", "-o", "addopts=",
            "--import-mode=importlib", *self.paths,
        )  # fmt: skip
        path = os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])
        environment = {
            **os.environ,
            SHARD: shard,
            OUTCOMES: str(self.folder / outcomes),
            "PYTHONPATH": path,
            **({WIDENED: "1", "DOVETAIL_DIRECT_PRODUCTS": "0"} if widened else {}),
        }
        with open(self.folder / f"{log}.txt", "wb") as output:
            return subprocess.Popen(
                [*sanitizer, *tests], env=environment, stdout=output, stderr=subprocess.STDOUT
            )


def report(folder: Path, jobs: int) -> bool:
    """Prints what the processes left in `folder`; whether all tests ran and all is clean. A share
    whose process did not come to count its tests did not run."""
    lines = [line for path in sorted(folder.glob("*.jsonl")) for line in _read(path)]
    silent = jobs - sum("of" in line for line in lines)
    expected = sum(line.get("of", 0) for line in lines)
    ended = {line["test"]: line for line in lines if "test" in line}
    begun = [line["began"] for line in lines if "began" in line]
    logs = {path: path.read_text(errors="replace") for path in sorted(folder.glob("*.log"))}
    findings = [
        f"{path.name}: {line}"
        for path, text in logs.items()
        for line in text.splitlines()
        if REPORTED.match(line)
    ]
    counts = Counter(line["outcome"] for line in ended.values())
    for test in begun:
        if test not in ended:
            print(f"did not end: {test}")
        elif ended[test]["outcome"] == "failed":
            print(f"failed: {test}")
    for finding, times in Counter(findings).most_common(60):
        print(f"{times} x {finding}")
    for path, text in logs.items():
        for summary in SUMMARY.finditer(text):
            print(f"{path.name}: {summary[0]}")
    if silent:
        print(f"{silent} of {jobs} processes collected no tests: see *.txt")
    slowest = sorted(ended.values(), key=lambda line: -line["seconds"])[:5]
    print("slowest:", *(f"{line['test']} {line['seconds']:.0f} s;" for line in slowest))
    outcomes = ", ".join(f"{number} {outcome}" for outcome, number in sorted(counts.items()))
    print(f"of {expected} tests: {outcomes}; {len(findings)} reports of the tool")
    ran = not silent and 0 < expected <= len(ended)
    return ran and not counts["failed"] and not findings


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
    if any(folder.iterdir()):
        parser.error(f"{folder} holds what another run left: its tests would count as this one's")
    until = time.monotonic() + arguments.seconds
    run = Run(arguments.tool, arguments.paths, folder, arguments.library_kernels, until)
    with ThreadPoolExecutor(arguments.jobs) as pool:
        for job in [pool.submit(run.share, n, arguments.jobs) for n in range(arguments.jobs)]:
            job.result()
    clean = report(folder, arguments.jobs)
    print(f"logs: {folder}")
    return 0 if clean else 1


if __name__ == "__main__":
    sys.exit(main())
