"""One CUDA graph of a loaded plan: where its inputs lie, how it is replayed, what it hands out.

A result is handed out as a copy, or as it is: then it lies in the graph's own memory, which the
next replay writes to, and there is none while anybody still holds on to it.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from dovetail_runtime.artifact import CompiledArtifact
from dovetail_runtime.graph_pool import (
    GraphPool,
    Input,
    Replayable,
    Value,
    as_tensor,
    mutated_inputs,
)
from dovetail_runtime.lifetimes import footprint
from dovetail_runtime.native import executor_module
from dovetail_runtime.sizes import bind_symbols

# More inputs that move than this are copied by one kernel for all, the others one by one.
_MOST_SINGLE_COPIES = 4

# More than this is not copied in each call for the sake of a recording that nobody asked for.
_MOST_COPIED_BYTES = 32 << 20
# While a caller looks at the results of one call, the next one writes others.
_SETS = 2


class ResultMemory:
    """Memory of a recording's own that its small results are copied into, call after call. Hands
    out copies of tensors without gaps, all of one stream and device.

    Each call's copies are a set, and the last two sets are kept: one that nobody else holds on to
    is written to again, instead of memory from the allocator. A set in use is left to its users.
    """

    def __init__(self, outputs: Sequence[torch.Tensor]) -> None:
        self._outputs = tuple(outputs)
        self._positions = tuple(range(len(self._outputs)))
        self._used_by_nobody = (1,) * len(self._outputs)
        self._sets: deque[tuple[tuple[torch.Tensor, ...], tuple[int, ...]]] = deque(maxlen=_SETS)
        self._native = executor_module()

    def copies(self, raw_stream: int) -> list[torch.Tensor]:
        """What the outputs hold now, as tensors that are the caller's."""
        native = self._native
        for _ in range(len(self._sets)):
            places, addresses = self._sets[0]
            self._sets.rotate(-1)
            # (A caller may have given a storage other memory, or none.)
            if native.storage_uses(places) == self._used_by_nobody and native.lie_at(
                places, self._positions, addresses
            ):
                native.copy_into(places, self._positions, self._outputs, raw_stream)
                break
        else:
            places = tuple(native.copy_of(output, raw_stream) for output in self._outputs)
            self._sets.append((places, tuple(place.data_ptr() for place in places)))
        shared: list[torch.Tensor] = native.share_memory(places)
        return shared


@dataclass(frozen=True)
class _Same:
    """An output that is the input at `position` itself."""

    position: int


@dataclass(frozen=True)
class _ViewOf:
    """An output in the memory of the input at `position`; `offset` counts from the input's."""

    position: int
    size: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int

    def of(self, inputs: Sequence[Input]) -> torch.Tensor:
        """The output of a call."""
        base = as_tensor(inputs[self.position]).detach()
        return base.as_strided(self.size, self.stride, base.storage_offset() + self.offset)


@dataclass(frozen=True)
class RecordingPolicy:
    """What is recorded, and what of its memory is handed out.

    Results are copies, but those at the positions `held_outputs`, and those of at least
    `large_output` bytes: they lie in the graph's memory, and while one is alive the plan runs
    instead of the graph. That is for what is short-lived (what a forward saves, gradients) or costs
    more to copy than a check (the logits of a language model). A stream that goes on reading one
    after the last reference to it is gone must be waited for by the stream of the next call
    (`record_stream` alone does not do it).

    Copies that take at most `kept_bytes` together are written, in turns, into memory that stays the
    recording's own while nobody holds on to them; with the same caution about other streams.

    Inputs at `static_inputs` are taken for static from the start. `max_graphs` and `memory_budget`
    (bytes of input copies, outputs and working memory, of the whole pool) limit what is recorded.
    `only_launch_bound`: recorded is, after one more call, what the GPU finishes soon after the CPU
    has launched it.
    """

    static_inputs: frozenset[int] = frozenset()
    held_outputs: frozenset[int] = frozenset()
    large_output: int | None = None
    kept_bytes: int = 0
    max_graphs: int = 8
    memory_budget: int | None = None
    only_launch_bound: bool = False

    def handed_out(self, results: Sequence[Value]) -> set[int]:
        """Positions of the results that lie in the graph's memory."""
        large = self.large_output
        return {
            i
            for i, value in enumerate(results)
            if i in self.held_outputs
            or (large is not None and isinstance(value, torch.Tensor) and value.nbytes >= large)
        }


@dataclass(frozen=True)
class _Capture:
    """A captured graph, the memory that inputs are copied to, and its outputs, of which `held` are
    handed out as they lie."""

    graph: Replayable
    copied: dict[int, torch.Tensor]
    outputs: Sequence[Value]
    held: Collection[int]


