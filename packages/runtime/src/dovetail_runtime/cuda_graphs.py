"""Record a loaded plan as CUDA graphs, one for each set of shapes, and replay it.

Inputs are copied into memory that the graph reads, except those that stayed where they were from
call to call (parameters, buffers, what another graph hands out), whose addresses the graph holds.
What a plan writes into an input is written there by the replay itself (if it stays) or copied back
(others).

When recording is impossible or does not pay, the plan simply runs, and `skips` says why and, of
single calls, how often.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.autograd import profiler

from dovetail_runtime.artifact import CompiledArtifact
from dovetail_runtime.graph_pool import GraphPool, Input, Value, mutated_inputs
from dovetail_runtime.graph_recording import Recording, RecordingPolicy, Timing, address, record
from dovetail_runtime.lifetimes import computes_on_cpu
from dovetail_runtime.plan import Bind, CallAten, Choose, LaunchTriton, Plan, While

# An input that moved this often is copied from then on.
_MOVES_BEFORE_COPYING = 2
# Results that were still in use so often when they would have been overwritten are copied.
_WAITS_BEFORE_COPYING = 3
# Shapes whose graph has to be recorded anew more often than this are left alone.
_MOST_RECORDINGS = 8
# Launches matter unless the GPU takes this many times as long as the CPU.
_SLACK = 2.0
# Fewer launches than this take no longer than a replay.
_FEWEST_LAUNCHES = 4
# Copying results may take so much of the time that launching takes, at this rate in bytes a second
# (of an H100, which reads and writes them).
_MOST_COPYING = 0.25
_COPY_RATE = 1e12
# So many shapes are watched at once, each for so many calls until it is clear which inputs move.
_MOST_SHAPES = 64
_MOST_WATCHED = 5

_UNSEEN: AbstractContextManager[None] = nullcontext()
_MOVED = "inputs were elsewhere than when the graph was recorded"
_IN_USE = "results of an earlier call, which a replay would have overwritten, were still in use"


@dataclass
class _Watch:
    """What moves between calls: `places` are the addresses of the inputs in the last call,
    `moving` those that were elsewhere than in the call before."""

    places: dict[int, int]
    moving: frozenset[int] | None = None
    calls: int = 1

    def settles(self, now: dict[int, int]) -> bool:
        """Note a further call; is it clear by now which inputs move?"""
        known = self.moving
        self.moving = frozenset(i for i, place in now.items() if self.places.get(i) != place)
        self.places = now
        self.calls += 1
        return not self.moving or self.moving == known or self.calls >= _MOST_WATCHED


@dataclass
class _Shapes:
    """Calls with inputs of the same shapes. `moved`: what was elsewhere in the last call, of what
    the recording takes for static."""

    watch: _Watch
    timing: Timing | None = None
    recording: Recording | None = None
    recordings: int = 0
    moved: dict[int, int] = field(default_factory=dict)
    moves: Counter[int] = field(default_factory=Counter)
    waits: int = 0
    copied_out: set[int] = field(default_factory=set)
    refused: bool = False


@dataclass
class GraphedArtifact:
    """Calls like the artifact, through CUDA graphs where that works and the policy allows it.

    The first calls of some shapes run the plan, until it is clear which inputs move from call to
    call: the second is recorded if none did, else the first in which the same ones moved as before.
    The others are taken for static. `told` is given a line for each graph that is recorded, and for
    each reason that one is not.
    """

    artifact: CompiledArtifact
    pool: GraphPool
    policy: RecordingPolicy = field(default_factory=RecordingPolicy)
    told: Callable[[str], object] | None = None
    never_records: bool = False  # calls only run the plan
    _reasons: list[str] = field(default_factory=list)
    _plain_calls: Counter[str] = field(default_factory=Counter)
    _shapes: dict[Any, _Shapes] = field(default_factory=dict)
    _one_shape: bool = False

    def __post_init__(self) -> None:
        plan = self.artifact.plan
        self._one_shape = not plan.symbols
        reason = _reason_against(plan, self.pool, self.policy.only_launch_bound)
        if reason is not None:
            self.never_records = True
            self._note_reason(reason)

    def __call__(self, *inputs: Input) -> tuple[Value, ...]:
        """Replay, or record first, or run directly, which `skips` then tells."""
        if self.never_records or self.pool.is_capturing():
            return self.artifact.run(*inputs)
        with self.pool.lock:
            ready = self._ready(inputs)
            if isinstance(ready, Recording):
                with in_profile(self.artifact.label):
                    return ready.replay(inputs, self.pool.take_turn())
        if ready is not None:
            return ready.run(self.artifact, inputs)
        return self.artifact.run(*inputs)

    def run_consuming(self, inputs: list[Input]) -> tuple[Value, ...]:
        """As the artifact's: the tensors in `inputs` are given away."""
        ready = None
        if not self.never_records and not self.pool.is_capturing():
            with self.pool.lock:
                ready = self._ready(tuple(inputs))
                if isinstance(ready, Recording):
                    with in_profile(self.artifact.label):
                        outputs = ready.replay(tuple(inputs), self.pool.take_turn())
                    inputs.clear()
                    return outputs
        if isinstance(ready, Timing):
            return ready.run(self.artifact, inputs)
        return self.artifact.run_consuming(inputs)

    @property
    def recorded(self) -> int:
        """How many graphs are recorded."""
        return sum(shapes.recording is not None for shapes in self._shapes.values())

    def skips(self) -> list[str]:
        """What is not recorded or replayed, and why."""
        name = self.artifact.plan.name
        calls = [f"{count} calls ran the plan: {why}" for why, count in self._plain_calls.items()]
        return [f"{name}: {text}" for text in (*self._reasons, *calls)]

    # --- decisions ---

    def _ready(self, inputs: tuple[Input, ...]) -> Recording | Timing | None:
        """What this call goes through; None: through nothing but the plan."""
        # Addresses tell of static inputs; and a plan without symbols has one set of shapes.
        key: Any = ()
        if not self._one_shape:
            static = self.policy.static_inputs
            key = shape_key(v for i, v in enumerate(inputs) if i not in static)
        shapes = self._shapes.get(key)
        if shapes is None:
            self._watch(key, inputs)
            return None
        if shapes.refused:
            return None
        recording = shapes.recording
        if recording is None:
            return self._decided(shapes, inputs)
        if not recording.lies_in_place(inputs):
            now = recording.moved(inputs)
            del recording  # its memory may go
            return self._after_a_move(shapes, now, inputs)
        if shapes.moved:
            shapes.moved = {}
        if recording.is_free():
            return recording
        in_use = recording.in_use()
        del recording
        return self._after_a_wait(shapes, in_use, inputs)

    def _watch(self, key: Any, inputs: tuple[Input, ...]) -> None:
        if len(self._shapes) >= _MOST_SHAPES:
            del self._shapes[next(k for k, s in self._shapes.items() if s.recording is None)]
        self._shapes[key] = _Shapes(_Watch(_addresses(inputs)))

    def _decided(self, shapes: _Shapes, inputs: tuple[Input, ...]) -> Recording | Timing | None:
        """Not the first call of these shapes, and none is recorded yet."""
        settled = shapes.watch.settles(_addresses(inputs))
        if self.policy.only_launch_bound:
            if shapes.timing is None:
                shapes.timing = Timing()
                return shapes.timing
            if not shapes.timing.is_over():
                return None
            reason = reason_against(shapes.timing)
            if reason is not None:
                self._refuse(shapes, reason)
                return None
        return self._recorded(shapes, inputs) if settled else None

    def _recorded(self, shapes: _Shapes, inputs: tuple[Input, ...]) -> Recording | None:
        reason = self._reason_against(inputs)
        if reason is None and shapes.recordings >= _MOST_RECORDINGS:
            reason = f"recorded {_MOST_RECORDINGS} times, what it relies on keeps changing"
        if reason is not None:
            self._refuse(shapes, reason)
            return None
        shapes.recordings += 1
        moving = (shapes.watch.moving or frozenset()) - self.policy.static_inputs
        stays = {
            i
            for i, value in enumerate(inputs)
            if isinstance(value, torch.Tensor)
            and i not in moving
            and shapes.moves[i] < _MOVES_BEFORE_COPYING
        }
        try:
            shapes.recording = record(
                self.artifact, inputs, stays, self.pool, self.policy, shapes.copied_out
            )
        except RuntimeError as error:
            self._refuse(shapes, f"recording failed: {error}")
        else:
            self._tell(f"recorded (number {shapes.recordings} for inputs of these shapes)")
        return shapes.recording

    def _refuse(self, shapes: _Shapes, reason: str) -> None:
        shapes.refused = True
        self._note_reason(reason)
        self.never_records = self._one_shape

    def _note_reason(self, reason: str) -> None:
        if reason not in self._reasons:
            self._reasons.append(reason)
            self._tell(f"not recorded: {reason}")

    def _tell(self, what: str) -> None:
        if self.told is not None:
            self.told(f"{self.artifact.plan.name}: {what}")

    def _after_a_move(
        self, shapes: _Shapes, now: dict[int, int], inputs: tuple[Input, ...]
    ) -> Recording | None:
        """Once, the plan runs. Twice in a row, it is recorded anew: what lies at the same new place
        both times is static there."""
        before, shapes.moved = shapes.moved, now
        if not before:
            self._plain_calls[_MOVED] += 1
            return None
        for i, place in now.items():
            shapes.moves[i] += 1 if before.get(i) == place else _MOVES_BEFORE_COPYING
        return self._recorded_anew(shapes, inputs)

    def _after_a_wait(
        self, shapes: _Shapes, in_use: set[int], inputs: tuple[Input, ...]
    ) -> Recording | None:
        """The plan runs; if it comes often, what was in use is copied from now on."""
        shapes.waits += 1
        if shapes.waits < _WAITS_BEFORE_COPYING:
            self._plain_calls[_IN_USE] += 1
            return None
        shapes.waits = 0
        shapes.copied_out |= in_use
        return self._recorded_anew(shapes, inputs)

    def _recorded_anew(self, shapes: _Shapes, inputs: tuple[Input, ...]) -> Recording | None:
        assert shapes.recording is not None
        shapes.watch.moving = frozenset(shapes.recording.copied)
        shapes.recording = None
        shapes.moved = {}
        return self._recorded(shapes, inputs)

    def _reason_against(self, inputs: tuple[Input, ...]) -> str | None:
        for position, value in enumerate(inputs):
            if isinstance(value, torch.Tensor) and value.device != self.pool.device:
                if value.device.type == self.pool.device.type:
                    return f"input {position} is on {value.device}, not where the other graphs are"
                return f"input {position} is on {value.device}, which a replay would not read again"
        if self.recorded >= self.policy.max_graphs:
            return f"{self.policy.max_graphs} graphs are recorded already, for other shapes"
        return None


