"""CPython's own tests of the language and its built-in types, each test method captured.

`python integration_tests/sweep_cpython.py MODULE` (`test_dict`, `test_generators`,
...: modules of the interpreter's `test` package) runs each test method as it is and, where it
passes, with the method compiled for the backend `eager`: it has to pass again. `--only SUBSTRING`s
choose tests by their ids. Prints what does not, with the end of its traceback, and counts. Exits
with 1 if a test fails. What only an implementation shows (sizes of objects, numbers of references,
ids of temporaries) is among the tests; see CAPTURE_SWEEP.md for what was looked at.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import importlib
import io
import signal
import sys
import types
import unittest
import warnings
from collections.abc import Iterator

import dovetail

SECONDS = 25  # for a test


class TooLong(BaseException):
    """A test took too long."""


def _over(signum: int, frame: object) -> None:
    raise TooLong


def cases(suite: unittest.TestSuite) -> Iterator[unittest.TestCase]:
    """The tests of a suite; not those made of docstrings."""
    for test in suite:
        if isinstance(test, unittest.TestSuite):
            yield from cases(test)
        elif getattr(test, "_testMethodName", "runTest") != "runTest":
            yield test


def outcome(test: unittest.TestCase, seconds: int = 0) -> tuple[str, str]:
    """How a test ends (after so long at the latest, if not 0), and the end of its traceback."""
    result = unittest.TestResult()
    if seconds:
        signal.alarm(seconds)
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            test.run(result)
    except TooLong:
        return "too long", ""
    finally:
        if seconds:
            signal.alarm(0)
    for kind, entries in (("error", result.errors), ("failure", result.failures)):
        if entries:
            return kind, entries[0][1][-1500:]
    return ("skipped", "") if result.skipped else ("ok", "")


def captured(test: unittest.TestCase) -> unittest.TestCase:
    """The test once more, with its method compiled."""
    name = test._testMethodName
    again = type(test)(name)
    compiled = dovetail.compile(getattr(type(test), name), backend="eager")
    setattr(again, name, types.MethodType(compiled, again))
    return again


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("module")
    parser.add_argument("--only", nargs="*", default=[])
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    signal.signal(signal.SIGALRM, _over)
    module = importlib.import_module(f"test.{args.module}")
    counts: collections.Counter[str] = collections.Counter()
    for test in cases(unittest.defaultTestLoader.loadTestsFromModule(module)):
        if args.only and not any(part in test.id() for part in args.only):
            continue
        if outcome(test, SECONDS)[0] != "ok":
            counts["not as it is"] += 1
            continue
        how, why = outcome(captured(test), SECONDS)
        counts[how] += 1
        if how != "ok":
            print(f"{test.id()}: {how}\n{why}", flush=True)
    print(", ".join(f"{n} {how}" for how, n in sorted(counts.items())))
    return int(bool(counts["error"] or counts["failure"]))


if __name__ == "__main__":
    sys.exit(main())
