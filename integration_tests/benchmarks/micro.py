"""Micro kernels beside eager and torch.compile, in one process, interleaved.

    python integration_tests/benchmarks/micro.py [--device cuda] [--dtype bfloat16] [--json FILE]

Times are medians of interleaved runs, in microseconds: on a GPU of the device alone, by events
around a CUDA graph of a batch of calls (the copy's as they are: it is faster outside of a graph).
`of copy` counts each input read once and each output written once, as a share of a device-to-device
copy measured in the same run.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

import dovetail
from dovetail.bench.table import machine

Fn = Callable[..., Tensor]


def softmax(x: Tensor) -> Tensor:
    return torch.softmax(x, -1)


def layer_norm_gelu(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return F.gelu(F.layer_norm(x, (x.shape[-1],), w, b))


def chain12(x: Tensor, y: Tensor) -> Tensor:
    z = x * y + 1.0
    z = torch.relu(z) - 0.5 * x
    z = torch.sigmoid(z) * y
    z = torch.tanh(z) + x
    return torch.clamp(z * 2.0 - y, -3.0, 3.0) * 0.125


def cross_entropy(x: Tensor, target: Tensor) -> Tensor:
    return F.cross_entropy(x, target)


def transpose_add(x: Tensor, y: Tensor) -> Tensor:
    return x.t() + y


def rms_norm_rotary(x: Tensor, w: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Each head's RMS norm, then its rotation by position, as decoders compute them."""
    wide = x.float()
    normed = (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)).to(x.dtype) * w
    half = x.shape[-1] // 2
    turned = torch.cat([-normed[..., half:], normed[..., :half]], -1)
    return normed * cos + turned * sin


def complex_rotary(x: Tensor, rotation: Tensor) -> Tensor:
    """A rotation of pairs as products of complex numbers."""
    pairs = torch.view_as_complex(x.float().unflatten(-1, (-1, 2)))
    return torch.view_as_real(pairs * rotation).flatten(-2).type_as(x)


def messages(x: Tensor, weights: Tensor, source: Tensor, target: Tensor) -> Tensor:
    """Rows gathered for the edges of a graph, weighted and added up."""
    return torch.zeros_like(x).index_add(0, target, x[source] * weights[..., None])


def squared_differences(x: Tensor, y: Tensor) -> Tensor:
    return ((x - y) ** 2).sum()


def running_sums(x: Tensor) -> Tensor:
    return x.cumsum(-1)


def loss_of_softmaxes(x: Tensor, y: Tensor) -> Tensor:
    return F.kl_div(torch.log_softmax(x, -1), torch.softmax(y, -1), reduction="batchmean")


