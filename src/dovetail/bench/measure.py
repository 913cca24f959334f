"""Clocks and memory of one process, for the benchmark's worker, and errors over several draws of a
case's weights and inputs.

The largest of some million errors, and which of two programs rounds luckier, is chance for one
draw; a mean over several tells programs apart.
"""

from __future__ import annotations

import ctypes
import gc
import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from dovetail_runtime import release_idle_memory
from torch import Tensor

from dovetail.bench.models import Case

_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3


def synchronize(device: str) -> None:
    """Wait for the device's queued work."""
    if device == "cuda":
        torch.cuda.synchronize()


def seconds(call: Callable[[], Any], device: str) -> float:
    """Wall seconds of one call, the device's work included."""
    synchronize(device)
    start = time.perf_counter()
    call()
    synchronize(device)
    return time.perf_counter() - start


def median_seconds(call: Callable[[], Any], device: str, budget_s: float) -> float:
    """Median wall seconds of 3 to 200 calls, for about `budget_s` seconds."""
    call()
    taken: list[float] = []
    while len(taken) < 3 or (len(taken) < 200 and sum(taken) < budget_s):
        taken.append(seconds(call, device))
    return statistics.median(taken)


def interleaved(
    first: Callable[[], Any],
    second: Callable[[], Any],
    device: str,
    budget_s: float,
    least: int = 5,
) -> tuple[float, float, float]:
    """Time two callables alternately (A B B A ...) for about `budget_s` seconds, `least` to 200
    pairs.

    Returns the median seconds of each and the median of the pairwise ratios first/second.
    """
    first()
    second()
    a: list[float] = []
    b: list[float] = []
    start = time.perf_counter()
    while len(a) < least or (len(a) < 200 and time.perf_counter() - start < budget_s):
        if len(a) % 2:
            b.append(seconds(second, device))
            a.append(seconds(first, device))
        else:
            a.append(seconds(first, device))
            b.append(seconds(second, device))
    ratio = statistics.median(x / y for x, y in zip(a, b, strict=True))
    return statistics.median(a), statistics.median(b), ratio


def per_call_us(call: Callable[[], Any]) -> float:
    """Best-of-5 microseconds of one call in a tight loop."""
    number = 2000
    for _ in range(100):
        call()
    best = float("inf")
    for _ in range(5):
        start = time.perf_counter()
        for _ in range(number):
            call()
        best = min(best, (time.perf_counter() - start) / number)
    return best * 1e6


def _status_kib(field: str) -> int:
    with open("/proc/self/status") as status:
        for line in status:
            if line.startswith(field + ":"):
                return int(line.split()[1])
    raise RuntimeError(f"/proc/self/status has no {field}")


def peak_bytes(call: Callable[[], Any], device: str) -> int:
    """Peak memory that `call` adds to what the process held before it, in bytes.

    On CUDA the caching allocator's own count. On CPU the growth of the resident high-water mark,
    with malloc told to return freed blocks to the system so that its cache is not counted.
    """
    gc.collect()
    if device == "cuda":
        torch.cuda.synchronize()
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        call()
        torch.cuda.synchronize()
        return torch.cuda.max_memory_allocated() - before
    libc = ctypes.CDLL(None)
    libc.mallopt(_M_MMAP_THRESHOLD, 64 * 1024)
    libc.mallopt(_M_TRIM_THRESHOLD, 64 * 1024)
    try:
        return _resident_growth(call, libc)
    finally:
        # What glibc's moving thresholds come to in a process that works with large tensors: what
        # is timed after this must not pay for fresh pages at every allocation.
        libc.mallopt(_M_MMAP_THRESHOLD, 32 << 20)
        libc.mallopt(_M_TRIM_THRESHOLD, 64 << 20)


def _resident_growth(call: Callable[[], Any], libc: ctypes.CDLL) -> int:
    call()
    gc.collect()
    release_idle_memory()  # what a compiled program keeps for its next call counts in that call
    libc.malloc_trim(0)
    with open("/proc/self/clear_refs", "w") as clear:
        clear.write("5")
    before = _status_kib("VmRSS")
    call()
    return max(0, _status_kib("VmHWM") - before) * 1024


def largest_error(values: Sequence[Tensor], references: Sequence[Tensor]) -> float:
    """Largest |value - reference|, each tensor scaled by its reference's largest magnitude.

    A tensor that is small beside the largest reference (a gradient that is zero but for rounding)
    is scaled by a thousandth of that one's magnitude.
    """
    if len(values) != len(references):
        raise ValueError(f"{len(values)} values beside {len(references)} references")
    sizes = [float(r.detach().abs().max()) for r in references if r.numel()]
    floor = max(1e-3 * max(sizes, default=0.0), 1e-6)
    worst = 0.0
    for value, reference in zip(values, references, strict=True):
        if reference.numel() == 0:
            continue
        scale = max(float(reference.detach().abs().max()), floor)
        difference = (value.detach().double() - reference.detach().double()).abs().max()
        if difference.isnan():  # which no comparison finds to be large
            return math.inf
        worst = max(worst, float(difference) / scale)
    return worst


