"""What the loads and stores of a kernel have to do with one another in memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import prod

from dovetail_inductor.loop_ir.expr import index_free, loads
from dovetail_inductor.loop_ir.index import Index, Var
from dovetail_inductor.loop_ir.loops import Buffer
from dovetail_inductor.loop_ir.sizes import hint_of, is_symbolic
from dovetail_inductor.scheduler.kernels import FusedKernel

SIDE = 16  # of a tile, at least
LINE = 32  # elements of a cache line, or so
MANY = 1 << 13  # places: more than a dimension of an image has


def accesses(kernel: FusedKernel) -> list[tuple[str, Index]]:
    """Every address the kernel touches in memory: (buffer, index)."""
    own = kernel.writes()
    written = [(n.buffer, n.index) for n in kernel.nests if n.buffer not in kernel.internal]
    loads = [load for nest in kernel.nests for load in nest.loads if load.buffer not in own]
    return written + [(load.buffer, load.index) for load in loads]


def contiguous_var(index: Index, variables: tuple[Var, ...]) -> Var | None:
    """The variable along which the address moves by one element, forwards or backwards."""
    for var in reversed(variables):
        if index.coefficient(var) in (1, -1):
            return var
    return None


def run_along(indices: Sequence[Index], rows: tuple[Var, ...], var: Var) -> tuple[Var, ...]:
    """`var`, along which some accesses are contiguous; where it is short, after the loops that go
    on where it ends, as the groups of channels do after the channels of one."""
    if not is_symbolic(var.size) and var.size >= SIDE:
        return (var,)
    run = [var]
    own = [index for index in indices if contiguous_var(index, rows) == var]
    for index in sorted(own, key=lambda i: -len(i.variables())):
        while not is_symbolic(length := prod(v.size for v in run)) and length < SIDE:
            more = [v for v in rows if v not in run and index.coefficient(v) == length]
            if not more:
                break
            run.insert(0, more[0])
    return tuple(run)


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


def scattered_reads(kernel: FusedKernel, buffers: Mapping[str, Buffer]) -> int:
    """How many loads are of single elements at places that many data tell, not a small table:
    neighbours lie anywhere."""
    loops, found = (*kernel.rows, *kernel.columns), 0
    for index in {index for _, index in accesses(kernel) if index.indirects()}:
        told = index_free(index) & ~sum(1 << v.id for v in index.variables())
        rest = tuple(v for v in loops if not told >> v.id & 1)
        by_data = loads([atom.value for atom in index.indirects()])
        many = any(hint_of(prod(buffers[ld.buffer].shape)) >= MANY for ld in by_data)
        found += many and contiguous_var(index, rest) is None
    return found


def weights(
    kernel: FusedKernel, buffers: Mapping[str, Buffer], variables: tuple[Var, ...]
) -> dict[Var, int]:
    """Bytes of the accesses that are contiguous along each variable, as rows are that are found by
    their numbers in memory; those of one buffer that are but few elements apart read the same lines
    of memory, and count once."""
    weight: dict[Var, int] = {}
    seen: dict[tuple[str, Index], list[int]] = {}
    for name, index in accesses(kernel):
        places = seen.setdefault((name, index - index.const), [])
        const = hint_of(index.const)
        if any(abs(const - place) < LINE for place in places):
            continue
        places.append(const)
        choosing = {
            v for v in variables if any(a.value.free >> v.id & 1 for a in index.indirects())
        }
        var = contiguous_var(index, tuple(v for v in variables if v not in choosing))
        if var is not None:
            points = prod(hint_of(v.size) for v in index.variables() | choosing)
            weight[var] = weight.get(var, 0) + points * buffers[name].dtype.itemsize
    return weight


def directions(
    kernel: FusedKernel, buffers: Mapping[str, Buffer]
) -> list[tuple[tuple[Var, ...], int]]:
    """The runs of loops along which a pointwise kernel's accesses go through memory, the heaviest
    first, with their weights. One that begins as another does and goes on is that one."""
    weight = weights(kernel, buffers, kernel.rows)
    indices = [index for _, index in accesses(kernel)]
    whole: dict[Var, tuple[Var, ...]] = {}
    total: dict[Var, int] = {}
    for var in sorted(weight, key=lambda v: -weight[v]):
        run = run_along(indices, kernel.rows, var)
        total[run[0]] = total.get(run[0], 0) + weight[var]
        if len(run) > len(whole.get(run[0], ())):
            whole[run[0]] = run
    ranked = sorted(total, key=lambda v: -total[v])
    return [(whole[v], total[v]) for v in ranked]


def in_memory_order(kernel: FusedKernel, weight: Mapping[Var, int]) -> FusedKernel:
    """The kernel with that loop of columns last along which at least half is contiguous."""
    counted = any(n.scan is not None or n.with_index for n in kernel.nests)
    heavy = sorted((v for v in kernel.columns if weight.get(v)), key=lambda v: -weight[v])
    if counted or not heavy or kernel.columns[-1] is heavy[0]:
        return kernel
    last = heavy[0]
    if 2 * weight[last] < sum(weight[v] for v in heavy):
        return kernel
    return replace(kernel, columns=(*(v for v in kernel.columns if v is not last), last))
