"""The CPU: C++ over vector types of our own, OpenMP over rows."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import torch
from dovetail_runtime.plan import CppKernel, LaunchCpp, SizeExpr

from dovetail_inductor.kernel_names import operators_of
from dovetail_inductor.loop_ir.expr import Apply, Builder, walk
from dovetail_inductor.loop_ir.loops import Buffer
from dovetail_inductor.loop_ir.ops import E4M3_SATURATES, SCALAR_OPS
from dovetail_inductor.loop_ir.reduction import MAX, MIN, PROD, SUM
from dovetail_inductor.loop_ir.sizes import size_expr
from dovetail_inductor.scheduler.kernels import FusedKernel
from dovetail_inductor.targets.cpu import emit as cpp
from dovetail_inductor.targets.cpu.shape import host_simd_bytes
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
    memory_bound=False,
    recomputed=3,
    recomputed_per_byte=0,
    unrounded_halves=False,
    near_elements_apart=False,
)
MEMORY = Memory(keeps_slabs=True)
SCATTERS = Scatters(parallel=False, compares_bits=False, combines=frozenset({SUM, PROD, MAX, MIN}))
SCANS = Scans(in_pieces=False, longest_single_row=None, wide_totals=True)
LIBRARY = Library(
    beats_simple_loops=True,
    has_complex_loops=True,
    wants_aligned_rows=False,
    convolves_in_steps=False,
    multiplications_without_packing=1 << 24,
    leads_by_channel=False,
    multiplies_alone=True,
    attends_alone=True,
)
SCHEDULING = Scheduling(
    split=SplitRule(16, 64, 1 << 15, Pieces(256, 512), Pieces(256, 512), outermost=True),
    splits_symbolic=False,
    turns_loops=True,
    joins_scatters=False,
    spreads_points=False,
    needs_near_inner_loops=True,
    unrolls_parts=False,
    shares_launches=False,
    failure_is_final=False,
)


@lru_cache(maxsize=1)
def preamble() -> str:
    """What all C++ kernels share: the vector types, arithmetic and the elementary functions."""
    folder = Path(cpp.__file__).parent
    names = ("simd", "arithmetic", "double", "math", "special")
    beyond = f"#define DV_BEYOND_E4M3 {'0x7eu' if E4M3_SATURATES else '0x7fu'}\n"
    return beyond + "".join((folder / f"{name}.h").read_text() for name in names)


@dataclass(frozen=True)
class CpuTarget(Target):
    """The host's CPU."""

    costs: Costs = COSTS
    memory: Memory = MEMORY
    scatters: Scatters = SCATTERS
    scans: Scans = SCANS
    library: Library = LIBRARY
    scheduling: Scheduling = SCHEDULING

    def has_operator(self, name: str, dtype: torch.dtype) -> bool:
        return True

    def has_scalar(self, op: str, dtype: torch.dtype) -> bool:
        return op in SCALAR_OPS

    def emit(
        self,
        kernel: GeneratedKernel,
        builder: Builder,
        buffers: Mapping[str, Buffer],
        machine: Machine,
    ) -> Emitted:
        if not isinstance(kernel, FusedKernel):
            raise TypeError(f"no {type(kernel).__name__} is made for a CPU")
        source, shape = cpp.emit_kernel(builder, kernel, buffers, machine.simd or host_simd_bytes())
        digest = hashlib.sha256(source.text.encode()).hexdigest()[:16]
        symbol = f"dovetail_{operators_of(kernel.nests)}_{digest}"
        made = CppKernel(symbol, source.text.replace("@symbol@", symbol), preamble())
        sizes = tuple(SizeExpr("sym", (name,)) for name in source.sizes)
        work, line = size_expr(shape.work), _line_of_checks(kernel)
        return Emitted(
            made,
            tuple(source.pointers),
            lambda places, label: LaunchCpp(symbol, places, sizes, work, shape.grain, line, label),
        )


def _line_of_checks(kernel: FusedKernel) -> str:
    """The line of the program whose indices a kernel checks (the first of them)."""
    values = (value for nest in kernel.nests for value in nest.values)
    checks = (node.check for node in walk(values) if isinstance(node, Apply))
    return next((check.line for check in checks if check is not None), "")


CPU = CpuTarget()
