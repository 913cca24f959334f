"""`flex_attention`: eager, torch.compile and Dovetail, forward and training.

python integration_tests/benchmarks/flex.py [--lengths 512 2048] [--seconds 0.3]

Four batches, 16 heads of 64, bfloat16; a causal mask alone, one of documents, and a mask with a
function of scores. Milliseconds of a call, and the peak of a training step in MiB; needs a GPU.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

import dovetail
from dovetail.bench import measure
from dovetail.bench.table import machine

DOCUMENTS = 8


def causal(b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
    """Each query sees what came before it."""
    return i >= j


def alibi(score: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
    """Scores fall with the distance, by the head."""
    return score + (j - i) * 2.0 ** (-(h + 1) / 2)


def of_documents(n: int) -> Callable[..., Tensor]:
    """Each query sees what came before it in its own document."""
    documents = torch.arange(n, device="cuda") * DOCUMENTS // n

    def mask(b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return (documents[i] == documents[j]) & (i >= j)

    return mask


def measured(attend: Callable[..., Any], inputs: list[Tensor], seconds: float) -> str:
    """The cells of one system."""

    def infer() -> Any:
        with torch.no_grad():
            return attend(*inputs)

    def train() -> None:
        torch.autograd.grad(attend(*inputs).float().sum(), inputs)

    times = [statistics.median(_times(call, seconds)) * 1e3 for call in (infer, train)]
    peak = measure.peak_bytes(train, "cuda") / 2**20
    return f"{times[0]:.3f} | {times[1]:.3f} | {peak:.0f}"


def _times(call: Callable[[], Any], seconds: float) -> list[float]:
    for _ in range(5):
        call()
    return [measure.seconds(call, "cuda") for _ in range(max(5, int(seconds * 100)))]


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--lengths", type=int, nargs="+", default=[512, 2048])
    parser.add_argument("--seconds", type=float, default=0.3)
    given = parser.parse_args()
    print(machine("cuda"))
    print("| case | system | forward ms | training ms | peak MiB |\n|---|---|---|---|---|")
    for n in given.lengths:
        cases = {
            "causal": (None, causal),
            "documents": (None, of_documents(n)),
            "alibi, causal": (alibi, causal),
        }
        torch.manual_seed(0)
        inputs = [
            torch.randn(4, 16, n, 64, device="cuda", dtype=torch.bfloat16, requires_grad=True)
            for _ in range(3)
        ]
        for name, (score, mask) in cases.items():
            made = create_block_mask(mask, None, None, n, n, device="cuda")

            def attend(
                q: Tensor, k: Tensor, v: Tensor, score: Any = score, made: Any = made
            ) -> Any:
                return flex_attention(q, k, v, score, made)

            systems = {
                "eager": attend,
                "torch.compile": torch.compile(attend, dynamic=False),
                "dovetail": dovetail.compile(attend),
            }
            for system, call in systems.items():
                print(
                    f"| {name}, {n} | {system} | {measured(call, inputs, given.seconds)} |",
                    flush=True,
                )
            dovetail.reset()
            torch.compiler.reset()


if __name__ == "__main__":
    main()
