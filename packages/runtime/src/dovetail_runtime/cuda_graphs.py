"""Record a loaded plan as CUDA graphs, one for each set of shapes, and replay it.

Inputs are copied into memory that the graph reads, except those that stay where they are
(parameters, buffers), whose addresses the graph holds. What a plan writes into an input is written
there by the replay itself (if it stays) or copied back (others). Graphs of one `GraphPool` share
memory.

When recording is impossible or does not pay, the plan simply runs, and `skip_reasons` says why.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from dovetail_runtime.artifact import CompiledArtifact
from dovetail_runtime.plan import CopyInto, Plan, View

Value = torch.Tensor | int | None
Input = torch.Tensor | int

# An input that moved this often is copied from then on.
_MOVES_BEFORE_COPYING = 2
# More than this is not copied in each call for the sake of a recording that nobody asked for.
_MOST_COPIED_BYTES = 32 << 20
# Launches matter unless the GPU takes this many times as long as the CPU.
_SLACK = 2.0


class GraphPool:
    """Memory that several graphs share: one replay at a time, in the order of the calls, on
    whatever streams these are."""

    def __init__(self) -> None:
        self.handle = torch.cuda.graph_pool_handle()
        self.stream: torch.cuda.Stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        self.lock = threading.RLock()
        self.bytes = 0  # of what recordings hold on to
        self._last: torch.cuda.Stream | None = None

    def take_turn(self) -> None:
        """Before a replay: it comes after the last one, if that was on another stream."""
        stream = torch.cuda.current_stream(self.stream.device)
        if self._last is not None and self._last != stream:
            stream.wait_stream(self._last)
        self._last = stream


@dataclass(frozen=True)
class _Same:
    """An output that is the input at `position` itself."""

    position: int


@dataclass
class _Recording:
    graph: torch.cuda.CUDAGraph
    copied: dict[int, torch.Tensor]  # by position: memory of the graph's own
    stays: tuple[int, ...]  # positions of the inputs that are read where they are
    addresses: list[int]  # of these
    outputs: tuple[Value | _Same, ...]


@dataclass
class _Trial:
    """The first calls of some shapes: is the GPU waiting for launches, and which inputs stay?"""

    addresses: dict[int, int]
    seconds: float | None = None  # of the CPU, in the call that was timed
    begin: Any = None
    end: Any = None


@dataclass
class GraphedArtifact:
    """Calls like the artifact, through CUDA graphs where that works.

    `static_inputs`: positions of inputs that stay where they are between calls. `copy_outputs`:
    hand out copies; without it an output's memory is overwritten by the next call. `max_graphs`
    and `memory_budget` (bytes of input copies, outputs and working memory, of the whole pool) limit
    what is recorded. `only_launch_bound`: the first calls run as they are; recorded is what the GPU
    finishes soon after the CPU has launched it, and inputs that did not move are taken for static.
    """

    artifact: CompiledArtifact
    pool: GraphPool
    static_inputs: frozenset[int] = frozenset()
    copy_outputs: bool = True
    max_graphs: int = 8
    memory_budget: int | None = None
    only_launch_bound: bool = False
    skip_reasons: list[str] = field(default_factory=list)
    _recordings: dict[Any, _Recording] = field(default_factory=dict)
    _trials: dict[Any, _Trial] = field(default_factory=dict)
    _refused: set[Any] = field(default_factory=set)
    _moves: dict[int, int] = field(default_factory=dict)
    _mutated: tuple[int, ...] = ()
    _one_shape: bool = False
    _never: bool = False

    def __post_init__(self) -> None:
        self._mutated = tuple(mutated_inputs(self.artifact.plan))
        self._one_shape = not self.artifact.plan.symbols
        if self.artifact.plan.target != "cuda":
            self._never = True
            self.skip_reasons.append(f"{self.artifact.plan.name}: the plan does not run on a GPU")

    def __call__(self, *inputs: Input) -> tuple[Value, ...]:
        """Replay, or record first, or run directly with a reason in `skip_reasons`."""
        if self._never or torch.cuda.is_current_stream_capturing():
            return self.artifact.run(*inputs)
        static = self.static_inputs
        # Addresses tell of static inputs; and a plan without symbols has one set of shapes.
        key: Any = ()
        if not self._one_shape:
            key = shape_key(v for i, v in enumerate(inputs) if i not in static)
        with self.pool.lock:
            recording = self._recording_for(key, inputs)
            if recording is not None:
                self.pool.take_turn()
                return self._replay(recording, inputs)
            if self.only_launch_bound and key not in self._refused:
                return self._try(self._trials[key], inputs)
        return self.artifact.run(*inputs)

    @property
    def recorded(self) -> int:
        """How many graphs are recorded."""
        return len(self._recordings)

    # --- decisions ---

    def _recording_for(self, key: Any, inputs: tuple[Input, ...]) -> _Recording | None:
        """The recording of these shapes, made now if it is time; None: run the plan."""
        if key in self._refused:
            return None
        recording = self._recordings.get(key)
        if recording is not None and not self._moved(recording, inputs):
            return recording
        self._recordings.pop(key, None)
        reason = self._reason_against(inputs)
        if reason is None and self.only_launch_bound:
            trial = self._trials.setdefault(key, _Trial(_addresses(inputs)))
            if not _is_over(trial):
                return None
            reason = _against(trial)
        if reason is None:
            try:
                made = self._record(inputs, self._stays(key, inputs))
                self._recordings[key] = made
                return made
            except RuntimeError as error:
                reason = f"recording failed: {error}"
        self.skip_reasons.append(f"{self.artifact.plan.name}: {reason}")
        self._refused.add(key)
        self._never = self._one_shape
        return None

    def _try(self, trial: _Trial, inputs: tuple[Input, ...]) -> tuple[Value, ...]:
        """One of the first calls: the first warms up, the second is timed."""
        known, now = trial.addresses, _addresses(inputs)
        trial.addresses = {i: a for i, a in now.items() if known.get(i) == a}
        if trial.seconds is None:
            trial.seconds = 0.0
            return self.artifact.run(*inputs)
        if trial.end is not None:  # timed, and the GPU is not done yet
            return self.artifact.run(*inputs)
        trial.begin = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        end = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        trial.begin.record()
        start = time.perf_counter()
        outputs = self.artifact.run(*inputs)
        trial.seconds = time.perf_counter() - start
        end.record()
        trial.end = end
        return outputs

    def _stays(self, key: Any, inputs: tuple[Input, ...]) -> tuple[int, ...]:
        stay = set(self.static_inputs)
        trial = self._trials.get(key)
        if trial is not None:
            now = _addresses(inputs)
            stay |= {i for i, a in trial.addresses.items() if now[i] == a}
        return tuple(sorted(i for i in stay if self._moves.get(i, 0) < _MOVES_BEFORE_COPYING))

    def _moved(self, recording: _Recording, inputs: tuple[Input, ...]) -> bool:
        now = [_address(inputs[i]) for i in recording.stays]
        if now == recording.addresses:
            return False
        for position, a, b in zip(recording.stays, now, recording.addresses, strict=True):
            if a != b:
                self._moves[position] = self._moves.get(position, 0) + 1
        return True

    def _reason_against(self, inputs: tuple[Input, ...]) -> str | None:
        for position, value in enumerate(inputs):
            if isinstance(value, torch.Tensor) and not value.is_cuda:
                return f"input {position} is on {value.device}, which a replay would not read again"
            if isinstance(value, torch.Tensor) and value.device != self.pool.stream.device:
                return f"input {position} is on {value.device}, not the device of the other graphs"
        if len(self._recordings) >= self.max_graphs:
            return f"{self.max_graphs} graphs are recorded already, for other shapes"
        return None

    # --- recording and replay ---

    def _record(self, inputs: tuple[Input, ...], stays: tuple[int, ...]) -> _Recording:
        with torch.inference_mode(False), torch.no_grad():
            return self._recorded(inputs, stays)

    def _recorded(self, inputs: tuple[Input, ...], stays: tuple[int, ...]) -> _Recording:
        copied = {
            i: _copy_of(v)
            for i, v in enumerate(inputs)
            if isinstance(v, torch.Tensor) and i not in stays
        }
        if self.only_launch_bound and _bytes(copied.values()) > _MOST_COPIED_BYTES:
            raise RuntimeError(
                f"{_bytes(copied.values())} bytes of inputs that move would be copied in each call"
            )
        held = [copied.get(i, value) for i, value in enumerate(inputs)]
        # One plain run first: libraries set themselves up in their first call, which a recording
        # must not see. What it writes into inputs and draws from the generator is undone, so that a
        # call happens once.
        before = {i: _tensor(held[i]).detach().clone() for i in self._mutated}
        random_state = torch.cuda.get_rng_state()
        self.pool.stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.pool.stream):
            outputs = self.artifact.run(*held)
            for position, value in before.items():
                _tensor(held[position]).detach().copy_(value)
        torch.cuda.set_rng_state(random_state)
        torch.cuda.current_stream().wait_stream(self.pool.stream)
        wanted = _bytes([*copied.values(), *outputs]) + _slab_bytes(self.artifact.plan)
        if self.memory_budget is not None and self.pool.bytes + wanted > self.memory_budget:
            raise RuntimeError(
                f"{wanted} bytes beside the {self.pool.bytes} of other graphs exceed the budget of "
                f"{self.memory_budget}"
            )
        del outputs
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self.pool.handle, stream=self.pool.stream):
            recorded = self.artifact.run(*held)
        self.pool.bytes += wanted
        places = {id(v): i for i, v in enumerate(held) if isinstance(v, torch.Tensor)}
        return _Recording(
            graph,
            copied,
            stays,
            [_address(inputs[i]) for i in stays],
            tuple(_Same(places[id(o)]) if id(o) in places else o for o in recorded),
        )

    def _replay(self, recording: _Recording, inputs: tuple[Input, ...]) -> tuple[Value, ...]:
        if recording.copied:
            with torch.no_grad():
                torch._foreach_copy_(
                    list(recording.copied.values()), [_tensor(inputs[i]) for i in recording.copied]
                )
        recording.graph.replay()
        for position in self._mutated:
            target = _tensor(inputs[position])
            own = recording.copied.get(position)
            if own is None:
                torch.autograd.graph.increment_version(target)
            else:
                target.detach().copy_(own)
        storages: dict[int, torch.UntypedStorage] = {}
        return tuple(
            inputs[o.position] if isinstance(o, _Same) else self._given(o, storages)
            for o in recording.outputs
        )

    def _given(self, output: Value, storages: dict[int, torch.UntypedStorage]) -> Value:
        if not isinstance(output, torch.Tensor) or not self.copy_outputs:
            return output
        if output.is_contiguous():
            return output.clone()
        # Other layouts by their whole memory, once: outputs may lie in the same.
        storage = output.untyped_storage()
        place = storage.data_ptr()
        if place not in storages:
            storages[place] = storage.clone()  # type: ignore[no-untyped-call]
        made = torch.empty(0, dtype=output.dtype, device=output.device)
        return made.set_(storages[place], output.storage_offset(), output.shape, output.stride())


def _is_over(trial: _Trial) -> bool:
    return trial.end is not None and bool(trial.end.query())


def _against(trial: _Trial) -> str | None:
    assert trial.seconds is not None
    gpu = trial.begin.elapsed_time(trial.end) / 1e3
    if gpu <= _SLACK * trial.seconds:
        return None
    return (
        f"launches ({trial.seconds * 1e3:.2f} ms) are not what takes the time "
        f"({gpu * 1e3:.2f} ms on the GPU)"
    )


def _addresses(inputs: Sequence[Input]) -> dict[int, int]:
    return {i: v.data_ptr() for i, v in enumerate(inputs) if isinstance(v, torch.Tensor)}


def _bytes(values: Iterable[Value]) -> int:
    return sum(v.untyped_storage().nbytes() for v in values if isinstance(v, torch.Tensor))


def _slab_bytes(plan: Plan) -> int:
    """Of sizes that are known before a call."""
    return sum(size for _, size in plan.slab_bytes if isinstance(size, int))


def shape_key(inputs: Iterable[Input]) -> tuple[Any, ...]:
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


def _address(value: Input) -> int:
    return value.data_ptr() if isinstance(value, torch.Tensor) else value


def _tensor(value: Input) -> torch.Tensor:
    assert isinstance(value, torch.Tensor)
    return value


def _copy_of(value: torch.Tensor) -> torch.Tensor:
    """Memory of the same shape and strides with the same contents."""
    plain = value.detach()
    made = torch.empty_strided(plain.shape, plain.stride(), dtype=plain.dtype, device=plain.device)
    return made.copy_(plain)


__all__ = ["GraphPool", "GraphedArtifact", "mutated_inputs", "shape_key"]
