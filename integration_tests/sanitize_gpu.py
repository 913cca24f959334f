"""The GPU tests under NVIDIA's compute-sanitizer (or under no tool), in several processes at once.

    python integration_tests/sanitize_gpu.py racecheck [--jobs N] [--seconds S] [PATH ...]
    python integration_tests/sanitize_gpu.py none --jobs 4    # also those that observe

Tests that read clocks, a profiler or what was recorded (marker `observes`) are left out: the tool
changes that. Each process takes the next test that none has taken; one that lost the device is
followed by another. racecheck loses it in the libraries' kernels for halves, instrumented or not:
there `float32_products.py` replaces these, and tests of them alone (marker `library_products`) are
left out. Only generated kernels are instrumented, known by their names; with `--library-kernels`
those of libraries are, too. Clocks mean nothing here: what is tuned runs each candidate few times.
The processes take turns with the GPUs that there are. Prints the tests that did not pass or run,
what the tool reported, and how many tests ran: exits with 1 if there is any of the first two.
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
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from dovetail_inductor.products import device_tuner as tuning
from float32_products import float32_products

# Of the names that Dovetail gives its kernels (`targets/cuda/assemble.py`).
GENERATED = "_[0-9a-f]{12}"
# Where the processes say which tests they take and how each ended, and this one's name there.
FOLDER, PROCESS = "DOVETAIL_SANITIZED_FOLDER", "DOVETAIL_SANITIZED_PROCESS"
# The tool that this process runs under.
TOOL = "DOVETAIL_SANITIZED_BY"
NO_TOOL = "none"
# Whether products of halves are computed in float32.
WIDENED = "DOVETAIL_SANITIZED_FLOAT32_PRODUCTS"
REPORTED = re.compile(r"^=+ (?=Invalid|Error:|Warning:|Program hit|Internal|Target|Barrier|Leaked)")
SUMMARY = re.compile(r"(ERROR|RACECHECK) SUMMARY: .*")


# A process's exit status when a test lost it the device; there is more to run.
LOST = 99


def pytest_configure(config: pytest.Config) -> None:
    """Replaces what the tool cannot run, until the process ends its tests."""
    replaced = ExitStack()
    config.add_cleanup(replaced.close)
    if os.environ.get(WIDENED):
        replaced.enter_context(float32_products())
    if os.environ.get(TOOL):
        replaced.enter_context(short_measurements())


@contextmanager
def short_measurements() -> Iterator[None]:
    """Each tuned candidate runs once in a recorded graph, and not for as long as a clock needs."""
    patch = pytest.MonkeyPatch()
    with patch.context() as short:
        short.setattr(tuning, "CALLS", (1, 1))
        short.setattr(tuning, "FIRST_ROUNDS", 1)
        short.setattr(tuning, "LAST_ROUNDS", 1)
        yield


def pytest_runtestloop(session: pytest.Session) -> bool | None:
    """Runs the tests that no other process has taken; pytest's own loop says what was not
    collected."""
    if session.testsfailed:
        return None
    folder = Path(os.environ[FOLDER])
    _write({"of": [item.nodeid for item in session.items]})
    for number, item in enumerate(session.items):
        try:
            (folder / f"{number}.taken").touch(exist_ok=False)
        except FileExistsError:
            continue
        # What a module's tests share ends with each: the next one here may be another module's.
        item.ihook.pytest_runtest_protocol(item=item, nextitem=None)
    return True


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
    with open(Path(os.environ[FOLDER]) / f"{os.environ[PROCESS]}.jsonl", "a") as file:
        file.write(json.dumps(line) + "\n")


def _read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


@dataclass(frozen=True)
class Run:
    """The tests of `paths` under a tool, until a time of `time.monotonic`; logs in `folder`, on the
    GPUs that CUDA knows by these names."""

    tool: str
    paths: Sequence[str]
    folder: Path
    every_kernel: bool
    until: float
    gpus: Sequence[str]

    def work(self, worker: int) -> None:
        """What the others leave of the tests, in as many processes one after the other as it
        takes."""
        for attempt in itertools.count():
            name = f"{worker}.{attempt}"
            process = self.start(name, self.gpus[worker % len(self.gpus)])
            try:
                process.wait(max(1.0, self.until - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.terminate()
                return
            lines = _read(self.folder / f"{name}.jsonl")
            took = any("began" in line for line in lines)
            if not took or process.returncode in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):
                return

    def start(self, name: str, gpu: str) -> subprocess.Popen[bytes]:
        """A process that runs what no other has taken."""
        only = () if self.every_kernel else ("--kernel-name", f"regex={GENERATED}")
        sanitizer = (
            "compute-sanitizer", "--tool", self.tool, *only,
            "--target-processes", "application-only",
            "--log-file", str(self.folder / f"{name}.log"),
            # Processes that start side by side are slow to reach the device; each needs a port.
            "--launch-timeout", "0", "--max-connections", "128",
            # One of the host holds on to Python's frames, and with them to results of replays.
            "--show-backtrace", "device",
        )  # fmt: skip
        widened = self.tool == "racecheck"
        alone = self.tool == NO_TOOL
        marked = "gpu" if alone else "gpu and not observes"
        tests = (
            sys.executable, "-m", "pytest", "-q",
            "-m", marked + (" and not library_products" if widened else ""),
            "-p", "sanitize_gpu", "-p", "no:cacheprovider", "-p", "no:xdist", "-o", "addopts=",
            "--import-mode=importlib", *self.paths,
        )  # fmt: skip
        path = os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])
        environment = {
            **os.environ,
            FOLDER: str(self.folder),
            PROCESS: name,
            "CUDA_VISIBLE_DEVICES": gpu,
            "PYTHONPATH": path,
            **({} if alone else {TOOL: self.tool}),
            **({WIDENED: "1", "DOVETAIL_DIRECT_PRODUCTS": "0"} if widened else {}),
        }
        command = tests if alone else (*sanitizer, *tests)
        with open(self.folder / f"{name}.txt", "wb") as output:
            return subprocess.Popen(
                command, env=environment, stdout=output, stderr=subprocess.STDOUT
            )


def report(folder: Path, jobs: int) -> bool:
    """Prints what the processes left in `folder`; whether all tests ran and all is clean."""
    lines = [line for path in sorted(folder.glob("*.jsonl")) for line in _read(path)]
    silent = jobs - len({path.name.split(".")[0] for path in folder.glob("*.jsonl")})
    expected = {test: None for line in lines for test in line.get("of", ())}
    ended = {line["test"]: line for line in lines if "test" in line}
    begun = {line["began"] for line in lines if "began" in line}
    logs = {path: path.read_text(errors="replace") for path in sorted(folder.glob("*.log"))}
    findings = [
        f"{path.name}: {line}"
        for path, text in logs.items()
        for line in text.splitlines()
        if REPORTED.match(line)
    ]
    counts = Counter(line["outcome"] for line in ended.values())
    for test in expected:
        if test not in begun:
            print(f"did not begin: {test}")
        elif test not in ended:
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
    print(f"of {len(expected)} tests: {outcomes}; {len(findings)} reports of the tool")
    ran = not silent and 0 < len(expected) <= len(ended)
    return ran and counts["passed"] > 0 and not counts["failed"] and not findings


def main() -> int:
    """Runs the tests; 1 unless all of them ran, passed and left no report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "tool", choices=("memcheck", "racecheck", "initcheck", "synccheck", NO_TOOL)
    )
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
    seen = os.environ.get("CUDA_VISIBLE_DEVICES")
    gpus = seen.split(",") if seen else [str(n) for n in range(torch.cuda.device_count())]
    if not gpus:
        parser.error("no GPU was found")
    run = Run(arguments.tool, arguments.paths, folder, arguments.library_kernels, until, gpus)
    with ThreadPoolExecutor(arguments.jobs) as pool:
        for job in [pool.submit(run.work, n) for n in range(arguments.jobs)]:
            job.result()
    clean = report(folder, arguments.jobs)
    print(f"logs: {folder}")
    return 0 if clean else 1


if __name__ == "__main__":
    sys.exit(main())
