"""One CUDA graph of a loaded plan: where its inputs lie, how it is replayed, what it hands out.

A result is handed out as a copy, or as it is: then it lies in the graph's own memory, which the
next replay writes to, and there is none while anybody still holds on to it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from dovetail_runtime.artifact import CompiledArtifact
from dovetail_runtime.footprint import footprint
from dovetail_runtime.graph_memory import (
    own_memory_where_told,
    shared_pool,
    undone_if_it_fails,
)
from dovetail_runtime.native import executor_module
from dovetail_runtime.plan import CopyInto, Plan, View
from dovetail_runtime.result_memory import ResultMemory
from dovetail_runtime.sizes import bind_symbols
from dovetail_runtime.workplace import workplace_for

# Working in shared memory may take so many times what a call with its own memory takes: others will
# work there, too.
_MOST_FOR_SHARING = 1.1
# More inputs that move than this are copied by one kernel for all, the others one by one.
_MOST_SINGLE_COPIES = 4

Value = torch.Tensor | int | None
Input = torch.Tensor | int


class Replayable(Protocol):
    """A captured CUDA graph."""

    def replay(self) -> None:
        """Run it on the current stream."""


class GraphPool:
    """Memory that several graphs share: one replay at a time, in the order of the calls, on
    whatever streams these are."""

    target = "cuda"

    def __init__(self) -> None:
        self.device = torch.device("cuda", torch.cuda.current_device())
        self.handle = shared_pool(self, self.device)
        self._workplace = workplace_for(self, self.device)
        self.stream = self._workplace.stream
        self.lock = threading.RLock()
        self.bytes = 0  # of what recordings hold on to
        self._shared_bytes = 0  # that they work in, one after the other
        self._last: torch.cuda.Stream | None = None
        self._last_raw: int | None = None

    def is_capturing(self) -> bool:
        """Whether the caller is recording a graph of his own."""
        return torch.cuda.is_current_stream_capturing()

    def take_turn(self) -> int:
        """Before a replay: it comes after the last one, if that was on another stream. The
        address of the stream that is current."""
        raw = int(torch._C._cuda_getCurrentRawStream(self.device.index))
        if raw != self._last_raw:
            stream = torch.cuda.current_stream(self.device)
            if self._last is not None:
                stream.wait_stream(self._last)
            self._last, self._last_raw = stream, raw
        return raw

    def warm_up(self, artifact: CompiledArtifact, inputs: Sequence[Input]) -> tuple[Value, ...]:
        """One plain run where the capture will be: libraries set themselves up in their first
        call, which a capture must not see. What it writes into inputs and draws from the generator
        is undone, so that a call happens once."""
        written = mutated_inputs(artifact.plan)
        before = {i: _tensor(inputs[i]).detach().clone() for i in written}
        random_state = torch.cuda.get_rng_state(self.device)
        self.stream.wait_stream(torch.cuda.current_stream(self.device))
        try:
            with self._workplace.prepared(artifact), torch.cuda.stream(self.stream):
                outputs = artifact.run(*inputs)
                for position, value in before.items():
                    _tensor(inputs[position]).detach().copy_(value)
        finally:
            torch.cuda.set_rng_state(random_state, self.device)
            torch.cuda.current_stream(self.device).wait_stream(self.stream)
        return outputs

    def capture(
        self, artifact: CompiledArtifact, inputs: Sequence[Input], held: Collection[int]
    ) -> tuple[Replayable, tuple[Value, ...]]:
        """The graph of one call, and the results that its replays write. No other graph works in
        the memory of those at the positions `held`."""
        graph = torch.cuda.CUDAGraph()
        shares = self._shares_memory(artifact.plan, inputs, held)
        handle = torch.cuda.graph_pool_handle() if held else self.handle
        # Other threads may go on meanwhile.
        recording = torch.cuda.graph(
            graph, pool=handle, stream=self.stream, capture_error_mode="thread_local"
        )
        with (
            self._workplace.prepared(artifact),
            undone_if_it_fails(self.device, handle, self.stream),
            recording,
        ):
            if held and shares:
                with own_memory_where_told(self.device, handle, self.handle) as tell:
                    outputs = artifact.run.run_watched(tuple(inputs), tuple(held), tell)
            else:
                outputs = artifact.run(*inputs)
        # PyTorch sets the graph's random offset to 0 on this stream before the capture, and to the
        # generator's on the caller's before a replay.
        torch.cuda.current_stream(self.device).wait_stream(self.stream)
        return graph, outputs

    def _shares_memory(self, plan: Plan, inputs: Sequence[Input], held: Collection[int]) -> bool:
        """Whether a call of a plan is to work in the memory that the graphs of this pool share,
        where that does not take more than memory of its own: the results at the positions `held`
        can lie where intermediate values of the same call were only if nobody else works there."""
        taken = footprint(plan, bind_symbols(plan.symbols, inputs), held)
        further = max(0, taken.without_results - self._shared_bytes)
        if held and taken.results + further > _MOST_FOR_SHARING * taken.whole:
            return False
        self._shared_bytes += further
        return True


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
        base = _tensor(inputs[self.position]).detach()
        return base.as_strided(self.size, self.stride, base.storage_offset() + self.offset)


class Recording:
    """A captured graph, and what its calls have to do around its replay.

    `copied` has, by position, the memory of the graph's own for inputs that move; `stays` the
    positions of the inputs that are read where they are; `held` those of the outputs that are
    handed out as they are. Copies of the other outputs lie in memory of the recording's own if they
    take at most `kept_bytes` together, else in memory from the allocator.
    """

    def __init__(
        self,
        graph: Replayable,
        inputs: Sequence[Input],
        copied: dict[int, torch.Tensor],
        stays: Sequence[int],
        outputs: Sequence[Value],
        held: Collection[int],
        mutated: Sequence[int],
        memory: int,
        kept_bytes: int,
    ) -> None:
        self.graph = graph
        self.copied = copied
        self._targets, self._moving = tuple(copied.values()), tuple(copied)
        self.stays = tuple(stays)
        self.addresses = tuple(address(inputs[i]) for i in stays)
        self.mutated = mutated
        self.bytes = memory
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
        self._held_tensors = tuple(_tensor(self._template[i]) for i in self.held)
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
                    list(self._targets), [_tensor(inputs[i]) for i in self._moving]
                )
        self.graph.replay()
        for position in self.mutated:
            target = _tensor(inputs[position])
            own = self.copied.get(position)
            if own is None:
                torch.autograd.graph.increment_version(target)
            else:
                target.detach().copy_(own)
        results: list[Value] = self._native.share_memory(self._template)
        for i, place in self._elsewhere.items():
            results[i] = (
                _tensor(inputs[place.position]) if isinstance(place, _Same) else place.of(inputs)
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
    handed_out: Callable[[Sequence[Value]], Collection[int]],
    pool: GraphPool,
    most_copied: int | None,
    memory_budget: int | None,
    kept_bytes: int,
) -> Recording:
    """Capture a call with these inputs, which is made by the first replay only. `handed_out` says
    of a call's results which ones (by position) the recording hands out as they are; `kept_bytes`
    is the recording's.

    Raises RuntimeError, with the reason, where capturing fails or holds more than `memory_budget`
    bytes with the pool's other graphs, or more than `most_copied` bytes of inputs would be copied.
    """
    with torch.inference_mode(False), torch.no_grad():
        copied = {
            i: _copy_of(v)
            for i, v in enumerate(inputs)
            if isinstance(v, torch.Tensor) and i not in stays
        }
        if most_copied is not None and byte_count(copied.values()) > most_copied:
            raise RuntimeError(
                f"{byte_count(copied.values())} bytes of inputs that move would be copied in each "
                f"call"
            )
        own = [copied.get(i, value) for i, value in enumerate(inputs)]
        outputs = pool.warm_up(artifact, own)
        wanted = byte_count([*copied.values(), *outputs]) + _slab_bytes(artifact.plan)
        if memory_budget is not None and pool.bytes + wanted > memory_budget:
            raise RuntimeError(
                f"{wanted} bytes beside the {pool.bytes} of other graphs exceed the budget of "
                f"{memory_budget}"
            )
        held = handed_out(outputs)
        del outputs
        graph, results = pool.capture(artifact, own, held)
    pool.bytes += wanted
    mutated = mutated_inputs(artifact.plan)
    return Recording(
        graph, inputs, copied, sorted(stays), results, held, mutated, wanted, kept_bytes
    )


def byte_count(values: Iterable[Value]) -> int:
    """Of the memory that tensors lie in."""
    return sum(v.untyped_storage().nbytes() for v in values if isinstance(v, torch.Tensor))


def address(value: Input) -> int:
    """Of a tensor's first element; an int is its own."""
    return value.data_ptr() if isinstance(value, torch.Tensor) else value


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


def _slab_bytes(plan: Plan) -> int:
    """Of sizes that are known before a call."""
    return sum(size for _, size in plan.slab_bytes if isinstance(size, int))


def _tensor(value: Input | Value) -> torch.Tensor:
    assert isinstance(value, torch.Tensor)
    return value


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
