"""The memory that CUDA graphs of one device share, and how a call is captured there."""

from __future__ import annotations

import threading
from collections.abc import Collection, Sequence
from typing import Protocol
from weakref import WeakKeyDictionary

import torch

from dovetail_runtime import graph_memory
from dovetail_runtime.artifact import CompiledArtifact
from dovetail_runtime.lifetimes import footprint
from dovetail_runtime.plan import CopyInto, Plan, View
from dovetail_runtime.sizes import bind_symbols

# Working in shared memory may take so many times what a call with its own memory takes: others will
# work there, too.
_MOST_FOR_SHARING = 1.1

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
        self.handle = graph_memory.shared_pool(self, self.device)
        self._workplace = graph_memory.workplace_for(self, self.device)
        self.stream = self._workplace.stream
        self.lock = threading.RLock()
        # Of what holds a graph: the bytes that are its own, and those that it works in.
        self.taken: WeakKeyDictionary[object, tuple[int, int]] = WeakKeyDictionary()
        self._shared_bytes = 0  # that graphs work in, one after the other
        self._last: torch.cuda.Stream | None = None
        self._last_raw: int | None = None

    def bytes_with(self, own: int, work: int) -> int:
        """What all graphs that are alive and a further one take."""
        taken = [(own, work), *self.taken.values()]
        return sum(own for own, _ in taken) + max(work for _, work in taken)

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
        before = {i: as_tensor(inputs[i]).detach().clone() for i in written}
        random_state = torch.cuda.get_rng_state(self.device)
        self.stream.wait_stream(torch.cuda.current_stream(self.device))
        try:
            with self._workplace.prepared(artifact), torch.cuda.stream(self.stream):
                outputs = artifact.run(*inputs)
                for position, value in before.items():
                    as_tensor(inputs[position]).detach().copy_(value)
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
            graph_memory.undone_if_it_fails(self.device, handle, self.stream),
            recording,
        ):
            if held and shares:
                with graph_memory.own_memory_where_told(self.device, handle, self.handle) as tell:
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


def as_tensor(value: Input | Value) -> torch.Tensor:
    """A value that is a tensor."""
    assert isinstance(value, torch.Tensor)
    return value
