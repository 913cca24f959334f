"""Products of matrices and what follows them, under `max-autotune`: the library's kernel with a
pointwise kernel beside kernels of ours for both, as measured and chosen by the compiler.

    python integration_tests/benchmarks/matmul.py [--only NAME ...] [--candidates]
        [--torch-compile] [--keep-cache] [--json FILE]
    python integration_tests/benchmarks/matmul.py --forms [--only NAME ...] [--tiles TILES ...]

Times are microseconds of the device's work alone, medians of interleaved replays of CUDA graphs
whose calls take their inputs in turn, so that weights come from memory. `tune s` is what compiling
and measuring the candidates took. Exits with 1 if a result is wrong, or a candidate does not run.

`--forms` compares the best of each form instead, as the compiler measured them: a program for each
tile; persistent kernels, whose programs compute several; and those whose operands the GPU's copy
engine reads (TMA). `--tiles` are further persistent kernels to measure for products of many rows:
six numbers between commas, m, n and k of a tile, warps, stages, programs on a multiprocessor.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from unittest import mock

import torch
import torch.nn.functional as F
from dovetail_inductor import DeviceTuner, compile_graph
from dovetail_inductor.options import Gpu
from dovetail_inductor.products import choose_products
from dovetail_inductor.products.candidates import candidates
from dovetail_inductor.products.choose_products import Choice
from dovetail_inductor.products.device_tuner import (
    calls_of,
    interleaved,
    recorded,
    scratch_inputs,
    side_stream,
)
from dovetail_inductor.scheduler.kernels import ProductTiles
from dovetail_prims import trace_aten
from dovetail_prims.decompositions import core_aten_table
from dovetail_runtime import load
from dovetail_runtime.knobs import Knobs
from torch import Tensor

from dovetail.bench.table import machine

Fn = Callable[..., Tensor]
Sizes = tuple[tuple[int, ...], ...]


def product(x: Tensor, w: Tensor) -> Tensor:
    return x @ w.t()


def linear(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return F.linear(x, w, b)


def linear_gelu(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return F.gelu(F.linear(x, w, b))


def linear_gelu_tanh(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return F.gelu(F.linear(x, w, b), approximate="tanh")


def linear_silu(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return F.silu(F.linear(x, w, b))


def linear_residual(x: Tensor, w: Tensor, b: Tensor, r: Tensor) -> Tensor:
    return F.linear(x, w, b) + r


def gated(x: Tensor, w: Tensor, v: Tensor) -> Tensor:
    return F.silu(x @ w.t()) * (x @ v.t())


def gelu_backward(g: Tensor, w: Tensor, x: Tensor) -> Tensor:
    found: Tensor = torch.ops.aten.gelu_backward(g @ w, x)
    return found


def scaled_scores(q: Tensor, k: Tensor) -> Tensor:
    return torch.bmm(q, k.mT) * 0.125


def cases() -> dict[str, tuple[Fn, Sizes]]:
    """Name -> function and sizes of its inputs: the products of the suite's models."""
    d, f = 768, 3072

    def mlp(tokens: int) -> Sizes:
        return (tokens, d), (f, d), (f,)

    def down(tokens: int) -> Sizes:
        return (tokens, f), (d, f), (d,), (tokens, d)

    return {
        "bert-1 up": (linear_gelu, mlp(128)),
        "bert-1 down": (linear_residual, down(128)),
        "bert-1 qkv": (linear, ((128, d), (d, d), (d,))),
        "bert-32 up": (linear_gelu, mlp(4096)),
        "bert-32 down": (linear_residual, down(4096)),
        "bert-32 backward": (gelu_backward, ((4096, d), (d, f), (4096, f))),
        "gpt2 up": (linear_gelu_tanh, mlp(8192)),
        "vit up": (linear_gelu, mlp(12608)),
        "vit down": (linear_residual, down(12608)),
        "llama-16 gate": (gated, ((16, 2048), (8192, 2048), (8192, 2048))),
        "llama-16 down": (product, ((16, 8192), (2048, 8192))),
        "llama-16 q": (product, ((16, 2048), (2048, 2048))),
        "llama-16 k": (product, ((16, 2048), (512, 2048))),
        "llama-16 head": (product, ((16, 2048), (128256, 2048))),
        "llama-2048 up": (linear_silu, ((2048, 2048), (8192, 2048), (8192,))),
        "llama-2048 gate": (gated, ((2048, 2048), (8192, 2048), (8192, 2048))),
        "scores": (scaled_scores, ((96, 197, 64), (96, 197, 64))),
        "edges": (linear_gelu, ((1000, 500), (777, 500), (777,))),
    }


