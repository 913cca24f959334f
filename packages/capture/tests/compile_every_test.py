"""Runs test suites of others with every test compiled; the oracle: it passes plainly.

`python compile_every_test.py FILE_OR_PACKAGE ... [--limit 20] [--seconds 280] [--shard 0/4] [-k X]`
runs each test as `optimize` would run it, with a backend that runs graphs as they are: all Python
that the test reaches goes through capture, and every captured frame is replaced, also one without
a graph. Tests that fail, crash the process, take longer than the limit, or meet an internal error
are run again plainly; those that then pass are printed: each is a fault of capture, or a
difference by design (frames on the stack, reference counts, the bytecode of a function).
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

BAD = ("failed", "crashed", "slow", "internal")


class TooSlow(BaseException):
    """The test's time is over. No Exception: neither capture nor the test is to catch it."""


class CompileEveryTest:
    """A pytest plugin: compiles what the suite would call, and writes down how each test ended."""

    def __init__(self, report: Path, limit: float, plain: bool) -> None:
        self.report, self.limit, self.plain = report, limit, plain
        self.contexts: list[Any] = []
        if not plain:
            import dovetail_capture.frames.context

            # Suites turn warnings into errors, or count them. The log has what they say.
            dovetail_capture.frames.context.warnings = _NoWarnings  # type: ignore[attr-defined]

    def write(self, test: str, outcome: str, seconds: float = 0.0, text: str = "") -> None:
        """One line of the report."""
        row = {"test": test, "outcome": outcome, "seconds": seconds, "text": text}
        with self.report.open("a") as file:
            file.write(json.dumps(row) + "\n")

    def _compiled(self, function: Any) -> Any:
        from dovetail_capture import api
        from dovetail_capture._frame_hook import Switched
        from dovetail_capture.frames.context import CaptureContext
        from dovetail_capture.frames.frame_versions import RegionSettings

        class ReplacesEveryFrame(CaptureContext):
            def keeps_code(self, frame: Any, compiled: Any) -> bool:
                return False

        context = ReplacesEveryFrame(
            api.run_graph,
            api._capture_frame,
            options=api._options(fullgraph=False, dynamic=None),
            region=RegionSettings(recompile_limit=2),  # what is compiled again is rarely new
        )
        self.contexts.append(context)
        switched = Switched(function, context.hook)
        api._look_like(switched, function)
        return switched

    @pytest.hookimpl(hookwrapper=True)
    def pytest_runtest_call(self, item: Any) -> Any:
        """Put the compiled test in the place of the plain one, and see how it ends."""
        self.write(item.nodeid, "started")
        if not self.plain and hasattr(item, "obj"):
            item.obj = self._compiled(item.obj)

        def over(signum: int, frame: Any) -> None:
            signal.setitimer(signal.ITIMER_REAL, 1.0)  # again, should it be swallowed
            raise TooSlow

        signal.signal(signal.SIGALRM, over)
        started = time.perf_counter()
        signal.setitimer(signal.ITIMER_REAL, self.limit)
        outcome = yield
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        seconds = time.perf_counter() - started
        self._tell(item.nodeid, outcome.excinfo, seconds)

    def _tell(self, test: str, raised: Any, seconds: float) -> None:
        events = [event for context in self.contexts for event in context.log.events]
        for context in self.contexts:
            context.reset()
        self.contexts.clear()
        internal = [e for e in events if "internal error" in e.text or e.kind == "error"]
        if raised is not None and issubclass(raised[0], TooSlow):
            busy = sum(event.capture_seconds for event in events)
            self.write(test, "slow", seconds, f"{len(events)} events, {busy:.1f} s of capture")
        elif internal:
            self.write(test, "internal", seconds, internal[0].as_text())
        elif raised is not None and not issubclass(raised[0], pytest.skip.Exception):
            lines = str(raised[1]).strip().splitlines() or [""]
            self.write(test, "failed", seconds, f"{raised[0].__name__}: {' | '.join(lines[:4])}")
        else:
            self.write(test, "passed", seconds)


class _NoWarnings:
    """Stands in for `warnings` in capture's context."""

    @staticmethod
    def warn(*args: Any, **kwargs: Any) -> None:
        """Say nothing."""


def rows(report: Path) -> list[dict[str, Any]]:
    """What the report has so far."""
    text = report.read_text() if report.exists() else ""
    return [json.loads(line) for line in text.splitlines()]


def ended(report: Path) -> dict[str, dict[str, Any]]:
    """How each test ended; one that only started crashed the process."""
    found: dict[str, dict[str, Any]] = {}
    for row in rows(report):
        found[row["test"]] = row
    for row in found.values():
        if row["outcome"] == "started":
            row["outcome"] = "crashed"
    return found


