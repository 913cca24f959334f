"""One fresh process of the benchmark: one system, one case; prints its figures as one JSON line.

Run by the driver as `python -m dovetail.bench.worker SPEC`, SPEC being a JSON object with the
fields of `Spec`.
"""

from __future__ import annotations

import copy
import fcntl
import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from dovetail.bench import measure
from dovetail.bench.measure import Errors, errors_of, over_draws
from dovetail.bench.models import Case, resolve

SYSTEMS = ("eager", "torch.compile", "dovetail")
BEHIND_TORCH = "torch.compile:dovetail"  # torch.compile's front end before our back half
ALL_SYSTEMS = (*SYSTEMS, BEHIND_TORCH)


@dataclass(frozen=True)
class Spec:
    """What one worker measures. `dtype` is the model's own, or "autocast": float32 weights under
    bfloat16 autocast. A later process of a case is not `thorough`: errors and peak
    memory are known, and a short look at the steady state is enough. `turns` is a file by which
    workers that run at once take turns: they prepare together, and time alone. Errors are means
    over `draws` draws of weights and inputs."""

    system: str
    model: str
    train: bool
    device: str
    mode: str | None
    dtype: str
    small: bool
    steady_s: float
    overhead: bool
    thorough: bool = True
    turns: str | None = None
    draws: int = 1


@dataclass(frozen=True)
class Figures:
    """What one worker found. Seconds, bytes; errors are relative to each tensor's largest value,
    `mean` ones the root mean square of all its errors, relative to that of its values;
    `speedup` is eager's time over this system's, pair by pair, in one process. The `eager_` fields
    are eager's, measured beside the system."""

    first_s: float
    steady_s: float
    eager_s: float
    speedup: float
    overhead_us: float | None
    peak_bytes: int | None
    eager_peak_bytes: int | None
    error_eager: float | None
    error_float64: float | None
    eager_error_float64: float | None
    mean_float64: float | None = None
    eager_mean_float64: float | None = None
    graphs: int | None = None
    breaks: int | None = None
    recompiles: int | None = None
    kernels: int | None = None
    kernels_per_layer: int | None = None
    extern_calls: int | None = None
    tracing_s: float | None = None


Step = Callable[[], list[Tensor]]


def _autocast(spec: Spec) -> AbstractContextManager[Any]:
    if spec.dtype != "autocast":
        return nullcontext()
    return torch.autocast(spec.device, dtype=torch.bfloat16)


def step_of(case: Case, call: Any, spec: Spec) -> Step:
    """One step as a user runs it: forward, and in training the loss and its backward.

    Gives the outputs and, in training, the parameters' gradients.
    """
    params = [p for p in case.model.parameters() if p.requires_grad]
    zero = torch.zeros((), device=spec.device)

    def infer() -> list[Tensor]:
        with torch.no_grad(), _autocast(spec):
            return case.tensors_of(call(**case.inputs))

    def train() -> list[Tensor]:
        for p in params:
            p.grad = None
        with _autocast(spec):
            output = call(**case.inputs)
            loss = case.loss(output)
        loss.backward()  # type: ignore[no-untyped-call]
        # What eager leaves without a gradient, a compiler may give zeros: both count as zeros.
        grads = [zero if p.grad is None else p.grad for p in params]
        return [t.detach() for t in case.tensors_of(output)] + grads

    return train if spec.train else infer


def compile_by(spec: Spec, target: Any, recorded: bool = True) -> Any:
    """`target` compiled by the system of `spec`; as it is, if that is eager. Without `recorded`, no
    CUDA graphs are made in the default mode of what waits for the CPU."""
    if spec.system == "eager":
        return target
    if spec.system == "torch.compile":
        return torch.compile(target, mode=spec.mode)  # noqa: TID251
    options = {} if recorded or spec.mode else {"launch_bound_cudagraphs": False}
    if spec.system == BEHIND_TORCH:
        from dovetail.interop import dovetail_backend

        given: dict[str, Any] = {"options": options} if options else {"mode": spec.mode}
        return torch.compile(target, backend=dovetail_backend, **given)  # noqa: TID251
    import dovetail

    return dovetail.compile(target, mode=spec.mode, options=options)