@dataclass(frozen=True)
class Line:
    """Microseconds of a call, errors against float64 relative to the largest value."""

    name: str
    library_us: float
    chosen_us: float
    torch_compile_us: float | None
    error64: float
    error64_library: float
    tune_s: float
    choices: tuple[str, ...]
    failures: tuple[str, ...]
    measured: tuple[Choice, ...]

    @property
    def wrong(self) -> bool:
        """Whether the chosen kernels are less exact than rounding explains."""
        return not self.error64 <= 1.5 * self.error64_library + 1e-3

    def as_text(self) -> str:
        """One row of the table."""
        theirs = "" if self.torch_compile_us is None else f"{self.torch_compile_us:.1f}"
        return (
            f"| {self.name} | {self.library_us:.1f} | {self.chosen_us:.1f} | "
            f"{self.library_us / self.chosen_us:.2f}x | {theirs} | {self.error64:.1e} | "
            f"{self.error64_library:.1e} | {self.tune_s:.1f} |"
        )


FORMS_OF = (
    "bert-32 up", "bert-32 down", "bert-32 backward", "gpt2 up", "vit up", "vit down",
    "llama-2048 gate", "llama-2048 up", "scores",
)  # fmt: skip
FORMS = ("library", "tiles", "persistent", "persistent TMA")


def form_of(candidate: str) -> str:
    """Which form a candidate's name tells of."""
    if candidate == "library":
        return candidate
    return next((form for form in FORMS[:1:-1] if candidate.endswith(form)), "tiles")


def table_of_forms(name: str, line: Line) -> list[str]:
    """A row for each product that was measured: the best of each form in microseconds, and its
    tiles."""
    rows = []
    for choice in line.measured:
        best = dict.fromkeys(FORMS, (float("inf"), ""))
        for candidate, seconds in zip(choice.names, choice.seconds, strict=True):
            if seconds is not None:
                form = form_of(candidate)
                best[form] = min(best[form], (seconds * 1e6, candidate))
        shown = (
            f"{us:.1f}" + ("" if form == "library" else f" ({tiles.removesuffix(form).strip()})")
            if tiles
            else ""
            for form, (us, tiles) in best.items()
        )
        rows.append(f"| {name}: {choice.what} | {' | '.join(shown)} |")
    return rows


FORMS_HEADER = f"| product | {' us | '.join(FORMS)} us |\n|---|{'---|' * len(FORMS)}"
HEADER = (
    "| product | library us | chosen us | ratio | torch.compile us | err f64 | err f64 library "
    "| tune s |\n|---|---|---|---|---|---|---|---|"
)


def error(value: Tensor, exact: Tensor) -> float:
    """Largest difference over the exact result's largest magnitude."""
    return float((value.double() - exact).abs().max() / exact.abs().max())


