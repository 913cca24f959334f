"""What happened in a context: frames, graphs, breaks, recompiles and the time they took; and what
can be shown of a captured frame: its graph, guards and bytecode (see `artifact_log`)."""

from __future__ import annotations

import dis
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from types import CodeType
from typing import Any

import torch
from dovetail_guards.guard_set import GuardSet
from dovetail_prims.artifact_log import is_wanted, tell

from dovetail_capture.captured_frame import CapturedFrame, GraphBreak
from dovetail_capture.errors import place_of
from dovetail_capture.reporting.failures import Failure, place_in

_OF_GRAPH = ("graph", "graph_code", "graph_sizes")
_OF_FRAME = ("guards", "bytecode", "dynamic")


def tell_of_graph(frame: CapturedFrame) -> None:
    """Log the graph of a frame, as it was captured."""
    gm = frame.graph
    if gm is None or not any(map(is_wanted, _OF_GRAPH)):
        return
    place = place_in(gm)
    tell("graph", place, lambda: str(gm.graph))
    tell("graph_code", place, lambda: gm.code.strip(), suffix="py", value=frame)
    tell("graph_sizes", place, lambda: _sizes(gm))


def tell_of_frame(root: CodeType, frame: CapturedFrame, guards: GuardSet, code: CodeType) -> None:
    """Log what lets a frame's compiled code run, and the bytecode of it."""
    if not any(map(is_wanted, _OF_FRAME)):
        return
    place = place_of(root) if frame.graph is None else place_in(frame.graph)
    tell("guards", place, guards.as_text)
    shapes = frame.shape_env
    if shapes is not None and shapes.hints:
        tell("dynamic", place, shapes.as_text)
    tell("bytecode", place, lambda: f"original:\n{_listing(root)}\nreplacement:\n{_listing(code)}")


def _listing(code: CodeType) -> str:
    return dis.Bytecode(code).dis()


def _sizes(gm: torch.fx.GraphModule) -> str:
    rows = [f"{node.name}: {_size(node.meta.get('val'))}" for node in gm.graph.nodes]
    return "\n".join(row for row in rows if not row.endswith(": "))


