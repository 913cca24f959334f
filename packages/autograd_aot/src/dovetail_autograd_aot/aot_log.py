"""What AOT autograd and compiled autograd did for their callers: counts and reasons."""

from __future__ import annotations

import logging
from collections import Counter
from dataclasses import dataclass, field

from dovetail_prims.artifact_log import tell
from dovetail_prims.fake_tensor import FakeTensor

from dovetail_autograd_aot.boundary import PartitionedGraph
from dovetail_autograd_aot.trace.node_values import hint, value_bytes

_logger = logging.getLogger("dovetail.autograd")


# As many of the values that a graph saves are named, the largest.
_NAMED = 8


@dataclass(frozen=True)
class SavedSet:
    """What one forward keeps for its backward beyond its inputs: (name, shape and dtype, bytes),
    the largest first; `recomputed` counts operators of the forward that the backward runs again."""

    values: tuple[tuple[str, str, int], ...]
    recomputed: int

    @property
    def bytes(self) -> int:
        """Of all values together, at the sizes of the first call."""
        return sum(size for _, _, size in self.values)

    def as_text(self) -> str:
        """One line, and one for each of the largest values."""
        lines = [
            f"saved for the backward: {len(self.values)} values, {self.bytes:,} bytes; "
            f"{self.recomputed} operators run again"
        ]
        lines += [f"  {name} {kind}: {size:,} bytes" for name, kind, size in self.values[:_NAMED]]
        if len(self.values) > _NAMED:
            lines.append(f"  and {len(self.values) - _NAMED} more")
        return "\n".join(lines)


def saved_set(parts: PartitionedGraph) -> SavedSet:
    """What a cut saves."""
    assert parts.backward is not None
    placeholders = [n for n in parts.backward.graph.nodes if n.op == "placeholder"]
    found = []
    for node in placeholders[len(parts.saved_primals) : len(parts.saved)]:
        value = node.meta["val"]
        kind = type(value).__name__
        if isinstance(value, FakeTensor):
            sizes = ", ".join(str(hint(s)) for s in value._sizes)
            kind = f"({sizes}) {str(value._dtype).removeprefix('torch.')}"
        found.append((node.name, kind, value_bytes(value)))
    found.sort(key=lambda row: -row[2])
    forward = {n.name for n in parts.forward.graph.nodes if n.op == "call_function"}
    again = [n for n in parts.backward.graph.nodes if n.op == "call_function"]
    return SavedSet(tuple(found), sum(n.name in forward for n in again))


@dataclass
class AotLog:
    """What the calls of `aot_compile` that were given this log did so far.

    `placements` counts compilations of a graph anew because inputs that share memory lay otherwise
    in it, and `placements_dropped` those given up since for newer ones (they are compiled anew if
    inputs come to lie so again). `double_backwards` counts compilations of a backward with
    `create_graph`; `replays` calls of one that ran eager's operators instead, by reason.
    `by_way` counts backwards that ran eager's operators because somebody asked for the gradient of
    one output by way of another. `plain_backwards` counts backwards for calls in which some outputs
    had no gradient that were not compiled, by reason; `eager_calls` calls that ran eager's
    operators because nothing can be compiled for how their inputs share memory, or for inputs that
    are views, or too many were.
    `saved` has an entry for each graph with a backward.
    """

    placements: int = 0
    placements_dropped: int = 0
    double_backwards: int = 0
    replays: Counter[str] = field(default_factory=Counter)
    by_way: int = 0
    plain_backwards: Counter[str] = field(default_factory=Counter)
    eager_calls: Counter[str] = field(default_factory=Counter)
    saved: list[SavedSet] = field(default_factory=list)

    def note_double_backward(self) -> None:
        """A backward with `create_graph` was compiled."""
        self.double_backwards += 1

    def note_replay(self, reason: str) -> None:
        """A backward with `create_graph` runs eager's operators."""
        if reason not in self.replays:
            _logger.warning("backward with create_graph runs uncompiled: %s", reason)
        self.replays[reason] += 1

    def note_by_way(self) -> None:
        """A backward runs eager's operators, for the gradient of one output by way of another."""
        if not self.by_way:
            _logger.warning(
                "backward runs uncompiled: the gradient of one output by way of another is asked "
                "for (by a hook, retain_grad() or torch.autograd.grad)"
            )
        self.by_way += 1

    def note_eager_call(self, reason: str) -> None:
        """A call runs eager's operators: its inputs lie as no compiled graph's may."""
        if reason not in self.eager_calls:
            _logger.warning("a compiled graph runs uncompiled: %s", reason)
        self.eager_calls[reason] += 1

    def note_plain_backward(self, reason: str) -> None:
        """A backward that takes some outputs' gradients only runs eager's operators."""
        if reason not in self.plain_backwards:
            _logger.warning("backward of some outputs runs uncompiled: %s", reason)
        self.plain_backwards[reason] += 1

    def lines(self, *, named: bool = True) -> list[str]:
        """What there is to tell, for people; with `named`, which values are saved."""
        found = [kept.as_text() for kept in self.saved]
        if not named:
            found = [text.splitlines()[0] for text in found]
        if self.placements:
            dropped = f", {self.placements_dropped} dropped" if self.placements_dropped else ""
            found.append(
                f"inputs that share memory lay in new ways: {self.placements} compilations{dropped}"
            )
        found += [
            f"{count} calls ran uncompiled, for where their inputs lie: {reason}"
            for reason, count in self.eager_calls.items()
        ]
        if self.double_backwards:
            found.append(f"backward with create_graph: {self.double_backwards} compilations")
        found += [
            f"backward with create_graph ran uncompiled {count} times: {reason}"
            for reason, count in self.replays.items()
        ]
        if self.by_way:
            found.append(
                f"{self.by_way} backwards ran uncompiled, for the gradient of one output by way of "
                "another"
            )
        found += [
            f"{count} backwards of some outputs run uncompiled: {reason}"
            for reason, count in self.plain_backwards.items()
        ]
        return found


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
