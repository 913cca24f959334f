"""What a small training step costs: eager, torch.compile and Dovetail, forward and backward apart.

    python integration_tests/benchmarks/training_cost.py [--rounds 15] [--only NAME ...]

The tensors are so small that nearly all of the time is spent around the kernels, on the CPU. Times
are microseconds a step: the least of batches of 200 in which the systems take turns (others that
use the machine only add to a time). `forward` is a call that records what a backward needs, which
is dropped; a step is a call and its backward. The gradients come from `torch.autograd.grad`, or, of
the layers, from `backward()`, into `.grad` that is None.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

import dovetail
from dovetail.bench.table import machine

BATCH = 200
Step = Callable[[], object]
Systems = dict[str, Callable[[Callable[..., Any]], Callable[..., Any]]]


def two_operators(x: Tensor, w: Tensor) -> Tensor:
    """Two, which fuse into one kernel, forward and backward."""
    return (x * w).sin()


def one_call(x: Tensor, w: Tensor) -> Tensor:
    """What costs eager least: Dovetail lets it keep its own code."""
    return x * w


def one_softmax(x: Tensor, w: Tensor) -> Tensor:
    """One call of eager's in the forward, and one in the backward."""
    return torch.softmax(w, -1)


def two_outputs(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    """Of which the second is computed from the first."""
    first = x * w
    return first, first.sin()


def with_dropout(x: Tensor, w: Tensor) -> Tensor:
    """The state of random numbers is kept for a backward of the backward."""
    return torch.nn.functional.dropout(x * w, 0.1)


@dataclass(frozen=True)
class Case:
    """A forward, and the backward of what it gives."""

    forward: Step
    step: Step


def of_function(fn: Callable[..., Any]) -> Callable[[Callable[..., Any]], Case]:
    """A function of two tensors of 1,000 elements."""
    x, w, gradient = torch.randn(1000), torch.randn(1000), torch.ones(1000)
    inputs = x.requires_grad_(), w.requires_grad_()

    def case(system: Callable[..., Any]) -> Case:
        run = system(fn)

        def step() -> None:
            outputs = run(*inputs)
            tensors = outputs if isinstance(outputs, tuple) else (outputs,)
            torch.autograd.grad(tensors, inputs, (gradient,) * len(tensors), allow_unused=True)

        return Case(lambda: run(*inputs), step)

    return case


def of_layer(make: Callable[[], nn.Module], *shape: int) -> Callable[[Callable[..., Any]], Case]:
    """A layer of torch's, which is one call of a library."""
    layer, x = make(), torch.randn(shape)
    gradient = torch.ones_like(layer(x))

    def case(system: Callable[..., Any]) -> Case:
        run = system(layer)

        def step() -> None:
            torch.autograd.grad(run(x), list(layer.parameters()), gradient)

        return Case(lambda: run(x), step)

    return case


def of_layers(system: Callable[..., Any]) -> Case:
    """Four linear layers of 32, a batch of 16, and the mean square of what they give."""
    torch.manual_seed(0)
    layers = [nn.Linear(32, 32), nn.ReLU()] * 3 + [nn.Linear(32, 32)]
    model = nn.Sequential(*layers)
    parameters = list(model.parameters())
    x = torch.randn(16, 32)

    def loss(x: Tensor) -> Tensor:
        return model(x).square().mean()

    run = system(loss)

    def step() -> None:
        for parameter in parameters:
            parameter.grad = None
        run(x).backward()

    return Case(lambda: run(x), step)


CASES: dict[str, Callable[[Callable[..., Any]], Case]] = {
    "one call": of_function(one_call),
    "one softmax": of_function(one_softmax),
    "one linear layer": of_layer(lambda: nn.Linear(32, 32), 16, 32),
    "one convolution": of_layer(lambda: nn.Conv2d(4, 4, 3), 1, 4, 8, 8),
    "two operators": of_function(two_operators),
    "two outputs": of_function(two_outputs),
    "dropout": of_function(with_dropout),
    "4 layers of 32": of_layers,
}


def least_us(steps: list[Step], rounds: int) -> list[float]:
    """Microseconds of each, the least over the rounds."""
    best = [float("inf")] * len(steps)
    for number in range(rounds + 1):
        for i, step in enumerate(steps):
            begin = time.perf_counter_ns()
            for _ in range(BATCH):
                step()
            if number:  # (the first is not warm)
                best[i] = min(best[i], (time.perf_counter_ns() - begin) / BATCH / 1e3)
    return best


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--only", nargs="+", default=[], help="some of the cases")
    arguments = parser.parse_args()
    systems: Systems = {
        "eager": lambda fn: fn,
        "torch.compile": torch.compile,
        "Dovetail": dovetail.compile,
    }
    print(f"{machine('cpu')}; `python integration_tests/benchmarks/training_cost.py`\n")
    print(f"| forward / step, us | {' | '.join(systems)} |\n|---|{'---|' * len(systems)}")
    for name, make in CASES.items():
        if arguments.only and name not in arguments.only:
            continue
        made = [make(system) for system in systems.values()]
        for case in made:
            case.step()
        steps = [run for case in made for run in (case.forward, case.step)]
        times = least_us(steps, arguments.rounds)
        pairs = zip(times[::2], times[1::2], strict=True)
        print(f"| {name} | {' | '.join(f'{a:.1f} / {b:.1f}' for a, b in pairs)} |", flush=True)


if __name__ == "__main__":
    main()