def measure(name: str, fn: Fn, sizes: Sizes, knobs: Knobs, theirs: bool) -> Line:
    """One case: the plan without and with tuning, and torch.compile's, interleaved."""
    inputs = tuple(torch.randn(s, device="cuda", dtype=torch.bfloat16) / 4 for s in sizes)
    gm = trace_aten(fn, *inputs, decompositions=core_aten_table())
    plan = compile_graph(gm)
    library = load(plan)
    start = time.perf_counter()
    tuner = DeviceTuner(knobs)
    chosen = load(compile_graph(gm, tuner=tuner))
    tune_s = time.perf_counter() - start
    exact = fn(*(t.double() for t in inputs))
    runs: list[Callable[..., object]] = [library.run, chosen.run]
    if theirs:
        runs.append(torch.compile(fn, mode="max-autotune-no-cudagraphs"))
        runs[-1](*inputs)
    with side_stream():
        sets = scratch_inputs(plan)
        for run in runs:
            run(*sets[0])
        calls = calls_of(library.run, sets)
        replays = {i: (recorded(run, sets, calls), calls) for i, run in enumerate(runs)}
        seconds = interleaved(replays, 21)
    errors = []
    for artifact in (chosen, library):
        (value,) = artifact.run(*inputs)
        assert isinstance(value, Tensor)
        errors.append(error(value, exact))
    choices = tuple(c.as_text() for c in tuner.choices)
    tables = tuple(
        f"    {name}: {'does not run' if s is None else f'{s * 1e6:.1f} us'}"
        for c in tuner.choices
        for name, s in sorted(
            zip(c.names, c.seconds, strict=True), key=lambda pair: pair[1] or float("inf")
        )
    )
    return Line(
        name, seconds[0] * 1e6, seconds[1] * 1e6, seconds[2] * 1e6 if theirs else None,
        errors[0], errors[1], tune_s, (*choices, *tables), tuple(tuner.failures),
        tuple(tuner.choices),
    )  # fmt: skip


def try_besides(further: Sequence[tuple[int, ...]]) -> None:
    """Have the compiler measure further persistent kernels in this process."""

    def more(sizes: tuple[int, int, int, int], followed: bool, gpu: Gpu) -> list[ProductTiles]:
        found = candidates(sizes, followed, gpu)
        if not any(t.programs for t in found):
            return found
        for m, n, k, warps, stages, each in further:
            tiles = ProductTiles(m, n, k, warps, stages)
            programs = each * gpu.multiprocessors
            found.append(replace(tiles, programs=programs, descriptors=gpu.descriptors))
        return list(dict.fromkeys(found))

    mock.patch.object(choose_products, "candidates", more).start()


def main() -> int:
    """Run and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="+", default=[])
    parser.add_argument("--candidates", action="store_true", help="the times of all candidates")
    parser.add_argument("--torch-compile", action="store_true", help="max-autotune beside ours")
    parser.add_argument("--keep-cache", action="store_true", help="use earlier measurements")
    parser.add_argument("--forms", action="store_true", help="the best of each form")
    parser.add_argument("--tiles", nargs="+", default=[], help="persistent kernels to try besides")
    parser.add_argument("--json", type=Path, default=None)
    arguments = parser.parse_args()
    if arguments.tiles:
        further = [tuple(int(n) for n in text.split(",")) for text in arguments.tiles]
        try_besides(further)
    torch.manual_seed(0)
    print(machine("cuda"))
    print(FORMS_HEADER if arguments.forms else HEADER)
    only = arguments.only or (FORMS_OF if arguments.forms else ())
    lines: list[Line] = []
    rows: list[str] = []
    with tempfile.TemporaryDirectory() as fresh, torch.no_grad():
        knobs = Knobs.from_environment()
        if not arguments.keep_cache:
            knobs = replace(knobs, cache_dir=Path(fresh))
        for name, (fn, sizes) in cases().items():
            if only and name not in only:
                continue
            lines.append(line := measure(name, fn, sizes, knobs, arguments.torch_compile))
            rows += (own := table_of_forms(name, line) if arguments.forms else [line.as_text()])
            print("\n".join(own), flush=True)
            if arguments.candidates:
                print("\n".join(line.choices), flush=True)
    bad = [f"{line.name}: {f}" for line in lines for f in line.failures]
    bad += [f"{line.name}: wrong result ({line.error64:.1e})" for line in lines if line.wrong]
    print("\n".join(bad))
    if arguments.json:
        header = FORMS_HEADER if arguments.forms else HEADER
        table = [*header.splitlines(), *rows]
        command = " ".join(["python", "integration_tests/benchmarks/matmul.py", *sys.argv[1:]])
        data = {"machine": machine("cuda"), "command": command, "lines": table}
        arguments.json.write_text(json.dumps(data))
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
