"""The pass `choose_products`: each product by the library or by a kernel of ours, as measured."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from dovetail_runtime.plan import Plan

from dovetail_inductor.autotune.candidates import candidates
from dovetail_inductor.codegen_triton.descriptors import described
from dovetail_inductor.codegen_triton.kernel import emit_kernel
from dovetail_inductor.codegen_triton.product import emit_product
from dovetail_inductor.emit_plan import emit_plan
from dovetail_inductor.loop_ir.loops import ExternCall, Strided
from dovetail_inductor.options import InductorOptions
from dovetail_inductor.scheduler.kernels import KernelGraph, ProductKernel, ProductTiles
from dovetail_inductor.scheduler.live_bytes import writes_of
from dovetail_inductor.scheduler.memory import plan_memory
from dovetail_inductor.scheduler.products import (
    Form,
    Product,
    ProductGroup,
    find_groups,
    find_products,
    is_ours_to_compute,
    with_forms,
)

Key = tuple[tuple[str, str], ...]
Work = Product | ProductGroup

MARGIN = 0.97  # a kernel of ours must take less than this part of the library's time


@dataclass(frozen=True)
class Problem:
    """Several plans that compute the same. `key` says what they were made from, as parts that can
    be told apart; `names` are the plans', the first the one to beat."""

    key: Key
    names: tuple[str, ...]
    plans: Callable[[], Sequence[Plan]]


@dataclass(frozen=True)
class _Asked:
    """Work, with the tiles to try."""

    work: Work
    tiles: list[ProductTiles]


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

    def ours(call: ExternCall) -> bool:
        return is_ours_to_compute(call, graph, lambda buffer: options.on_gpu(buffer.device))

    products = find_products(graph, ours)
    asked: dict[Key, list[_Asked]] = {}
    every: list[Work] = [*products, *find_groups(products)]
    for work in every:
        tiles = _candidates(work, options)
        if tiles:
            asked.setdefault(_key(work, tiles), []).append(_Asked(work, tiles))
    if not asked:
        return graph
    problems = [_problem(key, same[0], options) for key, same in asked.items()]
    times = dict(zip(asked, tuner.measure(problems), strict=True))
    # Of a group: only if it is faster than the best of each of its members.
    best_alone: dict[int, float] = {}
    chosen: dict[int, tuple[Work, Form]] = {}
    for problem in problems:
        same, seconds = asked[problem.key], times[problem.key]
        best = fastest(seconds)
        if isinstance(same[0].work, ProductGroup):
            best = _beats_members(same[0].work, best, seconds, best_alone)
        tuner.note(Choice(_describe(same[0].work), len(same), best, problem.names, seconds))
        for one in same:
            if isinstance(one.work, Product):
                best_alone[one.work.position] = seconds[best] or 0.0
            if best:
                form = _form(one.work, one.tiles[best - 1])
                chosen |= dict.fromkeys(sorted(_calls(one.work)), (one.work, form))
    return with_forms(graph, {id(work): form for work, form in chosen.values()}.values())


def _beats_members(
    group: ProductGroup,
    best: int,
    seconds: Sequence[float | None],
    best_alone: Mapping[int, float],
) -> int:
    """`best` if it beats the members' own best forms, else 0."""
    mine, theirs = seconds[best], [best_alone.get(p.position, 0.0) for p in group.members]
    measured = all(theirs) and mine is not None
    return best if measured and mine is not None and mine < MARGIN * sum(theirs) else 0


def _calls(work: Work) -> set[int]:
    members = work.members if isinstance(work, ProductGroup) else (work,)
    return {p.position for p in members}


def _candidates(work: Work, options: InductorOptions) -> list[ProductTiles]:
    members = work.members if isinstance(work, ProductGroup) else (work,)
    gpu = options.gpu_of(members[0].out.device)
    if not isinstance(work, Product):  # which share no persistent kernel
        return [t for t in candidates(work.sizes, False, gpu) if not t.programs]
    if not all(described(operand, work.graph.buffers) for operand in work.operands):
        gpu = replace(gpu, descriptors=False)
    return candidates(work.sizes, work.target is not None, gpu)


