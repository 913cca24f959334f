"""Micro kernels against eager.

    python packages/inductor/benchmarks/kernel_costs.py [threads] [name ...]

Eager and compiled runs alternate, and the best of each counts, so that a busy machine disturbs
both alike. With one thread, CPU time is measured, which other processes do not add to.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from dovetail_inductor.pipeline import compile_graph
from dovetail_prims import trace_aten
from dovetail_prims.decompositions import core_aten_table
from dovetail_runtime import load
from dovetail_runtime.plan import LaunchCpp

Case = tuple[Callable[..., Any], tuple[torch.Tensor, ...]]


def _chain(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    for _ in range(3):
        x = torch.relu(x * y + 0.5) - y
        x = torch.sigmoid(x)
    return x


def _norm_backward(
    dy: torch.Tensor, x: torch.Tensor, w: torch.Tensor, mean: torch.Tensor, rstd: torch.Tensor
) -> Any:
    return torch.ops.aten.native_layer_norm_backward(
        dy, x, [x.shape[-1]], mean, rstd, w, w, [True, True, True]
    )


def cases() -> dict[str, Case]:
    """Functions and inputs by name."""
    r = torch.randn
    return {
        "softmax": (lambda x: torch.softmax(x, -1), (r(4096, 1024),)),
        "softmax dim 1": (lambda x: torch.softmax(x, 1), (r(64, 64, 512),)),
        "add + layer norm": (
            lambda x, y, w, b: F.layer_norm(x + y, (768,), w, b),
            (r(4096, 768), r(4096, 768), r(768), r(768)),
        ),
        "layer norm + gelu": (
            lambda x, w, b: F.gelu(F.layer_norm(x, (768,), w, b)),
            (r(4096, 768), r(768), r(768)),
        ),
        "layer norm backward": (
            _norm_backward, (r(4096, 768), r(4096, 768), r(768), r(4096, 1), r(4096, 1)),
        ),
        "12-op chain": (_chain, (r(2048, 1024), r(2048, 1024))),
        "cross entropy": (
            lambda x, t: F.cross_entropy(x, t), (r(1024, 8192), torch.randint(0, 8192, (1024,))),
        ),
        "transpose + add": (lambda x, y: x + y.t(), (r(2048, 2048), r(2048, 2048))),
        "sum of all": (lambda x: x.sum(), (r(4096, 1024),)),
        "column sums": (lambda x: x.sum(0), (r(4096, 1024),)),
        "batch norm train": (
            lambda x, w, b: F.batch_norm(x, None, None, w, b, True),
            (r(32, 64, 28, 28), r(64), r(64)),
        ),
        "batch norm train channels last": (
            lambda x, w, b: F.batch_norm(x, None, None, w, b, True),
            (r(32, 64, 28, 28).to(memory_format=torch.channels_last), r(64), r(64)),
        ),
        "rope": (
            lambda x, c, s: x * c + torch.cat([-x[..., 32:], x[..., :32]], -1) * s,
            (r(8, 12, 256, 64), r(256, 64), r(256, 64)),
        ),
        "bf16 gelu": (lambda x: F.gelu(x), (r(2048, 2048).bfloat16(),)),
        "small add": (lambda x, y: x + y, (r(16), r(16))),
    }  # fmt: skip


def seconds(fn: Callable[[], Any]) -> float:
    """Seconds of one run among a few."""
    clock = time.process_time if torch.get_num_threads() == 1 else time.perf_counter
    start = clock()
    fn()
    once = clock() - start
    repeat = max(1, min(1000, int(2e-3 / max(once, 1e-7))))
    start = clock()
    for _ in range(repeat):
        fn()
    return (clock() - start) / repeat


def measure(case: Case) -> tuple[float, float, float, int]:
    """Seconds of eager, of compiled code and of compilation, and kernels launched."""
    fn, inputs = case
    start = time.perf_counter()
    plan = compile_graph(trace_aten(fn, *inputs, decompositions=core_aten_table()))
    compiled = load(plan).run
    took = time.perf_counter() - start
    eager_s = compiled_s = float("inf")
    for _ in range(15):
        eager_s = min(eager_s, seconds(lambda: fn(*inputs)))
        compiled_s = min(compiled_s, seconds(lambda: compiled(*inputs)))
    return eager_s, compiled_s, took, sum(isinstance(s, LaunchCpp) for s in plan.steps)


def main(arguments: list[str]) -> None:
    """Print one line a case."""
    threads = int(arguments[0]) if arguments else 2
    torch.set_num_threads(threads)
    print(f"{threads} threads")
    for name, case in cases().items():
        if len(arguments) > 1 and name not in arguments[1:]:
            continue
        with torch.no_grad():
            eager_s, compiled_s, took, kernels = measure(case)
        print(
            f"{name:32s} eager {eager_s * 1e6:9.1f} us  compiled {compiled_s * 1e6:9.1f} us  "
            f"{eager_s / compiled_s:5.2f}x  kernels {kernels}  compile {took:.2f} s",
            flush=True,
        )


if __name__ == "__main__":
    main(sys.argv[1:])
