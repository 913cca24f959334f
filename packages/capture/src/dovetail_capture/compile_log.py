"""What happened in a context: frames, graphs, breaks, recompiles and the time they took."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from types import CodeType

from dovetail_capture.captured_frame import CapturedFrame, GraphBreak
from dovetail_capture.failures import Failure


@dataclass(frozen=True)
class Event:
    """One thing that happened.

    `kind`: "frame" (captured and compiled), "no graph" (nothing to compile on this path),
    "break", "plain" (a frame that will run uncaptured, and why), "plain floats" (the backend
    failed on symbolic floats: this frame compiles for each value), "static graph" (a graph for one
    size where there would be one for all, and why), "recompile", "limit", "error".
    """

    kind: str
    name: str
    filename: str
    lineno: int
    text: str
    capture_seconds: float = 0.0
    backend_seconds: float = 0.0

    def as_text(self) -> str:
        """One line."""
        seconds = self.capture_seconds + self.backend_seconds
        time = f" [{seconds * 1e3:.1f} ms]" if seconds else ""
        return (
            f"{self.kind}: {self.name} ({self.filename}:{self.lineno}){time} {self.text}".rstrip()
        )


@dataclass(frozen=True)
class FrameRecord:
    """A captured frame with the text of its replacement, kept when a log keeps frames."""

    captured: CapturedFrame
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
    ) -> None:
        """Record an event about a frame of `code`."""
        self.counters[kind] += 1
        self.events.append(
            Event(
                kind,
                code.co_qualname,
                code.co_filename,
                code.co_firstlineno,
                text,
                capture_seconds,
                backend_seconds,
            )
        )

    def add_break(self, code: CodeType, break_: GraphBreak) -> None:
        """Record a graph break."""
        self.breaks.append(break_)
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
