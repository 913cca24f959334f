"""What the loads and stores of a kernel have to do with one another in memory."""

from __future__ import annotations

from collections.abc import Mapping

from dovetail_inductor.loop_ir.index import Index, Var
from dovetail_inductor.loop_ir.loops import Buffer
from dovetail_inductor.loop_ir.sizes import is_symbolic
from dovetail_inductor.scheduler.kernels import FusedKernel


def accesses(kernel: FusedKernel) -> list[tuple[str, Index]]:
    """Every address the kernel touches in memory: (buffer, index)."""
    own = kernel.writes()
    found = [(n.buffer, n.index) for n in kernel.nests if n.buffer not in kernel.internal]
    for nest in kernel.nests:
        for load in nest.loads:
            if load.buffer not in own:
                found.append((load.buffer, load.index))
    return found


def contiguous_var(index: Index, variables: tuple[Var, ...]) -> Var | None:
    """The variable along which the address moves by one element, forwards or backwards."""
    for var in reversed(variables):
        if index.coefficient(var) in (1, -1):
            return var
    return None


def vector_length(index: Index, along: Var, buffer: Buffer) -> int:
    """How many neighbours along a loop one load of 16 bytes takes: fewer where rows are not a
    multiple of it apart."""
    found = 16 // buffer.dtype.itemsize
    for var in index.variables() - {along}:
        apart = index.coefficient(var)
        while found > 1 and (apart is None or is_symbolic(apart) or apart % found):
            found //= 2
    while found > 1 and (is_symbolic(index.const) or index.const % found):
        found //= 2
    return max(found, 1)


def reads_are_narrow(kernel: FusedKernel, buffers: Mapping[str, Buffer], along: Var) -> bool:
    """Whether no load in the loop over columns takes neighbours along a loop over rows at once, as
    where rows begin anywhere. The assembler would let a thread wait for every few of them."""
    inside = {
        (name, index)
        for name, index in accesses(kernel)
        if name in buffers and index.variables() & set(kernel.columns)
    }
    return bool(inside) and all(vector_length(i, along, buffers[name]) == 1 for name, i in inside)