def _overhead_us(spec: Spec) -> float:
    """Microseconds that compiling `x + 1` adds to each call over eager."""

    def add_one(x: Tensor) -> Tensor:
        return x + 1

    x = torch.ones(4, device=spec.device)
    compiled = compile_by(spec, add_one)
    with torch.no_grad():
        compiled(x)
        return measure.per_call_us(lambda: compiled(x)) - measure.per_call_us(lambda: add_one(x))


def build_case(spec: Spec) -> Case:
    """The case of `spec` on its device and in its dtype, with weights from a fixed seed."""
    torch.manual_seed(0)
    with torch.device(spec.device):  # random weights are drawn where they are used
        case = resolve(spec.model)(spec.small)
    dtype = torch.float32 if spec.dtype == "autocast" else getattr(torch, spec.dtype)

    def placed(value: Any) -> Any:
        if not isinstance(value, Tensor):
            return value
        return value.to(spec.device, dtype if value.is_floating_point() else None)

    inputs = {k: placed(v) for k, v in case.inputs.items()}
    model = case.model.to(spec.device, dtype)
    model.train(spec.train)
    return Case(model, inputs, case.loss)


def reference(case: Case, spec: Spec) -> list[Tensor] | None:
    """The step in float64, on a copy of the model; None (and a line on stderr) if it cannot run."""
    inputs = {
        k: v.double() if isinstance(v, Tensor) and v.is_floating_point() else v
        for k, v in case.inputs.items()
    }
    wide = Case(copy.deepcopy(case.model).double(), inputs, case.loss)
    plain = Spec(**{**asdict(spec), "dtype": "float32"})
    try:
        return [t.clone() for t in step_of(wide, wide.model, plain)()]
    except RuntimeError as error:  # an operator that has no float64, or no memory for it
        reason = str(error).partition("\n")[0]
        print(f"{spec.model}: no reference in float64: {reason}", file=sys.stderr)
        return None


def eager_figures(
    steady_s: float, peak_bytes: int | None, error: float | None, mean: float | None
) -> Figures:
    """Eager's own row: its seconds, its peak in bytes, its errors against float64."""
    return Figures(
        first_s=0.0,
        steady_s=steady_s,
        eager_s=steady_s,
        speedup=1.0,
        overhead_us=0.0,
        peak_bytes=peak_bytes,
        eager_peak_bytes=peak_bytes,
        error_eager=0.0,
        error_float64=error,
        mean_float64=mean,
        eager_error_float64=error,
        eager_mean_float64=mean,
    )


def _errors(spec: Spec, case: Case, twin: Case, steps: Sequence[Step]) -> list[Errors | None]:
    """Against float64, of each of `steps`, which run `case` or its `twin`."""

    def of_draw() -> tuple[Errors, ...] | None:
        exact = reference(case, spec)
        return None if exact is None else tuple(errors_of(step(), exact) for step in steps)

    found = over_draws(case, twin, spec.draws, of_draw) if spec.thorough else None
    return list(found or [None] * len(steps))


@contextmanager
def _turn(spec: Spec) -> Iterator[Callable[[], None]]:
    """Shares the device with other workers until the function it gives is called."""
    if spec.turns is None:
        yield lambda: None
        return
    with open(spec.turns, "a") as file:
        fcntl.flock(file, fcntl.LOCK_SH)

        def alone() -> None:
            fcntl.flock(file, fcntl.LOCK_UN)  # two that would both upgrade would wait forever
            fcntl.flock(file, fcntl.LOCK_EX)

        yield alone


