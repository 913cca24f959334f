"""The benchmark's table, as text for a terminal or for Markdown."""

from __future__ import annotations

import platform
import sys
from collections.abc import Sequence

import torch

from dovetail.bench.driver import Failure, Row

_HEADER = (
    "model", "system", "first call", "tracing", "2nd process", "steady", "vs eager", "overhead",
    "peak mem", "err eager", "err f64", "rms f64", "graphs", "breaks", "kernels", "a layer",
    "extern",
)  # fmt: skip


def _count(value: int | None) -> str:
    return "-" if value is None else str(value)


def _error(value: float | None) -> str:
    return "-" if value is None else f"{value:.1e}"


def _cells(row: Row) -> tuple[str, ...]:
    f = row.figures
    compiled = row.system != "eager"
    return (
        f"{row.model}{' train' if row.train else ''}",
        row.system,
        f"{row.cold_s:.2f} s" if compiled else "-",
        "-" if f.tracing_s is None else f"{f.tracing_s:.2f} s",
        f"{row.warm_s:.2f} s" if compiled and row.warm_s is not None else "-",
        f"{f.steady_s * 1e3:.2f} ms",
        f"{f.speedup:.2f}x",
        "-" if f.overhead_us is None or not compiled else f"{f.overhead_us:.2f} us",
        "-" if f.peak_bytes is None else f"{f.peak_bytes / 2**20:.1f} MiB",
        _error(f.error_eager),
        _error(f.error_float64),
        "-" if f.mean_float64 is None else f"{f.mean_float64:.2e}",
        _count(f.graphs),
        _count(f.breaks),
        _count(f.kernels),
        _count(f.kernels_per_layer),
        _count(f.extern_calls),
    )


def render(rows: Sequence[Row | Failure]) -> str:
    """The table: a line for each row, columns aligned, Markdown-compatible."""
    body: list[tuple[str, ...]] = []
    for row in rows:
        if isinstance(row, Failure):
            name = f"{row.model}{' train' if row.train else ''}"
            body.append((name, row.system, "FAILED") + ("",) * (len(_HEADER) - 3))
        else:
            body.append(_cells(row))
    widths = [max(len(line[i]) for line in [_HEADER, *body]) for i in range(len(_HEADER))]

    def line(cells: tuple[str, ...]) -> str:
        return "| " + " | ".join(c.ljust(w) for c, w in zip(cells, widths, strict=True)) + " |"

    rule = "|" + "|".join("-" * (w + 2) for w in widths) + "|"
    return "\n".join([line(_HEADER), rule, *(line(cells) for cells in body)])


def steady_ratio(ours: Row, theirs: Row, on_gpu: bool) -> float:
    """How many times as fast a step is. On a CPU, whose clock drifts from process to process, each
    is divided by eager in its own process; on a GPU times are compared as they are, since there it
    is eager, waiting for the CPU, that differs between processes."""
    if on_gpu:
        return theirs.figures.steady_s / ours.figures.steady_s
    return ours.figures.speedup / theirs.figures.speedup


def ratios(rows: Sequence[Row | Failure], on_gpu: bool = False) -> str:
    """Dovetail beside torch.compile, one line for each case where both ran."""
    by_case: dict[tuple[str, bool], dict[str, Row]] = {}
    for row in rows:
        if isinstance(row, Row):
            by_case.setdefault((row.model, row.train), {})[row.system] = row
    lines = []
    for (model, train), systems in by_case.items():
        ours, theirs = systems.get("dovetail"), systems.get("torch.compile")
        if ours is None or theirs is None:
            continue
        warm = ""
        if ours.warm_s is not None and theirs.warm_s is not None:
            warm = f"second process {theirs.warm_s / ours.warm_s:.1f}x faster, "
        lines.append(
            f"{model}{' train' if train else ''}: beside torch.compile, first call "
            f"{theirs.cold_s / ours.cold_s:.1f}x faster, {warm}steady state "
            f"{steady_ratio(ours, theirs, on_gpu):.2f}x"
        )
    return "\n".join(lines)


def machine(device: str) -> str:
    """One line that says where the figures come from."""
    if device == "cuda":
        hardware = torch.cuda.get_device_name()
    else:
        hardware = f"{platform.machine()} CPU, {torch.get_num_threads()} threads"
    python = ".".join(str(part) for part in sys.version_info[:3])
    return f"{hardware}; torch {torch.__version__}, Python {python}"
