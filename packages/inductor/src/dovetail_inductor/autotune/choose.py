"""The pass `choose_products`: each product by the library or by a kernel of ours, as measured."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from dovetail_runtime.plan import Plan

from dovetail_inductor.autotune.candidates import candidates
from dovetail_inductor.codegen_triton.kernel import emit_kernel
from dovetail_inductor.codegen_triton.product import emit_product
from dovetail_inductor.emit_plan import emit_plan
from dovetail_inductor.loop_ir.loops import Buffer, Strided
from dovetail_inductor.options import InductorOptions
from dovetail_inductor.scheduler.kernels import KernelGraph, ProductKernel, ProductTiles, Step
from dovetail_inductor.scheduler.live_bytes import writes_of
from dovetail_inductor.scheduler.memory import plan_memory
from dovetail_inductor.scheduler.products import Form, Product, find_products

MARGIN = 0.97  # a kernel of ours must take less than this part of the library's time


@dataclass(frozen=True)
class Problem:
    """Several plans that compute the same. `key` says what they were made from, as parts that can
    be told apart; `names` are the plans', the first the one to beat."""

    key: tuple[tuple[str, str], ...]
    names: tuple[str, ...]
    plans: Callable[[], Sequence[Plan]]


@dataclass(frozen=True)
class Choice:
    """What was chosen for a problem that comes `count` times, with the seconds of each form."""

    what: str
    count: int
    chosen: int
    names: tuple[str, ...]
    seconds: tuple[float | None, ...]

    def as_text(self) -> str:
        """One line: the choice beside what it was compared with."""
        first, mine = self.seconds[0], self.seconds[self.chosen]
        times = "not measured" if first is None or mine is None else f"{mine * 1e6:.1f} us"
        if self.chosen and first is not None:
            times += f", {self.names[0]} {first * 1e6:.1f} us"
        elif first is not None:
            others = [s for s in self.seconds[1:] if s is not None]
            times += f", best of ours {min(others) * 1e6:.1f} us" if others else ""
        return f"{self.count} x {self.what}: {self.names[self.chosen]} ({times})"


class Tuner(Protocol):
    """Measures plans."""

    def measure(self, problems: Sequence[Problem]) -> list[tuple[float | None, ...]]:
        """The seconds of each plan of each problem; None for a plan that does not run."""
        ...

    def note(self, choice: Choice) -> None:
        """Is told what was chosen."""
        ...


def choose_products(graph: KernelGraph, options: InductorOptions, tuner: Tuner) -> KernelGraph:
    """Measure the forms of each product and put the fastest in its place.

    Needs steps in an order of computation, and gives such an order. Equal products are measured
    once.
    """

    def on_gpu(buffer: Buffer) -> bool:
        return buffer.device.type == "cuda" if options.triton is None else options.triton

    groups: dict[tuple[tuple[str, str], ...], list[tuple[Product, list[ProductTiles]]]] = {}
    for product in find_products(graph, on_gpu):
        tiles = candidates(product.sizes, product.consumer is not None)
        if tiles:
            groups.setdefault(_key(product, tiles), []).append((product, tiles))
    if not groups:
        return graph
    problems = [_problem(key, *same[0], options) for key, same in groups.items()]
    chosen: list[tuple[Product, Form]] = []
    for problem, seconds, same in zip(
        problems, tuner.measure(problems), groups.values(), strict=True
    ):
        best = fastest(seconds)
        tuner.note(Choice(_describe(same[0][0]), len(same), best, problem.names, seconds))
        if best:
            chosen += [(product, _form(product, tiles[best - 1])) for product, tiles in same]
    return _with_forms(graph, chosen)


def fastest(seconds: Sequence[float | None]) -> int:
    """The number of the plan to run: the first, unless another wins by the margin."""
    times = [float("inf") if s is None else s for s in seconds]
    best = min(range(len(times)), key=times.__getitem__)
    return best if seconds[0] is not None and times[best] < MARGIN * times[0] else 0


