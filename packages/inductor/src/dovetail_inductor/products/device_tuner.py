"""Plans measured on the GPU, as they will be run, with scratch tensors in the place of inputs."""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
from dovetail_prims.artifact_log import tell
from dovetail_runtime import TensorSpec, load
from dovetail_runtime.artifact import KernelBuild
from dovetail_runtime.disk_cache import DiskCache, Entry
from dovetail_runtime.knobs import Knobs
from dovetail_runtime.plan import Plan
from dovetail_runtime.triton_build import TritonCompileError, triton_version
from torch import Tensor

from dovetail_inductor.products.choose_products import Choice, Problem

# One replay of a recorded graph: so many milliseconds of work, in so many calls.
REPLAY_MS = 2.0
CALLS = (5, 64)
FIRST_ROUNDS, LAST_ROUNDS, FINALISTS = 3, 9, 3
SPREAD = 0.125  # of scratch inputs: products of long rows stay far from the largest float16
# A result may differ from the library's by so much of its mean size, in the mean.
CLOSE = 0.02
FARTHEST = 0.1  # and an element of it by so much of the largest: no edge or corner is wrong

Seconds = tuple[float | None, ...]


@dataclass
class DeviceTuner:
    """Measures plans on the current GPU. What it finds is kept on disk, beside compiled kernels.

    `choices` is what was chosen, `failures` the candidates that did not run or were wrong.
    """

    knobs: Knobs | None = None  # those of the environment, if there are none
    choices: list[Choice] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)

    def note(self, choice: Choice) -> None:
        """Keep a choice for whoever asks, and log it."""
        self.choices.append(choice)
        tell("autotuning", "", choice.in_full, payload=choice)

    def lines(self) -> tuple[str, ...]:
        """What was chosen, and what went wrong, for people."""
        return (*(c.as_text() for c in self.choices), *self.failures)

    def measure(self, problems: Sequence[Problem]) -> list[Seconds]:
        """The seconds of each plan of each problem, in the device's time alone; None for one that
        does not run. All plans of all problems are compiled side by side."""
        knobs = self.knobs or Knobs.from_environment()
        cache = DiskCache(knobs.cache_dir, "autotune", knobs.cache_limit_bytes)
        found = [_read(cache.get(_key(p)), len(p.names)) for p in problems]
        open_problems = [(i, list(p.plans())) for i, p in enumerate(problems) if found[i] is None]
        building = [(i, [(p, KernelBuild(p.kernels)) for p in plans]) for i, plans in open_problems]
        for position, plans in building:
            problem = problems[position]
            times = self._measure(problem, plans)
            if times[0] is not None:
                text = json.dumps({"names": problem.names, "seconds": times})
                cache.put_files(_key(problem), {"times.json": text})
            found[position] = times
        return [times for times in found if times is not None]

    def _measure(self, problem: Problem, plans: Sequence[tuple[Plan, KernelBuild]]) -> Seconds:
        spec = next(i.spec for i in plans[0][0].inputs if i.spec is not None)
        with torch.cuda.device(spec.device), torch.no_grad(), side_stream():
            try:
                sets = scratch_inputs(plans[0][0])
                return self._race(problem, plans, sets)
            except torch.cuda.OutOfMemoryError:
                self.failures.append(f"{problem.key[0][1]}: no memory to measure in")
                return (None,) * len(plans)
            finally:
                torch.cuda.empty_cache()

    def _race(
        self,
        problem: Problem,
        plans: Sequence[tuple[Plan, KernelBuild]],
        sets: Sequence[Sequence[Tensor]],
    ) -> Seconds:
        replays: dict[int, tuple[Callable[[], None], int]] = {}
        wanted: tuple[Tensor, ...] = ()
        calls = 0
        for number, (plan, build) in enumerate(plans):
            try:
                artifact = load(plan, build=build)
                got = tuple(t for t in artifact.run(*sets[0]) if isinstance(t, Tensor))
            except (TritonCompileError, RuntimeError) as error:
                first = (str(error) or type(error).__name__).splitlines()[0]
                self.failures.append(f"{problem.names[number]}: {first}")
                if number == 0:
                    return (None,) * len(plans)
                continue
            if number == 0:
                wanted, calls = got, calls_of(artifact.run, sets)
            elif not all(_close(a, b) for a, b in zip(got, wanted, strict=True)):
                self.failures.append(f"{problem.names[number]}: another result")
                continue
            replays[number] = recorded(artifact.run, sets, calls), calls
        times = interleaved(replays, FIRST_ROUNDS)
        best = sorted(times, key=times.__getitem__)[:FINALISTS]
        times |= interleaved({n: replays[n] for n in sorted({0, *best})}, LAST_ROUNDS)
        return tuple(times.get(n) for n in range(len(plans)))


