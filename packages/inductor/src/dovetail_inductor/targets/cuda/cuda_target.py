"""A GPU: Triton kernels, a program for each block of rows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from dovetail_runtime.plan import LaunchTriton, SizeExpr

from dovetail_inductor.loop_ir.expr import Builder
from dovetail_inductor.loop_ir.loops import Buffer, ExternCall, LoopNest, Strided
from dovetail_inductor.loop_ir.reduction import MAX, MIN, SUM
from dovetail_inductor.loop_ir.sizes import size_expr
from dovetail_inductor.scheduler.kernels import CombinedKernel, FusedKernel, ProductKernel
from dovetail_inductor.targets.cuda.accesses import SIDE
from dovetail_inductor.targets.cuda.assemble import EmittedKernel
from dovetail_inductor.targets.cuda.attention_kernels import emit_attention
from dovetail_inductor.targets.cuda.combined import emit_combined
from dovetail_inductor.targets.cuda.descriptors import described
from dovetail_inductor.targets.cuda.kernel import emit_kernel
from dovetail_inductor.targets.cuda.passes import reads_before_it_writes
from dovetail_inductor.targets.cuda.product import emit_product
from dovetail_inductor.targets.cuda.tiling import choose
from dovetail_inductor.targets.cuda.triton_ops import has_scalar_form, has_triton_form
from dovetail_inductor.targets.target import (
    Costs,
    Emitted,
    GeneratedKernel,
    Library,
    Machine,
    Memory,
    Pieces,
    Scans,
    Scatters,
    Scheduling,
    SplitRule,
    Target,
)

COSTS = Costs(
    memory_bound=True,
    recomputed=0,
    recomputed_per_byte=12,
    unrounded_halves=True,
    near_elements_apart=True,
)
MEMORY = Memory(keeps_slabs=False)
SCATTERS = Scatters(
    parallel=True,
    compares_bits=True,
    combines=frozenset({SUM, MAX, MIN}),  # there is no atomic product
)
SCANS = Scans(in_pieces=True, longest_single_row=1 << 16, wide_totals=False)
LIBRARY = Library(
    beats_simple_loops=False,
    has_complex_loops=False,
    wants_aligned_rows=True,
    convolves_in_steps=True,
    multiplications_without_packing=0,
    leads_by_channel=True,
    multiplies_alone=False,
    attends_alone=False,
)
# An H100 has 132 multiprocessors; a second launch costs what 2**16 elements cost one of them.
SPLIT = SplitRule(
    132, 4 * 132, 1 << 16, Pieces(4096, 1 << 15, kept=1 << 12), Pieces(32, 256, kept=1 << 8),
    cache=(2 * 132, 1 << 25), short=(32, 1 << 14), read_side_by_side=SIDE,
)  # fmt: skip
SCHEDULING = Scheduling(
    split=SPLIT,
    splits_symbolic=True,
    turns_loops=False,
    joins_scatters=True,
    spreads_points=True,
    needs_near_inner_loops=False,
    unrolls_parts=True,
    shares_launches=True,
    failure_is_final=True,
)


@dataclass(frozen=True)
class CudaTarget(Target):
    """An NVIDIA GPU (or Triton's interpreter on CPU tensors)."""

    costs: Costs = COSTS
    memory: Memory = MEMORY
    scatters: Scatters = SCATTERS
    scans: Scans = SCANS
    library: Library = LIBRARY
    scheduling: Scheduling = SCHEDULING

    def has_operator(self, name: str, dtype: torch.dtype) -> bool:
        return has_triton_form(name, dtype)

    def has_scalar(self, op: str, dtype: torch.dtype) -> bool:
        return has_scalar_form(op, dtype)

    def launch_kind(self, kernel: FusedKernel, buffers: Mapping[str, Buffer]) -> tuple[object, ...]:
        tiling = choose(kernel, buffers, shared=True)
        return tiling.columns, tiling.looped, tiling.num_warps, tiling.num_stages

    def reads_before_it_writes(self, kernel: FusedKernel, nest: LoopNest, name: str) -> bool:
        return reads_before_it_writes(kernel, nest, name)

    def describes(self, operand: Strided, buffers: Mapping[str, Buffer]) -> bool:
        return described(operand, buffers) is not None

    def emit(
        self,
        kernel: GeneratedKernel,
        builder: Builder,
        buffers: Mapping[str, Buffer],
        machine: Machine,
    ) -> Emitted:
        dependent = machine.dependent_launches
        if isinstance(kernel, ProductKernel):
            return _launched(emit_product(kernel, buffers, dependent))
        if isinstance(kernel, CombinedKernel):
            return _launched(emit_combined(kernel, buffers, dependent))
        return _launched(emit_kernel(kernel, buffers, dependent))

    def emit_attention(
        self, call: ExternCall, buffers: Mapping[str, Buffer], machine: Machine
    ) -> tuple[Emitted, ...]:
        return tuple(map(_launched, emit_attention(call, buffers, machine.dependent_launches)))


def _launched(made: EmittedKernel) -> Emitted:
    sizes = tuple(SizeExpr("sym", (name,)) for name in made.symbols)
    x, y, z = (size_expr(n) for n in made.grid)
    symbol = made.kernel.symbol
    return Emitted(
        made.kernel,
        tuple(made.tensors),
        lambda places, label: LaunchTriton(
            symbol, (*places, *sizes), (x, y, z), label, made.dependent, made.evenly
        ),
    )


CUDA = CudaTarget()
