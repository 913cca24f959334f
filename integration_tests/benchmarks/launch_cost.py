"""CPU time of a call and of each kernel it launches, on a GPU: eager, torch.compile and Dovetail.

python integration_tests/benchmarks/launch_cost.py [--rounds 15]

Two chains of small steps that no system can fuse into one kernel (softmax over rows and columns
in turn; products of matrices) are compiled in two lengths. What a call of the longer one takes
more, by the kernels it launches more (counted by the profiler), is the cost of a launch; what is
left of the shorter one when its launches are subtracted is the cost of the call besides. The time
is the CPU's alone: ten calls in a row with an empty queue before them, the median over the rounds
in which the systems take turns. Where a chain is recorded as a CUDA graph (Dovetail does it
unasked when launches are what takes the time), one launch is all of them. `x + 1` is one kernel.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch.profiler import ProfilerActivity, profile

import dovetail
from dovetail.bench.table import machine

Chain = Callable[[torch.Tensor], torch.Tensor]
CUDA = torch.device("cuda")
SHORT, LONG = 10, 60
"""Steps of the two lengths."""
CALLS = 10
"""In a row: a stream's queue, of some thousand launches, holds theirs."""


def plus_one(x: torch.Tensor) -> torch.Tensor:
    """The smallest graph."""
    return x + 1


def softmaxes(x: torch.Tensor, steps: int) -> torch.Tensor:
    """A reduction over each dimension in turn."""
    for step in range(steps):
        x = torch.softmax(x, step % 2)
    return x


def products(x: torch.Tensor, steps: int) -> torch.Tensor:
    """Calls of the library."""
    out = x
    for _ in range(steps):
        out = torch.mm(out, x)
    return out


CHAINS: dict[str, Callable[[torch.Tensor, int], torch.Tensor]] = {
    "softmax over rows and columns": softmaxes,
    "products of matrices": products,
}
SYSTEMS: dict[str, Callable[[Chain], Chain]] = {
    "eager": lambda chain: chain,
    "torch.compile": lambda chain: torch.compile(chain, dynamic=False),
    "torch.compile, reduce-overhead": lambda chain: torch.compile(
        chain, dynamic=False, mode="reduce-overhead"
    ),
    "dovetail": lambda chain: dovetail.compile(chain, dynamic=False),
    "dovetail, every kernel launched": lambda chain: dovetail.compile(
        chain, dynamic=False, options={"launch_bound_cudagraphs": False}
    ),
}


@dataclass(frozen=True)
class Length:
    """One chain at one length under one system: seconds a call, and the kernels it launches."""

    seconds: float
    kernels: int


def of_length(chain: Callable[[torch.Tensor, int], torch.Tensor], steps: int) -> Chain:
    """The chain as a function of its input alone."""

    def run(x: torch.Tensor) -> torch.Tensor:
        return chain(x, steps)

    return run


def kernels_of(call: Chain, x: torch.Tensor) -> int:
    """What one call launches."""
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as seen:
        call(x)
        torch.cuda.synchronize()
    return sum(event.device_type.name == "CUDA" for event in seen.events())


def cpu_seconds(call: Chain, x: torch.Tensor) -> float:
    """Of one of ten calls in a row, which wait for nothing: the queue is empty before."""
    torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(CALLS):
        call(x)
    return (time.perf_counter() - start) / CALLS


def measured(calls: dict[str, Chain], x: torch.Tensor, rounds: int) -> dict[str, Length]:
    """Every system, the systems in turn."""
    for call in calls.values():
        for _ in range(20):
            call(x)
    times: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(rounds):
        for name, call in calls.items():
            times[name] += [cpu_seconds(call, x) for _ in range(5)][1:]
    kernels = {name: kernels_of(call, x) for name, call in calls.items()}
    return {name: Length(statistics.median(times[name]), kernels[name]) for name in calls}


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=15)
    rounds = parser.parse_args().rounds
    print(f"{machine('cuda')}; `python integration_tests/benchmarks/launch_cost.py`\n")
    print(
        "| steps | system | a call | kernels | a launch | the call besides |\n" + "|---" * 6 + "|"
    )
    x = torch.rand(64, 64, device=CUDA) / 32
    with torch.no_grad():
        for name, one in measured(
            {name: of(plus_one) for name, of in SYSTEMS.items()}, x, rounds
        ).items():
            print(f"| x + 1 | {name} | {one.seconds * 1e6:.1f} us | {one.kernels} | | |")
        for title, chain in CHAINS.items():
            short, long = (
                measured(
                    {name: of(of_length(chain, steps)) for name, of in SYSTEMS.items()}, x, rounds
                )
                for steps in (SHORT, LONG)
            )
            for name in SYSTEMS:
                few, many = short[name], long[name]
                launch = (many.seconds - few.seconds) / max(many.kernels - few.kernels, 1)
                besides = few.seconds - few.kernels * launch
                print(
                    f"| {title}, {SHORT} | {name} | {few.seconds * 1e6:.1f} us | {few.kernels} "
                    f"| {launch * 1e6:.2f} us | {besides * 1e6:.1f} us |"
                )


if __name__ == "__main__":
    main()
