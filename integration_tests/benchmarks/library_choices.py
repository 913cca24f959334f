"""Every choice between the library's kernel and ours that a measurement made, measured again.

python integration_tests/benchmarks/library_choices.py [OPERATOR ...] [--device cuda]
    [--threads 1] [--seconds 0.5]

Prints a Markdown table: of each operator and shape, how many times as fast as eager a call of ours
is when ours runs wherever it can (`everywhere=True`), and what runs when nobody asks for that.
Eager and ours take turns in rounds of a few milliseconds; of each the fastest round counts. One
thread's time is the processor's, which other work on the machine hardly touches.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from dovetail_inductor import InductorOptions, compile_graph
from dovetail_prims import trace_aten
from dovetail_prims.decompositions import core_aten_table
from dovetail_runtime import CallAten, Plan, load
from torch import Tensor

aten = torch.ops.aten
ROUND_S = 0.004
CALLS_ON_GPU = 20  # of a round, between two events
FLOATS = (torch.float32, torch.bfloat16)


@dataclass(frozen=True)
class Case:
    """A call to measure: `function(*inputs)`, with inputs made on a device in a type."""

    operator: str
    shape: str
    function: Callable[..., Any]
    inputs: Callable[[torch.dtype, str], tuple[Tensor, ...]]
    dtypes: tuple[torch.dtype, ...] = (torch.float32,)


def plan_of(function: Callable[..., Any], inputs: tuple[Tensor, ...], everywhere: bool) -> Plan:
    """The compiled call; `everywhere`: as if nothing had been measured."""
    gm = trace_aten(function, *inputs, decompositions=core_aten_table())
    return compile_graph(gm, options=InductorOptions(everywhere=everywhere))


def calls(plan: Plan) -> list[str]:
    """The library calls that compute (not those that check or draw)."""
    aside = ("aten::_assert_async", "aten::uniform", "aten::clone")
    return [s.op for s in plan.steps if isinstance(s, CallAten) and not s.op.startswith(aside)]


def _round_s(call: Callable[[], Any], device: str) -> float:
    """Seconds of one call, on average over a round."""
    if device == "cuda":
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda.synchronize()
        begin.record()
        for _ in range(CALLS_ON_GPU):
            call()
        end.record()
        torch.cuda.synchronize()
        return begin.elapsed_time(end) / 1e3 / CALLS_ON_GPU
    clock = time.process_time if torch.get_num_threads() == 1 else time.perf_counter
    count, start = 0, clock()
    while clock() - start < ROUND_S:
        call()
        count += 1
    return (clock() - start) / count


def ratio(eager: Callable[[], Any], ours: Callable[[], Any], device: str, seconds: float) -> float:
    """How many times as fast as `eager` is `ours`."""
    best = [float("inf")] * 2
    for call in (eager, ours):
        call()
    start, rounds = time.perf_counter(), 0
    while rounds < 3 or time.perf_counter() - start < seconds:
        rounds += 1
        for k, call in enumerate((eager, ours)):
            best[k] = min(best[k], _round_s(call, device))
    return best[0] / best[1]


def row(case: Case, dtype: torch.dtype, device: str, seconds: float) -> str:
    """The Markdown row of one case in one type."""
    inputs = case.inputs(dtype, device)
    forced = plan_of(case.function, inputs, everywhere=True)
    left = calls(plan_of(case.function, inputs, everywhere=False))
    run = load(forced)
    with torch.no_grad():
        found = ratio(lambda: case.function(*inputs), lambda: run(*inputs), device, seconds)
    can = calls(forced)
    what = "library" if left else "ours"
    if can and set(can) == set(left):
        what = "library: there is no kernel of ours"
    name = str(dtype).removeprefix("torch.")
    return f"| {case.operator} | {case.shape} | {name} | {device} | {found:.2f} | {what} |"


# --- what was measured ----------------------------------------------------------------------------


def _scans() -> Iterator[Case]:
    places = [
        ((8, 3), 0), ((8, 3), 1), ((64, 1000), 0), ((64, 1000), 1), ((1000, 64), 0),
        ((1000, 64), 1), ((1, 10**6), 1), ((10**6,), 0), ((32, 128, 256), 0),
        ((32, 128, 256), 1), ((32, 128, 256), 2), ((1000, 5), 0), ((1000, 3), 1),
    ]  # fmt: skip
    for name in ("cumsum", "cumprod", "cummax", "logcumsumexp"):
        for shape, dim in places:

            def inputs(
                dtype: torch.dtype, device: str, name: str = name, shape: Any = shape
            ) -> tuple[Tensor, ...]:
                x = torch.randn(shape, device=device)
                return ((1 + x * 0.01 if name == "cumprod" else x * 4).to(dtype),)

            def scan(x: Tensor, name: str = name, dim: int = dim) -> Any:
                return getattr(torch, name)(x, dim)

            types = FLOATS if name == "logcumsumexp" else (*FLOATS, torch.int64)
            text = "x".join(map(str, shape))
            yield Case(name, f"{text}, dim {dim}", scan, inputs, types)


def _windows() -> Iterator[Case]:
    """kernel, stride, dilation, size of the image"""
    for kernel, step, spread, size in (
        (2, 2, 1, 56), (3, 2, 1, 57), (4, 4, 1, 64), (3, 3, 1, 57),
        (2, 1, 1, 32), (3, 1, 1, 32), (3, 1, 2, 32), (5, 1, 1, 32),
    ):  # fmt: skip
        windows = ((size - spread * (kernel - 1) - 1) // step + 1) ** 2

        def fold(x: Tensor, k: int = kernel, s: int = step, d: int = spread, n: int = size) -> Any:
            return aten.col2im(x, [n, n], [k, k], [d, d], [0, 0], [s, s])

        def inputs(
            dtype: torch.dtype, device: str, k: int = kernel, n: int = windows
        ) -> tuple[Tensor, ...]:
            return (torch.randn(4, 16 * k * k, n, device=device).to(dtype),)

        shape = f"4x16x{size}x{size}, kernel {kernel}, stride {step}, dilation {spread}"
        yield Case("col2im", shape, fold, inputs)


def _pooling() -> Iterator[Case]:
    def images(dtype: torch.dtype, device: str) -> tuple[Tensor, ...]:
        return (torch.randn(4, 32, 56, 56, device=device).to(dtype),)

    for kernel, step in ((2, 2), (3, 2), (5, 2), (3, 1), (7, 1)):

        def largest(x: Tensor, k: int = kernel, s: int = step) -> Any:
            return aten.max_pool2d_with_indices(x, [k, k], [s, s])

        def average(x: Tensor, k: int = kernel, s: int = step) -> Any:
            return aten.avg_pool2d(x, [k, k], [s, s])

        def back(dtype: torch.dtype, device: str, f: Any = largest) -> tuple[Tensor, ...]:
            (x,) = images(dtype, device)
            out, index = f(x)
            return torch.randn_like(out), x, index

        def slope(g: Tensor, x: Tensor, i: Tensor, k: int = kernel, s: int = step) -> Any:
            return aten.max_pool2d_with_indices_backward(
                g, x, [k, k], [s, s], [0, 0], [1, 1], False, i
            )

        shape = f"4x32x56x56, kernel {kernel}, stride {step}"
        yield Case("max_pool2d", shape, largest, images)
        yield Case("avg_pool2d", shape, average, images)
        yield Case("max_pool2d, gradient", shape, slope, back)
        yield Case("max_pool2d, gradient", f"{shape}, channels last", slope, _channels_last(back))
    for size in (7, 10):

        def adaptive(x: Tensor, n: int = size) -> Any:
            return aten.adaptive_max_pool2d(x, [n, n])

        yield Case("adaptive_max_pool2d", f"4x32x56x56 to {size}", adaptive, images)


def _channels_last(inputs: Callable[..., tuple[Tensor, ...]]) -> Callable[..., tuple[Tensor, ...]]:
    def made(dtype: torch.dtype, device: str) -> tuple[Tensor, ...]:
        return tuple(t.contiguous(memory_format=torch.channels_last) for t in inputs(dtype, device))

    return made


def _others() -> Iterator[Case]:
    for n in (1000, 10**6):

        def both(dtype: torch.dtype, device: str, n: int = n) -> tuple[Tensor, ...]:
            x = torch.randint(1, 10**6, (2, n), device=device).to(dtype)
            return x[0], x[1]

        yield Case("gcd", f"{n}", torch.gcd, both, (torch.int64,))


def cases() -> list[Case]:
    """All of them."""
    families = (_scans, _windows, _pooling, _others)
    return [case for family in families for case in family()]


def main() -> None:
    """Measure the operators asked for (by how their names begin), or all."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("operators", nargs="*")
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=0.5)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    torch.manual_seed(0)
    print("| operator | shape | dtype | device | ratio | what runs |\n" + "| --- " * 6 + "|")
    for case in cases():
        if not arguments.operators or case.operator.startswith(tuple(arguments.operators)):
            for dtype in case.dtypes:
                print(row(case, dtype, arguments.device, arguments.seconds), flush=True)


if __name__ == "__main__":
    main()
