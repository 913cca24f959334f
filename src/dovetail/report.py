"""What a compiled function or module did so far: `dovetail.report(compiled)`."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

from dovetail_capture.api import context_of
from dovetail_capture.captured_frame import GraphBreak
from dovetail_capture.reporting.compile_log import Event, first_few, recompiles_in_short
from dovetail_capture.reporting.failures import Failure

from dovetail.backends.cudagraphs import CudaGraphs
from dovetail.compile_records import CompileRecords, CountsRegions, RegionCount
from dovetail.pipeline import CompilerBackend


@dataclass(frozen=True)
class CaptureReport:
    """What capture made of the program: counts, reasons, seconds.

    `plain_frames` lists frames that run uncompiled, each with its reason. `shape_guards` are the
    relations between sizes that compiled code relies on, newest frame last. `per_float_compiles`
    are frames that are compiled for each value of a float, and why. `name` is that of
    `compile(name=...)`.
    """

    graphs: int
    breaks: tuple[GraphBreak, ...]
    recompiles: tuple[str, ...]
    plain_frames: tuple[str, ...]
    per_float_compiles: tuple[str, ...]
    shape_guards: tuple[str, ...]
    capture_s: float
    compile_s: float
    events: tuple[Event, ...]
    name: str

    def _lines(self, *, verbose: bool) -> list[str]:
        few = list if verbose else first_few
        lines = few([f"break: {b.as_text()}" for b in self.breaks])
        if verbose:
            lines += [f"recompile: {r}" for r in self.recompiles]
            lines += [f"left uncompiled: {p}" for p in self.plain_frames]
        else:
            lines += few([f"recompiled: {r}" for r in recompiles_in_short(self.events)])
            plain = [e.sentence() for e in self.events if e.kind == "plain"]
            lines += few([f"left uncompiled: {p}" for p in plain])
        lines += few([f"shape guard: {guard}" for guard in self.shape_guards])
        return [*lines, *(f"one compilation a float: {r}" for r in self.per_float_compiles)]


@dataclass(frozen=True)
class CodeReport:
    """What was made of the graphs.

    `kernels` and `extern_calls` are summed over the graphs, one call of each; `forward_launches`
    counts the first graph's launches of each distinct kernel. `per_size_compiles` lists graphs of
    symbolic sizes that were compiled for single sizes, and why. `tracing_s` is capture, joint
    tracing, decomposition and partitioning. `autograd` tells of AOT autograd: bytes saved for each
    backward, graphs for other placements of inputs, backwards with `create_graph`, compiled or
    not. `autotuned` tells what was measured and chosen under `max_autotune`, `constant_weights`
    what is computed of weights once, under that option.
    """

    kernels: int
    extern_calls: int
    extern_ops: tuple[tuple[str, int], ...]
    forward_launches: tuple[tuple[str, int], ...]
    per_size_compiles: tuple[str, ...]
    tracing_s: float
    autograd: tuple[str, ...]
    autotuned: tuple[str, ...]
    constant_weights: tuple[str, ...]


@dataclass(frozen=True)
class RunReport:
    """How the graphs run.

    `own_code` are frames that were compiled, but run the program's own code under their guards, as
    it costs no more: nothing that was generated for them runs.
    `cudagraphs` counts the CUDA graphs that are recorded so far; `cudagraph_skips` says what was
    not recorded or replayed, and why. `failures` are errors inside the compiler, for each of which
    a frame or a graph runs uncompiled; `in_full()` of one is what to send to the developers.
    `engine_regions` tells, of a backend around an engine that is not ours (ONNX Runtime, OpenVINO,
    TVM), what of each graph ran there, and what was left as it is, and why.
    """

    own_code: tuple[str, ...]
    cudagraphs: int
    cudagraph_skips: tuple[str, ...]
    failures: tuple[Failure, ...]
    engine_regions: tuple[str, ...]


@dataclass(frozen=True)
class Report(RunReport, CodeReport, CaptureReport):
    """All that is told of something compiled, in the order of the stages."""

    def as_text(self, *, verbose: bool = False) -> str:
        """The report as a person reads it; with `verbose`, however long it is, else the first few
        things of each kind."""
        name = f"{self.name}: " if self.name else ""
        few = list if verbose else first_few
        lines = [
            f"{name}{self.graphs} graphs, {len(self.breaks)} breaks, "
            f"{len(self.recompiles)} recompiles, "
            f"{len(self.plain_frames)} frames left uncompiled",
            f"{self.kernels} generated kernels, {self.extern_calls} library calls in one call each",
            f"capture {self.capture_s:.2f} s, compile {self.compile_s:.2f} s "
            f"(tracing, capture included: {self.tracing_s:.2f} s)",
            *(f"runs uncompiled, internal error: {f.as_text()}" for f in self.failures),
            *self._lines(verbose=verbose),
            *few([f"one compilation a size: {reason}" for reason in self.per_size_compiles]),
        ]
        own_code = [f"runs the program's own code, which costs no more: {o}" for o in self.own_code]
        lines += few(own_code)
        if self.cudagraphs:
            lines.append(f"{self.cudagraphs} CUDA graphs recorded")
        lines += [f"no CUDA graph: {reason}" for reason in self.cudagraph_skips]
        lines += [*self.autograd, *self.constant_weights, *self.engine_regions]
        lines += few([f"measured: {choice}" for choice in self.autotuned])
        lines += few([f"library call: {op} x{count}" for op, count in self.extern_ops])
        return "\n".join(lines)


def report(compiled: Any) -> Report:
    """The report of something that `dovetail.compile` returned, and of all that shares its compiled
    code (`isolate_recompiles` keeps apart).

    Raises TypeError for anything else.
    """
    try:
        context = context_of(compiled)
    except TypeError:
        what = type(compiled).__name__
        raise TypeError(f"{what} does not come from dovetail.compile") from None
    backend = context.backend
    ours = backend if isinstance(backend, CompilerBackend) else None
    records = ours.records if ours is not None else CompileRecords()
    if isinstance(backend, CudaGraphs):
        recorded, skips = backend.graphed, backend.skips()
    else:
        recorded, skips = records.recorded, [] if ours is None else ours.skips()
    counted: list[RegionCount] = backend.counts if isinstance(backend, CountsRegions) else []
    ops = Counter(op for g in records.graphs for op in g.extern_calls)
    log = context.log

    def events(*kinds: str) -> tuple[str, ...]:
        return tuple(e.sentence() for e in log.events if e.kind in kinds)

    return Report(
        graphs=log.graph_count,
        breaks=tuple(log.breaks),
        recompiles=events("recompile"),
        plain_frames=events("plain", "limit"),
        own_code=events("own code"),
        per_float_compiles=events("plain floats"),
        shape_guards=context.shape_guards(),
        capture_s=log.capture_seconds,
        compile_s=log.backend_seconds,
        events=tuple(log.events),
        name=getattr(compiled, "compile_name", ""),
        kernels=sum(g.kernels for g in records.graphs),
        extern_calls=sum(ops.values()),
        extern_ops=tuple(sorted(ops.items())),
        forward_launches=records.graphs[0].launches if records.graphs else (),
        per_size_compiles=(*records.per_size, *events("static graph")),
        tracing_s=log.capture_seconds + records.tracing_s,
        autograd=tuple(records.autograd.lines(named=False)),
        autotuned=ours.tuner.lines() if ours is not None else (),
        constant_weights=tuple(w.as_text() for w in records.weights),
        cudagraphs=sum(g.recorded for g in recorded),
        cudagraph_skips=tuple(skips),
        failures=(*log.failures, *records.failures),
        engine_regions=tuple(c.as_text() for c in counted),
    )
