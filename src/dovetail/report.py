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
from dovetail.backends.region_count import CountsRegions
from dovetail.pipeline import CompilerBackend


@dataclass(frozen=True)
class Report:
    """Counts and reasons. `plain_frames` lists frames that run uncompiled, each with its reason.

    `shape_guards` are the relations between sizes that compiled code relies on, newest frame last.
    `per_size_compiles` lists graphs of symbolic sizes that were compiled for single sizes, and
    `per_float_compiles` frames that are compiled for each value of a float, and why.
    `cudagraphs` counts the CUDA graphs that are recorded so far; `cudagraph_skips` says what was
    not recorded or replayed, and why.
    `autograd` tells of AOT autograd: bytes saved for each backward, graphs for other placements of
    inputs, backwards with `create_graph`, compiled or not.
    `autotuned` tells what was measured and chosen under `max_autotune`.
    `constant_weights` tells what is computed of weights once, under that option.
    `failures` are errors inside the compiler, for each of which a frame or a graph runs uncompiled;
    `in_full()` of one is what to send to the developers.
    `engine_regions` tells, of a backend around an engine that is not ours (ONNX Runtime, OpenVINO,
    TVM), what of each graph ran there, and what was left as it is, and why.
    `forward_launches` counts the first graph's launches of each distinct kernel.
    `tracing_s` is capture, joint tracing, decomposition and partitioning, of all graphs.
    `kernels` and `extern_calls` are summed over the compiled graphs, one call of each.
    """

    graphs: int
    breaks: tuple[GraphBreak, ...]
    recompiles: tuple[str, ...]
    plain_frames: tuple[str, ...]
    per_size_compiles: tuple[str, ...]
    per_float_compiles: tuple[str, ...]
    shape_guards: tuple[str, ...]
    kernels: int
    extern_calls: int
    extern_ops: tuple[tuple[str, int], ...]
    capture_s: float
    compile_s: float
    tracing_s: float
    cudagraphs: int
    cudagraph_skips: tuple[str, ...]
    forward_launches: tuple[tuple[str, int], ...]
    autograd: tuple[str, ...] = ()
    autotuned: tuple[str, ...] = ()
    constant_weights: tuple[str, ...] = ()
    failures: tuple[Failure, ...] = ()
    engine_regions: tuple[str, ...] = ()
    name: str = ""  # by `compile(name=...)`
    events: tuple[Event, ...] = ()

    def as_text(self, *, verbose: bool = False) -> str:
        """The report as a person reads it; with `verbose`, however long it is, else the first few
        things of each kind."""
        name = f"{self.name}: " if self.name else ""
        lines = [
            f"{name}{self.graphs} graphs, {len(self.breaks)} breaks, "
            f"{len(self.recompiles)} recompiles, "
            f"{len(self.plain_frames)} frames left uncompiled",
            f"{self.kernels} generated kernels, {self.extern_calls} library calls in one call each",
            f"capture {self.capture_s:.2f} s, compile {self.compile_s:.2f} s "
            f"(tracing, capture included: {self.tracing_s:.2f} s)",
        ]
        lines += [f"runs uncompiled, internal error: {f.as_text()}" for f in self.failures]
        few = _all if verbose else first_few
        lines += few([f"break: {b.as_text()}" for b in self.breaks])
        if verbose:
            lines += [f"recompile: {r}" for r in self.recompiles]
            lines += [f"left uncompiled: {p}" for p in self.plain_frames]
        else:
            lines += few([f"recompiled: {r}" for r in recompiles_in_short(self.events)])
            plain = [e.sentence() for e in self.events if e.kind == "plain"]
            lines += few([f"left uncompiled: {p}" for p in plain])
        lines += few([f"shape guard: {guard}" for guard in self.shape_guards])
        lines += few([f"one compilation a size: {reason}" for reason in self.per_size_compiles])
        lines += [f"one compilation a float: {reason}" for reason in self.per_float_compiles]
        if self.cudagraphs:
            lines.append(f"{self.cudagraphs} CUDA graphs recorded")
        lines += [f"no CUDA graph: {reason}" for reason in self.cudagraph_skips]
        lines += self.autograd
        lines += self.constant_weights
        lines += self.engine_regions
        lines += few([f"measured: {choice}" for choice in self.autotuned])
        lines += few([f"library call: {op} x{count}" for op, count in self.extern_ops])
        return "\n".join(lines)


def _all(parts: list[str]) -> list[str]:
    return parts


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
    recorder = backend if isinstance(backend, CompilerBackend | CudaGraphs) else None
    graphs = ours.compiled if ours is not None else []
    ops = Counter(op for g in graphs for op in g.extern_calls)
    log = context.log

    def events(*kinds: str) -> tuple[str, ...]:
        return tuple(e.sentence() for e in log.events if e.kind in kinds)

    return Report(
        graphs=log.graph_count,
        breaks=tuple(log.breaks),
        recompiles=events("recompile"),
        plain_frames=events("plain", "limit"),
        per_size_compiles=(
            *(ours.per_size_compiles if ours is not None else ()),
            *events("static graph"),
        ),
        per_float_compiles=events("plain floats"),
        shape_guards=context.shape_guards(),
        kernels=sum(g.kernels for g in graphs),
        extern_calls=sum(ops.values()),
        extern_ops=tuple(sorted(ops.items())),
        capture_s=log.capture_seconds,
        compile_s=log.backend_seconds,
        tracing_s=log.capture_seconds + (ours.aot_s if ours is not None else 0.0),
        forward_launches=graphs[0].launches if graphs else (),
        cudagraphs=sum(g.recorded for g in recorder.graphed) if recorder is not None else 0,
        cudagraph_skips=tuple(recorder.skips()) if recorder is not None else (),
        autograd=tuple(ours.aot.lines(named=False)) if ours is not None else (),
        autotuned=ours.tuner.lines() if ours is not None else (),
        constant_weights=tuple(w.as_text() for w in ours.weights) if ours is not None else (),
        engine_regions=(
            tuple(c.as_text() for c in backend.counts) if isinstance(backend, CountsRegions) else ()
        ),
        failures=(*log.failures, *(ours.failures if ours is not None else ())),
        name=getattr(compiled, "compile_name", ""),
        events=tuple(log.events),
    )
