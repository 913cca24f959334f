"""Attention of one query over a static cache: kernels of ours beside the library's, and eager.

    python integration_tests/benchmarks/few_queries.py [--small]

A step is a chain of 16 attentions, each over keys and values of its own, with a product by a number
between two of them; times are of one attention with its product. `library` is Dovetail where it
leaves attention to PyTorch.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from dovetail_autograd_aot.patterns import called_attention
from torch import Tensor

import dovetail
from dovetail.bench.table import machine

COUNT = 16


@dataclass(frozen=True)
class Shape:
    """Rows, places of the cache, places seen, heads of queries and of keys, numbers of a head."""

    rows: int = 1
    places: int = 2048
    seen: int = 2048
    heads: int = 32
    key_heads: int = 8
    width: int = 64


SHAPES = (
    Shape(places=512, seen=512), Shape(), Shape(seen=100), Shape(width=128), Shape(key_heads=32),
    Shape(places=16384, seen=16384), Shape(places=16384, seen=300), Shape(rows=8),
    Shape(rows=8, key_heads=32), Shape(rows=64),
)  # fmt: skip


def chain(query: Tensor, mask: Tensor, kept: list[Tensor]) -> Tensor:
    """All attentions, one after the other."""
    for keys, values in zip(kept[::2], kept[1::2], strict=True):
        found = F.scaled_dot_product_attention(query, keys, values, mask, enable_gqa=True)
        query = found * 1.5
    return query


def microseconds(run: Callable[[], Any]) -> float:
    """Of one of the chain's attentions; the least of five tries."""
    tries = []
    for _ in range(5):
        start = _finished()
        for _ in range(20):
            run()
        tries.append((_finished() - start) / 20 / COUNT)
    return min(tries) * 1e6


def _finished() -> float:
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter()


def measured(shape: Shape, device: str) -> str:
    """One line of the table."""
    torch.manual_seed(0)
    of = {"device": device, "dtype": torch.bfloat16}
    query = torch.randn(shape.rows, shape.heads, 1, shape.width, **of)  # type: ignore[arg-type]
    kept = [
        torch.randn(shape.rows, shape.key_heads, shape.places, shape.width, **of)  # type: ignore[arg-type]
        for _ in range(2 * COUNT)
    ]
    mask = (torch.arange(shape.places, device=device) < shape.seen)[None, None, None]
    most = called_attention.MOST_FEW
    times, results = [], []
    for system in ("eager", "library", "ours"):
        run: Callable[..., Tensor] = chain
        if system != "eager":
            called_attention.MOST_FEW = most if system == "ours" else 0
            # (A function of its own, as each is compiled once.)
            own = eval("lambda *given: chain(*given)", {"chain": chain})
            run = dovetail.compile(own, dynamic=False, mode="reduce-overhead")
        with torch.no_grad():
            for _ in range(5):
                result = run(query, mask, kept)
            results.append(result.float().clone())
            times.append(microseconds(lambda: run(query, mask, kept)))  # noqa: B023
    called_attention.MOST_FEW = most
    error = (results[2] - results[0]).abs().max() / results[0].abs().max()
    eager, library, ours = times
    text = f"{shape.rows} | {shape.seen} of {shape.places} | {shape.heads} on {shape.key_heads}"
    return (
        f"| {text} of {shape.width} | {eager:.1f} | {library:.1f} | {ours:.1f} "
        f"| {library / ours:.2f}x | {error:.4f} |"
    )


def main() -> int:
    """Entry point."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--small", action="store_true")
    options = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    print(machine(device))
    print("| rows | seen | heads | eager us | library us | ours us | ratio | difference |")
    print("| --- " * 8 + "|")
    for shape in (Shape(places=256, seen=200),) if options.small else SHAPES:
        print(measured(shape, device), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
