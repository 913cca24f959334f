"""`KernelGraph`: fused kernels and extern calls, in order. The output of scheduling."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import prod

import torch
from dovetail_runtime.plan import Assert, SizeExpr

from dovetail_inductor.loop_ir.expr import Apply, Builder, Expr, index_free, loads
from dovetail_inductor.loop_ir.handlers import Printer, interpret
from dovetail_inductor.loop_ir.index import Var
from dovetail_inductor.loop_ir.loops import Buffer, ExternCall, GraphFacts, LoopNest, Strided
from dovetail_inductor.loop_ir.sizes import FloatSize


@dataclass(frozen=True)
class FusedKernel:
    """Loop nests computed together, over the common domain `rows` x `columns`.

    Each nest is of one of three kinds: *full*, pointwise over rows and columns (a scan goes along
    the columns, in their order); *reduction*, over the columns, one result a row; *row*, pointwise
    over the rows alone. Without columns all are row nests. Nests stand in order of computation;
    what one writes another reads at the very same point of the domain. `internal` buffers are read
    by no one else and need no memory.
    """

    name: str
    rows: tuple[Var, ...]
    columns: tuple[Var, ...]
    nests: tuple[LoopNest, ...]
    internal: frozenset[str] = frozenset()

    @property
    def row_points(self) -> int:
        """Points of the row domain."""
        return prod(v.size for v in self.rows)

    @property
    def column_points(self) -> int:
        """Points of the column domain."""
        return prod(v.size for v in self.columns)

    def is_full(self, nest: LoopNest) -> bool:
        """True for a pointwise nest over rows and columns."""
        return nest.reduction is None and any(v in self.columns for v in nest.vars)

    def writes(self) -> set[str]:
        """Names of the buffers written, internal ones included."""
        return {nest.buffer for nest in self.nests}

    def reads(self) -> set[str]:
        """Names of the buffers read that others wrote."""
        found: set[str] = set()
        for nest in self.nests:
            found |= nest.reads()
        return found - self.writes()

    def phases(self) -> dict[str, int]:
        """For each buffer written, the number of passes over the columns that must end before.

        Pass k computes the full nests and reductions of phase k; the row nests of phase k are
        computed just before it.
        """
        phase: dict[str, int] = {}
        reduced: set[str] = set()
        for nest in self.nests:
            own = 0
            for name in nest.reads():
                if name in phase:
                    own = max(own, phase[name] + (1 if name in reduced else 0))
            phase[nest.buffer] = own
            if nest.reduction is not None:
                reduced.add(nest.buffer)
        return phase

    def as_text(self) -> str:
        """Readable form."""
        rows = ", ".join(f"{v} < {v.size}" for v in self.rows)
        columns = ", ".join(f"{v} < {v.size}" for v in self.columns)
        head = f"kernel {self.name} rows ({rows}) columns ({columns})"
        if self.internal:
            head += f" internal {', '.join(sorted(self.internal))}"
        body = "\n".join(nest.as_text() for nest in self.nests)
        return head + "\n" + "\n".join("  " + line for line in body.splitlines())


@dataclass(frozen=True)
class ProductTiles:
    """How a kernel of ours multiplies matrices: a program computes `m` x `n` elements, `k` products
    of each at a time. With `parts` > 1 so many programs share the products of one element.

    With `programs` the kernel is persistent: (at most) so many programs compute all tiles, in
    turns, and read the next one's operands while they end one. With `descriptors` the GPU's copy
    engine reads the operands, by descriptors of tensors. `apart` is as of a `Multiplication`. With
    `early` no launch of the plan writes the weights: they may be read before the launches before
    have ended.
    """

    m: int
    n: int
    k: int
    warps: int
    stages: int
    parts: int = 1
    programs: int = 0
    descriptors: bool = False
    apart: bool = False
    early: bool = False

    @property
    def by_threads(self) -> bool:
        """Whether threads multiply, as for few rows, and no tensor cores."""
        return self.m < 16

    def programs_for(self, m: int, n: int) -> int:
        """How many tiles a matrix of m x n has."""
        return -(-m // self.m) * -(-n // self.n)

    def as_text(self) -> str:
        """Short: `128x256x64 8 warps 3 stages 132 programs persistent TMA`."""
        text = f"{self.m}x{self.n}x{self.k} {self.warps} warps {self.stages} stages"
        text += f" {self.parts} parts" if self.parts > 1 else ""
        text += f" {self.programs} programs persistent" if self.programs else ""
        return text + (" TMA" if self.descriptors else "")


def power_of_two(n: int) -> int:
    """The smallest power of two that is at least n."""
    return 1 << max(n - 1, 0).bit_length()


def covering(size: int) -> int:
    """The shortest side of a tile that is worth using and covers `size`."""
    return max(16, power_of_two(size))


@dataclass(frozen=True)
class ComputedOperand:
    """A right matrix that a product computes itself, as weights of the numbers that they are kept
    as: its elements (u*i + j, n) are `bodies[j]`, of which there are u, at the point i of the loops
    `inner` and n of the loops `columns`. `offset` is where it would begin in its buffer, and a
    product may have some of its columns; `origin` is the FX node that makes it.
    """

    bodies: tuple[Expr, ...]
    inner: tuple[Var, ...]
    columns: tuple[Var, ...]
    offset: int
    after: frozenset[str]  # as of a `LoopNest`
    origin: str

    @property
    def in_one(self) -> int:
        """How many neighbours along the inner dimension are made of the same memory."""
        return len(self.bodies)

    def reads(self) -> frozenset[str]:
        """Names of the buffers read."""
        return self.after.union(load.buffer for load in loads(self.bodies))

    def weights(self) -> frozenset[str]:
        """Names of the buffers that neighbours along the inner dimension read in other places."""
        last = self.inner[-1].id
        found = (d.buffer for d in loads(self.bodies) if index_free(d.index) >> last & 1)
        return frozenset(found)

    def bits(self, buffers: Mapping[str, Buffer]) -> float:
        """How many bits of memory an element is made of, but for what several share."""
        own = sum(buffers[name].dtype.itemsize for name in self.weights())
        return 8 * own / self.in_one or 8

    def with_factor(self, loops: Sequence[Var]) -> tuple[tuple[Expr, ...], Expr | None]:
        """The bodies without a factor that all of them have and that does not change along some
        loops, as a scale, and that factor."""
        bodies = [b for b in self.bodies if isinstance(b, Apply) and b.op == "mul"]
        factors = set.intersection(*(set(b.args) for b in bodies)) if bodies else set()
        still = (f for f in factors if f.free and not any(f.free >> v.id & 1 for v in loops))
        factor = next(still, None)
        if factor is None or len(bodies) < len(self.bodies):
            return self.bodies, None
        return tuple(b.args[b.args[0] is factor] for b in bodies), factor

    def as_text(self, name: str) -> str:
        """Readable form, of the matrix called `name`."""
        printer = Printer()
        values = interpret(self.bodies, printer)
        loops = ", ".join(f"{v} < {v.size}" for v in (*self.inner, *self.columns))
        lines = [f"at {loops}:  # {self.origin}"]
        lines += [f"    {line}" for line in printer.lines]
        return "\n".join([*lines, f"    {name}[...] = {', '.join(values)}"])


@dataclass(frozen=True)
class ProductKernel:
    """A product of matrices with what follows point by point, in one kernel.

    `left` is [batch,] m, k and `right` [batch,] k, n. `axes` are the loops of `epilogue` that count
    (the batch, or the parts of k, or nothing), (m) and (n); its nests find the sums of products
    where they load from `sums`, which is no memory. `others` are further right matrices of the
    same shape and strides, by which the left one is multiplied besides, with the names of their
    sums. Right matrices in `computed`, by their buffers, are in no memory.
    """

    name: str
    left: Strided
    right: Strided
    axes: tuple[tuple[Var, ...], tuple[Var, ...], tuple[Var, ...]]
    sums: str
    epilogue: FusedKernel
    tiles: ProductTiles
    others: tuple[tuple[Strided, str], ...] = ()
    computed: Mapping[str, ComputedOperand] = field(default_factory=dict)

    @property
    def rights(self) -> tuple[tuple[Strided, str], ...]:
        """All right matrices, with the names of their sums."""
        return ((self.right, self.sums), *self.others)

    def reads_right(self) -> set[str]:
        """Names of the buffers that right matrices are read from, or made of."""
        made = (operand.reads() for operand in self.computed.values())
        rights = {right.buffer for right, _ in self.rights} - set(self.computed)
        return rights.union(*made)

    def weights_of(self, right: str) -> frozenset[str]:
        """Names of the buffers that have a right matrix element by element."""
        return self.computed[right].weights() if right in self.computed else frozenset({right})

    @property
    def internal(self) -> frozenset[str]:
        """Buffers that need no memory."""
        return self.epilogue.internal

    def writes(self) -> set[str]:
        """Names of the buffers written, internal ones included."""
        return self.epilogue.writes()

    def reads(self) -> set[str]:
        """Names of the buffers read that others wrote."""
        sums = {name for _, name in self.rights}
        return (self.epilogue.reads() - sums) | {self.left.buffer} | self.reads_right()

    def as_text(self) -> str:
        """Readable form."""
        operands = (self.left, *(right for right, _ in self.rights))
        texts = " and ".join(f"{o.buffer}{list(o.shape)}" for o in operands)
        head = f"product {self.name} of {texts} in {self.tiles.as_text()}"
        parts = [operand.as_text(name) for name, operand in self.computed.items()]
        body = "\n".join([*parts, self.epilogue.as_text()])
        return head + "\n" + "\n".join("  " + line for line in body.splitlines())


@dataclass(frozen=True)
class CombinedKernel:
    """Kernels that do not depend on one another, computed by one launch side by side."""

    name: str
    kernels: tuple[FusedKernel | ProductKernel, ...]

    @property
    def internal(self) -> frozenset[str]:
        """Buffers that need no memory."""
        return frozenset().union(*(k.internal for k in self.kernels))

    def writes(self) -> set[str]:
        """Names of the buffers written, internal ones included."""
        return set().union(*(k.writes() for k in self.kernels))

    def reads(self) -> set[str]:
        """Names of the buffers read that others wrote."""
        return set().union(*(k.reads() for k in self.kernels))

    def as_text(self) -> str:
        """Readable form."""
        body = "\n".join(kernel.as_text() for kernel in self.kernels)
        indented = "\n".join("  " + line for line in body.splitlines())
        return f"combined {self.name}\n{indented}"


Step = FusedKernel | CombinedKernel | ProductKernel | ExternCall


def scatters(steps: Sequence[Step]) -> dict[str, str]:
    """Every buffer that a scatter writes -> the one whose memory it takes, in order."""
    found: dict[str, str] = {}
    for kernel in kernels_of(steps):
        for nest in kernel.nests:
            if nest.scatter is not None:
                found[nest.buffer] = nest.scatter.over
    return found


def kernels_of(steps: Sequence[Step]) -> list[FusedKernel]:
    """The fused kernels among some steps, those that share a launch included."""
    found: list[FusedKernel] = []
    for step in steps:
        if isinstance(step, CombinedKernel):
            found += [k for k in step.kernels if isinstance(k, FusedKernel)]
        elif isinstance(step, FusedKernel):
            found.append(step)
    return found


@dataclass(frozen=True)
class KernelGraph:
    """Kernels and extern calls in order; the rest as in `LoopGraph`."""

    inputs: tuple[str | None, ...]
    constants: Mapping[str, torch.Tensor]
    buffers: Mapping[str, Buffer]
    steps: tuple[Step, ...]
    outputs: tuple[Strided | int | float | FloatSize | None, ...]
    builder: Builder = field(repr=False, compare=False)
    size_inputs: Mapping[int, int] = field(default_factory=dict)
    definitions: Mapping[str, SizeExpr] = field(default_factory=dict)
    checks: tuple[Assert, ...] = ()
    facts: GraphFacts = field(default_factory=GraphFacts)

    @property
    def kernels(self) -> list[FusedKernel]:
        """The fused kernels, those that share a launch included."""
        return kernels_of(self.steps)

    def as_text(self) -> str:
        """Readable form."""
        return "\n".join(step.as_text() for step in self.steps) + "\n"
