"""`Explanation`: what capture made of one call, for people."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from dovetail_guards.clauses import Clause
from torch.fx import GraphModule

from dovetail_capture.captured_frame import GraphBreak
from dovetail_capture.reporting.compile_log import CompileLog, first_few, recompiles_in_short

_MOST_LINES = 24  # of graphs, that are shown without being asked


@dataclass(frozen=True)
class Explanation:
    """What capture made of one call: graphs, breaks, guards, and the code that replaced frames."""

    result: Any
    graphs: tuple[GraphModule, ...]
    breaks: tuple[GraphBreak, ...]
    guards: tuple[str, ...]
    replacements: tuple[str, ...]
    log: CompileLog

    @property
    def graph_count(self) -> int:
        """How many graphs there are."""
        return len(self.graphs)

    @property
    def graph_break_count(self) -> int:
        """How many times the graph broke."""
        return len(self.breaks)

    @property
    def break_reasons(self) -> tuple[GraphBreak, ...]:
        """The breaks, each with its `reason`."""
        return self.breaks

    @property
    def ops_per_graph(self) -> tuple[tuple[Any, ...], ...]:
        """What each graph calls, in order."""
        return tuple(
            tuple(node.target for node in gm.graph.nodes if node.op.startswith("call_"))
            for gm in self.graphs
        )

    @property
    def op_count(self) -> int:
        """How many calls all graphs make."""
        return sum(map(len, self.ops_per_graph))

    @property
    def out_guards(self) -> tuple[Clause, ...]:
        """What all frames' guards check."""
        return tuple(c for frame in self.log.frames for c in frame.guards.clauses)

    @property
    def compile_times(self) -> str:
        """How long capture and the backend took."""
        capture, backend = self.log.capture_seconds, self.log.backend_seconds
        return f"capture {capture:.4f} s, backend {backend:.4f} s"

    @property
    def checks(self) -> tuple[str, ...]:
        """The checks of tensors' data that graphs make, where the program makes them."""
        return tuple(self.log.checks)

    @property
    def reasons(self) -> tuple[str, ...]:
        """Why the graph broke, in words."""
        return tuple(break_.as_text() for break_ in self.breaks)

    def as_text(self, *, verbose: bool = False) -> str:
        """What was captured, for people; with `verbose` all of it."""
        return self._in_full() if verbose else self._in_short()

    def _in_short(self) -> str:
        parts = [f"{len(self.graphs)} graphs, {len(self.breaks)} graph breaks"]
        parts += first_few([f"check {i}: {place}" for i, place in enumerate(self.checks)])
        lines: list[str] = []
        for i, gm in enumerate(self.graphs):
            lines += [f"graph {i}:", *_code_lines(gm)]
        parts += first_few(lines, _MOST_LINES)
        parts += first_few([f"break {i}: {reason}" for i, reason in enumerate(self.reasons)], 4)
        parts += first_few([record.guards.in_short() for record in self.log.frames], 3)
        told = ("frame", "no graph", "break", "recompile", "limit")
        parts += first_few([e.as_text() for e in self.log.events if e.kind not in told])
        parts += recompiles_in_short(self.log.events)
        seconds = self.log.capture_seconds + self.log.backend_seconds
        parts.append(f"{seconds * 1e3:.1f} ms; as_text(verbose=True) tells all guards and code")
        return "\n".join(parts)

    def _in_full(self) -> str:
        parts = [f"{len(self.graphs)} graphs, {len(self.breaks)} graph breaks"]
        parts += [f"check {i}: {place}" for i, place in enumerate(self.checks)]
        parts += [f"graph {i}:\n{gm.code.strip()}" for i, gm in enumerate(self.graphs)]
        parts += [f"break {i}: {reason}" for i, reason in enumerate(self.reasons)]
        parts += list(self.guards)
        parts += [f"replacement {i}:\n{text}" for i, text in enumerate(self.replacements)]
        parts.append(self.log.as_text())
        return "\n".join(parts)

    def __str__(self) -> str:
        return self.as_text()


def _code_lines(gm: GraphModule) -> list[str]:
    """A graph as Python, without the statements that free what is no longer read."""
    return [line.split(";  ")[0].rstrip() for line in gm.code.strip().splitlines() if line.strip()]