def _reason_against(plan: Plan, pool: GraphPool, only_launch_bound: bool) -> str | None:
    if plan.target != pool.target:
        return "the plan does not run on a GPU"
    launches = sum(isinstance(step, LaunchTriton | CallAten) for step in plan.steps)
    if only_launch_bound and launches < _FEWEST_LAUNCHES:
        return f"{launches} launches take no longer than a replay"
    if any(isinstance(step, Bind) for step in plan.steps):
        return "sizes depend on data, which the CPU has to wait for"
    if any(isinstance(step, Choose) for step in plan.steps):
        return "the data tells which branch of a torch.cond runs, and the CPU has to wait for it"
    if any(isinstance(step, While) for step in plan.steps):
        return "the data tells how often a torch.while_loop runs, and the CPU has to wait for it"
    if any(computes_on_cpu(step) for step in plan.steps):
        return "a part of it is computed by the CPU, which a replay would not do again"
    return None


def reason_against(timing: Timing) -> str | None:
    """Why a recording would not make the calls of this shape faster; None if it would."""
    gpu, launching = timing.gpu_seconds(), timing.seconds
    if gpu > _SLACK * launching:
        return (
            f"launches ({launching * 1e3:.2f} ms) are not what takes the time "
            f"({gpu * 1e3:.2f} ms on the GPU)"
        )
    if timing.result_bytes / _COPY_RATE > _MOST_COPYING * launching:
        return (
            f"copying {timing.result_bytes} bytes of results would take longer than launches "
            f"({launching * 1e3:.2f} ms) should"
        )
    return None


def _addresses(inputs: tuple[Input, ...]) -> dict[int, int]:
    return {i: address(v) for i, v in enumerate(inputs) if isinstance(v, torch.Tensor)}


def shape_key(inputs: Iterable[Input]) -> tuple[Any, ...]:
    """What must be equal for one recording to serve: ints, shapes and strides."""
    return tuple(
        (v.shape, v.stride(), v.dtype) if isinstance(v, torch.Tensor) else v for v in inputs
    )


__all__ = ["GraphPool", "GraphedArtifact", "RecordingPolicy", "mutated_inputs", "shape_key"]


def in_profile(label: str) -> AbstractContextManager[object]:
    """A block that profiles call `label`; nothing where no profiler looks."""
    if not profiler._is_profiler_enabled:
        return _UNSEEN
    return profiler.record_function(label)
