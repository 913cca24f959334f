"""Sweeps over model families: one process for a batch, a limit for a family, a table at the end.

A sweep is a script of its own that hands `Sweep` what to do with one family.
"""

from __future__ import annotations

import argparse
import collections
import json
import logging
import signal
import subprocess
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

import torch
from model_families import TooLong, timm_families, transformers_families


@dataclass(frozen=True)
class Row:
    """One line of the table."""

    suite: str
    family: str
    outcome: str  # "ok", "not equal", "break", "error", "not built"
    text: str = ""


def first_line(error: BaseException) -> str:
    """An exception's type and the beginning of its message."""
    return f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error) else ''}"[
        :300
    ]


def where_raised(error: BaseException) -> str:
    """The first line of an exception and the place that its cause came from."""
    frame = traceback.extract_tb((error.__cause__ or error).__traceback__)[-1]
    return f"{first_line(error)} [{frame.filename.split('/')[-1]}:{frame.lineno}]"


def families_of(suite: str) -> list[str]:
    """All families of "transformers" or "timm"."""
    return transformers_families() if suite == "transformers" else timm_families()


def _over(signum: int, frame: Any) -> None:
    raise TooLong


@dataclass(frozen=True)
class Sweep:
    """What a sweep does with one family: `one(suite, family, value)`, `value` being that of the
    script's own option `--option` (its default first among `values`; no `values`: any).
    `seconds`: processor time for a family, so that a busy machine changes nothing."""

    script: str
    description: str
    one: Callable[[str, str, str], Row]
    seconds: int
    option: str
    values: tuple[str, ...]

    def run_here(self, suite: str, families: list[str], seconds: int, value: str) -> None:
        """Sweep in this process; one JSON line a family on standard output. A family that was cut
        off ends the process: it may have left an import half done."""
        families_of(suite)
        signal.signal(signal.SIGPROF, _over)
        torch.set_num_threads(1)
        warnings.simplefilter("ignore")
        logging.disable(logging.WARNING)
        for family in families:
            signal.setitimer(signal.ITIMER_PROF, seconds)
            try:
                row = self.one(suite, family, value)
            except TooLong:
                row = Row(suite, family, "error", "time limit")
            finally:
                signal.setitimer(signal.ITIMER_PROF, 0)
            print("ROW " + json.dumps(asdict(row)), flush=True)
            if "time limit" in row.text:
                return

    def rows(
        self, suite: str, families: list[str], seconds: int, value: str, batch: int = 24
    ) -> Iterator[Row]:
        """Sweep in child processes of `batch` families, so that a crash costs one of them only."""
        pending = list(families)
        while pending:
            part, pending = pending[:batch], pending[batch:]
            limits = ["--here", "--seconds", str(seconds), f"--{self.option}", value]
            command = [sys.executable, self.script, *limits, suite, *part]
            with subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
            ) as child:
                assert child.stdout is not None
                done = 0
                for line in child.stdout:
                    if line.startswith("ROW "):
                        done += 1
                        yield Row(**json.loads(line[4:]))
            if child.returncode == 0:
                pending = part[done:] + pending
            else:
                yield Row(suite, part[done], "error", f"the process ended with {child.returncode}")
                pending = part[done + 1 :] + pending

    def main(self) -> None:
        """The command."""
        parser = argparse.ArgumentParser(description=self.description)
        parser.add_argument("suite", choices=["transformers", "timm"])
        parser.add_argument("families", nargs="*")
        parser.add_argument(f"--{self.option}", dest="value", default=self.values[0])
        parser.add_argument("--seconds", type=int, default=self.seconds, help="for a family")
        parser.add_argument("--part", default="0/1", help="I/N: every N-th family from the I-th")
        parser.add_argument("--here", action="store_true", help="in this process, as JSON lines")
        arguments = parser.parse_args()
        families = arguments.families or families_of(arguments.suite)
        first, step = map(int, arguments.part.split("/"))
        families = families[first::step]
        if arguments.here:
            self.run_here(arguments.suite, families, arguments.seconds, arguments.value)
            return
        rows = []
        for row in self.rows(arguments.suite, families, arguments.seconds, arguments.value):
            rows.append(row)
            print(f"{row.suite:13} {row.family:36} {row.outcome:10} {row.text}", flush=True)
        print_table(rows)


def print_table(rows: list[Row]) -> None:
    """The totals."""
    totals = collections.Counter((row.suite, row.outcome) for row in rows)
    print("\nTotals:")
    for (suite, outcome), count in sorted(totals.items()):
        print(f"  {suite:14} {outcome:10} {count}")