def run(targets: list[str], report: Path, options: argparse.Namespace, plain: bool) -> None:
    """Run the tests in a process of their own, and again what is left when it crashes."""
    until = time.monotonic() + options.seconds
    while time.monotonic() < until:
        known = len(ended(report))
        command = [sys.executable, __file__, "--inside", str(report), *targets]
        command += ["--limit", str(options.limit), "--shard", options.shard]
        command += ["--plain"] if plain else []
        command += ["-k", options.k] if options.k else []
        try:
            done = subprocess.run(
                command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                timeout=until - time.monotonic(),
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            print("time is over: some tests were not run")
            for test, row in ended(report).items():
                if row["outcome"] == "crashed":
                    row = {"test": test, "outcome": "not finished", "seconds": 0.0, "text": ""}
                    report.write_text(f"{report.read_text()}{json.dumps(row)}\n")
            return
        if done.returncode >= 0 and done.returncode != 139:
            if done.returncode > 1 and len(ended(report)) == known:
                print(done.stdout[-3000:])
            return
        print(f"crash {done.returncode}: {done.stdout[-1500:]}")
        if len(ended(report)) == known:
            return


def inside(options: argparse.Namespace) -> int:
    """The process that runs tests; those that the report names are left out."""
    report = Path(options.inside)
    known = ended(report)
    place, count = map(int, options.shard.split("/"))

    class Choose:
        def pytest_collection_modifyitems(self, items: list[Any]) -> None:
            kept = items if options.plain else items[place::count]
            items[:] = [item for item in kept if item.nodeid not in known]

    arguments = [*options.targets, "-q", "--tb=no", "-p", "no:cacheprovider", "--assert=plain"]
    arguments += ["--continue-on-collection-errors"]
    arguments += ["--rootdir=/", "-c", os.devnull]  # a test's name begins with its file's path
    arguments += ["-k", options.k] if options.k and not options.plain else []
    plugin = CompileEveryTest(report, options.limit, options.plain)
    return int(pytest.main(arguments, plugins=[plugin, Choose()]))


def found_targets(names: list[str]) -> list[str]:
    """Files and folders as they are; a dotted name is the package of that name."""
    targets = []
    for name in names:
        path = name
        if not os.path.exists(name):
            head, *rest = name.split(".")
            spec = importlib.util.find_spec(head)
            assert spec is not None and spec.submodule_search_locations, f"no package {name}"
            path = os.path.join(spec.submodule_search_locations[0], *rest)
            path = path if os.path.exists(path) else f"{path}.py"
        targets.append(path)
    return targets


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("targets", nargs="+", help="files, folders or dotted packages of tests")
    parser.add_argument("--limit", type=float, default=20.0, help="seconds a test")
    parser.add_argument("--seconds", type=float, default=280.0, help="seconds in all")
    parser.add_argument("--shard", default="0/1", help="N/M: each M-th test, from the N-th on")
    parser.add_argument("-k", default="", help="as pytest's")
    parser.add_argument("--report", default="", help="where the report goes; it is gone on with")
    parser.add_argument("--inside", help=argparse.SUPPRESS)
    parser.add_argument("--plain", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.inside:
        return inside(options)
    targets = found_targets(options.targets)
    report = Path(options.report or f"compile_every_test.{os.getpid()}.jsonl")
    run(targets, report, options, plain=False)
    compiled = ended(report)
    bad = [test for test, row in compiled.items() if row["outcome"] in BAD]
    plain: dict[str, dict[str, Any]] = {}
    if bad:
        again = report.with_suffix(".plain")
        again.unlink(missing_ok=True)
        run([f"/{test}" for test in bad], again, options, plain=True)
        plain = ended(again)
        if not options.report:
            again.unlink(missing_ok=True)
    counts: dict[str, int] = {}
    faults = plainly = 0
    for test, row in compiled.items():
        counts[row["outcome"]] = counts.get(row["outcome"], 0) + 1
        if row["outcome"] in BAD:
            beside = plain.get(test, {"outcome": "not run", "seconds": 0.0})
            if row["outcome"] == "internal" or beside["outcome"] == "passed":
                faults += 1
                seconds = f"{row['seconds']:.1f} s, plainly {beside['seconds']:.2f} s"
                print(f"{row['outcome']}: {test} ({seconds}) {row['text']}")
            else:
                plainly += 1
    if not options.report:
        report.unlink(missing_ok=True)
    told = ", ".join(f"{count} {outcome}" for outcome, count in sorted(counts.items()))
    print(f"{len(compiled)} tests compiled: {told}; {faults} differ, {plainly} fail plainly, too")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