def _form(product: Product, tiles: ProductTiles) -> Form:
    found = product.in_one(tiles) if tiles.parts == 1 else product.in_parts(tiles)
    assert found is not None
    return found


def _problem(
    key: tuple[tuple[str, str], ...],
    product: Product,
    tiles: Sequence[ProductTiles],
    options: InductorOptions,
) -> Problem:
    def plans() -> list[Plan]:
        forms = [product.library(), *(_form(product, t) for t in tiles)]
        return [_plan(product.graph, form, options) for form in forms]

    return Problem(key, ("library", *(t.as_text() for t in tiles)), plans)


def _key(product: Product, tiles: Sequence[ProductTiles]) -> tuple[tuple[str, str], ...]:
    """What a measurement depends on, without the names of one graph."""
    graph, call = product.graph, product.call
    tensors = [a for a in call.args if isinstance(a, Strided)]
    operands = [
        (t.shape, t.stride, (t.offset + graph.buffers[t.buffer].offset) % 8) for t in tensors
    ]
    first = product.in_one(tiles[0])
    assert first is not None and isinstance(first.steps[0], ProductKernel)
    consumer = product.consumer
    return (
        ("operator", call.op),
        ("operands", repr((operands, product.out.stride, str(product.out.dtype)))),
        # the name of a kernel is a digest of its text
        ("kernel", emit_product(first.steps[0], graph.buffers).kernel.symbol),
        ("consumer", emit_kernel(consumer, graph.buffers).kernel.symbol if consumer else ""),
        ("candidates", repr(list(tiles))),
    )


def _describe(product: Product) -> str:
    batch, m, n, k = product.sizes
    name = product.call.op.removeprefix("aten::").removesuffix(".out")
    sizes = f"{m}x{k} by {k}x{n}" if batch == 1 else f"{batch} of {m}x{k} by {k}x{n}"
    followers = len(product.consumer.nests) if product.consumer is not None else 0
    return f"{name} {sizes}" + (f" and {followers} that follow" if followers else "")


def _plan(graph: KernelGraph, form: Form, options: InductorOptions) -> Plan:
    """A form as a call of its own, from all that it reads to all that others need of it."""
    buffers = {**graph.buffers, **form.buffers}
    reads: dict[str, None] = {}
    writes: dict[str, None] = {}
    for step in form.steps:
        reads |= dict.fromkeys(sorted(step.reads() - writes.keys()))
        writes |= dict.fromkeys(sorted(writes_of(step)))
    outside = {o.buffer for o in graph.outputs if isinstance(o, Strided)}
    inside = {id(s) for s in form.steps}
    for step in graph.steps:
        if id(step) not in inside and not writes_of(step) & writes.keys():
            outside |= step.reads()
    outputs = [buffers[name] for name in writes if name in outside]
    alone = KernelGraph(
        tuple(reads),
        {},
        buffers,
        form.steps,
        tuple(Strided(b.name, b.shape, b.stride, 0) for b in outputs),
        graph.builder,
    )
    return emit_plan(alone, plan_memory(alone), options, "candidate")


def _with_forms(graph: KernelGraph, chosen: Sequence[tuple[Product, Form]]) -> KernelGraph:
    """The graph with forms in the place of library calls and the kernels that they take in."""
    placed: dict[int, tuple[Step, ...]] = {}
    buffers: dict[str, Buffer] = {}
    gone: set[int] = set()
    for product, form in chosen:
        placed[product.target] = form.steps
        buffers |= form.buffers
        gone.add(product.position)
        gone |= {i for i, s in enumerate(graph.steps) if s is product.consumer}
    steps: list[Step] = []
    for position, step in enumerate(graph.steps):
        steps += placed.get(position, () if position in gone else (step,))
    known: Mapping[str, Buffer] = {**graph.buffers, **buffers}
    return replace(graph, steps=tuple(steps), buffers=known)


__all__ = ["Choice", "Problem", "Tuner", "choose_products", "fastest"]
