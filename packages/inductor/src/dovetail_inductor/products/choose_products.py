"""The pass `choose_products`: each product by the library or by a kernel of ours, as measured."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from dovetail_runtime.plan import Plan

from dovetail_inductor.emit_plan import emit_plan
from dovetail_inductor.loop_ir.loops import Buffer, ExternCall, Strided
from dovetail_inductor.options import InductorOptions
from dovetail_inductor.products.candidates import candidates
from dovetail_inductor.products.dual_products import ANY_TILES, DualProduct, find_duals
from dovetail_inductor.products.find_products import (
    ProductGroup,
    find_groups,
    find_products,
    is_ours_to_compute,
    with_forms,
)
from dovetail_inductor.products.products import Form, Product, as_they_are
from dovetail_inductor.scheduler.kernels import KernelGraph, ProductKernel, ProductTiles
from dovetail_inductor.scheduler.lifetimes import writes_of
from dovetail_inductor.scheduler.memory import plan_memory
from dovetail_inductor.targets.target import GeneratedKernel

Key = tuple[tuple[str, str], ...]
Work = Product | ProductGroup | DualProduct

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

    def in_full(self) -> str:
        """The choice, and a line for each candidate with its time."""
        measured = zip(self.names, self.seconds, strict=True)
        times = ((n, "does not run" if s is None else f"{s * 1e6:.1f} us") for n, s in measured)
        return "\n".join([self.as_text(), *(f"  {name}: {time}" for name, time in times)])


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
        return is_ours_to_compute(call, graph, options.target_of)

    products = find_products(graph, ours)
    asked: dict[Key, list[_Asked]] = {}
    every: list[Work] = [*products, *find_groups(products), *_duals(products)]
    for work in every:
        tiles = _candidates(work, options)
        if tiles:
            asked.setdefault(_key(work, tiles, options), []).append(_Asked(work, tiles))
    if not asked:
        return graph
    problems = [_problem(key, same[0], options) for key, same in asked.items()]
    times = dict(zip(asked, tuner.measure(problems), strict=True))
    saved: dict[int, float] = {}  # seconds, by what was chosen for each call
    chosen: dict[int, tuple[Work, Form]] = {}
    for problem in problems:
        same, seconds = asked[problem.key], times[problem.key]
        best = _best(_calls(same[0].work), seconds, saved)
        tuner.note(Choice(_describe(same[0].work), len(same), best, problem.names, seconds))
        for one in same:
            calls = _calls(one.work)
            # (Whoever stands in a larger group stays there.)
            if best and all(_calls(chosen[at][0]) <= calls for at in calls & chosen.keys()):
                form = _form(one.work, one.tiles[best - 1])
                chosen |= dict.fromkeys(sorted(calls), (one.work, form))
                gain = (seconds[0] or 0.0) - (seconds[best] or 0.0)
                saved |= dict.fromkeys(calls, gain / len(calls))
    return with_forms(graph, {id(work): form for work, form in chosen.values()}.values())


def _best(calls: set[int], seconds: Sequence[float | None], saved: Mapping[int, float]) -> int:
    """The number of the fastest form for calls at some positions, or 0 where it is not faster than
    what was chosen for them one by one."""
    best = fastest(seconds)
    library, mine = seconds[0], seconds[best]
    if library is None or mine is None:
        return 0
    so_far = library - sum(saved.get(at, 0.0) for at in calls)
    return best if mine < MARGIN * so_far else 0


def _duals(products: Sequence[Product]) -> list[DualProduct]:
    """Those whose reader follows no other product."""
    consumers: dict[int | None, int] = {p.consumer: p.position for p in products}
    duals = find_duals(products)
    return [d for d in duals if consumers.get(d.reader, d.reader) in d.positions]


def _members(work: Work) -> tuple[Product, ...]:
    return (work,) if isinstance(work, Product) else work.members


def _calls(work: Work) -> set[int]:
    return {p.position for p in _members(work)}


def _candidates(work: Work, options: InductorOptions) -> list[ProductTiles]:
    members = _members(work)
    gpu = options.gpu_of(members[0].out.device)
    operands = [operand for p in members for operand in p.operands]
    itemsize = work.graph.buffers[operands[0].buffer].dtype.itemsize
    if isinstance(work, ProductGroup):  # which shares no persistent kernel
        return [t for t in candidates(work.sizes, False, gpu, itemsize) if not t.programs]
    target = options.target_of(members[0].out.device)
    if not all(target.describes(operand, work.graph.buffers) for operand in operands):
        gpu = replace(gpu, descriptors=False)
    if isinstance(work, Product):
        return candidates(work.sizes, work.target is not None, gpu, itemsize)
    # Each of two: with half of the columns a program needs what it needs for one.
    whole = [
        t for t in candidates(work.sizes, True, gpu, itemsize) if t.parts == 1 and t.n >= 2 * 16
    ]
    return [replace(t, n=t.n // 2) for t in whole]


def fastest(seconds: Sequence[float | None]) -> int:
    """The number of the plan to run: the first, unless another wins by the margin."""
    times = [float("inf") if s is None else s for s in seconds]
    best = min(range(len(times)), key=times.__getitem__)
    return best if seconds[0] is not None and times[best] < MARGIN * times[0] else 0


def _form(work: Work, tiles: ProductTiles) -> Form:
    if isinstance(work, ProductGroup):
        return work.form(tiles)
    if isinstance(work, Product) and tiles.parts > 1:
        found = work.in_parts(tiles)
    else:
        found = work.in_one(tiles)
    assert found is not None
    return found


def _problem(key: Key, asked: _Asked, options: InductorOptions) -> Problem:
    work = asked.work

    def plans() -> list[Plan]:
        forms = [as_they_are(work.graph, work.positions), *(_form(work, t) for t in asked.tiles)]
        return [plan_of(work.graph, work.positions, form, options) for form in forms]

    return Problem(key, ("library", *(t.as_text() for t in asked.tiles)), plans)


def _key(work: Work, tiles: Sequence[ProductTiles], options: InductorOptions) -> Key:
    """What a measurement depends on, without the names of one graph."""
    members = _members(work)
    parts = [part for product in members for part in _key_of(product, options)]
    if isinstance(work, DualProduct):
        parts.append(("both", _product_symbol(work, options)))
    # what an element is read for that others of a group make, too
    readers: dict[int | None, int] = {p.consumer: i for i, p in enumerate(members)}
    readers.pop(None, None)
    return (
        ("products", str(len(members))),
        *parts,
        ("readers", repr([readers.get(p.adder) for p in members])),
        ("candidates", repr(list(tiles))),
    )


def _key_of(product: Product, options: InductorOptions) -> Key:
    graph, call, kernel = product.graph, product.call, product.kernel
    tensors = [a for a in call.args if isinstance(a, Strided)]
    operands = [
        (t.shape, t.stride, (t.offset + graph.buffers[t.buffer].offset) % 8) for t in tensors
    ]
    return (
        ("operator", call.op),
        ("operands", repr((operands, product.out.stride, str(product.out.dtype)))),
        ("kernel", _product_symbol(product, options)),
        ("consumer", _symbol(kernel, graph, graph.buffers, options) if kernel else ""),
        ("taken in", str(product.target is not None)),
    )


def _product_symbol(work: Product | DualProduct, options: InductorOptions) -> str:
    """The name of the kernel that computes a product in one step."""
    form = work.in_one(ANY_TILES)
    assert form is not None
    (one,) = (s for s in form.steps if isinstance(s, ProductKernel))
    return _symbol(one, work.graph, {**work.graph.buffers, **form.buffers}, options)


def _symbol(
    kernel: GeneratedKernel,
    graph: KernelGraph,
    buffers: Mapping[str, Buffer],
    options: InductorOptions,
) -> str:
    """A kernel's name: a digest of its text."""
    device = buffers[min(kernel.writes())].device
    machine = options.machine_of(device)
    made = options.target_of(device).emit(kernel, graph.builder, buffers, machine)
    return made.kernel.symbol if made.kernel is not None else ""


def _describe(work: Work) -> str:
    if isinstance(work, DualProduct):
        return f"both of {_describe(work.members[0])} and of what reads them"
    if isinstance(work, ProductGroup):
        return f"{len(work.members)} in one launch, {_describe(work.members[0])} and so on"
    batch, m, n, k = work.sizes
    name = work.call.op.removeprefix("aten::").removesuffix(".out")
    sizes = f"{m}x{k} by {k}x{n}" if batch == 1 else f"{batch} of {m}x{k} by {k}x{n}"
    kernel = work.kernel
    followers = 0 if kernel is None else len(kernel.nests)
    return f"{name} {sizes}" + (f" and {followers} that follow" if followers else "")


def plan_of(
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
