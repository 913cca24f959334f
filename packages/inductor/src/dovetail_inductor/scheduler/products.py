"""Products of matrices in a `KernelGraph`: what follows them point by point, and the forms in which
the two can be computed.

A form is a list of steps that write the same buffers: the library's call and the kernel as they
are, one kernel of ours for both, or one that writes sums over parts of the inner dimension and one
that adds them up. In every form the product is rounded to its dtype before anything else is done
with it, as where it goes through memory.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import torch

from dovetail_inductor.loop_ir.expr import Builder, Expr
from dovetail_inductor.loop_ir.index import Index, Var, linear, variable
from dovetail_inductor.loop_ir.loops import Buffer, ExternArg, ExternCall, LoopNest, Strided
from dovetail_inductor.loop_ir.sizes import any_symbolic
from dovetail_inductor.scheduler.kernels import (
    FusedKernel,
    KernelGraph,
    ProductKernel,
    ProductTiles,
    Step,
)
from dovetail_inductor.scheduler.live_bytes import writes_of
from dovetail_inductor.scheduler.loops import merge_vars, piece_index, replace_vars
from dovetail_inductor.scheduler.match import Group, match

# The operands of a product come last; one before them is added to it.
OPERATORS = ("aten::mm.out", "aten::addmm.out", "aten::bmm.out", "aten::baddbmm.out")
ROUNDINGS = {torch.bfloat16: "round_bf16", torch.float16: "round_f16"}
FARTHEST = 2**31 - 2**16  # kernels of ours count in 32 bits


@dataclass(frozen=True)
class Form:
    """Steps that compute a product and what follows, and the buffers that they need besides."""

    steps: tuple[Step, ...]
    buffers: Mapping[str, Buffer] = field(default_factory=dict)


@dataclass(frozen=True)
class Product:
    """A library call that multiplies matrices, at `position`; `consumer` is a kernel that reads the
    result point by point, if there is one, and `target` where one kernel for both can stand."""

    graph: KernelGraph
    position: int
    consumer: FusedKernel | None
    target: int
    internal: bool  # nobody but the consumer reads the result

    @property
    def call(self) -> ExternCall:
        """The library call."""
        step = self.graph.steps[self.position]
        assert isinstance(step, ExternCall)
        return step

    @property
    def out(self) -> Buffer:
        """The result."""
        (name,) = self.call.outputs
        assert name is not None
        return self.graph.buffers[name]

    @property
    def operands(self) -> tuple[Strided, Strided]:
        """The two matrices."""
        left, right = self.call.args[-2:]
        assert isinstance(left, Strided) and isinstance(right, Strided)
        return left, right

    @property
    def sizes(self) -> tuple[int, int, int, int]:
        """(batch, m, n, k); the batch is 1 for a single product."""
        left, right = self.operands
        batch = left.shape[0] if len(left.shape) == 3 else 1
        return batch, left.shape[-2], right.shape[-1], left.shape[-1]

    @cached_property
    def _vars(self) -> tuple[Var, ...]:
        return tuple(Var(i, n) for i, n in enumerate(self.out.shape))

    def library(self) -> Form:
        """The steps as they are."""
        return Form((self.call, self.consumer) if self.consumer is not None else (self.call,))

    def in_one(self, tiles: ProductTiles) -> Form | None:
        """One kernel of ours; None if the consumer's loops are other loops."""
        builder, index = self.graph.builder, self._index(self._vars)
        sums = f"sums of {self.out.name}"
        nest = self._nest(builder.load(sums, index, torch.float32))
        found = self._with_consumer(nest)
        if found is None:
            return None
        kernel, pieces = found
        outer = pieces[self._vars[0]] if len(self._vars) == 3 else ()
        axes = (outer, pieces[self._vars[-2]], pieces[self._vars[-1]])
        left, right = self.operands
        return Form((ProductKernel(kernel.name, left, right, axes, sums, kernel, tiles),))

    def in_parts(self, tiles: ProductTiles) -> Form | None:
        """A kernel of ours that sums parts of the inner dimension, and one that adds them up."""
        assert len(self._vars) == 2
        builder = self.graph.builder
        m, n = self.out.shape
        whole = Buffer(
            f"{self.out.name}_parts", torch.float32, self.out.device,
            (tiles.parts, m, n), (m * n, n, 1),
        )  # fmt: skip
        loops = tuple(Var(i, size) for i, size in enumerate(whole.shape))
        index = linear([variable(v) for v in loops], whole.stride)
        sums = f"sums of {self.out.name}"
        body = builder.load(sums, index, torch.float32)
        nest = LoopNest(whole.name, loops, (), None, body, index, self.call.origin)
        kernel = FusedKernel(whole.name, loops, (), (nest,))
        left, right = self.operands
        axes = ((loops[0],), (loops[1],), (loops[2],))
        first = ProductKernel(whole.name, left, right, axes, sums, kernel, tiles)
        place = linear([variable(v) for v in self._vars], whole.stride[1:])
        total: Expr | None = None
        for part in range(tiles.parts):
            own = builder.load(whole.name, place + part * m * n, torch.float32)
            total = own if total is None else builder.apply("add", [total, own])
        assert total is not None
        found = self._with_consumer(self._nest(total))
        if found is None:
            return None
        second = found[0]
        nests, (rows,) = merge_vars(builder, second.nests, [second.rows])
        return Form((first, replace(second, rows=rows, nests=tuple(nests))), {whole.name: whole})

    # --- building ---------------------------------------------------------------------------------

    def _index(self, variables: Sequence[Var]) -> Index:
        return linear([variable(v) for v in variables], self.out.stride)

    def _nest(self, sums: Expr) -> LoopNest:
        """The loops that make the result of the sums: with what is added, rounded."""
        builder, body = self.graph.builder, sums
        if len(self.call.args) == 3:
            added = self.call.args[0]
            assert isinstance(added, Strided)
            lead = len(self.out.shape) - len(added.shape)
            indices = [
                variable(v) if n != 1 else Index(0, ())
                for v, n in zip(self._vars[lead:], added.shape, strict=True)
            ]
            place = linear(indices, added.stride, added.offset)
            own = builder.load(added.buffer, place, torch.float32)
            body = builder.apply("add", [body, own])
        body = builder.apply(ROUNDINGS[self.out.dtype], [body])
        index = self._index(self._vars)
        return LoopNest(self.out.name, self._vars, (), None, body, index, self.call.origin)

    def _with_consumer(
        self, nest: LoopNest
    ) -> tuple[FusedKernel, dict[Var, tuple[Var, ...]]] | None:
        """The loops of the result and the consumer's as one kernel, and the loops that take the
        place of each of the former's."""
        if self.consumer is None:
            kernel = FusedKernel(f"{self.out.name}_product", self._vars, (), (nest,))
            return kernel, {v: (v,) for v in self._vars}
        return _joined(self.graph.builder, nest, self.consumer, self.internal)


