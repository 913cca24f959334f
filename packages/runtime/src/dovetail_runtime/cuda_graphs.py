"""Record a loaded plan as CUDA graphs, one for each set of shapes, and replay it.

Inputs are copied into memory that the graph reads, except those declared static (parameters,
buffers), whose addresses the graph holds. What a plan writes into an input is written there by
the replay itself (static) or copied back (others). Graphs of one `GraphPool` share memory.

When recording is impossible or does not pay, the plan simply runs, and `skip_reasons` says why.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import torch

from dovetail_runtime.artifact import CompiledArtifact
from dovetail_runtime.plan import CopyInto, Plan, View

Value = torch.Tensor | int | None

# A static input that moved this often is copied from then on.
_MOVES_BEFORE_COPYING = 2


class GraphPool:
    """Memory that several graphs share. Graphs of one pool must be replayed on one stream."""

    def __init__(self) -> None:
        self.handle = torch.cuda.graph_pool_handle()
        self.stream: torch.cuda.Stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]


@dataclass
class _Recording:
    graph: torch.cuda.CUDAGraph
    inputs: list[torch.Tensor | int]  # what the graph reads: own copies, or the static inputs
    addresses: dict[int, int]  # of the static inputs
    outputs: tuple[Value, ...]


@dataclass
class GraphedArtifact:
    """Calls like the artifact, through CUDA graphs where that works.

    `static_inputs`: positions of inputs that stay where they are between calls. `copy_outputs`:
    hand out copies; without it an output's memory is overwritten by the next call. `max_graphs`
    and `memory_budget` (bytes of input copies and outputs) limit what is recorded.
    """

    artifact: CompiledArtifact
    pool: GraphPool
    static_inputs: frozenset[int] = frozenset()
    copy_outputs: bool = True
    max_graphs: int = 8
    memory_budget: int | None = None
    skip_reasons: list[str] = field(default_factory=list)
    _recordings: dict[tuple[Any, ...], _Recording] = field(default_factory=dict)
    _refused: set[tuple[Any, ...]] = field(default_factory=set)
    _moves: dict[int, int] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _bytes: int = 0
    _mutated: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        self._mutated = tuple(mutated_inputs(self.artifact.plan))

    def __call__(self, *inputs: torch.Tensor | int) -> tuple[Value, ...]:
        """Replay, or record first, or run directly with a reason in `skip_reasons`."""
        # Static inputs are those of the first recording: their addresses are compared instead.
        static = self.static_inputs
        key = shape_key(v for i, v in enumerate(inputs) if i not in static)
        with self._lock:
            if key in self._refused:
                return self.artifact.run(*inputs)
            recording = self._recordings.get(key)
            if recording is not None and self._moved(recording, inputs):
                self._recordings.pop(key)
                recording = None
            if recording is None:
                reason = self._reason_against(inputs)
                if reason is None:
                    try:
                        recording = self._record(inputs)
                    except RuntimeError as error:
                        reason = f"recording failed: {error}"
                if recording is None:
                    self.skip_reasons.append(f"{self.artifact.plan.name}: {reason}")
                    self._refused.add(key)
                    return self.artifact.run(*inputs)
                self._recordings[key] = recording
            return self._replay(recording, inputs)

    # --- decisions ---

    def _static(self) -> set[int]:
        return {i for i in self.static_inputs if self._moves.get(i, 0) < _MOVES_BEFORE_COPYING}

    def _moved(self, recording: _Recording, inputs: tuple[torch.Tensor | int, ...]) -> bool:
        moved = [i for i, address in recording.addresses.items() if _address(inputs[i]) != address]
        for position in moved:
            self._moves[position] = self._moves.get(position, 0) + 1
        return bool(moved)

    def _reason_against(self, inputs: tuple[torch.Tensor | int, ...]) -> str | None:
        if self.artifact.plan.target != "cuda":
            return "the plan does not run on a GPU"
        for position, value in enumerate(inputs):
            if isinstance(value, torch.Tensor) and not value.is_cuda:
                return f"input {position} is on {value.device}, which a replay would not read again"
        if len(self._recordings) >= self.max_graphs:
            return f"{self.max_graphs} graphs are recorded already, for other shapes"
        wanted = self._copy_bytes(inputs)
        if self.memory_budget is not None and self._bytes + wanted > self.memory_budget:
            return f"{wanted} more bytes of input copies exceed the budget of {self.memory_budget}"
        return None

    def _copy_bytes(self, inputs: tuple[torch.Tensor | int, ...]) -> int:
        static = self._static()
        return sum(
            value.untyped_storage().nbytes()
            for position, value in enumerate(inputs)
            if isinstance(value, torch.Tensor) and position not in static
        )

    # --- recording and replay ---

    def _record(self, inputs: tuple[torch.Tensor | int, ...]) -> _Recording:
        static = self._static()
        held: list[torch.Tensor | int] = [
            _copy_of(value) if isinstance(value, torch.Tensor) and i not in static else value
            for i, value in enumerate(inputs)
        ]
        mutated = self._mutated
        # One plain run first: libraries set themselves up in their first call, which a recording
        # must not see. What it writes into inputs and draws from the generator is undone, so that a
        # call happens once.
        before = {i: _tensor(held[i]).detach().clone() for i in mutated}
        random_state = torch.cuda.get_rng_state()
        self.pool.stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.pool.stream):
            self.artifact.run(*held)
            for position, value in before.items():
                _tensor(held[position]).detach().copy_(value)
        torch.cuda.set_rng_state(random_state)
        torch.cuda.current_stream().wait_stream(self.pool.stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self.pool.handle, stream=self.pool.stream):
            outputs = self.artifact.run(*held)
        self._bytes += self._copy_bytes(inputs)
        addresses = {i: _address(inputs[i]) for i in static}
        return _Recording(graph, held, addresses, outputs)

    def _replay(
        self, recording: _Recording, inputs: tuple[torch.Tensor | int, ...]
    ) -> tuple[Value, ...]:
        mine: list[torch.Tensor] = []
        given: list[torch.Tensor] = []
        for position, value in enumerate(inputs):
            held = recording.inputs[position]
            if isinstance(value, torch.Tensor) and position not in recording.addresses:
                mine.append(_tensor(held))
                given.append(value.detach())
        if mine:
            torch._foreach_copy_(mine, given)
        recording.graph.replay()
        for position in self._mutated:
            target = _tensor(inputs[position])
            if position in recording.addresses:
                torch.autograd.graph.increment_version(target)
            else:
                target.detach().copy_(_tensor(recording.inputs[position]))
        return tuple(self._output(output, recording, inputs) for output in recording.outputs)

    def _output(
        self, output: Value, recording: _Recording, inputs: tuple[torch.Tensor | int, ...]
    ) -> Value:
        if not isinstance(output, torch.Tensor):
            return output
        for position, held in enumerate(recording.inputs):
            if output is held:
                return inputs[position]
        return output.clone() if self.copy_outputs else output


def shape_key(inputs: Iterable[torch.Tensor | int]) -> tuple[Any, ...]:
    """What must be equal for one recording to serve: ints, shapes and strides."""
    return tuple(
        (v.shape, v.stride(), v.dtype) if isinstance(v, torch.Tensor) else v for v in inputs
    )


def mutated_inputs(plan: Plan) -> list[int]:
    """Positions of the inputs that the plan writes to."""
    roots = {declared.name: declared.name for declared in plan.inputs}
    written = set(plan.mutated)
    for step in plan.steps:
        if isinstance(step, View) and step.base in roots:
            roots[step.name] = roots[step.base]
        elif isinstance(step, CopyInto):
            written.add(step.target)
    names = {roots[name] for name in written if name in roots}
    return [i for i, declared in enumerate(plan.inputs) if declared.name in names]


def _address(value: torch.Tensor | int) -> int:
    return value.data_ptr() if isinstance(value, torch.Tensor) else value


def _tensor(value: torch.Tensor | int) -> torch.Tensor:
    assert isinstance(value, torch.Tensor)
    return value


def _copy_of(value: torch.Tensor) -> torch.Tensor:
    """Memory of the same shape and strides with the same contents."""
    plain = value.detach()
    made = torch.empty_strided(plain.shape, plain.stride(), dtype=plain.dtype, device=plain.device)
    return made.copy_(plain)


__all__ = ["GraphPool", "GraphedArtifact", "mutated_inputs", "shape_key"]