def mean_error(values: Sequence[Tensor], references: Sequence[Tensor]) -> float:
    """Root of the mean square of value - reference, each tensor scaled by its reference's root mean
    square: the worst tensor's. Unlike a largest error it hardly depends on the numbers drawn.

    Small tensors are scaled as in `largest_error`.
    """
    if len(values) != len(references):
        raise ValueError(f"{len(values)} values beside {len(references)} references")

    def size(t: Tensor) -> float:
        return float(t.detach().double().square().mean().sqrt())

    pairs = [(v, r) for v, r in zip(values, references, strict=True) if r.numel()]
    floor = max(1e-3 * max((size(r) for _, r in pairs), default=0.0), 1e-6)
    errors = [size(v.detach().double() - r) / max(size(r), floor) for v, r in pairs]
    return math.inf if any(map(math.isnan, errors)) else max(errors, default=0.0)


@dataclass(frozen=True)
class Spread:
    """How the numbers of a tensor are spread; new ones stay between the least and the largest."""

    mean: float
    deviation: float
    least: float
    largest: float


@dataclass(frozen=True)
class Errors:
    """Of one draw: the largest error and the root mean square of the worst tensor, both relative
    (`largest_error`, `mean_error`)."""

    largest: float
    rms: float


def errors_of(values: Sequence[Tensor], reference: Sequence[Tensor]) -> Errors:
    """Of one step's tensors beside the same step's in float64."""
    return Errors(largest_error(values, reference), mean_error(values, reference))


def mean_errors(errors: Sequence[Errors]) -> Errors:
    """The mean of each error over the draws."""
    return Errors(
        statistics.mean(e.largest for e in errors), statistics.mean(e.rms for e in errors)
    )


def spreads_of(case: Case) -> Mapping[str, Spread]:
    """How each parameter and each input of floating-point numbers is spread, by its name."""
    return {name: _spread(tensor) for name, tensor in _drawn(case).items()}


def _drawn(case: Case) -> dict[str, Tensor]:
    """The weights and the inputs of floating-point numbers; complex ones as pairs."""
    named = {
        f"model.{name}": parameter.detach() for name, parameter in case.model.named_parameters()
    }
    named |= {n: v for n, v in case.inputs.items() if isinstance(v, Tensor)}
    pairs = {n: torch.view_as_real(v) if v.is_complex() else v for n, v in named.items()}
    return {n: v for n, v in pairs.items() if v.is_floating_point() and v.numel() > 1}


def _spread(tensor: Tensor) -> Spread:
    wide = tensor.double()
    return Spread(*(float(v) for v in (wide.mean(), wide.std(), wide.min(), wide.max())))


def redraw(case: Case, spreads: Mapping[str, Spread], seed: int) -> None:
    """Write new numbers into a case's weights and inputs, spread as they were; what is all one
    number (a norm's weights), or infinite (a mask), stays."""
    torch.manual_seed(seed)
    for name, tensor in _drawn(case).items():
        spread = spreads[name]
        if 0 < spread.deviation < math.inf:
            drawn = torch.randn_like(tensor, dtype=torch.float32) * spread.deviation + spread.mean
            tensor.copy_(drawn.clamp_(spread.least, spread.largest))
    for value in case.inputs.values():
        if isinstance(value, Tensor) and value.dtype == torch.int64 and value.max() > 1:  # tokens
            value.copy_(torch.randint(0, int(value.max()) + 1, value.shape))


def over_draws(
    case: Case, twin: Case, draws: int, errors: Callable[[], tuple[Errors, ...] | None]
) -> tuple[Errors, ...] | None:
    """Mean errors over `draws` draws, the first of the numbers that `case` holds.

    `twin` is a copy of the case, which shares its inputs and is given the same weights; `errors`
    runs both and gives each system's, or None if there is nothing to compare with.
    """
    spreads = spreads_of(case)
    found: list[tuple[Errors, ...]] = []
    for seed in range(draws):
        if seed:
            redraw(case, spreads, seed)
            redraw(twin, spreads, seed)
        of_draw = errors()
        if of_draw is None:
            return None
        found.append(of_draw)
    return tuple(mean_errors(of_system) for of_system in zip(*found, strict=True))
