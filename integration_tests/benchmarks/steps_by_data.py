"""What compiled steps of LBFGS and SparseAdam take, beside eager's and torch.compile's.

    python integration_tests/benchmarks/steps_by_data.py [--device cuda] [--rounds N] [--only ...]

Both decide by data at every turn. Of LBFGS the time is that of one evaluation of the closure
(forward, backward) with what the step does for it, as searches end early or late; its first call
is that of ten steps, by which a history is full. Times are milliseconds, the least of some rounds
with the systems in turns (of process time on a CPU, which others may use).
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

import dovetail
from dovetail.bench.table import machine

Make = Callable[[Callable[[Any], Any], str], Callable[[], int]]
"""Of a wrapper of steps and a device: a function that steps, and tells how often it did."""

SYSTEMS: dict[str, Callable[[Any], Any]] = {
    "eager": lambda step: step,
    "torch.compile": lambda step: torch.compile(step),
    "Dovetail": lambda step: dovetail.compile(step),
}
FIRST = 10  # calls before any is measured


def lbfgs(wrap: Callable[[Any], Any], device: str, width: int, **options: Any) -> Callable[[], int]:
    """Fits a network of three layers to noise."""
    torch.manual_seed(0)
    layers = [nn.Linear(8, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh()]
    net = nn.Sequential(*layers, nn.Linear(width, 1)).to(device)
    x, y = torch.randn(256, 8, device=device), torch.randn(256, 1, device=device)
    optimizer = torch.optim.LBFGS(
        net.parameters(), lr=0.1, tolerance_grad=0, tolerance_change=0, **options
    )

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(net(x), y)
        loss.backward()
        return loss

    step = wrap(optimizer.step)
    state = optimizer.state[next(net.parameters())]

    def run() -> int:
        before = state.get("func_evals", 0)
        step(closure)
        return int(state["func_evals"] - before)

    return run


def sparse_adam(
    wrap: Callable[[Any], Any], device: str, rows: int, width: int, count: int
) -> Callable[[], int]:
    """Steps by the gradient of `count` rows of a table, some of them more than once."""
    torch.manual_seed(0)
    table = nn.Parameter(torch.randn(rows, width, device=device))
    optimizer = torch.optim.SparseAdam([table], lr=0.01)
    places = torch.randint(0, rows, (1, count), device=device)
    places[0, ::7] = places[0, 0]
    values = torch.randn(count, width, device=device)
    gradient = torch.sparse_coo_tensor(places, values, table.shape, check_invariants=True)
    step = wrap(optimizer.step)

    def run() -> int:
        table.grad = gradient
        step()
        return 1

    return run


CASES: dict[str, Make] = {
    "LBFGS, 433 parameters, history 10": partial(lbfgs, width=16, history_size=10),
    "LBFGS, 433 parameters, history 100": partial(lbfgs, width=16, history_size=100),
    "LBFGS, 433 parameters, strong Wolfe": partial(lbfgs, width=16, line_search_fn="strong_wolfe"),
    "LBFGS, 17,793 parameters, history 100": partial(lbfgs, width=128, history_size=100),
    "SparseAdam, 64 rows of 1,000 x 32": partial(sparse_adam, rows=1000, width=32, count=64),
    "SparseAdam, 2,048 rows of 100,000 x 64": partial(
        sparse_adam, rows=100_000, width=64, count=2048
    ),
    "SparseAdam, 512 rows of 1,000,000 x 16": partial(
        sparse_adam, rows=1_000_000, width=16, count=512
    ),
}


def seconds(run: Callable[[], int], device: str, calls: int) -> float:
    """Of one step (or evaluation)."""
    clock = time.perf_counter if device == "cuda" else time.process_time
    if device == "cuda":
        torch.cuda.synchronize()
    start = clock()
    done = sum(run() for _ in range(calls))
    if device == "cuda":
        torch.cuda.synchronize()
    return (clock() - start) / max(done, 1)


def measured(make: Make, device: str, rounds: int) -> str:
    """The cells of a row; those of a system whose first calls raise stay empty."""
    runs, first = {}, {}
    for name, wrap in SYSTEMS.items():
        run = make(wrap, device)
        start = time.perf_counter()
        try:
            for _ in range(FIRST):
                run()
        except Exception as failure:
            print(f"({name}: {str(failure).splitlines()[0]})")
            continue
        runs[name], first[name] = run, time.perf_counter() - start
    best = dict.fromkeys(runs, float("inf"))
    for _ in range(rounds):
        for name, run in runs.items():
            best[name] = min(best[name], seconds(run, device, 2))
    ours = best["Dovetail"]
    cells = [f"{best[n] * 1e3:.3f}" if n in best else "fails" for n in SYSTEMS]
    cells += [f"{best[n] / ours:.2f}x" if n in best else "" for n in list(SYSTEMS)[:2]]
    return " | ".join([*cells, *(f"{first[n]:.1f} s" if n in first else "" for n in SYSTEMS)])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--only", nargs="+", default=list(CASES), choices=list(CASES))
    arguments = parser.parse_args()
    print(machine(arguments.device))
    print(
        "| step | eager ms | torch.compile ms | Dovetail ms | vs eager | vs torch.compile | "
        "first ten, eager | torch.compile | Dovetail |\n|---|---|---|---|---|---|---|---|---|"
    )
    for name in arguments.only:
        print(f"| {name} | {measured(CASES[name], arguments.device, arguments.rounds)} |")


if __name__ == "__main__":
    main()
