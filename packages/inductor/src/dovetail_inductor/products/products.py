"""Products of matrices in a `KernelGraph`: what follows them point by point, and the forms in which
the two can be computed.

A form is a list of steps that write the same buffers: the library's call and the kernel as they
are, one kernel of ours for both, or one that writes sums over parts of the inner dimension and one
that adds them up. In every form the product is rounded to its dtype before anything else is done
with it, as where it goes through memory.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import torch

from dovetail_inductor.loop_ir.expr import Builder, Expr, Load
from dovetail_inductor.loop_ir.index import Index, Var, linear, variable
from dovetail_inductor.loop_ir.loops import Buffer, ExternCall, LoopNest, Strided
from dovetail_inductor.loop_ir.ops import ROUNDING
from dovetail_inductor.scheduler.kernels import (
    FusedKernel,
    KernelGraph,
    ProductKernel,
    ProductTiles,
    Step,
)
from dovetail_inductor.scheduler.loops import merge_vars, piece_index, replace_vars
from dovetail_inductor.scheduler.match import Group, match


@dataclass(frozen=True)
class Form:
    """Steps that compute products and what reads them: which stand at which position of the graph,
    in the place of those at the positions `replaced`, and the buffers that they need besides."""

    placed: Mapping[int, tuple[Step, ...]]
    replaced: frozenset[int]
    buffers: Mapping[str, Buffer] = field(default_factory=dict)

    @property
    def steps(self) -> tuple[Step, ...]:
        """The steps, in order."""
        return tuple(s for at in sorted(self.placed) for s in self.placed[at])


SCALED, OF_INTEGERS = "aten::_scaled_mm.out", "aten::_int_mm.out"
_ARGUMENTS = ("left", "right", "scale", "other_scale", "added", "result_scale", "dtype", "fast")


@dataclass(frozen=True)
class Multiplication:
    """What a library call does: its matrices, what the sums of their products are multiplied by,
    and what is then added. With `apart` sums may not stay in a tensor core for long, which rounds
    those of 8-bit floats."""

    left: Strided
    right: Strided
    scales: tuple[Strided, ...] = ()
    added: Strided | None = None
    apart: bool = False

    @classmethod
    def of(cls, call: ExternCall) -> Multiplication:
        """What a call of an operator that multiplies matrices does."""
        if call.op not in (SCALED, OF_INTEGERS):
            *before, left, right = (a for a in call.args if isinstance(a, Strided))
            return cls(left, right, (), before[0] if before else None)
        given = dict(zip(_ARGUMENTS, call.args, strict=False))
        given |= {"dtype" if n == "out_dtype" else "fast": value for n, value in call.kwargs}
        tensors = {name: a for name, a in given.items() if isinstance(a, Strided)}
        scales = tuple(tensors[n] for n in ("scale", "other_scale") if n in tensors)
        apart = call.op == SCALED and not given.get("fast", False)
        return cls(tensors["left"], tensors["right"], scales, tensors.get("added"), apart)


@dataclass(frozen=True)
class Product:
    """A library call that multiplies matrices, at `position`.

    `consumer` is the position of a kernel that reads the result and is measured with it; where it
    reads point by point, `target` is where one kernel for both can stand. `sole_reader` is the
    position of the only step that reads the result, if there is but one and it is a kernel.
    `narrow` is the right matrix without its last columns, where those of the result are not read:
    padding for the library's sake.
    """

    graph: KernelGraph
    position: int
    consumer: int | None = None
    target: int | None = None
    sole_reader: int | None = None
    narrow: Strided | None = None

    @property
    def call(self) -> ExternCall:
        """The library call, of what is read of its result."""
        step = self.graph.steps[self.position]
        assert isinstance(step, ExternCall)
        return step if self.narrow is None else replace(step, args=(*step.args[:-1], self.narrow))

    def without(self, positions: Collection[int]) -> Product:
        """The product where kernels at some positions are taken in by others."""
        if self.sole_reader in positions or self.consumer in positions:
            return replace(self, consumer=None, target=None, sole_reader=None)
        return self

    @property
    def kernel(self) -> FusedKernel | None:
        """The consumer."""
        return None if self.consumer is None else kernel_at(self.graph, self.consumer)

    @property
    def out(self) -> Buffer:
        """The result, or what is read of it."""
        (name,) = self.call.outputs
        assert name is not None
        whole = self.graph.buffers[name]
        if self.narrow is None:
            return whole
        return replace(whole, shape=(whole.shape[0], self.narrow.shape[1]))

    @cached_property
    def adder(self) -> int | None:
        """The sole reader, if it can add up parts of each element where it reads it: if what is
        added to the product can be found from an element's place."""
        if self.sole_reader is None or len(self.out.shape) != 2:
            return None
        nests = kernel_at(self.graph, self.sole_reader).nests
        loads = [load for nest in nests for load in nest.loads if load.buffer == self.out.name]
        in_rows = self.out.stride == (self.out.shape[1], 1)
        of = self.multiplication
        plain = not (of.scales or of.added) or not any(d.index.indirects() for d in loads)
        return self.sole_reader if in_rows and plain and loads else None

    @property
    def operands(self) -> tuple[Strided, Strided]:
        """The two matrices."""
        return self.multiplication.left, self.multiplication.right

    @cached_property
    def multiplication(self) -> Multiplication:
        """What the call does."""
        return Multiplication.of(self.call)

    @property
    def sum_dtype(self) -> torch.dtype:
        """In what products are added up."""
        return torch.int32 if self.out.dtype is torch.int32 else torch.float32

    @property
    def sizes(self) -> tuple[int, int, int, int]:
        """(batch, m, n, k); the batch is 1 for a single product."""
        left, right = self.operands
        batch = left.shape[0] if len(left.shape) == 3 else 1
        return batch, left.shape[-2], right.shape[-1], left.shape[-1]

    @property
    def positions(self) -> frozenset[int]:
        """Where the steps stand that a form replaces."""
        return frozenset(
            {self.position} if self.consumer is None else {self.position, self.consumer}
        )

    @cached_property
    def vars(self) -> tuple[Var, ...]:
        """The loops over the result."""
        return tuple(Var(i, n) for i, n in enumerate(self.out.shape))

    def in_one(self, tiles: ProductTiles) -> Form | None:
        """One kernel of ours for the product and, where it reads point by point, its consumer; None
        if its loops are other loops."""
        if self.target is None:
            placed: dict[int, tuple[Step, ...]] = dict(
                as_they_are(self.graph, self.positions).placed
            )
            return Form({**placed, self.position: (self.alone(tiles),)}, self.positions)
        found = self.followed(tiles)
        return Form({self.target: (found,)}, self.positions) if found else None

    def followed(self, tiles: ProductTiles) -> ProductKernel | None:
        """One kernel for the product and its consumer; None if that is not one that reads point by
        point."""
        return None if self.target is None else self._product(self.kernel, tiles)

    def nest(self) -> LoopNest:
        """The loops that make the result of `sums`, rounded."""
        index = linear([variable(v) for v in self.vars], self.out.stride)
        return self._nest(self.graph.builder.load(self.sums, index, self.sum_dtype))

    def alone(self, tiles: ProductTiles) -> ProductKernel:
        """A kernel of ours for the product alone."""
        found = self._product(None, tiles)
        assert found is not None
        return found

    def in_parts(self, tiles: ProductTiles) -> Form | None:
        """A kernel of ours that sums parts of the inner dimension, and one that adds them up."""
        first, whole = self.parts(tiles)
        placed: dict[int, tuple[Step, ...]] = {self.position: (first,)}
        buffers = {whole.name: whole}
        if self.consumer is not None and self.consumer == self.adder:
            adding = self.adding_up(kernel_at(self.graph, self.consumer), whole)
            return Form({**placed, self.consumer: (adding,)}, self.positions, buffers)
        second = self.total(self.kernel if self.target is not None else None, whole)
        if second is None:
            return None
        if self.target in (None, self.position):
            return Form({self.position: (first, second)}, self.positions, buffers)
        assert self.target is not None
        return Form({**placed, self.target: (second,)}, self.positions, buffers)

    def parts(self, tiles: ProductTiles) -> tuple[ProductKernel, Buffer]:
        """The kernel that sums parts of the inner dimension, and where it leaves them."""
        m, n = self.out.shape
        whole = Buffer(
            f"{self.out.name}_parts", self.sum_dtype, self.out.device,
            (tiles.parts, m, n), (m * n, n, 1),
        )  # fmt: skip
        loops = tuple(Var(i, size) for i, size in enumerate(whole.shape))
        index = linear([variable(v) for v in loops], whole.stride)
        body = self.graph.builder.load(self.sums, index, self.sum_dtype)
        own = tuple(v for v in loops if v.size != 1)
        nest = LoopNest(whole.name, own, (), None, body, index, self.call.origin)
        kernel = FusedKernel(whole.name, own, (), (nest,))
        axes = tuple((v,) if v.size != 1 else () for v in loops)
        return self._kernel_of(kernel, axes, tiles), whole

    def total(self, consumer: FusedKernel | None, whole: Buffer) -> FusedKernel | None:
        """The kernel that adds up parts, with a consumer that reads point by point."""
        index = linear([variable(v) for v in self.vars], whole.stride[1:])
        found = self._with_consumer(self._nest(self._sum_of_parts(whole, index, None)), consumer)
        if found is None:
            return None
        second = found[0]
        nests, (rows,) = merge_vars(self.graph.builder, second.nests, [second.rows])
        return replace(second, rows=rows, nests=tuple(nests))

    def adding_up(self, reader: FusedKernel, whole: Buffer) -> FusedKernel:
        """A kernel that reads nothing of the product but its elements, wherever, adding up their
        parts itself."""
        builder, (_, n) = self.graph.builder, self.out.shape

        def element(load: Load, index: Index, mask: Expr | None) -> Expr:
            if load.buffer != self.out.name:
                return builder.load(load.buffer, index, load.dtype, mask)
            sums = self._sum_of_parts(whole, index, mask)
            return self._rounded(sums, (index.floordiv(n), index.mod(n)), mask)

        nests = (nest.renamed(builder, element=element) for nest in reader.nests)
        return replace(reader, nests=tuple(nests))

    # --- building ---------------------------------------------------------------------------------

    @property
    def sums(self) -> str:
        """The name under which a kernel's epilogue reads the sums of products."""
        return f"sums of {self.out.name}"

    def _product(self, consumer: FusedKernel | None, tiles: ProductTiles) -> ProductKernel | None:
        """One kernel for the product and a consumer."""
        found = self._with_consumer(self.nest(), consumer)
        if found is None:
            return None
        kernel, pieces = found
        axes = [pieces.get(v, ()) for v in self.vars]
        return self._kernel_of(kernel, ((), *axes)[-3:], tiles)

    def _kernel_of(
        self, epilogue: FusedKernel, axes: tuple[tuple[Var, ...], ...], tiles: ProductTiles
    ) -> ProductKernel:
        outer, rows, columns = axes
        loops = (outer, rows, columns)
        tiles = replace(tiles, apart=self.multiplication.apart)
        return ProductKernel(epilogue.name, *self.operands, loops, self.sums, epilogue, tiles)

    def _sum_of_parts(self, whole: Buffer, index: Index, mask: Expr | None) -> Expr:
        """The sum of products at a place of the result, of its parts."""
        builder = self.graph.builder
        total: Expr | None = None
        for part in range(whole.shape[0]):
            place = index + part * whole.stride[0]
            own = builder.load(whole.name, place, whole.dtype, mask)
            total = own if total is None else builder.apply("add", [total, own])
        assert total is not None
        return total

    def _rounded(self, sums: Expr, place: Sequence[Index], mask: Expr | None) -> Expr:
        """An element of the result: scaled, with what is added, rounded."""
        builder, of, body = self.graph.builder, self.multiplication, sums

        def own(tensor: Strided) -> Expr:
            lead = len(self.out.shape) - len(tensor.shape)
            indices = [
                i if n != 1 else Index(0, ())
                for i, n in zip(place[lead:], tensor.shape, strict=True)
            ]
            at = linear(indices, tensor.stride, tensor.offset)
            return builder.load(tensor.buffer, at, torch.float32, mask)

        for scale in of.scales:
            body = builder.apply("mul", [body, own(scale)])
        if of.added is not None:
            body = builder.apply("add", [body, own(of.added)])
        rounding = ROUNDING.get(self.out.dtype)
        return body if rounding is None else builder.apply(rounding, [body])

    def _nest(self, sums: Expr) -> LoopNest:
        """The loops that make the result of the sums."""
        place = [variable(v) for v in self.vars]
        body, index = self._rounded(sums, place, None), linear(place, self.out.stride)
        own = tuple(v for v in self.vars if v.size != 1)
        return LoopNest(self.out.name, own, (), None, body, index, self.call.origin)

    def _with_consumer(
        self, nest: LoopNest, consumer: FusedKernel | None
    ) -> tuple[FusedKernel, dict[Var, tuple[Var, ...]]] | None:
        """The loops of the result and the consumer's as one kernel, and the loops that take the
        place of each of the former's."""
        if consumer is None:
            kernel = FusedKernel(f"{self.out.name}_product", nest.vars, (), (nest,))
            return kernel, {v: (v,) for v in nest.vars}
        return joined(self.graph.builder, nest, consumer, self.sole_reader is not None)


def as_they_are(graph: KernelGraph, positions: frozenset[int]) -> Form:
    """The steps at some positions of the graph as a form: the library's."""
    return Form({at: (graph.steps[at],) for at in positions}, positions)


def kernel_at(graph: KernelGraph, position: int) -> FusedKernel:
    """The fused kernel at a position of the graph."""
    kernel = graph.steps[position]
    assert isinstance(kernel, FusedKernel)
    return kernel


def joined(
    builder: Builder, nest: LoopNest, consumer: FusedKernel, internal: bool
) -> tuple[FusedKernel, dict[Var, tuple[Var, ...]]] | None:
    """A nest and a kernel that reads its result point by point as one kernel, and the loops that
    take the place of each of the nest's; `internal` if nobody else reads the result."""
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
