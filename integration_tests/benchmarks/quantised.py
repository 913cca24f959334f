"""Linear and gated layers of many rows whose weights, and mostly activations, have 8 or 4 bits.

    python integration_tests/benchmarks/quantised.py [--kinds fp8-rows ...] [--rows 64 512 4096]
        [--programs linear mlp] [--seconds S] [--small]
        [--systems dovetail dovetail:max-autotune torch.compile torch.compile:max-autotune]

The formulas are those of torchao and of transformers, written out. Activations are quantised
dynamically: by rows or by tensor to float8_e4m3fn for `_scaled_mm`, by rows to int8 for `_int_mm`;
of `weights` kinds they stay bfloat16. A linear layer stands behind an RMS norm, the gated one is
Llama 3's of 8B. A time is that of one call of many in a row, the device's work included; systems
alternate with eager. The error is beside the same weights in float32, in parts of their deviation.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import dovetail
from dovetail.bench import measure
from dovetail.bench.table import machine

BF, E4 = torch.bfloat16, torch.float8_e4m3fn
KINDS = ("fp8-rows", "fp8-tensor", "int8", "int8-weights", "int4-weights", "fp8-weights")
GROUP = 128


def to_float8(x: Tensor, by_rows: bool) -> tuple[Tensor, Tensor]:
    """Numbers and what to multiply them by."""
    largest = x.abs().amax(-1, keepdim=True) if by_rows else x.abs().amax()
    scale = 448 / largest.float().clamp(min=1e-12)
    return (x.float() * scale).clamp(-448, 448).to(E4), scale.reciprocal()


def to_int8(x: Tensor) -> tuple[Tensor, Tensor]:
    """Numbers of rows and what to multiply them by."""
    scale = x.float().abs().amax(-1, keepdim=True).clamp(min=1e-5) / 127
    return (x.float() / scale).round().clamp(-128, 127).to(torch.int8), scale


class Linear(nn.Module):
    """A matrix of weights as it is kept, with scales."""

    def __init__(self, kind: str, outputs: int, inputs: int) -> None:
        super().__init__()
        self.kind = kind
        whole = torch.randn(outputs, inputs, dtype=BF) / inputs**0.5
        if kind.startswith("fp8"):
            kept, scales = to_float8(whole, kind != "fp8-tensor")
        elif kind.startswith("int8"):
            kept, scales = to_int8(whole)
        else:
            groups = whole.view(outputs, -1, min(GROUP, inputs)).float()
            scales = groups.abs().amax(-1, keepdim=True) / 7
            nibbles = ((groups / scales).round().flatten(1) + 8).to(torch.uint8)
            kept, scales = nibbles[:, ::2] | nibbles[:, 1::2] << 4, scales.squeeze(-1)
        if kind.endswith("weights"):
            scales = scales.to(BF)
        self.register_buffer("weight", kept)
        self.register_buffer("scales", scales)

    def whole(self, dtype: torch.dtype) -> Tensor:
        """The weights that are meant."""
        if self.kind != "int4-weights":
            return self.weight.to(dtype) * self.scales.to(dtype)
        numbers = torch.stack((self.weight & 15, self.weight >> 4), -1)
        groups = numbers.view(*self.scales.shape, -1).to(dtype) - 8
        return (groups * self.scales[..., None].to(dtype)).flatten(1)

    def forward(self, x: Tensor) -> Tensor:
        """Of rows of inputs those of outputs."""
        if self.kind == "int4-weights":
            return F.linear(x, self.whole(x.dtype))
        if self.kind.endswith("weights"):
            return F.linear(x, self.weight.to(x.dtype)) * self.scales.t()
        if self.kind == "int8":
            q, scale = to_int8(x)
            return (torch._int_mm(q, self.weight.t()).float() * scale * self.scales.t()).to(x.dtype)
        by_rows = self.kind == "fp8-rows"
        q, scale = to_float8(x, by_rows)
        own = self.scales.t() if by_rows else self.scales
        return torch._scaled_mm(
            q, self.weight.t(), scale, own, out_dtype=x.dtype, use_fast_accum=True
        )


class Program(nn.Module):
    """A norm, and one linear layer or a gated one."""

    def __init__(self, kind: str, gated: bool, width: int, between: int) -> None:
        super().__init__()
        self.register_buffer("norm", torch.ones(width, dtype=BF))
        names = ("gate", "up", "down") if gated else ("up",)
        shapes = {"gate": (between, width), "up": (between, width), "down": (width, between)}
        self.layers = nn.ModuleDict({name: Linear(kind, *shapes[name]) for name in names})

    def forward(self, x: Tensor, exact: bool = False) -> Tensor:
        """(rows, width) to (rows, width or what is between); `exact` in the type of `x`."""
        wide = x.float()
        y = (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-5)).type_as(x)
        y = y * self.norm.type_as(x)

        def layer(name: str, y: Tensor) -> Tensor:
            own = self.layers[name]
            return F.linear(y, own.whole(y.dtype)) if exact else own(y)

        if "gate" not in self.layers:
            return layer("up", y)
        return x + layer("down", F.silu(layer("gate", y)) * layer("up", y))


def compiled(system: str, model: nn.Module) -> Callable[..., Tensor]:
    """The model by `dovetail` or `torch.compile`, with a mode after a colon."""
    name, _, mode = system.partition(":")
    compile_ = dovetail.compile if name == "dovetail" else torch.compile
    return compile_(model, dynamic=False, fullgraph=True, **({"mode": mode} if mode else {}))


def several(call: Callable[[], Any], count: int) -> Callable[[], None]:
    """So many calls in a row."""

    def run() -> None:
        for _ in range(count):
            call()

    return run


def lines(kind: str, program: str, rows: int, options: Any) -> Iterator[str]:
    """A line of the table for each system."""
    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    width, between = (256, 512) if options.small else (4096, 14336)
    with torch.device(device):
        model = Program(kind, program == "mlp", width, between)
        x = torch.randn(rows, width, dtype=BF)
    with torch.no_grad():
        wanted = model(x.float(), exact=True)
        once = measure.median_seconds(lambda: model(x), device, 0.05)
        count = max(1, min(50, int(2e-3 / once)))
        for system in options.systems:
            torch.compiler.reset()
            start = time.perf_counter()
            try:
                fn = compiled(system, model)
                error = float((fn(x).float() - wanted).abs().mean() / wanted.std())
            except Exception as failed:  # of the other system, say
                text = (str(failed).splitlines() or [""])[0]
                yield f"| {kind} | {program} | {rows} | {system} | {text[:60]} |"
                continue
            measure.synchronize(device)
            first = time.perf_counter() - start
            fn(x), fn(x)
            pair = several(lambda: model(x), count), several(lambda: fn(x), count)  # noqa: B023
            eager, own, ratio = measure.interleaved(*pair, device, options.seconds)
            yield (
                f"| {kind} | {program} | {rows} | {system} | {eager / count * 1e6:.0f} "
                f"| {own / count * 1e6:.0f} | {ratio:.2f}x | {error:.4f} | {first:.1f} s |"
            )


def main() -> int:
    """Entry point."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kinds", nargs="+", default=list(KINDS), choices=KINDS)
    parser.add_argument("--rows", type=int, nargs="+", default=[64, 512, 4096])
    parser.add_argument("--programs", nargs="+", default=["linear", "mlp"])
    parser.add_argument("--seconds", type=float, default=0.3)
    parser.add_argument("--small", action="store_true")
    names = ["dovetail", "dovetail:max-autotune", "torch.compile", "torch.compile:max-autotune"]
    parser.add_argument("--systems", nargs="+", default=names)
    options = parser.parse_args()
    print(machine("cuda" if torch.cuda.is_available() else "cpu"))
    print("| kind | program | rows | system | eager us | us | ratio | error | first call |")
    print("|" + " --- |" * 9)
    for program in options.programs:
        for rows in options.rows:
            for kind in options.kinds:
                for line in lines(kind, program, rows, options):
                    print(line, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
