"""Nets over images on a CPU, and a transposition: eager, Dovetail and torch.compile in turns.

python integration_tests/benchmarks/cpu_images.py [CASE ...] [--threads 2] [--rounds 20]

Prints a Markdown table of milliseconds: of all rounds the fastest, as other work on the machine
slows down any of them.
"""

from __future__ import annotations

import argparse
import copy
from collections.abc import Callable
from time import perf_counter
from typing import Any

import torch
from timm import create_model
from torch import Tensor, nn

import dovetail

Call = Callable[[], Any]
Compile = Callable[[Any], Any]
SYSTEMS: dict[str, Compile] = {
    "eager": lambda f: f,
    "dovetail": dovetail.compile,
    "torch.compile": torch.compile,
}


def inference(name: str, compiled: Compile) -> Call:
    """A net's call on 8 images, without gradients."""
    torch.manual_seed(0)
    net = compiled(create_model(name).eval())
    images = torch.randn(8, 3, 224, 224)

    def call() -> None:
        with torch.no_grad():
            net(images)

    return call


def training(name: str, compiled: Compile) -> Call:
    """A net's forward and backward on 4 images."""
    torch.manual_seed(0)
    net: nn.Module = create_model(name).train()
    run = compiled(copy.deepcopy(net))
    images, classes = torch.randn(4, 3, 224, 224), torch.randint(0, 1000, (4,))

    def call() -> None:
        nn.functional.cross_entropy(run(images), classes).backward()
        run.zero_grad()

    return call


def transposition(compiled: Compile) -> Call:
    """A matrix and another one's transposition."""

    def add(x: Tensor, y: Tensor) -> Tensor:
        return x.t() + y

    run = compiled(add)
    x, y = torch.randn(1024, 1024), torch.randn(1024, 1024)
    return lambda: run(x, y)


CASES: dict[str, Callable[[Compile], Call]] = {
    "mobilenetv3-small": lambda c: inference("mobilenetv3_small_100", c),
    "resnet18": lambda c: inference("resnet18", c),
    "efficientnet-b0": lambda c: inference("efficientnet_b0", c),
    "mobilenetv3-small train": lambda c: training("mobilenetv3_small_100", c),
    "resnet18 train": lambda c: training("resnet18", c),
    "transpose and add": transposition,
}


def fastest(
    calls: dict[str, Call], rounds: int, clock: Callable[[], float] = perf_counter
) -> dict[str, float]:
    """Of each call the fastest of three a round, in milliseconds; the calls take turns."""
    best = dict.fromkeys(calls, float("inf"))
    for turn in range(rounds + 1):
        for name, call in calls.items():
            call()
            for _ in range(3):
                start = clock()
                call()
                if turn:
                    best[name] = min(best[name], (clock() - start) * 1e3)
    return best


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("cases", nargs="*", metavar="CASE", help=", ".join(CASES))
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=20)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    print(f"| case | {' | '.join(SYSTEMS)} | beside eager | beside torch.compile |")
    print("|---|" + "---|" * (len(SYSTEMS) + 2))
    for case in arguments.cases or CASES:
        ms = fastest({n: CASES[case](c) for n, c in SYSTEMS.items()}, arguments.rounds)
        cells = [f"{t:.2f}" for t in ms.values()]
        cells += [f"{ms[other] / ms['dovetail']:.2f}x" for other in ("eager", "torch.compile")]
        print(f"| {case} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
