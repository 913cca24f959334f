"""The pass `combine`: small independent kernels of a GPU graph share one launch.

A kernel of a few microseconds costs about as much to launch as to run, and alone it does not fill
the GPU. Typical are the casts of every weight and bias under autocast, and sums for the gradients
of biases.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace

from dovetail_inductor.loop_ir.expr import Apply, walk
from dovetail_inductor.loop_ir.loops import Buffer, Strided
from dovetail_inductor.options import InductorOptions
from dovetail_inductor.scheduler.in_place import copies_for_scatters
from dovetail_inductor.scheduler.kernels import CombinedKernel, FusedKernel, KernelGraph, Step
from dovetail_inductor.scheduler.lifetimes import live_bytes, writes_of

MAX_KERNELS = 32  # in one launch
# Kernels of cold operands, as an optimizer's are, gain nothing from a launch of their own: together
# they may read and write so many times what one of them may.
MAX_COLD = 8
CACHE_BYTES = 96 << 20  # of traffic later nothing of a tensor is in the GPU's cache
LITTLE_BYTES = 1 << 16  # of such operands it does not matter
MAX_SHAPES = 8  # of them with texts of their own, about: registers and compile time
MAX_NESTS = 4  # of one of them
LIGHT_OPS = 6  # a light kernel does at most so many operations a point
# Bytes that may live longer than they need to, for the sake of shared launches: this part of the
# call's peak, but not less than so much.
PEAK_PART = 16
LEAST_BYTES = 2 << 20
# They may raise the peak itself by so much, or up to `LEAST_BYTES` in all.
PEAK_BYTES = 1 << 16

# What a launch has in common: pointwise or not, light or not, warps, loop or not, device.
Kind = tuple[object, ...]


def combine(graph: KernelGraph, options: InductorOptions) -> KernelGraph:
    """Group kernels into launches. Needs steps in an order of computation, and gives such an order.

    A candidate waits, as long as nobody needs its result, for others of its kind; when a launch is
    due, later candidates of its kind whose operands are there join it. Waiting keeps operands
    alive, and joining early results: `options.combine_bytes` bounds the bytes of each, and so does
    a part of the call's peak. Neither raises that peak.
    """
    if not options.combine:
        return graph
    combiner = _Combiner(graph, options)
    return replace(graph, steps=tuple(combiner.run()))


def kind_of(
    kernel: FusedKernel, buffers: Mapping[str, Buffer], options: InductorOptions
) -> Kind | None:
    """The kind of a candidate for a shared launch; None for what gets a launch of its own."""
    device = buffers[kernel.nests[0].buffer].device
    target = options.target_of(device)
    if not target.scheduling.shares_launches:
        return None
    if any(nest.is_symbolic for nest in kernel.nests):
        return None  # which program works for which kernel would be computed in every one
    if len(kernel.nests) > MAX_NESTS or traffic(kernel, buffers) > options.combine_bytes:
        return None
    applied = {
        node.uid
        for node in walk(v for n in kernel.nests for v in n.values)
        if isinstance(node, Apply)
    }
    return (*target.launch_kind(kernel, buffers), len(applied) <= LIGHT_OPS, device)


def traffic(kernel: FusedKernel, buffers: Mapping[str, Buffer]) -> int:
    """Bytes read and written at most."""
    names = kernel.reads() | (kernel.writes() - kernel.internal)
    return sum(buffers[name].nbytes for name in names)


@dataclass
class _Launch:
    """Positions of the kernels that are to share a launch, their sum of traffic, and its limit."""

    limit: int
    positions: list[int] = field(default_factory=list)
    traffic: int = 0
    shapes: set[tuple[int, ...]] = field(default_factory=set)


class _Combiner:
    def __init__(self, graph: KernelGraph, options: InductorOptions) -> None:
        self.graph = graph
        self.limit = options.combine_bytes
        self.owned = graph.facts.owned
        live = live_bytes(graph, self.owned)
        self.live = live.at
        self.peak_limit = max(LEAST_BYTES, live.bytes + PEAK_BYTES)
        self.longer_limit = min(self.limit, max(LEAST_BYTES, live.bytes // PEAK_PART))
        self.position = 0  # of the step whose turn it is
        self.kept = {o.buffer for o in graph.outputs if isinstance(o, Strided)}
        self.kinds: dict[int, Kind] = {}
        self.limits: dict[Kind, int] = {}
        self.writer: dict[str, int] = {}  # buffer -> position of the step that writes it
        self.last_reader: dict[str, int] = {}
        self.by_kind: dict[Kind, list[int]] = {}  # positions, in order
        self.moved = [0]  # bytes read and written before each step
        for position, step in enumerate(graph.steps):
            self.last_reader |= dict.fromkeys(step.reads(), position)
            self.writer |= dict.fromkeys(writes_of(step), position)
            names = step.reads() | writes_of(step)
            self.moved.append(self.moved[-1] + sum(graph.buffers[n].nbytes for n in names))
        # (Which may not be needed, if what they share no launch with comes before.)
        copies = copies_for_scatters(graph.steps, [n for n in graph.inputs if n is not None])
        for position, step in enumerate(graph.steps):
            kind = None
            if isinstance(step, FusedKernel) and step.nests[0].buffer not in copies:
                kind = kind_of(step, graph.buffers, options)
            if kind is not None:
                cold = self._is_cold(position, step)
                kind = (*kind, cold)
                self.limits[kind] = self.limit * (MAX_COLD if cold else 1)
                self.kinds[position] = kind
                self.by_kind.setdefault(kind, []).append(position)
        self.done: set[int] = set()
        self.waiting: dict[Kind, _Launch] = {}
        self.ahead: dict[int, int] = {}  # computed before its position -> bytes of its results
        self.result: list[Step] = []

    def run(self) -> list[Step]:
        for position, step in enumerate(self.graph.steps):
            self.position = position
            self.ahead.pop(position, None)
            if position in self.done:
                continue
            if self.live[position] + self._waiting(self._grows) > self.peak_limit:
                self._launch_all()
            needed = {self.writer[name] for name in step.reads() if name in self.writer}
            self._launch_those(needed - self.done)
            if position in self.kinds and isinstance(step, FusedKernel):
                self._wait(position, step)
            else:
                self._place(position)
        self._launch_all()
        return self.result

    def _is_cold(self, position: int, kernel: Step) -> bool:
        """Whether no cache holds what a kernel reads, and nobody here reads what it writes."""
        if not writes_of(kernel).isdisjoint(self.last_reader):
            return False
        computed = [
            self.moved[position] - self.moved[self.writer[name] + 1]
            for name in kernel.reads() & self.writer.keys()
            if self.graph.buffers[name].nbytes > LITTLE_BYTES
        ]
        return all(since >= CACHE_BYTES for since in computed)

    def _launch_those(self, positions: Iterable[int]) -> None:
        for kind in dict.fromkeys(self.kinds[p] for p in sorted(positions)):
            self._launch(kind)

    def _place(self, position: int) -> None:
        self.result.append(self.graph.steps[position])
        self.done.add(position)

    def _wait(self, position: int, kernel: FusedKernel) -> None:
        """Put a candidate among those that wait; launch them if there are enough."""
        kind = self.kinds[position]
        if kind in self.waiting and not self._fits(self.waiting[kind], kernel):
            self._launch(kind)
        launch = self.waiting.setdefault(kind, _Launch(self.limits[kind]))
        self._join(launch, position, kernel)
        if self._waiting(self._held) > self.longer_limit:
            self._launch_all()
        elif launch.limit == self.limit and self._held(position) > self.longer_limit // 8:
            self._launch(kind)  # large operands: now, while they are in the cache

    def _held(self, position: int) -> int:
        """Bytes that live on while the kernel waits: operands that nobody else needs."""
        step = self.graph.steps[position]
        total = 0
        for name in step.reads():
            dies = self.last_reader[name] == position and name not in self.kept
            if dies and (name in self.writer or name in self.owned):
                total += self.graph.buffers[name].nbytes
        return total

    def _grows(self, position: int) -> int:
        """Bytes that are there while the kernel waits, beyond those if it did not."""
        written = writes_of(self.graph.steps[position])
        return self._held(position) - sum(self.graph.buffers[n].nbytes for n in written)

    def _waiting(self, bytes_of: Callable[[int], int]) -> int:
        """The sum, over all kernels that wait, of some count of bytes."""
        return sum(bytes_of(p) for launch in self.waiting.values() for p in launch.positions)

    def _fits(self, launch: _Launch, kernel: FusedKernel) -> bool:
        shapes = launch.shapes | {_shape(kernel)}
        return (
            len(launch.positions) < MAX_KERNELS
            and len(shapes) <= MAX_SHAPES
            and launch.traffic + traffic(kernel, self.graph.buffers) <= launch.limit
        )

    def _join(self, launch: _Launch, position: int, kernel: FusedKernel) -> None:
        launch.positions.append(position)
        launch.traffic += traffic(kernel, self.graph.buffers)
        launch.shapes.add(_shape(kernel))

    def _launch_all(self) -> None:
        for kind in list(self.waiting):
            self._launch(kind)

    def _launch(self, kind: Kind) -> None:
        """Compute those of a kind that wait, and later ones that are ready."""
        launch = self.waiting.pop(kind)
        for position in self.by_kind[kind]:
            if position <= launch.positions[-1] or position in self.done:
                continue
            kernel = self.graph.steps[position]
            assert isinstance(kernel, FusedKernel)
            ready = all(self.writer[n] in self.done for n in kernel.reads() if n in self.writer)
            if not ready:
                continue
            if not self._fits(launch, kernel):
                break
            written = kernel.writes() - kernel.internal
            early = sum(self.graph.buffers[name].nbytes for name in written)
            ahead = early + sum(self.ahead.values())
            until_then = max(self.live[self.position : position], default=0)
            if ahead > self.longer_limit or until_then + ahead > self.peak_limit:
                break
            self.ahead[position] = early
            self._join(launch, position, kernel)
        self.done |= set(launch.positions)
        kernels = [self.graph.steps[p] for p in launch.positions]
        members = tuple(k for k in kernels if isinstance(k, FusedKernel))
        if len(members) == 1:
            self.result.append(members[0])
        else:
            self.result.append(CombinedKernel(f"{members[0].name}_and_more", members))


def _shape(kernel: FusedKernel) -> tuple[int, ...]:
    return (len(kernel.nests), *(v.size for v in (*kernel.rows, *kernel.columns)))
