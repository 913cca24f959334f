"""Products of few rows: the library, every tile that `max-autotune` tries, and the one that the
default mode takes by a rule.

    python integration_tests/benchmarks/few_rows.py [--rows M ...] [--seconds S]

Times are microseconds of the device's work alone, as the compiler's tuner measures them (weights
come from memory). `G` is a group of products that share a launch, whose library time is of one call
after another. Needs a Hopper GPU.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from unittest import mock

import torch
import torch.nn.functional as F
from dovetail_inductor import DeviceTuner, compile_graph
from dovetail_inductor.options import Gpu
from dovetail_inductor.products import candidates, choose_products
from dovetail_inductor.products.few_rows import tiles_for
from dovetail_inductor.scheduler.kernels import ProductTiles
from dovetail_prims import trace_aten
from dovetail_prims.decompositions import core_aten_table
from dovetail_runtime.knobs import Knobs
from torch import Tensor

from dovetail.bench.table import machine

Sizes = tuple[int, int, int, int]
Case = tuple[str, int, int]
PLAIN = (
    (10, 512), (10, 2048), (64, 64), (256, 256), (384, 1536), (512, 2048), (768, 768), (768, 3072),
    (1000, 2048), (1024, 1024), (1024, 4096), (1536, 4096), (2048, 2048), (2048, 8192),
    (2304, 768), (3584, 18944), (4096, 4096), (4096, 11008), (5120, 5120), (13824, 5120),
    (128256, 2048), (151936, 896),
)  # fmt: skip
ROWS = (
    (768, 768), (768, 3072), (2048, 8192), (2304, 768), (3072, 768), (4096, 4096), (8192, 2048),
)  # fmt: skip
CASES: tuple[Case, ...] = (
    *(("plain", n, k) for n, k in PLAIN),
    *(("weights in rows", n, k) for n, k in ROWS),
    ("bias", 768, 768), ("bias", 1000, 512), ("gelu", 3072, 768), ("gelu", 4096, 1024),
    ("residual", 2048, 2048), ("residual", 4096, 11008),
    ("gated", 8192, 2048), ("gated", 11008, 4096), ("qkv", 2048, 2048),
)  # fmt: skip


def function(kind: str) -> Callable[..., Tensor | tuple[Tensor, ...]]:
    """What is computed of the rows and the other operands."""
    return {
        "plain": lambda x, w: x @ w.t(),
        "weights in rows": lambda x, w: x @ w,
        "bias": F.linear,
        "gelu": lambda x, w, b: F.gelu(F.linear(x, w, b)),
        "residual": lambda x, w, r: x @ w.t() + r,
        "gated": lambda x, w, v: F.silu(x @ w.t()) * (x @ v.t()),
        "qkv": lambda x, q, k, v: (x @ q.t(), x @ k.t(), x @ v.t()),
    }[kind]


def operands(kind: str, m: int, n: int, k: int) -> list[Tensor]:
    """The rows and the rest."""
    sizes: dict[str, Sequence[tuple[int, ...]]] = {
        "plain": [(n, k)], "weights in rows": [(k, n)], "bias": [(n, k), (n,)],
        "gelu": [(n, k), (n,)], "residual": [(n, k), (m, n)], "gated": [(n, k), (n, k)],
        "qkv": [(n, k), (512, k), (512, k)],
    }  # fmt: skip
    shapes = [(m, k), *sizes[kind]]
    return [torch.randn(s, device="cuda", dtype=torch.bfloat16) / 4 for s in shapes]


def every(sizes: Sizes, followed: bool, gpu: Gpu) -> list[ProductTiles]:
    """The rule's tiles, then the tuner's candidates."""
    mine = replace(tiles_for(sizes, gpu), descriptors=False)
    return list(dict.fromkeys([mine, *candidates.candidates(sizes, followed, gpu)]))


def measure(kind: str, m: int, n: int, k: int, knobs: Knobs) -> list[str]:
    """A line for each product of the case, and for the group."""
    tuner = DeviceTuner(knobs)
    inputs = operands(kind, m, n, k)
    gm = trace_aten(function(kind), *inputs, decompositions=core_aten_table())
    compile_graph(gm, tuner=tuner)
    lines = list(tuner.failures)
    for choice in tuner.choices:
        library, rule, *_ = choice.seconds
        times = [(s, name) for s, name in zip(choice.seconds, choice.names, strict=True) if s]
        if library is None or rule is None:
            continue
        best, name = min(t for t in times if t[1] != "library")
        lines.append(
            f"| {kind}: {choice.what} | {library * 1e6:.1f} | {rule * 1e6:.1f} "
            f"({choice.names[1]}) | {library / rule:.2f}x | {best * 1e6:.1f} ({name}) |"
        )
    return lines


def main() -> int:
    """Run and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 2, 4, 8, 16, 32])
    parser.add_argument("--seconds", type=float, default=float("inf"), help="stop after so many")
    arguments = parser.parse_args()
    end = time.monotonic() + arguments.seconds
    print(machine("cuda"))
    print("| product | library us | the rule's us | ratio | best us |\n|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as fresh, torch.no_grad():
        knobs = replace(Knobs.from_environment(), cache_dir=Path(fresh))
        with mock.patch.object(choose_products, "candidates", every):
            for m in arguments.rows:
                for kind, n, k in CASES:
                    if time.monotonic() > end:
                        return 1
                    print("\n".join(measure(kind, m, n, k, knobs)), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