def fastest(seconds: Sequence[float | None]) -> int:
    """The number of the plan to run: the first, unless another wins by the margin."""
    times = [float("inf") if s is None else s for s in seconds]
    best = min(range(len(times)), key=times.__getitem__)
    return best if seconds[0] is not None and times[best] < MARGIN * times[0] else 0


def _form(work: Work, tiles: ProductTiles) -> Form:
    if isinstance(work, ProductGroup):
        return work.form(tiles)
    found = work.in_one(tiles) if tiles.parts == 1 else work.in_parts(tiles)
    assert found is not None
    return found


def _problem(key: Key, asked: _Asked, options: InductorOptions) -> Problem:
    work = asked.work

    def plans() -> list[Plan]:
        forms = [work.library(), *(_form(work, t) for t in asked.tiles)]
        return [_plan(work.graph, work.positions, form, options) for form in forms]

    return Problem(key, ("library", *(t.as_text() for t in asked.tiles)), plans)


def _key(work: Work, tiles: Sequence[ProductTiles]) -> Key:
    """What a measurement depends on, without the names of one graph."""
    members = work.members if isinstance(work, ProductGroup) else (work,)
    parts = [part for product in members for part in _key_of(product)]
    # what an element is read for that others of a group make, too
    readers: dict[int | None, int] = {p.consumer: i for i, p in enumerate(members)}
    readers.pop(None, None)
    return (
        ("products", str(len(members))),
        *parts,
        ("readers", repr([readers.get(p.adder) for p in members])),
        ("candidates", repr(list(tiles))),
    )


def _key_of(product: Product) -> Key:
    graph, call, kernel = product.graph, product.call, product.kernel
    tensors = [a for a in call.args if isinstance(a, Strided)]
    operands = [
        (t.shape, t.stride, (t.offset + graph.buffers[t.buffer].offset) % 8) for t in tensors
    ]
    form = product.in_one(ProductTiles(16, 16, 16, 4, 1))
    assert form is not None
    (one,) = (s for s in form.steps if isinstance(s, ProductKernel))
    return (
        ("operator", call.op),
        ("operands", repr((operands, product.out.stride, str(product.out.dtype)))),
        # the name of a kernel is a digest of its text
        ("kernel", emit_product(one, graph.buffers).kernel.symbol),
        ("consumer", emit_kernel(kernel, graph.buffers).kernel.symbol if kernel else ""),
        ("taken in", str(product.target is not None)),
    )


def _describe(work: Work) -> str:
    if isinstance(work, ProductGroup):
        return f"{len(work.members)} in one launch, {_describe(work.members[0])} and so on"
    batch, m, n, k = work.sizes
    name = work.call.op.removeprefix("aten::").removesuffix(".out")
    sizes = f"{m}x{k} by {k}x{n}" if batch == 1 else f"{batch} of {m}x{k} by {k}x{n}"
    kernel = work.kernel
    followers = 0 if kernel is None else len(kernel.nests)
    return f"{name} {sizes}" + (f" and {followers} that follow" if followers else "")


def _plan(
    graph: KernelGraph, positions: Collection[int], form: Form, options: InductorOptions
) -> Plan:
    """A form as a call of its own, from all that it reads to all that others need of it.
    `positions` are where it stands in the graph."""
    buffers = {**graph.buffers, **form.buffers}
    reads: dict[str, None] = {}
    writes: dict[str, None] = {}
    for step in form.steps:
        reads |= dict.fromkeys(sorted(step.reads() - writes.keys()))
        writes |= dict.fromkeys(sorted(writes_of(step)))
    outside = {o.buffer for o in graph.outputs if isinstance(o, Strided)}
    for position, step in enumerate(graph.steps):
        if position not in positions:
            outside |= step.reads()
    outputs = [buffers[name] for name in writes if name in outside]
    alone = KernelGraph(
        tuple(sorted(reads)),
        {},
        buffers,
        form.steps,
        tuple(Strided(b.name, b.shape, b.stride, 0) for b in sorted(outputs, key=lambda b: b.name)),
        graph.builder,
    )
    return emit_plan(alone, plan_memory(alone), options, "candidate")


__all__ = ["Choice", "Problem", "Tuner", "choose_products", "fastest"]
