"""Programs of one to five operators beside eager, and beside torch.compile if that is asked for.

    python integration_tests/benchmarks/small_programs.py [--device cuda] [--dtypes float32 ...]
        [--cases layers operators shapes] [--only WORD ...] [--systems dovetail torch.compile]
        [--jobs N] [--seconds S] [--json FILE]

N processes prepare at once and time in turns. A time is that of one call, the device's work
included, of many in a row; eager and the system alternate, and the ratio is the median of the
pairs'. The table has the slowest beside eager first; the exit status is 1 if one is below 0.98x.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import math
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).parent))
import small_operator_cases
import small_program_cases
import small_shape_cases
from small_program_cases import Program

import dovetail
from dovetail.bench import measure
from dovetail.bench.table import machine

LIMIT = 0.98
CASES: dict[str, Any] = {
    "layers": small_program_cases,
    "operators": small_operator_cases,
    "shapes": small_shape_cases,
}


@dataclass(frozen=True)
class Line:
    """One program by one system, without gradients; seconds of a call, error beside eager."""

    name: str
    dtype: str
    system: str
    eager_s: float
    seconds: float
    ratio: float
    error: float
    first_s: float


def _compiled(system: str, function: Any) -> Any:
    if system == "dovetail":
        return dovetail.compile(function, dynamic=False, isolate_recompiles=True)
    return torch.compile(function, dynamic=False)


@contextmanager
def _alone(turns: str | None) -> Iterator[None]:
    if turns is None:
        yield
        return
    with open(turns, "a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _several(call: Callable[[], Any], count: int) -> Callable[[], None]:
    def run() -> None:
        for _ in range(count):
            call()

    return run


def measured(program: Program, dtype: torch.dtype, system: str, options: Any) -> Line:
    """One program by one system."""
    torch.manual_seed(0)
    torch.compiler.reset()
    with torch.device(options.device):
        function, given = program.make()
    if isinstance(function, torch.nn.Module):
        function = function.to(dtype)
    inputs = [x.to(dtype) if x.is_floating_point() else x for x in given]
    with torch.no_grad():
        wanted = function(*inputs)
        start = time.perf_counter()
        compiled = _compiled(system, function)
        got = compiled(*inputs)
        measure.synchronize(options.device)
        first = time.perf_counter() - start
        leaves = [
            [t for t in torch.utils._pytree.tree_leaves(v) if t.is_floating_point()]
            for v in (got, wanted)
        ]
        error = measure.largest_error(*leaves)
        for _ in range(4):
            compiled(*inputs)
        once = measure.median_seconds(lambda: function(*inputs), options.device, 0.05)
        count = max(1, min(100, int(2e-3 / once)))
        pair = [_several(lambda f=f: f(*inputs), count) for f in (function, compiled)]  # type: ignore[misc]
        with _alone(options.turns):
            eager_s, own, ratio = measure.interleaved(*pair, options.device, options.seconds)
    name = str(dtype).removeprefix("torch.")
    return Line(program.name, name, system, eager_s / count, own / count, ratio, error, first)


def _chosen(options: Any) -> list[tuple[Program, str]]:
    words = options.only
    programs = [p for name in options.cases for p in CASES[name].programs()]
    wanted = [p for p in programs if not words or any(word in p.name for word in words)]
    return [(p, dtype) for p in wanted for dtype in options.dtypes]


def _work(options: Any, share: int) -> None:
    for program, dtype in _chosen(options)[share :: options.jobs]:
        for system in options.systems:
            try:
                line = measured(program, getattr(torch, dtype), system, options)
            except Exception as error:
                reason = (str(error).splitlines() or [""])[0]
                print(
                    f"{program.name} {dtype} {system}: {type(error).__name__}: {reason}",
                    file=sys.stderr,
                    flush=True,
                )
            else:
                print(json.dumps(asdict(line)), flush=True)


def _run(arguments: list[str], share: int, turns: str) -> list[Line]:
    command = [sys.executable, __file__, *arguments, "--share", str(share), "--turns", turns]
    found: list[Line] = []
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for text in process.stdout:
            found.append(Line(**json.loads(text)))
            print(
                f"{found[-1].ratio:.2f}x {found[-1].name} {found[-1].dtype} {found[-1].system}",
                file=sys.stderr,
                flush=True,
            )
    return found


def table(lines: list[Line]) -> str:
    """The slowest beside eager first, then each system's mean."""
    head = "| program | dtype | system | eager us | us | vs eager | error | first call |"
    rows = [
        f"| {x.name} | {x.dtype} | {x.system} | {x.eager_s * 1e6:.1f} | {x.seconds * 1e6:.1f} "
        f"| {x.ratio:.2f}x | {x.error:.1e} | {x.first_s:.2f} s |"
        for x in sorted(lines, key=lambda x: x.ratio)
    ]
    for system in sorted({x.system for x in lines}):
        own = [x.ratio for x in lines if x.system == system]
        mean = math.exp(statistics.fmean(map(math.log, own)))
        below = sum(ratio < LIMIT for ratio in own)
        rows.append(
            f"\n{system}: {len(own)} programs, {mean:.2f}x eager in the geometric mean, "
            f"worst {min(own):.2f}x, {below} below {LIMIT}x"
        )
    return "\n".join((head, "| --- " * 8 + "|", *rows))


def main() -> int:
    """Entry point."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--dtypes", nargs="+", default=["float32", "bfloat16"])
    parser.add_argument("--systems", nargs="+", default=["dovetail"])
    parser.add_argument("--cases", nargs="+", choices=CASES, default=list(CASES))
    parser.add_argument("--only", nargs="+", default=[], help="programs with such a word")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=0.2)
    parser.add_argument("--json", default=None)
    parser.add_argument("--share", type=int, default=None, help=argparse.SUPPRESS)
    parser.add_argument("--turns", default=None, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.share is not None:
        _work(options, options.share)
        return 0
    with tempfile.NamedTemporaryFile() as turns, ThreadPoolExecutor(options.jobs) as pool:
        shares = [pool.submit(_run, sys.argv[1:], i, turns.name) for i in range(options.jobs)]
        lines = [line for share in shares for line in share.result()]
    print(f"{machine(options.device)}\n{table(lines)}")
    if options.json:
        Path(options.json).write_text(json.dumps([asdict(line) for line in lines], indent=1))
    return 1 if any(x.ratio < LIMIT for x in lines if x.system == "dovetail") else 0


if __name__ == "__main__":
    sys.exit(main())