def _size(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return f"{tuple(value.shape)} {str(value.dtype).removeprefix('torch.')}"
    if isinstance(value, tuple | list):
        return ", ".join(map(_size, value))
    return "" if value is None else str(value)


@dataclass(frozen=True)
class Change:
    """A value for which a call fitted nothing compiled: its name, what it was and is (as text), and
    what to do."""

    subject: str
    wanted: str
    found: str
    hint: str


@dataclass(frozen=True)
class Event:
    """One thing that happened.

    `kind`: "frame" (captured and compiled), "own code" (compiled, but what runs is the program's
    own code, which costs no more), "no graph" (nothing to compile on this path), "break", "plain"
    (a frame that will run uncaptured, and why), "plain floats" (the backend failed on symbolic
    floats: this frame compiles for each value), "static graph" (a graph for one size where there
    would be one for all, and why), "recompile", "limit", "error".
    """

    kind: str
    name: str
    filename: str
    lineno: int
    text: str
    capture_seconds: float = 0.0
    backend_seconds: float = 0.0
    change: Change | None = None

    @property
    def place(self) -> str:
        """The function, its file and line."""
        return f"{self.name} ({self.filename}:{self.lineno})"

    def as_text(self) -> str:
        """What happened, where, and what is to be said of it."""
        return f"{self.kind}: {self.sentence()}"

    def sentence(self) -> str:
        """The text without the kind."""
        seconds = self.capture_seconds + self.backend_seconds
        time = f" [{seconds * 1e3:.1f} ms]" if seconds else ""
        return f"{self.place}{time} {self.text}".rstrip()


def first_few(parts: list[str], most: int = 5) -> list[str]:
    """The first of many texts, and how many more there are."""
    more = len(parts) - most
    return parts if more <= 0 else [*parts[:most], f"... and {more} more (verbose=True)"]


_FEW = 2  # recompilations of one kind that are told one by one
_MOST_VALUES = 6


def recompiles_in_short(events: Iterable[Event]) -> list[str]:
    """Recompilations, those of a frame for other values of one thing in one sentence."""
    groups: dict[tuple[str, str, str], list[Event]] = {}
    for event in events:
        if event.kind in ("recompile", "limit"):
            change = event.change
            kind = (change.subject, change.hint) if change is not None else (event.text, "")
            groups.setdefault((event.place, *kind), []).append(event)
    lines: list[str] = []
    for (place, subject, hint), group in groups.items():
        if group[0].change is None or len(group) <= _FEW:
            lines += [event.sentence() for event in group]
            continue
        changes = [event.change for event in group if event.change is not None]
        values = list(dict.fromkeys(v for one in changes for v in (one.wanted, one.found)))
        shown = values
        if len(values) > _MOST_VALUES:
            shown = [*values[: _MOST_VALUES - 1], "...", values[-1]]
        text = f"{place} {len(values)} values of {subject} ({', '.join(shown)})"
        if group[-1].kind == "limit":
            text += "; the recompile limit is reached: other calls run uncompiled"
        lines.append(f"{text}\n  hint: {hint}" if hint else text)
    return lines


# Through which logger an event is told, besides breaks.
_ARTIFACTS = {
    "frame": "dynamo",
    "own code": "dynamo",
    "no graph": "dynamo",
    "recompile": "recompiles",
    "limit": "recompiles",
    "plain": "perf_hints",
    "plain floats": "perf_hints",
    "static graph": "perf_hints",
}


@dataclass(frozen=True)
class FrameRecord:
    """A captured frame with the guards of its version, those that the backend wanted included, and
    the text of its replacement; kept when a log keeps frames."""

    captured: CapturedFrame
    guards: GuardSet
    replacement: str


@dataclass
class CompileLog:
    """The events of one context, in order. `keep_frames` also keeps graphs and replacements.
    `failures` are internal errors, for each of which a graph or a frame runs uncompiled."""

    keep_frames: bool = False
    events: list[Event] = field(default_factory=list)
    breaks: list[GraphBreak] = field(default_factory=list)
    checks: list[str] = field(default_factory=list)  # of tensors' data, which graphs make
    frames: list[FrameRecord] = field(default_factory=list)
    counters: Counter[str] = field(default_factory=Counter)
    failures: list[Failure] = field(default_factory=list)

    def add(
        self,
        kind: str,
        code: CodeType,
        text: str = "",
        *,
        capture_seconds: float = 0.0,
        backend_seconds: float = 0.0,
        change: Change | None = None,
    ) -> None:
        """Record an event about a frame of `code`."""
        self.counters[kind] += 1
        event = Event(
            kind,
            code.co_qualname,
            code.co_filename,
            code.co_firstlineno,
            text,
            capture_seconds,
            backend_seconds,
            change,
        )
        self.events.append(event)
        artifact = _ARTIFACTS.get(kind)
        if artifact is not None:
            tell(artifact, event.place, event.sentence, payload=event)

    def add_break(self, code: CodeType, break_: GraphBreak) -> None:
        """Record a graph break."""
        self.breaks.append(break_)
        tell("graph_breaks", place_of(code), break_.as_text, payload=break_)
        self.add("break", code, break_.as_text())

    @property
    def graph_count(self) -> int:
        """How many graphs were compiled."""
        return self.counters["graph"]

    @property
    def capture_seconds(self) -> float:
        """Time spent in capture, all frames together."""
        return sum(event.capture_seconds for event in self.events)

    @property
    def backend_seconds(self) -> float:
        """Time spent in the backend, all frames together."""
        return sum(event.backend_seconds for event in self.events)

    def as_text(self) -> str:
        """All events, one a line."""
        return "\n".join(event.as_text() for event in self.events)

    def clear(self) -> None:
        """Forget everything."""
        self.events.clear()
        self.breaks.clear()
        self.checks.clear()
        self.frames.clear()
        self.counters.clear()
        self.failures.clear()