def run(spec: Spec) -> Figures:
    """Measure one system on one case, in this process."""
    with _turn(spec) as alone:
        return _measured(spec, alone)


def _measured(spec: Spec, alone: Callable[[], None]) -> Figures:
    case = build_case(spec)
    twin = Case(copy.deepcopy(case.model), case.inputs, case.loss)
    eager = step_of(twin, twin.model, spec)
    if spec.system == "eager":
        (error,) = _errors(spec, case, twin, [eager])
        alone()
        steady = measure.median_seconds(eager, spec.device, spec.steady_s / 2)
        peak = _peak_bytes(twin, eager, spec)
        return eager_figures(steady, peak, *_numbers(error))
    expected = [t.clone() for t in eager()] if spec.thorough else []
    start = time.perf_counter()  # imports of the compiler count: a user waits for them too
    compiled = compile_by(spec, case.model)
    step = step_of(case, compiled, spec)
    got = step()
    measure.synchronize(spec.device)
    first = time.perf_counter() - start
    error_eager = measure.largest_error(got, expected) if spec.thorough else None
    del got, expected
    for _ in range(3):  # what a mode still does in its first calls (recording graphs)
        step()
    alone()
    eager_s, steady, speedup = measure.interleaved(
        eager,
        step,
        spec.device,
        spec.steady_s if spec.thorough else spec.steady_s / 2,
        least=4 if spec.thorough else 2,
    )
    counts = _counts(compiled, case) if spec.system == "dovetail" else {}
    own_peak = _peak_bytes(case, step, spec) if spec.thorough else None
    eager_peak = _peak_bytes(twin, eager, spec) if spec.thorough else None
    # Last: what else runs on a GPU meanwhile may decide whether calls are recorded.
    of_eager, error = _errors(spec, case, twin, [eager, step])
    largest, rms = _numbers(error)
    eager_largest, eager_rms = _numbers(of_eager)
    return Figures(
        first_s=first,
        steady_s=steady,
        eager_s=eager_s,
        speedup=speedup,
        overhead_us=_overhead_us(spec) if spec.overhead else None,
        peak_bytes=own_peak,
        eager_peak_bytes=eager_peak,
        error_eager=error_eager,
        error_float64=largest,
        mean_float64=rms,
        eager_error_float64=eager_largest,
        eager_mean_float64=eager_rms,
        **counts,
    )


def _peak_bytes(case: Case, step: Step, spec: Spec) -> int:
    """What a step adds to the weights and inputs, which are all that is there before it: gradients
    that the allocator counts (a recording's are in memory that it does not count) would make room
    as the step drops them."""
    for parameter in case.model.parameters():
        parameter.grad = None
    return measure.peak_bytes(step, spec.device)


def _numbers(errors: Errors | None) -> tuple[float | None, float | None]:
    return (None, None) if errors is None else (errors.largest, errors.rms)


def _counts(compiled: Any, case: Case) -> dict[str, Any]:
    import dovetail

    report = dovetail.report(compiled)
    return {
        "graphs": report.graphs,
        "breaks": len(report.breaks),
        "recompiles": len(report.recompiles),
        "kernels": report.kernels,
        "kernels_per_layer": _per_layer(report.forward_launches, case),
        "extern_calls": report.extern_calls,
        "tracing_s": report.tracing_s,
    }


def _per_layer(launches: tuple[tuple[str, int], ...], case: Case) -> int | None:
    """Launches in one layer's forward: of the kernels that every one of the model's equal layers
    (as its config counts them) launches."""
    layers = getattr(getattr(case.model, "config", None), "num_hidden_layers", None)
    if not isinstance(layers, int) or layers < 2:
        return None
    return sum(count // layers for _, count in launches)


def main() -> None:
    """Entry point: argv[1] is the spec; the last line printed is the result."""
    spec = Spec(**json.loads(sys.argv[1]))
    figures = run(spec)
    print(json.dumps(asdict(figures)))


if __name__ == "__main__":
    main()