def _joined(
    builder: Builder, nest: LoopNest, consumer: FusedKernel, internal: bool
) -> tuple[FusedKernel, dict[Var, tuple[Var, ...]]] | None:
    a, b = Group(nest.vars, (), (nest,)), Group(consumer.rows, (), consumer.nests)
    reads = [load.index for n in consumer.nests for load in n.loads if load.buffer == nest.buffer]
    found = match(a, b, nest.index, reads[0]) if reads else None
    if found is None or found.columns:
        return None
    of_a = {v: piece_index(p) for v, p in found.pieces_a.items()}
    of_b = {v: piece_index(p) for v, p in found.pieces_b.items()}
    stored = nest.index.substitute(lambda v: of_a[v], lambda e: e)
    if any(
        index.indirects() or index.substitute(lambda v: of_b[v], lambda e: e) != stored
        for index in reads
    ):
        return None  # read elsewhere than where it is computed
    nests = (
        replace_vars(builder, nest, found.pieces_a, of_a),
        *(replace_vars(builder, n, found.pieces_b, of_b) for n in consumer.nests),
    )
    if any(set(n.vars) != set(found.rows) for n in nests):
        return None
    hidden = consumer.internal | ({nest.buffer} if internal else frozenset())
    kernel = FusedKernel(consumer.name, found.rows, (), nests, hidden)
    return kernel, found.pieces_a


def find_products(graph: KernelGraph, on_gpu: Callable[[Buffer], bool]) -> list[Product]:
    """The products that kernels of ours could compute, in order. No two have the same consumer."""
    readers: dict[str, list[int]] = {}
    writer: dict[str, int] = {}
    for position, step in enumerate(graph.steps):
        for name in step.reads():
            readers.setdefault(name, []).append(position)
        writer |= dict.fromkeys(writes_of(step), position)
    kept = {o.buffer for o in graph.outputs if isinstance(o, Strided)}
    taken: set[int] = set()
    found: list[Product] = []
    # From the end: of two products that one kernel reads, the later one takes it in.
    for position in range(len(graph.steps) - 1, -1, -1):
        step = graph.steps[position]
        if not isinstance(step, ExternCall) or not _is_ours_to_compute(step, graph, on_gpu):
            continue
        alone = Product(graph, position, None, position, False)
        name = alone.out.name
        for at in readers.get(name, ()):
            kernel = graph.steps[at]
            if at in taken or not isinstance(kernel, FusedKernel) or kernel.columns:
                continue
            internal = readers[name] == [at] and name not in kept
            target = at
            if readers[name][0] != at:  # somebody waits for the product: can all be computed there?
                if any(writer.get(r, -1) > position for r in kernel.reads()):
                    continue
                target = position
            joined = Product(graph, position, kernel, target, internal)
            if joined.in_one(ProductTiles(16, 16, 16, 4, 1)) is not None:
                taken.add(at)
                alone = joined
                break
        found.append(alone)
    return found[::-1]


def _is_ours_to_compute(
    call: ExternCall, graph: KernelGraph, on_gpu: Callable[[Buffer], bool]
) -> bool:
    if call.op not in OPERATORS or not _plain(call.kwargs) or call.after:
        return False
    (name,) = call.outputs
    assert name is not None
    out = graph.buffers[name]
    tensors = [a for a in call.args if isinstance(a, Strided)]
    if len(tensors) != len(call.args) or not on_gpu(out):
        return False
    buffers = [out, *(graph.buffers[t.buffer] for t in tensors)]
    numbers = [n for b in buffers for n in (*b.shape, *b.stride, b.offset)]
    numbers += [n for t in tensors for n in (*t.shape, *t.stride, t.offset)]
    if any_symbolic(numbers) or any(b.extent > FARTHEST for b in buffers):
        return False
    if any(b.dtype != out.dtype for b in buffers) or out.dtype not in ROUNDINGS:
        return False
    # One row or column is no work for tensor cores.
    whole = len(out.shape) == len(tensors[-1].shape)
    return whole and all(n > 1 for n in out.shape) and 0 not in tensors[-1].shape


def _plain(kwargs: tuple[tuple[str, ExternArg], ...]) -> bool:
    """True if neither the product nor what is added is scaled."""
    return all(name in ("alpha", "beta") and value == 1 for name, value in kwargs)


__all__ = ["Form", "Product", "find_products"]