def written_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Attention as models write it out."""
    scores = q @ k.transpose(-2, -1) * q.shape[-1] ** -0.5
    return scores.softmax(-1) @ v


def cases(device: str, dtype: torch.dtype) -> dict[str, tuple[Fn, tuple[Tensor, ...]]]:
    """Name -> function and inputs: large on a GPU, smaller on a CPU."""
    gpu = device == "cuda"
    rows, columns = (16384, 4096) if gpu else (2048, 1024)
    tokens, vocabulary = (4096, 50257) if gpu else (256, 50257)

    def new(*shape: int) -> Tensor:
        return torch.randn(*shape, device=device, dtype=dtype)

    heads, width = (32, 128) if gpu else (8, 128)
    angles = torch.randn(rows // 4 if gpu else rows, 1, width, device=device, dtype=dtype)
    halves = angles[..., : width // 2]
    target = torch.randint(0, vocabulary, (tokens,), device=device)
    nodes, edges = (20000, 200000) if gpu else (500, 5000)
    return {
        "softmax": (softmax, (new(rows, columns),)),
        "layer_norm_gelu": (layer_norm_gelu, (new(rows, columns), new(columns), new(columns))),
        "chain12": (chain12, (new(rows, columns), new(rows, columns))),
        "rms_norm_rotary": (
            rms_norm_rotary,
            (new(angles.shape[0], heads, width), new(width), angles.cos(), angles.sin()),
        ),
        "complex_rotary": (
            complex_rotary,
            (
                new(angles.shape[0], heads, width),
                torch.polar(torch.ones(halves.shape, device=device), halves.float()),
            ),
        ),
        "squared_differences": (squared_differences, (new(rows, columns), new(rows, columns))),
        "cross_entropy": (cross_entropy, (new(tokens, vocabulary), target)),
        "transpose_add": (transpose_add, (new(columns, rows), new(rows, columns))),
        "running_sums": (running_sums, (new(rows, columns),)),
        "loss_of_softmaxes": (loss_of_softmaxes, (new(rows, columns), new(rows, columns))),
        "written_attention": (
            written_attention,
            tuple(new(*((64, 12, 197, 64) if gpu else (2, 4, 64, 32))) for _ in range(3)),
        ),
        "messages": (
            messages,
            (
                new(nodes, 8, 32),
                new(edges, 8),
                *torch.randint(0, nodes, (2, edges), device=device),
            ),
        ),
    }


@dataclass(frozen=True)
class Line:
    """Microseconds a call of each system, and what it means."""

    name: str
    eager_us: float
    torch_compile_us: float
    dovetail_us: float
    copy_share: float  # of the copy's bandwidth, Dovetail
    error64: float  # against float64, Dovetail, relative to the largest value
    error64_torch_compile: float

    def as_text(self) -> str:
        """One row of the table."""
        return (
            f"| {self.name} | {self.eager_us:.1f} | {self.torch_compile_us:.1f} | "
            f"{self.dovetail_us:.1f} | {self.eager_us / self.dovetail_us:.2f}x | "
            f"{self.torch_compile_us / self.dovetail_us:.2f}x | {self.copy_share:.0%} | "
            f"{self.error64:.1e} | {self.error64_torch_compile:.1e} |"
        )


def time_us(call: Callable[[], object], device: str, batch: int) -> float:
    """Microseconds of one call, when `call` makes `batch` of them."""
    if device == "cuda":
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        call()
        end.record()
        torch.cuda.synchronize()
        return start.elapsed_time(end) * 1e3 / batch
    begin = time.perf_counter()
    call()
    return (time.perf_counter() - begin) * 1e6 / batch


def repeated(call: Callable[[], object], device: str, batch: int) -> Callable[[], object]:
    """A batch of calls: on a GPU a replay of the graph of their work."""

    def batch_of_calls() -> None:
        for _ in range(batch):
            call()

    for _ in range(3):
        call()
    if device != "cuda":
        return batch_of_calls
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        batch_of_calls()
    return graph.replay


def interleaved_us(
    calls: list[Callable[[], object]], copy: Callable[[], object], device: str, rounds: int
) -> list[float]:
    """Median microseconds of each call, and of the copy, over interleaved rounds."""
    batch = 20 if device == "cuda" else 3
    batches = [repeated(call, device, batch) for call in calls]
    batches.append(lambda: [copy() for _ in range(batch)])
    samples: list[list[float]] = [[] for _ in batches]
    for number in range(rounds):
        order = range(len(batches)) if number % 2 else reversed(range(len(batches)))
        for i in order:
            samples[i].append(time_us(batches[i], device, batch))
    return [statistics.median(s) for s in samples]


def error(value: Tensor, reference: Tensor) -> float:
    """Largest difference over the reference's largest magnitude."""
    return float((value.double() - reference).abs().max() / reference.abs().max())


def measure(name: str, fn: Fn, inputs: tuple[Tensor, ...], device: str, rounds: int) -> Line:
    """One micro kernel under the three systems."""
    theirs = torch.compile(fn)
    ours = dovetail.compile(fn, fullgraph=True)
    with torch.no_grad():
        result, other = ours(*inputs), theirs(*inputs)
        wide = fn(*(t.double() if t.is_floating_point() else t for t in inputs))
        moved = sum(t.numel() * t.element_size() for t in (*inputs, result))
        half = torch.empty(moved // 2, dtype=torch.int8, device=device)
        target = torch.empty_like(half)
        eager_us, theirs_us, ours_us, copy_us = interleaved_us(
            [lambda: fn(*inputs), lambda: theirs(*inputs), lambda: ours(*inputs)],
            lambda: target.copy_(half),
            device,
            rounds,
        )
    return Line(
        name, eager_us, theirs_us, ours_us, copy_us / ours_us,
        error(result, wide), error(other, wide),
    )  # fmt: skip


HEADER = (
    "| kernel | eager us | torch.compile us | Dovetail us | vs eager | vs torch.compile "
    "| of copy | err f64 | err f64 torch.compile |\n|---|---|---|---|---|---|---|---|---|"
)


def main() -> None:
    """Run and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--dtype", default=None, help="bfloat16 on a GPU, float32 on a CPU")
    parser.add_argument("--rounds", type=int, default=21)
    parser.add_argument("--only", nargs="+", default=[], help="some of the kernels")
    parser.add_argument("--json", default=None)
    arguments = parser.parse_args()
    torch.manual_seed(0)
    print(machine(arguments.device))
    print(HEADER)
    lines = []
    dtype = arguments.dtype or ("bfloat16" if arguments.device == "cuda" else "float32")
    for name, (fn, inputs) in cases(arguments.device, getattr(torch, dtype)).items():
        if arguments.only and name not in arguments.only:
            continue
        line = measure(name, fn, inputs, arguments.device, arguments.rounds)
        lines.append(line)
        print(line.as_text(), flush=True)
    if arguments.json:
        table = [*HEADER.splitlines(), *(line.as_text() for line in lines)]
        command = " ".join(["python", "integration_tests/benchmarks/micro.py", *sys.argv[1:]])
        with open(arguments.json, "w") as out:
            json.dump(
                {"machine": machine(arguments.device), "command": command, "lines": table}, out
            )


if __name__ == "__main__":
    main()