class Recording:
    """A captured graph, and what its calls have to do around its replay.

    `copied` has, by position, the memory of the graph's own for inputs that move; `stays` the
    positions of the inputs that are read where they are; `held` those of the outputs that are
    handed out as they are. Copies of the other outputs lie in memory of the recording's own if they
    take at most `kept_bytes` together, else in memory from the allocator.
    """

    def __init__(
        self,
        capture: _Capture,
        inputs: Sequence[Input],
        stays: Sequence[int],
        mutated: Sequence[int],
        kept_bytes: int,
    ) -> None:
        copied, outputs, held = capture.copied, capture.outputs, capture.held
        self.graph = capture.graph
        self.copied = copied
        self._targets, self._moving = tuple(copied.values()), tuple(copied)
        self.stays = tuple(stays)
        self.addresses = tuple(address(inputs[i]) for i in stays)
        self.mutated = mutated
        memories = _Memories(inputs, copied)
        shown = {i: memories.shown(o, i in held) for i, o in enumerate(outputs)}
        self._elsewhere = {i: s for i, s in shown.items() if isinstance(s, _Same | _ViewOf)}
        self._copies = {
            i: o
            for i, o in enumerate(outputs)
            if isinstance(o, torch.Tensor) and i not in held and i not in self._elsewhere
        }
        out_of_place = self._elsewhere.keys() | self._copies.keys()
        self._template = tuple(None if i in out_of_place else o for i, o in enumerate(outputs))
        self.held = tuple(i for i, o in enumerate(self._template) if isinstance(o, torch.Tensor))
        self._held_tensors = tuple(as_tensor(self._template[i]) for i in self.held)
        self._native = executor_module()
        # By nobody but this recording.
        self._uses_at_rest: tuple[int, ...] = self._native.storage_uses(self._held_tensors)
        dense = {i: o for i, o in self._copies.items() if o.is_contiguous()}
        self._kept: tuple[int, ...] = ()
        if sum(o.nbytes for o in dense.values()) <= kept_bytes:
            self._kept = tuple(dense)
        self._memory = ResultMemory([self._copies.pop(i) for i in self._kept])

    def lies_in_place(self, inputs: tuple[Input, ...]) -> bool:
        """Whether the inputs that stay are where the graph reads them."""
        return bool(self._native.lie_at(inputs, self.stays, self.addresses))

    def moved(self, inputs: Sequence[Input]) -> dict[int, int]:
        """The inputs that do not, with their addresses."""
        now = {i: address(inputs[i]) for i in self.stays}
        return {i: now[i] for i, a in zip(self.stays, self.addresses, strict=True) if now[i] != a}

    def is_free(self) -> bool:
        """Whether nobody holds on to a result that was handed out as it is."""
        uses: tuple[int, ...] = self._native.storage_uses(self._held_tensors)
        return uses == self._uses_at_rest

    def in_use(self) -> set[int]:
        """Positions of the results that somebody still holds on to."""
        uses: tuple[int, ...] = self._native.storage_uses(self._held_tensors)
        at_rest = self._uses_at_rest
        return {i for i, a, b in zip(self.held, uses, at_rest, strict=True) if a != b}

    def replay(self, inputs: tuple[Input, ...], raw_stream: int) -> tuple[Value, ...]:
        """One call, on the current stream."""
        if len(self._moving) <= _MOST_SINGLE_COPIES:
            self._native.copy_into(self._targets, self._moving, inputs, raw_stream)
        else:
            with torch.no_grad():
                torch._foreach_copy_(
                    list(self._targets), [as_tensor(inputs[i]) for i in self._moving]
                )
        self.graph.replay()
        for position in self.mutated:
            target = as_tensor(inputs[position])
            own = self.copied.get(position)
            if own is None:
                torch.autograd.graph.increment_version(target)
            else:
                target.detach().copy_(own)
        results: list[Value] = self._native.share_memory(self._template)
        for i, place in self._elsewhere.items():
            results[i] = (
                as_tensor(inputs[place.position]) if isinstance(place, _Same) else place.of(inputs)
            )
        if self._kept:
            for i, result in zip(self._kept, self._memory.copies(raw_stream), strict=True):
                results[i] = result
        storages: dict[int, torch.UntypedStorage] = {}
        for i, output in self._copies.items():
            if output.is_contiguous():
                results[i] = self._native.copy_of(output, raw_stream)
            else:
                results[i] = _copied_out(output, storages)
        return tuple(results)


