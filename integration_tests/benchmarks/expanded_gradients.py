"""Training steps whose gradient comes expanded, from `sum()` outside of the compiled code.

    python integration_tests/benchmarks/expanded_gradients.py [--device cuda] [--rounds 20]

Milliseconds a step (forward, `sum()`, backward) of eager, torch.compile and Dovetail: the least of
rounds in which they take turns.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import dovetail
from dovetail.bench.table import machine


def cases(device: str) -> dict[str, tuple[Callable[[Tensor], Tensor], Tensor]]:
    """Name -> function, and its input."""
    rows, columns = (8192, 4096) if device == "cuda" else (2048, 1024)
    torch.manual_seed(0)
    x = torch.randn(rows, columns, device=device, requires_grad=True)
    image = torch.randn(16, 16, columns // 16, columns // 16, device=device, requires_grad=True)
    return {
        "relu": (torch.relu, x),
        "exp(x) + x": (lambda x: x.exp() + x, x),
        "softmax": (lambda x: x.softmax(-1), x),
        "layer norm": (nn.LayerNorm(columns, device=device), x),
        "linear": (nn.Linear(columns, columns, device=device), x),
        "linear, gelu": (nn.Sequential(nn.Linear(columns, columns, device=device), nn.GELU()), x),
        "convolution, relu": (
            nn.Sequential(nn.Conv2d(16, 16, 3, device=device), nn.ReLU()),
            image,
        ),
        "rows of length 1": (lambda x: F.normalize(x, dim=-1), x),
    }


def least_ms(steps: list[Callable[[], None]], device: str, rounds: int) -> list[float]:
    """Milliseconds of each."""
    best = [float("inf")] * len(steps)
    for _ in range(rounds):
        for i, step in enumerate(steps):
            begin = time.perf_counter()
            step()
            if device == "cuda":
                torch.cuda.synchronize()
            best[i] = min(best[i], (time.perf_counter() - begin) * 1e3)
    return best


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--only", nargs="+", default=[], help="some of the cases")
    arguments = parser.parse_args()
    device = arguments.device
    print(f"{machine(device)}; `python integration_tests/benchmarks/expanded_gradients.py`\n")
    print("| ms a step | eager | torch.compile | Dovetail | vs eager |\n|---|---|---|---|---|")
    for name, (fn, x) in cases(device).items():
        if arguments.only and name not in arguments.only:
            continue
        steps = []
        for run in (fn, torch.compile(fn, dynamic=False), dovetail.compile(fn, dynamic=False)):

            def step(run: Callable[[Tensor], Tensor] = run, x: Tensor = x) -> None:
                x.grad = None
                run(x).sum().backward()

            step()
            steps.append(step)
        eager, theirs, ours = least_ms(steps, device, arguments.rounds)
        print(f"| {name} | {eager:.2f} | {theirs:.2f} | {ours:.2f} | {eager / ours:.2f}x |")


if __name__ == "__main__":
    main()
