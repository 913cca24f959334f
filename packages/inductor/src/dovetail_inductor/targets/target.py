"""`Target`: all that lowering and scheduling ask of the machine that a kernel is written for.

Each question is a property that says what is asked, so that a new machine answers it in one place:
a folder beside this file with its answers, its spelling of scalar ops and its `emit`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

import torch
from dovetail_runtime.plan import Kernel, Step

from dovetail_inductor.loop_ir.expr import Builder
from dovetail_inductor.loop_ir.loops import Buffer, ExternCall, LoopNest, Strided
from dovetail_inductor.loop_ir.reduction import Reduction
from dovetail_inductor.scheduler.kernels import CombinedKernel, FusedKernel, ProductKernel


@dataclass(frozen=True)
class Costs:
    """What is dear beside what.

    memory_bound: arithmetic hardly counts beside the bytes that loops read and write.
    recomputed, recomputed_per_byte: how many additions a reader may do again rather than read
        their result, and how many more for each byte of it.
    unrounded_halves: results of half types that library calls read are also kept in float32, for
        the loops that read them.
    near_elements_apart: loading neighbours in memory for one point is as fast as loading elements
        that lie apart, so that a short reduction along them can be a few terms at each point.
    """

    memory_bound: bool
    recomputed: int
    recomputed_per_byte: int
    unrounded_halves: bool
    near_elements_apart: bool

    def cheap(self, dtype: torch.dtype) -> int:
        """How many additions a reader may do again rather than read their result, of this dtype."""
        return self.recomputed + self.recomputed_per_byte * dtype.itemsize


@dataclass(frozen=True)
class Scatters:
    """How kernels combine what several points write to one place.

    parallel: points write in any order, by atomic operations; else in the order of the loops.
    compares_bits: the largest and the least of floats are found by comparing their bits.
    combines: what kernels can combine by.
    """

    parallel: bool
    compares_bits: bool
    combines: frozenset[Reduction]


@dataclass(frozen=True)
class Memory:
    """Who hands out the memory of a machine's tensors.

    keeps_slabs: what a call gives back is kept for its next run, as fresh memory is dear; library
        calls take their results from elsewhere. Else one allocator hands the same memory to
        slabs, large buffers and library calls, so that it goes back as soon as nobody needs it.
    """

    keeps_slabs: bool


@dataclass(frozen=True)
class Scans:
    """How kernels compute running totals.

    in_pieces: long rows are cut into pieces that are scanned in parallel.
    longest_single_row: from so many elements on the library scans a single row faster; None:
        whether it does depends on something else than the length.
    wide_totals: totals of float32, and logarithms of sums, are kept in float64.
    """

    in_pieces: bool
    longest_single_row: int | None
    wide_totals: bool


@dataclass(frozen=True)
class Library:
    """What the library's calls are good at, beside kernels of ours.

    beats_simple_loops: it is faster at some pooling, scans and foldings.
    has_complex_loops: its loops over complex numbers are fast, so that these are not taken apart.
    wants_aligned_rows: its products of half types are faster on rows of aligned length.
    convolves_in_steps: its convolutions add, sum or copy in kernels of their own what kernels of
        ours can do beside other work.
    multiplications_without_packing: up to so many, its products are faster than its convolutions,
        which pack their operands first.
    leads_by_channel: its convolutions of one channel a group are faster than loops.
    multiplies_alone, attends_alone: there are no kernels of ours for products or for attention.
    """

    beats_simple_loops: bool
    has_complex_loops: bool
    wants_aligned_rows: bool
    convolves_in_steps: bool
    multiplications_without_packing: int
    leads_by_channel: bool
    multiplies_alone: bool
    attends_alone: bool


@dataclass(frozen=True)
class Pieces:
    """The least elements of a piece, and those of a result that is worth being cut.

    kept: of pieces that are read twice; None: as many as others have.
    """

    piece: int
    result: int
    kept: int | None = None


@dataclass(frozen=True)
class SplitRule:
    """When a reduction is cut, and into how many pieces.

    A result is a task, or, where neighbours in memory belong to different results, so many of them
    `side_by_side` are (`read_side_by_side`, where they are neighbours in what is read alone). A
    reduction is cut if it has fewer than `enough_tasks` tasks, into pieces that make it `aim`
    tasks; if it has at least `elements`, and a piece and a result as many as `along` says, or
    `across`, where results lie side by side.

    What is read twice, for a mean and for the distances from it, is read from memory once if it
    is cut into pieces of at most `kept` elements, which a task holds or finds in the cache: done
    for results of which so many tasks at a time as `cache` has first read more than the bytes that
    it has second.

    `short`: where memory goes on from a reduced loop of fewer bytes than its first into the
    results', as from the channels of a group into the groups, and a result has more elements than
    its second, that loop is cut off whole: each of its elements has a result in the first stage,
    and these lie side by side.

    With `outermost`, the loop that is outermost in memory is cut, into uneven pieces if need be,
    rather than one along which a piece reads what lies side by side.
    """

    enough_tasks: int
    aim: int
    elements: int
    along: Pieces
    across: Pieces
    cache: tuple[int, int] = (0, 0)
    short: tuple[int, int] = (0, 0)
    outermost: bool = False
    side_by_side: int = 64
    read_side_by_side: int = 16

    def pieces(self, across: bool) -> Pieces:
        """What is asked of pieces and results, which lie side by side or do not."""
        return self.across if across else self.along


@dataclass(frozen=True)
class Scheduling:
    """Which kernels are faster together.

    split: when a reduction is cut into two stages.
    splits_symbolic: so is one of symbolic sizes, into masked pieces.
    turns_loops: loops are run backwards to join a kernel that reads a result from its end (else
        those of scans alone are).
    joins_scatters: a kernel may scatter and do other work.
    spreads_points: the points of a pointwise kernel run in parallel, so that going through them
        row by row, with few rows, loses time.
    needs_near_inner_loops: the innermost loop must go through neighbours in memory.
    unrolls_parts: loops that fall into a few equal parts are unrolled over these.
    shares_launches: independent small kernels are one launch.
    failure_is_final: a kernel that fails ends all work on the device, so that nobody sees what it
        had written by then.
    """

    split: SplitRule
    splits_symbolic: bool
    turns_loops: bool
    joins_scatters: bool
    spreads_points: bool
    needs_near_inner_loops: bool
    unrolls_parts: bool
    shares_launches: bool
    failure_is_final: bool


@dataclass(frozen=True)
class Emitted:
    """A kernel's text and how it is launched.

    kernel: what is built once for all equal kernels; None if the step holds all that is run.
    tensors: the buffers that it takes, in order.
    step: the launch, given the names that these buffers have in the plan, and what people call it.
    """

    kernel: Kernel | None
    tensors: tuple[str, ...]
    step: Callable[[tuple[str, ...], str], Step]


GeneratedKernel = FusedKernel | CombinedKernel | ProductKernel


@dataclass(frozen=True)
class Machine:
    """What the text of kernels depends on beside the target.

    simd: the width of vectors in bytes; None: the host's.
    dependent_launches: kernels may be launched while those before run, and wait for them.
    """

    simd: int | None = None
    dependent_launches: bool = False


class Target(Protocol):
    """A machine that kernels are written for. What has a body here is asked of few machines; the
    others inherit it."""

    @property
    def costs(self) -> Costs: ...

    @property
    def memory(self) -> Memory: ...

    @property
    def scatters(self) -> Scatters: ...

    @property
    def scans(self) -> Scans: ...

    @property
    def library(self) -> Library: ...

    @property
    def scheduling(self) -> Scheduling: ...

    def has_operator(self, name: str, dtype: torch.dtype) -> bool:
        """Whether kernels can compute an ATen operator (`name.overload`) with a result of a
        dtype; what they cannot stays a library call."""
        ...

    def has_scalar(self, op: str, dtype: torch.dtype) -> bool:
        """Whether there is a spelling of a scalar op of loop bodies for operands of a dtype."""
        ...

    def launch_kind(self, kernel: FusedKernel, buffers: Mapping[str, Buffer]) -> tuple[object, ...]:
        """What kernels have in common that may share a launch. Asked if
        `scheduling.shares_launches`."""
        raise TypeError("kernels share no launches")

    def reads_before_it_writes(self, kernel: FusedKernel, nest: LoopNest, name: str) -> bool:
        """Whether a kernel that goes through rows, to reduce them, has read each element of the
        buffer `name` when `nest` writes at its place: then it may write there."""
        return False

    def describes(self, operand: Strided, buffers: Mapping[str, Buffer]) -> bool:
        """Whether kernels can read an operand of a product by a descriptor."""
        return False

    def emit(
        self,
        kernel: GeneratedKernel,
        builder: Builder,
        buffers: Mapping[str, Buffer],
        machine: Machine,
    ) -> Emitted:
        """The text of a kernel.

        Raises `TypeError` for a kind of kernel that `scheduling` and `library` rule out.
        """
        ...

    def emit_attention(
        self, call: ExternCall, buffers: Mapping[str, Buffer], machine: Machine
    ) -> tuple[Emitted, ...]:
        """The kernels of an attention call, in order. Asked unless `library.attends_alone`."""
        raise TypeError("attention is the library's")