class _Memories:
    """Which input an output lies in."""

    def __init__(self, inputs: Sequence[Input], copied: dict[int, torch.Tensor]) -> None:
        tensors = {i: v for i, v in enumerate(inputs) if isinstance(v, torch.Tensor)} | copied
        self.tensors = tensors
        self.by_identity = {id(v): i for i, v in tensors.items()}
        self.by_storage = {v.untyped_storage().data_ptr(): i for i, v in tensors.items()}

    def shown(self, output: Value, held: bool) -> Value | _Same | _ViewOf:
        if not isinstance(output, torch.Tensor):
            return output
        if id(output) in self.by_identity:
            return _Same(self.by_identity[id(output)])
        position = self.by_storage.get(output.untyped_storage().data_ptr())
        if position is None or not held or not output.numel():
            return output
        offset = int(output.storage_offset()) - int(self.tensors[position].storage_offset())
        return _ViewOf(position, tuple(output.shape), output.stride(), offset)


class Timing:
    """One call timed: is the GPU waiting for launches?"""

    def __init__(self) -> None:
        self.begin: Any = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        self.end: Any = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        self.seconds = 0.0  # of the CPU
        self.result_bytes = 0  # which replays would copy

    def run(self, artifact: CompiledArtifact, inputs: Sequence[Input]) -> tuple[Value, ...]:
        """The call."""
        self.begin.record()
        start = time.perf_counter()
        outputs = artifact.run(*inputs)
        self.seconds = time.perf_counter() - start
        self.end.record()
        self.result_bytes = byte_count(o for o in outputs if all(o is not i for i in inputs))
        return outputs

    def is_over(self) -> bool:
        """Whether the GPU is done."""
        return bool(self.end.query())

    def gpu_seconds(self) -> float:
        """Of the GPU, from the first kernel to the last."""
        return float(self.begin.elapsed_time(self.end)) / 1e3


def record(
    artifact: CompiledArtifact,
    inputs: Sequence[Input],
    stays: Collection[int],
    pool: GraphPool,
    policy: RecordingPolicy,
    copied_out: Collection[int],
) -> Recording:
    """Capture a call with these inputs, which is made by the first replay only. Inputs at `stays`
    are read where they lie, results at `copied_out` never handed out as they are.

    Raises RuntimeError, with the reason, where capturing fails or holds more than the policy's
    `memory_budget` with the pool's other graphs, or where many bytes of inputs would be copied for
    a recording that nobody asked for.
    """
    with torch.inference_mode(False), torch.no_grad():
        copied = {
            i: _copy_of(v)
            for i, v in enumerate(inputs)
            if isinstance(v, torch.Tensor) and i not in stays
        }
        if policy.only_launch_bound and byte_count(copied.values()) > _MOST_COPIED_BYTES:
            raise RuntimeError(
                f"{byte_count(copied.values())} bytes of inputs that move would be copied in each "
                f"call"
            )
        own = [copied.get(i, value) for i, value in enumerate(inputs)]
        outputs = pool.warm_up(artifact, own)
        symbols = bind_symbols(artifact.plan.symbols, own)
        work = footprint(artifact.plan, symbols, range(len(outputs))).without_results
        taken = byte_count([*copied.values(), *outputs]), work
        wanted, budget = pool.bytes_with(*taken), policy.memory_budget
        if budget is not None and wanted > budget:
            raise RuntimeError(f"{wanted} bytes, of all graphs, exceed the budget of {budget}")
        held = policy.handed_out(outputs) - set(copied_out)
        del outputs
        graph, results = pool.capture(artifact, own, held)
    capture = _Capture(graph, copied, results, held)
    mutated = mutated_inputs(artifact.plan)
    made = Recording(capture, inputs, sorted(stays), mutated, policy.kept_bytes)
    pool.taken[made] = taken
    return made


def byte_count(values: Iterable[Value]) -> int:
    """Of the memory that tensors lie in."""
    return sum(v.untyped_storage().nbytes() for v in values if isinstance(v, torch.Tensor))


def address(value: Input) -> int:
    """Of a tensor's first element; an int is its own."""
    return value.data_ptr() if isinstance(value, torch.Tensor) else value


def _copy_of(value: torch.Tensor) -> torch.Tensor:
    """Memory of the same shape and strides with the same contents."""
    plain = value.detach()
    made = torch.empty_strided(plain.shape, plain.stride(), dtype=plain.dtype, device=plain.device)
    return made.copy_(plain)


def _copied_out(output: torch.Tensor, storages: dict[int, torch.UntypedStorage]) -> torch.Tensor:
    """Of a layout that may have gaps: its whole memory, once, as outputs may lie in the same."""
    storage = output.untyped_storage()
    place = storage.data_ptr()
    if place not in storages:
        storages[place] = storage.clone()  # type: ignore[no-untyped-call]
    made = torch.empty(0, dtype=output.dtype, device=output.device)
    return made.set_(storages[place], output.storage_offset(), output.shape, output.stride())
