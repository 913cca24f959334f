"""Which library calls multiply matrices as generated kernels can, what reads them, and which of
them, with the same left operand, share a launch.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import torch

from dovetail_inductor.loop_ir.loops import Buffer, ExternArg, ExternCall, Strided
from dovetail_inductor.loop_ir.ops import EIGHT_BIT_FLOATS, HALVES
from dovetail_inductor.loop_ir.sizes import any_symbolic
from dovetail_inductor.products.products import (
    OF_INTEGERS,
    SCALED,
    Form,
    Multiplication,
    Product,
    kernel_at,
)
from dovetail_inductor.scheduler.kernels import (
    CombinedKernel,
    ComputedOperand,
    FusedKernel,
    KernelGraph,
    ProductKernel,
    ProductTiles,
    Step,
    scatters,
)
from dovetail_inductor.scheduler.lifetimes import writes_of
from dovetail_inductor.targets.target import Target

# The operands of a product come last; one before them is added to it. (Of what is kept in bytes
# they come first.)
OPERATORS = ("aten::mm.out", "aten::addmm.out", "aten::bmm.out", "aten::baddbmm.out")
FARTHEST = 2**31 - 2**16  # kernels of ours count in 32 bits


def is_ours_to_compute(
    call: ExternCall, graph: KernelGraph, target_of: Callable[[torch.device], Target]
) -> bool:
    """Whether a kernel of ours can do what a library call does."""
    of_bytes = call.op in (SCALED, OF_INTEGERS)
    if call.after or not (of_bytes or (call.op in OPERATORS and _plain(call.kwargs))):
        return False
    (name,) = call.outputs
    assert name is not None
    out = graph.buffers[name]
    tensors = [a for a in call.args if isinstance(a, Strided)]
    whole = of_bytes or len(tensors) == len(call.args)
    if not whole or target_of(out.device).library.multiplies_alone:
        return False
    buffers = [out, *(graph.buffers[t.buffer] for t in tensors)]
    numbers = [n for b in buffers for n in (*b.shape, *b.stride, b.offset)]
    numbers += [n for t in tensors for n in (*t.shape, *t.stride, t.offset)]
    if any_symbolic(numbers) or any(b.extent > FARTHEST for b in buffers):
        return False
    if of_bytes:
        return _as_the_library_wants(call, out, graph.buffers)
    if any(b.dtype != out.dtype for b in buffers) or out.dtype not in HALVES:
        return False
    return len(out.shape) == len(tensors[-1].shape) and 0 not in (*out.shape, *tensors[-1].shape)


def _as_the_library_wants(call: ExternCall, out: Buffer, buffers: Mapping[str, Buffer]) -> bool:
    """Whether a GPU's library multiplies bytes so; of others it is to say what is wrong. (With one
    scale a row it gives bfloat16 in all versions.)"""
    of = Multiplication.of(call)
    (m, k), (_, n) = of.left.shape, of.right.shape
    kinds = [buffers[t.buffer].dtype for t in (of.left, of.right)]
    if call.op == OF_INTEGERS:
        return kinds == [torch.int8, torch.int8] and m > 16 and k % 8 == n % 8 == 0
    in_rows = of.left.stride[1] == of.right.stride[0] == 1 and k % 16 == n % 16 == 0
    eight_bits = {*kinds} <= EIGHT_BIT_FLOATS and torch.float8_e4m3fn in kinds
    more = [a for a in (*call.args[4:6], *(v for _, v in call.kwargs)) if isinstance(a, Strided)]
    added = [] if of.added is None else [of.added]
    right = more == added and all(
        t.shape == (n,) and buffers[t.buffer].dtype is out.dtype is not torch.float32 for t in added
    )
    shapes = [t.shape for t in of.scales]
    by_rows = shapes == [(m, 1), (1, n)] and out.dtype is torch.bfloat16
    scaled = by_rows or all(set(shape) <= {1} for shape in shapes)
    floats = all(buffers[t.buffer].dtype is torch.float32 for t in of.scales)
    held = out.dtype in (*HALVES, torch.float32)
    return in_rows and eight_bits and right and scaled and floats and held and m > 0


def _plain(kwargs: tuple[tuple[str, ExternArg], ...]) -> bool:
    """True if neither the product nor what is added is scaled."""
    return all(name in ("alpha", "beta") and value == 1 for name, value in kwargs)


def find_products(graph: KernelGraph, ours: Callable[[ExternCall], bool]) -> list[Product]:
    """The library calls that are `ours` to compute, which must be such that kernels of ours can, in
    order. No two have the same consumer."""
    readers, writer = readers_and_writers(graph)
    kept = {o.buffer for o in graph.outputs if isinstance(o, Strided)}
    # A scatter reads where it writes, which a measured kernel may not.
    scattering = {i for i, step in enumerate(graph.steps) if scatters([step])}
    taken = set(scattering)
    found: list[Product] = []
    # From the end: of two products that one kernel reads, the later one takes it in.
    for position in range(len(graph.steps) - 1, -1, -1):
        step = graph.steps[position]
        if not isinstance(step, ExternCall) or not ours(step):
            continue
        product = Product(graph, position)
        name = product.out.name
        at = readers.get(name, [])
        alone = len(at) == 1 and name not in kept and at[0] not in scattering
        if alone and isinstance(graph.steps[at[0]], FusedKernel):
            product = replace(product, sole_reader=at[0])
        joined = _consumers(product, [p for p in at if p not in taken], at[:1], writer)
        product = next(joined, product)
        if product.consumer is None and product.adder not in (None, *taken):
            product = replace(product, consumer=product.adder)
        if product.consumer is not None:
            taken.add(product.consumer)
        found.append(product)
    return found[::-1]


def readers_and_writers(graph: KernelGraph) -> tuple[dict[str, list[int]], dict[str, int]]:
    """The positions of the steps that read each buffer, in order, and of the one that writes it."""
    readers: dict[str, list[int]] = {}
    writer: dict[str, int] = {}
    for position, step in enumerate(graph.steps):
        for name in step.reads():
            readers.setdefault(name, []).append(position)
        writer |= dict.fromkeys(writes_of(step), position)
    return readers, writer


def _consumers(
    product: Product, readers: Sequence[int], first: Sequence[int], writer: Mapping[str, int]
) -> Iterator[Product]:
    """The product with each of its readers that one kernel can compute it with."""
    for at in readers:
        kernel = product.graph.steps[at]
        if not isinstance(kernel, FusedKernel) or kernel.columns:
            continue
        target = at
        if at not in first:  # somebody waits for the product: can all be computed there?
            if any(writer.get(r, -1) > product.position for r in kernel.reads()):
                continue
            target = product.position
        joined = replace(product, consumer=at, target=target)
        if joined.in_one(ProductTiles(16, 16, 16, 4, 1)) is not None:
            yield joined


def with_forms(graph: KernelGraph, chosen: Collection[Form]) -> KernelGraph:
    """The graph with forms in the place of library calls and the kernels that they take in."""
    placed = {at: steps for form in chosen for at, steps in form.placed.items()}
    gone = frozenset().union(*(form.replaced for form in chosen))
    steps: list[Step] = []
    for position, step in enumerate(graph.steps):
        steps += placed.get(position, () if position in gone else (step,))
    more = {name: b for form in chosen for name, b in form.buffers.items()}
    return replace(graph, steps=tuple(steps), buffers={**graph.buffers, **more})


# Products of other widths share a launch if so wide a tile divides them, in one column of tiles.
WIDEST, SHORT = 256, 128


@dataclass(frozen=True)
class ProductGroup:
    """Products with the same left operand, computed side by side in one launch."""

    members: tuple[Product, ...]

    @property
    def sizes(self) -> tuple[int, int, int, int]:
        """As of one product with all right operands beside one another."""
        batch, m, _, k = self.members[0].sizes
        return batch, m, sum(p.sizes[2] for p in self.members), k

    @property
    def graph(self) -> KernelGraph:
        """The graph that they are of."""
        return self.members[0].graph

    @property
    def positions(self) -> frozenset[int]:
        """Where the steps stand that a form replaces."""
        return frozenset().union(*(p.positions for p in self.members))

    def form(self, tiles: ProductTiles) -> Form:
        """One launch for the products, whole or in parts, and after it what reads them."""
        first = min(p.position for p in self.members)
        _, writer = readers_and_writers(self.graph)
        steps: dict[int, FusedKernel] = {
            p.consumer: kernel_at(self.graph, p.consumer)
            for p in self.members
            if p.consumer is not None
        }
        buffers: dict[str, Buffer] = {}
        kernels: list[ProductKernel] = []
        totals: list[Step] = []
        for product in self.members:
            if tiles.parts == 1:
                kernel = product.alone(tiles)
                if product.consumer is not None:
                    others = steps[product.consumer].reads() - {product.out.name}
                    there = all(writer.get(name, -1) < first for name in others)
                    if there and (followed := product.followed(tiles)) is not None:
                        kernel = followed
                        del steps[product.consumer]
                kernels.append(kernel)
                continue
            kernel, whole = product.parts(tiles)
            kernels.append(kernel)
            buffers[whole.name] = whole
            at = product.adder
            if at is not None and at in steps:
                steps[at] = product.adding_up(steps[at], whole)
                continue
            total = product.total(None, whole)
            assert total is not None
            totals.append(total)
        launch = CombinedKernel(f"{kernels[0].name}_and_more", tuple(kernels))
        placed: dict[int, tuple[Step, ...]] = {at: (step,) for at, step in steps.items()}
        return Form({**placed, first: (launch, *totals)}, self.positions, buffers)


def find_groups(
    products: Sequence[Product], computed: Mapping[str, ComputedOperand] | None = None
) -> list[ProductGroup]:
    """Products of the same left matrix, all operands of which are there when the first is due, or
    what those are made of that a product can compute itself."""
    if not products:
        return []
    _, writer = readers_and_writers(products[0].graph)
    groups: dict[Strided, list[Product]] = {}
    for product in products:
        left, right = product.operands
        mine = groups.setdefault(left, [])
        first = mine[0].position if mine else product.position
        own = (computed or {}).get(right.buffer)
        needed = set(own.reads()) if own is not None else {right.buffer}
        needed |= {o.buffer for o in product.call.tensors()} - {left.buffer, right.buffer}
        there = all(writer.get(name, -1) < first for name in needed)
        if there and len(left.shape) == 2 and (not mine or _alike(mine[0], product)):
            mine.append(product)
    return [ProductGroup(tuple(found)) for found in groups.values() if len(found) > 1]


def _alike(a: Product, b: Product) -> bool:
    """Whether two products of the same left matrix are multiplied by the same loop: none has tiles
    that hang over, unless they are of one size."""
    left, right = a.operands
    other = b.operands[1]
    if left.buffer in (right.buffer, other.buffer) or right.offset != other.offset:
        return False
    _, m, n, _ = a.sizes
    same = n == b.sizes[2] or (m <= SHORT and n % WIDEST == 0 and b.sizes[2] % WIDEST == 0)
    return same and right.stride == other.stride
