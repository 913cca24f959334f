"""What compiled autograd did so far."""

from __future__ import annotations

import logging
from collections import Counter
from dataclasses import dataclass, field

from dovetail_prims.artifact_log import tell

_logger = logging.getLogger("dovetail.autograd")


@dataclass
class BackwardReport:
    """Counts of backward passes and of graphs.

    `recorded` passes ran on autograd's engine while they were written down, `compiled` ones as one
    compiled graph, `on_engine` ones on the engine because they cannot be one graph, by reason.
    `graphs` counts compilations, of which `symbolic` are for more sizes than one. `opaque_calls`
    are the Python functions (hooks, backwards of functions) that the graphs call. `taken_over`
    counts compiled passes that the engine finished, because a function did otherwise than before.
    """

    recorded: int = 0
    compiled: int = 0
    graphs: int = 0
    symbolic: int = 0
    opaque_calls: int = 0
    on_engine: Counter[str] = field(default_factory=Counter)
    taken_over: Counter[str] = field(default_factory=Counter)
    codes: list[str] = field(default_factory=list)  # of the graphs, as Python text

    def note_compiled(self, code: str, symbolic: bool, opaque_calls: int) -> None:
        """A recorded pass was compiled as one graph, whose Python text is `code`."""
        self.graphs += 1
        self.symbolic += symbolic
        self.opaque_calls += opaque_calls
        self.codes.append(code)
        sizes = "any sizes" if symbolic else "these sizes"
        head = f"# backward {self.graphs}, for {sizes}, with {opaque_calls} calls of Python"
        tell("compiled_autograd", "", lambda: f"{head}\n{code.strip()}", suffix="py")

    def note_on_engine(self, reason: str) -> None:
        """A pass runs on the engine."""
        if reason not in self.on_engine:
            _logger.warning("a backward pass runs on autograd's engine: %s", reason)
        self.on_engine[reason] += 1

    def note_refused(self, reason: str) -> None:
        """The compiler raised an error for a recorded pass."""
        _logger.warning("a recorded backward pass is not compiled: %s", reason)

    def note_taken_over(self, reason: str) -> None:
        """The engine takes over."""
        if reason not in self.taken_over:
            _logger.warning("autograd's engine takes over a compiled backward pass: %s", reason)
        self.taken_over[reason] += 1

    def as_text(self) -> str:
        """Everything, for people."""
        lines = [
            f"backward passes: {self.compiled} compiled, {self.recorded} recorded, "
            f"{sum(self.on_engine.values())} on the engine; {self.graphs} graphs "
            f"({self.symbolic} for several sizes) with {self.opaque_calls} calls of Python "
            "functions"
        ]
        lines += [f"on the engine {n} times: {reason}" for reason, n in self.on_engine.items()]
        lines += [f"taken over {n} times: {reason}" for reason, n in self.taken_over.items()]
        return "\n".join(lines)

    __str__ = as_text