def scratch_inputs(plan: Plan) -> list[list[Tensor]]:
    """Inputs of a plan, as often as it takes for the GPU's cache not to hold them all: a kernel's
    weights come from memory in a model, too. The user's random numbers stay as they are."""
    specs = [i.spec for i in plan.inputs if i.spec is not None]
    sizes = [_storage_size(s) for s in specs]
    device = specs[0].device
    once = sum(n * s.dtype.itemsize for n, s in zip(sizes, specs, strict=True))
    cache = int(torch.cuda.get_device_properties(device).L2_cache_size)
    count = max(1, min(CALLS[1], -(-2 * cache // max(once, 1))))
    generator = torch.Generator(device).manual_seed(0)
    sets: list[list[Tensor]] = [[] for _ in range(count)]
    for spec, size in zip(specs, sizes, strict=True):
        aligned = -(-size * spec.dtype.itemsize // 64) * 64 // spec.dtype.itemsize
        memory = torch.zeros(count * aligned, dtype=spec.dtype, device=device)
        if spec.dtype.is_floating_point:
            drawn = torch.float32 if spec.dtype.itemsize == 1 else spec.dtype
            like = torch.empty_like(memory, dtype=drawn)
            memory.copy_(like.normal_(std=SPREAD, generator=generator))
        elif spec.dtype is torch.int8:
            memory.random_(-128, 128, generator=generator)
        for number, inputs in enumerate(sets):
            # with storage of its own, as offsets are promises
            own = memory[number * aligned : number * aligned + size]
            inputs.append(_laid_out(own if count == 1 else own.clone(), spec))
    return sets


def _numbers(sizes: Sequence[object]) -> list[int]:
    assert all(isinstance(n, int) for n in sizes), "symbolic sizes are not measured"
    return [n for n in sizes if isinstance(n, int)]


def _storage_size(spec: TensorSpec) -> int:
    shape, stride = _numbers(spec.shape), _numbers(spec.stride)
    (offset,) = _numbers([spec.offset])
    return offset + 1 + sum((n - 1) * s for n, s in zip(shape, stride, strict=True))


def _laid_out(memory: Tensor, spec: TensorSpec) -> Tensor:
    (offset,) = _numbers([spec.offset])
    return memory.as_strided(_numbers(spec.shape), _numbers(spec.stride), offset)


def calls_of(run: Callable[..., object], sets: Sequence[Sequence[Tensor]]) -> int:
    """How many calls make one replay."""

    def some() -> None:
        for number in range(CALLS[0]):
            run(*sets[number % len(sets)])

    each = milliseconds(some) / CALLS[0]
    return max(CALLS[0], len(sets), min(CALLS[1], int(REPLAY_MS / max(each, 1e-6))))


def milliseconds(work: Callable[[], None]) -> float:
    """What the GPU takes."""
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
    start.record()
    work()
    end.record()
    end.synchronize()
    return float(start.elapsed_time(end))


def recorded(
    run: Callable[..., object], sets: Sequence[Sequence[Tensor]], calls: int
) -> Callable[[], None]:
    """So many calls, with each set of inputs in turn, as a CUDA graph: what its replay takes is the
    device's time, whatever launches cost."""
    graph = torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    graph.capture_begin(capture_error_mode="thread_local")
    try:
        for number in range(calls):
            run(*sets[number % len(sets)])
    finally:
        graph.capture_end()
    graph.replay()
    return graph.replay


def interleaved(
    replays: dict[int, tuple[Callable[[], None], int]], rounds: int
) -> dict[int, float]:
    """Median seconds of one call of each, in turns."""
    samples: dict[int, list[float]] = {number: [] for number in replays}
    for _ in range(rounds):
        for number, (replay, calls) in replays.items():
            samples[number].append(milliseconds(replay) * 1e-3 / calls)
    return {number: statistics.median(found) for number, found in samples.items()}


@contextmanager
def side_stream() -> Iterator[None]:
    """A stream of its own, on which graphs can be recorded; everything else is done before."""
    torch.cuda.synchronize()
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    with torch.cuda.stream(stream):
        yield
    torch.cuda.synchronize()


def _close(got: Tensor, wanted: Tensor) -> bool:
    """Whether two results are the same but for rounding."""
    if not wanted.dtype.is_floating_point:
        return True
    difference, sizes = (got.float() - wanted.float()).abs(), wanted.float().abs()
    if difference.numel() == 0:
        return True
    in_the_mean = difference.mean() <= CLOSE * sizes.mean()
    return bool(in_the_mean & (difference.amax() <= FARTHEST * sizes.amax()))


def _key(problem: Problem) -> tuple[tuple[str, str], ...]:
    return (
        ("device", torch.cuda.get_device_name()),
        ("torch", torch.__version__),
        ("cuda", str(torch.version.cuda)),
        ("triton", triton_version()),
        *problem.key,
    )


def _read(entry: Entry | None, count: int) -> Seconds | None:
    data = entry.read("times.json") if entry is not None else None
    if data is None:
        return None
    stored = json.loads(data)["seconds"]
    return tuple(stored) if len(stored) == count else None
