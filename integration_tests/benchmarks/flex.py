"""Attention with functions of its scores: eager, torch.compile and Dovetail, forward and training.

python integration_tests/benchmarks/flex.py [--lengths 512 2048] [--seconds 0.3] [--cases capped]
    [--mode max-autotune-no-cudagraphs] [--width 128] [--systems torch.compile dovetail]

Four batches, 16 heads of 64 (or of another width), bfloat16; by `flex_attention` a causal mask
alone, one of documents, a mask with a function of scores, and a window with a soft cap; and a soft
cap written out, as Gemma 2 has it. Milliseconds of a call, the peak of a training step in MiB, and
the errors of the result and of the gradients beside float64, as parts of their mean size; under
`max-autotune` what it measured, too. Needs a GPU.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable
from typing import Any

import torch
from dovetail_inductor.products.choose_products import Choice
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


def window(b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
    """Each query sees so many keys up to its own place."""
    return (i >= j) & (i - j < 256)


def capped(score: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
    """Scores go no farther than 50."""
    return 50.0 * torch.tanh(score / 50.0)


def written_cap(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Causal attention with a soft cap, as Gemma 2's modules write it."""
    scores = torch.matmul(q, k.transpose(2, 3)) * q.shape[-1] ** -0.5
    scores = torch.tanh(scores / 50.0) * 50.0
    n = q.shape[-2]
    hidden = torch.full((n, n), torch.finfo(q.dtype).min, dtype=q.dtype, device=q.device).triu(1)
    weights = torch.softmax(scores + hidden, dim=-1, dtype=torch.float32).to(q.dtype)
    return torch.matmul(weights, v)


def reference(attend: Callable[..., Any], inputs: list[Tensor]) -> list[Tensor]:
    """The result and the gradients in float64."""
    wide = [t.detach().double().requires_grad_() for t in inputs]
    out = attend(*wide)
    found = [out, *torch.autograd.grad(out.sum(), wide)]
    return [t.detach() for t in found]


def errors(attend: Callable[..., Any], inputs: list[Tensor], wanted: list[Tensor]) -> str:
    """How far a system is from the reference: in the result, and in the worst gradient."""
    out = attend(*inputs)
    got = [out, *torch.autograd.grad(out.float().sum(), inputs)]
    parts = [
        float((a.double() - b).abs().mean() / b.abs().mean())
        for a, b in zip(got, wanted, strict=True)
    ]
    return f"{parts[0]:.1e} | {max(parts[1:]):.1e}"


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


def fastest(choice: Choice) -> str:
    """What was measured first, and the best of the others."""
    timed = {n: s for n, s in zip(choice.names, choice.seconds, strict=True) if s is not None}
    best = sorted(timed, key=timed.__getitem__)[:6]
    return ", ".join(f"{name} {timed[name] * 1e6:.0f}" for name in (*choice.names[:1], *best))


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--lengths", type=int, nargs="+", default=[512, 2048])
    parser.add_argument("--seconds", type=float, default=0.3)
    parser.add_argument("--cases", nargs="+", default=[], help="those that begin so alone")
    parser.add_argument("--mode", default="default", help="Dovetail's")
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--systems", nargs="+", default=["eager", "torch.compile", "dovetail"])
    given = parser.parse_args()
    print(machine("cuda"))
    print("| case | system | forward ms | training ms | peak MiB | error | of gradients |")
    print("|---|---|---|---|---|---|---|")
    for n in given.lengths:
        cases = {
            "causal": (None, causal),
            "documents": (None, of_documents(n)),
            "alibi, causal": (alibi, causal),
            "capped, window": (capped, window),
            "written cap": (None, None),
        }
        torch.manual_seed(0)
        inputs = [
            torch.randn(
                4, 16, n, given.width, device="cuda", dtype=torch.bfloat16, requires_grad=True
            )
            for _ in range(3)
        ]
        for name, (score, mask) in cases.items():
            if given.cases and not any(name.startswith(case) for case in given.cases):
                continue
            made = mask and create_block_mask(mask, None, None, n, n, device="cuda")

            def attend(
                q: Tensor, k: Tensor, v: Tensor, score: Any = score, made: Any = made
            ) -> Any:
                return flex_attention(q, k, v, score, made) if made else written_cap(q, k, v)

            wanted = reference(attend, inputs)
            systems = {
                "eager": attend,
                "torch.compile": torch.compile(attend, dynamic=False),
                "dovetail": dovetail.compile(attend, mode=given.mode),
            }
            for system in given.systems:
                call = systems[system]
                cells = measured(call, inputs, given.seconds)
                far = errors(call, inputs, wanted)
                print(f"| {name}, {n} | {system} | {cells} | {far} |", flush=True)
            for choice in systems["dovetail"].capture_context.backend.tuner.choices:
                print(f"    {choice.what}: {fastest(choice)}")
            dovetail.reset()
            torch.compiler.reset()


if __name__ == "__main__":
    main()
